/* The life of a slot: see slot.h. */

#include "queue.h"
#include "retry.h"
#include "settle.h"
#include "slot.h"

int dbguard_slot_at_maximum(const dbguard_shared_t *shared,
                            const dbguard_slot_t *s)
{
    return shared->class_held[s->class] >= shared->class_max[s->class];
}

dbguard_reason_t dbguard_slot_why_not(const dbguard_shared_t *shared,
                                      uint32_t slot)
{
    const dbguard_slot_t *s = &shared->slots[slot];

    if (s->held_back)
        return DBGUARD_REASON_CLIENT;
    return dbguard_slot_at_maximum(shared, s) ? DBGUARD_REASON_CLASS
                                              : DBGUARD_REASON_TIMEOUT;
}

int64_t dbguard_slot_grant(const dbguard_board_t *board, uint32_t slot,
                           int64_t now)
{
    dbguard_shared_t *shared = board->shared;
    dbguard_slot_t *s = &shared->slots[slot];
    uint32_t free = dbguard_reserve_free(board);
    int64_t start = dbguard_settle_start(shared, free, now);

    /* Both clocks were read before the lock was had, in whatever order. */
    if (start < s->since)
        start = s->since;
    s->granted = start;
    /* Somebody may have died on the way to expelling it. */
    s->reason = DBGUARD_REASON_NONE;
    if (s->state == DBGUARD_WAITING) {
        dbguard_queue_remove(shared, slot);
        shared->counters.waited++;
        shared->counters.wait_us += (uint64_t)(start - s->since);
    }
    /* What was new when it came may be known by now. */
    s->bin = dbguard_endpoint_bin(shared, s->endpoint, now);
    atomic_store_explicit(&s->state, DBGUARD_HELD, memory_order_release);
    /* Whoever dies before that leaves a token that settles, not an idle one. */
    dbguard_settle_take(shared, free);
    dbguard_board_hold(shared, slot);
    dbguard_board_count_held(shared, slot, 1);
    dbguard_queue_charge(shared, slot, now);
    shared->counters.admitted++;
    dbguard_board_second(shared, now)->admitted++;
    return start;
}

void dbguard_slot_count_refusal(dbguard_shared_t *shared,
                                dbguard_reason_t reason, int64_t now)
{
    dbguard_counters_t *c = &shared->counters;

    c->refused++;
    dbguard_board_second(shared, now)->refused++;
    switch (reason) {
    case DBGUARD_REASON_BUDGET:
        c->refused_budget++;
        break;
    case DBGUARD_REASON_PATIENCE:
        c->refused_patience++;
        break;
    case DBGUARD_REASON_TIMEOUT:
        c->refused_timeout++;
        break;
    case DBGUARD_REASON_DISPLACED:
        c->refused_displaced++;
        break;
    case DBGUARD_REASON_CLIENT:
        c->refused_client++;
        break;
    case DBGUARD_REASON_CLASS:
        c->refused_class++;
        break;
    case DBGUARD_REASON_DATABASE:
        c->refused_database++;
        break;
    default:
        c->refused_board++;
    }
}

void dbguard_slot_expel(dbguard_shared_t *shared, uint32_t slot,
                        dbguard_reason_t reason, int64_t now)
{
    dbguard_slot_t *s = &shared->slots[slot];
    dbguard_promise_t promise;

    dbguard_queue_remove(shared, slot);
    s->reason = reason;
    atomic_store_explicit(&s->state, DBGUARD_EXPELLED, memory_order_release);
    shared->endpoints[s->endpoint].refused++;
    if (s->runs) {
        /* On's would be given a place when it looks. */
        dbguard_retry_promise(shared, s->endpoint, s->address, s->session, now,
                              &promise);
        shared->counters.dryrun_refused++;
    }
    else
        dbguard_slot_count_refusal(shared, reason, now);
}

void dbguard_slot_look(dbguard_shared_t *shared, uint32_t slot, int64_t now)
{
    if (now >= shared->slots[slot].deadline)
        dbguard_slot_expel(shared, slot, dbguard_slot_why_not(shared, slot),
                           now);
    else
        dbguard_queue_look(shared, slot, now);
}

int64_t dbguard_slot_vacate(dbguard_shared_t *shared, uint32_t slot,
                            int64_t now)
{
    dbguard_slot_t *s = &shared->slots[slot];
    int64_t held = -1;

    dbguard_board_refer(shared, slot, -1);
    if (s->state == DBGUARD_HELD) {
        held = now > s->granted ? now - s->granted : 0;
        dbguard_board_unhold(shared, slot);
        dbguard_board_count_held(shared, slot, -1);
        dbguard_queue_correct(shared, slot, held);
        dbguard_settle_add(shared, slot, now);
        dbguard_queue_unpark(shared);
        dbguard_queue_sort(shared, s->flow, now);
        return held;
    }
    if (s->state == DBGUARD_WAITING)
        dbguard_queue_remove(shared, slot);
    dbguard_board_push_free(shared, slot);
    return held;
}

void dbguard_slot_count_release(dbguard_shared_t *shared, int64_t held,
                                int64_t now)
{
    dbguard_second_t *second = dbguard_board_second(shared, now);

    shared->counters.released++;
    shared->counters.hold_us += (uint64_t)held;
    second->released++;
    second->hold_us += (uint64_t)held;
}

void dbguard_slot_learn(dbguard_shared_t *shared, const dbguard_slot_t *s,
                        int64_t held, int64_t now)
{
    if (s->since <= shared->outage)
        return;
    shared->hold += (held - shared->hold) / 16;
    dbguard_endpoint_learn(shared, s->endpoint, held, now);
    dbguard_queue_sort(shared, s->endpoint, now);
}
