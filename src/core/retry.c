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

static int64_t limited(const dbguard_shared_t *shared, int64_t after)
{
    after = most(after, shared->limits.retry_min);
    return least(after, shared->limits.retry_max);
}

/* Not after it, if that can be said. */
static int64_t whole(int64_t after)
{
    return after < 2 * SECOND ? 1 : after / SECOND;
}

/* The distances between two places. */
typedef struct step_t {
    int64_t place;  /* of those that come to the millisecond */
    int64_t second; /* of those that come by the second: such that no more than
                       find a token or a waiting place come at once */
} step_t;

/* Of an endpoint; or of one address with it, which may not have all of that.
 * Who is told too early comes once more, who is told too late leaves tokens
 * idle: what is not known yet counts as short. */
static step_t step_of(const dbguard_shared_t *shared, uint32_t endpoint,
                      const dbguard_client_t *address, int64_t now)
{
    int64_t hold = dbguard_endpoint_estimate(shared, endpoint, now);
    int64_t tokens = dbguard_reserve_own(shared, endpoint);
    step_t step;

    if (dbguard_endpoint_flow(shared, endpoint) < DBGUARD_CLASSES)
        hold = least(hold, dbguard_bin_end(0));
    else if (address != NULL && hold > DBGUARD_LONG)
        tokens = least(tokens, most(1, (int64_t)shared->limits.budget
                                           - shared->prefix.held
                                           + address->held));
    step.place = (hold + shared->limits.settle) * 10 / 9 / tokens;
    step.second = most(step.place, SECOND / (tokens + shared->limits.queue));
    return step;
}

/* The next places, for one that has none yet or whose is over. */
static void take(dbguard_shared_t *shared, uint32_t endpoint,
                 const dbguard_client_t *address, int64_t now, int64_t *place,
                 int64_t *second)
{
    dbguard_endpoint_t *e = &shared->endpoints[endpoint];
    step_t step;
    int64_t first = now + shared->limits.retry_min;
    int64_t last = now + shared->limits.retry_max;
    int promised = address != NULL && address->place > now;

    if (promised && address->promised == endpoint) {
        step = step_of(shared, endpoint, address, now);
        *place = least(address->place + step.place, last);
        *second = least(most(address->second, first) + step.second, last);
        return;
    }
    *place = least(most(e->cursor, first), last);
    *second = least(most(e->cohorts, first), last);
    if (!promised) {
        step = step_of(shared, endpoint, NULL, now);
        e->cursor = least(*place + step.place, last);
        e->cohorts = least(*second + step.second, last);
    }
}

static void remember(dbguard_client_t *client, uint32_t endpoint,
                     int64_t place, int64_t second, int64_t told)
{
    if (client != NULL) {
        client->place = place;
        client->second = second;
        client->told = told;
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
    int kept = s != NULL && s->place > now && s->promised == endpoint;
    int64_t place, second, told;

    if (kept) {
        place = s->place;
        second = s->second;
    }
    else
        take(shared, endpoint, a, now, &place, &second);
    promise->after = limited(shared, place - now);
    second = limited(shared, second - now);
    promise->seconds = whole(second);
    /* What was said counts, not where the line was. */
    place = now + promise->after;
    told = now + promise->seconds * SECOND;
    if (!kept)
        remember(a, endpoint, place, now + second, told);
    remember(s, endpoint, place, now + second, told);
}

void dbguard_retry_spread(dbguard_shared_t *shared, dbguard_promise_t *promise)
{
    promise->after = limited(shared, shared->limits.retry_min
                                         + any(shared, 10 * SECOND));
    promise->seconds = whole(promise->after);
}
