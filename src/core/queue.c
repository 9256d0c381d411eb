/* Who is next: see queue.h. */

#include "board.h"
#include "queue.h"

#define ROUND (INT64_C(1) << 16)
#define LOOKED_AT 16
#define MOVED 16 /* waiters that change their flow in one look, at most */
#define DEBT INT64_C(60000000) /* of virtual time, at most */

/* --- the three heaps ----------------------------------------------------- */

static dbguard_link_t *waiter_link(void *base, uint32_t slot)
{
    return &((dbguard_shared_t *)base)->slots[slot].link;
}

static int waiter_before(const void *base, uint32_t a, uint32_t b)
{
    const dbguard_slot_t *x = &((const dbguard_shared_t *)base)->slots[a];
    const dbguard_slot_t *y = &((const dbguard_shared_t *)base)->slots[b];

    if (x->lane != y->lane)
        return x->lane < y->lane;
    if (x->tag != y->tag)
        return x->tag < y->tag;
    return x->serial < y->serial;
}

static dbguard_link_t *flow_link(void *base, uint32_t flow)
{
    return &((dbguard_shared_t *)base)->endpoints[flow].link;
}

static int flow_before(const void *base, uint32_t a, uint32_t b)
{
    const dbguard_endpoint_t *flows
        = ((const dbguard_shared_t *)base)->endpoints;

    if (flows[a].used != flows[b].used)
        return flows[a].used < flows[b].used;
    return a < b;
}

static dbguard_link_t *heavy_link(void *base, uint32_t flow)
{
    return &((dbguard_shared_t *)base)->endpoints[flow].heavy;
}

static int heavier(const void *base, uint32_t a, uint32_t b)
{
    const dbguard_endpoint_t *flows
        = ((const dbguard_shared_t *)base)->endpoints;

    if (flows[a].backlog != flows[b].backlog)
        return flows[a].backlog > flows[b].backlog;
    return a < b;
}

static const dbguard_heap_t by_turn = {waiter_link, waiter_before};
static const dbguard_heap_t by_time = {flow_link, flow_before};
static const dbguard_heap_t by_backlog = {heavy_link, heavier};

/* --- flows --------------------------------------------------------------- */

static uint32_t weight_of(const dbguard_shared_t *shared, uint32_t class)
{
    uint32_t weight = shared->limits.classes[class].weight;

    return weight > 0 ? weight : 1;
}

static void leave_bin(dbguard_shared_t *shared, uint32_t flow)
{
    dbguard_endpoint_t *f = &shared->endpoints[flow];
    uint32_t *root = &shared->ready[f->class][f->ready];

    dbguard_heap_remove(&by_time, shared, root, flow);
    if (*root == DBGUARD_NONE)
        shared->ready_bins[f->class] &= ~(UINT64_C(1) << f->ready);
    if (shared->ready_bins[f->class] == 0)
        shared->ready_classes &= ~(UINT32_C(1) << f->class);
    f->ready = DBGUARD_NONE;
}

static void enter_bin(dbguard_shared_t *shared, uint32_t flow)
{
    dbguard_endpoint_t *f = &shared->endpoints[flow];

    f->ready = f->bin;
    dbguard_heap_insert(&by_time, shared, &shared->ready[f->class][f->ready],
                        flow);
    shared->ready_bins[f->class] |= UINT64_C(1) << f->ready;
    shared->ready_classes |= UINT32_C(1) << f->class;
}

/* In the heap of its bin, when somebody of it may be next. */
static void settle_in(dbguard_shared_t *shared, uint32_t flow)
{
    const dbguard_endpoint_t *f = &shared->endpoints[flow];

    if (f->ready != DBGUARD_NONE)
        leave_bin(shared, flow);
    if (f->waiters != DBGUARD_NONE)
        enter_bin(shared, flow);
}

/* The work that waits in it has changed from `before` waiters. */
static void weigh(dbguard_shared_t *shared, uint32_t flow, uint32_t before)
{
    dbguard_endpoint_t *f = &shared->endpoints[flow];

    if (before > 0)
        dbguard_heap_remove(&by_backlog, shared, &shared->heaviest, flow);
    f->backlog = (int64_t)f->waiting * f->hold / weight_of(shared, f->class);
    if (f->waiting > 0)
        dbguard_heap_insert(&by_backlog, shared, &shared->heaviest, flow);
}

int dbguard_queue_sort(dbguard_shared_t *shared, uint32_t flow, int64_t now)
{
    dbguard_endpoint_t *f = &shared->endpoints[flow];
    uint32_t bin = dbguard_endpoint_bin(shared, flow, now);

    if (bin == f->bin)
        return 0;
    dbguard_reserve_move(shared, flow, f->bin, bin);
    f->bin = bin;
    settle_in(shared, flow);
    return 1;
}

/* --- waiters ------------------------------------------------------------- */

static dbguard_client_t *client_of(dbguard_shared_t *shared, uint32_t client)
{
    return client == DBGUARD_NONE ? NULL : &dbguard_clients(shared)[client];
}

/* May be next. */
static void join(dbguard_shared_t *shared, uint32_t slot)
{
    dbguard_slot_t *s = &shared->slots[slot];
    dbguard_endpoint_t *f = &shared->endpoints[s->flow];

    dbguard_heap_insert(&by_turn, shared, &f->waiters, slot);
    if (f->ready == DBGUARD_NONE)
        enter_bin(shared, s->flow);
}

static void part(dbguard_shared_t *shared, uint32_t slot)
{
    dbguard_slot_t *s = &shared->slots[slot];
    dbguard_endpoint_t *f = &shared->endpoints[s->flow];

    dbguard_heap_remove(&by_turn, shared, &f->waiters, slot);
    if (f->waiters == DBGUARD_NONE)
        leave_bin(shared, s->flow);
}

/* At the end of the list of the parked, which is strung on their links. */
static void park(dbguard_shared_t *shared, uint32_t slot)
{
    dbguard_slot_t *s = &shared->slots[slot];

    part(shared, slot);
    s->parked = s->held_back = 1;
    client_of(shared, s->address)->parked++;
    s->link.prev = shared->parked_tail;
    s->link.next = DBGUARD_NONE;
    if (shared->parked_tail == DBGUARD_NONE)
        shared->parked_head = slot;
    else
        shared->slots[shared->parked_tail].link.next = slot;
    shared->parked_tail = slot;
}

static void unpark(dbguard_shared_t *shared, uint32_t slot)
{
    dbguard_slot_t *s = &shared->slots[slot];

    if (s->link.prev == DBGUARD_NONE)
        shared->parked_head = s->link.next;
    else
        shared->slots[s->link.prev].link.next = s->link.next;
    if (s->link.next == DBGUARD_NONE)
        shared->parked_tail = s->link.prev;
    else
        shared->slots[s->link.next].link.prev = s->link.prev;
    s->parked = 0;
    client_of(shared, s->address)->parked--;
}

void dbguard_queue_unpark(dbguard_shared_t *shared)
{
    uint32_t slot = shared->parked_head;

    if (slot != DBGUARD_NONE) {
        unpark(shared, slot);
        join(shared, slot);
    }
}

/* Rounds behind those whose address has nothing under way. */
static uint64_t behind(dbguard_shared_t *shared, const dbguard_slot_t *s)
{
    const dbguard_client_t *c = client_of(shared, s->address);

    if (c == NULL)
        return 0;
    return s->first ? (uint64_t)c->firsts * ROUND
                    : (uint64_t)(c->held + c->waiting) * ROUND + ROUND / 2;
}

/* Never before what the same address has waiting there already. */
static void tag(dbguard_shared_t *shared, dbguard_slot_t *s)
{
    const dbguard_client_t *c = client_of(shared, s->address);

    s->tag = shared->endpoints[s->flow].round + behind(shared, s);
    if (c != NULL && c->waiting > 0 && c->flow == s->flow
        && s->tag < c->turn[s->first])
        s->tag = c->turn[s->first];
}

static void take_turn(dbguard_shared_t *shared, const dbguard_slot_t *s)
{
    dbguard_client_t *c = client_of(shared, s->address);

    if (c == NULL)
        return;
    if (c->flow != s->flow || c->waiting == 0)
        c->turn[0] = c->turn[1] = 0;
    c->flow = s->flow;
    c->turn[s->first] = s->tag;
}

static void count(dbguard_shared_t *shared, dbguard_slot_t *s, uint32_t one)
{
    dbguard_client_t *address = client_of(shared, s->address);
    dbguard_client_t *session = client_of(shared, s->session);

    shared->prefix.waiting += one;
    shared->shadows += s->runs ? one : 0;
    shared->endpoints[s->flow].waiting += one;
    shared->endpoints[s->flow].fresh += s->fresh ? one : 0;
    if (address != NULL) {
        address->waiting += one;
        address->firsts += s->first ? one : 0;
    }
    if (session != NULL)
        session->waiting += one;
}

/* In order of arrival: nearly always it is the newest; one that comes from
 * another flow is among the oldest. Looked for from both ends. */
static void line_up(dbguard_shared_t *shared, uint32_t slot)
{
    dbguard_slot_t *slots = shared->slots, *s = &slots[slot];
    dbguard_endpoint_t *f = &shared->endpoints[s->flow];
    uint32_t after = f->last, before = f->first;

    while (after != DBGUARD_NONE && slots[after].serial > s->serial
           && slots[before].serial < s->serial) {
        after = slots[after].prev;
        before = slots[before].next;
    }
    if (after == DBGUARD_NONE || slots[after].serial < s->serial)
        before = after == DBGUARD_NONE ? f->first : slots[after].next;
    else
        after = slots[before].prev;
    s->prev = after;
    s->next = before;
    if (s->prev == DBGUARD_NONE)
        f->first = slot;
    else
        shared->slots[s->prev].next = slot;
    if (s->next == DBGUARD_NONE)
        f->last = slot;
    else
        shared->slots[s->next].prev = slot;
}

void dbguard_queue_add(dbguard_shared_t *shared, uint32_t slot)
{
    dbguard_slot_t *s = &shared->slots[slot];
    dbguard_endpoint_t *f = &shared->endpoints[s->flow];

    s->parked = 0;
    line_up(shared, slot);
    if (f->waiting == 0 && f->used < shared->time)
        f->used = shared->time;
    tag(shared, s);
    take_turn(shared, s);
    s->fresh = s->tag == f->round;
    count(shared, s, 1);
    weigh(shared, s->flow, f->waiting - 1);
    join(shared, slot);
}

void dbguard_queue_remove(dbguard_shared_t *shared, uint32_t slot)
{
    dbguard_slot_t *s = &shared->slots[slot];
    dbguard_endpoint_t *f = &shared->endpoints[s->flow];

    if (s->parked)
        unpark(shared, slot);
    else
        part(shared, slot);
    if (s->prev == DBGUARD_NONE)
        f->first = s->next;
    else
        shared->slots[s->prev].next = s->next;
    if (s->next == DBGUARD_NONE)
        f->last = s->prev;
    else
        shared->slots[s->next].prev = s->prev;
    count(shared, s, (uint32_t)-1);
    weigh(shared, s->flow, f->waiting + 1);
}

/* One that was new when it came, and is known by now, goes to its own flow.
 * Returns 1 when it was such a one. */
static int move_home(dbguard_shared_t *shared, uint32_t slot)
{
    dbguard_slot_t *s = &shared->slots[slot];
    uint32_t flow = dbguard_endpoint_flow(shared, s->endpoint);

    if (s->flow == flow || s->flow != DBGUARD_NEW(s->class))
        return 0;
    dbguard_queue_remove(shared, slot);
    s->flow = flow;
    dbguard_queue_add(shared, slot);
    return 1;
}

void dbguard_queue_look(dbguard_shared_t *shared, uint32_t slot, int64_t now)
{
    dbguard_slot_t *s = &shared->slots[slot];

    if (s->parked) {
        unpark(shared, slot);
        join(shared, slot);
    }
    move_home(shared, slot);
    dbguard_queue_sort(shared, s->flow, now);
}

/* --- virtual times ------------------------------------------------------- */

void dbguard_queue_charge(dbguard_shared_t *shared, uint32_t slot, int64_t now)
{
    dbguard_slot_t *s = &shared->slots[slot];
    dbguard_endpoint_t *f = &shared->endpoints[s->flow];
    int64_t start = f->used;

    /* One that was held back while others had their turns keeps its place. */
    if (f->waiting == 0 && start < shared->time)
        start = shared->time;
    s->cost = (dbguard_endpoint_estimate(shared, s->flow, now)
               + shared->limits.settle)
              / weight_of(shared, s->class);
    if (shared->time < start)
        shared->time = start;
    f->used = start + s->cost;
    f->round += ROUND / (f->waiting + 1);
    if (f->ready != DBGUARD_NONE)
        settle_in(shared, s->flow);
}

void dbguard_queue_correct(dbguard_shared_t *shared, uint32_t slot,
                           int64_t hold)
{
    const dbguard_slot_t *s = &shared->slots[slot];
    dbguard_endpoint_t *f = &shared->endpoints[s->flow];

    f->used += (hold + shared->limits.settle) / weight_of(shared, s->class)
               - s->cost;
    /* A hold of hours shall not cost the others of its kind hours. */
    if (f->used > shared->time + DEBT)
        f->used = shared->time + DEBT;
    if (f->ready != DBGUARD_NONE)
        settle_in(shared, s->flow);
}

/* --- who is next, and who has to go -------------------------------------- */

/* The flow that has had least, of those whose work may have a token. */
static uint32_t next_flow(const dbguard_shared_t *shared,
                          const dbguard_limit_t *limit)
{
    uint32_t best = DBGUARD_NONE;
    uint32_t classes = shared->ready_classes;

    for (; classes != 0; classes &= classes - 1) {
        uint32_t class = (uint32_t)__builtin_ctz(classes);
        uint64_t bins = shared->ready_bins[class];

        for (; bins != 0; bins &= bins - 1) {
            uint32_t bin = (uint32_t)__builtin_ctzll(bins);
            uint32_t flow = shared->ready[class][bin];

            if (!dbguard_reserve_allows(shared, limit, class, bin))
                break; /* heavier work may even less */
            if (best == DBGUARD_NONE || flow_before(shared, flow, best))
                best = flow;
        }
    }
    return best;
}

uint32_t dbguard_queue_next(const dbguard_board_t *board, int64_t now)
{
    dbguard_shared_t *shared = board->shared;
    dbguard_limit_t limit;
    uint32_t flow;
    int moved = 0;

    dbguard_reserve_look(board, &limit);
    while ((flow = next_flow(shared, &limit)) != DBGUARD_NONE) {
        uint32_t slot = shared->endpoints[flow].waiters;

        if (moved < MOVED && move_home(shared, slot)) {
            moved++;
            continue;
        }
        if (board->fifo || dbguard_reserve_client(shared, &limit, slot, now))
            return slot;
        park(shared, slot);
    }
    return DBGUARD_NONE;
}

uint32_t dbguard_queue_any(const dbguard_shared_t *shared)
{
    return shared->endpoints[shared->heaviest].first;
}

/* Of the newest few of a flow the one whose turn would be last. */
static uint32_t last_of(const dbguard_shared_t *shared, uint32_t flow)
{
    uint32_t last = shared->endpoints[flow].last;
    uint32_t slot = last;
    int i;

    for (i = 0; i < LOOKED_AT && slot != DBGUARD_NONE; i++) {
        if (waiter_before(shared, last, slot))
            last = slot;
        slot = shared->slots[slot].prev;
    }
    return last;
}

uint32_t dbguard_queue_victim(dbguard_shared_t *shared, uint32_t slot)
{
    dbguard_slot_t *s = &shared->slots[slot];
    const dbguard_endpoint_t *f = &shared->endpoints[s->flow];
    uint32_t most, own;
    int64_t work = ((int64_t)f->waiting + 1) * f->hold
                   / weight_of(shared, s->class);
    int moved = 0;

    do
        most = shared->heaviest;
    while (most != DBGUARD_NONE && moved++ < MOVED
           && move_home(shared, last_of(shared, most)));
    if (most == DBGUARD_NONE)
        return DBGUARD_NONE;
    if (most != s->flow && work < shared->endpoints[most].backlog)
        return last_of(shared, most);
    tag(shared, s);
    own = last_of(shared, s->flow);
    return own != DBGUARD_NONE && waiter_before(shared, slot, own)
               ? own
               : DBGUARD_NONE;
}

uint32_t dbguard_queue_ahead(dbguard_shared_t *shared, uint32_t slot)
{
    dbguard_slot_t *s = &shared->slots[slot];
    const dbguard_endpoint_t *f = &shared->endpoints[s->flow];

    tag(shared, s);
    return s->tag == f->round ? f->fresh : f->waiting;
}

void dbguard_queue_rebuild(dbguard_shared_t *shared)
{
    uint32_t class, bin;

    for (class = 0; class < DBGUARD_CLASSES; class++) {
        shared->ready_bins[class] = 0;
        for (bin = 0; bin < DBGUARD_BINS; bin++)
            shared->ready[class][bin] = DBGUARD_NONE;
    }
    shared->ready_classes = 0;
    shared->heaviest = DBGUARD_NONE;
    shared->parked_head = shared->parked_tail = DBGUARD_NONE;
}
