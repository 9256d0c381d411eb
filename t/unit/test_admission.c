/* The three verbs: a strict limit, first come first served, a token handed
 * from hand to hand, bounded and patient waiting, leaving exactly once, taking
 * back from the dead, and counters that account for everybody. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

#define SLOTS 64

static void setup(void)
{
    board_open(SLOTS, 2, 8);
}

/* --- the limit ------------------------------------------------------------ */

START_TEST(never_more_than_the_budget)
{
    dbguard_ticket_t first, second;
    dbguard_decision_t d;

    configure(2, 0, 0);
    first = enter_to(DBGUARD_ADMITTED);
    second = enter_to(DBGUARD_ADMITTED);
    board_expect(2, 0);
    d = enter();
    ck_assert_int_eq(d.outcome, DBGUARD_REFUSED);
    ck_assert_int_eq(d.would, DBGUARD_REFUSED);
    ck_assert_int_eq(d.reason, DBGUARD_REASON_BUDGET);
    ck_assert_uint_eq(d.ticket.serial, 0);
    board_expect(2, 0);

    leave(first);
    first = enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_REFUSED);
    leave(second);
    leave(first);
    board_exhaust();
}
END_TEST

START_TEST(an_admitted_one)
{
    dbguard_decision_t d = enter();
    const dbguard_slot_t *s = &board.shared->slots[d.ticket.slot];

    ck_assert_int_eq(d.outcome, DBGUARD_ADMITTED);
    ck_assert_int_eq(d.would, DBGUARD_ADMITTED);
    ck_assert_int_eq(d.reason, DBGUARD_REASON_NONE);
    ck_assert_uint_gt(d.ticket.serial, 0);
    ck_assert_int_eq(d.waited, 0);
    ck_assert_int_eq(s->state, DBGUARD_HELD);
    ck_assert_int_eq(s->since, START);
    ck_assert_int_eq(s->granted, START);
    ck_assert_int_eq(s->visitor.pid, WORKER);
    ck_assert_str_eq(s->visitor.endpoint, "GET /");
    now += 123;
    ck_assert_int_eq(look(d.ticket).outcome, DBGUARD_ADMITTED);
    ck_assert_int_eq(leave(d.ticket), 123);
    ck_assert_uint_eq(counters()->hold_us, 123);
}
END_TEST

START_TEST(the_peak_is_kept)
{
    dbguard_ticket_t first = enter_to(DBGUARD_ADMITTED);

    leave(enter_to(DBGUARD_ADMITTED));
    leave(first);
    leave(enter_to(DBGUARD_ADMITTED));
    ck_assert_uint_eq(board.shared->held_peak, 2);
}
END_TEST

/* --- order ---------------------------------------------------------------- */

START_TEST(first_come_first_served)
{
    dbguard_ticket_t holds, t[8];
    int i;

    configure(1, 8, 0);
    holds = enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < 8; i++) {
        now += 10;
        t[i] = enter_to(DBGUARD_WAIT);
        board_expect(1, (uint32_t)i + 1);
    }
    for (i = 0; i < 8; i++) {
        leave(holds);
        board_expect(1, (uint32_t)(7 - i));
        if (state_of(t[i]) != DBGUARD_HELD)
            ck_abort_msg("not the one who came first");
        holds = t[i];
    }
    leave(holds);
    board_expect(0, 0);
}
END_TEST

/* The token is the waiter's before anybody else can ask for it, and before
 * the waiter itself has looked. */
START_TEST(a_token_is_handed_over)
{
    dbguard_ticket_t holds, waits, late;
    dbguard_decision_t d;

    configure(1, 8, 0);
    holds = enter_to(DBGUARD_ADMITTED);
    waits = enter_to(DBGUARD_WAIT);
    now += 1000;
    leave(holds);
    ck_assert_int_eq(state_of(waits), DBGUARD_HELD);
    ck_assert_int_eq(posts(waits), 1);
    late = enter_to(DBGUARD_WAIT);
    now += 500;
    d = look(waits);
    ck_assert_int_eq(d.outcome, DBGUARD_ADMITTED);
    ck_assert_int_eq(d.waited, 1000);
    ck_assert_int_eq(look(late).outcome, DBGUARD_WAIT);
    ck_assert_int_eq(posts(late), 0);
    ck_assert_int_eq(leave(waits), 500);
    ck_assert_int_eq(look(late).outcome, DBGUARD_ADMITTED);
    leave(late);
}
END_TEST

/* Whoever comes while somebody waits is behind it, whatever happens. */
START_TEST(nobody_barges_in)
{
    dbguard_ticket_t t[200];
    int first = 0, next = 0, i;

    configure(2, 8, 0);
    while (next < 10)
        t[next++] = enter().ticket;
    for (i = 0; i < 150; i++) {
        now += 100;
        leave(t[first++]);
        t[next++] = enter_to(DBGUARD_WAIT);
        if (state_of(t[first + 1]) != DBGUARD_HELD)
            ck_abort_msg("a token went past the queue");
        board_expect(2, 8);
    }
    ck_assert_uint_eq(counters()->refused, 0);
}
END_TEST

START_TEST(leaving_the_queue_keeps_the_order)
{
    dbguard_ticket_t holds, t[5];
    int i;

    configure(1, 8, 0);
    holds = enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < 5; i++)
        t[i] = enter_to(DBGUARD_WAIT);
    leave(t[0]); /* head */
    board_expect(1, 4);
    leave(t[2]); /* middle */
    board_expect(1, 3);
    leave(t[4]); /* tail */
    board_expect(1, 2);
    leave(holds);
    ck_assert_int_eq(state_of(t[1]), DBGUARD_HELD);
    leave(t[1]);
    ck_assert_int_eq(state_of(t[3]), DBGUARD_HELD);
    leave(t[3]);
    board_expect(0, 0);
}
END_TEST

/* --- a bounded queue ------------------------------------------------------ */

START_TEST(the_queue_is_bounded)
{
    dbguard_ticket_t first, second, waits;

    configure(2, 2, 0);
    first = enter_to(DBGUARD_ADMITTED);
    second = enter_to(DBGUARD_ADMITTED);
    waits = enter_to(DBGUARD_WAIT);
    enter_to(DBGUARD_WAIT);
    ck_assert_int_eq(enter().reason, DBGUARD_REASON_BUDGET);
    leave(waits); /* its place is free */
    enter_to(DBGUARD_WAIT);
    ck_assert_int_eq(enter().reason, DBGUARD_REASON_BUDGET);
    leave(first); /* so is that of the one who got the token */
    enter_to(DBGUARD_WAIT);
    ck_assert_int_eq(enter().reason, DBGUARD_REASON_BUDGET);
    leave(second);
    board_expect(2, 1);
    ck_assert_uint_eq(counters()->refused_budget, 3);
}
END_TEST

START_TEST(no_slot_left)
{
    dbguard_decision_t d;
    dbguard_ticket_t last = {0, 0};
    int i;

    configure(2, 2 * SLOTS, 0);
    for (i = 0; i < SLOTS; i++)
        last = enter().ticket;
    board_expect(2, SLOTS - 2);
    d = enter();
    ck_assert_int_eq(d.outcome, DBGUARD_REFUSED);
    ck_assert_int_eq(d.reason, DBGUARD_REASON_BOARD);
    ck_assert_uint_eq(d.ticket.serial, 0);
    ck_assert_uint_eq(counters()->refused_board, 1);
    leave(last);
    enter_to(DBGUARD_WAIT);
    board_expect(2, SLOTS - 2);
}
END_TEST

/* A storm of refusals takes nothing from anybody. */
START_TEST(refusals_cost_nothing)
{
    dbguard_ticket_t t[2];
    int i;

    configure(2, 0, 0);
    t[0] = enter_to(DBGUARD_ADMITTED);
    t[1] = enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < 5000; i++)
        enter_to(DBGUARD_REFUSED);
    board_expect(2, 0);
    leave(t[0]);
    leave(enter_to(DBGUARD_ADMITTED));
    leave(t[1]);
    ck_assert_uint_eq(counters()->refused, 5000);
    board_exhaust();
}
END_TEST

/* --- patience ------------------------------------------------------------- */

static dbguard_ticket_t take_all(void)
{
    dbguard_ticket_t holds;

    configure(1, 8, 0);
    holds = enter_to(DBGUARD_ADMITTED);
    return holds;
}

START_TEST(patience_ends_by_poll)
{
    dbguard_decision_t d;
    dbguard_ticket_t waits;

    take_all();
    now += 7;
    d = enter();
    waits = d.ticket;
    ck_assert_int_eq(d.outcome, DBGUARD_WAIT);
    ck_assert_int_eq(d.deadline, START + 7 + PATIENCE);

    now += PATIENCE - 1;
    d = look(waits);
    ck_assert_int_eq(d.outcome, DBGUARD_WAIT);
    ck_assert_int_eq(d.waited, PATIENCE - 1);
    ck_assert_int_eq(d.deadline, START + 7 + PATIENCE);
    board_expect(1, 1);

    now += 1;
    d = look(waits);
    ck_assert_int_eq(d.outcome, DBGUARD_REFUSED);
    ck_assert_int_eq(d.reason, DBGUARD_REASON_TIMEOUT);
    ck_assert_int_eq(d.waited, PATIENCE);
    ck_assert_uint_eq(d.ticket.serial, 0);
    ck_assert_int_ge(d.retry.after, 2 * SECOND);
    ck_assert_int_eq(state_of(waits), DBGUARD_FREE);
    board_expect(1, 0);
    ck_assert_uint_eq(counters()->refused_timeout, 1);
    ck_assert_uint_eq(counters()->refused, 1);
    ck_assert_int_eq(look(waits).reason, DBGUARD_REASON_BOARD);
    ck_assert_uint_eq(counters()->refused, 1);
}
END_TEST

/* Nobody looked: the hand-over finds out, and goes on to one with patience. */
START_TEST(patience_ends_by_dispatch)
{
    dbguard_ticket_t holds = take_all(), late, later, third;
    dbguard_decision_t d;

    late = enter_to(DBGUARD_WAIT);
    later = enter_to(DBGUARD_WAIT);
    now += PATIENCE - 1;
    third = enter_to(DBGUARD_WAIT);
    now += 1;
    leave(holds);
    ck_assert_int_eq(state_of(late), DBGUARD_EXPELLED);
    ck_assert_int_eq(state_of(later), DBGUARD_EXPELLED);
    ck_assert_int_eq(state_of(third), DBGUARD_HELD);
    board_expect(1, 0);
    ck_assert_int_eq(posts(late), 1);
    ck_assert_int_eq(posts(third), 1);
    ck_assert_uint_eq(counters()->refused_timeout, 2);

    d = look(late);
    ck_assert_int_eq(d.outcome, DBGUARD_REFUSED);
    ck_assert_int_eq(d.reason, DBGUARD_REASON_TIMEOUT);
    ck_assert_int_eq(state_of(late), DBGUARD_FREE);
    ck_assert_int_eq(look(third).waited, 1);
    ck_assert_int_eq(look(later).reason, DBGUARD_REASON_TIMEOUT);
    ck_assert_uint_eq(counters()->refused_timeout, 2);
    leave(third);
    board_exhaust();
}
END_TEST

START_TEST(all_are_late_and_the_token_stays)
{
    dbguard_ticket_t holds = take_all(), late[3];
    int i;

    for (i = 0; i < 3; i++)
        late[i] = enter_to(DBGUARD_WAIT);
    now += PATIENCE;
    leave(holds);
    board_expect(0, 0);
    holds = enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < 3; i++)
        ck_assert_int_eq(look(late[i]).reason, DBGUARD_REASON_TIMEOUT);
    board_expect(1, 0);
    leave(holds);
    board_exhaust();
}
END_TEST

/* It had its token in time, and looks late. */
START_TEST(a_token_in_time_is_kept)
{
    dbguard_ticket_t holds = take_all();
    dbguard_ticket_t waits = enter_to(DBGUARD_WAIT);
    dbguard_decision_t d;

    now += PATIENCE - 1;
    leave(holds);
    now += 10 * PATIENCE;
    d = look(waits);
    ck_assert_int_eq(d.outcome, DBGUARD_ADMITTED);
    ck_assert_int_eq(d.waited, PATIENCE - 1);
    leave(waits);
}
END_TEST

static int64_t automatic_patience(int64_t hold, int times)
{
    dbguard_limits_t limits = board.shared->limits;
    dbguard_ticket_t waits;
    dbguard_decision_t d;

    limits.patience = 0;
    dbguard_admission_configure(&board, &limits, now);
    come_as("GET /new", 0, 0);
    while (times-- > 0) {
        dbguard_ticket_t t = enter_to(DBGUARD_ADMITTED);

        now += hold;
        leave(t);
    }
    enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_ADMITTED);
    d = enter();
    waits = d.ticket;
    ck_assert_int_eq(d.outcome, DBGUARD_WAIT);
    ck_assert_int_eq(look(waits).deadline, d.deadline);
    return d.deadline - now;
}

/* Six mean holds of the endpoint, from 1 s to 10 s; half a second is the guess
 * at first. */
START_TEST(automatic_patience_follows_the_holds)
{
    int64_t patience = automatic_patience(0, 0);

    ck_assert_int_eq(patience, 3 * SECOND);
    board_again(2, 8);
    ck_assert_int_eq(automatic_patience(6000, 300), SECOND);
    board_again(2, 8);
    ck_assert_int_eq(automatic_patience(20 * SECOND, 300), 10 * SECOND);
    board_again(2, 8);
    patience = automatic_patience(SECOND, 300);
    ck_assert_int_eq(patience, 6 * SECOND);
}
END_TEST

START_TEST(the_mean_hold_follows)
{
    int64_t mean = board.shared->hold;
    int i;

    ck_assert_int_eq(mean, SECOND / 2);
    for (i = 0; i < 200; i++) {
        dbguard_ticket_t t = enter_to(DBGUARD_ADMITTED);

        now += 3 * SECOND;
        leave(t);
        ck_assert_int_ge(board.shared->hold, mean);
        mean = board.shared->hold;
    }
    ck_assert_int_gt(mean, 3 * SECOND - 100);
    ck_assert_int_le(mean, 3 * SECOND);
}
END_TEST

/* --- leaving -------------------------------------------------------------- */

START_TEST(leaving_while_waiting)
{
    dbguard_ticket_t holds = take_all();
    dbguard_ticket_t waits = enter_to(DBGUARD_WAIT);

    now += 100;
    ck_assert_int_eq(leave(waits), -1);
    board_expect(1, 0);
    ck_assert_uint_eq(counters()->aborted, 1);
    ck_assert_uint_eq(counters()->released, 0);
    leave(holds);
    board_expect(0, 0);
    ck_assert_uint_eq(counters()->admitted, 1);
}
END_TEST

/* The client hung up in the very moment when its token came. */
START_TEST(leaving_with_a_token_not_yet_seen)
{
    dbguard_ticket_t holds = take_all();
    dbguard_ticket_t waits = enter_to(DBGUARD_WAIT);
    dbguard_ticket_t next = enter_to(DBGUARD_WAIT);
    int64_t mean;

    leave(holds);
    mean = board.shared->hold;
    now += 5;
    ck_assert_int_eq(leave(waits), 5);
    ck_assert_int_eq(board.shared->hold, mean); /* it says nothing of holds */
    ck_assert_int_eq(state_of(next), DBGUARD_HELD);
    ck_assert_uint_eq(counters()->aborted, 0);
    ck_assert_uint_eq(counters()->released, 2);
    board_expect(1, 0);
}
END_TEST

START_TEST(leaving_when_expelled)
{
    dbguard_ticket_t holds = take_all();
    dbguard_ticket_t late = enter_to(DBGUARD_WAIT);

    now += PATIENCE;
    leave(holds);
    ck_assert_int_eq(state_of(late), DBGUARD_EXPELLED);
    ck_assert_int_eq(leave(late), -1);
    ck_assert_uint_eq(counters()->aborted, 0);
    ck_assert_uint_eq(counters()->refused, 1);
    board_exhaust();
}
END_TEST

/* Nothing on the board may change, not even a counter. */
static void expect_not_found(dbguard_ticket_t ticket)
{
    dbguard_counters_t before = *counters();
    uint32_t held = board.shared->prefix.held;
    uint32_t waiting = board.shared->prefix.waiting;
    dbguard_decision_t d;
    int64_t out;

    ck_assert_int_eq(dbguard_admission_leave(&board, ticket, now, &out),
                     APR_NOTFOUND);
    ck_assert_int_eq(out, -1);
    d = look(ticket);
    ck_assert_int_eq(d.outcome, DBGUARD_REFUSED);
    ck_assert_int_eq(d.reason, DBGUARD_REASON_BOARD);
    ck_assert_uint_eq(d.ticket.serial, 0);
    ck_assert_int_eq(memcmp(&before, counters(), sizeof(before)), 0);
    board_expect(held, waiting);
}

START_TEST(leaving_twice)
{
    dbguard_ticket_t holds = take_all();
    dbguard_ticket_t waits = enter_to(DBGUARD_WAIT);

    leave(waits);
    expect_not_found(waits);
    leave(holds);
    expect_not_found(holds);
    expect_not_found(holds);
    board_expect(0, 0);
}
END_TEST

START_TEST(an_old_ticket_and_the_same_slot)
{
    dbguard_ticket_t old = take_all();
    dbguard_ticket_t young;

    leave(old);
    young = enter_to(DBGUARD_ADMITTED);
    ck_assert_uint_eq(young.slot, old.slot);
    ck_assert_uint_gt(young.serial, old.serial);
    expect_not_found(old);
    ck_assert_int_eq(look(young).outcome, DBGUARD_ADMITTED);

    old = enter_to(DBGUARD_WAIT);
    leave(old);
    young = enter_to(DBGUARD_WAIT);
    ck_assert_uint_eq(young.slot, old.slot);
    expect_not_found(old);
    ck_assert_int_eq(look(young).outcome, DBGUARD_WAIT);
}
END_TEST

START_TEST(tickets_that_never_were)
{
    dbguard_ticket_t holds = take_all();
    dbguard_ticket_t none = {0, holds.slot};
    dbguard_ticket_t zero = {0, 0};
    dbguard_ticket_t future = {holds.serial + 1, holds.slot};
    dbguard_ticket_t elsewhere = {holds.serial, (holds.slot + 1) % SLOTS};
    dbguard_ticket_t outside = {holds.serial, SLOTS};
    dbguard_ticket_t far_outside = {holds.serial, UINT32_MAX};

    expect_not_found(none);
    expect_not_found(zero);
    expect_not_found(future);
    expect_not_found(elsewhere);
    expect_not_found(outside);
    expect_not_found(far_outside);
    board_expect(1, 0);
}
END_TEST

/* --- taking back from the dead -------------------------------------------- */

START_TEST(reaping)
{
    dbguard_ticket_t dead, alive, waits[3];

    dead = enter_as(7).ticket;
    alive = enter_as(8).ticket;
    waits[0] = enter_as(7).ticket;
    waits[1] = enter_as(9).ticket;
    waits[2] = enter_as(7).ticket;
    board_expect(2, 3);
    now += 1000;
    ck_assert_uint_eq(reap(7), 3);
    board_expect(2, 0);
    ck_assert_int_eq(state_of(waits[1]), DBGUARD_HELD);
    ck_assert_int_eq(posts(waits[1]), 1);
    ck_assert_int_eq(look(alive).outcome, DBGUARD_ADMITTED);
    ck_assert_uint_eq(counters()->reaped, 3);
    ck_assert_uint_eq(counters()->released, 0);
    expect_not_found(dead);

    ck_assert_uint_eq(reap(7), 0);
    ck_assert_uint_eq(reap(0), 0);
    ck_assert_uint_eq(reap(-1), 0);
    ck_assert_uint_eq(reap(8), 1);
    ck_assert_uint_eq(reap(9), 1);
    ck_assert_uint_eq(counters()->reaped, 5);
    board_exhaust();
}
END_TEST

/* What the dead held never goes to one of the dead's own waiters. */
START_TEST(reaping_gives_nothing_to_the_dead)
{
    int i;

    for (i = 0; i < 8; i++)
        enter_as(7);
    ck_assert_uint_eq(reap(7), 8);
    ck_assert_uint_eq(counters()->admitted, 2);
    board_expect(0, 0);
}
END_TEST

START_TEST(reaping_the_expelled)
{
    dbguard_ticket_t holds = take_all();
    dbguard_ticket_t late = enter_as(7).ticket;

    now += PATIENCE;
    leave(holds);
    ck_assert_int_eq(state_of(late), DBGUARD_EXPELLED);
    ck_assert_uint_eq(reap(7), 1);
    ck_assert_int_eq(state_of(late), DBGUARD_FREE);
    board_exhaust();
}
END_TEST

/* A pid that slots had before, and have no longer, has nothing. */
START_TEST(reaping_sees_only_what_is_out)
{
    leave(enter_as(7).ticket);
    leave(enter_as(7).ticket);
    ck_assert_uint_eq(reap(7), 0);
    ck_assert_uint_eq(counters()->reaped, 0);
}
END_TEST

/* --- when the lock cannot be had ------------------------------------------ */

START_TEST(inside_ones_own_lock)
{
    dbguard_ticket_t holds = enter_to(DBGUARD_ADMITTED);
    dbguard_limits_t limits = board.shared->limits;
    dbguard_decision_t d;
    int64_t held = 0;
    uint32_t taken = 7;

    dbguard_board_lock(&board, now);
    d = enter();
    ck_assert_int_eq(d.outcome, DBGUARD_REFUSED);
    ck_assert_int_eq(d.reason, DBGUARD_REASON_BOARD);
    ck_assert_int_ge(d.retry.after, limits.retry_min);
    ck_assert_int_le(d.retry.after, limits.retry_max);
    ck_assert_int_ge(d.retry.seconds * SECOND, d.retry.after);
    ck_assert_uint_eq(d.ticket.serial, 0);
    board.shared->limits.dryrun = 1;
    d = enter();
    ck_assert_int_eq(d.outcome, DBGUARD_ADMITTED);
    ck_assert_int_eq(d.would, DBGUARD_REFUSED);
    ck_assert_uint_eq(d.ticket.serial, 0);
    board.shared->limits.dryrun = 0;

    d = look(holds);
    ck_assert_int_eq(d.outcome, DBGUARD_WAIT);
    ck_assert_uint_eq(d.ticket.serial, holds.serial);
    ck_assert_int_eq(dbguard_admission_leave(&board, holds, now, &held),
                     EDEADLK);
    ck_assert_int_eq(held, -1);
    ck_assert_int_eq(dbguard_admission_reap(&board, WORKER, now, &taken),
                     EDEADLK);
    ck_assert_uint_eq(taken, 0);
    ck_assert_int_eq(dbguard_admission_configure(&board, &limits, now),
                     EDEADLK);
    dbguard_board_unlock(&board);

    board_expect(1, 0);
    leave(holds);
    board_exhaust();
}
END_TEST

/* --- a clock that was read before the lock -------------------------------- */

/* Each process reads the clock, then queues for the lock: `now` may be a
 * little earlier than that of the section before. */

START_TEST(a_hand_over_with_an_earlier_clock)
{
    dbguard_ticket_t holds = take_all(), waits;

    now += 100;
    waits = enter_to(DBGUARD_WAIT);
    now -= 1;
    leave(holds);
    ck_assert_int_eq(look(waits).outcome, DBGUARD_ADMITTED);
    ck_assert_int_ge(look(waits).waited, 0);
    ck_assert_uint_lt(counters()->wait_us, SECOND);
}
END_TEST

START_TEST(leaving_with_an_earlier_clock)
{
    dbguard_ticket_t holds = take_all();
    dbguard_ticket_t waits = enter_to(DBGUARD_WAIT);

    now += 100;
    leave(holds);
    now -= 1;
    ck_assert_int_ge(leave(waits), 0); /* it had a token */
    board_expect(0, 0);
    ck_assert_uint_eq(counters()->admitted, 2);
    ck_assert_uint_eq(counters()->released, 2);
    ck_assert_uint_lt(counters()->hold_us, SECOND);
    ck_assert_uint_eq(counters()->aborted, 0);
}
END_TEST

/* --- counters ------------------------------------------------------------- */

/* A scripted minute in which everything happens, and the account of it. */
START_TEST(the_account)
{
    dbguard_ticket_t t[12];
    int i;

    for (i = 0; i < 12; i++) /* 2 hold, 8 wait, 2 are refused */
        t[i] = enter_as(i == 3 || i == 1 ? 7 : WORKER).ticket;
    now += SECOND;
    leave(t[4]); /* hangs up */
    reap(7);     /* takes a token and a place; t[2] gets the token */
    leave(t[0]); /* t[5] gets it */
    now += PATIENCE;
    look(t[6]);  /* its patience ends */
    leave(t[2]); /* finds t[7], t[8], t[9] late: the token stays */
    leave(t[9]); /* leaves without having looked */
    t[0] = enter_to(DBGUARD_ADMITTED);

    board_expect(2, 0);
    ck_assert_uint_eq(counters()->admitted, 5);
    ck_assert_uint_eq(counters()->waited, 2);
    ck_assert_uint_eq(counters()->refused, 6);
    ck_assert_uint_eq(counters()->refused_budget, 2);
    ck_assert_uint_eq(counters()->refused_timeout, 4);
    ck_assert_uint_eq(counters()->refused_board, 0);
    ck_assert_uint_eq(counters()->aborted, 1);
    ck_assert_uint_eq(counters()->released, 2);
    ck_assert_uint_eq(counters()->reaped, 2);
    ck_assert_uint_eq(counters()->wait_us, 2 * SECOND);
    ck_assert_uint_eq(counters()->hold_us, SECOND + PATIENCE);
    ck_assert_uint_eq(counters()->repairs, 0);
}
END_TEST

static TCase *fixed(const char *name)
{
    TCase *tc = tcase_create(name);

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, board_close_in_order);
    return tc;
}

static TCase *entering(void)
{
    TCase *tc = fixed("entering");

    tcase_add_test(tc, never_more_than_the_budget);
    tcase_add_test(tc, an_admitted_one);
    tcase_add_test(tc, the_peak_is_kept);
    tcase_add_test(tc, first_come_first_served);
    tcase_add_test(tc, a_token_is_handed_over);
    tcase_add_test(tc, nobody_barges_in);
    tcase_add_test(tc, leaving_the_queue_keeps_the_order);
    tcase_add_test(tc, the_queue_is_bounded);
    tcase_add_test(tc, no_slot_left);
    tcase_add_test(tc, refusals_cost_nothing);
    return tc;
}

static TCase *waiting(void)
{
    TCase *tc = fixed("waiting");

    tcase_add_test(tc, patience_ends_by_poll);
    tcase_add_test(tc, patience_ends_by_dispatch);
    tcase_add_test(tc, all_are_late_and_the_token_stays);
    tcase_add_test(tc, a_token_in_time_is_kept);
    tcase_add_test(tc, automatic_patience_follows_the_holds);
    tcase_add_test(tc, the_mean_hold_follows);
    return tc;
}

static TCase *leaving(void)
{
    TCase *tc = fixed("leaving");

    tcase_add_test(tc, leaving_while_waiting);
    tcase_add_test(tc, leaving_with_a_token_not_yet_seen);
    tcase_add_test(tc, leaving_when_expelled);
    tcase_add_test(tc, leaving_twice);
    tcase_add_test(tc, an_old_ticket_and_the_same_slot);
    tcase_add_test(tc, tickets_that_never_were);
    tcase_add_test(tc, reaping);
    tcase_add_test(tc, reaping_gives_nothing_to_the_dead);
    tcase_add_test(tc, reaping_the_expelled);
    tcase_add_test(tc, reaping_sees_only_what_is_out);
    tcase_add_test(tc, inside_ones_own_lock);
    return tc;
}

static TCase *figures(void)
{
    TCase *tc = fixed("figures");

    tcase_add_test(tc, a_hand_over_with_an_earlier_clock);
    tcase_add_test(tc, leaving_with_an_earlier_clock);
    tcase_add_test(tc, the_account);
    return tc;
}

Suite *admission_suite(void)
{
    Suite *s = suite_create("admission");

    suite_add_tcase(s, entering());
    suite_add_tcase(s, waiting());
    suite_add_tcase(s, leaving());
    suite_add_tcase(s, figures());
    return s;
}
