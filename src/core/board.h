#ifndef DBGUARD_BOARD_H
#define DBGUARD_BOARD_H

/* The scoreboard: what lies in shared memory, who may touch it, and how it is
 * made, checked and repaired.
 *
 *     +--------+------------------+-----------+---------+-------+---------+
 *     | prefix | header and board | endpoints | seconds | slots | clients |
 *     +--------+------------------+-----------+---------+-------+---------+
 *
 * Invariants
 *   - Everything between begin and finish (section.h) happens under `lock`,
 *     a robust, process-shared mutex. Written without it are: a slot's
 *     semaphore; single words (elder and closed in an upgrade, engine and
 *     generation in a reload, the times of the last sweep and warning); and
 *     the settings, which are only shown.
 *   - Slots are the truth. A request has exactly one slot while it waits or
 *     holds, and a slot's `state` is stored last, so that whoever dies at any
 *     instruction leaves every slot in one of its states.
 *   - `held`, `waiting`, `settling` and the lists are derived from the slots,
 *     and are rebuilt from them when a holder of the lock died or a check
 *     fails.
 *   - Only indexes, never pointers: every process maps the segment where it
 *     likes.
 *   - Readers (status pages, dbguardctl with a read-only mapping) take no
 *     lock: `seq` is odd while somebody writes, and a copy is good when `seq`
 *     was even and the same before and after.
 *
 * Times are microseconds of a clock that only the caller knows and that is the
 * same for all processes (CLOCK_MONOTONIC in httpd, a plain variable in the
 * tests). Durations are microseconds too. */

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "apr_errno.h"

#include "clients.h"
#include "database.h"
#include "flows.h"
#include "heap.h"
#include "lint.h"
#include "reserve.h"

#define DBGUARD_MAGIC "DBGUARD"

/* Raised with every change of what lies behind the prefix. A check builds a
 * second module with another number to rehearse an upgrade. */
#ifndef DBGUARD_LAYOUT
#define DBGUARD_LAYOUT 3
#endif

#define DBGUARD_SECONDS 3600     /* length of the flight recorder */
#define DBGUARD_CLIENT_MAX 48    /* bytes with NUL; an IPv6 address fits */
#define DBGUARD_SETTINGS 48
#define DBGUARD_SLOTS_MAX 1000000
#define DBGUARD_LOCK_PATIENCE 1000000 /* microseconds; it is held for less than
                                         one, usually */
#define DBGUARD_CLASS_MAX 32     /* bytes with NUL */

/* The first bytes of every layout there will ever be: enough for a newer or
 * older build to know the segment and to count what its holders hold. */
typedef struct dbguard_prefix_t {
    char magic[8];             /* DBGUARD_MAGIC */
    uint32_t layout;           /* DBGUARD_LAYOUT of the build that made it;
                                  0 while it is being made */
    uint32_t pid;              /* the httpd parent that owns it */
    uint64_t size;             /* bytes of the whole segment */
    _Atomic uint32_t held;     /* tokens out now */
    _Atomic uint32_t waiting;  /* requests in the queue now */
    _Atomic uint32_t closed;   /* set by a build of another layout that has made
                                  a segment of its own: no token is given any
                                  more, those that are out come back */
} dbguard_prefix_t;

typedef enum dbguard_state_t {
    DBGUARD_FREE = 0, /* on the free list */
    DBGUARD_WAITING,  /* in the queue, no token */
    DBGUARD_HELD,     /* has a token */
    DBGUARD_EXPELLED, /* out of the queue with `reason`; its owner has yet to
                         notice, and frees it */
    DBGUARD_SETTLING  /* its token has come back at `released`, and is given out
                         again when the database has had time to notice that
                         the connection is closed; nobody owns the slot */
} dbguard_state_t;

typedef enum dbguard_reason_t {
#define REASON(symbol, name, help) DBGUARD_REASON_##symbol,
#include "reasons.def"
#undef REASON
    DBGUARD_REASONS
} dbguard_reason_t;

/* Who came, for the operator's eyes. Filled in by the caller of enter. */
typedef struct dbguard_visitor_t {
    int32_t pid;       /* process that runs the request, > 0 */
    uint32_t class;    /* its place in limits.classes */
    uint64_t address;  /* keyed hash of address or prefix; 0: not known */
    uint64_t session;  /* keyed hash of its cookie; 0: none */
    char client[DBGUARD_CLIENT_MAX]; /* address, as text */
    char endpoint[DBGUARD_ENDPOINT_MAX];
} dbguard_visitor_t;

typedef struct dbguard_slot_t {
    _Atomic uint32_t state;  /* dbguard_state_t; the commit point */
    uint32_t reason;         /* dbguard_reason_t of an EXPELLED one */
    uint32_t used;           /* a HELD one's owner knows that it has a token */
    uint32_t runs;           /* in DryRun: its request runs, whatever the state
                                says, which is what On would have done */
    uint64_t serial;         /* of this occupancy; never the same twice */
    uint32_t prev, next;     /* neighbours in its list */
    uint32_t class;          /* from here on: see flows.h and queue.h */
    uint32_t endpoint;       /* what it is counted for */
    uint32_t flow;           /* where it queues */
    uint32_t bin;            /* of its work, by estimate or by age */
    uint32_t address, session; /* clients, or DBGUARD_NONE */
    uint32_t first;          /* its session had nothing else under way */
    uint32_t fresh;          /* nor had its address, when it began to wait */
    uint32_t lane;           /* dbguard_lane_t */
    uint32_t excess;         /* its address asks for too much (reserve.h) */
    uint32_t parked;         /* its client has its share */
    uint32_t held_back;      /* it has been parked */
    uint64_t tag;            /* virtual time of its turn among clients */
    int64_t cost;            /* what its flow was charged for its token */
    dbguard_link_t link;
    int64_t since;           /* when it came */
    int64_t granted;         /* from when on it may use its token */
    int64_t released;        /* when its token counts as having come back */
    int64_t deadline;        /* a waiting one's end of patience */
    sem_t wake;              /* posted when `state` changed under a waiter. A
                                post too many is harmless, so is one too few:
                                waiters also look at the clock */
    dbguard_visitor_t visitor;
} dbguard_slot_t;

typedef struct dbguard_counters_t {
#define COUNTER(field, name, help) uint64_t field;
#include "counters.def"
#undef COUNTER
} dbguard_counters_t;

/* A number of tokens, or a part of the budget. number 0: not set. */
typedef struct dbguard_share_t {
    uint32_t number;
    uint32_t percent; /* number is one of 1 to 100 */
} dbguard_share_t;

/* A named group of requests with limits of its own. The first one has no name:
 * whoever is in no other. */
typedef struct dbguard_class_t {
    char name[DBGUARD_CLASS_MAX];
    dbguard_share_t min; /* tokens kept for it */
    dbguard_share_t max; /* tokens that it may have at most */
    uint32_t weight;     /* of its virtual time; 0 counts as 1 */
    int64_t patience;    /* 0: from the hold of the endpoint */
    int64_t lease;       /* a token comes back after so long at the latest;
                            0: when the request ends */
} dbguard_class_t;

/* One second of the flight recorder. An entry is only valid for the second it
 * names; it is rolled by the first event of a later one. */
typedef struct dbguard_second_t {
    int64_t second; /* now / 1,000,000; 0 = never used */
    uint32_t admitted, refused, aborted, released;
    uint32_t held_max, waiting_max;
    uint32_t held_last; /* tokens out after the last event of the second */
    uint64_t hold_us;   /* sum of the holds that ended in it */
} dbguard_second_t;

/* What the admission obeys. */
typedef struct dbguard_limits_t {
    uint32_t budget;       /* tokens, >= 1; follows the database */
    uint32_t queue;        /* waiting places, >= 0 */
    uint32_t workers;      /* request threads of the server when the queue is to
                              follow the budget; 0: it is fixed */
    uint32_t dryrun;       /* decide and record, refuse nobody */
    int64_t patience;      /* longest wait; 0: from the hold of the endpoint */
    int64_t settle;        /* from a token's return to its next use */
    int64_t pace;          /* by which those that return together follow one
                              another (settle.h) */
    int64_t retry_min;     /* nearest and furthest promise (retry.h) */
    int64_t retry_max;     /* >= retry_min */
    uint32_t session_wait; /* waiting places of one session; 0: no limit */
    dbguard_share_t client_hold; /* of one client while more than half of the
                                    budget is out; not set: what others need
                                    (reserve.h) */
    dbguard_class_t classes[DBGUARD_CLASSES];
    dbguard_rules_t rules; /* how the budget follows the database */
} dbguard_limits_t;

/* One line of the effective configuration, as text. */
typedef struct dbguard_setting_t {
    char name[32];
    char value[512];  /* as it would be written in a configuration file */
    char note[120];   /* what it comes to, where that is not the same */
    char source[200]; /* "default", or file:line */
    uint32_t valid;   /* 0: what the configuration said was refused */
} dbguard_setting_t;

typedef struct dbguard_shared_t {
    dbguard_prefix_t prefix;

    int64_t created_wall; /* wall clock at the cold start, for people */
    int64_t created;      /* the same instant on the board's own clock */
    uint32_t generation;  /* of the httpd configuration in force */
    uint32_t nslots;
    uint32_t elder;       /* holders of a segment with another layout, left
                             behind by an upgrade, are still to be counted */
    uint32_t engine;      /* 0: DBGuardEngine was turned off by a reload */
    uint32_t nsettings;
    dbguard_setting_t settings[DBGUARD_SETTINGS];
    dbguard_limits_t limits;
    dbguard_database_t database;
    dbguard_facts_t facts; /* what the lint needs of the configuration */

    pthread_mutex_t lock;
    _Atomic uint32_t seq;
    uint32_t free_head;
    uint32_t held_head, held_tail;     /* in order of grant */
    uint32_t follow;                   /* whose age is looked at next */
    uint32_t settle_head, settle_tail; /* in order of release */
    uint32_t settling;
    int64_t paced;         /* when the last one counts as having returned */

    unsigned char secret[16]; /* key of the hashes */
    /* The order of the waiting: see queue.h. */
    int64_t time; /* virtual: token-seconds in microseconds, by weight */
    uint32_t ready[DBGUARD_CLASSES][DBGUARD_BINS]; /* heaps of flows */
    uint64_t ready_bins[DBGUARD_CLASSES];          /* those with any */
    uint32_t ready_classes;
    uint32_t heaviest; /* heap of all flows that somebody waits for */
    uint32_t parked_head, parked_tail;
    uint32_t shadows; /* waiters whose requests run, by DryRun */
    /* What has to be left free: see reserve.h. */
    uint64_t tick;    /* now / DBGUARD_TICK */
    int64_t tick_end;
    dbguard_demand_t demands[DBGUARD_ENDPOINTS]; /* without what is excess */
    dbguard_demand_t demand; /* of all, with what is excess */
    uint32_t addresses[2];   /* that came in this window, and in the last */
    int64_t load[DBGUARD_BINS];  /* of the work up to each bin, at the tick */
    uint32_t need[DBGUARD_BINS]; /* and what that needs */
    uint32_t bin_held[DBGUARD_BINS];
    uint32_t class_held[DBGUARD_CLASSES];
    uint32_t class_min[DBGUARD_CLASSES]; /* tokens */
    uint32_t class_max[DBGUARD_CLASSES]; /* UINT32_MAX: no limit */
    uint32_t minimums;   /* any of class_min is set */
    uint32_t client_max; /* limits.client_hold in tokens; 0: not set */
    dbguard_endpoint_t endpoints[DBGUARD_ENDPOINTS];
    uint32_t endpoints_hand; /* where the next eviction begins to look */
    uint32_t nclients, clients_hand;
    uint32_t held_peak;
    uint64_t serial; /* the last one given */
    uint64_t random; /* state of the jitter's generator, never 0 */
    int64_t hold;    /* moving mean of the holds: microseconds */
    int64_t outage;  /* when the database was last seen closed; 0: never */
    _Atomic int64_t swept; /* when dead processes were last looked for */
    _Atomic int64_t warned; /* when the log last spoke of refusals */
    _Atomic int64_t warned_board; /* and of those because of this board */
    _Atomic uint64_t warned_total; /* and how many there had been by then */
    dbguard_counters_t counters;
    uint32_t current; /* the entry that was used last */
    dbguard_second_t seconds[DBGUARD_SECONDS];

    dbguard_slot_t slots[]; /* and behind them dbguard_client_t[nclients] */
} dbguard_shared_t;

/* A process's own handle on a board. */
typedef struct dbguard_board_t {
    dbguard_shared_t *shared;
    int fifo; /* one queue, nothing kept free: only to compare with */
    const dbguard_prefix_t *elder; /* see dbguard_shared_t.elder, or NULL */
} dbguard_board_t;

/* Bytes that a segment for nslots requests needs. */
uint64_t dbguard_board_size(uint32_t nslots);

/* Make a board in `size` zeroed bytes at shared: all slots free, nothing out.
 * `seed` starts the jitter and makes the key of the hashes, which a caller that
 * has strangers for clients replaces; `wall` is the time of day that belongs to
 * now. APR_EINVAL when nslots is 0, above DBGUARD_SLOTS_MAX or does not fit
 * size; else what the system says when it cannot make a robust process-shared
 * lock. The layout is stored last: until then nobody reads what lies behind
 * it. */
apr_status_t dbguard_board_create(dbguard_shared_t *shared, uint64_t size,
                                  uint32_t nslots, pid_t parent, uint64_t seed,
                                  int64_t now, int64_t wall);

/* What lies at base, `size` bytes of it mapped? */
typedef enum dbguard_kind_t {
    DBGUARD_NOT_A_BOARD,
    DBGUARD_OTHER_LAYOUT, /* of another build; its prefix may be read */
    DBGUARD_SAME_LAYOUT
} dbguard_kind_t;

dbguard_kind_t dbguard_board_kind(const void *base, uint64_t size);

/* Take the lock; the board is sound when it returns. When the last holder
 * died in the middle, or a check of the free list and the queue fails, it has
 * been rebuilt from the slots. Anything but APR_SUCCESS means that the lock was
 * not taken: ETIMEDOUT when somebody has had it until DBGUARD_LOCK_PATIENCE
 * after now, and must have been stopped there; EDEADLK when a signal handler
 * interrupted this very thread between lock and unlock, which the caller must
 * treat as "somebody else will clean up". */
apr_status_t dbguard_board_lock(dbguard_board_t *board, int64_t now);
void dbguard_board_unlock(dbguard_board_t *board);

/* Derive everything that is derived. Under the lock only. */
void dbguard_board_rebuild(dbguard_shared_t *shared);

/* Lists, under the lock only. */
uint32_t dbguard_board_pop_free(dbguard_shared_t *shared);
void dbguard_board_push_free(dbguard_shared_t *shared, uint32_t slot);
void dbguard_board_hold(dbguard_shared_t *shared, uint32_t slot);
void dbguard_board_unhold(dbguard_shared_t *shared, uint32_t slot);
/* One more, or (-1) one less slot that names its endpoint and clients. */
void dbguard_board_refer(dbguard_shared_t *shared, uint32_t slot, int one);
/* One more, or (-1) one less that holds: in all the sums over holders but
 * prefix.held. */
void dbguard_board_count_held(dbguard_shared_t *shared, uint32_t slot,
                              int one);

/* The entry of the flight recorder for now, rolled if need be. */
dbguard_second_t *dbguard_board_second(dbguard_shared_t *shared, int64_t now);

/* The name of a reason: one word of [a-z]. */
const char *dbguard_reason_name(dbguard_reason_t reason);


#endif
