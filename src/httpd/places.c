/* Which class stands where: see places.h. */

#include <string.h>

#include "places.h"

uint32_t dbguard_places_find(const dbguard_class_t *places, const char *name)
{
    uint32_t i;

    for (i = 1; i < DBGUARD_CLASSES; i++)
        if (strcmp(places[i].name, name) == 0)
            return i;
    return 0;
}

/* One that nobody ever had; else one that is neither wanted nor in use. */
static uint32_t find_free(const dbguard_class_t *places,
                          const unsigned char *used, uint32_t taken)
{
    uint32_t i;

    for (i = 1; i < DBGUARD_CLASSES; i++)
        if (places[i].name[0] == '\0')
            return i;
    for (i = 1; i < DBGUARD_CLASSES; i++)
        if (!used[i] && !(taken & (UINT32_C(1) << i)))
            return i;
    return 0;
}

uint32_t dbguard_places_assign(const dbguard_class_t *old,
                               const unsigned char *used,
                               const dbguard_class_t *wanted, uint32_t n,
                               dbguard_class_t *places)
{
    uint32_t taken = 0, left = 0, i, place;

    memset(places, 0, DBGUARD_CLASSES * sizeof(*places));
    for (i = 1; i < DBGUARD_CLASSES; i++)
        memcpy(places[i].name, old[i].name, sizeof(places[i].name));
    for (i = 0; i < n; i++) {
        place = dbguard_places_find(places, wanted[i].name);
        if (place != 0) {
            places[place] = wanted[i];
            taken |= UINT32_C(1) << place;
        }
    }
    for (i = 0; i < n; i++) {
        if (dbguard_places_find(places, wanted[i].name) != 0)
            continue;
        place = find_free(places, used, taken);
        if (place == 0) {
            left++;
            continue;
        }
        places[place] = wanted[i];
        taken |= UINT32_C(1) << place;
    }
    return left;
}
