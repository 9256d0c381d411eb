/* What must be left free for whom: see reserve.h. Whole numbers only; loads are
 * microseconds of tokens, and N is counted in thousandths. */

#include <string.h>

#include "board.h"

#define EXCESS 10 /* times the mean */
#define LOOPS 50 /* requests in two windows: hardly a page asks for so many */
#define KNOWN 120 /* windows of five seconds: ten minutes */

static uint64_t square_root(uint64_t n)
{
    uint64_t root = 0, bit = UINT64_C(1) << 62;

    while (bit > n)
        bit >>= 2;
    for (; bit != 0; bit >>= 2) {
        if (n >= root + bit) {
            n -= root + bit;
            root = (root >> 1) + bit;
        }
        else
            root >>= 1;
    }
    return root;
}

uint32_t dbguard_reserve_need(int64_t load)
{
    uint64_t n, need;

    if (load <= 0)
        return 0;
    n = (uint64_t)load / (DBGUARD_LOAD_WINDOW / 1000);
    need = (n + 2 * square_root(n * 1000) + 500) / 1000;
    if (need == 0)
        return 1;
    return need < UINT32_MAX ? (uint32_t)need : UINT32_MAX;
}

uint32_t dbguard_reserve_free(const dbguard_board_t *board)
{
    const dbguard_shared_t *shared = board->shared;
    uint64_t out = shared->prefix.held;

    if (shared->elder && board->elder)
        out += board->elder->held;
    return out < shared->limits.budget
               ? shared->limits.budget - (uint32_t)out
               : 0;
}

void dbguard_reserve_look(const dbguard_board_t *board, dbguard_limit_t *limit)
{
    const dbguard_shared_t *shared = board->shared;
    uint32_t quarter = shared->limits.budget / 4;
    uint32_t used = 0, most = 0, b;

    limit->free = dbguard_reserve_free(board);
    limit->missing = 0;
    for (b = 0; shared->minimums && b < DBGUARD_CLASSES; b++)
        if (shared->class_held[b] < shared->class_min[b])
            limit->missing += shared->class_min[b] - shared->class_held[b];
    memset(limit->reserve, 0, sizeof(limit->reserve));
    if (board->fifo || limit->free == 0
        || limit->free > quarter + limit->missing)
        return;
    used = shared->bin_held[0] + shared->bin_held[1];
    for (b = 3; b < DBGUARD_BINS; b++) {
        uint32_t need
            = shared->need[b - 3] < quarter ? shared->need[b - 3] : quarter;

        /* All that is lighter: some of it may have grown old, or its estimate
         * may have moved since it was counted as need. */
        used += shared->bin_held[b - 1];
        if (need > used && need - used > most)
            most = need - used;
        limit->reserve[b] = most;
    }
}

int dbguard_reserve_allows(const dbguard_shared_t *shared,
                           const dbguard_limit_t *limit, uint32_t class,
                           uint32_t bin)
{
    uint32_t held = shared->class_held[class];
    uint32_t min = shared->class_min[class];

    if (limit->free == 0 || held >= shared->class_max[class])
        return 0;
    if (held < min)
        return 1;
    return limit->free > limit->missing + limit->reserve[bin];
}

static void roll(const dbguard_shared_t *shared, dbguard_demand_t *demand)
{
    uint64_t window = shared->tick / DBGUARD_LOAD_TICKS;
    int next = window == demand->window + 1;

    if (window == demand->window)
        return;
    demand->load[1] = next ? demand->load[0] : 0;
    demand->asked[1] = next ? demand->asked[0] : 0;
    demand->load[0] = demand->asked[0] = 0;
    demand->window = window;
}

/* Over a window's length that ends now; of a demand that has been rolled. */
static int64_t faded(const dbguard_shared_t *shared, const int64_t what[2])
{
    int64_t passed = (int64_t)(shared->tick % DBGUARD_LOAD_TICKS);

    return what[0]
           + what[1] / DBGUARD_LOAD_TICKS * (DBGUARD_LOAD_TICKS - passed);
}

/* Does that leave others enough, when `mine` of the load and of the tokens are
 * the client's own? While they have less than they need, up to an eighth stays
 * free for them, and they are before it in the queue: it is parked. */
static int leaves_enough(const dbguard_shared_t *shared, uint32_t free,
                         int64_t mine, uint32_t held)
{
    uint32_t need = dbguard_reserve_need(
        faded(shared, shared->demand.load) - mine);
    uint32_t most = shared->limits.budget - shared->limits.budget / 4;
    uint32_t spare = shared->limits.budget / 8;
    uint32_t others = shared->prefix.held - held;

    if (need > most)
        need = most;
    if (need <= others)
        return 1;
    return free > (need - others < spare ? need - others : spare);
}

static int may_have(dbguard_shared_t *shared, uint32_t free, uint32_t client)
{
    dbguard_client_t *c = &dbguard_clients(shared)[client];

    if (client == DBGUARD_NONE)
        return 1;
    if (shared->client_max > 0)
        return c->held < shared->client_max;
    roll(shared, &c->demand);
    return leaves_enough(shared, free, faded(shared, c->demand.load), c->held);
}

int dbguard_reserve_is_long(const dbguard_shared_t *shared, uint32_t endpoint,
                            int64_t now)
{
    return dbguard_endpoint_flow(shared, endpoint) < DBGUARD_CLASSES
           || dbguard_endpoint_estimate(shared, endpoint, now) > DBGUARD_LONG;
}

int dbguard_reserve_client(dbguard_shared_t *shared,
                           const dbguard_limit_t *limit, uint32_t slot,
                           int64_t now)
{
    const dbguard_slot_t *s = &shared->slots[slot];

    /* More than half is free: nobody is in anybody's way. */
    if (limit->free > shared->limits.budget / 2)
        return 1;
    if (s->excess
        && limit->free <= limit->missing + limit->reserve[DBGUARD_HEAVIEST])
        return 0;
    return !dbguard_reserve_is_long(shared, s->endpoint, now)
           || (may_have(shared, limit->free, s->address)
               && may_have(shared, limit->free, s->session));
}

uint32_t dbguard_reserve_own(const dbguard_shared_t *shared, uint32_t endpoint)
{
    const dbguard_endpoint_t *e = &shared->endpoints[endpoint];
    uint32_t most = shared->limits.budget;
    uint32_t others = 0, b;

    for (b = e->bin > 2 ? e->bin - 2 : 0; b < DBGUARD_BINS; b++)
        others += shared->bin_held[b];
    others = others > e->held ? others - e->held : 0;
    most = most > others ? most - others : 1;
    if (shared->class_max[e->class] < most)
        most = shared->class_max[e->class];
    return most > 0 ? most : 1;
}

static void ask_for(dbguard_demand_t *demand, int64_t work)
{
    demand->load[0] += work;
    demand->asked[0]++;
}

static int64_t asked(const dbguard_demand_t *demand)
{
    return demand->asked[0] + demand->asked[1];
}

/* Does it ask ten times as often as others do? Without its own address, as long
 * as there are enough others to make a mean of. */
static int is_excessive(dbguard_shared_t *shared, uint32_t client,
                        uint32_t address)
{
    const dbguard_client_t *clients = dbguard_clients(shared);
    int64_t n = shared->addresses[0] > shared->addresses[1]
                    ? shared->addresses[0]
                    : shared->addresses[1];
    int64_t all = asked(&shared->demand);

    if (n > EXCESS) {
        n--;
        all -= asked(&clients[address].demand);
    }
    return asked(&clients[client].demand) > LOOPS
           && asked(&clients[client].demand) * n > EXCESS * all;
}

int dbguard_reserve_arrive(dbguard_shared_t *shared, uint32_t endpoint,
                           int64_t work, uint32_t address, uint32_t session)
{
    dbguard_client_t *clients = dbguard_clients(shared);
    uint32_t who = address;
    int excess = 0;

    work += shared->limits.settle;
    ask_for(&shared->demand, work);
    if (address != DBGUARD_NONE) {
        roll(shared, &clients[address].demand);
        shared->addresses[0] += clients[address].demand.asked[0] == 0;
        ask_for(&clients[address].demand, work);
    }
    if (session != DBGUARD_NONE) {
        roll(shared, &clients[session].demand);
        ask_for(&clients[session].demand, work);
        /* More than this one request: it is not made up for each. */
        if (asked(&clients[session].demand) > 1)
            who = session;
    }
    if (who != DBGUARD_NONE)
        excess = is_excessive(shared, who, address);
    if (!excess) {
        roll(shared, &shared->demands[endpoint]);
        ask_for(&shared->demands[endpoint], work);
    }
    return excess;
}

/* What an endpoint is asked for; next to nothing, but something, as long as it
 * has been asked for at all in the last KNOWN windows: so a quiet site's pages
 * find a token, too. */
static int64_t recent(const dbguard_shared_t *shared,
                      const dbguard_demand_t *demand)
{
    uint64_t window = shared->tick / DBGUARD_LOAD_TICKS;
    dbguard_demand_t d = *demand;

    if (d.asked[0] + d.asked[1] == 0 || d.window + KNOWN < window)
        return 0;
    roll(shared, &d);
    return faded(shared, d.load) + 1;
}

/* The needs, from what each endpoint is asked for; in the bin it is of now,
 * wherever it was when its requests came. */
static void add_up(dbguard_shared_t *shared)
{
    int64_t sum = 0;
    uint32_t i;

    memset(shared->load, 0, sizeof(shared->load));
    for (i = 0; i < DBGUARD_ENDPOINTS; i++) {
        dbguard_demand_t *d = &shared->demands[i];

        d->counted = recent(shared, d);
        if (d->counted > 0)
            shared->load[shared->endpoints[i].bin] += d->counted;
    }
    for (i = 0; i < DBGUARD_BINS; i++) {
        shared->load[i] = sum += shared->load[i];
        shared->need[i] = dbguard_reserve_need(sum);
    }
}

void dbguard_reserve_move(dbguard_shared_t *shared, uint32_t endpoint,
                          uint32_t from, uint32_t to)
{
    int64_t load = shared->demands[endpoint].counted;
    uint32_t first = from < to ? from : to;
    uint32_t end = from < to ? to : from;
    uint32_t b;

    for (b = first; load > 0 && b < end; b++) {
        shared->load[b] += from < to ? -load : load;
        shared->need[b] = dbguard_reserve_need(shared->load[b]);
    }
}

int dbguard_reserve_tick(dbguard_shared_t *shared, int64_t now)
{
    uint64_t tick;

    if (now < shared->tick_end)
        return 0;
    tick = (uint64_t)(now / DBGUARD_TICK);
    shared->tick = tick;
    if (tick / DBGUARD_LOAD_TICKS != shared->demand.window) {
        int next = tick / DBGUARD_LOAD_TICKS == shared->demand.window + 1;

        shared->addresses[1] = next ? shared->addresses[0] : 0;
        shared->addresses[0] = 0;
        roll(shared, &shared->demand);
    }
    shared->tick_end = (int64_t)(tick + 1) * DBGUARD_TICK;
    add_up(shared);
    return 1;
}

static uint32_t tokens(const dbguard_share_t *share, uint32_t budget)
{
    if (!share->percent)
        return share->number;
    return (uint32_t)((uint64_t)budget * share->number / 100);
}

void dbguard_reserve_derive(dbguard_shared_t *shared)
{
    const dbguard_limits_t *limits = &shared->limits;
    uint32_t i;

    shared->minimums = 0;
    for (i = 0; i < DBGUARD_CLASSES; i++) {
        const dbguard_class_t *c = &limits->classes[i];
        uint32_t max = tokens(&c->max, limits->budget);

        shared->class_min[i] = tokens(&c->min, limits->budget);
        shared->minimums |= shared->class_min[i] > 0;
        /* A share of a small budget is one token at least. */
        shared->class_max[i] = c->max.number == 0 ? UINT32_MAX
                               : max > 0          ? max
                                                  : 1;
    }
    shared->client_max = limits->client_hold.number == 0
                             ? 0
                             : tokens(&limits->client_hold, limits->budget);
    if (shared->client_max == 0 && limits->client_hold.number > 0)
        shared->client_max = 1;
}

void dbguard_reserve_rebuild(dbguard_shared_t *shared)
{
    add_up(shared);
    dbguard_reserve_derive(shared);
}
