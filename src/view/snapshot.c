/* Copying a board that others are changing: see snapshot.h, and `seq` in
 * board.h. */

#include <stdlib.h>
#include <string.h>

#include "snapshot.h"

#define SECOND 1000000

/* A writer is done within a microsecond or so. When it was stopped or killed
 * in the middle there is no point in trying for long. */
#define TRIES 1000

size_t dbguard_snapshot_size(const dbguard_shared_t *shared)
{
    return sizeof(dbguard_snapshot_t)
           + shared->nslots * sizeof(dbguard_holder_t);
}

static void copy_board(dbguard_snapshot_t *to, const dbguard_shared_t *from)
{
    to->limits = from->limits;
    to->held = from->prefix.held;
    to->waiting = from->prefix.waiting;
    to->settling = from->settling;
    to->held_peak = from->held_peak;
    to->hold = from->hold;
    to->counters = from->counters;
    to->database = from->database;
}

static int copy_steady(dbguard_snapshot_t *to, const dbguard_shared_t *from)
{
    int i;

    for (i = 0; i < TRIES; i++) {
        uint32_t seq = atomic_load_explicit(&from->seq, memory_order_acquire);

        copy_board(to, from);
        atomic_thread_fence(memory_order_acquire);
        if (seq % 2 == 0
            && seq == atomic_load_explicit(&from->seq, memory_order_relaxed))
            return 1;
    }
    return 0;
}

static void add(dbguard_span_t *span, const dbguard_second_t *s)
{
    uint32_t came = s->admitted + s->refused + s->aborted;

    span->admitted += s->admitted;
    span->refused += s->refused;
    span->aborted += s->aborted;
    span->released += s->released;
    span->hold_us += s->hold_us;
    if (s->held_max > span->held_max)
        span->held_max = s->held_max;
    if (s->waiting_max > span->waiting_max)
        span->waiting_max = s->waiting_max;
    if (came > span->came_max)
        span->came_max = came;
}

/* What was held before the second `first`: nothing, as far as is known, unless
 * not one event has been recorded since. */
static uint32_t last_level(const dbguard_snapshot_t *to,
                           const dbguard_shared_t *from, int64_t first)
{
    uint32_t i;

    for (i = 0; i < DBGUARD_SECONDS; i++)
        if (from->seconds[i].second >= first)
            return 0;
    return to->held;
}

/* The last hour, oldest second first. A second in which nothing happened has
 * no entry of its own: what was held before it was held through it. */
static void copy_seconds(dbguard_snapshot_t *to, const dbguard_shared_t *from)
{
    int64_t last = to->now / SECOND - 1;
    int64_t first = last - DBGUARD_SECONDS + 2;
    uint32_t level = last_level(to, from, first);
    int64_t t;

    to->minute.seconds = DBGUARD_RECENT;
    to->hour.seconds = DBGUARD_SECONDS - 1;
    for (t = first < 1 ? 1 : first; t <= last; t++) {
        dbguard_second_t s = from->seconds[t % DBGUARD_SECONDS];
        int64_t ago = last - t;

        if (s.second != t) {
            memset(&s, 0, sizeof(s));
            s.second = t;
            s.held_max = s.held_last = level;
        }
        level = s.held_last;
        add(&to->hour, &s);
        if (ago < DBGUARD_RECENT) {
            add(&to->minute, &s);
            to->recent[DBGUARD_RECENT - 1 - ago] = s;
        }
    }
}

/* Who holds comes before who waits, however long: it is what is looked for. */
static int first_shown(const void *a, const void *b)
{
    const dbguard_holder_t *x = a, *y = b;

    if (x->state != y->state)
        return x->state == DBGUARD_HELD ? -1 : 1;
    return (x->age < y->age) - (x->age > y->age);
}

static void copy_holders(dbguard_snapshot_t *to, const dbguard_shared_t *from)
{
    uint32_t i;

    for (i = 0; i < from->nslots; i++) {
        const dbguard_slot_t *s = &from->slots[i];
        dbguard_holder_t *h = &to->holders[to->nholders];
        uint32_t state = s->state;

        if (state != DBGUARD_WAITING && state != DBGUARD_HELD)
            continue;
        h->state = state;
        h->age = to->now - (state == DBGUARD_HELD ? s->granted : s->since);
        if (h->age < 0)
            h->age = 0;
        h->visitor = s->visitor;
        h->visitor.client[DBGUARD_CLIENT_MAX - 1] = '\0';
        h->visitor.endpoint[DBGUARD_ENDPOINT_MAX - 1] = '\0';
        to->nholders++;
    }
    qsort(to->holders, to->nholders, sizeof(to->holders[0]), first_shown);
}

void dbguard_snapshot_take(dbguard_snapshot_t *snapshot,
                           const dbguard_shared_t *shared, int64_t now)
{
    memset(snapshot, 0, sizeof(*snapshot));
    snapshot->now = now;
    snapshot->uptime = now - shared->created;
    snapshot->created_wall = shared->created_wall;
    snapshot->parent = shared->prefix.pid;
    snapshot->generation = shared->generation;
    snapshot->nslots = shared->nslots;
    snapshot->elder = shared->elder;
    snapshot->engine = shared->engine;
    snapshot->nsettings = shared->nsettings < DBGUARD_SETTINGS
                              ? shared->nsettings
                              : DBGUARD_SETTINGS;
    snapshot->facts = shared->facts;
    memcpy(snapshot->settings, shared->settings, sizeof(snapshot->settings));
    snapshot->steady = copy_steady(snapshot, shared);
    snapshot->stale = snapshot->database.attempted != 0
                      && now - snapshot->database.attempted > DBGUARD_STALE;
    copy_seconds(snapshot, shared);
    copy_holders(snapshot, shared);
}
