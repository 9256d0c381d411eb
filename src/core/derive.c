/* Derived limits; the reasons are in derive.h. */

#include "derive.h"

#define SECOND 1000000

uint32_t dbguard_derive_queue(uint32_t workers, uint32_t budget)
{
    uint32_t spare = (uint32_t)(((uint64_t)workers * 15 + 99) / 100);

    if (spare < 8)
        spare = 8;
    if (workers <= spare || workers - spare <= budget)
        return 0;
    return workers - spare - budget;
}

int64_t dbguard_derive_patience(int64_t hold)
{
    int64_t patience = 6 * hold;

    if (patience < SECOND)
        return SECOND;
    return patience > 10 * SECOND ? 10 * SECOND : patience;
}
