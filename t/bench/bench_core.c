/* What the core costs: nanoseconds an operation, on a board of 64 slots and on
 * one of 8,192, one after the other on one core; and with two processes that
 * do nothing but ask.
 *
 *     bench_core [--quick]
 *
 * Prints, never judges: a timed test fails on somebody else's busy machine.
 * The two limits that the project set itself are printed beside what was
 * measured. The board's own clock is a variable; the real one only measures.
 *
 * Every round measures every operation at both sizes, in turn and with the
 * order swapped every time (ABBA), so that whatever else the machine does hits
 * both alike. A figure is the median of the rounds, +- half the distance
 * between their quartiles; a ratio is the median of the rounds' own ratios.
 * docs/internals/performance.md says how to read it. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "admission.h"
#include "settle.h"
#include "endpoint.h"
#include "snapshot.h"

#define BUDGET 20
#define SIZES 2
#define ROUNDS_MAX 101
#define STEP 1000 /* microseconds on the board's clock from call to call */
#define FOREVER (INT64_C(1) << 50)

static const uint32_t sizes[SIZES] = {64, 8192};
static int rounds = 41;
static int64_t sample_ns = 4000000; /* length of one measurement */

/* A board, and who is on it. */
typedef struct world_t {
    dbguard_board_t board;
    int64_t now;
    dbguard_ticket_t *ring; /* who came, oldest at `oldest` */
    uint32_t oldest, length;
    uint32_t endpoints, addresses; /* of a crowd */
    uint64_t turn;
    dbguard_snapshot_t *snapshot;
} world_t;

typedef struct operation_t {
    const char *name;
    void (*prepare)(world_t *w, uint32_t nslots);
    void (*run)(world_t *w, long n);
    int per_request; /* a request does it: held to the limits */
} operation_t;

static int64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void *shared_memory(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return p;
}

/* --- what is done to a board -------------------------------------------- */

static const dbguard_visitor_t visitor = {
    .pid = 1,
    .client = "2001:db8:85a3::8a2e:370:7334",
    .endpoint = "GET /orders/*/reset"
};

static dbguard_ticket_t come(world_t *w, dbguard_outcome_t expected)
{
    dbguard_decision_t d;

    w->now += STEP;
    dbguard_admission_enter(&w->board, &visitor, w->now, &d);
    if (d.outcome != expected) {
        fprintf(stderr, "outcome %d instead of %d\n", d.outcome, expected);
        exit(2);
    }
    return d.ticket;
}

static void go(world_t *w, dbguard_ticket_t ticket)
{
    int64_t held;

    w->now += STEP;
    if (dbguard_admission_leave(&w->board, ticket, w->now, &held)
            != APR_SUCCESS
        || held < 0) {
        fprintf(stderr, "a token was not given back\n");
        exit(2);
    }
}

/* An endpoint that has been seen to hold that long. */
static void teach(world_t *w, const char *name, int64_t hold)
{
    dbguard_shared_t *shared = w->board.shared;
    uint64_t key = dbguard_endpoint_key(shared, name, 0);
    uint32_t at = dbguard_endpoint_arrive(shared, key, name, 0, w->now);
    int i;

    for (i = 0; i < DBGUARD_SAMPLES; i++)
        dbguard_endpoint_learn(shared, at, hold, w->now);
}

static void make_world(world_t *w, uint32_t nslots, uint32_t budget,
                       uint32_t queue)
{
    uint64_t size = dbguard_board_size(nslots);
    dbguard_limits_t limits = {
        .budget = budget,
        .queue = queue,
        .settle = DBGUARD_SETTLE,
        .patience = FOREVER,
        .retry_min = 2000000,
        .retry_max = 10000000
    };

    memset(w, 0, sizeof(*w));
    w->now = INT64_C(1000000) * 86400; /* up for a day: a full recorder */
    w->board.shared = shared_memory(size);
    w->ring = calloc(nslots, sizeof(w->ring[0]));
    if (dbguard_board_create(w->board.shared, size, nslots, getpid(), 1,
                             w->now, 0) != APR_SUCCESS
        || dbguard_admission_configure(&w->board, &limits, w->now)
               != APR_SUCCESS
        || w->ring == NULL) {
        fprintf(stderr, "no board\n");
        exit(2);
    }
    teach(w, visitor.endpoint, 50000);
}

static void fill(world_t *w, uint32_t n, dbguard_outcome_t outcome)
{
    while (n-- > 0)
        w->ring[w->length++] = come(w, outcome);
}

static void prepare_half_budget(world_t *w, uint32_t nslots)
{
    make_world(w, nslots, BUDGET, nslots);
    fill(w, BUDGET / 2, DBGUARD_ADMITTED);
}

static void run_enter_leave(world_t *w, long n)
{
    while (n-- > 0)
        go(w, come(w, DBGUARD_ADMITTED));
}

static void prepare_half_slots(world_t *w, uint32_t nslots)
{
    make_world(w, nslots, nslots, 0);
    fill(w, nslots / 2, DBGUARD_ADMITTED);
}

/* The oldest goes, one comes. */
static void turn(world_t *w, long n, dbguard_outcome_t outcome)
{
    while (n-- > 0) {
        dbguard_ticket_t *place = &w->ring[w->oldest];

        go(w, *place);
        *place = come(w, outcome);
        if (++w->oldest == w->length)
            w->oldest = 0;
    }
}

static void run_turnover(world_t *w, long n)
{
    turn(w, n, DBGUARD_ADMITTED);
}

static void prepare_queue(world_t *w, uint32_t nslots)
{
    make_world(w, nslots, BUDGET, nslots - BUDGET);
    fill(w, BUDGET, DBGUARD_ADMITTED);
    fill(w, nslots - BUDGET, DBGUARD_WAIT);
}

static void run_hand_over(world_t *w, long n)
{
    turn(w, n, DBGUARD_WAIT);
}

static void run_refusal(world_t *w, long n)
{
    while (n-- > 0)
        come(w, DBGUARD_REFUSED);
}

static void run_poll(world_t *w, long n)
{
    dbguard_ticket_t ticket = w->ring[w->length / 2];
    dbguard_decision_t d;

    while (n-- > 0) {
        dbguard_admission_poll(&w->board, ticket, ++w->now, &d);
        if (d.outcome != DBGUARD_WAIT)
            exit(2);
    }
}

/* A crowd: half as many addresses as slots, as many endpoints as there are
 * places for, tokens that heavy work holds but for what light work needs, and
 * waiting places that are all taken. */
static dbguard_decision_t crowd_comes(world_t *w, uint64_t endpoint)
{
    dbguard_visitor_t v = visitor;
    dbguard_decision_t d;

    snprintf(v.endpoint, sizeof(v.endpoint), "GET /%u",
             (unsigned)(endpoint % w->endpoints));
    v.address = 1 + w->turn++ % w->addresses;
    w->now++;
    dbguard_admission_enter(&w->board, &v, w->now, &d);
    return d;
}

static void prepare_crowd(world_t *w, uint32_t nslots)
{
    uint32_t i;

    make_world(w, nslots, nslots / 8, nslots * 3 / 4);
    w->addresses = nslots / 2;
    w->endpoints = nslots < 960 ? nslots / 4 : 960;
    for (i = 0; i < w->endpoints; i++) {
        char name[32];

        /* Number 0 is the light one. */
        snprintf(name, sizeof(name), "GET /%u", i);
        teach(w, name, i == 0 ? 1000 : 300000 + i * 700);
    }
    for (i = 0; i < w->addresses; i++)
        go(w, crowd_comes(w, 0).ticket);
    w->now += DBGUARD_TICK;
    while (w->board.shared->prefix.waiting < nslots * 3 / 4)
        w->ring[w->length++]
            = crowd_comes(w, 1 + i++ % (w->endpoints - 1)).ticket;
}

/* Light work goes past those who wait. */
static void run_light(world_t *w, long n)
{
    while (n-- > 0) {
        dbguard_decision_t d = crowd_comes(w, 0);

        if (d.outcome != DBGUARD_ADMITTED) {
            fprintf(stderr, "light work was not let in\n");
            exit(2);
        }
        go(w, d.ticket);
    }
}

static void prepare_snapshot(world_t *w, uint32_t nslots)
{
    prepare_queue(w, nslots);
    w->snapshot = malloc(dbguard_snapshot_size(w->board.shared));
    if (w->snapshot == NULL)
        exit(2);
}

static void run_snapshot(world_t *w, long n)
{
    while (n-- > 0)
        dbguard_snapshot_take(w->snapshot, w->board.shared, ++w->now);
}

static void run_reap(world_t *w, long n)
{
    uint32_t taken;

    while (n-- > 0)
        dbguard_admission_reap(&w->board, 2, ++w->now, &taken);
}

static const operation_t operations[] = {
    {"enter + leave, a token is free", prepare_half_budget, run_enter_leave,
     1},
    {"leave + enter, all slots taken, the rest waits", prepare_queue,
     run_hand_over, 1},
    {"enter, refused", prepare_queue, run_refusal, 1},
    {"poll of one that waits", prepare_queue, run_poll, 1},
    {"enter + leave of light work, in a crowd", prepare_crowd, run_light, 0},
    {"leave + enter, half of the slots hold", prepare_half_slots,
     run_turnover, 0},
    {"snapshot for a status page", prepare_snapshot, run_snapshot, 0},
    {"a process ended that had nothing", prepare_queue, run_reap, 0}
};

#define OPERATIONS (sizeof(operations) / sizeof(operations[0]))

/* --- measuring ---------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Median; half the distance of the quartiles goes to *spread. */
static double median(const double *values, double *spread)
{
    double v[ROUNDS_MAX];

    memcpy(v, values, (size_t)rounds * sizeof(v[0]));
    qsort(v, (size_t)rounds, sizeof(v[0]), by_value);
    if (spread != NULL)
        *spread = (v[rounds * 3 / 4] - v[rounds / 4]) / 2;
    return v[rounds / 2];
}

static double time_of(const operation_t *op, world_t *w, long n)
{
    int64_t begin = clock_ns();

    op->run(w, n);
    return (double)(clock_ns() - begin) / (double)n;
}

/* As many as a measurement takes. The first run warms everything up. */
static long calibrate(const operation_t *op, world_t *w)
{
    long n = 1;

    while (time_of(op, w, n) * (double)n < (double)sample_ns / 2)
        n *= 2;
    return n;
}

static void print_row(const char *name, double (*ns)[ROUNDS_MAX],
                      const double *ratios)
{
    double at[SIZES], spread[SIZES];
    int i;

    for (i = 0; i < SIZES; i++)
        at[i] = median(ns[i], &spread[i]);
    printf("%-48s %8.0f +-%-5.0f %8.0f +-%-5.0f %6.2f\n", name, at[0],
           spread[0], at[1], spread[1], median(ratios, NULL));
}

/* Returns the time of the first operation at the larger size, in *crowd that of
 * the one in a crowd and, in *worst, the largest ratio of what a request
 * does. */
static double measure_boards(double *crowd, double *worst)
{
    static double ns[OPERATIONS][SIZES][ROUNDS_MAX];
    static double ratios[OPERATIONS][ROUNDS_MAX];
    static world_t worlds[OPERATIONS][SIZES];
    static long n[OPERATIONS][SIZES];
    size_t op;
    int i, round;

    for (op = 0; op < OPERATIONS; op++) {
        for (i = 0; i < SIZES; i++) {
            operations[op].prepare(&worlds[op][i], sizes[i]);
            n[op][i] = calibrate(&operations[op], &worlds[op][i]);
        }
    }
    for (round = 0; round < rounds; round++) {
        for (op = 0; op < OPERATIONS; op++) {
            for (i = 0; i < SIZES; i++) {
                int size = round % 2 ? SIZES - 1 - i : i;

                ns[op][size][round] = time_of(
                    &operations[op], &worlds[op][size], n[op][size]);
            }
            ratios[op][round] = ns[op][1][round] / ns[op][0][round];
        }
    }

    *worst = 0;
    for (op = 0; op < OPERATIONS; op++) {
        double ratio = median(ratios[op], NULL);

        print_row(operations[op].name, ns[op], ratios[op]);
        if (operations[op].per_request && ratio > *worst)
            *worst = ratio;
        if (operations[op].run == run_light)
            *crowd = median(ns[op][1], NULL);
    }
    return median(ns[0][1], NULL);
}

/* --- two processes ------------------------------------------------------ */

typedef struct start_t {
    _Atomic int ready, go;
    _Atomic int64_t end;
} start_t;

/* Each does n times enter + leave on the same board: nanoseconds until both
 * are done, by the operations of both. */
static double contend(world_t *w, long n)
{
    start_t *start = shared_memory(sizeof(*start));
    int64_t begin, end;
    pid_t child = fork();

    if (child == 0) {
        start->ready = 1;
        while (!start->go)
            ;
        run_enter_leave(w, n);
        start->end = clock_ns();
        _exit(0);
    }
    if (child < 0)
        exit(2);
    while (!start->ready)
        ;
    begin = clock_ns();
    start->go = 1;
    run_enter_leave(w, n);
    end = clock_ns();
    waitpid(child, NULL, 0);
    if (start->end > end)
        end = start->end;
    munmap(start, sizeof(*start));
    return (double)(end - begin) / (double)(2 * n);
}

static void measure_contention(void)
{
    double ns[SIZES][ROUNDS_MAX], ratios[ROUNDS_MAX];
    world_t worlds[SIZES];
    long n[SIZES];
    int i, round;

    for (i = 0; i < SIZES; i++) {
        prepare_half_budget(&worlds[i], sizes[i]);
        n[i] = calibrate(&operations[0], &worlds[i]);
    }
    for (round = 0; round < rounds; round++) {
        for (i = 0; i < SIZES; i++)
            ns[i][round] = contend(&worlds[i], n[i]);
        ratios[round] = ns[1][round] / ns[0][round];
    }
    print_row("enter + leave, two processes do nothing else", ns, ratios);
}

/* --- paths -------------------------------------------------------------- */

static void measure_fold(const char *path)
{
    double ns[ROUNDS_MAX], spread, at;
    char buf[DBGUARD_ENDPOINT_MAX];
    long n = sample_ns / 4 / 200, i;
    int round;

    for (round = 0; round < rounds; round++) {
        int64_t begin = clock_ns();

        for (i = 0; i < n; i++)
            dbguard_endpoint_fold("GET", path, buf, sizeof(buf));
        ns[round] = (double)(clock_ns() - begin) / (double)n;
    }
    at = median(ns, &spread);
    printf("%8.0f +-%-5.0f %3zu bytes  %s\n", at, spread, strlen(path), buf);
}

static void measure_paths(void)
{
    static const char *const paths[] = {
        "/", "/index.php", "/orders/123/reset",
        "/app/shop/category/garden-furniture/item.php",
        "/api/v1/users/550e8400-e29b-41d4-a716-446655440000/orders/4711",
        "/wp-content/plugins/some-plugin/includes/class-ajax-handler.php"
    };
    size_t i;

    printf("\nfolding a path, ns\n");
    for (i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        measure_fold(paths[i]);
}

int main(int argc, char **argv)
{
    double request, crowd = 0, worst;

    if (argc == 2 && strcmp(argv[1], "--quick") == 0) {
        rounds = 11;
        sample_ns = 2000000;
    }
    else if (argc > 1) {
        fprintf(stderr, "usage: bench_core [--quick]\n");
        return 2;
    }

    printf("%-48s %16s %16s %6s\n", "ns an operation, one core", "64 slots",
           "8,192 slots", "ratio");
    request = measure_boards(&crowd, &worst);
    measure_contention();
    measure_paths();
    printf("\nadmission plus release at 8,192 slots: %.0f ns; under one "
           "microsecond: %s\n", request, request < 1000 ? "yes" : "NO");
    printf("the same among 4,096 addresses, 960 endpoints and 6,144 that wait: "
           "%.0f ns; under two microseconds: %s\n",
           crowd, crowd < 2000 ? "yes" : "NO");
    printf("largest ratio 8,192 / 64 of the first four: %.2f; at most 1.3: "
           "%s\n", worst, worst <= 1.3 ? "yes" : "NO");
    return 0;
}
