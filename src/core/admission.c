/* Admission: who gets a token, who waits, who is refused. The rules and the
 * invariants are in admission.h. Each verb is: begin, change slots, finish;
 * both give what is free to the waiting, finish unlocks and wakes them. */

#include <string.h>

#include "admission.h"
#include "derive.h"

#define SECOND 1000000

/* As many waiters as are woken after one critical section. With more to wake,
 * the next section follows at once. */
#define WAKES 32

/* Tokens that others than the holders here have. */
static uint64_t elsewhere(const dbguard_board_t *board)
{
    return board->shared->elder && board->elder ? board->elder->held : 0;
}

/* Is there a token to give, if only one that still settles? */
static int room(const dbguard_board_t *board)
{
    const dbguard_shared_t *shared = board->shared;

    return shared->limits.dryrun
           || shared->prefix.held + elsewhere(board) < shared->limits.budget;
}

/* Those that have settled are free. */
static void retire(dbguard_shared_t *shared, int64_t now)
{
    while (shared->settle_head != DBGUARD_NONE
           && now - shared->slots[shared->settle_head].released
                  >= shared->limits.settle)
        dbguard_board_push_free(shared, dbguard_board_unsettle(shared));
}

/* Take the token that is ready first; there is room. When it may be used. */
static int64_t take_token(const dbguard_board_t *board, int64_t now)
{
    dbguard_shared_t *shared = board->shared;
    uint64_t out = shared->prefix.held + shared->settling + elsewhere(board);
    int64_t start = now;

    /* One, or more when the budget has shrunk meanwhile. */
    while (!shared->limits.dryrun && shared->settling > 0
           && out-- >= shared->limits.budget) {
        uint32_t slot = dbguard_board_unsettle(shared);

        start = shared->slots[slot].released + shared->limits.settle;
        dbguard_board_push_free(shared, slot);
    }
    return start > now ? start : now;
}

/* Why nobody gets a token, whatever is free; usually NONE. */
static dbguard_reason_t shut(const dbguard_shared_t *shared, int64_t now)
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

static int64_t grant(const dbguard_board_t *board, uint32_t slot, int64_t now)
{
    dbguard_shared_t *shared = board->shared;
    dbguard_slot_t *s = &shared->slots[slot];
    int64_t start = take_token(board, now);

    /* Both clocks were read before the lock was had, in whatever order. */
    if (start < s->since)
        start = s->since;
    s->granted = start;
    /* Somebody may have died on the way to expelling it. */
    s->reason = DBGUARD_REASON_NONE;
    if (s->state == DBGUARD_WAITING) {
        dbguard_board_unqueue(shared, slot);
        shared->counters.waited++;
        shared->counters.wait_us += (uint64_t)(start - s->since);
    }
    atomic_store_explicit(&s->state, DBGUARD_HELD, memory_order_release);
    shared->prefix.held++;
    shared->counters.admitted++;
    dbguard_board_second(shared, now)->admitted++;
    return start;
}

static void count_refusal(dbguard_shared_t *shared, dbguard_reason_t reason,
                          int64_t now)
{
    dbguard_counters_t *c = &shared->counters;

    c->refused++;
    dbguard_board_second(shared, now)->refused++;
    if (reason == DBGUARD_REASON_BUDGET)
        c->refused_budget++;
    else if (reason == DBGUARD_REASON_TIMEOUT)
        c->refused_timeout++;
    else if (reason == DBGUARD_REASON_DATABASE)
        c->refused_database++;
    else
        c->refused_board++;
}

static void expel(dbguard_shared_t *shared, uint32_t slot,
                  dbguard_reason_t reason, int64_t now)
{
    dbguard_slot_t *s = &shared->slots[slot];

    dbguard_board_unqueue(shared, slot);
    s->reason = reason;
    atomic_store_explicit(&s->state, DBGUARD_EXPELLED, memory_order_release);
    count_refusal(shared, reason, now);
}

/* What happens under one lock. */
typedef struct section_t {
    dbguard_board_t *board;
    int64_t now;
    uint32_t wakes[WAKES]; /* slots to be woken when the lock is gone */
    int nwakes;
} section_t;

/* Give what is free to the waiting, as far as they can be woken. */
static void dispatch(section_t *in)
{
    dbguard_board_t *board = in->board;
    dbguard_shared_t *shared = board->shared;
    dbguard_reason_t why = shut(shared, in->now);

    while (in->nwakes < WAKES && shared->queue_head != DBGUARD_NONE
           && (why != DBGUARD_REASON_NONE || room(board))) {
        uint32_t slot = why != DBGUARD_REASON_NONE
                            ? shared->queue_head
                            : board->policy->next(shared, in->now);

        if (slot == DBGUARD_NONE)
            break;
        if (why != DBGUARD_REASON_NONE)
            expel(shared, slot, why, in->now);
        else if (in->now >= shared->slots[slot].deadline)
            expel(shared, slot, DBGUARD_REASON_TIMEOUT, in->now);
        else
            grant(board, slot, in->now);
        in->wakes[in->nwakes++] = slot;
    }
}

/* The beginning of every verb. Room may have appeared without an event on this
 * board: time has passed, or an elder's token came back. */
static apr_status_t begin(section_t *in, dbguard_board_t *board, int64_t now)
{
    apr_status_t rv = dbguard_board_lock(board);

    in->board = board;
    in->now = now;
    in->nwakes = 0;
    if (rv == APR_SUCCESS) {
        /* With the levels as they were before what is to come. */
        dbguard_board_second(board->shared, now);
        retire(board->shared, now);
        dispatch(in);
    }
    return rv;
}

/* The end of every verb. */
static void finish(section_t *in)
{
    dbguard_shared_t *shared = in->board->shared;
    int full;

    do {
        int i;

        dispatch(in);
        full = in->nwakes == WAKES;
        record(shared, dbguard_board_second(shared, in->now));
        dbguard_board_unlock(in->board);
        for (i = 0; i < in->nwakes; i++)
            sem_post(&shared->slots[in->wakes[i]].wake);
        in->nwakes = 0;
    } while (full && dbguard_board_lock(in->board) == APR_SUCCESS);
}

/* Whole seconds between the two limits, evenly spread: clients that were
 * refused together shall not come back together. (xorshift64*) */
static int64_t retry_after(dbguard_shared_t *shared)
{
    int64_t min = shared->limits.retry_min;
    uint64_t choices = (uint64_t)(shared->limits.retry_max - min) / SECOND + 1;

    shared->random ^= shared->random >> 12;
    shared->random ^= shared->random << 25;
    shared->random ^= shared->random >> 27;
    return min
           + (int64_t)((shared->random * 0x2545F4914F6CDD1DULL >> 32) % choices)
                 * SECOND;
}

static void refuse(dbguard_shared_t *shared, dbguard_reason_t reason,
                   dbguard_decision_t *decision)
{
    decision->outcome = decision->would = DBGUARD_REFUSED;
    decision->reason = reason;
    decision->ticket.serial = 0;
    decision->retry_after = retry_after(shared);
}

/* One who comes is refused; in DryRun it runs without a ticket instead. */
static void turn_away(dbguard_shared_t *shared, dbguard_reason_t reason,
                      int64_t now, dbguard_decision_t *decision)
{
    refuse(shared, reason, decision);
    if (shared->limits.dryrun) {
        decision->outcome = DBGUARD_ADMITTED;
        shared->counters.dryrun_refused++;
    }
    else
        count_refusal(shared, reason, now);
}

static dbguard_slot_t *occupy(dbguard_shared_t *shared,
                              const dbguard_visitor_t *visitor, int64_t now,
                              dbguard_ticket_t *ticket)
{
    uint32_t slot = dbguard_board_pop_free(shared);
    dbguard_slot_t *s;

    /* Every slot in use: more requests at once than the server has workers
     * (HTTP/2), or a budget of all of them. What it had to settle is lost. */
    if (slot == DBGUARD_NONE && shared->settling > 0)
        slot = dbguard_board_unsettle(shared);
    if (slot == DBGUARD_NONE)
        return NULL;
    s = &shared->slots[slot];
    s->serial = ++shared->serial;
    s->visitor = *visitor;
    s->reason = DBGUARD_REASON_NONE;
    s->used = 0;
    s->since = now;
    s->granted = 0;
    s->prev = s->next = DBGUARD_NONE;
    ticket->slot = slot;
    ticket->serial = s->serial;
    return s;
}

static void wait_in_queue(dbguard_shared_t *shared, dbguard_slot_t *s,
                          int64_t now, dbguard_decision_t *decision)
{
    int64_t patience = shared->limits.patience;

    if (patience == 0)
        patience = dbguard_derive_patience(shared->hold);
    s->deadline = now + patience;
    atomic_store_explicit(&s->state, DBGUARD_WAITING, memory_order_release);
    dbguard_board_enqueue(shared, decision->ticket.slot);
    decision->outcome = decision->would = DBGUARD_WAIT;
    decision->deadline = s->deadline;
}

/* What On would say to one who comes now. In DryRun those above the budget
 * stand for the queue that On would have; those whom On would have refused are
 * not there for it. */
static dbguard_outcome_t judge(const dbguard_board_t *board, int may_have)
{
    const dbguard_shared_t *shared = board->shared;
    uint64_t queued = shared->prefix.waiting;

    if (shared->limits.dryrun) {
        uint64_t held = shared->prefix.held - shared->beyond
                        + elsewhere(board);

        if (held < shared->limits.budget)
            return DBGUARD_ADMITTED;
        queued = held - shared->limits.budget;
    }
    else if (may_have)
        return DBGUARD_ADMITTED;
    return queued < shared->limits.queue ? DBGUARD_WAIT : DBGUARD_REFUSED;
}

void dbguard_admission_enter(dbguard_board_t *board,
                             const dbguard_visitor_t *visitor, int64_t now,
                             dbguard_decision_t *decision)
{
    dbguard_shared_t *shared = board->shared;
    dbguard_reason_t why;
    section_t in;
    dbguard_outcome_t would;
    dbguard_slot_t *s = NULL;

    memset(decision, 0, sizeof(*decision));
    if (begin(&in, board, now) != APR_SUCCESS) {
        decision->outcome = decision->would = DBGUARD_REFUSED;
        if (shared->limits.dryrun)
            decision->outcome = DBGUARD_ADMITTED;
        decision->reason = DBGUARD_REASON_BOARD;
        decision->retry_after = shared->limits.retry_max;
        return;
    }
    why = shut(shared, now);
    if (why != DBGUARD_REASON_NONE) {
        turn_away(shared, why, now, decision);
        finish(&in);
        return;
    }
    /* Those who wait are before it, whatever is free. */
    would = judge(board, room(board) && shared->queue_head == DBGUARD_NONE);
    if (would != DBGUARD_REFUSED || shared->limits.dryrun)
        s = occupy(shared, visitor, now, &decision->ticket);

    if (s == NULL)
        turn_away(shared,
                  would == DBGUARD_REFUSED ? DBGUARD_REASON_BUDGET
                                           : DBGUARD_REASON_BOARD,
                  now, decision);
    else if (would == DBGUARD_WAIT && !shared->limits.dryrun)
        wait_in_queue(shared, s, now, decision);
    else {
        decision->start = grant(board, decision->ticket.slot, now);
        s->used = 1;
        decision->outcome = DBGUARD_ADMITTED;
        decision->would = would;
        if (would == DBGUARD_WAIT)
            shared->counters.dryrun_waited++;
        else if (would == DBGUARD_REFUSED) {
            shared->counters.dryrun_refused++;
            s->reason = decision->reason = DBGUARD_REASON_BUDGET;
            shared->beyond++;
        }
    }
    finish(&in);
}

/* The slot that a ticket stands for, or NULL when it is no longer in force. */
static dbguard_slot_t *find(dbguard_shared_t *shared, dbguard_ticket_t ticket)
{
    dbguard_slot_t *s;

    if (ticket.serial == 0 || ticket.slot >= shared->nslots)
        return NULL;
    s = &shared->slots[ticket.slot];
    return s->serial == ticket.serial && s->state != DBGUARD_FREE
                   && s->state != DBGUARD_SETTLING
               ? s
               : NULL;
}

void dbguard_admission_poll(dbguard_board_t *board, dbguard_ticket_t ticket,
                            int64_t now, dbguard_decision_t *decision)
{
    dbguard_shared_t *shared = board->shared;
    section_t in;
    dbguard_slot_t *s;

    memset(decision, 0, sizeof(*decision));
    decision->ticket = ticket;
    if (begin(&in, board, now) != APR_SUCCESS) {
        /* It has a slot, and cannot be judged now: later, or never. */
        decision->outcome = decision->would = DBGUARD_WAIT;
        decision->deadline = now;
        return;
    }
    s = find(shared, ticket);
    if (s != NULL && s->state == DBGUARD_WAITING && now >= s->deadline)
        expel(shared, ticket.slot, DBGUARD_REASON_TIMEOUT, now);

    if (s == NULL)
        refuse(shared, DBGUARD_REASON_BOARD, decision);
    else if (s->state == DBGUARD_HELD) {
        s->used = 1;
        decision->start = s->granted;
        decision->waited = s->granted - s->since;
    }
    else if (s->state == DBGUARD_WAITING) {
        decision->outcome = decision->would = DBGUARD_WAIT;
        decision->deadline = s->deadline;
    }
    else {
        refuse(shared, s->reason, decision);
        dbguard_board_push_free(shared, ticket.slot);
    }
    if (s != NULL && decision->outcome != DBGUARD_ADMITTED)
        decision->waited = now - s->since;
    finish(&in);
}

/* Take back what the slot stands for. The time its token was out, or -1. */
static int64_t vacate(dbguard_shared_t *shared, uint32_t slot, int64_t now)
{
    dbguard_slot_t *s = &shared->slots[slot];
    int64_t held = -1;

    if (s->state == DBGUARD_HELD) {
        held = now > s->granted ? now - s->granted : 0;
        s->released = now;
        shared->prefix.held--;
        shared->beyond -= s->reason != DBGUARD_REASON_NONE;
        dbguard_board_settle(shared, slot);
        return held;
    }
    if (s->state == DBGUARD_WAITING)
        dbguard_board_unqueue(shared, slot);
    dbguard_board_push_free(shared, slot);
    return held;
}

static void count_abort(dbguard_shared_t *shared, int64_t now)
{
    shared->counters.aborted++;
    dbguard_board_second(shared, now)->aborted++;
}

static void count_release(dbguard_shared_t *shared, int64_t held, int64_t now)
{
    dbguard_second_t *second = dbguard_board_second(shared, now);

    shared->counters.released++;
    shared->counters.hold_us += (uint64_t)held;
    second->released++;
    second->hold_us += (uint64_t)held;
}

apr_status_t dbguard_admission_leave(dbguard_board_t *board,
                                     dbguard_ticket_t ticket, int64_t now,
                                     int64_t *held)
{
    dbguard_shared_t *shared = board->shared;
    section_t in;
    dbguard_slot_t *s;
    apr_status_t rv;

    *held = -1;
    rv = begin(&in, board, now);
    if (rv != APR_SUCCESS)
        return rv;

    s = find(shared, ticket);
    if (s == NULL)
        rv = APR_NOTFOUND;
    else {
        int waits = s->state == DBGUARD_WAITING;

        *held = vacate(shared, ticket.slot, now);
        if (*held >= 0)
            count_release(shared, *held, now);
        else if (waits)
            count_abort(shared, now);
        /* A token that was never used says nothing of how long one is. The
         * last sixteen or so count. */
        if (*held >= 0 && s->used)
            shared->hold += (*held - shared->hold) / 16;
    }
    finish(&in);
    return rv;
}

static int owned_by(const dbguard_slot_t *s, int32_t pid)
{
    return s->state != DBGUARD_FREE && s->state != DBGUARD_SETTLING
           && s->visitor.pid == pid;
}

static int owns_any(const dbguard_shared_t *shared, int32_t pid)
{
    uint32_t i;

    for (i = 0; i < shared->nslots; i++)
        if (owned_by(&shared->slots[i], pid))
            return 1;
    return 0;
}

apr_status_t dbguard_admission_reap(dbguard_board_t *board, int32_t pid,
                                    int64_t now, uint32_t *taken)
{
    dbguard_shared_t *shared = board->shared;
    section_t in;
    apr_status_t rv;
    uint32_t i;

    *taken = 0;
    /* Most processes end with nothing. A dead one's slots can be looked at
     * without the lock: nobody takes or frees them any more. */
    if (!owns_any(shared, pid))
        return APR_SUCCESS;
    rv = begin(&in, board, now);
    if (rv != APR_SUCCESS)
        return rv;

    for (i = 0; i < shared->nslots; i++) {
        if (owned_by(&shared->slots[i], pid)) {
            vacate(shared, i, now);
            ++*taken;
        }
    }
    shared->counters.reaped += *taken;
    finish(&in);
    return APR_SUCCESS;
}

static void derive_queue(dbguard_limits_t *limits)
{
    if (limits->workers > 0)
        limits->queue = dbguard_derive_queue(limits->workers, limits->budget);
}

apr_status_t dbguard_admission_configure(dbguard_board_t *board,
                                         const dbguard_limits_t *limits,
                                         int64_t now)
{
    section_t in;
    apr_status_t rv = begin(&in, board, now);

    if (rv == APR_SUCCESS) {
        board->shared->limits = *limits;
        derive_queue(&board->shared->limits);
        finish(&in);
    }
    return rv;
}

apr_status_t dbguard_admission_learn(dbguard_board_t *board,
                                     const dbguard_database_t *database,
                                     int64_t now)
{
    dbguard_shared_t *shared = board->shared;
    section_t in;
    apr_status_t rv = begin(&in, board, now);

    if (rv == APR_SUCCESS) {
        shared->database = *database;
        if (database->budget > 0)
            shared->limits.budget = database->budget;
        derive_queue(&shared->limits);
        finish(&in);
    }
    return rv;
}

sem_t *dbguard_admission_wake(dbguard_board_t *board, dbguard_ticket_t ticket)
{
    return &board->shared->slots[ticket.slot].wake;
}
