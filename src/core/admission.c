/* Admission: who gets a token, who waits, who is refused. The rules and the
 * invariants are in admission.h. */

#include <string.h>

#include "admission.h"
#include "derive.h"
#include "queue.h"
#include "retry.h"
#include "section.h"
#include "settle.h"
#include "slot.h"

/* So long after its time a client still counts as coming when it was told to:
 * whole seconds, and the way. */
#define GRACE INT64_C(5000000)

#define SECOND INT64_C(1000000)

/* s: who is refused, or NULL when that is not known. */
static void refuse(dbguard_shared_t *shared, const dbguard_slot_t *s,
                   dbguard_reason_t reason, int64_t now,
                   dbguard_decision_t *decision)
{
    decision->outcome = decision->would = DBGUARD_REFUSED;
    decision->reason = reason;
    decision->ticket.serial = 0;
    if (s == NULL || reason == DBGUARD_REASON_BOARD
        || reason == DBGUARD_REASON_DATABASE)
        dbguard_retry_spread(shared, &decision->retry);
    else
        dbguard_retry_promise(shared, s->endpoint, s->address, s->session, now,
                              &decision->retry);
}

/* --- who comes ----------------------------------------------------------- */

static uint32_t under_way(const dbguard_client_t *c)
{
    return c->held + c->waiting;
}

/* Did it come when it was told to? An address may be many clients. */
static dbguard_lane_t lane_of(dbguard_shared_t *shared,
                              const dbguard_slot_t *s, int64_t now)
{
    uint32_t client = s->session != DBGUARD_NONE ? s->session : s->address;
    dbguard_client_t *c;

    if (client == DBGUARD_NONE)
        return DBGUARD_NORMAL;
    c = &dbguard_clients(shared)[client];
    if (c->place == 0 || c->promised != s->endpoint
        || (now - c->place > GRACE && now - c->told > GRACE))
        return DBGUARD_NORMAL;
    if (now < c->place && now < c->told)
        return s->session != DBGUARD_NONE ? DBGUARD_EARLY : DBGUARD_NORMAL;
    c->place = 0;
    return DBGUARD_ON_TIME;
}

/* A slot for one who comes, with all that is known of it; NULL when there is
 * none. It is on no list. */
static dbguard_slot_t *occupy(dbguard_section_t *in,
                              const dbguard_visitor_t *visitor, uint64_t key,
                              dbguard_ticket_t *ticket)
{
    const dbguard_board_t *board = in->board;
    dbguard_shared_t *shared = board->shared;
    int64_t now = in->now;
    uint32_t class = board->fifo || visitor->class >= DBGUARD_CLASSES
                         ? 0
                         : visitor->class;
    uint32_t endpoint = dbguard_endpoint_arrive(shared, key, visitor->endpoint,
                                                class, now);
    uint32_t flow = board->fifo ? DBGUARD_OTHER(0)
                                : dbguard_endpoint_flow(shared, endpoint);
    int64_t work = dbguard_endpoint_estimate(shared, endpoint, now);
    uint32_t address = dbguard_client_arrive(
        shared, board->fifo ? 0 : visitor->address, DBGUARD_NONE, now);
    uint32_t session = address == DBGUARD_NONE
                           ? DBGUARD_NONE
                           : dbguard_client_arrive(shared, visitor->session,
                                                   address, now);
    dbguard_slot_t *s;
    uint32_t slot;
    int excess;

    if (dbguard_queue_sort(shared, flow, now))
        dbguard_section_dispatch(in);
    excess = dbguard_reserve_arrive(shared, endpoint, work, address, session);
    slot = dbguard_board_pop_free(shared);
    /* Every slot in use: more requests at once than the server has workers
     * (HTTP/2), or a budget of all of them. What it had to settle is lost. */
    if (slot == DBGUARD_NONE && shared->settling > 0)
        slot = dbguard_settle_pop(shared);
    if (slot == DBGUARD_NONE)
        return NULL;
    s = &shared->slots[slot];
    s->serial = ++shared->serial;
    s->visitor = *visitor;
    s->reason = DBGUARD_REASON_NONE;
    s->used = 0;
    s->runs = shared->limits.dryrun;
    s->since = now;
    s->granted = 0;
    s->prev = s->next = DBGUARD_NONE;
    s->class = class;
    s->endpoint = endpoint;
    s->flow = flow;
    s->bin = shared->endpoints[flow].bin;
    s->parked = s->held_back = s->fresh = 0;
    s->excess = (uint32_t)excess;
    s->address = address;
    s->session = session;
    s->first = s->session == DBGUARD_NONE
               || under_way(&dbguard_clients(shared)[s->session]) == 0;
    s->lane = board->fifo ? DBGUARD_NORMAL : lane_of(shared, s, now);
    ticket->slot = slot;
    ticket->serial = s->serial;
    dbguard_board_refer(shared, slot, 1);
    return s;
}

/* May its clients have a token, and do they not wait for one? */
static int may_client(dbguard_section_t *in, const dbguard_limit_t *limit,
                      uint32_t slot)
{
    dbguard_shared_t *shared = in->board->shared;
    const dbguard_slot_t *s = &shared->slots[slot];

    if (s->address != DBGUARD_NONE
        && dbguard_clients(shared)[s->address].parked > 0
        && (s->excess
            || dbguard_reserve_is_long(shared, s->endpoint, in->now)))
        return 0;
    return dbguard_reserve_client(shared, limit, slot, in->now);
}

/* May it have a token at once? Those who wait and may, are before it. */
static int may_have(dbguard_section_t *in, uint32_t slot)
{
    const dbguard_board_t *board = in->board;
    const dbguard_shared_t *shared = board->shared;
    const dbguard_slot_t *s = &shared->slots[slot];
    dbguard_limit_t limit;

    if (shared->prefix.waiting > 0
        && (board->fifo || in->nwakes == DBGUARD_WAKES))
        return 0;
    dbguard_reserve_look(board, &limit);
    return dbguard_reserve_allows(shared, &limit, s->class, s->bin)
           && (board->fifo || may_client(in, &limit, slot));
}

static int64_t patience_of(const dbguard_board_t *board,
                           const dbguard_slot_t *s, int64_t now)
{
    const dbguard_shared_t *shared = board->shared;
    int64_t patience = shared->limits.classes[s->class].patience;

    if (patience == 0)
        patience = shared->limits.patience;
    if (patience == 0)
        patience = dbguard_derive_patience(
            board->fifo
                ? shared->hold
                : dbguard_endpoint_estimate(shared, s->endpoint, now));
    return patience;
}

/* Would its turn come too late? Not for one who was promised a place. */
static int is_hopeless(dbguard_shared_t *shared, uint32_t slot,
                       int64_t patience, int64_t now)
{
    const dbguard_slot_t *s = &shared->slots[slot];
    int64_t work = dbguard_endpoint_estimate(shared, s->flow, now)
                   + shared->limits.settle;
    uint32_t ahead = dbguard_queue_ahead(shared, slot);

    return s->lane != DBGUARD_ON_TIME
           && ahead * work / dbguard_reserve_own(shared, s->endpoint)
                  > patience;
}

/* Why it cannot wait, or NONE; somebody may have to go for it. */
static dbguard_reason_t cannot_wait(dbguard_section_t *in, uint32_t slot,
                                    int64_t patience)
{
    const dbguard_board_t *board = in->board;
    dbguard_shared_t *shared = board->shared;
    const dbguard_slot_t *s = &shared->slots[slot];
    uint32_t victim = DBGUARD_NONE;

    if (!board->fifo) {
        if (s->session != DBGUARD_NONE && shared->limits.session_wait > 0
            && dbguard_clients(shared)[s->session].waiting
                   >= shared->limits.session_wait)
            return DBGUARD_REASON_CLIENT;
        if (is_hopeless(shared, slot, patience, in->now))
            return dbguard_slot_at_maximum(shared, s)
                       ? DBGUARD_REASON_CLASS
                       : DBGUARD_REASON_PATIENCE;
    }
    if (shared->prefix.waiting < shared->limits.queue)
        return DBGUARD_REASON_NONE;
    if (!board->fifo && shared->limits.queue > 0 && in->nwakes < DBGUARD_WAKES)
        victim = dbguard_queue_victim(shared, slot);
    if (victim == DBGUARD_NONE)
        return dbguard_slot_at_maximum(shared, s) ? DBGUARD_REASON_CLASS
                                                  : DBGUARD_REASON_BUDGET;
    dbguard_slot_expel(shared, victim, DBGUARD_REASON_DISPLACED, in->now);
    in->wakes[in->nwakes++] = victim;
    return DBGUARD_REASON_NONE;
}

/* What On does with one who comes. */
static void judge(dbguard_section_t *in, dbguard_slot_t *s,
                  dbguard_decision_t *decision)
{
    dbguard_shared_t *shared = in->board->shared;
    uint32_t slot = decision->ticket.slot;
    int64_t patience;
    dbguard_reason_t why = dbguard_section_shut(shared, in->now);

    if (why == DBGUARD_REASON_NONE && may_have(in, slot)) {
        decision->outcome = decision->would = DBGUARD_ADMITTED;
        decision->start = dbguard_slot_grant(in->board, slot, in->now);
        s->used = 1;
        return;
    }
    patience = patience_of(in->board, s, in->now);
    if (why == DBGUARD_REASON_NONE)
        why = cannot_wait(in, slot, patience);
    if (why == DBGUARD_REASON_NONE) {
        s->deadline = in->now + patience;
        atomic_store_explicit(&s->state, DBGUARD_WAITING,
                              memory_order_release);
        dbguard_queue_add(shared, slot);
        decision->outcome = decision->would = DBGUARD_WAIT;
        decision->deadline = s->deadline;
        return;
    }
    refuse(shared, s, why, in->now, decision);
    shared->endpoints[s->endpoint].refused++;
    s->reason = why;
}

/* DryRun lets all of them run, and goes on to do with their slots what On
 * would. */
static void let_run(dbguard_shared_t *shared, dbguard_slot_t *s,
                    dbguard_ticket_t ticket, int64_t now,
                    dbguard_decision_t *decision)
{
    if (decision->would == DBGUARD_WAIT)
        shared->counters.dryrun_waited++;
    else if (decision->would == DBGUARD_REFUSED) {
        shared->counters.dryrun_refused++;
        if (s != NULL) {
            atomic_store_explicit(&s->state, DBGUARD_EXPELLED,
                                  memory_order_release);
            decision->ticket = ticket;
        }
    }
    if (s != NULL)
        s->used = 1;
    decision->outcome = DBGUARD_ADMITTED;
    decision->start = now;
}

void dbguard_admission_enter(dbguard_board_t *board,
                             const dbguard_visitor_t *visitor, int64_t now,
                             dbguard_decision_t *decision)
{
    dbguard_shared_t *shared = board->shared;
    uint64_t key = dbguard_endpoint_key(shared, visitor->endpoint,
                                        visitor->class);
    dbguard_ticket_t ticket;
    dbguard_slot_t *s;
    dbguard_section_t in;

    memset(decision, 0, sizeof(*decision));
    if (dbguard_section_begin(&in, board, now) != APR_SUCCESS) {
        decision->outcome = decision->would = DBGUARD_REFUSED;
        if (shared->limits.dryrun)
            decision->outcome = DBGUARD_ADMITTED;
        decision->reason = DBGUARD_REASON_BOARD;
        decision->retry.after = shared->limits.retry_min;
        decision->retry.seconds = shared->limits.retry_min / SECOND;
        return;
    }
    s = occupy(&in, visitor, key, &decision->ticket);
    ticket = decision->ticket;
    if (s == NULL)
        refuse(shared, NULL, DBGUARD_REASON_BOARD, now, decision);
    else
        judge(&in, s, decision);

    if (shared->limits.dryrun)
        let_run(shared, s, ticket, now, decision);
    else if (decision->outcome == DBGUARD_REFUSED) {
        dbguard_slot_count_refusal(shared, decision->reason, now);
        if (s != NULL)
            dbguard_slot_vacate(shared, ticket.slot, now);
    }
    dbguard_section_finish(&in);
}

/* --- who waits, and who goes --------------------------------------------- */

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
    dbguard_section_t in;
    dbguard_slot_t *s;

    memset(decision, 0, sizeof(*decision));
    decision->ticket = ticket;
    if (dbguard_section_begin(&in, board, now) != APR_SUCCESS) {
        /* It has a slot, and cannot be judged now: later, or never. */
        decision->outcome = decision->would = DBGUARD_WAIT;
        decision->deadline = now;
        return;
    }
    s = find(shared, ticket);
    if (s != NULL && s->state == DBGUARD_WAITING)
        dbguard_slot_look(shared, ticket.slot, now);

    if (s == NULL)
        refuse(shared, NULL, DBGUARD_REASON_BOARD, now, decision);
    else if (s->runs && s->state != DBGUARD_HELD) {
        /* A reload has turned DryRun on while it waited. */
        decision->would = DBGUARD_WAIT;
        decision->start = s->since = now;
        s->used = 1;
    }
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
        refuse(shared, s, s->reason, now, decision);
        dbguard_slot_vacate(shared, ticket.slot, now);
    }
    if (s != NULL && decision->outcome != DBGUARD_ADMITTED)
        decision->waited = now - s->since;
    dbguard_section_finish(&in);
}

static void count_abort(dbguard_shared_t *shared, int64_t now)
{
    shared->counters.aborted++;
    dbguard_board_second(shared, now)->aborted++;
}

apr_status_t dbguard_admission_leave(dbguard_board_t *board,
                                     dbguard_ticket_t ticket, int64_t now,
                                     int64_t *held)
{
    dbguard_shared_t *shared = board->shared;
    dbguard_section_t in;
    dbguard_slot_t *s;
    apr_status_t rv;

    *held = -1;
    rv = dbguard_section_begin(&in, board, now);
    if (rv != APR_SUCCESS)
        return rv;

    s = find(shared, ticket);
    if (s == NULL)
        rv = APR_NOTFOUND;
    else {
        int waits = s->state == DBGUARD_WAITING;

        *held = dbguard_slot_vacate(shared, ticket.slot, now);
        if (*held >= 0)
            dbguard_slot_count_release(shared, *held, now);
        else if (waits && !s->runs)
            count_abort(shared, now);
        if (s->runs)
            *held = now > s->since ? now - s->since : 0;
        /* A token that was never used says nothing of how long one is. */
        if (*held >= 0 && s->used)
            dbguard_slot_learn(shared, s, *held, now);
    }
    dbguard_section_finish(&in);
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
    dbguard_section_t in;
    apr_status_t rv;
    uint32_t i;

    *taken = 0;
    /* Most processes end with nothing. A dead one's slots can be looked at
     * without the lock: nobody takes or frees them any more. */
    if (!owns_any(shared, pid))
        return APR_SUCCESS;
    rv = dbguard_section_begin(&in, board, now);
    if (rv != APR_SUCCESS)
        return rv;

    for (i = 0; i < shared->nslots; i++) {
        if (owned_by(&shared->slots[i], pid)) {
            dbguard_slot_vacate(shared, i, now);
            ++*taken;
        }
    }
    shared->counters.reaped += *taken;
    dbguard_section_finish(&in);
    return APR_SUCCESS;
}

/* DryRun begins: who waits may go on, and will hear of it when it looks. */
static void let_waiters_run(dbguard_shared_t *shared)
{
    uint32_t i;

    for (i = 0; i < shared->nslots; i++) {
        dbguard_slot_t *s = &shared->slots[i];

        if (s->state == DBGUARD_WAITING && !s->runs) {
            s->runs = 1;
            shared->shadows++;
        }
    }
}

/* DryRun has ended: whatever it let run is out, however many that are. */
static void count_the_running(dbguard_section_t *in)
{
    dbguard_shared_t *shared = in->board->shared;
    uint32_t i;

    for (i = 0; i < shared->nslots; i++) {
        const dbguard_slot_t *s = &shared->slots[i];

        if (s->runs
            && (s->state == DBGUARD_WAITING || s->state == DBGUARD_EXPELLED))
            dbguard_slot_grant(in->board, i, in->now);
    }
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
    dbguard_section_t in;
    apr_status_t rv = dbguard_section_begin(&in, board, now);

    if (rv == APR_SUCCESS) {
        if (limits->dryrun)
            let_waiters_run(board->shared);
        else if (board->shared->limits.dryrun)
            count_the_running(&in);
        board->shared->limits = *limits;
        derive_queue(&board->shared->limits);
        dbguard_reserve_derive(board->shared);
        dbguard_section_finish(&in);
    }
    return rv;
}

apr_status_t dbguard_admission_learn(dbguard_board_t *board,
                                     const dbguard_database_t *database,
                                     int64_t now)
{
    dbguard_shared_t *shared = board->shared;
    dbguard_section_t in;
    apr_status_t rv = dbguard_section_begin(&in, board, now);

    if (rv == APR_SUCCESS) {
        shared->database = *database;
        if (dbguard_database_closed(database, &shared->limits.rules, now))
            shared->outage = now;
        if (database->budget > 0)
            shared->limits.budget = database->budget;
        derive_queue(&shared->limits);
        dbguard_reserve_derive(shared);
        dbguard_section_finish(&in);
    }
    return rv;
}

sem_t *dbguard_admission_wake(dbguard_board_t *board, dbguard_ticket_t ticket)
{
    return &board->shared->slots[ticket.slot].wake;
}
