/* What an operation costs. Time is counted in instructions where that is
 * possible: the number is the same on every machine, however busy. */

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "clock.h"
#include "step.h"
#include "unit.h"

/* --- instructions --------------------------------------------------------- */

static dbguard_ticket_t ticket, last;

static void admit_and_release(void)
{
    leave(enter().ticket);
}

static void wait_and_hand_over(void)
{
    enter();
    leave(ticket);
}

static void leave_the_tail(void)
{
    leave(last);
}

static void be_refused(void)
{
    enter();
}

static const struct {
    const char *name;
    void (*act)(void);
    uint32_t spare, queue; /* tokens that are free, waiting places taken */
    uint32_t places;       /* waiting places that are free */
    long most;             /* instructions */
} operations[] = {
    {"admission and release", admit_and_release, 1, 0, 1, 4500},
    {"waiting and a hand-over", wait_and_hand_over, 0, 20, 1, 10000},
    {"leaving a long queue", leave_the_tail, 0, 20, 0, 1800},
    {"a refusal", be_refused, 0, 10, 0, 2200},
};

/* The first ones that are taken out of a heap which only grew pay for all the
 * insertions: let that be somebody else. */
static void sort_heaps(int somebody_waits)
{
    int i;

    for (i = 0; somebody_waits && i < 14; i++) {
        leave(ticket);
        last = enter_to(DBGUARD_WAIT);
        while (state_of(ticket) != DBGUARD_HELD)
            ticket.slot = (ticket.slot + 1) % board.shared->nslots;
        ticket.serial = board.shared->slots[ticket.slot].serial;
    }
}

/* Instructions of an operation on a board of nslots, all but a few in use. */
static long instructions(int operation, uint32_t nslots)
{
    uint32_t queue = operations[operation].queue * (nslots / 64);
    uint32_t spare = operations[operation].spare;
    uint32_t budget = nslots - queue - operations[operation].places;
    step_t step = {NULL, operations[operation].act};
    uint32_t i;
    long n;

    board_open(nslots, budget, queue + operations[operation].places);
    for (i = 0; i < budget - spare; i++)
        ticket = enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < queue; i++)
        last = enter_to(DBGUARD_WAIT);
    step.act();
    board_close();

    board_open(nslots, budget, queue + operations[operation].places);
    for (i = 0; i < budget - spare; i++)
        ticket = enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < queue; i++)
        last = enter_to(DBGUARD_WAIT);
    sort_heaps(queue > 0);
    n = step_record(step_launch(&step));
    board_close();
    return n;
}

START_TEST(the_size_of_the_table_costs_nothing)
{
    long small, large;

    if (!step_possible())
        return;
    small = instructions(_i, 64);
    large = instructions(_i, 8192);
    if (large * 10 > small * 13)
        ck_abort_msg("%s: %ld instructions at 64 slots, %ld at 8192",
                     operations[_i].name, small, large);
    if (small > operations[_i].most && at_full_speed())
        ck_abort_msg("%s takes %ld instructions", operations[_i].name, small);
}
END_TEST

/* --- a crowd -------------------------------------------------------------- */

/* So many endpoints and addresses, tokens that heavy work holds or leaves for
 * light work, and waiting places that are all taken. */
typedef struct crowd_t {
    uint32_t slots, budget, queue, endpoints, addresses;
} crowd_t;

static const crowd_t few = {64, 8, 48, 10, 40};
static const crowd_t many = {8192, 1024, 7000, 960, 4096};

static dbguard_ticket_t crowd[8192];
static uint32_t ncrowd, turn;
static const crowd_t *here;

#define FOREVER (INT64_C(1) << 50)

/* Heavy work of the n'th endpoint, from the n'th address. */
static dbguard_decision_t heavy_comes(uint32_t n)
{
    char name[32];

    snprintf(name, sizeof(name), "GET /%u", n % (here->endpoints - 1));
    come_as(name, 1 + n % here->addresses, 0);
    return enter();
}

static void gather(const crowd_t *c)
{
    dbguard_limits_t limits;
    char name[32];
    uint32_t i;

    here = c;
    board_open(c->slots, c->budget, c->queue);
    limits = board.shared->limits;
    limits.patience = FOREVER;
    dbguard_admission_configure(&board, &limits, now);
    for (i = 0; i + 1 < c->endpoints; i++) {
        snprintf(name, sizeof(name), "GET /%u", i);
        teach(name, 0, 300000 + 7000 * (int64_t)i % 900000);
    }
    for (i = 0; i < c->addresses; i++) {
        come_as("GET /", 1 + i, 0);
        leave(enter_to(DBGUARD_ADMITTED));
        teach("GET /", 0, 15000);
    }
    now += DBGUARD_TICK;
    ncrowd = turn = 0;
    while (board.shared->prefix.waiting < c->queue) {
        dbguard_decision_t d = heavy_comes(ncrowd);

        ck_assert_uint_ne(d.ticket.serial, 0);
        crowd[ncrowd++] = d.ticket;
    }
    ck_assert_uint_lt(board.shared->prefix.held, c->budget);
}

/* Light work goes past those that wait. */
static void light_passes(void)
{
    come_as("GET /", 1 + turn++ * 7 % here->addresses, 0);
    leave(enter_to(DBGUARD_ADMITTED));
}

/* One that holds leaves, its token goes on, and another comes to wait. */
static void heavy_turns(void)
{
    leave(crowd[turn]);
    crowd[turn] = heavy_comes(turn * 7 + 3).ticket;
    turn++;
}

/* One more than there are places for. */
static void heavy_is_refused(void)
{
    come_as("GET /7", 1, 0);
    enter();
}

/* A new one whose name nobody knows, from an address that nobody knows. */
static void stranger_comes(void)
{
    come_as("GET /stranger", 99999, 88888);
    enter();
}

static void (*const in_a_crowd[])(void) = {
    light_passes, heavy_turns, heavy_is_refused, stranger_comes
};

static long instructions_in(const crowd_t *c, void (*act)(void))
{
    step_t step = {NULL, act};
    long n;

    gather(c);
    act(); /* what is bound and found at first */
    act();
    n = step_record(step_launch(&step));
    board_close();
    return n;
}

/* Heaps are logarithmic: a hundred times as many cost a little more. */
START_TEST(a_crowd_costs_little_more)
{
    long small, large;

    if (!step_possible())
        return;
    small = instructions_in(&few, in_a_crowd[_i]);
    large = instructions_in(&many, in_a_crowd[_i]);
    if (getenv("UNIT_SHOW") != NULL)
        printf("in a crowd, %d: %ld and %ld instructions\n", _i, small,
               large);
    if (large > 3 * small)
        ck_abort_msg("%ld instructions among few, %ld among many", small,
                     large);
}
END_TEST

/* --- nanoseconds ---------------------------------------------------------- */

#define BATCH 500

/* The best of many short batches: on a busy machine, one of them is not
 * interrupted. */
static int64_t best_of(int batches, void (*act)(void))
{
    int64_t best = INT64_MAX;
    int i;

    while (batches-- > 0) {
        int64_t begin = dbguard_clock_now();

        for (i = 0; i < BATCH; i++)
            act();
        begin = dbguard_clock_now() - begin;
        if (begin < best)
            best = begin;
    }
    return best * 1000 / BATCH;
}

START_TEST(admission_and_release_take_less_than_a_microsecond)
{
    if (!at_full_speed())
        return;
    board_open(8192, 20, 140);
    ck_assert_int_lt(best_of(2000, admit_and_release), 1000);
    board_close();
}
END_TEST

/* With 4,096 addresses, 960 endpoints, and 7,000 that wait. */
START_TEST(in_a_crowd_they_take_less_than_two)
{
    int64_t best;

    if (!at_full_speed())
        return;
    gather(&many);
    best = best_of(200, light_passes);
    if (getenv("UNIT_SHOW") != NULL)
        printf("in a crowd: %ld ns\n", (long)best);
    ck_assert_int_lt(best, 2000);
    board_close();
}
END_TEST

/* --- a repair ------------------------------------------------------------- */

#define WAITERS 8000

/* So many wait, in slots that are in order of arrival, or in any. */
static dbguard_ticket_t holder;

static void crowded_board(int shuffled)
{
    static dbguard_ticket_t t[WAITERS];
    dbguard_limits_t limits;
    int i;

    board_open(WAITERS + 2, 1, WAITERS);
    limits = board.shared->limits;
    limits.patience = FOREVER;
    dbguard_admission_configure(&board, &limits, now);
    holder = enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < WAITERS; i++)
        t[i] = enter_to(DBGUARD_WAIT);
    any_from(1);
    for (i = 0; shuffled && i < 3 * WAITERS; i++) {
        uint32_t who = any(WAITERS), other = any(WAITERS);

        leave(t[who]);
        if (other != who)
            leave(t[other]);
        t[who] = enter_to(DBGUARD_WAIT);
        if (other != who)
            t[other] = enter_to(DBGUARD_WAIT);
    }
}

/* The first hand-over after a rush is linear in those that came: a heap that
 * only grew is a list. It is over before anybody notices, too. */
START_TEST(the_first_hand_over_after_a_rush)
{
    int64_t begin, took;
    int i;

    if (!at_full_speed())
        return;
    for (i = 0, took = INT64_MAX; i < 3; i++) {
        crowded_board(0);
        begin = dbguard_clock_now();
        leave(holder);
        begin = dbguard_clock_now() - begin;
        if (begin < took)
            took = begin;
        board_expect(1, WAITERS - 1);
        board_close();
    }
    if (getenv("UNIT_SHOW") != NULL)
        printf("after a rush of %d: %ld us\n", WAITERS, (long)took);
    ck_assert_int_lt(took, 2000);
}
END_TEST

/* Everybody stands still while the board is rebuilt. */
START_TEST(a_repair_is_over_before_anybody_notices)
{
    int64_t best = INT64_MAX;
    int i;

    if (!at_full_speed())
        return;
    crowded_board(_i);
    for (i = 0; i < 3; i++) {
        int64_t begin = dbguard_clock_now();

        dbguard_board_rebuild(board.shared);
        begin = dbguard_clock_now() - begin;
        if (begin < best)
            best = begin;
    }
    board_expect(1, WAITERS);
    board_close();
    if (best > 20000)
        ck_abort_msg("it takes %ld us with %d waiters", (long)best, WAITERS);
}
END_TEST

Suite *cost_suite(void)
{
    Suite *s = suite_create("cost");
    TCase *tc = tcase_create("cost");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, the_size_of_the_table_costs_nothing, 0,
                        LENGTH(operations));
    tcase_add_loop_test(tc, a_crowd_costs_little_more, 0, LENGTH(in_a_crowd));
    tcase_add_test(tc, admission_and_release_take_less_than_a_microsecond);
    tcase_add_test(tc, in_a_crowd_they_take_less_than_two);
    tcase_add_test(tc, the_first_hand_over_after_a_rush);
    tcase_add_loop_test(tc, a_repair_is_over_before_anybody_notices, 0, 2);
    suite_add_tcase(s, tc);
    return s;
}
