#ifndef DBGUARD_CLOCK_H
#define DBGUARD_CLOCK_H

/* The clock of a board: microseconds since boot, the same in all processes of
 * a machine, and not moved when somebody sets the time of day. */

#include <stdint.h>
#include <time.h>

static inline int64_t dbguard_clock_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

#endif
