#ifndef DBGUARD_SLOT_H
#define DBGUARD_SLOT_H

/* The life of a slot: what becomes of a request's place on the board, and of
 * all the sums and lists that it is part of.
 *
 *     (comes) ----> HELD ---vacate---> SETTLING ----> FREE
 *        |           ^ grant              (settle.h)   ^
 *        +----> WAITING ------------- vacate --------->+
 *        |           | expel                           |
 *        +----> EXPELLED ------------ vacate --------->+
 *
 * In DryRun who comes may be EXPELLED at once, and runs; it is HELD when DryRun
 * ends.
 *
 * Invariants
 *   - The state of a slot is stored when all else about it is: whoever repairs
 *     the board after a crash goes by the states alone.
 *   - A token is counted when it is given; that it came back, by the caller.
 *
 * Everything is called under the lock of the board. Times are microseconds. */

#include "board.h"

/* Give it a token; there is one, or it runs already (DryRun has ended). When it
 * may be used, now or later. */
int64_t dbguard_slot_grant(const dbguard_board_t *board, uint32_t slot,
                           int64_t now);
/* It waits, and shall not any longer. */
void dbguard_slot_expel(dbguard_shared_t *shared, uint32_t slot,
                        dbguard_reason_t reason, int64_t now);
/* It waits, and looks or is looked after: its patience may have ended. */
void dbguard_slot_look(dbguard_shared_t *shared, uint32_t slot, int64_t now);
/* Take back what it stands for. The time its token was out, or -1. */
int64_t dbguard_slot_vacate(dbguard_shared_t *shared, uint32_t slot,
                            int64_t now);

/* A token has come back of itself: with its request, or its lease. */
void dbguard_slot_count_release(dbguard_shared_t *shared, int64_t held,
                                int64_t now);
void dbguard_slot_count_refusal(dbguard_shared_t *shared,
                                dbguard_reason_t reason, int64_t now);
/* How long one is; but for those that had to do with an outage, which would
 * make pages heavy when it is over. */
void dbguard_slot_learn(dbguard_shared_t *shared, const dbguard_slot_t *s,
                        int64_t held, int64_t now);

/* Has its class all the tokens that it may have? */
int dbguard_slot_at_maximum(const dbguard_shared_t *shared,
                            const dbguard_slot_t *s);
/* Its patience has ended; what was in its way? */
dbguard_reason_t dbguard_slot_why_not(const dbguard_shared_t *shared,
                                      uint32_t slot);

#endif
