#ifndef DBGUARD_RETRY_H
#define DBGUARD_RETRY_H

/* When a refused client shall come back: a place in a line, one line for each
 * endpoint. By Little's law tokens come free for work that holds T at the rate
 *
 *     0.9 (budget - tokens of other work, unless it is lighter) / T    (1/s)
 *
 * and that is the distance between places. (A measured rate would be wrong:
 * before a rush it only shows the demand.)
 *
 *   - A session keeps the place it was promised for an endpoint: coming early
 *     neither pushes others back nor gains anything.
 *   - Of an address without a session it cannot be known whether it is the same
 *     client again. What is promised to an address that has a promise already
 *     is placed behind that one, at distances of what the address may have,
 *     and others are not pushed back by it.
 *   - No place is nearer than limits.retry_min or further than
 *     limits.retry_max.
 *
 * The header Retry-After can only say whole seconds: all places of one second
 * come at once. So that they do not find the waiting places full again, no more
 * of them are given the same second than there are tokens and waiting places.
 *
 * Everything is called under the lock of the board. Times are microseconds. */

#include <stdint.h>

struct dbguard_shared_t;

typedef struct dbguard_promise_t {
    int64_t after;   /* from now; exactly */
    int64_t seconds; /* for the header Retry-After; >= after / 1,000,000 */
} dbguard_promise_t;

/* A place for one that has been refused and has these clients (or NONE). */
void dbguard_retry_promise(struct dbguard_shared_t *shared, uint32_t endpoint,
                           uint32_t address, uint32_t session, int64_t now,
                           dbguard_promise_t *promise);

/* For what has nothing to do with tokens, an outage above all: somewhere
 * between limits.retry_min and ten seconds more, evenly spread. */
void dbguard_retry_spread(struct dbguard_shared_t *shared,
                          dbguard_promise_t *promise);

#endif
