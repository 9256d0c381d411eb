/* Open-loop load: requests are sent at the times they were planned for, however
 * long the earlier ones take, each on a connection and from an address of its
 * own. One thread; it does nothing but move bytes.
 *
 *     openloop PORT < plan > answers
 *
 * The plan, one line each:
 *     stream NAME once             a refused client does not come back
 *     stream NAME told             it comes back once, exactly when it was told
 *                                  to, as every second one does
 *     stream NAME loop UNTIL       it sends the next one after each answer
 *     stream NAME seconds|fraction|deaf
 *                                  it comes back until it is served: after
 *                                  Retry-After, after DBGuard-Retry-After, or
 *                                  after one second whatever it is told
 *     at MICROSECONDS NAME ADDRESS PATH
 * The answers, one line for each attempt:
 *     NAME attempt start-us latency-us status 1040s
 * Status 0: no answer within PATIENCE, or a broken one. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000)
#define PATIENCE (15 * SECOND)
#define STREAMS 16
#define ANSWER 4096 /* bytes that are looked at */

enum mode { ONCE, TOLD, LOOP, SECONDS, FRACTION, DEAF };
static const char *const modes[]
    = {"once", "told", "loop", "seconds", "fraction", "deaf"};

struct stream {
    char name[32];
    enum mode mode;
    int64_t until;
    unsigned refused;
};

struct request {
    struct stream *stream;
    char *path;
    struct in_addr from;
    int64_t at; /* when it is, or was, to be sent */
    int attempt;
    int fd;
    int returns; /* came back when it was told to */
    size_t got;
    char answer[ANSWER];
};

static struct stream streams[STREAMS];
static int nstreams;
static struct request **planned; /* heap by time */
static size_t nplanned, room;
static struct request **open_ones; /* in order of sending: of patience */
static size_t first_open, nopen, open_room;
static int poller, port;
static int64_t epoch;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void *must(void *memory)
{
    if (memory == NULL)
        fail("memory");
    return memory;
}

static int64_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec / 1000 - epoch;
}

/* --- the plan ------------------------------------------------------------ */

static void plan(struct request *r)
{
    size_t i = nplanned++;

    if (i == room) {
        room = 2 * room + 1024;
        planned = must(realloc(planned, room * sizeof(*planned)));
    }
    for (; i > 0 && r->at < planned[(i - 1) / 2]->at; i = (i - 1) / 2)
        planned[i] = planned[(i - 1) / 2];
    planned[i] = r;
}

static struct request *next_planned(void)
{
    struct request *first = planned[0], *last = planned[--nplanned];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < nplanned) {
        if (child + 1 < nplanned
            && planned[child + 1]->at < planned[child]->at)
            child++;
        if (last->at <= planned[child]->at)
            break;
        planned[i] = planned[child];
        i = child;
    }
    planned[i] = last;
    return first;
}

static struct stream *find_stream(const char *name)
{
    int i;

    for (i = 0; i < nstreams; i++)
        if (strcmp(streams[i].name, name) == 0)
            return &streams[i];
    fprintf(stderr, "openloop: no stream %s\n", name);
    exit(1);
}

static void read_stream(const char *line)
{
    struct stream *s = &streams[nstreams];
    char mode[16];
    long long until = 0;
    size_t i;

    if (nstreams == STREAMS
        || sscanf(line, "stream %31s %15s %lld", s->name, mode, &until) < 2) {
        fprintf(stderr, "openloop: bad line: %s", line);
        exit(1);
    }
    for (i = 0; i < sizeof(modes) / sizeof(*modes); i++)
        if (strcmp(modes[i], mode) == 0)
            s->mode = (enum mode)i;
    s->until = until;
    nstreams++;
}

static void read_plan(void)
{
    char line[512], name[32], from[32], path[256];
    long long at;

    while (fgets(line, sizeof(line), stdin) != NULL) {
        struct request *r;

        if (strncmp(line, "stream ", 7) == 0) {
            read_stream(line);
            continue;
        }
        r = must(calloc(1, sizeof(*r)));
        if (sscanf(line, "at %lld %31s %31s %255s", &at, name, from, path) != 4
            || inet_pton(AF_INET, from, &r->from) != 1) {
            fprintf(stderr, "openloop: bad line: %s", line);
            exit(1);
        }
        r->at = at;
        r->stream = find_stream(name);
        r->path = must(strdup(path));
        plan(r);
    }
}

/* --- one request --------------------------------------------------------- */

static int status_of(const struct request *r)
{
    int status;

    return sscanf(r->answer, "HTTP/1.%*d %d", &status) == 1 ? status : 0;
}

/* A header's number, or -1. */
static long header(const struct request *r, const char *name)
{
    const char *line = r->answer;

    while ((line = strchr(line, '\n')) != NULL && *++line != '\r')
        if (strncasecmp(line, name, strlen(name)) == 0)
            return atol(line + strlen(name));
    return -1;
}

static int count_1040(const struct request *r)
{
    const char *at = r->answer;
    int n = 0;

    while ((at = strstr(at, "error 1040")) != NULL) {
        at++;
        n++;
    }
    return n;
}

/* How long it stays away, or -1 for good. */
static int64_t stays_away(const struct request *r, int status)
{
    struct stream *s = r->stream;
    long seconds = header(r, "Retry-After:");
    long ms = header(r, "DBGuard-Retry-After:");

    if (s->mode == LOOP)
        return now() < s->until ? 0 : -1;
    if (status == 200)
        return -1;
    if (s->mode == TOLD) {
        if (seconds < 0 || r->attempt > 0 || s->refused++ % 2 == 1)
            return -1;
        return ms >= 0 ? ms * 1000 : seconds * SECOND;
    }
    if (s->mode == SECONDS)
        return seconds >= 0 ? seconds * SECOND : SECOND;
    if (s->mode == FRACTION)
        return ms >= 0 ? ms * 1000 : seconds >= 0 ? seconds * SECOND : SECOND;
    return s->mode == DEAF ? SECOND : -1;
}

static void end(struct request *r, int answered)
{
    int64_t t = now(), away;
    int status = answered ? status_of(r) : 0;

    close(r->fd);
    r->fd = -1;
    printf("%s %d %lld %lld %d %d\n", r->stream->name, r->attempt,
           (long long)r->at, (long long)(t - r->at), status, count_1040(r));
    away = stays_away(r, status);
    if (away >= 0) {
        struct request *again = must(calloc(1, sizeof(*again)));

        *again = *r;
        again->attempt++;
        again->got = 0;
        again->answer[0] = '\0';
        again->at = t + away;
        plan(again);
    }
}

static void send_it(struct request *r)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr = r->from};
    struct epoll_event event = {.events = EPOLLOUT, .data.ptr = r};
    int one = 1;

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (nopen == open_room) {
        open_room = 2 * open_room + 1024;
        open_ones = must(realloc(open_ones, open_room * sizeof(*open_ones)));
    }
    open_ones[nopen++] = r;
    r->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (r->fd < 0)
        fail("socket");
    setsockopt(r->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(r->fd, SOL_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
    if (bind(r->fd, (struct sockaddr *)&from, sizeof(from)) != 0)
        fail("bind");
    if (connect(r->fd, (struct sockaddr *)&to, sizeof(to)) != 0
        && errno != EINPROGRESS) {
        end(r, 0);
        return;
    }
    if (epoll_ctl(poller, EPOLL_CTL_ADD, r->fd, &event) != 0)
        fail("epoll_ctl");
}

static void ask(struct request *r)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = r};
    char text[512];
    int length = snprintf(text, sizeof(text),
                          "GET %s HTTP/1.1\r\nHost: localhost\r\n"
                          "Connection: close\r\n\r\n", r->path);

    if (write(r->fd, text, (size_t)length) != length)
        end(r, 0);
    else if (epoll_ctl(poller, EPOLL_CTL_MOD, r->fd, &event) != 0)
        fail("epoll_ctl");
}

static void listen_to(struct request *r)
{
    char rest[ANSWER];
    ssize_t n;

    do {
        size_t left = ANSWER - 1 - r->got;

        n = left > 0 ? read(r->fd, r->answer + r->got, left)
                     : read(r->fd, rest, sizeof(rest));
        if (n > 0 && left > 0) {
            r->got += (size_t)n;
            r->answer[r->got] = '\0';
        }
    } while (n > 0);
    if (n == 0 || errno != EAGAIN)
        end(r, n == 0 || r->got > 0);
}

/* --- all of them --------------------------------------------------------- */

static void give_up(void)
{
    while (first_open < nopen
           && (open_ones[first_open]->fd < 0
               || now() - open_ones[first_open]->at >= PATIENCE)) {
        struct request *r = open_ones[first_open++];

        if (r->fd >= 0)
            end(r, 0);
        free(r);
    }
}

static void wait_a_while(void)
{
    struct epoll_event events[64];
    int64_t until = now() + SECOND / 10;
    struct timespec pause = {0, 0};
    int i, n;

    if (nplanned > 0 && planned[0]->at < until)
        until = planned[0]->at;
    until -= now();
    if (until > 0)
        pause.tv_nsec = until * 1000;
    n = epoll_pwait2(poller, events, 64, &pause, NULL);
    for (i = 0; i < n; i++) {
        struct request *r = events[i].data.ptr;

        if (events[i].events & EPOLLOUT)
            ask(r);
        else
            listen_to(r);
    }
}

int main(int argc, char **argv)
{
    struct rlimit files = {65536, 65536};

    if (argc != 2 || (port = atoi(argv[1])) <= 0) {
        fputs("usage: openloop PORT < plan > answers\n", stderr);
        return 1;
    }
    if (setrlimit(RLIMIT_NOFILE, &files) != 0) {
        getrlimit(RLIMIT_NOFILE, &files);
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (poller < 0)
        fail("epoll");
    read_plan();
    epoch = now();
    while (nplanned > 0 || first_open < nopen) {
        while (nplanned > 0 && planned[0]->at <= now())
            send_it(next_planned());
        give_up();
        wait_a_while();
    }
    return ferror(stdout) ? 1 : 0;
}
