/* What an operation costs. Time is counted in instructions where that is
 * possible: the number is the same on every machine, however busy. */

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
    {"admission and release", admit_and_release, 1, 0, 1, 1500},
    {"waiting and a hand-over", wait_and_hand_over, 0, 20, 1, 2000},
    {"leaving a long queue", leave_the_tail, 0, 20, 0, 800},
    {"a refusal", be_refused, 0, 10, 0, 800},
};

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

/* --- nanoseconds ---------------------------------------------------------- */

#define BATCH 500

/* The best of many short batches: on a busy machine, one of them is not
 * interrupted. */
static int64_t best_of(int batches)
{
    int64_t best = INT64_MAX;
    int i;

    while (batches-- > 0) {
        int64_t begin = dbguard_clock_now();

        for (i = 0; i < BATCH; i++)
            admit_and_release();
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
    ck_assert_int_lt(best_of(2000), 1000);
    board_close();
}
END_TEST

/* --- a repair ------------------------------------------------------------- */

#define WAITERS 8000

/* So many wait, in slots that are in order of arrival, or in any. */
static void crowded_board(int shuffled)
{
    static dbguard_ticket_t t[WAITERS];
    int i;

    board_open(WAITERS + 2, 1, WAITERS);
    enter_to(DBGUARD_ADMITTED);
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
    tcase_add_test(tc, admission_and_release_take_less_than_a_microsecond);
    tcase_add_loop_test(tc, a_repair_is_over_before_anybody_notices, 0, 2);
    suite_add_tcase(s, tc);
    return s;
}
