/* Is everything that is derived on a board what its slots say? Counted anew
 * here, without the code under test and without regard for time: see
 * board_disorder in unit.h.
 *
 * `seen` counts how often an element was met in the lists and heaps of one
 * kind. `owe` is what the slots say, an entry for each endpoint and client. */

#include <stdlib.h>
#include <string.h>

#include "unit.h"

typedef struct owe_t {
    uint32_t here, held, waiting, fresh, firsts, parked;
    int64_t granted;
} owe_t;

typedef struct checker_t {
    const dbguard_shared_t *shared;
    const dbguard_client_t *clients;
    uint32_t *seen;
    owe_t *endpoints, *addresses;
    const char *what; /* the first thing that is wrong */
} checker_t;

static int wrong(checker_t *c, const char *what)
{
    if (c->what == NULL)
        c->what = what;
    return 0;
}

static int expect(checker_t *c, int fine, const char *what)
{
    return fine ? 1 : wrong(c, what);
}

static const dbguard_slot_t *slot_of(const checker_t *c, uint32_t slot)
{
    return &c->shared->slots[slot];
}

/* --- lists ---------------------------------------------------------------- */

/* Slots from head to tail, on `next`, all in this state and met once. */
static uint32_t follow_list(checker_t *c, uint32_t head, uint32_t tail,
                            dbguard_state_t state, int both_ways)
{
    uint32_t at, last = DBGUARD_NONE, n = 0;

    for (at = head; at != DBGUARD_NONE; at = slot_of(c, at)->next) {
        if (!expect(c, at < c->shared->nslots, "a list leaves the table")
            || !expect(c, slot_of(c, at)->state == state,
                       "a slot is in the list of another state")
            || !expect(c, c->seen[at]++ == 0, "a slot is in two lists"))
            return n;
        if (both_ways)
            expect(c, slot_of(c, at)->prev == last, "a list's way back");
        last = at;
        n++;
    }
    if (both_ways || state == DBGUARD_SETTLING)
        expect(c, tail == last, "a tail is not the last");
    return n;
}

static uint32_t count(const dbguard_shared_t *shared, dbguard_state_t state)
{
    uint32_t n = 0, i;

    for (i = 0; i < shared->nslots; i++)
        n += shared->slots[i].state == state;
    return n;
}

static void check_lists(checker_t *c)
{
    const dbguard_shared_t *s = c->shared;
    uint32_t n = follow_list(c, s->free_head, 0, DBGUARD_FREE, 0);

    expect(c, n == count(s, DBGUARD_FREE), "the free list is not complete");
    n = follow_list(c, s->held_head, s->held_tail, DBGUARD_HELD, 1);
    expect(c, n == count(s, DBGUARD_HELD), "the held list is not complete");
    expect(c, n == s->prefix.held, "held is not who holds");
    n = follow_list(c, s->settle_head, s->settle_tail, DBGUARD_SETTLING, 0);
    expect(c, n == count(s, DBGUARD_SETTLING),
           "the settling are not complete");
    expect(c, n == s->settling, "settling is not who settles");
    expect(c,
           s->follow == DBGUARD_NONE
               || (s->follow < s->nslots
                   && s->slots[s->follow].state == DBGUARD_HELD),
           "follow is nobody who holds");
    expect(c, count(s, DBGUARD_WAITING) == s->prefix.waiting,
           "waiting is not who waits");
}

/* --- what slots say ------------------------------------------------------- */

static int named(const dbguard_slot_t *s, const dbguard_endpoint_t *e,
                 uint32_t endpoint)
{
    return endpoint == DBGUARD_OTHER(s->class)
           || (e->key != 0 && e->class == s->class
               && strcmp(e->name, s->visitor.endpoint) == 0);
}

/* An index of a client, and that it is still the one who came. */
static int known(const checker_t *c, uint32_t client, uint64_t key)
{
    return client == DBGUARD_NONE
           || (client < c->shared->nclients && c->clients[client].key == key);
}

static int whole(checker_t *c, const dbguard_slot_t *s)
{
    const dbguard_endpoint_t *endpoints = c->shared->endpoints;

    return expect(c, s->class < DBGUARD_CLASSES, "a class that is none")
           && expect(c,
                     s->endpoint < DBGUARD_ENDPOINTS
                         && s->flow < DBGUARD_ENDPOINTS
                         && s->bin < DBGUARD_BINS,
                     "an endpoint, flow or bin that is none")
           && expect(c, named(s, &endpoints[s->endpoint], s->endpoint),
                     "the endpoint of a request is another one now")
           && expect(c,
                     s->flow == s->endpoint || s->flow == DBGUARD_NEW(s->class)
                         || s->flow == DBGUARD_OTHER(0),
                     "a flow that is not its own")
           && expect(c,
                     known(c, s->address, s->visitor.address)
                         && known(c, s->session, s->visitor.session),
                     "the client of a request is another one now")
           && expect(c, s->session == DBGUARD_NONE
                            || s->address != DBGUARD_NONE,
                     "a session without an address");
}

static void owe_client(checker_t *c, const dbguard_slot_t *s, uint32_t client,
                       int is_address)
{
    owe_t *a;

    if (client == DBGUARD_NONE)
        return;
    a = &c->addresses[client];
    a->here++;
    if (s->state == DBGUARD_HELD)
        a->held++;
    else if (s->state == DBGUARD_WAITING)
        a->waiting++;
    else
        return;
    if (is_address) {
        a->firsts += s->first != 0;
        a->parked += s->state == DBGUARD_WAITING && s->parked;
    }
}

static void owe_one(checker_t *c, const dbguard_slot_t *s)
{
    owe_t *e = &c->endpoints[s->endpoint], *f = &c->endpoints[s->flow];

    e->here++;
    if (s->state == DBGUARD_HELD) {
        e->held++;
        e->granted += s->granted;
    }
    else if (s->state == DBGUARD_WAITING) {
        f->waiting++;
        f->fresh += s->fresh != 0;
        f->parked += s->parked != 0;
    }
    owe_client(c, s, s->address, 1);
    owe_client(c, s, s->session, 0);
}

static void check_slots(checker_t *c)
{
    uint32_t bins[DBGUARD_BINS] = {0}, classes[DBGUARD_CLASSES] = {0};
    uint32_t i, shadows = 0;

    for (i = 0; i < c->shared->nslots; i++) {
        const dbguard_slot_t *s = slot_of(c, i);

        if (!expect(c, s->state <= DBGUARD_SETTLING, "a state that is none")
            || !expect(c, s->serial <= c->shared->serial,
                       "a serial that was never given"))
            return;
        if (s->state == DBGUARD_FREE || s->state == DBGUARD_SETTLING)
            continue;
        if (!whole(c, s))
            return;
        owe_one(c, s);
        if (s->state == DBGUARD_HELD) {
            bins[s->bin] += s->excess == 0;
            classes[s->class]++;
        }
        shadows += s->state == DBGUARD_WAITING && s->runs;
    }
    expect(c, shadows == c->shared->shadows, "shadows");
    expect(c, memcmp(bins, c->shared->bin_held, sizeof(bins)) == 0,
           "bin_held is not who holds");
    expect(c, memcmp(classes, c->shared->class_held, sizeof(classes)) == 0,
           "class_held is not who holds");
}

/* --- heaps ---------------------------------------------------------------- */

typedef struct shape_t {
    const dbguard_link_t *(*link)(const dbguard_shared_t *, uint32_t);
    int (*before)(const dbguard_shared_t *, uint32_t, uint32_t);
    uint32_t elements;
} shape_t;

/* All siblings from `at` on and what is below them: their number. */
static uint32_t climb(checker_t *c, const shape_t *shape, uint32_t parent,
                      uint32_t at)
{
    uint32_t last = parent, n = 0;

    while (at != DBGUARD_NONE) {
        const dbguard_link_t *l;

        if (!expect(c, at < shape->elements, "a heap leaves the table")
            || !expect(c, c->seen[at]++ == 0, "an element is in two heaps"))
            return n;
        l = shape->link(c->shared, at);
        expect(c, l->prev == last, "a heap's way back is broken");
        if (parent != DBGUARD_NONE)
            expect(c, !shape->before(c->shared, at, parent),
                   "an element of a heap is before its parent");
        else
            expect(c, l->next == DBGUARD_NONE, "a heap has two roots");
        n += 1 + climb(c, shape, at, l->child);
        last = at;
        at = l->next;
    }
    return n;
}

static const dbguard_link_t *waiter(const dbguard_shared_t *s, uint32_t at)
{
    return &s->slots[at].link;
}

static int by_turn(const dbguard_shared_t *s, uint32_t a, uint32_t b)
{
    const dbguard_slot_t *x = &s->slots[a], *y = &s->slots[b];

    return x->lane < y->lane
           || (x->lane == y->lane
               && (x->tag < y->tag
                   || (x->tag == y->tag && x->serial < y->serial)));
}

static const dbguard_link_t *flow(const dbguard_shared_t *s, uint32_t at)
{
    return &s->endpoints[at].link;
}

static int by_time(const dbguard_shared_t *s, uint32_t a, uint32_t b)
{
    return s->endpoints[a].used < s->endpoints[b].used;
}

static const dbguard_link_t *heavy(const dbguard_shared_t *s, uint32_t at)
{
    return &s->endpoints[at].heavy;
}

static int by_backlog(const dbguard_shared_t *s, uint32_t a, uint32_t b)
{
    return s->endpoints[a].backlog > s->endpoints[b].backlog;
}

/* The heap of a flow has its waiters and no others. */
static void check_turns(checker_t *c, uint32_t at)
{
    const dbguard_endpoint_t *f = &c->shared->endpoints[at];
    const shape_t shape = {waiter, by_turn, c->shared->nslots};
    uint32_t n, slot, last = DBGUARD_NONE;

    memset(c->seen, 0, c->shared->nslots * sizeof(c->seen[0]));
    n = climb(c, &shape, DBGUARD_NONE, f->waiters);
    expect(c, n == c->endpoints[at].waiting - c->endpoints[at].parked,
           "not all waiters may be next");
    for (slot = f->first, n = 0; slot != DBGUARD_NONE;
         slot = slot_of(c, slot)->next) {
        const dbguard_slot_t *s = slot_of(c, slot);

        if (!expect(c, slot < c->shared->nslots, "a flow leaves the table")
            || !expect(c, s->state == DBGUARD_WAITING && s->flow == at,
                       "one waits in a flow that is not its own")
            || !expect(c, s->prev == last, "a flow's way back is broken")
            || !expect(c, c->seen[slot] == !s->parked,
                       "one is in the heap and parked, or neither"))
            return;
        if (last != DBGUARD_NONE)
            if (!expect(c, slot_of(c, last)->serial < s->serial,
                        "a flow is not in order of arrival"))
                return;
        last = slot;
        n++;
    }
    expect(c, f->last == last, "a flow's last is not its last");
    expect(c, n == c->endpoints[at].waiting, "a flow is not complete");
}

static void check_endpoint(checker_t *c, uint32_t at)
{
    const dbguard_endpoint_t *e = &c->shared->endpoints[at];
    const owe_t *o = &c->endpoints[at];
    int next = o->waiting > o->parked;

    expect(c, e->here == o->here, "an endpoint's slots");
    expect(c, e->held == o->held, "an endpoint's held");
    expect(c, e->granted == o->granted, "an endpoint's granted");
    expect(c, e->waiting == o->waiting, "a flow's waiting");
    expect(c, e->fresh == o->fresh, "a flow's fresh");
    expect(c, (e->ready != DBGUARD_NONE) == next,
           "a flow is ready without waiters, or not with them");
    expect(c, e->ready == DBGUARD_NONE || e->ready == e->bin,
           "a flow is ready in another bin than its own");
    expect(c, (e->first != DBGUARD_NONE) == (o->waiting > 0)
                  && (e->waiters != DBGUARD_NONE) == next,
           "a flow's lists are not who waits");
    if (o->waiting > 0)
        check_turns(c, at);
}

/* Every ready flow is in the heap of its class and bin. */
static void check_ready(checker_t *c)
{
    const dbguard_shared_t *s = c->shared;
    const shape_t shape = {flow, by_time, DBGUARD_ENDPOINTS};
    uint32_t class, bin, at, n, m;

    memset(c->seen, 0, DBGUARD_ENDPOINTS * sizeof(c->seen[0]));
    for (class = 0; class < DBGUARD_CLASSES; class++) {
        uint64_t bins = 0;

        for (bin = 0; bin < DBGUARD_BINS; bin++) {
            n = climb(c, &shape, DBGUARD_NONE, s->ready[class][bin]);
            if (n > 0)
                bins |= UINT64_C(1) << bin;
            for (at = m = 0; n > 0 && at < DBGUARD_ENDPOINTS; at++)
                m += s->endpoints[at].class == class
                     && s->endpoints[at].ready == bin;
            expect(c, n == m, "a bin has not the flows that say so");
        }
        expect(c, s->ready_bins[class] == bins, "ready_bins");
        expect(c, (s->ready_classes >> class & 1) == (bins != 0),
               "ready_classes");
    }
    for (at = 0; at < DBGUARD_ENDPOINTS; at++)
        expect(c, c->seen[at] == (s->endpoints[at].ready != DBGUARD_NONE),
               "a ready flow is in no heap");
}

static void check_heaviest(checker_t *c)
{
    const shape_t shape = {heavy, by_backlog, DBGUARD_ENDPOINTS};
    uint32_t at;

    memset(c->seen, 0, DBGUARD_ENDPOINTS * sizeof(c->seen[0]));
    climb(c, &shape, DBGUARD_NONE, c->shared->heaviest);
    for (at = 0; at < DBGUARD_ENDPOINTS; at++)
        expect(c, c->seen[at] == (c->endpoints[at].waiting > 0),
               "the heaviest are not those that somebody waits for");
}

static void check_flows(checker_t *c)
{
    uint32_t at;

    for (at = 0; c->what == NULL && at < DBGUARD_ENDPOINTS; at++)
        check_endpoint(c, at);
    if (c->what == NULL)
        check_ready(c);
    if (c->what == NULL)
        check_heaviest(c);
}

/* --- clients, chains, loads ----------------------------------------------- */

static void check_parked(checker_t *c)
{
    const dbguard_shared_t *s = c->shared;
    uint32_t slot, last = DBGUARD_NONE, n = 0, i;

    for (slot = s->parked_head; slot != DBGUARD_NONE;
         slot = slot_of(c, slot)->link.next) {
        if (!expect(c, slot < s->nslots, "the parked leave the table")
            || !expect(c, slot_of(c, slot)->state == DBGUARD_WAITING
                              && slot_of(c, slot)->parked
                              && slot_of(c, slot)->address != DBGUARD_NONE,
                       "one is parked that is not")
            || !expect(c, slot_of(c, slot)->link.prev == last,
                       "the parked ones' way back is broken")
            || !expect(c, n++ < s->nslots, "the parked go round"))
            return;
        last = slot;
    }
    expect(c, s->parked_tail == last, "the parked ones' tail");
    for (i = 0; i < s->nslots; i++)
        n -= s->slots[i].state == DBGUARD_WAITING && s->slots[i].parked;
    expect(c, n == 0, "the parked are not complete");
}

static void check_clients(checker_t *c)
{
    uint32_t i;

    check_parked(c);
    for (i = 0; c->what == NULL && i < c->shared->nclients; i++) {
        const dbguard_client_t *client = &c->clients[i];
        const owe_t *o = &c->addresses[i];

        expect(c, client->here == o->here, "a client's slots");
        expect(c, client->held == o->held, "a client's held");
        expect(c, client->waiting == o->waiting, "a client's waiting");
        expect(c, client->firsts == o->firsts, "a client's firsts");
        expect(c, client->parked == o->parked, "a client's parked");
    }
}

/* How to walk a table's chains. */
typedef struct table_t {
    const char *head, *chain, *key; /* of the first entry */
    size_t size;
    uint32_t entries, first; /* the first one that may be in a chain */
} table_t;

static uint32_t number_at(const char *member, size_t size, uint32_t entry)
{
    uint32_t n;

    memcpy(&n, member + size * entry, sizeof(n));
    return n;
}

static uint64_t key_at(const table_t *t, uint32_t entry)
{
    uint64_t key;

    memcpy(&key, t->key + t->size * entry, sizeof(key));
    return key;
}

/* In its bucket, and nobody before it has its key. */
static int chained(const table_t *t, uint32_t entry)
{
    uint64_t key = key_at(t, entry);
    uint32_t steps = 0, at
        = number_at(t->head, t->size, (uint32_t)(key % t->entries));

    while (at != entry && at < t->entries && key_at(t, at) != key
           && steps++ < t->entries)
        at = number_at(t->chain, t->size, at);
    return at == entry;
}

/* As many in the chains as have a key, and each where it is looked for. */
static void check_chains(checker_t *c, const table_t *t, const char *what)
{
    uint32_t i, at, used = 0, met = 0;

    for (i = 0; i < t->entries; i++) {
        if (i >= t->first && key_at(t, i) != 0) {
            used++;
            if (!expect(c, chained(t, i), what))
                return;
        }
        for (at = number_at(t->head, t->size, i);
             at < t->entries && met <= t->entries;
             at = number_at(t->chain, t->size, at))
            met++;
        expect(c, at == DBGUARD_NONE, what);
    }
    expect(c, used == met, what);
}

static void check_tables(checker_t *c)
{
    const dbguard_endpoint_t *e = c->shared->endpoints;
    const dbguard_client_t *l = c->clients;
    const table_t endpoints = {
        (const char *)&e->head, (const char *)&e->chain, (const char *)&e->key,
        sizeof(*e), DBGUARD_ENDPOINTS, DBGUARD_FIXED
    };
    const table_t clients = {
        (const char *)&l->head, (const char *)&l->chain, (const char *)&l->key,
        sizeof(*l), c->shared->nclients, 0
    };

    check_chains(c, &endpoints, "an endpoint cannot be found");
    check_chains(c, &clients, "a client cannot be found");
}

static uint32_t share(const dbguard_share_t *s, uint32_t budget, uint32_t none)
{
    uint64_t n = s->percent ? (uint64_t)budget * s->number / 100 : s->number;

    if (s->number == 0)
        return none;
    return n > 0 || none == 0 ? (uint32_t)n : 1;
}

static void check_loads(checker_t *c)
{
    const dbguard_shared_t *s = c->shared;
    const dbguard_limits_t *l = &s->limits;
    uint32_t i, max, minimums = 0;

    for (i = 1; i < DBGUARD_BINS; i++)
        expect(c, s->need[i] >= s->need[i - 1], "more work needs less");
    for (i = 0; i < DBGUARD_CLASSES; i++) {
        expect(c,
               s->class_min[i] == share(&l->classes[i].min, l->budget, 0),
               "a class's minimum");
        expect(c,
               s->class_max[i]
                   == share(&l->classes[i].max, l->budget, UINT32_MAX),
               "a class's maximum");
        minimums |= s->class_min[i];
    }
    expect(c, (s->minimums != 0) == (minimums != 0), "minimums");
    max = share(&l->client_hold, l->budget, UINT32_MAX);
    expect(c, s->client_max == (max == UINT32_MAX ? 0 : max),
           "what a client may hold");
}

/* Zeroed; the same from call to call, which is far faster. */
static void *room(void **memory, size_t *size, size_t wanted)
{
    if (wanted > *size) {
        free(*memory);
        *memory = malloc(wanted);
        *size = wanted;
        if (*memory == NULL)
            abort();
    }
    memset(*memory, 0, wanted);
    return *memory;
}

const char *board_disorder(const dbguard_shared_t *shared)
{
    static void *seen, *owed;
    static size_t seen_size, owed_size;
    uint32_t most = shared->nslots > DBGUARD_ENDPOINTS ? shared->nslots
                                                       : DBGUARD_ENDPOINTS;
    uint32_t entries = DBGUARD_ENDPOINTS + shared->nclients;
    checker_t c = {shared, NULL, NULL, NULL, NULL, NULL};

    c.clients = (const dbguard_client_t *)&shared->slots[shared->nslots];
    c.seen = room(&seen, &seen_size, most * sizeof(c.seen[0]));
    c.endpoints = room(&owed, &owed_size, entries * sizeof(c.endpoints[0]));
    c.addresses = &c.endpoints[DBGUARD_ENDPOINTS];

    check_lists(&c);
    if (c.what == NULL)
        check_slots(&c);
    if (c.what == NULL)
        check_flows(&c);
    if (c.what == NULL)
        check_clients(&c);
    if (c.what == NULL)
        check_tables(&c);
    if (c.what == NULL)
        check_loads(&c);
    return c.what;
}
