/* The table of endpoints: see flows.h. Hashing with chains; the heads of the
 * chains lie in the entries. */

#include <string.h>

#include "apr_siphash.h"

#include "board.h"

#define SECOND 1000000
#define SHORT INT64_C(20000) /* the end of bin 0 */
#define HOLD_UNKNOWN 500000 /* before anything has been seen */
#define RING DBGUARD_RATE_RING
#define SAMPLED 8          /* candidates for an eviction */
#define IN_USE (60 * (int64_t)SECOND)

uint32_t dbguard_bin_of(int64_t hold)
{
    uint64_t octaves;
    uint32_t n;

    if (hold <= SHORT)
        return 0;
    octaves = (uint64_t)(hold - 1) / SHORT;
    n = 63 - (uint32_t)__builtin_clzll(octaves);
    if (n >= DBGUARD_BINS / 2)
        return DBGUARD_HEAVIEST;
    n = 2 * n + 1;
    if (hold > dbguard_bin_end(n))
        n++;
    return n < DBGUARD_HEAVIEST ? n : DBGUARD_HEAVIEST;
}

int64_t dbguard_bin_end(uint32_t bin)
{
    if (bin >= DBGUARD_HEAVIEST)
        return INT64_MAX;
    /* An odd one ends half an octave on: sqrt(2). */
    return (SHORT << bin / 2) * (bin % 2 ? INT64_C(92682) : 65536) / 65536;
}

uint64_t dbguard_endpoint_key(const dbguard_shared_t *shared, const char *name,
                              uint32_t class)
{
    uint64_t key = apr_siphash24(name, strlen(name), shared->secret) + class;

    return key != 0 ? key : 1;
}

static dbguard_endpoint_t *bucket_of(dbguard_shared_t *shared, uint64_t key)
{
    return &shared->endpoints[key % DBGUARD_ENDPOINTS];
}

static void chain_in(dbguard_shared_t *shared, uint32_t endpoint)
{
    dbguard_endpoint_t *e = &shared->endpoints[endpoint];
    dbguard_endpoint_t *bucket = bucket_of(shared, e->key);

    e->chain = bucket->head;
    bucket->head = endpoint;
}

static void chain_out(dbguard_shared_t *shared, uint32_t endpoint)
{
    uint32_t *at = &bucket_of(shared, shared->endpoints[endpoint].key)->head;

    while (*at != endpoint)
        at = &shared->endpoints[*at].chain;
    *at = shared->endpoints[endpoint].chain;
}

/* Everything of an unused entry but its place in the chains. */
static void reset(dbguard_shared_t *shared, uint32_t endpoint,
                  const char *name, uint32_t class)
{
    dbguard_endpoint_t *e = &shared->endpoints[endpoint];
    dbguard_demand_t *demand = &shared->demands[endpoint];
    uint32_t head = e->head;
    size_t length = strlen(name);

    memset(e, 0, sizeof(*e));
    memset(demand, 0, sizeof(*demand));
    e->head = head;
    e->chain = DBGUARD_NONE;
    e->class = class;
    e->hold = HOLD_UNKNOWN;
    e->bin = DBGUARD_HEAVIEST;
    e->ready = e->first = e->last = e->waiters = DBGUARD_NONE;
    if (length >= sizeof(e->name))
        length = sizeof(e->name) - 1;
    memcpy(e->name, name, length);
}

/* Its arrivals by second begin a new one. */
static void roll(dbguard_endpoint_t *e, int64_t second)
{
    if (second - e->second > RING)
        e->second = second - RING;
    while (e->second < second)
        e->rate[++e->second % RING] = 0;
}

/* Is a better to be kept than b? */
static int worth_more(const dbguard_endpoint_t *a, const dbguard_endpoint_t *b)
{
    if (a->samples != b->samples)
        return a->samples > b->samples;
    return a->seen > b->seen;
}

/* The least known of some that nobody is here for. */
static uint32_t candidate(dbguard_shared_t *shared, int64_t now)
{
    uint32_t worst = DBGUARD_NONE;
    int i;

    for (i = 0; i < SAMPLED; i++) {
        uint32_t at = shared->endpoints_hand;
        const dbguard_endpoint_t *e = &shared->endpoints[at];

        shared->endpoints_hand
            = at + 1 < DBGUARD_ENDPOINTS ? at + 1 : DBGUARD_FIXED;
        if (e->key == 0)
            return at;
        if (e->here == 0
            && (e->samples < DBGUARD_SAMPLES || now - e->seen > IN_USE)
            && (worst == DBGUARD_NONE
                || worth_more(&shared->endpoints[worst], e)))
            worst = at;
    }
    return worst;
}

/* Its totals stay, under another name. */
static void evict(dbguard_shared_t *shared, uint32_t endpoint)
{
    dbguard_endpoint_t *e = &shared->endpoints[endpoint];
    dbguard_endpoint_t *other = &shared->endpoints[DBGUARD_OTHER(e->class)];
    int64_t t;

    chain_out(shared, endpoint);
    other->arrived += e->arrived;
    other->refused += e->refused;
    other->released += e->released;
    other->hold_us += e->hold_us;
    roll(other, e->second);
    for (t = other->second - RING + 1; t <= e->second; t++)
        if (t > e->second - RING && t >= 0)
            other->rate[t % RING] += e->rate[t % RING];
    e->key = 0;
}

static uint32_t find(dbguard_shared_t *shared, uint64_t key, const char *name,
                     uint32_t class, int64_t now)
{
    uint32_t at = bucket_of(shared, key)->head;

    while (at != DBGUARD_NONE && shared->endpoints[at].key != key)
        at = shared->endpoints[at].chain;
    if (at != DBGUARD_NONE)
        return at;
    at = candidate(shared, now);
    if (at == DBGUARD_NONE)
        return DBGUARD_OTHER(class);
    if (shared->endpoints[at].key != 0)
        evict(shared, at);
    reset(shared, at, name, class);
    atomic_thread_fence(memory_order_release);
    shared->endpoints[at].key = key;
    chain_in(shared, at);
    return at;
}

static void count_arrival(dbguard_endpoint_t *e, int64_t now)
{
    e->arrived++;
    e->seen = now;
    roll(e, now / SECOND);
    /* A clock that was read before another request's. */
    e->rate[e->second % RING]++;
}

uint32_t dbguard_endpoint_arrive(dbguard_shared_t *shared, uint64_t key,
                                 const char *name, uint32_t class, int64_t now)
{
    uint32_t endpoint = find(shared, key, name, class, now);

    count_arrival(&shared->endpoints[endpoint], now);
    return endpoint;
}

uint32_t dbguard_endpoint_flow(const dbguard_shared_t *shared,
                               uint32_t endpoint)
{
    const dbguard_endpoint_t *e = &shared->endpoints[endpoint];

    return e->samples > 0 || endpoint < DBGUARD_FIXED ? endpoint
                                                      : DBGUARD_NEW(e->class);
}

int64_t dbguard_estimate(int64_t hold, uint32_t samples, uint32_t running,
                         double ages)
{
    double excess = ages - (double)running * (double)hold;
    double n = samples > running ? samples : running;

    return running > 0 && excess > 0 ? hold + (int64_t)(excess / n) : hold;
}

int64_t dbguard_endpoint_estimate(const dbguard_shared_t *shared,
                                  uint32_t endpoint, int64_t now)
{
    const dbguard_endpoint_t *e = &shared->endpoints[endpoint];
    uint32_t flow = dbguard_endpoint_flow(shared, endpoint);

    return dbguard_estimate(shared->endpoints[flow].hold, e->samples, e->held,
                            (double)e->held * (double)now - (double)e->granted);
}

uint32_t dbguard_endpoint_bin(const dbguard_shared_t *shared,
                              uint32_t endpoint, int64_t now)
{
    uint32_t flow = dbguard_endpoint_flow(shared, endpoint);

    if (flow < DBGUARD_CLASSES)
        return DBGUARD_HEAVIEST;
    return dbguard_bin_of(dbguard_endpoint_estimate(shared, endpoint, now));
}

/* One hold of hours is not what the next one is expected to be. */
static void move_mean(dbguard_endpoint_t *e, int64_t hold)
{
    if (e->samples > 0 && hold > 100 * e->hold + SECOND)
        hold = 100 * e->hold + SECOND;
    if (e->samples < DBGUARD_SAMPLES)
        e->samples++;
    e->hold += (hold - e->hold) / (int64_t)e->samples;
}

void dbguard_endpoint_learn(dbguard_shared_t *shared, uint32_t endpoint,
                            int64_t hold, int64_t now)
{
    dbguard_endpoint_t *e = &shared->endpoints[endpoint];
    uint32_t bin = dbguard_bin_of(hold);
    int i;

    if (e->samples == 0 && endpoint >= DBGUARD_FIXED) {
        dbguard_endpoint_t *new = &shared->endpoints[DBGUARD_NEW(e->class)];

        /* Places were promised at the distance of what is new: the line is
         * too long, perhaps. */
        if (e->cursor > now && hold < new->hold)
            e->cursor = now + (int64_t)((double)(e->cursor - now)
                                        * (double)hold / (double)new->hold);
        /* What is new is like what was new before it. */
        move_mean(new, hold);
    }
    move_mean(e, hold);
    e->released++;
    e->hold_us += (uint64_t)hold;
    if (e->histogram[bin] == UINT16_MAX)
        for (i = 0; i < DBGUARD_BINS; i++)
            e->histogram[i] /= 2;
    e->histogram[bin]++;
}

void dbguard_endpoint_rate(const dbguard_endpoint_t *e, int64_t now,
                           uint32_t *sum, uint32_t *peak)
{
    int64_t end = now / SECOND;
    int64_t t = end > DBGUARD_RATE_SECONDS ? end - DBGUARD_RATE_SECONDS : 0;

    *sum = *peak = 0;
    for (; t < end && t <= e->second; t++) {
        uint32_t n = e->rate[t % RING];

        if (t <= e->second - RING)
            continue;
        *sum += n;
        if (n > *peak)
            *peak = n;
    }
}

void dbguard_flows_create(dbguard_shared_t *shared)
{
    uint32_t i;

    for (i = 0; i < DBGUARD_ENDPOINTS; i++)
        reset(shared, i,
              i < DBGUARD_CLASSES ? "(new)"
              : i < DBGUARD_FIXED ? "(other)"
                                  : "",
              i % DBGUARD_CLASSES);
    shared->endpoints_hand = DBGUARD_FIXED;
}

void dbguard_flows_rebuild(dbguard_shared_t *shared)
{
    uint32_t i;

    for (i = 0; i < DBGUARD_ENDPOINTS; i++) {
        dbguard_endpoint_t *e = &shared->endpoints[i];

        e->head = e->chain = DBGUARD_NONE;
        e->here = e->held = e->waiting = e->fresh = 0;
        e->granted = 0;
        e->ready = e->first = e->last = e->waiters = DBGUARD_NONE;
    }
    for (i = DBGUARD_FIXED; i < DBGUARD_ENDPOINTS; i++)
        if (shared->endpoints[i].key != 0)
            chain_in(shared, i);
    if (shared->endpoints_hand < DBGUARD_FIXED
        || shared->endpoints_hand >= DBGUARD_ENDPOINTS)
        shared->endpoints_hand = DBGUARD_FIXED;
}
