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
    uint32_t endpoint; /* its place in the table of endpoints */
    uint32_t class;
    dbguard_visitor_t visitor;
} dbguard_holder_t;

/* All who hold or wait for the same endpoint, or from the same address. */
typedef struct dbguard_group_t {
    char name[DBGUARD_ENDPOINT_MAX];
    uint32_t held, waiting;
    int64_t oldest; /* age of the one that has held longest; when none holds,
                       of the one that has waited longest */
} dbguard_group_t;

#define DBGUARD_GROUPS 20

typedef struct dbguard_groups_t {
    uint32_t number;  /* that there are */
    uint32_t held, waiting; /* in all of them */
    uint32_t nlisted; /* of those, the ones that hold most, then wait most */
    dbguard_group_t listed[DBGUARD_GROUPS];
} dbguard_groups_t;

typedef enum dbguard_known_t {
    DBGUARD_ENDPOINT_NAMED,
    DBGUARD_ENDPOINT_NEW,  /* all of a class of which no request has ended yet:
                              they share a flow (flows.h) */
    DBGUARD_ENDPOINT_OTHER /* all of a class that had no place in the table, and
                              the totals of those that lost theirs */
} dbguard_known_t;

/* What is known of an endpoint. Copied while others write: a row may be of two
 * instants, and say so by nothing. */
typedef struct dbguard_row_t {
    dbguard_known_t known;
    char name[DBGUARD_ENDPOINT_MAX]; /* NAMED: its name */
    uint32_t endpoints;              /* NEW: how many they are */
    uint32_t class;
    uint32_t held, waiting;
    uint64_t arrived, refused, released; /* since it has been known */
    uint32_t came, peak; /* in the last minute; in its busiest second */
    double rate;         /* came a second */
    uint32_t samples;    /* ended holds in hold; 0: none, hold is a guess */
    int64_t hold;        /* mean of the last holds that ended, microseconds */
    int64_t mean;        /* of all that ended, microseconds; 0: none has */
    int64_t estimate;    /* hold, or more when those that hold now have had
                            their token for long */
    double needed;       /* tokens, by Little's law: rate x estimate */
    double ages;         /* sum over those that hold now, microseconds */
    uint16_t histogram[DBGUARD_BINS]; /* ended holds: see flows.h */
} dbguard_row_t;

/* A class, in tokens. */
typedef struct dbguard_class_row_t {
    uint32_t held, waiting;
    uint32_t min, max; /* max UINT32_MAX: none */
} dbguard_class_row_t;

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

    /* Tokens that are free now and kept so for work lighter than the heaviest,
     * and for classes below their minimums. */
    uint32_t kept_lighter, kept_classes;
    uint32_t nclasses; /* 1: none is configured */
    dbguard_class_row_t classes[DBGUARD_CLASSES]; /* as in limits.classes */

    uint32_t nrows;
    dbguard_row_t rows[DBGUARD_ENDPOINTS]; /* who holds or needs most first */
    dbguard_groups_t endpoints, clients;

    uint32_t nholders;
    dbguard_holder_t holders[]; /* who holds, then who waits; longest first */
} dbguard_snapshot_t;

/* Bytes that a snapshot of this board may take. */
size_t dbguard_snapshot_size(const dbguard_shared_t *shared);

/* Of the last so many whole seconds, those that the server has been up: what a
 * mean over them is divided by. The first one counts as a whole one, so that no
 * mean is above the busiest second. */
double dbguard_snapshot_lived(const dbguard_snapshot_t *snapshot,
                              uint32_t seconds);

void dbguard_snapshot_take(dbguard_snapshot_t *snapshot,
                           const dbguard_shared_t *shared, int64_t now);

#endif
