#ifndef DBGUARD_SNAPSHOT_H
#define DBGUARD_SNAPSHOT_H

/* A board as it was at one instant, copied so that it can be shown at leisure.
 * Taken without the lock and without writing: a read-only mapping is enough,
 * and it works while every worker is stuck. */

#include <stddef.h>

#include "board.h"

/* One request that waits or holds. */
typedef struct dbguard_holder_t {
    dbguard_state_t state;
    int64_t age; /* microseconds since it came (waiting) or was given its token
                    (held) */
    dbguard_visitor_t visitor;
} dbguard_holder_t;

/* What happened in a stretch of time that ends now. */
typedef struct dbguard_span_t {
    uint32_t seconds;
    uint64_t admitted, refused, aborted, released, hold_us;
    uint32_t held_max, waiting_max;
    uint32_t came_max; /* requests that asked for a token in its busiest second:
                          admitted, refused or hung up */
} dbguard_span_t;

#define DBGUARD_RECENT 60 /* seconds that are shown one by one */

typedef struct dbguard_snapshot_t {
    int64_t now;
    int64_t uptime;       /* microseconds since the cold start */
    int64_t created_wall; /* microseconds since 1970 */
    uint32_t parent, generation, engine;
    int steady; /* 0: somebody wrote all the while; sums may not add up */
    dbguard_limits_t limits;
    uint32_t held, waiting, settling, held_peak, nslots;
    uint32_t elder; /* holders in a segment that an upgrade left behind are
                       counted as well, and are not shown here */
    int64_t hold;        /* moving mean of the holds, microseconds */
    dbguard_counters_t counters;
    dbguard_database_t database;
    dbguard_facts_t facts;
    int stale; /* the monitor has not been heard of for DBGUARD_STALE */

    uint32_t nsettings; /* 0: no configuration is in force: a reload is under
                           way, or has left the module out */
    dbguard_setting_t settings[DBGUARD_SETTINGS];

    dbguard_span_t minute, hour;
    dbguard_second_t recent[DBGUARD_RECENT]; /* oldest first; the last one is
                                                the second before now's */

    uint32_t nholders;
    dbguard_holder_t holders[]; /* who holds, then who waits; longest first */
} dbguard_snapshot_t;

/* Bytes that a snapshot of this board may take. */
size_t dbguard_snapshot_size(const dbguard_shared_t *shared);

void dbguard_snapshot_take(dbguard_snapshot_t *snapshot,
                           const dbguard_shared_t *shared, int64_t now);

#endif
