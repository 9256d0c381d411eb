/* What happens under one lock: see section.h. */

#include "queue.h"
#include "section.h"
#include "settle.h"
#include "slot.h"

/* As many of the parked may be next again in one section. */
#define UNPARKED 8

/* As many holders are looked at in one section whether they have grown old. */
#define FOLLOWED 64

dbguard_reason_t dbguard_section_shut(const dbguard_shared_t *shared,
                                      int64_t now)
{
    if (shared->prefix.closed)
        return DBGUARD_REASON_BOARD;
    return dbguard_database_closed(&shared->database, &shared->limits.rules,
                                   now)
               ? DBGUARD_REASON_DATABASE
               : DBGUARD_REASON_NONE;
}

/* After an event: the levels that the flight recorder keeps. */
static void record(dbguard_shared_t *shared, dbguard_second_t *second)
{
    uint32_t held = shared->prefix.held;

    if (held > shared->held_peak)
        shared->held_peak = held;
    if (held > second->held_max)
        second->held_max = held;
    if (shared->prefix.waiting > second->waiting_max)
        second->waiting_max = shared->prefix.waiting;
    second->held_last = held;
}

void dbguard_section_dispatch(dbguard_section_t *in)
{
    dbguard_board_t *board = in->board;
    dbguard_shared_t *shared = board->shared;
    dbguard_reason_t why = dbguard_section_shut(shared, in->now);

    while (in->nwakes < DBGUARD_WAKES && shared->prefix.waiting > 0) {
        uint32_t slot = why != DBGUARD_REASON_NONE
                            ? dbguard_queue_any(shared)
                            : dbguard_queue_next(board, in->now);

        if (slot == DBGUARD_NONE)
            break;
        if (why != DBGUARD_REASON_NONE)
            dbguard_slot_expel(shared, slot, why, in->now);
        else if (in->now >= shared->slots[slot].deadline)
            dbguard_slot_expel(shared, slot, dbguard_slot_why_not(shared, slot),
                               in->now);
        else
            dbguard_slot_grant(board, slot, in->now);
        in->wakes[in->nwakes++] = slot;
    }
}

/* Holders that have grown old are heavier work than they were taken for; leases
 * end. */
static void follow(dbguard_section_t *in)
{
    dbguard_shared_t *shared = in->board->shared;
    int i;

    for (i = 0; i < FOLLOWED && shared->follow != DBGUARD_NONE; i++) {
        uint32_t slot = shared->follow;
        dbguard_slot_t *s = &shared->slots[slot];
        int64_t age = in->now - s->granted;
        int64_t lease = shared->limits.classes[s->class].lease;
        uint32_t bin = dbguard_bin_of(age);

        shared->follow = s->next;
        if (lease > 0 && age >= lease) {
            dbguard_slot_count_release(
                shared, dbguard_slot_vacate(shared, slot, in->now), in->now);
            dbguard_slot_learn(shared, s, age, in->now);
        }
        else if (bin > s->bin) {
            dbguard_board_count_held(shared, slot, -1);
            s->bin = bin;
            dbguard_board_count_held(shared, slot, 1);
        }
    }
}

/* Those whom DryRun lets run do not come to look. */
static void look_after_shadows(dbguard_section_t *in)
{
    dbguard_shared_t *shared = in->board->shared;
    uint32_t i;

    for (i = 0; i < shared->nslots && shared->shadows > 0; i++)
        if (shared->slots[i].state == DBGUARD_WAITING && shared->slots[i].runs)
            dbguard_slot_look(shared, i, in->now);
}

apr_status_t dbguard_section_begin(dbguard_section_t *in,
                                   dbguard_board_t *board, int64_t now)
{
    dbguard_shared_t *shared = board->shared;
    apr_status_t rv = dbguard_board_lock(board, now);
    int i;

    in->board = board;
    in->now = now;
    in->nwakes = 0;
    if (rv != APR_SUCCESS)
        return rv;
    /* With the levels as they were before what is to come. */
    dbguard_board_second(shared, now);
    dbguard_settle_retire(shared, now);
    if (dbguard_reserve_tick(shared, now)) {
        if (shared->follow == DBGUARD_NONE)
            shared->follow = shared->held_head;
        look_after_shadows(in);
    }
    follow(in);
    for (i = 0; i < UNPARKED; i++)
        dbguard_queue_unpark(shared);
    dbguard_section_dispatch(in);
    return APR_SUCCESS;
}

void dbguard_section_finish(dbguard_section_t *in)
{
    dbguard_shared_t *shared = in->board->shared;
    int full;

    do {
        int i;

        dbguard_section_dispatch(in);
        full = in->nwakes == DBGUARD_WAKES;
        record(shared, dbguard_board_second(shared, in->now));
        dbguard_board_unlock(in->board);
        /* Nobody sleeps on those that DryRun lets run: posts would pile up. */
        for (i = 0; i < in->nwakes; i++)
            if (!shared->slots[in->wakes[i]].runs)
                sem_post(&shared->slots[in->wakes[i]].wake);
        in->nwakes = 0;
    } while (full && dbguard_board_lock(in->board, in->now) == APR_SUCCESS);
}
