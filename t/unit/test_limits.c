/* What happens when the limits change under way, that DryRun decides as On
 * would, that the holders of a segment which an upgrade left behind count, and
 * what is derived when the operator says nothing. */

#include <stdlib.h>

#include "derive.h"
#include "unit.h"

#define SLOTS 512
#define TICK DBGUARD_TICK

static void setup(void)
{
    board_open(SLOTS, 2, 8);
}

static void enter_times(int times)
{
    while (times-- > 0)
        enter();
}

/* --- the budget grows and shrinks ----------------------------------------- */

/* Also more than are woken after one section: everybody has its token when
 * configure returns, and everybody was woken. */
START_TEST(a_larger_budget_serves_the_waiting_at_once)
{
    static const int rise[] = {1, 31, 32, 33, 63, 64, 65, 100, 200, 400};
    dbguard_ticket_t t[400];
    int i, granted = rise[_i] < 200 ? rise[_i] : 200;
    uint32_t sections;

    configure(1, 200, 0);
    enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < 200; i++)
        t[i] = enter_to(DBGUARD_WAIT);
    sections = board.shared->seq;
    configure((uint32_t)(1 + rise[_i]), 200, 0);
    board_expect((uint32_t)(1 + granted), (uint32_t)(200 - granted));
    for (i = 0; i < 200; i++) {
        if ((state_of(t[i]) == DBGUARD_HELD) != (i < granted))
            ck_abort_msg("waiter %d of %d tokens", i, granted);
        if (posts(t[i]) != (i < granted))
            ck_abort_msg("waiter %d was not woken as it should", i);
    }
    /* No section is longer than 32 wake-ups. */
    ck_assert_uint_ge((board.shared->seq - sections) / 2,
                      (uint32_t)granted / 32);
}
END_TEST

START_TEST(a_larger_budget_expels_the_late)
{
    dbguard_ticket_t t[100];
    int i;

    configure(1, 100, 0);
    come_as("GET /slow", 0, 0); /* what is slow is not what they wait for */
    enter_to(DBGUARD_ADMITTED);
    come_as("GET /", 0, 0);
    for (i = 0; i < 100; i++) {
        if (i == 70)
            now += PATIENCE;
        t[i] = enter_to(DBGUARD_WAIT);
    }
    configure(11, 100, 0);
    board_expect(11, 20);
    for (i = 0; i < 100; i++)
        ck_assert_int_eq(state_of(t[i]), i < 70   ? DBGUARD_EXPELLED
                                         : i < 80 ? DBGUARD_HELD
                                                  : DBGUARD_WAITING);
    ck_assert_uint_eq(counters()->refused_timeout, 70);
}
END_TEST

START_TEST(a_smaller_budget_waits_for_what_is_out)
{
    dbguard_ticket_t t[6], waits;
    int i;

    configure(6, 8, 0);
    for (i = 0; i < 6; i++)
        t[i] = enter_to(DBGUARD_ADMITTED);
    configure(2, 8, 0);
    waits = enter_to(DBGUARD_WAIT);
    for (i = 0; i < 4; i++) {
        leave(t[i]);
        board_expect((uint32_t)(5 - i), 1);
    }
    ck_assert_int_eq(look(waits).outcome, DBGUARD_WAIT);
    leave(t[4]); /* one below the budget at last */
    board_expect(2, 0);
    ck_assert_int_eq(look(waits).outcome, DBGUARD_ADMITTED);
}
END_TEST

/* Who waits keeps its place; nobody new gets one. */
START_TEST(a_shorter_queue)
{
    dbguard_ticket_t holds;

    configure(1, 4, 0);
    holds = enter_to(DBGUARD_ADMITTED);
    enter_times(4);
    configure(1, 1, 0);
    board_expect(1, 4);
    ck_assert_int_eq(enter().reason, DBGUARD_REASON_BUDGET);
    leave(holds);
    board_expect(1, 3);
    configure(1, 0, 0);
    board_expect(1, 3);
}
END_TEST

START_TEST(patience_is_that_of_the_time_it_came)
{
    dbguard_limits_t limits = board.shared->limits;
    dbguard_ticket_t waits;

    enter_times(2);
    waits = enter_to(DBGUARD_WAIT);
    limits.patience = SECOND;
    dbguard_admission_configure(&board, &limits, now);
    ck_assert_int_eq(enter().deadline, now + SECOND);
    now += PATIENCE - 1;
    ck_assert_int_eq(look(waits).outcome, DBGUARD_WAIT);
}
END_TEST

/* --- DryRun --------------------------------------------------------------- */

START_TEST(dryrun_refuses_nobody)
{
    dbguard_decision_t d;
    int i;

    configure(2, 3, 1);
    for (i = 0; i < 8; i++) {
        d = enter();
        ck_assert_int_eq(d.outcome, DBGUARD_ADMITTED);
        ck_assert_uint_gt(d.ticket.serial, 0);
        ck_assert_int_eq(d.would, i < 2   ? DBGUARD_ADMITTED
                                  : i < 5 ? DBGUARD_WAIT
                                          : DBGUARD_REFUSED);
        ck_assert_int_eq(d.reason, i < 5 ? DBGUARD_REASON_NONE
                                         : DBGUARD_REASON_BUDGET);
    }
    /* The board does what On would: those beyond run and hold nothing. */
    board_expect(2, 3);
    ck_assert_uint_eq(counters()->admitted, 2);
    ck_assert_uint_eq(counters()->waited, 0);
    ck_assert_uint_eq(counters()->refused, 0);
    ck_assert_uint_eq(counters()->dryrun_waited, 3);
    ck_assert_uint_eq(counters()->dryrun_refused, 3);
    ck_assert_int_eq(state_of(d.ticket), DBGUARD_EXPELLED);
    now += 9;
    ck_assert_int_eq(leave(d.ticket), 9);
    board_expect(2, 3);
}
END_TEST

START_TEST(dryrun_with_a_full_table)
{
    dbguard_decision_t d;
    int i;

    configure(2, 8, 1);
    for (i = 0; i < SLOTS; i++)
        ck_assert_int_eq(enter().outcome, DBGUARD_ADMITTED);
    for (i = 0; i < 3; i++) {
        d = enter();
        ck_assert_int_eq(d.outcome, DBGUARD_ADMITTED);
        ck_assert_int_eq(d.would, DBGUARD_REFUSED);
        ck_assert_uint_eq(d.ticket.serial, 0);
    }
    board_expect(2, 8);
    ck_assert_uint_eq(counters()->refused, 0);
    ck_assert_uint_eq(counters()->dryrun_refused, SLOTS - 10 + 3);
    ck_assert_uint_eq(counters()->admitted, 2);
}
END_TEST

/* On and DryRun side by side: whoever comes hears the same. */
START_TEST(dryrun_decides_as_on_would)
{
    dbguard_board_t on = board, dry = board;
    dbguard_decision_t a, b;
    uint32_t budget = (uint32_t)(1 + _i % 4), queue = (uint32_t)(_i / 4 * 3);
    int i;

    dry.shared = board_make(SLOTS);
    for (i = 0; i < 20; i++) {
        board = on;
        if (i == 0)
            configure(budget, queue, 0);
        a = enter();
        board = dry;
        if (i == 0) {
            teach("GET /", 0, HOLD);
            configure(budget, queue, 1);
        }
        b = enter();
        ck_assert_int_eq(a.outcome, b.would);
        ck_assert_int_eq(a.reason, b.reason);
        ck_assert_int_eq(b.outcome, DBGUARD_ADMITTED);
    }
    free(dry.shared);
    board = on;
}
END_TEST

/* One request on one board; or none, when On has refused it. */
static void leave_if_there(dbguard_ticket_t *ticket)
{
    if (ticket->serial != 0)
        leave(*ticket);
    ticket->serial = 0;
}

/* Side by side for a long time: requests also end, in any order. Those that On
 * has refused run on in DryRun, and must not be counted for its queue. */
START_TEST(dryrun_and_on_in_step)
{
    dbguard_board_t boards[2] = {board, board};
    dbguard_ticket_t tickets[2][30] = {{{0, 0}}};
    dbguard_decision_t d[2];
    int i, b;

    any_from((uint32_t)_i);
    boards[1].shared = board_make(SLOTS);
    for (b = 0; b < 2; b++) {
        board = boards[b];
        teach("GET /", 0, HOLD);
        configure(1 + (uint32_t)_i % 7, (uint32_t)_i % 5, b);
    }
    for (i = 0; i < 3000; i++) {
        uint32_t who = any(30);
        int ends = tickets[1][who].serial != 0;

        for (b = 0; b < 2; b++) {
            board = boards[b];
            leave_if_there(&tickets[b][who]);
            if (!ends) {
                d[b] = enter();
                tickets[b][who] = d[b].ticket;
            }
        }
        if (!ends && (d[0].outcome != d[1].would || d[0].reason != d[1].reason))
            ck_abort_msg("step %d: %d and %d", i, d[0].outcome, d[1].would);
    }
    ck_assert_ptr_null(board_disorder(boards[1].shared));
    free(boards[1].shared);
    board = boards[0];
}
END_TEST

/* Whoever waits when it begins is not refused, either. */
START_TEST(dryrun_lets_the_waiting_in)
{
    dbguard_ticket_t t[50];
    int i;

    configure(2, 50, 0);
    enter_times(2);
    for (i = 0; i < 50; i++)
        t[i] = enter_to(DBGUARD_WAIT);
    now += SECOND;
    configure(2, 50, 1);
    for (i = 0; i < 50; i++) {
        dbguard_decision_t d = look(t[i]);

        ck_assert_int_eq(d.outcome, DBGUARD_ADMITTED);
        ck_assert_int_eq(d.would, DBGUARD_WAIT);
        ck_assert_int_eq(d.start, now);
    }
    ck_assert_int_eq(enter().would, DBGUARD_REFUSED);
    board_expect(2, 50);
    now += 9;
    ck_assert_int_eq(leave(t[0]), 9);
    ck_assert_uint_eq(counters()->aborted, 0);
    ck_assert_uint_eq(counters()->refused, 0);
}
END_TEST

/* Tokens go to those that On would have let wait, and not to the refused. */
START_TEST(dryrun_hands_over)
{
    dbguard_ticket_t t[10];
    int i;

    configure(3, 2, 1);
    for (i = 0; i < 10; i++)
        t[i] = enter().ticket;
    for (i = 0; i < 5; i++) {
        board_expect(i < 3 ? 3 : (uint32_t)(5 - i), i < 2 ? 2 - (uint32_t)i
                                                          : 0);
        ck_assert_int_eq(state_of(t[i]), DBGUARD_HELD);
        leave(t[i]);
    }
    for (; i < 10; i++) {
        ck_assert_int_eq(state_of(t[i]), DBGUARD_EXPELLED);
        leave(t[i]);
    }
    ck_assert_uint_eq(counters()->admitted, 5);
    ck_assert_uint_eq(counters()->waited, 2);
    ck_assert_uint_eq(counters()->released, 5);
    ck_assert_uint_eq(counters()->aborted, 0);
    board_exhaust();
}
END_TEST

/* Their patience ends without their coming to say so, and the places are
 * there for others. */
START_TEST(dryrun_expels_in_time)
{
    dbguard_ticket_t t[3];
    int i;

    configure(1, 2, 1);
    for (i = 0; i < 3; i++)
        t[i] = enter().ticket;
    board_expect(1, 2);
    now += PATIENCE + SECOND / 4;
    ck_assert_int_eq(enter().would, DBGUARD_WAIT);
    board_expect(1, 1);
    for (i = 1; i < 3; i++)
        ck_assert_int_eq(state_of(t[i]), DBGUARD_EXPELLED);
    ck_assert_uint_eq(counters()->dryrun_refused, 2);
    ck_assert_uint_eq(counters()->refused, 0);
}
END_TEST

/* --- DryRun equals On ----------------------------------------------------- */

static const char *const asked[] = {"GET /a", "GET /b", "GET /c"};

/* A board of the two, and what has come to it. */
typedef struct side_t {
    dbguard_board_t board;
    struct {
        dbguard_ticket_t ticket;
        int64_t hold;
    } requests[300];
    int n;
} side_t;

/* Holds are known in advance: DryRun measures what On cannot see. */
static void teach_all(void)
{
    int i;

    for (i = 0; i < LENGTH(asked); i++)
        teach(asked[i], 0, INT64_C(20000) << 2 * i);
}

/* Nobody comes back when it was told to: DryRun cannot tell them. */
static void set_up(side_t *side, const dbguard_board_t *where, uint32_t queue,
                   int dryrun)
{
    dbguard_limits_t limits;

    side->board = board = *where;
    side->n = 0;
    teach_all();
    configure(4, queue, dryrun);
    limits = board.shared->limits;
    limits.retry_min = limits.retry_max = 1000 * (int64_t)SECOND;
    limits.patience = 1000 * (int64_t)SECOND; /* which ends by the tick */
    dbguard_admission_configure(&board, &limits, now);
}

/* On's waiters look every quarter of a second, as DryRun's are looked after. */
static void look_around(side_t *side)
{
    int i;

    for (i = 0; i < side->n; i++) {
        dbguard_ticket_t *t = &side->requests[i].ticket;

        if (t->serial != 0 && state_of(*t) != DBGUARD_HELD)
            t->serial = look(*t).ticket.serial;
    }
}

/* Whose token was out for its hold ends. */
static void go_on(side_t *side)
{
    uint64_t tick;
    int i;

    board = side->board;
    tick = board.shared->tick;
    if (!board.shared->limits.dryrun && tick != (uint64_t)(now / TICK))
        look_around(side);
    for (i = 0; i < side->n; i++) {
        dbguard_ticket_t *t = &side->requests[i].ticket;
        dbguard_slot_t *s = &board.shared->slots[t->slot];

        if (t->serial != 0 && s->state == DBGUARD_HELD
            && now - s->granted >= side->requests[i].hold) {
            s->used = 0; /* nothing is learnt from it */
            leave(*t);
            t->serial = 0;
        }
    }
}

static dbguard_decision_t arrive(side_t *side, int64_t hold)
{
    dbguard_decision_t d;

    board = side->board;
    d = enter();
    side->requests[side->n].ticket = d.ticket;
    side->requests[side->n++].hold = hold;
    return d;
}

/* Arrivals of all kinds: what DryRun says of each is what On does. */
START_TEST(dryrun_equals_on)
{
    static side_t on, dry;
    dbguard_board_t other = board;
    uint32_t i, told[3] = {0};

    any_from((uint32_t)_i);
    other.shared = board_make(SLOTS);
    set_up(&on, &board, 3 + (uint32_t)_i, 0);
    set_up(&dry, &other, 3 + (uint32_t)_i, 1);
    for (i = 0; i < 300; i++) {
        uint32_t name = any(3);
        int64_t hold = INT64_C(20000) << 2 * name;
        dbguard_decision_t a, b;

        now += any(i % 50 ? 40000 : 900000);
        go_on(&on);
        go_on(&dry);
        come_as(asked[name], any(5), 0);
        a = arrive(&on, hold);
        b = arrive(&dry, hold);
        told[a.outcome]++;
        if (a.outcome != b.would || a.reason != b.reason)
            ck_abort_msg("arrival %u: %d (%d) and %d (%d)", i, a.outcome,
                         a.reason, b.would, b.reason);
        ck_assert_uint_eq(on.board.shared->prefix.held,
                          dry.board.shared->prefix.held);
        ck_assert_uint_eq(on.board.shared->prefix.waiting,
                          dry.board.shared->prefix.waiting);
    }
    for (i = 0; i < 3; i++)
        ck_assert_uint_gt(told[i], 10);
    ck_assert_pstr_eq(board_disorder(dry.board.shared), NULL);
    free(dry.board.shared);
    board = on.board;
}
END_TEST

/* What DryRun let run is out when it ends, however many those are: nobody gets
 * a token until enough of them have ended. */
START_TEST(after_dryrun_the_overflow_drains)
{
    dbguard_ticket_t t[10], waits;
    int i;

    configure(3, 2, 1);
    for (i = 0; i < 10; i++)
        t[i] = enter().ticket;
    configure(3, 2, 0);
    board_expect(10, 0);
    waits = enter_to(DBGUARD_WAIT);
    enter_to(DBGUARD_WAIT);
    enter_to(DBGUARD_REFUSED);
    for (i = 0; i < 7; i++) {
        leave(t[i]);
        board_expect((uint32_t)(9 - i), 2);
    }
    leave(t[7]);
    board_expect(3, 1);
    ck_assert_int_eq(look(waits).outcome, DBGUARD_ADMITTED);
}
END_TEST

/* --- the elder ------------------------------------------------------------ */

/* The prefix of a segment with another layout, in which `held` are out. */
static dbguard_prefix_t elder;

static void with_elder(uint32_t held)
{
    elder.held = held;
    board.elder = &elder;
    board.shared->elder = 1;
}

START_TEST(an_elder_counts)
{
    dbguard_ticket_t first, second;

    configure(4, 8, 0);
    with_elder(3);
    first = enter_to(DBGUARD_ADMITTED);
    second = enter_to(DBGUARD_WAIT);
    elder.held = 2;
    look(second); /* whatever happens next sees it */
    ck_assert_int_eq(state_of(second), DBGUARD_HELD);
    enter_to(DBGUARD_WAIT);
    leave(first);
    board_expect(2, 0);
}
END_TEST

START_TEST(an_elder_that_ends_gives_back)
{
    dbguard_ticket_t waits[3];
    int i;

    configure(3, 8, 0);
    with_elder(3);
    for (i = 0; i < 3; i++)
        waits[i] = enter_to(DBGUARD_WAIT);
    board.shared->elder = 0; /* its last process has ended */
    look(waits[2]); /* one that looks is enough for all */
    board_expect(3, 0);
    for (i = 0; i < 3; i++)
        ck_assert_int_eq(look(waits[i]).outcome, DBGUARD_ADMITTED);
}
END_TEST

/* Also one that holds far more than the budget, or that is not mapped here. */
START_TEST(an_elder_beyond_the_budget)
{
    dbguard_ticket_t waits;

    configure(2, 8, 0);
    with_elder(UINT32_MAX);
    waits = enter_to(DBGUARD_WAIT);
    board.elder = NULL;
    look(waits);
    ck_assert_int_eq(state_of(waits), DBGUARD_HELD);
}
END_TEST

/* A place that is only taken because nobody has looked yet is no reason to
 * refuse: the token for the one who has it is there. */
START_TEST(nobody_is_refused_while_tokens_are_free)
{
    configure(3, 2, 0);
    with_elder(3);
    enter_to(DBGUARD_WAIT);
    enter_to(DBGUARD_WAIT);
    board.shared->elder = 0;
    ck_assert_int_ne(enter().outcome, DBGUARD_REFUSED);
    board_expect(3, 0);
}
END_TEST

/* Room for more than are served in one section: those of the next one are
 * before a newcomer, too. */
START_TEST(nobody_barges_in_between_two_sections)
{
    dbguard_ticket_t waits[40], late;
    int i;

    configure(40, 41, 0);
    with_elder(40);
    for (i = 0; i < 40; i++)
        waits[i] = enter_to(DBGUARD_WAIT);
    board.shared->elder = 0;
    late = enter_to(DBGUARD_WAIT);
    board_expect(40, 1);
    for (i = 0; i < 40; i++)
        ck_assert_int_eq(state_of(waits[i]), DBGUARD_HELD);
    ck_assert_int_eq(state_of(late), DBGUARD_WAITING);
}
END_TEST

START_TEST(dryrun_counts_the_elder_as_on_would)
{
    configure(4, 1, 1);
    with_elder(3);
    ck_assert_int_eq(enter().would, DBGUARD_ADMITTED);
    ck_assert_int_eq(enter().would, DBGUARD_WAIT);
    ck_assert_int_eq(enter().would, DBGUARD_REFUSED);
    elder.held = 0;
    ck_assert_int_eq(enter().would, DBGUARD_ADMITTED);
}
END_TEST

/* --- what is derived ------------------------------------------------------ */

static const struct {
    uint32_t workers, budget, queue;
} queues[] = {
    {192, 20, 143}, /* 15 % of 192 is 28.8: 29 stay free */
    {100, 20, 65},
    {53, 10, 35},   /* 7.95: 8 */
    {54, 10, 35},   /* 8.1: 9 */
    {40, 10, 22},
    {20, 10, 2},
    {18, 10, 0},
    {19, 10, 1},
    {8, 1, 0},
    {9, 1, 0},
    {10, 1, 1},
    {0, 7, 0},
    {1, 1, 0},
    {400, 400, 0},
    {20, 100000, 0},
    {100, UINT32_MAX, 0},
    {UINT32_MAX, 1, UINT32_MAX - 644245095 - 1},
    {UINT32_MAX, UINT32_MAX, 0},
};

START_TEST(queue_length)
{
    ck_assert_uint_eq(dbguard_derive_queue(queues[_i].workers,
                                           queues[_i].budget),
                      queues[_i].queue);
}
END_TEST

/* Whatever the numbers: tokens, places and the spare fit into the workers. */
START_TEST(the_queue_leaves_workers_free)
{
    uint32_t workers, budget;

    for (workers = 0; workers < 700; workers += 1 + workers / 50) {
        for (budget = 1; budget < 700; budget += 1 + budget / 20) {
            uint64_t queue = dbguard_derive_queue(workers, budget);

            if (queue > 0
                && (queue + budget + 8 > workers
                    || (queue + budget) * 100 > (uint64_t)workers * 85))
                ck_abort_msg("%u workers, budget %u: %u places", workers,
                             budget, (uint32_t)queue);
        }
    }
}
END_TEST

START_TEST(patience)
{
    ck_assert_int_eq(dbguard_derive_patience(0), SECOND);
    ck_assert_int_eq(dbguard_derive_patience(6000), SECOND);
    ck_assert_int_eq(dbguard_derive_patience(SECOND / 6), SECOND);
    ck_assert_int_eq(dbguard_derive_patience(SECOND / 6 + 1), SECOND + 2);
    ck_assert_int_eq(dbguard_derive_patience(SECOND / 2), 3 * SECOND);
    ck_assert_int_eq(dbguard_derive_patience(5 * SECOND / 3), 9999996);
    ck_assert_int_eq(dbguard_derive_patience(5 * SECOND / 3 + 1), 10 * SECOND);
    ck_assert_int_eq(dbguard_derive_patience(3600 * (int64_t)SECOND),
                     10 * SECOND);
    ck_assert_int_eq(dbguard_derive_patience(-5), SECOND);
}
END_TEST

static TCase *fixed(const char *name)
{
    TCase *tc = tcase_create(name);

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, board_close_in_order);
    return tc;
}

static TCase *changes(void)
{
    TCase *tc = fixed("changes");

    tcase_add_loop_test(tc, a_larger_budget_serves_the_waiting_at_once, 0, 10);
    tcase_add_test(tc, a_larger_budget_expels_the_late);
    tcase_add_test(tc, a_smaller_budget_waits_for_what_is_out);
    tcase_add_test(tc, a_shorter_queue);
    tcase_add_test(tc, patience_is_that_of_the_time_it_came);
    return tc;
}

static TCase *dryrun(void)
{
    TCase *tc = fixed("DryRun");

    tcase_add_test(tc, dryrun_refuses_nobody);
    tcase_add_test(tc, dryrun_with_a_full_table);
    tcase_add_loop_test(tc, dryrun_decides_as_on_would, 0, 12);
    tcase_add_loop_test(tc, dryrun_and_on_in_step, 0, 10);
    tcase_add_test(tc, dryrun_lets_the_waiting_in);
    tcase_add_test(tc, dryrun_hands_over);
    tcase_add_test(tc, dryrun_expels_in_time);
    tcase_add_loop_test(tc, dryrun_equals_on, 0, 10);
    tcase_add_test(tc, after_dryrun_the_overflow_drains);
    tcase_add_test(tc, dryrun_counts_the_elder_as_on_would);
    return tc;
}

static TCase *elders(void)
{
    TCase *tc = fixed("elder");

    tcase_add_test(tc, an_elder_counts);
    tcase_add_test(tc, an_elder_that_ends_gives_back);
    tcase_add_test(tc, an_elder_beyond_the_budget);
    tcase_add_test(tc, nobody_is_refused_while_tokens_are_free);
    tcase_add_test(tc, nobody_barges_in_between_two_sections);
    return tc;
}

Suite *limits_suite(void)
{
    Suite *s = suite_create("limits");
    TCase *tc = tcase_create("derived");

    tcase_add_loop_test(tc, queue_length, 0, LENGTH(queues));
    tcase_add_test(tc, the_queue_leaves_workers_free);
    tcase_add_test(tc, patience);
    suite_add_tcase(s, tc);
    suite_add_tcase(s, changes());
    suite_add_tcase(s, dryrun());
    suite_add_tcase(s, elders());
    return s;
}
