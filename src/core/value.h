#ifndef DBGUARD_VALUE_H
#define DBGUARD_VALUE_H

/* Reading the values of directives. A value is read whole or not at all:
 * "50 # note", "1k", "150;", "-1", "" and anything out of range are errors,
 * never a smaller or a missing limit. */

#include <stdint.h>

/* A whole number written in decimal digits only, within [min, max]. Returns 1
 * and stores it, or 0. */
int dbguard_value_number(const char *text, int64_t min, int64_t max,
                         int64_t *number);

/* A duration: digits directly followed by ms, s or min, such as 250ms, 2s,
 * 5min. min, max and *duration are microseconds. Returns 1, or 0. */
int dbguard_value_duration(const char *text, int64_t min, int64_t max,
                           int64_t *duration);

/* Write a duration in the largest unit that says it exactly; "0" never needs a
 * unit. buf has room for 24 bytes. Returns buf. */
char *dbguard_value_print_duration(int64_t duration, char *buf);

#endif
