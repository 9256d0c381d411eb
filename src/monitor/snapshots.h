#ifndef DBGUARD_SNAPSHOTS_H
#define DBGUARD_SNAPSHOTS_H

/* DBGuardSnapshot: one line of JSON every so often, and every second while the
 * database is full, so that the hour before a failure can be read afterwards.
 *
 *     {"time":"2026-05-01T03:00:00Z","state":"full","budget":20,"held":20,
 *      "waiting":7,"max_connections":24,"connected":24,"running":3,
 *      "users":[{"user":"app","total":20,"sleeping":17,"longest_sleep":41,
 *                "longest_active":2}]}
 *
 * on one line; durations in seconds. */

#include <stdint.h>

#include "board.h"

typedef struct snapshots_t {
    int fd;        /* opened for appending; -1: no snapshots are wanted */
    int64_t every; /* microseconds */
    int64_t last;
    int failing;   /* the last line could not be written */
} snapshots_t;

/* Write a line if one is due. 0, or the errno of the first failure in a row. */
int snapshots_write(snapshots_t *snapshots, const dbguard_shared_t *shared,
                    int64_t now);

#endif
