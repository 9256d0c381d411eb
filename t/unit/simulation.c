/* A discrete-event simulation of a server around the core: see simulation.h.
 *
 * Three parts: the events in order of time; the server, whose processes know
 * only what the core tells them; and the checker, which knows every slot and
 * what it was before the event. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simulation.h"

#define TICK (SECOND / 4)
#define NOBODY UINT32_MAX
#define RETURNS 256
#define PACES 5 /* of a pace, in the time that a token settles */

/* --- what there is -------------------------------------------------------- */

typedef enum kind_t { ARRIVE, LOOK, HANG_UP, END, REAP } kind_t;

typedef struct event_t {
    int64_t time;
    uint64_t order; /* among those of the same time */
    kind_t kind;
    uint32_t who; /* request; pid for REAP */
} event_t;

typedef enum phase_t { OUTSIDE, WAITS, INSIDE, DEAD, ENDED } phase_t;

/* A request, as its process knows it. */
typedef struct request_t {
    phase_t phase;
    int32_t pid;
    dbguard_ticket_t ticket;
    int64_t hold;
    int leased; /* its token was taken back before it ended */
} request_t;

/* A slot, as it should be. */
typedef struct place_t {
    uint32_t owner; /* request, or NOBODY */
    /* After the event before: */
    uint32_t state, flow, parked;
    int64_t granted;
} place_t;

typedef struct sim_t {
    const sim_plan_t *plan;
    sim_flaw_t flaw;
    uint32_t random;
    event_t *heap;
    uint32_t nevents, room;
    uint64_t order;
    request_t *requests;
    int32_t *pids;
    int32_t last_pid;
    place_t *places;
    dbguard_limits_t limits;
    uint32_t need[DBGUARD_BINS]; /* what the board says it keeps */
    sim_result_t *book;
    uint32_t reaped_tokens, reaped_waiters;
    int64_t returns[RETURNS]; /* when the last tokens came back, a ring */
    uint32_t nreturns;
    uint32_t names; /* made up so far */
    uint32_t checks;
    int overdrawn; /* more are out, or settle, than the budget is now */
    const char *fault; /* the first one */
} sim_t;

static void fault(sim_t *sim, const char *what)
{
    if (sim->fault == NULL)
        sim->fault = what;
}

static uint32_t dice(sim_t *sim, uint32_t n)
{
    sim->random = sim->random * 1664525 + 1013904223;
    return (uint32_t)(((uint64_t)(sim->random >> 4) * n) >> 28);
}

static int percent(sim_t *sim, uint32_t p)
{
    return dice(sim, 100) < p;
}

/* Around a mean: half of it to one and a half. */
static int64_t about(sim_t *sim, int64_t mean)
{
    return mean / 2 + (int64_t)dice(sim, (uint32_t)mean + 1);
}

/* --- events in order of time ---------------------------------------------- */

static int before(const event_t *a, const event_t *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void add(sim_t *sim, int64_t time, kind_t kind, uint32_t who)
{
    event_t event = {time, sim->order++, kind, who};
    uint32_t i = sim->nevents++;

    if (i == sim->room) {
        sim->room = 2 * sim->room + 64;
        sim->heap = realloc(sim->heap, sim->room * sizeof(*sim->heap));
        ck_assert_ptr_nonnull(sim->heap);
    }
    for (; i > 0 && before(&event, &sim->heap[(i - 1) / 2]); i = (i - 1) / 2)
        sim->heap[i] = sim->heap[(i - 1) / 2];
    sim->heap[i] = event;
}

static event_t take(sim_t *sim)
{
    event_t first = sim->heap[0], last = sim->heap[--sim->nevents];
    uint32_t i = 0, child;

    while ((child = 2 * i + 1) < sim->nevents) {
        if (child + 1 < sim->nevents
            && before(&sim->heap[child + 1], &sim->heap[child]))
            child++;
        if (!before(&sim->heap[child], &last))
            break;
        sim->heap[i] = sim->heap[child];
        i = child;
    }
    sim->heap[i] = last;
    return first;
}

/* --- the server ----------------------------------------------------------- */

/* It looks at its deadline, at the next tick, or late. */
static void look_later(sim_t *sim, uint32_t who, int64_t deadline)
{
    int64_t time = now + TICK < deadline ? now + TICK : deadline;

    if (percent(sim, sim->plan->late))
        time += dice(sim, 3 * SECOND);
    add(sim, time > now ? time : now + 1, LOOK, who);
}

static void is_inside(sim_t *sim, uint32_t who, int64_t start)
{
    request_t *r = &sim->requests[who];

    r->phase = INSIDE;
    add(sim, (start > now ? start : now) + r->hold, END, who);
}

static void note_return(sim_t *sim, int64_t granted)
{
    if (granted <= now)
        sim->returns[sim->nreturns++ % RETURNS] = now;
}

/* A token is about to come back; was it ever used? */
static void comes_back(sim_t *sim, uint32_t who)
{
    const dbguard_slot_t *s
        = &board.shared->slots[sim->requests[who].ticket.slot];

    if (s->state == DBGUARD_HELD)
        note_return(sim, s->granted);
}

/* The lease of what sits there may be over; then it is nobody's any more. */
static int loses_place(sim_t *sim, uint32_t slot)
{
    place_t *place = &sim->places[slot];
    const dbguard_slot_t *s = &board.shared->slots[slot];
    request_t *r = &sim->requests[place->owner];

    if (s->serial == r->ticket.serial && s->state != DBGUARD_FREE
        && s->state != DBGUARD_SETTLING)
        return 0;
    if (sim->plan->lease == 0 || place->state != DBGUARD_HELD
        || now - place->granted < sim->plan->lease)
        return 0;
    note_return(sim, place->granted);
    r->leased = 1;
    sim->book->leases++;
    place->owner = NOBODY;
    if (r->phase == DEAD) {
        r->phase = ENDED;
        sim->book->died++;
    }
    return 1;
}

static void has_ended(sim_t *sim, uint32_t who, uint32_t *how)
{
    request_t *r = &sim->requests[who];

    if (r->phase == ENDED)
        fault(sim, "a request ended twice");
    r->phase = ENDED;
    ++*how;
    if (r->ticket.serial != 0 && !r->leased)
        sim->places[r->ticket.slot].owner = NOBODY;
}

/* --- an opinion on who may have a token ----------------------------------- */

static uint32_t tokens_of(const sim_t *sim, const dbguard_share_t *share,
                          uint32_t none)
{
    uint32_t n = share->percent ? sim->limits.budget * share->number / 100
                                : share->number;

    return share->number == 0 ? none : n > 0 || none == 0 ? n : 1;
}

/* The board without one of those that hold, or NULL. */
typedef struct outlook_t {
    uint32_t free, missing;
    uint32_t bins[DBGUARD_BINS], classes[DBGUARD_CLASSES];
} outlook_t;

static void look_out(const sim_t *sim, const dbguard_slot_t *without,
                     outlook_t *o)
{
    uint32_t held = 0, i;

    memset(o, 0, sizeof(*o));
    for (i = 0; i < sim->plan->slots; i++) {
        const dbguard_slot_t *s = &board.shared->slots[i];

        if (s->state != DBGUARD_HELD || s == without)
            continue;
        held++;
        o->bins[s->bin] += !s->excess;
        o->classes[s->class]++;
    }
    o->free = held < sim->limits.budget ? sim->limits.budget - held : 0;
    for (i = 0; i < DBGUARD_CLASSES; i++) {
        uint32_t min = tokens_of(sim, &sim->limits.classes[i].min, 0);

        if (o->classes[i] < min)
            o->missing += min - o->classes[i];
    }
}

/* What work of this bin has to leave for lighter work. */
static uint32_t kept(const sim_t *sim, const outlook_t *o, uint32_t bin)
{
    uint32_t quarter = sim->limits.budget / 4, most = 0, k, b;

    if (sim->plan->fifo || o->free > quarter + o->missing)
        return 0;
    for (k = 3; k <= bin; k++) {
        uint32_t need = sim->need[k - 3] < quarter ? sim->need[k - 3]
                                                    : quarter;
        uint32_t used = 0;

        for (b = 0; b < k; b++)
            used += o->bins[b];
        if (need > used && need - used > most)
            most = need - used;
    }
    return most;
}

static int may_have_token(const sim_t *sim, const outlook_t *o,
                          const dbguard_slot_t *s)
{
    const dbguard_class_t *c = &sim->limits.classes[s->class];
    uint32_t held = o->classes[s->class];

    if (o->free == 0 || held >= tokens_of(sim, &c->max, UINT32_MAX))
        return 0;
    if (held < tokens_of(sim, &c->min, 0))
        return 1;
    return o->free
           > o->missing
                 + kept(sim, o, board.shared->endpoints[s->flow].bin);
}

/* The model's own opinion on a refusal of one who has just come. */
static void check_refusal(sim_t *sim, const dbguard_decision_t *d)
{
    const dbguard_prefix_t *p = &board.shared->prefix;
    uint32_t class = guest.class;
    outlook_t o;

    look_out(sim, NULL, &o);
    if (sim->limits.dryrun)
        fault(sim, "DryRun refused somebody");
    else if (d->reason == DBGUARD_REASON_BUDGET
             && p->waiting < sim->limits.queue)
        fault(sim, "refused while there was a place");
    else if (d->reason != DBGUARD_REASON_BOARD
             && d->reason != DBGUARD_REASON_CLASS
             && o.free > sim->limits.budget / 2 + o.missing
             && o.classes[class]
                    < tokens_of(sim, &sim->limits.classes[class].max,
                                UINT32_MAX))
        fault(sim, "refused while there was room");
    else if (d->reason == DBGUARD_REASON_CLASS
             && o.classes[class]
                    < tokens_of(sim, &sim->limits.classes[class].max,
                                UINT32_MAX))
        fault(sim, "refused for a class that had room");
    else if (d->reason == DBGUARD_REASON_BOARD
             && board.shared->free_head != DBGUARD_NONE)
        fault(sim, "refused while there was a slot");
    else if (d->retry.after < sim->limits.retry_min
             || d->retry.after > sim->limits.retry_max
             || d->retry.seconds < 1
             || d->retry.seconds * SECOND > sim->limits.retry_max)
        fault(sim, "Retry-After out of its limits");
}

static void wait_in(sim_t *sim, uint32_t who, int64_t deadline,
                    uint32_t waited)
{
    sim->requests[who].phase = WAITS;
    if (board.shared->prefix.waiting > sim->limits.queue
        && board.shared->prefix.waiting > waited)
        fault(sim, "more wait than may");
    look_later(sim, who, deadline);
    if (percent(sim, sim->plan->hang_up))
        add(sim, now + dice(sim, 4 * SECOND), HANG_UP, who);
}

/* Who comes, and for what. Every endpoint has a hold of its own. */
static int64_t identify(sim_t *sim)
{
    const sim_plan_t *plan = sim->plan;
    int is_long = percent(sim, plan->longs);
    uint32_t endpoint, address = 0, session = 0;
    char name[32];

    if (plan->endpoints == 0)
        return about(sim, plan->holds[is_long]);
    endpoint = 8 * dice(sim, plan->endpoints / 8 + 1) + dice(sim, 7);
    if (is_long)
        endpoint = endpoint / 8 * 8 + 7;
    if (percent(sim, plan->made_up))
        snprintf(name, sizeof(name), "GET /made-up/%u", sim->names++);
    else
        snprintf(name, sizeof(name), "GET /%u", endpoint);
    if (plan->addresses > 0)
        address = 1 + dice(sim, plan->addresses);
    if (address > 0 && percent(sim, plan->sessions))
        session = 1000000 + 4 * address + dice(sim, 4);
    come_as(name, address, session);
    guest.class = plan->classes > 0 ? endpoint / 8 % (plan->classes + 1) : 0;
    return is_long ? about(sim, plan->holds[1])
                   : about(sim, (plan->holds[0] << endpoint % 8) / 4);
}

/* What it does wrong behind the board's back, and what was right. */
typedef struct tampered_t {
    uint32_t budget, class_max;
} tampered_t;

static tampered_t tamper(sim_t *sim)
{
    dbguard_shared_t *shared = board.shared;
    tampered_t right = {shared->limits.budget, shared->class_max[guest.class]};
    uint32_t i;

    if (sim->flaw == SIM_RAISES_BUDGET && percent(sim, 5))
        shared->limits.budget = shared->prefix.held + 1;
    if (sim->flaw == SIM_IGNORES_MAXIMUM)
        shared->class_max[guest.class] = UINT32_MAX;
    if (sim->flaw == SIM_RAISES_NEED)
        for (i = 0; i < DBGUARD_BINS; i++)
            shared->need[i] = 1000;
    if (sim->flaw == SIM_SKIPS_TURNS)
        for (i = 0; i < DBGUARD_ENDPOINTS; i++)
            if (shared->endpoints[i].waiting > 3)
                shared->slots[shared->endpoints[i].waiters].tag += 1 << 24;
    return right;
}

static void comes_in(sim_t *sim, uint32_t who)
{
    request_t *r = &sim->requests[who];
    uint32_t waited = board.shared->prefix.waiting;
    tampered_t right;
    dbguard_decision_t d;

    r->pid = sim->pids[dice(sim, sim->plan->processes)];
    r->hold = identify(sim);
    right = tamper(sim);
    d = enter_as(r->pid);
    board.shared->limits.budget = right.budget;
    board.shared->class_max[guest.class] = right.class_max;
    if (sim->flaw != SIM_RAISES_NEED)
        memcpy(sim->need, board.shared->need, sizeof(sim->need));
    sim->book->came++;
    r->ticket = d.ticket;
    if (d.ticket.serial != 0) {
        place_t *place = &sim->places[d.ticket.slot];

        if (place->owner != NOBODY && !loses_place(sim, d.ticket.slot))
            fault(sim, "a slot was given to two");
        place->owner = who;
        place->state = DBGUARD_FREE;
    }

    if (d.outcome == DBGUARD_REFUSED) {
        check_refusal(sim, &d);
        has_ended(sim, who, &sim->book->refused);
    }
    else if (d.outcome == DBGUARD_WAIT)
        wait_in(sim, who, d.deadline, waited);
    else
        is_inside(sim, who, d.start);
}

static void check(sim_t *sim);
static void note_newcomers(sim_t *sim);

static void arrive(sim_t *sim, uint32_t who)
{
    uint32_t i;

    for (i = 0; i < sim->plan->crowd && who < sim->plan->requests; i++) {
        if (sim->fault != NULL)
            return;
        comes_in(sim, who++);
        check(sim);
        note_newcomers(sim);
    }
    if (who < sim->plan->requests)
        add(sim, now + about(sim, sim->plan->gap), ARRIVE, who);
}

static void look_again(sim_t *sim, uint32_t who)
{
    const request_t *r = &sim->requests[who];
    int64_t deadline = board.shared->slots[r->ticket.slot].deadline;
    int64_t ahead = sim->flaw == SIM_HURRIES ? SECOND : 0;
    dbguard_decision_t d;

    now += ahead;
    d = look(r->ticket);
    now -= ahead;
    if (d.outcome == DBGUARD_WAIT)
        look_later(sim, who, d.deadline);
    else if (d.outcome == DBGUARD_ADMITTED) {
        if (d.would == DBGUARD_ADMITTED)
            sim->book->waited++;
        is_inside(sim, who, d.start);
    }
    else if (r->leased || loses_place(sim, r->ticket.slot))
        has_ended(sim, who, &sim->book->lost);
    else {
        if (d.reason == DBGUARD_REASON_DISPLACED)
            sim->book->displaced++;
        else if (now < deadline
                 || (d.reason != DBGUARD_REASON_TIMEOUT
                     && d.reason != DBGUARD_REASON_CLIENT
                     && d.reason != DBGUARD_REASON_CLASS))
            fault(sim, "a waiting one was refused without a reason");
        has_ended(sim, who, &sim->book->timeouts);
    }
}

static void hang_up(sim_t *sim, uint32_t who)
{
    dbguard_ticket_t ticket = sim->requests[who].ticket;
    uint32_t state = state_of(ticket);
    int runs = (int)board.shared->slots[ticket.slot].runs;
    int64_t held;

    if (sim->requests[who].leased
        || dbguard_admission_leave(&board, ticket, now, &held) != APR_SUCCESS) {
        if (!sim->requests[who].leased && !loses_place(sim, ticket.slot))
            fault(sim, "one who waits could not leave");
        has_ended(sim, who, &sim->book->lost);
        return;
    }
    if (state == DBGUARD_HELD) {
        sim->book->waited++;
        note_return(sim, sim->places[ticket.slot].granted);
    }
    has_ended(sim, who,
              state == DBGUARD_HELD || runs ? &sim->book->served
              : state == DBGUARD_WAITING    ? &sim->book->aborted
                                            : &sim->book->timeouts);
}

/* Give back a token that some other request holds. */
static void forge(const sim_t *sim)
{
    dbguard_ticket_t ticket;
    int64_t held;
    uint32_t i;

    for (i = 0; i < sim->plan->slots; i++) {
        ticket.slot = i;
        ticket.serial = board.shared->slots[i].serial;
        if (board.shared->slots[i].state == DBGUARD_HELD) {
            dbguard_admission_leave(&board, ticket, now, &held);
            break;
        }
    }
}

static void end(sim_t *sim, uint32_t who)
{
    dbguard_ticket_t ticket = sim->requests[who].ticket;
    int64_t held;

    int over = sim->requests[who].leased;

    if (sim->flaw == SIM_FORGETS && percent(sim, 2)) {
        has_ended(sim, who, &sim->book->served);
        return;
    }
    if (ticket.serial != 0 && !over) { /* in DryRun, one may have none */
        if (state_of(ticket) == DBGUARD_HELD)
            sim->places[ticket.slot].granted
                = board.shared->slots[ticket.slot].granted;
        comes_back(sim, who);
        if (dbguard_admission_leave(&board, ticket, now, &held)
            != APR_SUCCESS) {
            sim->nreturns--;
            if (!loses_place(sim, ticket.slot))
                fault(sim, "one who had a token had none");
        }
        else if (held < 0)
            fault(sim, "one who was inside had nothing");
    }
    has_ended(sim, who, &sim->book->served);
    if (dbguard_admission_leave(&board, ticket, now, &held) != APR_NOTFOUND)
        fault(sim, "one could leave twice");
    if (sim->flaw == SIM_FORGES && percent(sim, 2))
        forge(sim);
}

/* A process dies with all that it has, and is missed some time later. */
static void die(sim_t *sim)
{
    uint32_t process = dice(sim, sim->plan->processes);
    int32_t pid = sim->pids[process];
    uint32_t i;

    sim->pids[process] = ++sim->last_pid;
    for (i = 0; i < sim->book->came; i++) {
        request_t *r = &sim->requests[i];

        if (r->pid != pid || r->phase == ENDED)
            continue;
        r->phase = DEAD;
        if (r->ticket.serial == 0 || r->leased)
            has_ended(sim, i, &sim->book->died);
    }
    add(sim, now + dice(sim, 2 * SECOND), REAP, (uint32_t)pid);
}

static void bury(sim_t *sim, int32_t pid)
{
    static const dbguard_ticket_t nobodys;
    uint32_t expected = 0, i;

    /* Leases may be over: now they are. */
    look(nobodys);
    for (i = 0; i < sim->plan->slots; i++)
        if (sim->places[i].owner != NOBODY)
            loses_place(sim, i);
    for (i = 0; i < sim->plan->slots; i++) {
        uint32_t owner = sim->places[i].owner;

        if (owner == NOBODY || sim->requests[owner].pid != pid)
            continue;
        expected++;
        if (state_of(sim->requests[owner].ticket) == DBGUARD_HELD) {
            sim->reaped_tokens++;
            comes_back(sim, owner);
        }
        sim->reaped_waiters += state_of(sim->requests[owner].ticket)
                               == DBGUARD_WAITING;
        has_ended(sim, owner, &sim->book->died);
    }
    if (reap(pid) != expected)
        fault(sim, "reaping took something else than what was there");
}

static void change(sim_t *sim)
{
    const sim_plan_t *plan = sim->plan;

    sim->limits.budget = 1 + dice(sim, 2 * plan->budget);
    sim->limits.queue = dice(sim, 2 * plan->queue + 1);
    sim->limits.dryrun = percent(sim, plan->dryruns);
    sim->limits.patience = dice(sim, 3) ? PATIENCE : 0;
    if (plan->classes > 0) {
        sim->limits.classes[1].max.number = 1 + dice(sim, plan->budget);
        sim->limits.classes[2].min.number = dice(sim, 60);
        sim->limits.classes[2].min.percent = 1;
        sim->limits.classes[3].weight = dice(sim, 5);
        sim->limits.session_wait = dice(sim, 3);
        sim->limits.client_hold.number = dice(sim, 3);
    }
    sim->overdrawn = 1;
    dbguard_admission_configure(&board, &sim->limits, now);
}

/* --- the checker ---------------------------------------------------------- */

static int waits_with_patience(const dbguard_slot_t *s)
{
    return s->state == DBGUARD_WAITING && s->deadline > now;
}

/* Connections that the database may count at a time to come: of those who hold
 * a token then, and of those whose token has come back only just. */
static uint32_t connections(const sim_t *sim, int64_t time)
{
    uint32_t n = 0, i;

    for (i = 0; i < sim->plan->slots; i++)
        n += board.shared->slots[i].state == DBGUARD_HELD
             && board.shared->slots[i].granted <= time;
    for (i = 0; i < sim->nreturns && i < RETURNS; i++)
        n += sim->returns[i] + sim->plan->settle > time;
    return n;
}

/* Also those that begin later are among them when they begin. */
static void check_connections(sim_t *sim, int64_t since)
{
    uint32_t i;

    if (sim->limits.dryrun || sim->overdrawn)
        return;
    for (i = 0; i < sim->plan->slots; i++) {
        const dbguard_slot_t *s = &board.shared->slots[i];

        if (s->state == DBGUARD_HELD && s->granted >= since
            && connections(sim, s->granted) > sim->limits.budget)
            fault(sim, "more connections than the budget");
    }
}

/* Within a flow: by lane, turn and arrival. */
static int is_before(const dbguard_slot_t *a, const dbguard_slot_t *b)
{
    if (a->lane != b->lane)
        return a->lane < b->lane;
    return a->tag < b->tag || (a->tag == b->tag && a->serial < b->serial);
}

/* Those who waited all the time, where they might have been next. */
static int was_passed_over(const sim_t *sim, uint32_t slot)
{
    const dbguard_slot_t *s = &board.shared->slots[slot];
    const place_t *place = &sim->places[slot];

    return waits_with_patience(s) && !s->parked
           && place->state == DBGUARD_WAITING && !place->parked
           && place->flow == s->flow;
}

/* Its client may have had its share for a moment within the event. */
static int may_be_parked(const dbguard_slot_t *s)
{
    return s->address != DBGUARD_NONE
           && (s->excess
               || dbguard_reserve_is_long(board.shared, s->endpoint, now));
}

static void check_turn(sim_t *sim, const dbguard_slot_t *granted, int waited)
{
    outlook_t o;
    uint32_t i;

    look_out(sim, granted, &o);
    for (i = 0; i < sim->plan->slots; i++) {
        const dbguard_slot_t *s = &board.shared->slots[i];

        if (!was_passed_over(sim, i))
            continue;
        if (waited && s->flow == granted->flow && is_before(s, granted)
            && !may_be_parked(s))
            fault(sim, "somebody was served before one whose turn it was");
        if (!waited && may_have_token(sim, &o, s))
            fault(sim, "a newcomer was served before one who waits");
    }
}

static void check_grant(sim_t *sim, const dbguard_slot_t *granted)
{
    const dbguard_class_t *c = &sim->limits.classes[granted->class];

    /* Twenty paces later at most. */
    if (granted->granted < now
        || granted->granted > now + sim->plan->settle * (1 + 20 / PACES))
        fault(sim, "a token was given for some other time");
    if (board.shared->prefix.held > sim->limits.budget)
        fault(sim, "more tokens out than the budget");
    if (board.shared->class_held[granted->class]
        > tokens_of(sim, &c->max, UINT32_MAX))
        fault(sim, "a class has more than its maximum");
    check_connections(sim, granted->granted);
}

static void check_change(sim_t *sim, uint32_t slot, uint32_t was)
{
    const dbguard_slot_t *s = &board.shared->slots[slot];
    const request_t *r = &sim->requests[sim->places[slot].owner];
    uint32_t is = s->state;

    if (is == was)
        return;
    /* DryRun has ended: what runs is out. */
    if (is == DBGUARD_HELD && s->runs && sim->overdrawn
        && (was == DBGUARD_EXPELLED || was == DBGUARD_WAITING))
        return;
    if (is == DBGUARD_HELD) {
        if (was == DBGUARD_WAITING && s->deadline <= now)
            fault(sim, "a token went to one whose patience had ended");
        check_grant(sim, s);
        check_turn(sim, s, was == DBGUARD_WAITING);
    }
    else if (is == DBGUARD_EXPELLED && r->phase != INSIDE
             && s->deadline > now && s->reason != DBGUARD_REASON_DISPLACED)
        fault(sim, "somebody was expelled before its time");
    if (was == DBGUARD_HELD || was == DBGUARD_EXPELLED)
        fault(sim, "a slot changed its state under its owner");
}

/* Slots and requests are the same set. */
static void check_slot(sim_t *sim, uint32_t slot)
{
    const dbguard_slot_t *s = &board.shared->slots[slot];
    place_t *place = &sim->places[slot];
    const request_t *r = &sim->requests[place->owner];
    uint32_t was = place->state;

    if (place->owner == NOBODY || loses_place(sim, slot)) {
        if (s->state != DBGUARD_FREE && s->state != DBGUARD_SETTLING)
            fault(sim, "a slot belongs to nobody");
        return;
    }
    if (s->state == DBGUARD_FREE || s->state == DBGUARD_SETTLING
        || s->serial != r->ticket.serial || s->visitor.pid != r->pid
        || r->ticket.slot != slot) {
        fault(sim, "a request has lost its slot");
        return;
    }
    if (r->phase == INSIDE && s->state != DBGUARD_HELD && !s->runs)
        fault(sim, "somebody is inside without a token");
    check_change(sim, slot, was);
}

static void remember(sim_t *sim)
{
    uint32_t i;

    for (i = 0; i < sim->plan->slots; i++) {
        const dbguard_slot_t *s = &board.shared->slots[i];

        sim->places[i].state = s->state;
        sim->places[i].flow = s->flow;
        sim->places[i].parked = s->parked;
        sim->places[i].granted = s->granted;
        sim->book->parked += s->state == DBGUARD_WAITING && s->parked;
    }
}

/* Who is not parked and may have a token has it. */
static void check_no_idle_token(sim_t *sim)
{
    outlook_t o;
    uint32_t i;

    look_out(sim, NULL, &o);
    for (i = 0; o.free > 0 && i < sim->plan->slots; i++) {
        const dbguard_slot_t *s = &board.shared->slots[i];

        if (s->state == DBGUARD_WAITING && !s->parked
            && may_have_token(sim, &o, s))
            fault(sim, "a token is idle while somebody waits");
    }
}

static void check_account(sim_t *sim)
{
    const dbguard_counters_t *c = &board.shared->counters;
    const dbguard_prefix_t *p = &board.shared->prefix;

    if (c->admitted != c->released + p->held + sim->reaped_tokens)
        fault(sim, "tokens given are not tokens out and tokens back");
    if (c->refused
        != c->refused_budget + c->refused_timeout + c->refused_board
               + c->refused_patience + c->refused_displaced
               + c->refused_client + c->refused_class + c->refused_database)
        fault(sim, "refusals are not the sum of their reasons");
    if (c->waited > c->admitted || c->repairs != 0)
        fault(sim, "a counter is out of bounds");
    if (!sim->limits.dryrun && connections(sim, now) <= sim->limits.budget)
        sim->overdrawn = 0;
    if (p->held > sim->book->held_max)
        sim->book->held_max = p->held;
}

/* A slot that was free before, or that another request had, begins anew. */
static void note_newcomers(sim_t *sim)
{
    uint32_t i;

    for (i = 0; i < sim->plan->slots; i++)
        if (sim->places[i].owner == NOBODY)
            sim->places[i].state = DBGUARD_FREE;
}

static void check(sim_t *sim)
{
    const char *what
        = sim->checks++ % 8 == 0 ? board_disorder(board.shared) : NULL;
    uint32_t i;

    if (what != NULL)
        fault(sim, what);
    if (sim->flaw != SIM_RAISES_NEED)
        memcpy(sim->need, board.shared->need, sizeof(sim->need));
    for (i = 0; i < sim->plan->slots && sim->fault == NULL; i++)
        check_slot(sim, i);
    remember(sim);
    check_no_idle_token(sim);
    check_account(sim);
}

/* Everybody has ended, in one way, and the counters say the same. */
static void check_end(sim_t *sim)
{
    const dbguard_counters_t *c = &board.shared->counters;
    const sim_result_t *b = sim->book;
    uint32_t i;

    for (i = 0; i < sim->plan->requests; i++)
        if (sim->requests[i].phase != ENDED)
            fault(sim, "a request has not ended");
    if (board.shared->prefix.held != 0 || board.shared->prefix.waiting != 0)
        fault(sim, "something is left behind");
    if (b->came
        != b->served + b->refused + b->timeouts + b->aborted + b->died
               + b->lost)
        fault(sim, "a request ended in two ways");
    if (c->aborted != b->aborted)
        fault(sim, "aborted is not who hung up");
    if (c->refused < b->refused + b->timeouts
        || c->refused > b->refused + b->timeouts + b->died + b->lost)
        fault(sim, "refused is not who was refused or waited in vain");
    if (c->refused_displaced < b->displaced)
        fault(sim, "displaced is not who was displaced");
    if (c->waited < b->waited
        || (sim->plan->dryruns == 0
            && c->waited > b->waited + b->died + b->lost))
        fault(sim, "waited is not who waited");
    if (c->reaped < sim->reaped_tokens + sim->reaped_waiters
        || c->reaped > b->died)
        fault(sim, "reaped is not who died");
}

/* --- the loop ------------------------------------------------------------- */

/* Posts reach the waiting a little later, or never. */
static void deliver_posts(sim_t *sim)
{
    uint32_t i;

    for (i = 0; i < sim->plan->slots; i++) {
        uint32_t who = sim->places[i].owner;

        if (who == NOBODY || sim->requests[who].phase != WAITS
            || posts(sim->requests[who].ticket) == 0)
            continue;
        if (!percent(sim, sim->plan->lost))
            add(sim, now + dice(sim, 2000), LOOK, who);
    }
}

static void happen(sim_t *sim, const event_t *event)
{
    uint32_t who = event->who;

    switch (event->kind) {
    case ARRIVE:
        arrive(sim, who);
        break;
    case LOOK:
        if (sim->requests[who].phase == WAITS)
            look_again(sim, who);
        break;
    case HANG_UP:
        if (sim->requests[who].phase == WAITS)
            hang_up(sim, who);
        break;
    case END:
        if (sim->requests[who].phase == INSIDE)
            end(sim, who);
        break;
    case REAP:
        bury(sim, (int32_t)who);
    }
}

/* What comes from outside, besides requests. */
static void disturb(sim_t *sim)
{
    uint32_t event = dice(sim, 1000);
    uint32_t taken;

    if (event < sim->plan->deaths)
        die(sim);
    else if (event < sim->plan->deaths + sim->plan->changes)
        change(sim);
    else if (event == 999 && sim->flaw == SIM_REAPS_THE_LIVING)
        dbguard_admission_reap(&board, sim->pids[0], now, &taken);
}

static void run(sim_t *sim)
{
    add(sim, now, ARRIVE, 0);
    while (sim->nevents > 0 && sim->fault == NULL) {
        event_t event = take(sim);

        if (event.time < now)
            fault(sim, "the clock went back");
        now = event.time;
        note_newcomers(sim);
        happen(sim, &event);
        check(sim);
        deliver_posts(sim);
        if (sim->book->came < sim->plan->requests) {
            note_newcomers(sim);
            disturb(sim);
            check(sim);
            deliver_posts(sim);
        }
        sim->book->events++;
    }
    if (sim->fault == NULL)
        check_end(sim);
}

/* Of the names that were made up, and are not in the table any more. */
static uint32_t count_evicted(const sim_t *sim)
{
    uint32_t n = sim->names, i;

    for (i = DBGUARD_FIXED; i < DBGUARD_ENDPOINTS; i++)
        n -= strncmp(board.shared->endpoints[i].name, "GET /made-up/", 13)
             == 0;
    return n;
}

static void *room_for(size_t n, size_t size)
{
    void *p = calloc(n, size);

    ck_assert_ptr_nonnull(p);
    return p;
}

const char *sim_run(const sim_plan_t *plan, uint32_t seed, sim_flaw_t flaw,
                    sim_result_t *result)
{
    sim_t sim = {.plan = plan, .flaw = flaw, .random = seed, .book = result};
    dbguard_limits_t *limits;
    uint32_t i;

    memset(result, 0, sizeof(*result));
    board_open(plan->slots, plan->budget, plan->queue);
    board.fifo = plan->fifo;
    limits = &board.shared->limits;
    limits->settle = plan->settle;
    limits->pace = plan->settle / PACES;
    if (plan->classes > 0) {
        limits->classes[1].max.number = 2;
        limits->classes[1].lease = plan->lease;
        limits->classes[2].min.number = 20;
        limits->classes[2].min.percent = 1;
        limits->classes[3].weight = 3;
        limits->session_wait = 2;
    }
    sim.limits = *limits;
    dbguard_admission_configure(&board, &sim.limits, now);
    sim.requests = room_for(plan->requests, sizeof(*sim.requests));
    sim.places = room_for(plan->slots, sizeof(*sim.places));
    sim.pids = room_for(plan->processes, sizeof(*sim.pids));
    for (i = 0; i < plan->slots; i++)
        sim.places[i].owner = NOBODY;
    for (i = 0; i < plan->processes; i++)
        sim.pids[i] = ++sim.last_pid;
    run(&sim);
    result->evicted = count_evicted(&sim);
    free(sim.heap);
    free(sim.requests);
    free(sim.places);
    free(sim.pids);
    board_close();
    return sim.fault;
}
