/* The flight recorder: figures a second, rolled by the first event of a later
 * one, that still tell the truth about seconds in which nothing happened and
 * after the ring has gone round. */

#include <stdlib.h>

#include "unit.h"

#define SLOTS 32
#define SECONDS(n) ((n) * (int64_t)SECOND)

static void setup(void)
{
    board_open(SLOTS, 4, 8);
}

/* The second `ago` before the one that was complete last. */
static dbguard_second_t recent(const dbguard_snapshot_t *s, int ago)
{
    return s->recent[DBGUARD_RECENT - 1 - ago];
}

START_TEST(a_new_recorder)
{
    dbguard_snapshot_t *s;
    int i;

    now += SECONDS(90);
    s = snapshot();
    for (i = 0; i < DBGUARD_RECENT; i++) {
        ck_assert_int_eq(recent(s, i).second, now / SECOND - 1 - i);
        ck_assert_uint_eq(recent(s, i).held_max, 0);
        ck_assert_uint_eq(recent(s, i).admitted, 0);
    }
    ck_assert_uint_eq(s->minute.seconds, DBGUARD_RECENT);
    ck_assert_uint_eq(s->hour.seconds, DBGUARD_SECONDS - 1);
    ck_assert_uint_eq(s->hour.admitted, 0);
    free(s);
}
END_TEST

/* A clock that is younger than the ring is long. */
START_TEST(just_after_the_boot)
{
    dbguard_snapshot_t *s;

    for (now = 0; now < SECONDS(3); now += SECOND / 2) {
        leave(enter_to(DBGUARD_ADMITTED));
        free(snapshot());
    }
    s = snapshot();
    ck_assert_uint_eq(recent(s, 0).admitted, 2);
    ck_assert_uint_eq(recent(s, 1).admitted, 2);
    ck_assert_uint_eq(recent(s, 3).admitted, 0);
    free(s);
}
END_TEST

/* Everything that can happen, in one second. */
static void busy_second(void)
{
    dbguard_ticket_t t[13];
    int i;

    for (i = 0; i < 13; i++) /* 4 hold, 8 wait, 1 is refused */
        t[i] = enter().ticket;
    now += SECOND / 10;
    leave(t[11]); /* aborted */
    for (i = 0; i < 11; i++)
        leave(t[i]);
}

START_TEST(a_busy_second)
{
    dbguard_snapshot_t *s;
    dbguard_second_t t;

    busy_second();
    now = START + SECOND;
    s = snapshot();
    t = recent(s, 0);
    ck_assert_int_eq(t.second, START / SECOND);
    ck_assert_uint_eq(t.admitted, 11);
    ck_assert_uint_eq(t.refused, 1);
    ck_assert_uint_eq(t.aborted, 1);
    ck_assert_uint_eq(t.released, 11);
    ck_assert_uint_eq(t.held_max, 4);
    ck_assert_uint_eq(t.waiting_max, 8);
    ck_assert_uint_eq(t.held_last, 0);
    ck_assert_uint_eq(t.hold_us, 4 * SECOND / 10);
    ck_assert_uint_eq(s->minute.admitted, 11);
    ck_assert_uint_eq(s->minute.waiting_max, 8);
    ck_assert_uint_eq(s->hour.hold_us, 4 * SECOND / 10);
    free(s);
}
END_TEST

/* The second that is not over yet is not shown: it would always look like a
 * dip. */
START_TEST(the_present_second_is_not_shown)
{
    dbguard_snapshot_t *s;

    now += SECOND - 1;
    leave(enter_to(DBGUARD_ADMITTED));
    s = snapshot();
    ck_assert_uint_eq(s->minute.admitted, 0);
    free(s);
    now += 1;
    leave(enter_to(DBGUARD_ADMITTED));
    s = snapshot();
    ck_assert_uint_eq(s->minute.admitted, 1);
    free(s);
}
END_TEST

/* Levels go through the seconds without an event; flows do not. */
START_TEST(gaps_keep_the_level)
{
    dbguard_ticket_t t[3];
    dbguard_snapshot_t *s;
    int i;

    for (i = 0; i < 3; i++)
        t[i] = enter_to(DBGUARD_ADMITTED);
    now += SECONDS(10);
    leave(t[0]);
    leave(t[1]);
    now += SECONDS(5);
    leave(t[2]);
    now += SECONDS(4);
    s = snapshot();
    for (i = 0; i < DBGUARD_RECENT; i++) {
        dbguard_second_t r = recent(s, i);
        /* 3 s of none, then the last release, 4 of one, two releases, ... */
        uint32_t level = i < 3 ? 0 : i < 8 ? 1 : i < 19 ? 3 : 0;

        if (r.held_max != level)
            ck_abort_msg("%d s ago: %u", i, r.held_max);
        if (r.released != (i == 3 ? 1 : i == 8 ? 2 : 0)
            || r.admitted != (i == 18 ? 3 : 0))
            ck_abort_msg("%d s ago: a flow in the wrong second", i);
        ck_assert_int_eq(r.second, now / SECOND - 1 - i);
    }
    ck_assert_uint_eq(s->minute.held_max, 3);
    ck_assert_uint_eq(s->minute.admitted, 3);
    free(s);
}
END_TEST

/* What was out at the beginning of a second was out in it. */
START_TEST(a_release_does_not_hide_the_hold)
{
    dbguard_ticket_t t = enter_to(DBGUARD_ADMITTED);
    dbguard_snapshot_t *s;

    now += SECOND;
    leave(t);
    now += SECOND;
    s = snapshot();
    ck_assert_uint_eq(recent(s, 0).held_max, 1);
    ck_assert_uint_eq(recent(s, 0).held_last, 0);
    ck_assert_uint_eq(recent(s, 0).hold_us, SECOND);
    free(s);
}
END_TEST

/* A waiter looks four times a second: those who wait are in every second. */
START_TEST(waiters_are_seen)
{
    dbguard_ticket_t waits;
    dbguard_snapshot_t *s;
    int i;

    configure(1, 8, 0);
    enter_to(DBGUARD_ADMITTED);
    waits = enter_to(DBGUARD_WAIT);
    for (i = 0; i < 16; i++) {
        now += SECOND / 4;
        look(waits);
    }
    s = snapshot();
    for (i = 0; i < 4; i++)
        ck_assert_uint_eq(recent(s, i).waiting_max, 1);
    free(s);
}
END_TEST

/* An old entry at the same place of the ring says nothing about today. */
START_TEST(the_ring_wraps)
{
    dbguard_snapshot_t *s;
    dbguard_second_t *entry;

    busy_second();
    now = START + SECONDS(DBGUARD_SECONDS);
    leave(enter_to(DBGUARD_ADMITTED));
    entry = dbguard_board_second(board.shared, now);
    ck_assert_int_eq(entry->second, now / SECOND);
    ck_assert_uint_eq(entry->admitted, 1);
    ck_assert_uint_eq(entry->refused, 0);
    ck_assert_uint_eq(entry->held_max, 1);
    now += SECOND;
    s = snapshot();
    ck_assert_uint_eq(s->hour.admitted, 1);
    ck_assert_uint_eq(s->hour.refused, 0);
    ck_assert_uint_eq(s->hour.held_max, 1);
    free(s);
}
END_TEST

/* The hour that is shown: 3,599 complete seconds. */
START_TEST(the_hour_ends)
{
    static const struct {
        int64_t later;
        uint64_t admitted;
    } steps[] = {{1, 1}, {60, 1}, {3599, 1}, {3600, 0}, {3601, 0}, {7200, 0}};
    int i;

    leave(enter_to(DBGUARD_ADMITTED));
    for (i = 0; i < LENGTH(steps); i++) {
        dbguard_snapshot_t *s;

        now = START + SECONDS(steps[i].later);
        s = snapshot();
        if (s->hour.admitted != steps[i].admitted)
            ck_abort_msg("%d s later", (int)steps[i].later);
        ck_assert_uint_eq(s->minute.admitted, steps[i].later <= 60);
        free(s);
    }
}
END_TEST

/* One a second for three hours: the sums are those of the last stretch. */
START_TEST(three_hours)
{
    dbguard_snapshot_t *s;
    int i, j;

    for (i = 0; i < 3 * DBGUARD_SECONDS; i++) {
        for (j = 0; j < i % 3; j++)
            leave(enter_to(DBGUARD_ADMITTED));
        now += SECOND;
    }
    s = snapshot();
    ck_assert_uint_eq(s->minute.admitted, 60);
    ck_assert_uint_eq(s->hour.admitted, 3600); /* 1, 2, 0, 1, 2, ..., 1, 2 */
    ck_assert_uint_eq(s->hour.released, 3600);
    ck_assert_uint_eq(s->hour.held_max, 1);
    free(s);
}
END_TEST

/* Held for more than the ring remembers, with nothing going on. */
START_TEST(a_hold_longer_than_the_ring)
{
    dbguard_snapshot_t *s;

    enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_ADMITTED);
    now += SECONDS(3 * DBGUARD_SECONDS);
    s = snapshot();
    ck_assert_uint_eq(s->held, 2);
    ck_assert_uint_eq(recent(s, 0).held_max, 2);
    ck_assert_uint_eq(s->minute.held_max, 2);
    ck_assert_uint_eq(s->hour.held_max, 2);
    free(s);
}
END_TEST

/* Two processes read the clock on both sides of a full second and come to the
 * lock in the other order: nothing is lost. */
START_TEST(a_second_that_comes_late)
{
    dbguard_snapshot_t *s;

    now = START + SECOND;
    enter_to(DBGUARD_ADMITTED);
    now = START + SECOND - 1;
    enter_to(DBGUARD_ADMITTED);
    now = START + SECOND + 1;
    enter_to(DBGUARD_ADMITTED);
    now = START + SECONDS(2);
    s = snapshot();
    ck_assert_uint_eq(recent(s, 0).admitted, 2);
    ck_assert_uint_eq(recent(s, 1).admitted, 1);
    ck_assert_uint_eq(recent(s, 0).held_max, 3);
    ck_assert_uint_eq(recent(s, 0).held_last, 3);
    free(s);
}
END_TEST

Suite *recorder_suite(void)
{
    Suite *s = suite_create("recorder");
    TCase *tc = tcase_create("recorder");

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, board_close);
    tcase_add_test(tc, a_new_recorder);
    tcase_add_test(tc, just_after_the_boot);
    tcase_add_test(tc, a_busy_second);
    tcase_add_test(tc, the_present_second_is_not_shown);
    tcase_add_test(tc, gaps_keep_the_level);
    tcase_add_test(tc, a_release_does_not_hide_the_hold);
    tcase_add_test(tc, waiters_are_seen);
    tcase_add_test(tc, the_ring_wraps);
    tcase_add_test(tc, the_hour_ends);
    tcase_add_test(tc, three_hours);
    tcase_add_test(tc, a_hold_longer_than_the_ring);
    tcase_add_test(tc, a_second_that_comes_late);
    suite_add_tcase(s, tc);
    return s;
}
