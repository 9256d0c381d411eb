/* The order of those that wait: endpoints by the token-seconds they have had,
 * addresses and sessions by turns, those that were told to come now first; and
 * who has to go when the places are full. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "unit.h"

#define SLOTS 256

static void setup(void)
{
    board_open(SLOTS, 4, 100);
}

static void long_patience(void)
{
    dbguard_limits_t limits = board.shared->limits;

    limits.patience = 100000 * (int64_t)SECOND;
    dbguard_admission_configure(&board, &limits, now);
}

/* --- fairness between endpoints ------------------------------------------- */

#define FLOWS 4
#define BACKLOG 6

/* Endpoints that all have more waiting than there is room for. */
typedef struct flow_t {
    char name[32];
    int64_t hold;
    uint32_t class;
    int idle;        /* nobody comes */
    double had;      /* token-seconds, in microseconds */
    uint32_t at;
} flow_t;

static flow_t flows[FLOWS];
static struct {
    dbguard_ticket_t ticket;
    int flow;
} requests[SLOTS];

static void have_flows(const int64_t *holds, int n)
{
    int i;

    for (i = 0; i < SLOTS; i++)
        requests[i].flow = -1;
    for (i = 0; i < FLOWS; i++) {
        snprintf(flows[i].name, sizeof(flows[i].name), "GET /flow/%d", i);
        flows[i].hold = i < n ? holds[i] : 0;
        flows[i].class = 0;
        flows[i].idle = i >= n;
        flows[i].had = 0;
        if (i < n)
            flows[i].at = teach(flows[i].name, 0, holds[i]);
    }
    long_patience();
}

static void one_comes(int flow)
{
    int i = 0;

    while (requests[i].flow >= 0)
        i++;
    come_as(flows[flow].name, 0, 0);
    guest.class = flows[flow].class;
    requests[i].ticket = enter().ticket;
    requests[i].flow = flow;
    ck_assert_uint_ne(requests[i].ticket.serial, 0);
}

static uint32_t waiting_for(int flow)
{
    uint32_t n = 0;
    int i;

    for (i = 0; i < SLOTS; i++)
        n += requests[i].flow == flow
             && state_of(requests[i].ticket) == DBGUARD_WAITING;
    return n;
}

/* The next hold ends, and the endpoints are kept full. */
static void go_on(void)
{
    int64_t end = INT64_MAX;
    int next = -1, i;

    for (i = 0; i < FLOWS; i++)
        while (!flows[i].idle && waiting_for(i) < BACKLOG)
            one_comes(i);
    for (i = 0; i < SLOTS; i++) {
        const dbguard_slot_t *s
            = &board.shared->slots[requests[i].ticket.slot];

        if (requests[i].flow < 0 || s->state != DBGUARD_HELD)
            continue;
        if (s->granted + flows[requests[i].flow].hold < end) {
            end = s->granted + flows[requests[i].flow].hold;
            next = i;
        }
    }
    ck_assert_int_ge(next, 0);
    if (end > now)
        now = end;
    flows[requests[next].flow].had
        += (double)flows[requests[next].flow].hold;
    leave(requests[next].ticket);
    requests[next].flow = -1;
}

static void run(int steps)
{
    int i;

    for (i = 0; i < FLOWS; i++)
        flows[i].had = 0;
    while (steps-- > 0)
        go_on();
}

static void expect_shares(const double *weights, int n)
{
    double all = 0, sum = 0;
    int i;

    for (i = 0; i < n; i++) {
        all += flows[i].had;
        sum += weights[i];
    }
    for (i = 0; i < n; i++)
        if (fabs(flows[i].had / all - weights[i] / sum) > 0.05)
            ck_abort_msg("endpoint %d has had %.0f %% instead of %.0f %%", i,
                         100 * flows[i].had / all, 100 * weights[i] / sum);
}

static const double equal[FLOWS] = {1, 1, 1, 1};

/* Holds that differ, though not so that anything is kept for anybody. */
START_TEST(token_seconds_are_shared)
{
    static const int64_t holds[][FLOWS] = {
        {100000, 100000, 100000, 100000},
        {100000, 110000, 130000, 150000},
        {20000, 400000, 900000, 3000}, /* and so that it is */
    };
    int i;

    have_flows(holds[_i], FLOWS);
    run(_i < 2 ? scaled(4000) : 4000);
    expect_shares(equal, _i < 2 ? FLOWS : 0);
    for (i = 0; i < FLOWS; i++) /* nobody starves, whatever the reserve */
        ck_assert_double_gt(flows[i].had, 0);
}
END_TEST

/* The negative control: a FIFO gives by the number of requests. */
START_TEST(a_fifo_shares_by_requests)
{
    static const int64_t holds[FLOWS] = {100000, 300000};

    board.fifo = 1;
    have_flows(holds, 2);
    run(scaled(2000));
    ck_assert_double_gt(flows[1].had, 2.5 * flows[0].had);
}
END_TEST

START_TEST(classes_weigh)
{
    static const int64_t holds[FLOWS] = {100000, 100000, 120000};
    static const double weights[FLOWS] = {1, 3, 6};
    dbguard_limits_t limits;
    int i;

    have_flows(holds, 3);
    limits = board.shared->limits;
    for (i = 0; i < 3; i++) {
        flows[i].class = (uint32_t)i + 1;
        limits.classes[i + 1].weight = (uint32_t)weights[i];
        teach(flows[i].name, flows[i].class, holds[i]);
    }
    dbguard_admission_configure(&board, &limits, now);
    run(scaled(4000));
    expect_shares(weights, 3);
}
END_TEST

/* Whoever was idle has saved nothing up. */
START_TEST(no_credit_is_saved)
{
    static const int64_t holds[FLOWS] = {100000, 110000};

    have_flows(holds, 2);
    flows[1].idle = 1;
    run(scaled(1000));
    ck_assert_double_eq(flows[1].had, 0);
    flows[1].idle = 0;
    run(40);
    expect_shares(equal, 0);
    ck_assert_double_gt(flows[0].had, flows[1].had * 0.7);
    ck_assert_double_gt(flows[1].had, flows[0].had * 0.7);
}
END_TEST

/* Nor does it pay for what it had while nobody else was there. */
START_TEST(no_debt_is_kept)
{
    static const int64_t holds[FLOWS] = {100000, 110000};

    have_flows(holds, 2);
    flows[1].idle = 1;
    run(scaled(1000));
    flows[0].idle = 1;
    flows[1].idle = 0;
    run(BACKLOG + 4 + 20);
    flows[0].idle = 0;
    run(40);
    ck_assert_double_gt(flows[0].had, flows[1].had * 0.7);
}
END_TEST

/* What was wrong in the estimate is put right when the hold has ended. */
START_TEST(estimates_are_corrected)
{
    static const int64_t holds[FLOWS] = {100000, 100000};
    int i;

    have_flows(holds, 2);
    for (i = 0; i < 60; i++) {
        board.shared->endpoints[flows[0].at].hold = 140000;
        board.shared->endpoints[flows[1].at].hold = 70000;
        board.shared->endpoints[flows[0].at].samples = 1;
        go_on();
    }
    run(scaled(2000));
    expect_shares(equal, 2);
}
END_TEST

/* --- addresses and sessions ----------------------------------------------- */

static dbguard_ticket_t waits_from(uint64_t address, uint64_t session)
{
    come_as("GET /", address, session);
    return enter_to(DBGUARD_WAIT);
}

/* Who is served, one after the other, as they leave. */
static void expect_order(dbguard_ticket_t holds, const dbguard_ticket_t *t,
                         const int *order, int n)
{
    int i;

    for (i = 0; i < n; i++) {
        leave(holds);
        if (state_of(t[order[i]]) != DBGUARD_HELD)
            ck_abort_msg("not number %d is served as number %d", order[i], i);
        holds = t[order[i]];
    }
    leave(holds);
    board_expect(0, 0);
}

START_TEST(addresses_take_turns)
{
    static const int order[] = {0, 4, 6, 1, 5, 2, 3};
    dbguard_ticket_t holds, t[7];
    int i;

    configure(1, 20, 0);
    holds = enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < 4; i++)
        t[i] = waits_from(1, 0);
    t[4] = waits_from(2, 0);
    t[5] = waits_from(2, 0);
    t[6] = waits_from(3, 0);
    board_expect(1, 7);
    expect_order(holds, t, order, 7);
}
END_TEST

/* What an address holds already counts, too. */
START_TEST(who_holds_is_behind)
{
    static const int order[] = {1, 0};
    dbguard_ticket_t holds, t[2];

    configure(1, 20, 0);
    come_as("GET /", 1, 0);
    holds = enter_to(DBGUARD_ADMITTED);
    t[0] = waits_from(1, 0);
    t[1] = waits_from(2, 0);
    expect_order(holds, t, order, 2);
}
END_TEST

/* Of one address, those that are the first of their session are behind others
 * of that kind, and half a round before further ones. */
START_TEST(first_requests_come_before_further_ones)
{
    static const int order[] = {0, 3, 1, 4, 2};
    dbguard_ticket_t holds, t[5];

    configure(1, 20, 0);
    holds = enter_to(DBGUARD_ADMITTED);
    t[0] = waits_from(1, 11);
    t[1] = waits_from(1, 11);
    t[2] = waits_from(1, 11);
    t[3] = waits_from(1, 12);
    t[4] = waits_from(1, 13);
    expect_order(holds, t, order, 5);
}
END_TEST

/* Made-up sessions are still of one address: others take turns with it. */
START_TEST(made_up_sessions_gain_nothing)
{
    dbguard_ticket_t holds, t[40], other;
    int i, before = 0;

    configure(1, 60, 0);
    holds = enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < 40; i++)
        t[i] = waits_from(1, 1000 + (uint64_t)i);
    other = waits_from(2, 0);
    while (state_of(other) != DBGUARD_HELD) {
        leave(holds);
        for (i = 0; i < 40; i++)
            if (t[i].serial != 0 && state_of(t[i]) == DBGUARD_HELD) {
                holds = t[i];
                t[i].serial = 0;
                before++;
                break;
            }
    }
    ck_assert_int_le(before, 1);
}
END_TEST

/* Nobody waits for ever behind newcomers. */
START_TEST(the_round_goes_on)
{
    dbguard_ticket_t holds, last;
    uint64_t address = 100;
    int i;

    configure(1, 30, 0);
    holds = enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < 4; i++)
        last = waits_from(1, 0);
    for (i = 0; i < 200 && state_of(last) != DBGUARD_HELD; i++) {
        dbguard_ticket_t next = waits_from(address++, 0);
        uint32_t k;

        leave(holds);
        for (k = 0; k < SLOTS; k++)
            if (board.shared->slots[k].state == DBGUARD_HELD) {
                holds.slot = k;
                holds.serial = board.shared->slots[k].serial;
            }
        (void)next;
    }
    ck_assert_int_lt(i, 60);
}
END_TEST

/* --- lanes ---------------------------------------------------------------- */

/* A session that has been told when to come. */
static int64_t told(uint64_t address, uint64_t session)
{
    dbguard_decision_t d;

    come_as("GET /", address, session);
    d = enter();
    ck_assert_int_eq(d.outcome, DBGUARD_REFUSED);
    return d.retry.after;
}

START_TEST(on_time_comes_first_and_early_last)
{
    static const int order[] = {2, 0, 3, 1};
    dbguard_ticket_t holds, t[4];
    int64_t after;

    configure(1, 0, 0);
    holds = enter_to(DBGUARD_ADMITTED);
    after = told(1, 11);
    now += after;
    told(2, 12);
    configure(1, 20, 0);
    t[0] = waits_from(3, 13);
    t[1] = waits_from(2, 12); /* was told to come later */
    t[2] = waits_from(1, 11); /* was told to come now */
    t[3] = waits_from(4, 14);
    expect_order(holds, t, order, 4);
}
END_TEST

/* Once. And not much later than it was told. */
START_TEST(a_promise_is_kept_once)
{
    int64_t after;

    configure(1, 0, 0);
    enter_to(DBGUARD_ADMITTED);
    after = told(1, 11);
    told(2, 12);
    configure(1, 20, 0);
    now += after;
    ck_assert_uint_eq(board.shared->slots[waits_from(1, 11).slot].lane,
                      DBGUARD_ON_TIME);
    ck_assert_uint_eq(board.shared->slots[waits_from(1, 11).slot].lane,
                      DBGUARD_NORMAL);
    now += 20 * (int64_t)SECOND;
    come_as("GET /", 2, 12);
    ck_assert_uint_eq(board.shared->slots[enter().ticket.slot].lane,
                      DBGUARD_NORMAL);
}
END_TEST

/* --- who has to go -------------------------------------------------------- */

START_TEST(the_newest_of_the_heaviest_goes)
{
    dbguard_ticket_t heavy[4], light;
    int i;

    configure(1, 4, 0);
    enter_to(DBGUARD_ADMITTED);
    teach("GET /heavy", 0, 300000);
    come_as("GET /heavy", 0, 0);
    for (i = 0; i < 4; i++)
        heavy[i] = enter_to(DBGUARD_WAIT);
    come_as("GET /", 0, 0);
    light = enter_to(DBGUARD_WAIT);
    ck_assert_int_eq(state_of(heavy[3]), DBGUARD_EXPELLED);
    ck_assert_int_eq(posts(heavy[3]), 1);
    ck_assert_int_eq(look(heavy[3]).reason, DBGUARD_REASON_DISPLACED);
    ck_assert_uint_eq(counters()->refused_displaced, 1);
    ck_assert_int_eq(state_of(heavy[2]), DBGUARD_WAITING);
    ck_assert_int_eq(state_of(light), DBGUARD_WAITING);
    board_expect(1, 4);
    /* One more of the heaviest has to go itself. */
    come_as("GET /heavy", 0, 0);
    ck_assert_int_eq(enter().reason, DBGUARD_REASON_BUDGET);
    board_expect(1, 4);
}
END_TEST

/* Whose own work would be most has to go, however light each of it is. */
START_TEST(many_light_ones_weigh_as_much)
{
    int i;

    configure(1, 8, 0);
    enter_to(DBGUARD_ADMITTED);
    teach("GET /heavy", 0, 4 * HOLD);
    come_as("GET /heavy", 0, 0);
    enter_to(DBGUARD_WAIT);
    enter_to(DBGUARD_WAIT);
    come_as("GET /", 0, 0);
    for (i = 0; i < 6; i++)
        enter_to(DBGUARD_WAIT);
    /* 6 + 1 of 1 ms are less than 2 of 4 ms, 7 + 1 are not. */
    enter_to(DBGUARD_WAIT);
    ck_assert_uint_eq(counters()->refused_displaced, 1);
    ck_assert_int_eq(enter().reason, DBGUARD_REASON_BUDGET);
    board_expect(1, 8);
}
END_TEST

/* Within a flow it is the newest, when the newcomer's turn is before it. */
START_TEST(a_client_with_less_takes_the_place)
{
    dbguard_ticket_t t[3];
    int i;

    configure(1, 3, 0);
    enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < 3; i++)
        t[i] = waits_from(1, 0);
    come_as("GET /", 2, 0);
    enter_to(DBGUARD_WAIT);
    ck_assert_int_eq(state_of(t[2]), DBGUARD_EXPELLED);
    come_as("GET /", 1, 0);
    ck_assert_int_eq(enter().reason, DBGUARD_REASON_BUDGET);
    board_expect(1, 3);
}
END_TEST

/* Who was told to come now is not sent away as long as another can be. */
START_TEST(who_is_on_time_is_not_displaced)
{
    dbguard_ticket_t first, on_time;
    int64_t after;

    teach("GET /heavy", 0, 300000);
    configure(1, 0, 0);
    enter_to(DBGUARD_ADMITTED);
    come_as("GET /heavy", 1, 11);
    after = enter().retry.after;
    now += after;
    configure(1, 2, 0);
    come_as("GET /heavy", 2, 12);
    first = enter_to(DBGUARD_WAIT);
    come_as("GET /heavy", 1, 11);
    on_time = enter_to(DBGUARD_WAIT);
    come_as("GET /", 0, 0);
    enter_to(DBGUARD_WAIT);
    ck_assert_int_eq(state_of(first), DBGUARD_EXPELLED);
    ck_assert_int_eq(state_of(on_time), DBGUARD_WAITING);
}
END_TEST

START_TEST(a_session_has_so_many_places)
{
    dbguard_limits_t limits;

    configure(1, 20, 0);
    limits = board.shared->limits;
    limits.session_wait = 2;
    dbguard_admission_configure(&board, &limits, now);
    enter_to(DBGUARD_ADMITTED);
    waits_from(1, 11);
    waits_from(1, 11);
    come_as("GET /", 1, 11);
    ck_assert_int_eq(enter().reason, DBGUARD_REASON_CLIENT);
    ck_assert_uint_eq(counters()->refused_client, 1);
    waits_from(1, 12);
    waits_from(1, 0);
    board_expect(1, 4);
}
END_TEST

/* Who would wait longer than its patience does not begin to, but for one who
 * was told to come. */
START_TEST(hopeless_ones_do_not_wait)
{
    dbguard_limits_t limits;
    dbguard_decision_t d;
    int i;

    teach("GET /slow", 0, SECOND);
    configure(2, 50, 0);
    limits = board.shared->limits;
    limits.patience = 3 * SECOND;
    dbguard_admission_configure(&board, &limits, now);
    come_as("GET /slow", 0, 0);
    enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < 7; i++)
        enter_to(DBGUARD_WAIT);
    d = enter(); /* 7 x 1 s by 2 is more than 3 s */
    ck_assert_int_eq(d.outcome, DBGUARD_REFUSED);
    ck_assert_int_eq(d.reason, DBGUARD_REASON_PATIENCE);
    ck_assert_uint_eq(counters()->refused_patience, 1);
    board_expect(2, 7);
}
END_TEST

/* --- parked --------------------------------------------------------------- */

#define HOLDS 4

/* One client has its share, and waits for its turn elsewhere. */
START_TEST(the_parked_are_in_nobodys_way)
{
    dbguard_limits_t limits = board.shared->limits;
    dbguard_ticket_t t[HOLDS], parked[3], other;
    int i;

    teach("GET /long", 0, 3 * SECOND);
    limits.client_hold.number = 2;
    limits.budget = HOLDS;
    limits.patience = 1000 * (int64_t)SECOND;
    dbguard_admission_configure(&board, &limits, now);
    come_as("GET /long", 1, 0);
    t[0] = enter_to(DBGUARD_ADMITTED);
    t[1] = enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < 3; i++)
        parked[i] = enter_to(DBGUARD_WAIT);
    board_expect(2, 3);
    /* Another address goes past it. */
    come_as("GET /long", 2, 0);
    t[2] = enter_to(DBGUARD_ADMITTED);
    t[3] = enter_to(DBGUARD_ADMITTED);
    other = enter_to(DBGUARD_WAIT);
    leave(t[2]);
    ck_assert_int_eq(state_of(other), DBGUARD_HELD);
    board_expect(4, 3);
    /* What it gives back is for the first of its own. */
    for (i = 0; i < 3; i++) {
        leave(i == 0 ? t[0] : i == 1 ? t[1] : parked[0]);
        now += DBGUARD_TICK;
        look(parked[i]);
        ck_assert_int_eq(state_of(parked[i]), DBGUARD_HELD);
    }
    board_expect(4, 0);
}
END_TEST

/* The others left: nobody is in the way any more, and it is seen to at once. */
START_TEST(the_parked_are_served_when_all_have_left)
{
    dbguard_limits_t limits = board.shared->limits;
    dbguard_ticket_t t[6];
    int i;

    teach("GET /long", 0, 3 * SECOND);
    limits.client_hold.number = 1;
    limits.budget = 4;
    limits.patience = 1000 * (int64_t)SECOND;
    dbguard_admission_configure(&board, &limits, now);
    for (i = 0; i < 2; i++) {
        come_as("GET /", 10 + (uint64_t)i, 0);
        t[i] = enter_to(DBGUARD_ADMITTED);
    }
    come_as("GET /long", 1, 0);
    t[2] = enter_to(DBGUARD_ADMITTED);
    t[3] = enter_to(DBGUARD_WAIT);
    board_expect(3, 1);
    leave(t[0]);
    leave(t[1]);
    board_expect(2, 0);
    ck_assert_int_eq(state_of(t[3]), DBGUARD_HELD);
}
END_TEST

/* Moving on: what was new has become known, and waiters move to its flow in
 * order of arrival. */
START_TEST(waiters_move_to_what_became_known)
{
    dbguard_ticket_t holds, t[4];
    int i;

    configure(1, 20, 0);
    come_as("GET /new", 0, 0);
    holds = enter_to(DBGUARD_ADMITTED);
    t[0] = enter_to(DBGUARD_WAIT);
    t[1] = enter_to(DBGUARD_WAIT);
    t[2] = enter_to(DBGUARD_WAIT);
    now += 10000;
    leave(holds); /* t[0] has the token, and /new is known */
    t[3] = enter_to(DBGUARD_WAIT);
    ck_assert_uint_eq(board.shared->slots[t[1].slot].flow, DBGUARD_NEW(0));
    ck_assert_uint_ne(board.shared->slots[t[3].slot].flow, DBGUARD_NEW(0));
    look(t[2]);
    look(t[1]);
    board_expect(1, 3);
    for (i = 0; i < 3; i++) {
        leave(t[i]);
        ck_assert_int_eq(state_of(t[i + 1]), DBGUARD_HELD);
    }
    leave(t[3]);
    board_expect(0, 0);
}
END_TEST

/* A rebuild changes nothing in the order. */
START_TEST(a_repair_keeps_the_turns)
{
    dbguard_ticket_t t[2][30];
    uint32_t order[2][30];
    int run, i, k;

    for (run = 0; run < 2; run++) {
        board_again(1, 40);
        any_from((uint32_t)_i);
        come_as("GET /", 0, 0);
        t[run][0] = enter_to(DBGUARD_ADMITTED);
        for (i = 1; i < 30; i++)
            t[run][i] = waits_from(1 + any(5), 0);
        if (run == 1)
            dbguard_board_rebuild(board.shared);
        board_expect(1, 29);
        for (i = 0; i < 30; i++) {
            for (k = 0; state_of(t[run][k]) != DBGUARD_HELD; k++)
                ;
            order[run][i] = (uint32_t)k;
            leave(t[run][k]);
        }
    }
    ck_assert_mem_eq(order[0], order[1], sizeof(order[0]));
}
END_TEST

static TCase *fixed(const char *name)
{
    TCase *tc = tcase_create(name);

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, board_close_in_order);
    return tc;
}

Suite *queue_suite(void)
{
    Suite *s = suite_create("queue");
    TCase *tc = fixed("endpoints");

    tcase_add_loop_test(tc, token_seconds_are_shared, 0, 3);
    tcase_add_test(tc, a_fifo_shares_by_requests);
    tcase_add_test(tc, classes_weigh);
    tcase_add_test(tc, no_credit_is_saved);
    tcase_add_test(tc, no_debt_is_kept);
    tcase_add_test(tc, estimates_are_corrected);
    suite_add_tcase(s, tc);

    tc = fixed("clients");
    tcase_add_test(tc, addresses_take_turns);
    tcase_add_test(tc, who_holds_is_behind);
    tcase_add_test(tc, first_requests_come_before_further_ones);
    tcase_add_test(tc, made_up_sessions_gain_nothing);
    tcase_add_test(tc, the_round_goes_on);
    tcase_add_test(tc, on_time_comes_first_and_early_last);
    tcase_add_test(tc, a_promise_is_kept_once);
    suite_add_tcase(s, tc);

    tc = fixed("places");
    tcase_add_test(tc, the_newest_of_the_heaviest_goes);
    tcase_add_test(tc, many_light_ones_weigh_as_much);
    tcase_add_test(tc, a_client_with_less_takes_the_place);
    tcase_add_test(tc, who_is_on_time_is_not_displaced);
    tcase_add_test(tc, a_session_has_so_many_places);
    tcase_add_test(tc, hopeless_ones_do_not_wait);
    tcase_add_test(tc, the_parked_are_in_nobodys_way);
    tcase_add_test(tc, the_parked_are_served_when_all_have_left);
    tcase_add_test(tc, waiters_move_to_what_became_known);
    tcase_add_loop_test(tc, a_repair_keeps_the_turns, 0, 4);
    suite_add_tcase(s, tc);
    return s;
}
