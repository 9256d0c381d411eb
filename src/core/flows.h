#ifndef DBGUARD_FLOWS_H
#define DBGUARD_FLOWS_H

/* Endpoints, and what is learnt about them: how often they are asked for and
 * how long they hold a token. An endpoint is also the flow in which requests
 * for it queue (queue.h).
 *
 * Work is sorted into bins by its estimated hold, half an octave each:
 *
 *     bin 0    up to 20 ms: as short as it needs to be told apart
 *     bin k    20 ms x 2^((k-1)/2) up to 20 ms x 2^(k/2)
 *
 * so that all work of the bins up to k - 3 is at most half as long as any of
 * bin k. A bin has nothing to do with what an operator would call fast or slow:
 * it only makes sums over endpoints cheap.
 *
 * Invariants
 *   - The table is bounded. An entry that a slot names is never
 *     evicted, nor one that is well known and in use; when there is no place
 *     for a new endpoint it is counted in the entry OTHER of its class, and an
 *     evicted one leaves its totals there.
 *   - An endpoint of which no hold has ended yet is of the last bin, and queues
 *     in the flow NEW of its class with all others like it: whoever makes up
 *     paths gains nothing.
 *   - The estimate follows the age of what is running: with holds that ended,
 *     and ages a_i of those that have not,
 *         hold + max(0, sum(a_i - hold)) / max(samples, running)
 *     which is the mean over all that is known, as far as it points up.
 *
 * Everything is called under the lock of the board. Times are microseconds. */

#include <stdint.h>

#include "heap.h"

struct dbguard_shared_t;
struct dbguard_slot_t;

#define DBGUARD_ENDPOINT_MAX 112 /* bytes with NUL; longer ones are cut */
#define DBGUARD_ENDPOINTS 1024
#define DBGUARD_CLASSES 32
#define DBGUARD_BINS 36
#define DBGUARD_HEAVIEST (DBGUARD_BINS - 1) /* also of what is not known */
#define DBGUARD_RATE_SECONDS 60
#define DBGUARD_RATE_RING 64 /* those, the one that runs, and some */
#define DBGUARD_SAMPLES 20 /* holds that the mean is made of, at most */

/* Entries that are always there, one for each class. */
#define DBGUARD_NEW(class) (class)
#define DBGUARD_OTHER(class) (DBGUARD_CLASSES + (class))
#define DBGUARD_FIXED (2 * DBGUARD_CLASSES)

typedef struct dbguard_endpoint_t {
    uint64_t key;   /* of name and class; 0: unused. Stored last */
    uint32_t head;  /* of the hash bucket that has this entry's number */
    uint32_t chain; /* the next in the same bucket */
    uint32_t class;
    uint32_t samples; /* ended holds in the mean; 0: not known yet */
    int64_t seen;     /* its last request */
    int64_t hold;     /* moving mean of its holds */
    uint64_t arrived, refused, released, hold_us; /* totals */
    uint16_t histogram[DBGUARD_BINS]; /* ended holds by bin; all are halved when
                                         one is full, so that it forgets */
    uint32_t rate[DBGUARD_RATE_RING]; /* arrivals by second */
    int64_t second; /* that rate[second % 64] is of */
    int64_t cursor, cohorts; /* the places after the last ones promised: by
                                the millisecond, by the second (retry.h) */

    /* As a flow (queue.h). */
    int64_t used;     /* virtual time: token-seconds had, by weight */
    uint64_t round;   /* virtual time among its clients */
    uint32_t bin;     /* of its work, when last looked at */
    uint32_t ready;   /* the bin in whose heap of flows it is, or NONE */
    int64_t backlog;  /* work that waits, when last looked at */
    dbguard_link_t link;  /* in that heap */
    dbguard_link_t heavy; /* in the heap of all that somebody waits for */

    /* Derived from the slots. */
    uint32_t here; /* slots that name it, whatever their state */
    uint32_t held, waiting; /* waiting: in it as a flow */
    int64_t granted;     /* sum of the times at which held ones were granted */
    uint32_t fresh;      /* waiting for who had nothing else under way */
    uint32_t first, last; /* of those that wait, in order of arrival */
    uint32_t waiters;    /* heap of those that may be next */

    char name[DBGUARD_ENDPOINT_MAX];
} dbguard_endpoint_t;

/* The bin of a hold. */
uint32_t dbguard_bin_of(int64_t hold);
/* The longest hold of a bin; of the last one there is none: INT64_MAX. */
int64_t dbguard_bin_end(uint32_t bin);

/* The number by which an endpoint is known: a keyed hash, never 0. The one call
 * that needs no lock. */
uint64_t dbguard_endpoint_key(const struct dbguard_shared_t *shared,
                              const char *name, uint32_t class);
/* A request to it has come: its entry, made if need be. */
uint32_t dbguard_endpoint_arrive(struct dbguard_shared_t *shared, uint64_t key,
                                 const char *name, uint32_t class,
                                 int64_t now);
/* The flow that a request to it queues in now. */
uint32_t dbguard_endpoint_flow(const struct dbguard_shared_t *shared,
                               uint32_t endpoint);
/* The estimate: see the top. ages: the sum of those of the running ones. */
int64_t dbguard_estimate(int64_t hold, uint32_t samples, uint32_t running,
                         double ages);
/* What its next request is expected to hold. */
int64_t dbguard_endpoint_estimate(const struct dbguard_shared_t *shared,
                                  uint32_t endpoint, int64_t now);
/* The bin of that; the last one for what is not known. */
uint32_t dbguard_endpoint_bin(const struct dbguard_shared_t *shared,
                              uint32_t endpoint, int64_t now);
/* A hold of it has ended. */
void dbguard_endpoint_learn(struct dbguard_shared_t *shared, uint32_t endpoint,
                            int64_t hold, int64_t now);
/* Arrivals in the last DBGUARD_RATE_SECONDS whole seconds: their number and the
 * most in one of them. */
void dbguard_endpoint_rate(const dbguard_endpoint_t *e, int64_t now,
                           uint32_t *sum, uint32_t *peak);

/* Make the table; or, under the lock, what is derived in it. */
void dbguard_flows_create(struct dbguard_shared_t *shared);
void dbguard_flows_rebuild(struct dbguard_shared_t *shared);

#endif
