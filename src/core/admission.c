/* Admission: who gets a token, who waits, who is refused. The rules and the
 * invariants are in admission.h. Each verb is: begin, change slots, finish;
 * both give what is free to the waiting, finish unlocks and wakes them. */

#include <string.h>

#include "admission.h"
#include "derive.h"
#include "queue.h"
#include "retry.h"

/* As many waiters as are woken after one critical section. With more to wake,
 * the next section follows at once. */
#define WAKES 32

/* As many of the parked may be next again in one section. */
#define UNPARKED 8

/* As many holders are looked at in one section whether they have grown old. */
#define FOLLOWED 64

/* So long after its time a client still counts as coming when it was told to:
 * whole seconds, and the way. */
#define GRACE INT64_C(5000000)

/* So many tokens that come back together follow one another by limits.pace;
 * with a larger budget they do so faster. */
#define PACED 20

#define SECOND INT64_C(1000000)

/* Those that have settled are free. */
static void retire(dbguard_shared_t *shared, int64_t now)
{
    while (shared->settle_head != DBGUARD_NONE
           && now - shared->slots[shared->settle_head].released
                  >= shared->limits.settle)
        dbguard_board_push_free(shared, dbguard_board_unsettle(shared));
}

/* Take the token that is ready first; there is one. When it may be used. */
static int64_t take_token(const dbguard_board_t *board, int64_t now)
{
    dbguard_shared_t *shared = board->shared;
    uint32_t free = dbguard_reserve_free(board);
    int64_t start = now;

    /* One, or more when the budget has shrunk meanwhile. */
    while (shared->settling > 0 && shared->settling >= free) {
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
        dbguard_queue_remove(shared, slot);
        shared->counters.waited++;
        shared->counters.wait_us += (uint64_t)(start - s->since);
    }
    /* What was new when it came may be known by now. */
    s->bin = dbguard_endpoint_bin(shared, s->endpoint, now);
    atomic_store_explicit(&s->state, DBGUARD_HELD, memory_order_release);
    dbguard_board_hold(shared, slot);
    dbguard_board_count_held(shared, slot, 1);
    dbguard_queue_charge(shared, slot, now);
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

static void expel(dbguard_shared_t *shared, uint32_t slot,
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
        count_refusal(shared, reason, now);
}

static int at_maximum(const dbguard_shared_t *shared, const dbguard_slot_t *s)
{
    return shared->class_held[s->class] >= shared->class_max[s->class];
}

/* Its patience has ended; what was in its way? */
static dbguard_reason_t why_not(const dbguard_shared_t *shared, uint32_t slot)
{
    const dbguard_slot_t *s = &shared->slots[slot];

    if (s->held_back)
        return DBGUARD_REASON_CLIENT;
    return at_maximum(shared, s) ? DBGUARD_REASON_CLASS
                                 : DBGUARD_REASON_TIMEOUT;
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

    while (in->nwakes < WAKES && shared->prefix.waiting > 0) {
        uint32_t slot = why != DBGUARD_REASON_NONE
                            ? dbguard_queue_any(shared)
                            : dbguard_queue_next(board, in->now);

        if (slot == DBGUARD_NONE)
            break;
        if (why != DBGUARD_REASON_NONE)
            expel(shared, slot, why, in->now);
        else if (in->now >= shared->slots[slot].deadline)
            expel(shared, slot, why_not(shared, slot), in->now);
        else
            grant(board, slot, in->now);
        in->wakes[in->nwakes++] = slot;
    }
}

/* When a token that comes back now counts as having come back: those that come
 * back together follow one another. The whole budget does so within the time of
 * PACED of them. */
static int64_t pace(dbguard_shared_t *shared, int64_t now)
{
    uint32_t budget = shared->limits.budget;
    int64_t all = PACED * shared->limits.pace;
    int64_t next = shared->paced + all / (budget > PACED ? budget : PACED);

    if (next > now + all)
        next = now + all;
    shared->paced = next > now ? next : now;
    return shared->paced;
}

/* Take back what the slot stands for. The time its token was out, or -1. */
static int64_t vacate(dbguard_shared_t *shared, uint32_t slot, int64_t now)
{
    dbguard_slot_t *s = &shared->slots[slot];
    int64_t held = -1;

    dbguard_board_refer(shared, slot, -1);
    if (s->state == DBGUARD_HELD) {
        held = now > s->granted ? now - s->granted : 0;
        s->released = pace(shared, now);
        dbguard_board_unhold(shared, slot);
        dbguard_board_count_held(shared, slot, -1);
        dbguard_queue_correct(shared, slot, held);
        dbguard_board_settle(shared, slot);
        dbguard_queue_unpark(shared);
        dbguard_queue_sort(shared, s->flow, now);
        return held;
    }
    if (s->state == DBGUARD_WAITING)
        dbguard_queue_remove(shared, slot);
    dbguard_board_push_free(shared, slot);
    return held;
}

/* A token has come back of itself: with its request, or its lease. */
static void count_release(dbguard_shared_t *shared, int64_t held, int64_t now)
{
    dbguard_second_t *second = dbguard_board_second(shared, now);

    shared->counters.released++;
    shared->counters.hold_us += (uint64_t)held;
    second->released++;
    second->hold_us += (uint64_t)held;
}

/* How long one is. The last sixteen or so count; but for those that had to do
 * with an outage: they would make pages heavy when it is over. */
static void learn_hold(dbguard_shared_t *shared, const dbguard_slot_t *s,
                       int64_t held, int64_t now)
{
    if (s->since <= shared->outage)
        return;
    shared->hold += (held - shared->hold) / 16;
    dbguard_endpoint_learn(shared, s->endpoint, held, now);
    dbguard_queue_sort(shared, s->endpoint, now);
}

/* Holders that have grown old are heavier work than they were taken for; leases
 * end. */
static void follow(section_t *in)
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
            count_release(shared, vacate(shared, slot, in->now), in->now);
            learn_hold(shared, s, age, in->now);
        }
        else if (bin > s->bin) {
            dbguard_board_count_held(shared, slot, -1);
            s->bin = bin;
            dbguard_board_count_held(shared, slot, 1);
        }
    }
}

/* A waiter looks, or is looked after. */
static void look(dbguard_shared_t *shared, uint32_t slot, int64_t now)
{
    if (now >= shared->slots[slot].deadline)
        expel(shared, slot, why_not(shared, slot), now);
    else
        dbguard_queue_look(shared, slot, now);
}

/* Those whom DryRun lets run do not come to look. */
static void look_after_shadows(section_t *in)
{
    dbguard_shared_t *shared = in->board->shared;
    uint32_t i;

    for (i = 0; i < shared->nslots && shared->shadows > 0; i++)
        if (shared->slots[i].state == DBGUARD_WAITING && shared->slots[i].runs)
            look(shared, i, in->now);
}

/* The beginning of every verb. Room may have appeared without an event on this
 * board: time has passed, or an elder's token came back. */
static apr_status_t begin(section_t *in, dbguard_board_t *board, int64_t now)
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
    retire(shared, now);
    if (dbguard_reserve_tick(shared, now)) {
        if (shared->follow == DBGUARD_NONE)
            shared->follow = shared->held_head;
        look_after_shadows(in);
    }
    follow(in);
    for (i = 0; i < UNPARKED; i++)
        dbguard_queue_unpark(shared);
    dispatch(in);
    return APR_SUCCESS;
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
        /* Nobody sleeps on those that DryRun lets run: posts would pile up. */
        for (i = 0; i < in->nwakes; i++)
            if (!shared->slots[in->wakes[i]].runs)
                sem_post(&shared->slots[in->wakes[i]].wake);
        in->nwakes = 0;
    } while (full && dbguard_board_lock(in->board, in->now) == APR_SUCCESS);
}

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
static dbguard_slot_t *occupy(section_t *in, const dbguard_visitor_t *visitor,
                              uint64_t key, dbguard_ticket_t *ticket)
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
    uint32_t slot = dbguard_board_pop_free(shared);
    dbguard_slot_t *s;
    int excess;

    if (dbguard_queue_sort(shared, flow, now))
        dispatch(in);
    excess = dbguard_reserve_arrive(shared, endpoint, work, address, session);
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
static int may_client(section_t *in, const dbguard_limit_t *limit,
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
static int may_have(section_t *in, uint32_t slot)
{
    const dbguard_board_t *board = in->board;
    const dbguard_shared_t *shared = board->shared;
    const dbguard_slot_t *s = &shared->slots[slot];
    dbguard_limit_t limit;

    if (shared->prefix.waiting > 0 && (board->fifo || in->nwakes == WAKES))
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
static dbguard_reason_t cannot_wait(section_t *in, uint32_t slot,
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
            return at_maximum(shared, s) ? DBGUARD_REASON_CLASS
                                         : DBGUARD_REASON_PATIENCE;
    }
    if (shared->prefix.waiting < shared->limits.queue)
        return DBGUARD_REASON_NONE;
    if (!board->fifo && shared->limits.queue > 0 && in->nwakes < WAKES)
        victim = dbguard_queue_victim(shared, slot);
    if (victim == DBGUARD_NONE)
        return at_maximum(shared, s) ? DBGUARD_REASON_CLASS
                                     : DBGUARD_REASON_BUDGET;
    expel(shared, victim, DBGUARD_REASON_DISPLACED, in->now);
    in->wakes[in->nwakes++] = victim;
    return DBGUARD_REASON_NONE;
}

/* What On does with one who comes. */
static void judge(section_t *in, dbguard_slot_t *s,
                  dbguard_decision_t *decision)
{
    dbguard_shared_t *shared = in->board->shared;
    uint32_t slot = decision->ticket.slot;
    int64_t patience;
    dbguard_reason_t why = shut(shared, in->now);

    if (why == DBGUARD_REASON_NONE && may_have(in, slot)) {
        decision->outcome = decision->would = DBGUARD_ADMITTED;
        decision->start = grant(in->board, slot, in->now);
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
    section_t in;

    memset(decision, 0, sizeof(*decision));
    if (begin(&in, board, now) != APR_SUCCESS) {
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
        count_refusal(shared, decision->reason, now);
        if (s != NULL)
            vacate(shared, ticket.slot, now);
    }
    finish(&in);
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
    if (s != NULL && s->state == DBGUARD_WAITING)
        look(shared, ticket.slot, now);

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
        vacate(shared, ticket.slot, now);
    }
    if (s != NULL && decision->outcome != DBGUARD_ADMITTED)
        decision->waited = now - s->since;
    finish(&in);
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
        else if (waits && !s->runs)
            count_abort(shared, now);
        if (s->runs)
            *held = now > s->since ? now - s->since : 0;
        /* A token that was never used says nothing of how long one is. */
        if (*held >= 0 && s->used)
            learn_hold(shared, s, *held, now);
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
static void count_the_running(section_t *in)
{
    dbguard_shared_t *shared = in->board->shared;
    uint32_t i;

    for (i = 0; i < shared->nslots; i++) {
        const dbguard_slot_t *s = &shared->slots[i];

        if (s->runs
            && (s->state == DBGUARD_WAITING || s->state == DBGUARD_EXPELLED))
            grant(in->board, i, in->now);
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
    section_t in;
    apr_status_t rv = begin(&in, board, now);

    if (rv == APR_SUCCESS) {
        if (limits->dryrun)
            let_waiters_run(board->shared);
        else if (board->shared->limits.dryrun)
            count_the_running(&in);
        board->shared->limits = *limits;
        derive_queue(&board->shared->limits);
        dbguard_reserve_derive(board->shared);
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
        if (dbguard_database_closed(database, &shared->limits.rules, now))
            shared->outage = now;
        if (database->budget > 0)
            shared->limits.budget = database->budget;
        derive_queue(&shared->limits);
        dbguard_reserve_derive(shared);
        finish(&in);
    }
    return rv;
}

sem_t *dbguard_admission_wake(dbguard_board_t *board, dbguard_ticket_t ticket)
{
    return &board->shared->slots[ticket.slot].wake;
}
