/* Reading the values of directives: see value.h. */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "value.h"

static const struct {
    const char *unit;
    int64_t us;
} units[] = {{"min", 60000000}, {"s", 1000000}, {"ms", 1000}};

#define UNITS (sizeof(units) / sizeof(units[0]))

/* The digits at the start of text, at most max. What follows them, or NULL. */
static const char *digits(const char *text, int64_t max, int64_t *number)
{
    const char *p = text;
    int64_t n = 0;

    for (; *p >= '0' && *p <= '9'; p++) {
        int digit = *p - '0';

        if (digit > max || n > (max - digit) / 10)
            return NULL;
        n = n * 10 + digit;
    }
    *number = n;
    return p == text ? NULL : p;
}

int dbguard_value_number(const char *text, int64_t min, int64_t max,
                         int64_t *number)
{
    int64_t n;
    const char *rest = digits(text, max, &n);

    if (rest == NULL || *rest != '\0' || n < min)
        return 0;
    *number = n;
    return 1;
}

int dbguard_value_duration(const char *text, int64_t min, int64_t max,
                           int64_t *duration)
{
    int64_t n;
    const char *rest = digits(text, max, &n);
    size_t i;

    for (i = 0; rest != NULL && i < UNITS; i++) {
        if (strcmp(rest, units[i].unit) == 0) {
            if (n > max / units[i].us || n * units[i].us < min)
                return 0;
            *duration = n * units[i].us;
            return 1;
        }
    }
    return 0;
}

char *dbguard_value_print_duration(int64_t duration, char *buf)
{
    size_t i;

    for (i = 0; i < UNITS - 1; i++)
        if (duration != 0 && duration % units[i].us == 0)
            break;
    if (duration % units[i].us == 0)
        snprintf(buf, 24, "%" PRId64 "%s", duration / units[i].us,
                 units[i].unit);
    else
        snprintf(buf, 24, "%" PRId64 "us", duration);
    return buf;
}
