/* The simulation: see scene.h. Events in order of time; the clients; the
 * server, whose workers know only what the core tells them. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admission.h"
#include "settle.h"
#include "scene.h"

#define START (INT64_C(1000) * SCENE_SECOND) /* the board's clock at time 0 */
#define LOOK_EVERY (SCENE_SECOND / 4)
#define HANGS_UP (15 * SCENE_SECOND)
#define PROXY_PATIENCE (8 * SCENE_SECOND)
#define DRAIN (120 * SCENE_SECOND)
#define CROWD 20000 /* more than ever wait in front of a proxy */

typedef enum kind_t { SPAWN, COME, LOOK, END, CHANGE } kind_t;

typedef struct event_t {
    int64_t time;
    uint64_t order; /* among those of the same time */
    uint64_t stamp; /* LOOK: of the wait that it belongs to */
    kind_t kind;
    uint32_t who; /* wish; stream; change */
} event_t;

/* Somebody's wish, and the request that it is at present. */
typedef struct wish_t {
    uint32_t stream, client;
    uint64_t number; /* of its stream */
    double normal, uniform; /* what its hold is drawn with */
    int64_t since;   /* this request came */
    int64_t told;    /* when it was told to come; 0: never */
    uint32_t tries;
    int returns;
    int on_time;     /* came when told */
    int32_t pid;     /* its worker's */
    uint64_t stamp;
    int woken;
    uint32_t place;  /* among those that wait */
    int64_t start;
    dbguard_ticket_t ticket;
} wish_t;

typedef struct model_t {
    const scene_t *scene;
    scene_policy_t policy;
    scene_stream_t streams[SCENE_STREAMS];
    uint64_t random[SCENE_STREAMS];
    uint64_t numbers[SCENE_STREAMS];
    uint32_t rates[SCENE_STREAMS]; /* of the SPAWN in force */
    scene_result_t *result;
    dbguard_board_t board;
    dbguard_limits_t limits;
    int64_t now;
    event_t *heap;
    size_t nevents, room;
    uint64_t order, stamp;
    wish_t *wishes;
    uint32_t nwishes, wishes_room;
    uint32_t *free_wishes;
    uint32_t nfree;
    uint32_t *backlog; /* a ring of wishes */
    uint32_t backlog_first, backlog_n, backlog_room;
    int32_t *pids; /* of idle workers */
    uint32_t nidle, workers;
    uint32_t *waiting;
    uint32_t nwaiting, waiting_room;
    double busy, idle, contended, given; /* token-microseconds */
} model_t;

static void *grown(void *memory, size_t n, size_t size)
{
    void *more = realloc(memory, n * size);

    if (more == NULL)
        abort();
    return more;
}

/* --- chance -------------------------------------------------------------- */

static uint64_t mixed(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ULL;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ x >> 27) * 0x94D049BB133111EBULL;
    return x ^ x >> 31;
}

static double chance(uint64_t *state)
{
    *state += 0x9E3779B97F4A7C15ULL;
    return ((double)(mixed(*state) >> 11) + 0.5) / 9007199254740992.0;
}

static double exponential(uint64_t *state, double rate)
{
    return -log(chance(state)) / rate;
}

static double normal(uint64_t *state)
{
    double r = sqrt(-2 * log(chance(state)));

    return r * cos(6.283185307179586 * chance(state));
}

static int64_t hold_of(const scene_hold_t *hold, const wish_t *w)
{
    double uniform = w->uniform, us;
    int i;

    if (hold->parts == 0) {
        us = hold->median * exp(hold->sigma * w->normal) * hold->factor;
        return (int64_t)(us < hold->most ? us : hold->most);
    }
    for (i = 0; i < hold->parts - 1 && uniform >= hold->share[i]; i++)
        uniform -= hold->share[i];
    return (int64_t)(hold->hold[i] * hold->factor);
}

/* --- events -------------------------------------------------------------- */

static int sooner(const event_t *a, const event_t *b)
{
    if (a->time != b->time)
        return a->time < b->time;
    return a->order < b->order;
}

static void later(model_t *m, int64_t time, kind_t kind, uint32_t who,
                  uint64_t stamp)
{
    event_t event = {time, m->order++, stamp, kind, who};
    size_t i = m->nevents++;

    if (m->nevents > m->room) {
        m->room = 2 * m->room + 1024;
        m->heap = grown(m->heap, m->room, sizeof(*m->heap));
    }
    while (i > 0 && sooner(&event, &m->heap[(i - 1) / 2])) {
        m->heap[i] = m->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    m->heap[i] = event;
}

static event_t next_event(model_t *m)
{
    event_t first = m->heap[0], last = m->heap[--m->nevents];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < m->nevents) {
        if (child + 1 < m->nevents
            && sooner(&m->heap[child + 1], &m->heap[child]))
            child++;
        if (!sooner(&m->heap[child], &last))
            break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return first;
}

/* --- clients ------------------------------------------------------------- */

static scene_figures_t *figures(model_t *m, uint32_t wish)
{
    return &m->result->streams[m->wishes[wish].stream];
}

/* A wish of stream s, that comes at `time`. */
static void wish(model_t *m, uint32_t s, uint32_t client, int64_t time)
{
    const scene_stream_t *stream = &m->streams[s];
    uint32_t at;
    wish_t *w;

    if (m->nfree > 0)
        at = m->free_wishes[--m->nfree];
    else {
        at = m->nwishes++;
        if (m->nwishes > m->wishes_room) {
            m->wishes_room = 2 * m->wishes_room + 256;
            m->wishes = grown(m->wishes, m->wishes_room, sizeof(wish_t));
            m->free_wishes = grown(m->free_wishes, m->wishes_room,
                                   sizeof(uint32_t));
        }
    }
    w = &m->wishes[at];
    memset(w, 0, sizeof(*w));
    w->stream = s;
    w->number = m->numbers[s]++;
    w->client = client != UINT32_MAX ? client : (uint32_t)w->number;
    w->normal = stream->hold.parts == 0 ? normal(&m->random[s]) : 0;
    w->uniform = stream->hold.parts > 1 ? chance(&m->random[s]) : 0;
    w->returns = stream->returns != SCENE_LEAVES
                 && chance(&m->random[s]) < stream->share;
    w->tries = stream->tries;
    m->result->streams[s].wishes++;
    if (m->result->streams[s].first < 0)
        m->result->streams[s].first = time;
    later(m, time, COME, at, 0);
}

static void next_of_rate(model_t *m, uint32_t s)
{
    const scene_stream_t *stream = &m->streams[s];
    int64_t gap;

    if (stream->rate <= 0)
        return;
    gap = (int64_t)(exponential(&m->random[s], stream->rate) * 1e6);
    if (m->now + gap < stream->until)
        later(m, m->now + gap, SPAWN, s, m->rates[s]);
}

static void begin_stream(model_t *m, uint32_t s)
{
    const scene_stream_t *stream = &m->streams[s];
    uint32_t i, k;

    m->now = stream->from;
    if (stream->rate > 0)
        next_of_rate(m, s);
    else
        for (i = 0; i < stream->clients; i++)
            for (k = 0; k < (stream->loop > 0 ? stream->loop : 1); k++)
                wish(m, s, i,
                     stream->from
                         + (int64_t)(chance(&m->random[s])
                                     * (double)stream->within));
    m->now = 0;
}

static void spawn(model_t *m, const event_t *event)
{
    uint32_t s = event->who;
    const scene_stream_t *stream = &m->streams[s];

    if (event->stamp != m->rates[s])
        return;
    wish(m, s,
         stream->clients > 0
             ? (uint32_t)(chance(&m->random[s]) * stream->clients)
             : UINT32_MAX,
         m->now);
    next_of_rate(m, s);
}

/* The wish is over; in a loop there is another. */
static void forget(model_t *m, uint32_t at)
{
    uint32_t s = m->wishes[at].stream, client = m->wishes[at].client;
    const scene_stream_t *stream = &m->streams[s];

    m->free_wishes[m->nfree++] = at;
    if (stream->loop > 0 && m->now + stream->think < stream->until)
        wish(m, s, client, m->now + stream->think);
}

static void served(model_t *m, uint32_t at)
{
    scene_figures_t *f = figures(m, at);
    wish_t *w = &m->wishes[at];

    if (m->now - w->since > HANGS_UP) {
        f->gave_up++;
        forget(m, at);
        return;
    }
    if (f->nlatency == f->room) {
        f->room = 2 * f->room + 256;
        f->latency = grown(f->latency, f->room, sizeof(int64_t));
    }
    f->latency[f->nlatency++] = m->now - w->since;
    f->served++;
    f->fulfilled++;
    f->kept += w->on_time != 0;
    f->last = m->now;
    forget(m, at);
}

static void refused(model_t *m, uint32_t at, const dbguard_decision_t *d)
{
    wish_t *w = &m->wishes[at];
    const scene_stream_t *stream = &m->streams[w->stream];
    int64_t time = m->now + d->retry.after;
    int64_t told = time;

    figures(m, at)->refused[d->reason]++;
    if (m->now - w->since > HANGS_UP || !w->returns
        || (stream->tries > 0 && w->tries == 0)) {
        forget(m, at);
        return;
    }
    w->tries--;
    if (stream->returns == SCENE_SECONDS)
        time = told = m->now + d->retry.seconds * SCENE_SECOND;
    else if (stream->returns == SCENE_ANYWAY)
        time = m->now + stream->after;
    w->told = told;
    later(m, time, COME, at, 0);
}

/* --- the server ---------------------------------------------------------- */

static void visit(const model_t *m, const wish_t *w,
                  dbguard_visitor_t *visitor)
{
    const scene_stream_t *stream = &m->streams[w->stream];
    const char *from = stream->address[0] != '\0' ? stream->address
                                                  : stream->name;
    const char *hash = strchr(stream->to, '#');
    uint64_t name = 0, address, session = w->client;

    memset(visitor, 0, sizeof(*visitor));
    visitor->pid = w->pid;
    for (; *from != '\0'; from++)
        name = mixed(name + (unsigned char)*from);
    address = stream->addresses > 0 ? w->client % stream->addresses
                                    : w->client;
    visitor->address = mixed(name ^ mixed(address)) | 1;
    if (stream->session == SESSION_NEW)
        session = w->number;
    if (stream->session != SESSION_NONE)
        visitor->session = mixed(mixed(w->stream + 1) ^ mixed(~session)) | 1;
    if (hash == NULL)
        strcpy(visitor->endpoint, stream->to);
    else
        snprintf(visitor->endpoint, sizeof(visitor->endpoint), "%.*s%llu%s",
                 (int)(hash - stream->to), stream->to,
                 (unsigned long long)w->number, hash + 1);
}

static int64_t clock_of(const model_t *m)
{
    return START + m->now;
}

static void release_worker(model_t *m, uint32_t at)
{
    m->pids[m->nidle++] = m->wishes[at].pid;
}

/* It waits, and looks again at the latest then. */
static void look_later(model_t *m, uint32_t at, const dbguard_decision_t *d)
{
    int64_t time = m->now + LOOK_EVERY;

    if (d->deadline - START < time)
        time = d->deadline - START;
    m->wishes[at].stamp = ++m->stamp;
    later(m, time > m->now ? time : m->now + 1, LOOK, at, m->stamp);
}

static void begin_waiting(model_t *m, uint32_t at)
{
    if (m->nwaiting == m->waiting_room) {
        m->waiting_room = 2 * m->waiting_room + 64;
        m->waiting = grown(m->waiting, m->waiting_room, sizeof(uint32_t));
    }
    m->wishes[at].place = m->nwaiting;
    m->waiting[m->nwaiting++] = at;
}

static void end_waiting(model_t *m, uint32_t at)
{
    uint32_t place = m->wishes[at].place;

    m->waiting[place] = m->waiting[--m->nwaiting];
    m->wishes[m->waiting[place]].place = place;
}

static void admitted(model_t *m, uint32_t at, const dbguard_decision_t *d)
{
    wish_t *w = &m->wishes[at];

    w->start = d->start - START;
    if (w->start < m->now)
        w->start = m->now;
    w->ticket = d->ticket;
    if (m->board.shared->prefix.held > m->board.shared->limits.budget)
        m->result->overdrafts++;
    later(m, w->start + hold_of(&m->streams[w->stream].hold, w), END, at, 0);
}

static void leave(model_t *m, uint32_t at)
{
    int64_t held;

    dbguard_admission_leave(&m->board, m->wishes[at].ticket, clock_of(m),
                            &held);
}

static void enter(model_t *m, uint32_t at)
{
    wish_t *w = &m->wishes[at];
    dbguard_visitor_t visitor;
    dbguard_decision_t d;

    w->pid = m->pids[--m->nidle];
    if (m->streams[w->stream].unguarded) {
        later(m, m->now + hold_of(&m->streams[w->stream].hold, w), END, at,
              0);
        return;
    }
    visit(m, w, &visitor);
    dbguard_admission_enter(&m->board, &visitor, clock_of(m), &d);
    switch (d.outcome) {
    case DBGUARD_ADMITTED:
        admitted(m, at, &d);
        break;
    case DBGUARD_WAIT:
        w->ticket = d.ticket;
        begin_waiting(m, at);
        look_later(m, at, &d);
        break;
    case DBGUARD_REFUSED:
        release_worker(m, at);
        refused(m, at, &d);
        break;
    }
}

static void look(model_t *m, const event_t *event)
{
    uint32_t at = event->who;
    wish_t *w = &m->wishes[at];
    dbguard_decision_t d;

    if (event->stamp != w->stamp)
        return;
    m->result->lost_wakes
        += !w->woken
           && m->board.shared->slots[w->ticket.slot].state != DBGUARD_WAITING;
    w->woken = 0;
    dbguard_admission_poll(&m->board, w->ticket, clock_of(m), &d);
    if (d.outcome == DBGUARD_WAIT && m->now - w->since > HANGS_UP) {
        leave(m, at);
        end_waiting(m, at);
        release_worker(m, at);
        figures(m, at)->gave_up++;
        forget(m, at);
    }
    else if (d.outcome == DBGUARD_WAIT)
        look_later(m, at, &d);
    else {
        end_waiting(m, at);
        w->stamp = 0;
        if (d.outcome == DBGUARD_ADMITTED)
            admitted(m, at, &d);
        else {
            release_worker(m, at);
            refused(m, at, &d);
        }
    }
}

static void end(model_t *m, uint32_t at)
{
    wish_t *w = &m->wishes[at];
    int64_t until = m->now < m->scene->time ? m->now : m->scene->time;

    if (!m->streams[w->stream].unguarded) {
        if (until > w->start)
            m->busy += (double)(until - w->start);
        leave(m, at);
    }
    release_worker(m, at);
    served(m, at);
}

static void come(model_t *m, uint32_t at)
{
    wish_t *w = &m->wishes[at];

    w->since = m->now;
    w->on_time = w->told > 0 && m->now >= w->told;
    figures(m, at)->promised += w->on_time != 0;
    figures(m, at)->requests++;
    if (m->backlog_n == m->backlog_room) {
        uint32_t room = 2 * m->backlog_room + 64, i;
        uint32_t *more = grown(NULL, room, sizeof(uint32_t));

        for (i = 0; i < m->backlog_n; i++)
            more[i] = m->backlog[(m->backlog_first + i) % m->backlog_room];
        free(m->backlog);
        m->backlog = more;
        m->backlog_first = 0;
        m->backlog_room = room;
    }
    m->backlog[(m->backlog_first + m->backlog_n++) % m->backlog_room] = at;
}

static void accept_more(model_t *m)
{
    while (m->backlog_n > 0 && m->nidle > 0) {
        uint32_t at = m->backlog[m->backlog_first];

        m->backlog_first = (m->backlog_first + 1) % m->backlog_room;
        m->backlog_n--;
        enter(m, at);
    }
}

/* Who was woken looks at once. */
static void wake(model_t *m)
{
    uint32_t i;

    for (i = 0; i < m->nwaiting; i++) {
        wish_t *w = &m->wishes[m->waiting[i]];

        if (sem_trywait(dbguard_admission_wake(&m->board, w->ticket)) == 0) {
            w->woken = 1;
            w->stamp = ++m->stamp;
            later(m, m->now, LOOK, m->waiting[i], m->stamp);
        }
    }
}

static void configure(model_t *m)
{
    dbguard_admission_configure(&m->board, &m->limits, clock_of(m));
}

static void change(model_t *m, const scene_change_t *c)
{
    scene_stream_t *stream = &m->streams[c->stream];
    double factor = stream->hold.factor;

    switch (c->what) {
    case CHANGE_BUDGET:
        m->limits.budget = (uint32_t)c->number;
        configure(m);
        break;
    case CHANGE_HOLD:
        stream->hold = c->hold;
        stream->hold.factor = factor;
        break;
    case CHANGE_SLOW:
        stream->hold.factor = c->number;
        break;
    case CHANGE_RATE:
        stream->rate = c->number;
        m->rates[c->stream]++;
        next_of_rate(m, c->stream);
        break;
    }
}

/* --- the run ------------------------------------------------------------- */

static void open_board(model_t *m, uint32_t nslots)
{
    uint64_t size = dbguard_board_size(nslots);

    m->board.shared = calloc(1, size);
    if (m->board.shared == NULL
        || dbguard_board_create(m->board.shared, size, nslots, 4242, 1, START,
                                START)
               != APR_SUCCESS)
        abort();
    m->board.shared->engine = 1;
    m->board.fifo = m->policy != SCENE_GUARD;
    m->limits.budget = m->scene->budget;
    m->limits.settle = m->scene->settle;
    m->limits.pace = DBGUARD_PACE;
    m->limits.retry_min = SCENE_SECOND;
    m->limits.retry_max = 120 * SCENE_SECOND;
    m->limits.session_wait = 2;
    if (m->policy == SCENE_PROXY)
        m->limits.queue = nslots;
    else if (m->policy != SCENE_LIMIT)
        m->limits.workers = m->workers;
    if (m->policy == SCENE_FIFO || m->policy == SCENE_PROXY)
        m->limits.patience = PROXY_PATIENCE;
    configure(m);
}

static void open_model(model_t *m, uint64_t seed)
{
    uint32_t i;

    m->workers = m->policy == SCENE_PROXY ? CROWD : m->scene->workers;
    memcpy(m->streams, m->scene->streams, sizeof(m->streams));
    open_board(m, m->workers);
    m->pids = grown(NULL, m->workers, sizeof(int32_t));
    for (i = 0; i < m->workers; i++)
        m->pids[m->nidle++] = (int32_t)(10000 + m->workers - i);
    for (i = 0; i < m->scene->nstreams; i++) {
        m->random[i] = mixed(seed * 1000 + i);
        m->result->streams[i].first = m->result->streams[i].last = -1;
        begin_stream(m, i);
    }
    for (i = 0; i < m->scene->nchanges; i++)
        later(m, m->scene->changes[i].time, CHANGE, i, 0);
}

/* What tokens did until the next event. */
static void account(model_t *m, int64_t time)
{
    const dbguard_shared_t *shared = m->board.shared;
    double budget = shared->limits.budget;
    double span;

    if (time > m->scene->time)
        time = m->scene->time;
    span = time > m->now ? (double)(time - m->now) : 0;
    m->given += span * budget;
    if (shared->prefix.waiting > 0) {
        m->contended += span * budget;
        if (shared->prefix.held < shared->limits.budget)
            m->idle += span * (budget - shared->prefix.held);
    }
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static void close_model(model_t *m)
{
    uint32_t i;

    m->result->used = m->given > 0 ? m->busy / m->given : 0;
    m->result->idle = m->contended > 0 ? m->idle / m->contended : 0;
    for (i = 0; i < m->scene->nstreams; i++) {
        scene_figures_t *f = &m->result->streams[i];

        if (f->nlatency > 0)
            qsort(f->latency, f->nlatency, sizeof(int64_t), by_size);
    }
    free(m->board.shared);
    free(m->heap);
    free(m->wishes);
    free(m->free_wishes);
    free(m->backlog);
    free(m->pids);
    free(m->waiting);
}

void scene_run(const scene_t *scene, scene_policy_t policy, uint64_t seed,
               scene_result_t *result)
{
    model_t *m = calloc(1, sizeof(*m));

    if (m == NULL)
        abort();
    memset(result, 0, sizeof(*result));
    m->scene = scene;
    m->policy = policy;
    m->result = result;
    open_model(m, seed);
    while (m->nevents > 0 && m->heap[0].time <= scene->time + DRAIN) {
        event_t event = next_event(m);

        account(m, event.time);
        m->now = event.time;
        result->events++;
        switch (event.kind) {
        case SPAWN:
            spawn(m, &event);
            break;
        case COME:
            come(m, event.who);
            break;
        case LOOK:
            look(m, &event);
            break;
        case END:
            end(m, event.who);
            break;
        case CHANGE:
            change(m, &scene->changes[event.who]);
            break;
        }
        accept_more(m);
        wake(m);
    }
    close_model(m);
    free(m);
}

void scene_clear(scene_result_t *result)
{
    int i;

    for (i = 0; i < SCENE_STREAMS; i++)
        free(result->streams[i].latency);
    memset(result, 0, sizeof(*result));
}
