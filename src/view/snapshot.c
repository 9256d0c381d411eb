/* Copying a board that others are changing: see snapshot.h, and `seq` in
 * board.h. */

#include <stdlib.h>
#include <string.h>

#include "rates.h"
#include "snapshot.h"

#define SECOND 1000000
#define MIN(a, b) ((a) < (b) ? (a) : (b))

/* No time is longer, whatever a damaged board says: 31 years. */
#define EVER (INT64_C(1000000000) * SECOND)

/* A writer is done within a microsecond or so. When it was stopped or killed
 * in the middle there is no point in trying for long. */
#define TRIES 1000

size_t dbguard_snapshot_size(const dbguard_shared_t *shared)
{
    return sizeof(dbguard_snapshot_t)
           + shared->nslots * sizeof(dbguard_holder_t);
}

static void copy_classes(dbguard_snapshot_t *to, const dbguard_shared_t *from)
{
    dbguard_board_t board = {.shared = (dbguard_shared_t *)from};
    dbguard_limit_t limit;
    uint32_t i;

    dbguard_reserve_look(&board, &limit);
    to->kept_classes = MIN(limit.missing, limit.free);
    to->kept_lighter = MIN(limit.reserve[DBGUARD_HEAVIEST],
                           limit.free - to->kept_classes);
    for (i = 0; i < DBGUARD_CLASSES; i++) {
        to->classes[i].held = from->class_held[i];
        to->classes[i].min = from->class_min[i];
        to->classes[i].max = from->class_max[i];
    }
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
    copy_classes(to, from);
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

double dbguard_snapshot_lived(const dbguard_snapshot_t *s, uint32_t seconds)
{
    int64_t lived = s->now / SECOND - (s->now - s->uptime) / SECOND;

    if (lived >= (int64_t)seconds)
        return seconds;
    return lived > 1 ? (double)lived : 1;
}

/* --- endpoints ------------------------------------------------------------ */

/* Copy an entry that others change. The table as a whole is too large to be
 * copied between two of them: numbers may be of two instants, but are all of
 * the same endpoint. Returns 0 when it has none. */
static int copy_entry(dbguard_endpoint_t *to, const dbguard_endpoint_t *from,
                      int fixed)
{
    int i;

    for (i = 0; i < 2; i++) {
        uint64_t key = *(const volatile uint64_t *)&from->key;

        atomic_thread_fence(memory_order_acquire);
        *to = *from;
        atomic_thread_fence(memory_order_acquire);
        to->name[DBGUARD_ENDPOINT_MAX - 1] = '\0';
        if (to->class >= DBGUARD_CLASSES)
            return 0;
        if (fixed)
            return 1;
        if (key != 0 && key == *(const volatile uint64_t *)&from->key)
            return 1;
    }
    return 0;
}

static void fill(dbguard_row_t *row, const dbguard_endpoint_t *e)
{
    row->class = e->class;
    row->samples = e->samples;
    row->hold = row->estimate = e->hold < 0 ? 0 : MIN(e->hold, EVER);
    memcpy(row->histogram, e->histogram, sizeof(row->histogram));
    memcpy(row->name, e->name, sizeof(row->name));
}

static void add_totals(dbguard_row_t *row, const dbguard_endpoint_t *e)
{
    row->arrived += e->arrived;
    row->refused += e->refused;
    row->released += e->released;
    row->mean += (int64_t)e->hold_us; /* divided later */
}

/* Add the arrivals of one to another's, second by second. */
static void add_arrivals(dbguard_endpoint_t *to, const dbguard_endpoint_t *e,
                         int64_t now)
{
    int64_t end = now / SECOND, t;

    for (t = end - DBGUARD_RECENT; t < end; t++)
        if (t > 0 && t <= e->second && t > e->second - DBGUARD_RATE_RING)
            to->rate[t % DBGUARD_RATE_RING] += e->rate[t % DBGUARD_RATE_RING];
}

/* While the rows are made: by their places in the table, with what becomes of
 * each, and the arrivals of those that are counted together. */
typedef struct table_t {
    uint32_t row[DBGUARD_ENDPOINTS]; /* whose row it is in */
    dbguard_endpoint_t new[DBGUARD_CLASSES];
} table_t;

static void copy_rates(dbguard_snapshot_t *to, dbguard_row_t *row,
                       const dbguard_endpoint_t *e)
{
    dbguard_endpoint_rate(e, to->now, &row->came, &row->peak);
    row->rate = row->came / dbguard_snapshot_lived(to, DBGUARD_RECENT);
}

static void copy_fixed(dbguard_snapshot_t *to, const dbguard_shared_t *from,
                       table_t *table)
{
    uint32_t i;

    for (i = 0; i < DBGUARD_FIXED; i++) {
        dbguard_row_t *row = &to->rows[i];
        dbguard_endpoint_t e;

        table->row[i] = i;
        row->known = i < DBGUARD_CLASSES ? DBGUARD_ENDPOINT_NEW
                                         : DBGUARD_ENDPOINT_OTHER;
        if (!copy_entry(&e, &from->endpoints[i], 1))
            e = (dbguard_endpoint_t){.class = i % DBGUARD_CLASSES};
        fill(row, &e);
        row->class = i % DBGUARD_CLASSES;
        if (i < DBGUARD_CLASSES)
            continue;
        add_totals(row, &e);
        copy_rates(to, row, &e);
    }
}

static void copy_named(dbguard_snapshot_t *to, const dbguard_shared_t *from,
                       table_t *table)
{
    uint32_t i;

    for (i = DBGUARD_FIXED; i < DBGUARD_ENDPOINTS; i++) {
        dbguard_row_t *row = &to->rows[i];
        dbguard_endpoint_t e;

        row->known = DBGUARD_ENDPOINT_NAMED;
        table->row[i] = DBGUARD_NONE;
        if (!copy_entry(&e, &from->endpoints[i], 0))
            continue;
        table->row[i] = e.samples > 0 ? i : DBGUARD_NEW(e.class);
        if (e.samples > 0) {
            fill(row, &e);
            copy_rates(to, row, &e);
        }
        else {
            row = &to->rows[DBGUARD_NEW(e.class)];
            row->endpoints++;
            add_arrivals(&table->new[e.class], &e, to->now);
        }
        add_totals(row, &e);
    }
    for (i = 0; i < DBGUARD_CLASSES; i++) {
        table->new[i].second = to->now / SECOND;
        copy_rates(to, &to->rows[i], &table->new[i]);
    }
}

/* Who holds and who waits is counted in the rows as it is listed. */
static void count_holders(dbguard_snapshot_t *to, const table_t *table)
{
    uint32_t i;

    for (i = 0; i < to->nholders; i++) {
        const dbguard_holder_t *h = &to->holders[i];
        uint32_t at = h->endpoint < DBGUARD_ENDPOINTS
                          ? table->row[h->endpoint]
                          : DBGUARD_NONE;
        dbguard_row_t *row
            = &to->rows[at != DBGUARD_NONE ? at : DBGUARD_OTHER(h->class)];

        if (h->state == DBGUARD_HELD) {
            row->held++;
            row->ages += (double)h->age;
        }
        else {
            row->waiting++;
            to->classes[h->class].waiting++;
        }
    }
}

/* Of what has been copied. */
static void estimate(dbguard_row_t *row)
{
    row->estimate = dbguard_estimate(row->hold, row->samples, row->held,
                                     row->ages);
    if (row->estimate > EVER)
        row->estimate = EVER;
    row->needed = dbguard_little_needed(row->rate, (double)row->estimate);
    if (row->released > 0)
        row->mean /= (int64_t)row->released;
}

static int has_anything(const dbguard_row_t *row, uint32_t i,
                        const table_t *table)
{
    if (row->known == DBGUARD_ENDPOINT_NAMED)
        return table->row[i] == i;
    return row->endpoints > 0 || row->arrived > 0 || row->held > 0
           || row->waiting > 0;
}

static double weight(const dbguard_row_t *row)
{
    return row->needed > row->held ? row->needed : row->held;
}

/* What is held counts as much as what is needed by the mean of a minute: it may
 * have come a second ago, or an hour. */
static int more_important(const void *a, const void *b)
{
    const dbguard_row_t *x = a, *y = b;
    double wx = weight(x), wy = weight(y);

    if (wx < wy || wx > wy)
        return wx < wy ? 1 : -1;
    if (x->waiting != y->waiting)
        return x->waiting < y->waiting ? 1 : -1;
    if (x->arrived != y->arrived)
        return x->arrived < y->arrived ? 1 : -1;
    return strcmp(x->name, y->name);
}

static void arrange_rows(dbguard_snapshot_t *to, const table_t *table)
{
    uint32_t i;

    for (i = 0; i < DBGUARD_ENDPOINTS; i++) {
        dbguard_row_t *row = &to->rows[i];

        if (!has_anything(row, i, table))
            continue;
        estimate(row);
        if (to->nrows != i)
            to->rows[to->nrows] = *row;
        to->nrows++;
    }
    qsort(to->rows, to->nrows, sizeof(to->rows[0]), more_important);
}

/* --- who holds and who waits ---------------------------------------------- */

/* Who holds comes before who waits, however long: it is what is looked for. */
static int first_shown(const void *a, const void *b)
{
    const dbguard_holder_t *x = a, *y = b;

    if (x->state != y->state)
        return x->state == DBGUARD_HELD ? -1 : 1;
    return (x->age < y->age) - (x->age > y->age);
}

static int by_endpoint(const void *a, const void *b)
{
    const dbguard_holder_t *x = a, *y = b;
    int order = strcmp(x->visitor.endpoint, y->visitor.endpoint);

    return order != 0 ? order : first_shown(a, b);
}

static int by_client(const void *a, const void *b)
{
    const dbguard_holder_t *x = a, *y = b;
    int order = strcmp(x->visitor.client, y->visitor.client);

    return order != 0 ? order : first_shown(a, b);
}

static int is_larger(const dbguard_group_t *a, const dbguard_group_t *b)
{
    if (a->held != b->held)
        return a->held > b->held;
    if (a->waiting != b->waiting)
        return a->waiting > b->waiting;
    return a->oldest > b->oldest;
}

/* Among those that are listed, in its place, if it is large enough. */
static void list_group(dbguard_groups_t *groups, const dbguard_group_t *group)
{
    uint32_t at = groups->nlisted < DBGUARD_GROUPS ? groups->nlisted++
                                                   : DBGUARD_GROUPS;

    groups->number++;
    groups->held += group->held;
    groups->waiting += group->waiting;
    for (; at > 0 && is_larger(group, &groups->listed[at - 1]); at--)
        if (at < DBGUARD_GROUPS)
            groups->listed[at] = groups->listed[at - 1];
    if (at < DBGUARD_GROUPS)
        groups->listed[at] = *group;
}

static const char *group_of(const dbguard_holder_t *h, int clients)
{
    return clients ? h->visitor.client : h->visitor.endpoint;
}

/* Runs of equals become groups; of each, the first one is the oldest. */
static void group(dbguard_snapshot_t *to, dbguard_groups_t *groups, int clients)
{
    uint32_t i = 0;

    qsort(to->holders, to->nholders, sizeof(to->holders[0]),
          clients ? by_client : by_endpoint);
    while (i < to->nholders) {
        const char *name = group_of(&to->holders[i], clients);
        dbguard_group_t g = {.oldest = to->holders[i].age};

        memcpy(g.name, name, strlen(name) + 1);
        for (; i < to->nholders
               && strcmp(group_of(&to->holders[i], clients), name) == 0; i++) {
            g.held += to->holders[i].state == DBGUARD_HELD;
            g.waiting += to->holders[i].state != DBGUARD_HELD;
        }
        list_group(groups, &g);
    }
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
        h->age = h->age < 0 ? 0 : MIN(h->age, EVER);
        h->endpoint = s->endpoint;
        h->class = s->class < DBGUARD_CLASSES ? s->class : 0;
        h->visitor = s->visitor;
        h->visitor.client[DBGUARD_CLIENT_MAX - 1] = '\0';
        h->visitor.endpoint[DBGUARD_ENDPOINT_MAX - 1] = '\0';
        to->nholders++;
    }
}

static void copy_tables(dbguard_snapshot_t *to, const dbguard_shared_t *from)
{
    table_t table;

    memset(&table, 0, sizeof(table));
    copy_fixed(to, from, &table);
    copy_named(to, from, &table);
    copy_holders(to, from);
    count_holders(to, &table);
    arrange_rows(to, &table);
    group(to, &to->clients, 1);
    group(to, &to->endpoints, 0);
    qsort(to->holders, to->nholders, sizeof(to->holders[0]), first_shown);
}

static void name_classes(dbguard_snapshot_t *to)
{
    uint32_t i;

    to->nclasses = 1;
    for (i = 0; i < DBGUARD_CLASSES; i++) {
        to->limits.classes[i].name[DBGUARD_CLASS_MAX - 1] = '\0';
        if (i > 0 && to->limits.classes[i].name[0] != '\0')
            to->nclasses = i + 1;
    }
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
    name_classes(snapshot);
    copy_tables(snapshot, shared);
}
