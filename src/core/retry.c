/* Places in a line: see retry.h. */

#include "board.h"
#include "retry.h"

#define SECOND INT64_C(1000000)

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Below n. (xorshift64*) */
static int64_t any(dbguard_shared_t *shared, int64_t n)
{
    shared->random ^= shared->random >> 12;
    shared->random ^= shared->random << 25;
    shared->random ^= shared->random >> 27;
    return (int64_t)((shared->random * 0x2545F4914F6CDD1DULL >> 32)
                     % (uint64_t)n);
}

static void say(const dbguard_shared_t *shared, int64_t after,
                dbguard_promise_t *promise)
{
    after = most(after, shared->limits.retry_min);
    after = least(after, shared->limits.retry_max);
    promise->after = after;
    promise->seconds = (after + SECOND - 1) / SECOND;
}

/* Time from one place to the next. */
static int64_t distance(const dbguard_shared_t *shared, uint32_t endpoint,
                        int64_t now)
{
    uint32_t flow = dbguard_endpoint_flow(shared, endpoint);
    const dbguard_endpoint_t *f = &shared->endpoints[flow];
    int64_t hold = dbguard_endpoint_estimate(shared, endpoint, now)
                   + shared->limits.settle;

    return hold * 10 / 9 / dbguard_reserve_within(shared, f->class, f->bin);
}

/* The next place, for one that has none yet or whose is over. */
static int64_t place(dbguard_shared_t *shared, uint32_t endpoint,
                     const dbguard_client_t *address, int64_t now)
{
    dbguard_endpoint_t *e = &shared->endpoints[endpoint];
    int64_t step = distance(shared, endpoint, now);
    int64_t first = now + shared->limits.retry_min;
    int64_t last = now + shared->limits.retry_max;
    int64_t at;

    if (address != NULL && address->place > now)
        return least(address->place + step, last);
    at = least(most(e->cursor, first), last);
    e->cursor = at + step;
    return at;
}

static void remember(dbguard_client_t *client, int64_t at, uint32_t endpoint)
{
    if (client != NULL) {
        client->place = at;
        client->promised = endpoint;
    }
}

void dbguard_retry_promise(dbguard_shared_t *shared, uint32_t endpoint,
                           uint32_t address, uint32_t session, int64_t now,
                           dbguard_promise_t *promise)
{
    dbguard_client_t *clients = dbguard_clients(shared);
    dbguard_client_t *a = address == DBGUARD_NONE ? NULL : &clients[address];
    dbguard_client_t *s = session == DBGUARD_NONE ? NULL : &clients[session];
    int64_t at;

    if (s != NULL && s->place > now && s->promised == endpoint)
        at = s->place;
    else {
        at = place(shared, endpoint, a, now);
        remember(a, at, endpoint);
        remember(s, at, endpoint);
    }
    say(shared, at - now, promise);
}

void dbguard_retry_spread(dbguard_shared_t *shared, dbguard_promise_t *promise)
{
    say(shared, shared->limits.retry_min + any(shared, 10 * SECOND), promise);
}
