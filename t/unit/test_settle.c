/* A token that came back counts as out for a moment more, until the database
 * has noticed: whoever gets it meanwhile begins at the end of that moment, and
 * nobody waits who need not. And a board that an upgrade has closed gives
 * nothing out any more. */

#include <stdlib.h>

#include "settle.h"
#include "unit.h"

#define SLOTS 16
#define SETTLE 2000
#define PACE 500

static void setup(void)
{
    board_open(SLOTS, 1, 8);
    board.shared->limits.settle = SETTLE;
}

static dbguard_decision_t admitted(void)
{
    dbguard_decision_t d = enter();

    ck_assert_int_eq(d.outcome, DBGUARD_ADMITTED);
    return d;
}

static void hold(dbguard_ticket_t *t, int n)
{
    while (n-- > 0)
        *t++ = admitted().ticket;
}

static void queue_up(dbguard_ticket_t *t, int n)
{
    while (n-- > 0)
        *t++ = enter_to(DBGUARD_WAIT);
}

static void leave_all(const dbguard_ticket_t *t, int n)
{
    while (n-- > 0)
        leave(*t++);
}

static void be_paced(uint32_t budget)
{
    configure(budget, 8, 0);
    board.shared->limits.pace = PACE;
}

START_TEST(a_fresh_token_needs_no_time)
{
    ck_assert_int_eq(admitted().start, now);
    board_expect(1, 0);
}
END_TEST

START_TEST(a_returned_token_settles)
{
    dbguard_decision_t d = admitted();

    now += 100;
    leave(d.ticket);
    board_expect(0, 0);
    ck_assert_uint_eq(board.shared->settling, 1);
    now += 500;
    d = admitted();
    ck_assert_int_eq(d.start, START + 100 + SETTLE);
    ck_assert_int_eq(look(d.ticket).start, d.start);
    ck_assert_uint_eq(board.shared->settling, 0);
    board_expect(1, 0);
}
END_TEST

START_TEST(after_that_it_is_as_new)
{
    int64_t late;

    for (late = -1; late <= 1; late++) {
        leave(admitted().ticket);
        now += SETTLE + late;
        ck_assert_int_eq(admitted().start, now + (late < 0));
        reap(WORKER);
        now += SECOND;
    }
}
END_TEST

START_TEST(it_is_retired_by_whatever_comes_next)
{
    dbguard_ticket_t none = {0, 0};

    leave(admitted().ticket);
    now += SETTLE;
    ck_assert_uint_eq(board.shared->settling, 1);
    look(none);
    ck_assert_uint_eq(board.shared->settling, 0);
    board_expect(0, 0);
    board_exhaust();
}
END_TEST

/* It is the waiter's at once, so that nobody can take it; only its use is
 * later. */
START_TEST(a_hand_over_settles)
{
    dbguard_decision_t d = admitted();
    dbguard_ticket_t waits = enter_to(DBGUARD_WAIT);

    now += SECOND;
    leave(d.ticket);
    ck_assert_int_eq(state_of(waits), DBGUARD_HELD);
    ck_assert_int_eq(posts(waits), 1);
    ck_assert_uint_eq(board.shared->settling, 0);
    enter_to(DBGUARD_WAIT);
    d = look(waits);
    ck_assert_int_eq(d.outcome, DBGUARD_ADMITTED);
    ck_assert_int_eq(d.start, START + SECOND + SETTLE);
    ck_assert_int_eq(d.waited, SECOND + SETTLE);
    ck_assert_uint_eq(counters()->wait_us, SECOND + SETTLE);
    now += SETTLE + 70;
    ck_assert_int_eq(leave(waits), 70); /* held from its start on */
}
END_TEST

/* It leaves before it could begin: no time was held, and the token settles
 * from then on. */
START_TEST(leaving_before_the_start)
{
    dbguard_decision_t d = admitted();

    leave(d.ticket);
    now += 100;
    d = admitted();
    now += 100;
    ck_assert_int_eq(leave(d.ticket), 0);
    ck_assert_int_eq(admitted().start, START + 200 + SETTLE);
}
END_TEST

/* Those that are ready are taken before those that are not. */
START_TEST(the_one_that_is_ready_first)
{
    dbguard_ticket_t t[4];
    int i;

    configure(5, 8, 0);
    hold(t, 4);
    for (i = 0; i < 4; i++) {
        leave(t[i]);
        now += 100;
    }
    ck_assert_uint_eq(board.shared->settling, 4);
    ck_assert_int_eq(admitted().start, now); /* the fifth */
    for (i = 0; i < 4; i++)
        ck_assert_int_eq(admitted().start, START + i * 100 + SETTLE);
    enter_to(DBGUARD_WAIT);
    board_expect(5, 1);
}
END_TEST

START_TEST(what_a_dead_process_held_settles)
{
    admitted();
    now += SECOND;
    ck_assert_uint_eq(reap(WORKER), 1);
    ck_assert_uint_eq(board.shared->settling, 1);
    ck_assert_uint_eq(reap(WORKER), 0); /* nobody owns it */
    ck_assert_int_eq(admitted().start, now + SETTLE);
}
END_TEST

/* So that the database has time for each. */
START_TEST(those_that_come_back_together_follow_one_another)
{
    dbguard_ticket_t t[4];
    int i;

    be_paced(4);
    hold(t, 4);
    now += SECOND;
    leave_all(t, 4);
    for (i = 0; i < 4; i++)
        ck_assert_int_eq(admitted().start, now + SETTLE + i * PACE);
}
END_TEST

START_TEST(one_that_comes_later_is_not_held_up)
{
    dbguard_ticket_t first, second;

    be_paced(2);
    first = admitted().ticket;
    second = admitted().ticket;
    leave(first);
    now += 500;
    leave(second);
    admitted();
    ck_assert_int_eq(admitted().start, now + SETTLE);
}
END_TEST

/* Whoever waits gets it at its pace, too, and a hand-over is remembered. */
START_TEST(hand_overs_follow_one_another)
{
    dbguard_ticket_t t[4], waits[4];
    int i;

    be_paced(4);
    hold(t, 4);
    queue_up(waits, 4);
    now += SECOND;
    leave_all(t, 4);
    for (i = 0; i < 4; i++)
        ck_assert_int_eq(look(waits[i]).start, now + SETTLE + i * PACE);
}
END_TEST

/* A larger budget is back as soon as one of twenty. */
START_TEST(a_large_budget_follows_faster)
{
    dbguard_ticket_t t[SLOTS];
    int i;

    be_paced(200);
    hold(t, SLOTS);
    now += SECOND;
    leave_all(t, SLOTS);
    for (i = 0; i < SLOTS; i++)
        ck_assert_int_eq(board.shared->slots[t[i].slot].released,
                         now + i * 50);
}
END_TEST

/* Those who come and hang up again and again put nothing off for the others:
 * twenty paces, and no more. */
START_TEST(nothing_is_put_off_for_long)
{
    int i;

    board.shared->limits.pace = PACE;
    for (i = 0; i < 1000; i++)
        leave(admitted().ticket);
    ck_assert_int_eq(admitted().start, now + SETTLE + 20 * PACE);
}
END_TEST

/* Twenty of a budget of twenty: the last one nineteen paces later. */
START_TEST(a_whole_budget_follows_one_another)
{
    dbguard_ticket_t t[20];
    int i;

    board_close_in_order();
    board_open(24, 20, 0);
    board.shared->limits.settle = SETTLE;
    board.shared->limits.pace = PACE;
    hold(t, 20);
    now += SECOND;
    leave_all(t, 20);
    for (i = 0; i < 20; i++)
        ck_assert_int_eq(admitted().start, now + SETTLE + i * PACE);
}
END_TEST

/* Who reads his clock before the lock may come after one who read it later. */
START_TEST(crossing_clocks_leave_them_in_order)
{
    dbguard_ticket_t first, second;

    configure(2, 8, 0);
    first = admitted().ticket;
    second = admitted().ticket;
    now += 100;
    leave(first);
    now -= 60;
    leave(second);
    ck_assert_int_eq(admitted().start, START + 100 + SETTLE);
    ck_assert_int_eq(admitted().start, START + 100 + SETTLE);
}
END_TEST

/* A smaller budget does not make those free that settle: a larger one again
 * finds them settling. */
START_TEST(a_budget_that_falls_and_rises_lets_them_settle)
{
    dbguard_ticket_t t[4];
    int i;

    configure(4, 8, 0);
    hold(t, 4);
    leave_all(t, 3);
    configure(2, 8, 0);
    ck_assert_int_eq(admitted().start, now + SETTLE);
    configure(4, 8, 0);
    for (i = 0; i < 2; i++)
        ck_assert_int_eq(admitted().start, now + SETTLE);
    board_expect(4, 0);
}
END_TEST

/* Somebody dies when he knows when it begins, and before it is his. */
START_TEST(looking_when_one_is_ready_changes_nothing)
{
    leave(admitted().ticket);
    ck_assert_int_eq(dbguard_settle_start(board.shared, 1, now), now + SETTLE);
    dbguard_board_rebuild(board.shared);
    ck_assert_uint_eq(board.shared->settling, 1);
    ck_assert_int_eq(admitted().start, now + SETTLE);
}
END_TEST

/* Handed over, so that nothing settles; the pace goes on all the same. */
START_TEST(rebuild_knows_the_pace)
{
    dbguard_ticket_t t[4], waits[4];

    be_paced(4);
    hold(t, 4);
    queue_up(waits, 4);
    now += SECOND;
    leave_all(t, 3);
    ck_assert_uint_eq(board.shared->settling, 0);
    dbguard_board_rebuild(board.shared);
    leave(t[3]);
    ck_assert_int_eq(look(waits[3]).start, now + SETTLE + 3 * PACE);
}
END_TEST

START_TEST(rebuild_knows_the_pace_of_those_that_settle)
{
    dbguard_ticket_t t[3];
    int i;

    be_paced(3);
    hold(t, 3);
    leave(t[0]);
    leave(t[1]);
    dbguard_board_rebuild(board.shared);
    leave(t[2]);
    for (i = 0; i < 3; i++)
        ck_assert_int_eq(admitted().start,
                         now + SETTLE + (i < 2 ? PACE : 2 * PACE));
}
END_TEST

START_TEST(a_settling_ticket_is_over)
{
    dbguard_ticket_t ticket = admitted().ticket;
    int64_t held;

    leave(ticket);
    ck_assert_int_eq(state_of(ticket), DBGUARD_SETTLING);
    ck_assert_int_eq(dbguard_admission_leave(&board, ticket, now, &held),
                     APR_NOTFOUND);
    ck_assert_int_eq(look(ticket).outcome, DBGUARD_REFUSED);
    ck_assert_uint_eq(board.shared->settling, 1);
}
END_TEST

START_TEST(dryrun_delays_nobody)
{
    configure(1, 8, 1);
    leave(admitted().ticket);
    now += 1;
    ck_assert_int_eq(admitted().start, now);
}
END_TEST

/* Slots that settle are not lost to those who come: the table holds as many
 * requests as it has slots. */
START_TEST(settling_takes_no_slot_away)
{
    dbguard_ticket_t t[SLOTS];
    int i;

    configure(SLOTS, 0, 0);
    hold(t, SLOTS);
    leave_all(t, SLOTS);
    ck_assert_uint_eq(board.shared->settling, SLOTS);
    for (i = 0; i < SLOTS; i++)
        admitted();
    board_expect(SLOTS, 0);
}
END_TEST

/* Three come back one after another, then the budget falls to two, of which
 * one is out: the other one may begin when one at most still settles. */
START_TEST(a_smaller_budget_lets_enough_settle)
{
    dbguard_ticket_t t[4];
    int i;

    configure(4, 8, 0);
    hold(t, 4);
    for (i = 0; i < 3; i++) {
        leave(t[i]);
        now += 100;
    }
    configure(2, 8, 0);
    ck_assert_int_eq(admitted().start, START + 200 + SETTLE);
    board_expect(2, 0);
}
END_TEST

START_TEST(rebuild_knows_what_settles)
{
    dbguard_ticket_t t[4];
    int64_t starts = 0;
    int i;

    configure(4, 8, 0);
    hold(t, 4);
    for (i = 0; i < 4; i++) {
        leave(t[3 - i]);
        now += 100;
    }
    dbguard_board_rebuild(board.shared);
    board_expect(0, 0);
    ck_assert_uint_eq(board.shared->settling, 4);
    for (i = 0; i < 4; i++) /* all as the last one */
        starts += admitted().start - START;
    ck_assert_int_eq(starts, 4 * (300 + SETTLE));
    enter_to(DBGUARD_WAIT);
}
END_TEST

/* --- closed --------------------------------------------------------------- */

START_TEST(a_closed_board_refuses)
{
    dbguard_decision_t d;

    board.shared->prefix.closed = 1;
    d = enter();
    ck_assert_int_eq(d.outcome, DBGUARD_REFUSED);
    ck_assert_int_eq(d.reason, DBGUARD_REASON_BOARD);
    ck_assert_uint_eq(d.ticket.serial, 0);
    ck_assert_int_ge(d.retry.after, 2 * SECOND);
    ck_assert_uint_eq(counters()->refused_board, 1);
    board_expect(0, 0);
}
END_TEST

START_TEST(a_closed_board_takes_back)
{
    dbguard_ticket_t holds = admitted().ticket, waits[3];
    int i;

    queue_up(waits, 3);
    board.shared->prefix.closed = 1;
    now += 10;
    ck_assert_int_eq(leave(holds), 10);
    board_expect(0, 0);
    for (i = 0; i < 3; i++) {
        ck_assert_int_eq(posts(waits[i]), 1);
        ck_assert_int_eq(look(waits[i]).reason, DBGUARD_REASON_BOARD);
    }
    ck_assert_uint_eq(counters()->admitted, 1);
    ck_assert_uint_eq(counters()->refused_board, 3);
    board.shared->prefix.closed = 0;
    now += SETTLE;
    board_exhaust();
}
END_TEST

/* Those who wait find out at their next look, not at their deadline. */
START_TEST(a_closed_board_is_noticed)
{
    dbguard_ticket_t waits;

    admitted();
    waits = enter_to(DBGUARD_WAIT);
    board.shared->prefix.closed = 1;
    look(waits);
    ck_assert_int_eq(posts(waits), 1);
    ck_assert_int_eq(look(waits).reason, DBGUARD_REASON_BOARD);
    board_expect(1, 0);
}
END_TEST

START_TEST(a_closed_board_in_dryrun)
{
    dbguard_decision_t d;

    configure(1, 8, 1);
    board.shared->prefix.closed = 1;
    d = enter();
    ck_assert_int_eq(d.outcome, DBGUARD_ADMITTED);
    ck_assert_int_eq(d.would, DBGUARD_REFUSED);
    ck_assert_int_eq(d.reason, DBGUARD_REASON_BOARD);
    ck_assert_int_eq(state_of(d.ticket), DBGUARD_EXPELLED);
    board_expect(0, 0);
    ck_assert_int_eq(leave(d.ticket), 0);
    ck_assert_int_eq(state_of(d.ticket), DBGUARD_FREE);
}
END_TEST

/* After a repair none is free before it has settled. */
START_TEST(rebuild_lets_all_of_them_settle)
{
    dbguard_ticket_t t[4];
    int i;

    configure(4, 8, 0);
    hold(t, 4);
    for (i = 0; i < 4; i++) {
        leave(t[(i * 3 + _i) % 4]);
        now += 100;
    }
    dbguard_board_rebuild(board.shared);
    for (i = 0; i < 4; i++)
        ck_assert_int_ge(admitted().start, START + i * 100 + SETTLE);
}
END_TEST

Suite *settle_suite(void)
{
    Suite *s = suite_create("settle");
    TCase *tc = tcase_create("settle");

    tcase_add_checked_fixture(tc, setup, board_close_in_order);
    tcase_add_test(tc, a_fresh_token_needs_no_time);
    tcase_add_test(tc, a_returned_token_settles);
    tcase_add_test(tc, after_that_it_is_as_new);
    tcase_add_test(tc, it_is_retired_by_whatever_comes_next);
    tcase_add_test(tc, a_hand_over_settles);
    tcase_add_test(tc, leaving_before_the_start);
    tcase_add_test(tc, the_one_that_is_ready_first);
    tcase_add_test(tc, what_a_dead_process_held_settles);
    tcase_add_test(tc, those_that_come_back_together_follow_one_another);
    tcase_add_test(tc, one_that_comes_later_is_not_held_up);
    tcase_add_test(tc, hand_overs_follow_one_another);
    tcase_add_test(tc, a_large_budget_follows_faster);
    tcase_add_test(tc, nothing_is_put_off_for_long);
    tcase_add_test(tc, a_whole_budget_follows_one_another);
    tcase_add_test(tc, crossing_clocks_leave_them_in_order);
    tcase_add_test(tc, a_budget_that_falls_and_rises_lets_them_settle);
    tcase_add_test(tc, looking_when_one_is_ready_changes_nothing);
    tcase_add_test(tc, rebuild_knows_the_pace);
    tcase_add_test(tc, rebuild_knows_the_pace_of_those_that_settle);
    tcase_add_test(tc, a_settling_ticket_is_over);
    tcase_add_test(tc, dryrun_delays_nobody);
    tcase_add_test(tc, settling_takes_no_slot_away);
    tcase_add_test(tc, a_smaller_budget_lets_enough_settle);
    tcase_add_test(tc, rebuild_knows_what_settles);
    tcase_add_loop_test(tc, rebuild_lets_all_of_them_settle, 0, 4);
    suite_add_tcase(s, tc);

    tc = tcase_create("closed");
    tcase_add_checked_fixture(tc, setup, board_close_in_order);
    tcase_add_test(tc, a_closed_board_refuses);
    tcase_add_test(tc, a_closed_board_takes_back);
    tcase_add_test(tc, a_closed_board_is_noticed);
    tcase_add_test(tc, a_closed_board_in_dryrun);
    suite_add_tcase(s, tc);
    return s;
}
