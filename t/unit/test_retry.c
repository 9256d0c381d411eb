/* Promises: places in a line at the distance in which tokens come free, one for
 * each session, and none that is nearer or further than may be said. */

#include <stdlib.h>

#include "unit.h"

#define SLOTS 64
#define BUDGET 10
#define FAR (100000 * (int64_t)SECOND)

/* Nobody gets anything: it is all in use. */
static void setup(void)
{
    dbguard_limits_t limits;
    int i;

    board_open(SLOTS, BUDGET, 0);
    limits = board.shared->limits;
    limits.retry_max = FAR;
    dbguard_admission_configure(&board, &limits, now);
    for (i = 0; i < BUDGET; i++)
        enter_to(DBGUARD_ADMITTED);
}

static dbguard_promise_t refused(const char *endpoint, uint64_t address,
                                 uint64_t session)
{
    dbguard_decision_t d;

    come_as(endpoint, address, session);
    d = enter();
    ck_assert_int_eq(d.outcome, DBGUARD_REFUSED);
    ck_assert_int_ge(d.retry.after, board.shared->limits.retry_min);
    ck_assert_int_le(d.retry.after, board.shared->limits.retry_max);
    ck_assert_int_ge(d.retry.seconds, 1);
    return d.retry;
}

/* Between places, when all of the budget can be had: hold x 10 / 9 / budget.
 * What holds now is lighter. */
START_TEST(the_distance_is_that_of_tokens)
{
    int64_t step, last;
    int i;

    teach("GET /x", 0, 90000 << _i);
    step = INT64_C(90000) * (1 << _i) * 10 / 9 / BUDGET;
    last = refused("GET /x", 0, 0).after;
    ck_assert_int_eq(last, 2 * SECOND);
    for (i = 0; i < 500; i++) {
        int64_t after = refused("GET /x", 0, 0).after;

        ck_assert_int_le(llabs(after - last - step), 1);
        last = after;
    }
    /* Time passes, and the line with it. */
    now += SECOND;
    ck_assert_int_le(llabs(refused("GET /x", 0, 0).after
                           - (last + step - SECOND)),
                     1);
}
END_TEST

/* A line of its own for each endpoint. */
START_TEST(endpoints_have_lines_of_their_own)
{
    int i;

    teach("GET /x", 0, 900000);
    teach("GET /y", 0, 900000);
    for (i = 0; i < 100; i++)
        refused("GET /x", 0, 0);
    ck_assert_int_eq(refused("GET /y", 0, 0).after, 2 * SECOND);
}
END_TEST

/* What heavier work has cannot be had by lighter. */
START_TEST(heavier_work_makes_the_line_longer)
{
    int64_t first, second;
    int i;

    reap(WORKER);
    teach("GET /heavy", 0, 5 * SECOND);
    teach("GET /x", 0, 90000);
    for (i = 0; i < 5; i++) {
        come_as("GET /heavy", 0, 0);
        enter_to(DBGUARD_ADMITTED);
    }
    come_as("GET /", 0, 0);
    for (i = 0; i < 5; i++)
        enter_to(DBGUARD_ADMITTED);
    first = refused("GET /x", 0, 0).after;
    second = refused("GET /x", 0, 0).after;
    ck_assert_int_le(llabs(second - first - 90000 * 10 / 9 / 5), 1);
}
END_TEST

START_TEST(a_session_keeps_its_place)
{
    int64_t mine, next;
    int i;

    teach("GET /x", 0, 900000);
    refused("GET /x", 1, 11);
    mine = now + refused("GET /x", 2, 12).after;
    next = now + refused("GET /x", 3, 13).after;
    for (i = 0; i < 20; i++) {
        now += 5000;
        ck_assert_int_eq(now + refused("GET /x", 2, 12).after,
                         mine > now + 2 * SECOND ? mine : now + 2 * SECOND);
    }
    /* Nobody was pushed back: the next one is where it would have been. */
    ck_assert_int_le(llabs(now + refused("GET /x", 4, 14).after
                           - (next + 100000)),
                     2);
}
END_TEST

/* The same address without sessions: the next ones behind the first, at the
 * same distances, and nobody else is pushed back. */
START_TEST(an_address_has_a_line_of_its_own)
{
    int64_t last, others;
    int i;

    teach("GET /x", 0, 900000);
    last = refused("GET /x", 1, 0).after;
    for (i = 0; i < 50; i++) {
        int64_t after = refused("GET /x", 1, 0).after;

        ck_assert_int_eq(after, last + 100000);
        last = after;
    }
    others = refused("GET /x", 2, 0).after;
    ck_assert_int_eq(others, 2 * SECOND + 100000);
}
END_TEST

/* A place at one endpoint says nothing of another. */
START_TEST(a_place_is_for_an_endpoint)
{
    int i;

    teach("GET /x", 0, 9 * SECOND);
    teach("GET /y", 0, 90000);
    for (i = 0; i < 20; i++)
        refused("GET /x", 100 + (uint64_t)i, 0);
    ck_assert_int_gt(refused("GET /x", 1, 11).after, 10 * SECOND);
    ck_assert_int_eq(refused("GET /y", 1, 11).after, 2 * SECOND);
}
END_TEST

START_TEST(never_nearer_or_further_than_may_be)
{
    dbguard_limits_t limits = board.shared->limits;
    int64_t last = 0;
    int i;

    limits.retry_min = 3 * SECOND;
    limits.retry_max = 7 * SECOND;
    dbguard_admission_configure(&board, &limits, now);
    teach("GET /x", 0, 900000);
    any_from(1);
    for (i = 0; i < 1000; i++) {
        dbguard_promise_t p = refused("GET /x", any(9), any(3));

        ck_assert_int_le(p.seconds, 7);
        ck_assert_int_ge(p.seconds, 3);
        last = p.after > last ? p.after : last;
    }
    ck_assert_int_eq(last, 7 * SECOND);
    limits.retry_min = limits.retry_max = 4 * SECOND;
    dbguard_admission_configure(&board, &limits, now);
    for (i = 0; i < 10; i++) {
        ck_assert_int_eq(refused("GET /y", any(9), any(3)).after, 4 * SECOND);
        ck_assert_int_eq(refused("GET /y", any(9), any(3)).seconds, 4);
    }
}
END_TEST

/* Of those that nobody knows, each gets a later place than the one before. */
START_TEST(places_never_go_back)
{
    int64_t place = 0, second = 0;
    int i;

    teach("GET /x", 0, 90000);
    any_from(2);
    for (i = 0; i < 3000; i++) {
        dbguard_promise_t p = refused("GET /x", 0, 0);

        ck_assert_int_ge(now + p.after, place);
        ck_assert_int_ge(now / SECOND + p.seconds, second);
        place = now + p.after;
        second = now / SECOND + p.seconds;
        now += any(20000);
        if (any(30) == 0)
            teach("GET /x", 0, 10000 + any(200000));
    }
}
END_TEST

/* No more are told the same second than find a token or a place: all of them
 * come at once. */
START_TEST(a_second_is_not_given_too_often)
{
    static int given[4000];
    int places = _i * 7, i;

    configure(BUDGET, (uint32_t)places, 0);
    board.shared->limits.retry_max = FAR;
    teach("GET /", 0, 2000);
    come_as("GET /", 0, 0);
    for (i = 0; i < places; i++)
        enter_to(DBGUARD_WAIT);
    for (i = 0; i < 4000; i++)
        given[i] = 0;
    for (i = 0; i < 1000; i++) {
        dbguard_promise_t p = refused("GET /", 1000 + (uint64_t)i, 0);

        if (++given[p.seconds] > BUDGET + places + 1)
            ck_abort_msg("%d were told to come in %ld s", given[p.seconds],
                         (long)p.seconds);
    }
    ck_assert_int_ge(given[2], BUDGET + places - 1);
}
END_TEST

/* Whoever comes when it was told, by either clock, is on time; whatever was
 * said last counts. */
START_TEST(what_was_said_counts)
{
    dbguard_promise_t p;
    uint32_t slot;
    int i;

    /* Of what is over soon, few a second are told in seconds, and all soon to
     * the millisecond. */
    teach("GET /x", 0, _i < 4 ? 900000 : 9000);
    for (i = 0; i < 37; i++)
        refused("GET /x", 100 + (uint64_t)i, 0);
    p = refused("GET /x", 1, 11);
    if (_i >= 4)
        ck_assert_int_gt(p.seconds * SECOND, p.after + 20 * SECOND);
    if (_i == 2 || _i == 3) { /* again, shortly before its place */
        now += p.after - SECOND / 10;
        p = refused("GET /x", 1, 11);
    }
    configure(BUDGET, 20, 0);
    now += _i % 2 ? p.seconds * SECOND : p.after;
    come_as("GET /x", 1, 11);
    slot = enter_to(DBGUARD_WAIT).slot;
    ck_assert_uint_eq(board.shared->slots[slot].lane, DBGUARD_ON_TIME);
}
END_TEST

/* An outage has nothing to do with tokens: evenly over ten seconds. */
START_TEST(an_outage_is_spread)
{
    int given[13] = {0}, i;

    board.shared->random = (uint64_t)_i * 2 + 1;
    board.shared->prefix.closed = 1;
    for (i = 0; i < 10000; i++) {
        dbguard_promise_t p = refused("GET /x", 0, 0);

        ck_assert_int_lt(p.after, 12 * SECOND);
        given[p.after / SECOND]++;
        ck_assert_int_le(p.seconds * SECOND, p.after);
        ck_assert_int_gt((p.seconds + 1) * SECOND, p.after);
    }
    for (i = 2; i < 12; i++)
        if (given[i] < 880 || given[i] > 1120) /* four standard deviations */
            ck_abort_msg("%d s was given %d times of 10000", i, given[i]);
}
END_TEST

Suite *retry_suite(void)
{
    Suite *s = suite_create("retry");
    TCase *tc = tcase_create("retry");

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, board_close_in_order);
    tcase_add_loop_test(tc, the_distance_is_that_of_tokens, 0, 4);
    tcase_add_test(tc, endpoints_have_lines_of_their_own);
    tcase_add_test(tc, heavier_work_makes_the_line_longer);
    tcase_add_test(tc, a_session_keeps_its_place);
    tcase_add_test(tc, an_address_has_a_line_of_its_own);
    tcase_add_test(tc, a_place_is_for_an_endpoint);
    tcase_add_test(tc, never_nearer_or_further_than_may_be);
    tcase_add_test(tc, places_never_go_back);
    tcase_add_loop_test(tc, a_second_is_not_given_too_often, 0, 3);
    tcase_add_loop_test(tc, what_was_said_counts, 0, 6);
    tcase_add_loop_test(tc, an_outage_is_spread, 0, 3);
    suite_add_tcase(s, tc);
    return s;
}
