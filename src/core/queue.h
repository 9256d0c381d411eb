#ifndef DBGUARD_QUEUE_H
#define DBGUARD_QUEUE_H

/* The order of those that wait, on two levels.
 *
 *     class, bin --> heap of flows (endpoints), by virtual time
 *     flow ------> heap of waiters, by lane, then tag, then arrival
 *
 * Between flows it is start-time fair queueing in token-seconds: a flow's
 * virtual time goes on by the estimated hold of each token it is given, by
 * weight, and is corrected when the hold has ended. A flow that comes back
 * begins at the board's virtual time: nothing is saved up while idle. (Goyal,
 * Vin, Cheng: Start-time fair queueing, 1996.)
 *
 * Within a flow all requests are worth the same, and clients take turns: a
 * request is put as many rounds behind as its address has requests under way,
 * waiting or holding; a further request of a session comes after the first one
 * of another that has as many before it. The flow's round goes on by
 * 1 / (number of its waiters) with each token, so that nobody waits for ever
 * behind newcomers.
 *
 * Lanes: who was told when to come back and came then is before all others of
 * its flow, who came back earlier is behind them.
 *
 * A waiter whose client has its share (reserve.h) is parked when its turn
 * comes: it waits, but is in no heap, until something changes or it looks
 * again.
 *
 * Invariants
 *   - Who waits is in the list of its flow and in the flow's heap, or parked.
 *   - A flow is in exactly one heap of flows when there is anybody in its heap
 *     of waiters, in none otherwise.
 *   - Nobody is next whose class, bin or client may have no token now.
 *   - The board is a FIFO when board->fifo is set: all in one flow, in order of
 *     arrival, nothing kept for anybody. It is there to be compared with.
 *
 * Everything is called under the lock of the board. Times are microseconds. */

#include "reserve.h"

typedef enum dbguard_lane_t {
    DBGUARD_ON_TIME, /* was told to come now */
    DBGUARD_NORMAL,
    DBGUARD_EARLY /* was told to come later */
} dbguard_lane_t;

/* A slot with flow, bin, address, session and lane begins to wait; it is given
 * its tag. */
void dbguard_queue_add(struct dbguard_shared_t *shared, uint32_t slot);
/* It no longer waits. */
void dbguard_queue_remove(struct dbguard_shared_t *shared, uint32_t slot);
/* It was given a token: the virtual times go on. */
void dbguard_queue_charge(struct dbguard_shared_t *shared, uint32_t slot,
                          int64_t now);
/* Its token has come back, after so long. */
void dbguard_queue_correct(struct dbguard_shared_t *shared, uint32_t slot,
                           int64_t hold);

/* The slot that shall have the next token, or DBGUARD_NONE. Parks who may have
 * none at present. */
uint32_t dbguard_queue_next(const struct dbguard_board_t *board, int64_t now);
/* Some slot that waits; there is one. */
uint32_t dbguard_queue_any(const struct dbguard_shared_t *shared);
/* Who has to go when the places are full and this slot, not in the queue yet,
 * should have one: of the flow with most work waiting when its own has less, or
 * of its own, in each the last by turn of the newest few. DBGUARD_NONE: nobody,
 * it has to go itself. */
uint32_t dbguard_queue_victim(struct dbguard_shared_t *shared, uint32_t slot);
/* Waiters that such a slot would have before it. */
uint32_t dbguard_queue_ahead(struct dbguard_shared_t *shared, uint32_t slot);

/* Something has changed: the one that has been parked longest may be next. */
void dbguard_queue_unpark(struct dbguard_shared_t *shared);
/* A waiter has another look, whether parked or not; its flow is sorted by what
 * is known by now. */
void dbguard_queue_look(struct dbguard_shared_t *shared, uint32_t slot,
                        int64_t now);
/* A flow whose estimate may have changed is put where it belongs. Returns 1
 * when that was another place: those who wait may have gained by it. */
int dbguard_queue_sort(struct dbguard_shared_t *shared, uint32_t flow,
                        int64_t now);

/* Empty; then add whoever waits, in order of arrival. */
void dbguard_queue_rebuild(struct dbguard_shared_t *shared);

#endif
