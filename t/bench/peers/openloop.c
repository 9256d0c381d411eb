/* The load generator of peers.pl: carries out a schedule of clients, each with
 * an address of its own, against a port of 127.0.0.1 and nothing else.
 *
 *     openloop PORT SCHEDULE LOG LIMIT
 *
 * The schedule has a line for each client, in the order of time:
 *
 *     AT KIND ADDRESS COMES-BACK PATH
 *
 * AT is when it comes, in microseconds from the start, whatever has become of
 * the others by then (open loop). COMES-BACK is what it does after an answer:
 *
 *     never      nothing
 *     loop=T     asks again at once, whatever the answer was, until T
 *     told       when refused and told when to return, returns just then, once
 *     whole      until it is served: returns after Retry-After
 *     exact      the same after DBGuard-Retry-After, else Retry-After
 *     fixed      the same after a second, whatever it was told
 *
 * and a second where the last three are told nothing. The log has a line for
 * each request:
 *
 *     CLIENT KIND ATTEMPT AT STATUS TOOK ERROR TOLD LATE
 *
 * CLIENT: line of the schedule, from 1. ATTEMPT: from 1. AT: when the request
 * was due. STATUS: 0 where there was no complete answer. TOOK: from AT to the
 * end of the answer. ERROR: the header Database-Error, or 0. TOLD: when to
 * return, after the answer, or -1. LATE: how much after AT this program got
 * round to it. All times are in microseconds.
 *
 * Once a second a line "SECONDS OPEN OK BAD" on the standard output. It ends
 * when everybody is done, or at the LIMIT in seconds.
 *
 * Invariants
 *   - One thread. A client has one connection at most and one entry at most in
 *     the heap of what is due: its next request, or the end of its patience.
 *   - A request is a connection. The client closes it as soon as it has the
 *     whole answer, as Content-Length says.
 *   - An answer 200 without Content-Length counts as none. */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000)
#define PATIENCE (15 * SECOND)
#define PAUSE (SECOND / 100) /* of a loop that cannot even connect */
#define HEAD_MAX 2048        /* of an answer */
#define EVENTS_MAX 256
#define NOT_DUE ((size_t)-1)

typedef enum { NEVER, LOOP, TOLD, WHOLE, EXACT, FIXED } comes_back_t;

typedef struct client_t {
    char kind[16];
    char path[128];
    struct in_addr address;
    comes_back_t comes_back;
    int64_t until; /* of LOOP */
    unsigned attempt;

    size_t place; /* in the heap */
    int64_t due;
    int fd;       /* -1 without a connection */
    int sent;     /* the request is on its way */
    int64_t at;   /* when this request was due */
    int64_t late; /* and how much later it was begun */
    size_t got;   /* bytes of the answer */
    char head[HEAD_MAX + 1];
} client_t;

/* What an answer says. */
typedef struct answer_t {
    int status;
    int error;
    int64_t told;
} answer_t;

static client_t *clients;
static size_t nclients;
static client_t **heap; /* the earliest due first */
static size_t nheap, nopen;
static unsigned long nok, nbad;
static int64_t begun; /* on the system's clock */
static struct sockaddr_in server;
static int poller;
static FILE *record;

static void die(const char *what)
{
    fprintf(stderr, "openloop: %s: %s\n", what, strerror(errno));
    exit(2);
}

/* Microseconds since the start. */
static int64_t clock_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND + t.tv_nsec / 1000 - begun;
}

/* --- what is due -------------------------------------------------------- */

static void put(size_t place, client_t *c)
{
    heap[place] = c;
    c->place = place;
}

/* Find the place for a client that belongs somewhere around this one. */
static void settle(size_t place, client_t *c)
{
    while (place > 0 && heap[(place - 1) / 2]->due > c->due) {
        put(place, heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    for (;;) {
        size_t child = 2 * place + 1;

        if (child + 1 < nheap && heap[child + 1]->due < heap[child]->due)
            child++;
        if (child >= nheap || heap[child]->due >= c->due)
            break;
        put(place, heap[child]);
        place = child;
    }
    put(place, c);
}

static void make_due(client_t *c, int64_t due)
{
    c->due = due;
    settle(c->place == NOT_DUE ? nheap++ : c->place, c);
}

static void make_undue(client_t *c)
{
    client_t *last = heap[--nheap];

    if (last != c)
        settle(c->place, last);
    c->place = NOT_DUE;
}

/* --- the end of a request ----------------------------------------------- */

/* The number in a header of that name, or what stands for none. */
static int64_t header(const client_t *c, const char *name, int64_t without)
{
    const char *place = strcasestr(c->head, name);

    return place != NULL ? strtoll(place + strlen(name), NULL, 10) : without;
}

/* Whether there is nothing more to come. */
static int complete(const client_t *c)
{
    const char *end = strstr(c->head, "\r\n\r\n");
    int64_t length = header(c, "\r\nContent-Length:", -1);

    return end != NULL && length >= 0
           && (int64_t)c->got >= end + 4 - c->head + length;
}

static void understand(const client_t *c, answer_t *a)
{
    int64_t whole = header(c, "\r\nRetry-After:", -1);
    int64_t exact = header(c, "\r\nDBGuard-Retry-After:", -1);

    memset(a, 0, sizeof(*a));
    if (sscanf(c->head, "HTTP/1.%*1d %3d", &a->status) != 1)
        a->status = 0;
    if (a->status == 200 && !complete(c))
        a->status = 0;
    a->error = (int)header(c, "\r\nDatabase-Error:", 0);
    a->told = whole >= 0 ? whole * SECOND : -1;
    if (exact >= 0 && c->comes_back != WHOLE)
        a->told = exact * (SECOND / 1000);
}

/* When the client asks again, or -1 when it does not. */
static int64_t next_request(const client_t *c, const answer_t *a, int64_t now)
{
    switch (c->comes_back) {
    case LOOP:
        if (a->status == 0 && now - c->at < PAUSE)
            now += PAUSE;
        return now < c->until ? now : -1;
    case TOLD:
        return a->status != 200 && a->told >= 0 && c->attempt == 1
                   ? now + a->told
                   : -1;
    case WHOLE:
    case EXACT:
        if (a->status != 200)
            return now + (a->told >= 0 ? a->told : SECOND);
        return -1;
    case FIXED:
        return a->status != 200 ? now + SECOND : -1;
    default:
        return -1;
    }
}

static void finish(client_t *c)
{
    int64_t now = clock_now(), next;
    answer_t a;

    understand(c, &a);
    fprintf(record, "%zu %s %u %lld %d %lld %d %lld %lld\n",
            (size_t)(c - clients) + 1, c->kind, c->attempt, (long long)c->at,
            a.status, (long long)(now - c->at), a.error, (long long)a.told,
            (long long)c->late);
    if (a.status == 200)
        nok++;
    else
        nbad++;
    if (c->fd >= 0) {
        close(c->fd); /* and the poller forgets it */
        c->fd = -1;
        nopen--;
    }
    next = next_request(c, &a, now);
    if (next >= 0)
        make_due(c, next);
    else
        make_undue(c);
}

/* --- a request ---------------------------------------------------------- */

static void watch(client_t *c, int operation, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = c};

    if (epoll_ctl(poller, operation, c->fd, &e) != 0)
        die("epoll_ctl");
}

/* A request is far smaller than what a socket takes at once. 0 when the
 * connection has failed. */
static int send_request(client_t *c)
{
    char text[sizeof(c->path) + 100];
    int n = snprintf(text, sizeof(text),
                     "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\n"
                     "Connection: close\r\n\r\n",
                     c->path, ntohs(server.sin_port));

    c->sent = 1;
    return send(c->fd, text, (size_t)n, MSG_NOSIGNAL) == n;
}

static void begin(client_t *c, int64_t now)
{
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr = c->address};
    int one = 1, rv;

    c->at = c->due;
    c->late = now - c->due;
    c->attempt++;
    c->got = 0;
    c->head[0] = '\0';
    c->sent = 0;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        die("socket");
    nopen++;
    /* The port is chosen with the connection: it need be free only for it. */
    setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
    if (bind(c->fd, (struct sockaddr *)&from, sizeof(from)) != 0)
        die("bind");
    make_due(c, c->at + PATIENCE);
    rv = connect(c->fd, (struct sockaddr *)&server, sizeof(server));
    if ((rv != 0 && errno != EINPROGRESS) || (rv == 0 && !send_request(c)))
        finish(c);
    else
        watch(c, EPOLL_CTL_ADD, c->sent ? EPOLLIN : EPOLLOUT);
}

/* Something can be written, or read, or has failed. */
static void go_on(client_t *c)
{
    char rest[65536];
    int in_head = c->got < HEAD_MAX;
    ssize_t n;

    if (!c->sent) {
        if (send_request(c))
            watch(c, EPOLL_CTL_MOD, EPOLLIN);
        else
            finish(c);
        return;
    }
    n = recv(c->fd, in_head ? c->head + c->got : rest,
             in_head ? HEAD_MAX - c->got : sizeof(rest), 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n > 0) {
        c->got += (size_t)n;
        if (in_head)
            c->head[c->got] = '\0';
    }
    if (n <= 0 || complete(c))
        finish(c);
}

/* --- the schedule ------------------------------------------------------- */

static int read_comes_back(client_t *c, const char *word)
{
    static const char *const words[]
        = {"never", "loop", "told", "whole", "exact", "fixed"};
    size_t i;

    if (strncmp(word, "loop=", 5) == 0) {
        c->comes_back = LOOP;
        c->until = strtoll(word + 5, NULL, 10);
        return 1;
    }
    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (i != LOOP && strcmp(word, words[i]) == 0) {
            c->comes_back = (comes_back_t)i;
            return 1;
        }
    }
    return 0;
}

static int read_client(client_t *c, const char *line)
{
    char address[16], comes_back[32];
    long long at;

    if (sscanf(line, "%lld %15s %15s %31s %127s", &at, c->kind, address,
               comes_back, c->path)
            != 5
        || inet_pton(AF_INET, address, &c->address) != 1
        || (ntohl(c->address.s_addr) >> 24) != 127
        || !read_comes_back(c, comes_back))
        return 0;
    c->due = at;
    c->fd = -1;
    c->place = NOT_DUE;
    return 1;
}

static void read_schedule(const char *name)
{
    FILE *f = fopen(name, "r");
    char *line = NULL;
    size_t size = 0, i;

    if (f == NULL)
        die(name);
    while (getline(&line, &size, f) > 0) {
        client_t *more = realloc(clients, (nclients + 1) * sizeof(*clients));

        if (more == NULL)
            die("realloc");
        clients = more;
        memset(&clients[nclients], 0, sizeof(*clients));
        if (!read_client(&clients[nclients], line)) {
            fprintf(stderr, "openloop: %s: not understood: %s", name, line);
            exit(2);
        }
        nclients++;
    }
    free(line);
    fclose(f);
    heap = calloc(nclients + 1, sizeof(client_t *));
    if (heap == NULL)
        die("calloc");
    for (i = 0; i < nclients; i++)
        make_due(&clients[i], clients[i].due);
}

/* --- the run ------------------------------------------------------------ */

static void set_alarm(int timer, int64_t at)
{
    struct itimerspec when = {
        .it_value = {(at + begun) / SECOND, (at + begun) % SECOND * 1000 + 1}};

    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL) != 0)
        die("timerfd_settime");
}

static void do_what_is_due(void)
{
    int64_t now;

    while (nheap > 0 && heap[0]->due <= (now = clock_now())) {
        if (heap[0]->fd < 0)
            begin(heap[0], now);
        else
            finish(heap[0]); /* its patience has ended */
    }
}

static void run(int64_t limit)
{
    struct epoll_event events[EVENTS_MAX];
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event alarm = {.events = EPOLLIN, .data.ptr = NULL};
    int64_t now, tell = SECOND;
    uint64_t expired;
    int n;

    if (timer < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, timer, &alarm) != 0)
        die("timerfd");
    while (nheap > 0 && (now = clock_now()) < limit) {
        if (now >= tell) {
            printf("%lld %zu %lu %lu\n", (long long)(tell / SECOND), nopen, nok,
                   nbad);
            tell += SECOND;
        }
        set_alarm(timer, heap[0]->due < tell ? heap[0]->due : tell);
        n = epoll_wait(poller, events, EVENTS_MAX, -1);
        if (n < 0 && errno != EINTR)
            die("epoll_wait");
        while (n-- > 0) {
            if (events[n].data.ptr != NULL)
                go_on(events[n].data.ptr);
            else if (read(timer, &expired, sizeof(expired)) < 0
                     && errno != EAGAIN)
                die("read");
        }
        do_what_is_due();
    }
}

/* A descriptor for each client, and the processor before the servers that are
 * measured: a client has a machine of its own. Only root may; a nice value
 * would not do, for the kernel weighs it within a session only. */
static void take_resources(void)
{
    struct sched_param first = {.sched_priority = 1};
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (sched_setscheduler(0, SCHED_RR, &first) != 0)
        fprintf(stderr, "openloop: runs at the servers' own priority\n");
}

int main(int argc, char **argv)
{
    long port = argc == 5 ? strtol(argv[1], NULL, 10) : 0;

    if (port <= 0 || port > 65535) {
        fprintf(stderr, "usage: openloop PORT SCHEDULE LOG LIMIT\n");
        return 2;
    }
    take_resources();
    server.sin_family = AF_INET;
    server.sin_port = htons((uint16_t)port);
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    poller = epoll_create1(EPOLL_CLOEXEC);
    record = fopen(argv[3], "w");
    if (poller < 0 || record == NULL)
        die(argv[3]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    read_schedule(argv[2]);
    begun = clock_now();
    run(strtol(argv[4], NULL, 10) * SECOND);
    if (fclose(record) != 0)
        die(argv[3]);
    return 0;
}
