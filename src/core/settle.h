#ifndef DBGUARD_SETTLE_H
#define DBGUARD_SETTLE_H

/* The time between a token's return and its next use.
 *
 * A token that came back settles for limits.settle, and tokens that come back
 * together follow one another: each counts as having come back limits.pace
 * after the one before, or sooner where the budget is more than 20, so that all
 * of it is back within 20 paces.
 *
 * Invariants
 *   - A slot of this list is in state SETTLING, in order of `released`, and is
 *     free limits.settle after that, or when a token is given that begins then.
 *   - None counts as having come back later than 20 paces from now, but for the
 *     time by which clocks that are read before the lock cross.
 *
 * Everything is called under the lock of the board. Times are microseconds. */

#include "board.h"

/* Microseconds. PHP closes its connection before its token comes back, but the
 * server counts the connection until its thread has run once more, and on a
 * busy machine that takes its time. Measured with budget 20, max_connections 24
 * and holds of 15 to 50 ms: with none, up to 25 connections and 1 % of the
 * requests in error 1040; with 2 ms, 20 on a quiet machine, up to 25 on one
 * short of CPU; with these two, seldom more than 20 there
 * (docs/internals/admission.md). */
#define DBGUARD_SETTLE 3000
#define DBGUARD_PACE 500

/* The token of a slot that is on no list has come back. */
void dbguard_settle_add(dbguard_shared_t *shared, uint32_t slot, int64_t now);
/* The one that has settled longest; there is one. It is on no list then. */
uint32_t dbguard_settle_pop(dbguard_shared_t *shared);
/* Those that have settled are free. */
void dbguard_settle_retire(dbguard_shared_t *shared, int64_t now);
/* When one of `free` tokens, those that settle among them, may be used: now, or
 * when enough have settled. With none (DryRun has ended, and what it let run is
 * out) it is now. */
int64_t dbguard_settle_start(const dbguard_shared_t *shared, uint32_t free,
                             int64_t now);
/* It is out: one that settles no longer does, if it was needed. */
void dbguard_settle_take(dbguard_shared_t *shared, uint32_t free);
/* The list anew, of all slots in state SETTLING. Their order is lost: all of
 * them settle as the last one. */
void dbguard_settle_rebuild(dbguard_shared_t *shared);

#endif
