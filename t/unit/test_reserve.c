/* What is left free for others: for lighter work, for other clients, for other
 * classes; and that one who is alone leaves nothing. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

#define SLOTS 128
#define LONG_HOLD (3 * (int64_t)SECOND)

static void setup(void)
{
    board_open(SLOTS, 8, 16);
}

/* --- what is needed ------------------------------------------------------- */

static double tokens_for(int64_t load)
{
    double n = (double)load / (double)DBGUARD_LOAD_WINDOW;

    return n + 2 * sqrt(n);
}

/* N and its root are counted in thousandths. */
START_TEST(n_and_two_roots_of_n)
{
    static const uint32_t exact[][2] = {
        {0, 0}, {1, 3}, {4, 8}, {9, 15}, {16, 24}, {100, 120}, {10000, 10200}
    };
    int i;

    for (i = 0; i < LENGTH(exact); i++)
        ck_assert_uint_eq(
            dbguard_reserve_need(exact[i][0] * DBGUARD_LOAD_WINDOW),
            exact[i][1]);
    ck_assert_uint_eq(dbguard_reserve_need(1), 1);
    ck_assert_uint_eq(dbguard_reserve_need(-1), 0);
    ck_assert_uint_eq(dbguard_reserve_need(INT64_MIN), 0);
    ck_assert_uint_gt(dbguard_reserve_need(INT64_MAX), 1000000000);
    any_from(1);
    for (i = 0; i < 20000; i++) {
        int64_t load = (int64_t)any(UINT32_MAX) << any(8);
        double most = tokens_for(load);
        uint32_t need = dbguard_reserve_need(load);

        if (need + 0.504 < most || (need > most + 0.504 && need > 1))
            ck_abort_msg("%u for %f", need, most);
    }
}
END_TEST

static uint32_t random_below(uint32_t n)
{
    return n > 0 ? any(n) : 0;
}

/* The largest of what all lighter bins need and have not, as it is written. */
static uint32_t kept_for_lighter(uint32_t bin, uint32_t quarter)
{
    const dbguard_shared_t *s = board.shared;
    uint32_t most = 0, k, b;

    for (k = 3; k <= bin; k++) {
        uint32_t need = s->need[k - 3] < quarter ? s->need[k - 3] : quarter;
        uint32_t used = 0;

        for (b = 0; b < k; b++)
            used += s->bin_held[b];
        if (need > used && need - used > most)
            most = need - used;
    }
    return most;
}

START_TEST(the_largest_of_all_lighter_bins)
{
    dbguard_shared_t *s = board.shared;
    dbguard_limit_t limit;
    uint32_t bin;
    int i, kept = 0;

    any_from((uint32_t)_i);
    for (i = 0; i < 3000; i++) {
        uint32_t budget = 1 + any(60), quarter = budget / 4, held = 0;
        uint32_t need = 0;

        for (bin = 0; bin < DBGUARD_BINS; bin++) {
            s->bin_held[bin] = any(12) == 0 ? any(3) : 0;
            need += any(8) == 0 ? any(4) : 0;
            s->need[bin] = need;
            held += s->bin_held[bin];
        }
        s->limits.budget = budget;
        s->prefix.held = held + random_below(budget);
        dbguard_reserve_look(&board, &limit);
        ck_assert_uint_eq(limit.free, s->prefix.held < budget
                                          ? budget - s->prefix.held
                                          : 0);
        ck_assert_uint_eq(limit.missing, 0);
        for (bin = 0; bin < DBGUARD_BINS; bin++) {
            /* Where nobody can be kept out, it need not be known. */
            uint32_t most = kept_for_lighter(bin, quarter);
            int allowed = limit.free > most;

            if (dbguard_reserve_allows(s, &limit, 0, bin)
                != (limit.free > 0 && allowed))
                ck_abort_msg("step %d, bin %u: %u free, %u kept", i, bin,
                             limit.free, most);
            kept += limit.free > 0 && !allowed;
        }
    }
    ck_assert_int_gt(kept, 1000);
    board_again(8, 16);
}
END_TEST

/* --- lighter work --------------------------------------------------------- */

/* Light work comes at a rate that needs about a token; heavy work takes all of
 * the rest, and not that. Nothing is learnt from it: it ends at once. */
static void light_load(int times)
{
    come_as("GET /light", 0, 0);
    while (times-- > 0) {
        leave(enter_to(DBGUARD_ADMITTED));
        teach("GET /light", 0, 100000);
    }
    now += DBGUARD_TICK;
}

START_TEST(heavy_work_leaves_tokens_for_light)
{
    int i;

    teach("GET /light", 0, 100000);
    teach("GET /heavy", 0, 300000);
    light_load(20); /* 2 token-seconds in 5 s: 0.4 + 2 x 0.63 */
    come_as("GET /heavy", 0, 0);
    for (i = 0; i < 6; i++)
        enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_WAIT);
    board_expect(6, 1);
    come_as("GET /light", 0, 0);
    enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_WAIT);
    board_expect(8, 2);
}
END_TEST

START_TEST(at_most_a_quarter_is_kept)
{
    int i;

    teach("GET /light", 0, 100000);
    teach("GET /heavy", 0, 300000);
    configure(40, 80, 0);
    light_load(2000); /* 200 s in 5 s */
    configure(8, 16, 0);
    come_as("GET /heavy", 0, 0);
    for (i = 0; i < 6; i++)
        enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_WAIT);
}
END_TEST

/* Less than three bins apart, work is the same. */
START_TEST(nothing_is_kept_for_what_is_as_heavy)
{
    int i;

    teach("GET /light", 0, 100000);
    teach("GET /heavy", 0, 190000);
    light_load(20);
    come_as("GET /heavy", 0, 0);
    for (i = 0; i < 8; i++)
        enter_to(DBGUARD_ADMITTED);
}
END_TEST

/* In twice the window what came then is forgotten. */
START_TEST(the_window_moves_on)
{
    uint32_t light = teach("GET /light", 0, 100000);
    uint32_t bin;
    int i;

    teach("GET /heavy", 0, 300000);
    light_load(20);
    bin = board.shared->endpoints[light].bin;
    /* There is some, as far as is known. */
    now += 2 * DBGUARD_LOAD_WINDOW;
    come_as("GET /heavy", 0, 0);
    for (i = 0; i < 7; i++)
        enter_to(DBGUARD_ADMITTED);
    leave(enter_to(DBGUARD_WAIT));
    ck_assert_uint_eq(board.shared->need[bin], 1);
    /* There has been none for ten minutes. */
    now += 121 * DBGUARD_LOAD_WINDOW;
    enter_to(DBGUARD_ADMITTED);
    ck_assert_uint_eq(board.shared->need[bin], 0);
}
END_TEST

/* An endpoint whose holds vary does not keep itself out: work is not lighter
 * than itself. */
START_TEST(an_endpoint_leaves_nothing_for_itself)
{
    uint32_t at = teach("GET /x", 0, 30000);
    int i;

    come_as("GET /x", 0, 0);
    for (i = 0; i < 100; i++)
        leave(enter_to(DBGUARD_ADMITTED));
    now += DBGUARD_TICK;
    board.shared->endpoints[at].hold = 400000; /* as it turns out */
    for (i = 0; i < 8; i++)
        enter_to(DBGUARD_ADMITTED);
    board_expect(8, 0);
}
END_TEST

/* --- classes -------------------------------------------------------------- */

static dbguard_limits_t *new_limits(void)
{
    static dbguard_limits_t limits;

    limits = board.shared->limits;
    return &limits;
}

static void set_limits(const dbguard_limits_t *limits)
{
    ck_assert_int_eq(dbguard_admission_configure(&board, limits, now),
                     APR_SUCCESS);
}

static dbguard_decision_t enter_class(uint32_t class)
{
    guest.class = class;
    return enter();
}

START_TEST(a_class_has_no_more_than_its_maximum)
{
    dbguard_limits_t *l = new_limits();
    dbguard_ticket_t t[2];

    l->classes[1].max.number = 2;
    set_limits(l);
    teach("GET /", 1, HOLD);
    t[0] = enter_class(1).ticket;
    t[1] = enter_class(1).ticket;
    ck_assert_int_eq(enter_class(1).outcome, DBGUARD_WAIT);
    ck_assert_int_eq(enter_class(0).outcome, DBGUARD_ADMITTED);
    ck_assert_int_eq(enter_class(2).outcome, DBGUARD_ADMITTED);
    board_expect(4, 1);
    leave(t[0]);
    board_expect(4, 0);
    ck_assert_int_eq(enter_class(1).outcome, DBGUARD_WAIT);
    now += PATIENCE; /* the reason is told */
    ck_assert_int_eq(
        look((dbguard_ticket_t){board.shared->serial,
                                board.shared->endpoints[dbguard_endpoint_arrive(
                                    board.shared,
                                    dbguard_endpoint_key(board.shared, "GET /",
                                                         1),
                                    "GET /", 1, now)].first})
            .reason,
        DBGUARD_REASON_CLASS);
    ck_assert_uint_eq(counters()->refused_class, 1);
}
END_TEST

START_TEST(a_minimum_is_kept_for_its_class)
{
    dbguard_limits_t *l = new_limits();
    int i;

    l->classes[1].min.number = 3;
    set_limits(l);
    for (i = 0; i < 5; i++)
        ck_assert_int_eq(enter_class(0).outcome, DBGUARD_ADMITTED);
    ck_assert_int_eq(enter_class(0).outcome, DBGUARD_WAIT);
    for (i = 0; i < 3; i++)
        ck_assert_int_eq(enter_class(1).outcome, DBGUARD_ADMITTED);
    ck_assert_int_eq(enter_class(1).outcome, DBGUARD_WAIT);
    board_expect(8, 2);
}
END_TEST

/* Below its minimum a class leaves nothing for lighter work or others. */
START_TEST(below_its_minimum_it_leaves_nothing)
{
    dbguard_limits_t *l = new_limits();
    int i;

    teach("GET /light", 0, 100000);
    teach("GET /heavy", 1, 900000);
    l->classes[1].min.number = 8;
    light_load(20);
    set_limits(l);
    come_as("GET /heavy", 0, 0);
    for (i = 0; i < 8; i++)
        ck_assert_int_eq(enter_class(1).outcome, DBGUARD_ADMITTED);
}
END_TEST

START_TEST(percents_follow_the_budget)
{
    dbguard_limits_t *l = new_limits();
    const dbguard_shared_t *s = board.shared;

    l->classes[1].min = (dbguard_share_t){25, 1};
    l->classes[1].max = (dbguard_share_t){50, 1};
    l->classes[2].max = (dbguard_share_t){1, 1};
    l->client_hold = (dbguard_share_t){10, 1};
    set_limits(l);
    ck_assert_uint_eq(s->class_min[1], 2);
    ck_assert_uint_eq(s->class_max[1], 4);
    ck_assert_uint_eq(s->class_max[2], 1); /* one is the least */
    ck_assert_uint_eq(s->class_max[3], UINT32_MAX);
    ck_assert_uint_eq(s->client_max, 1);
    l->budget = 200;
    set_limits(l);
    ck_assert_uint_eq(s->class_min[1], 50);
    ck_assert_uint_eq(s->class_max[1], 100);
    ck_assert_uint_eq(s->class_max[2], 2);
    ck_assert_uint_eq(s->client_max, 20);
    board_expect(0, 0);
}
END_TEST

/* Random shares: one decision, as it is written. */
START_TEST(classes_at_random)
{
    dbguard_shared_t *s = board.shared;
    dbguard_limit_t limit;
    uint32_t c;
    int i;

    any_from(3);
    for (i = 0; i < 3000; i++) {
        uint32_t held = 0, missing = 0;

        s->minimums = 1;
        for (c = 0; c < DBGUARD_CLASSES; c++) {
            s->class_min[c] = any(8) ? 0 : any(5);
            s->class_max[c] = any(4) ? UINT32_MAX : any(6);
            s->class_held[c] = any(5) ? 0 : any(5);
            held += s->class_held[c];
            if (s->class_held[c] < s->class_min[c])
                missing += s->class_min[c] - s->class_held[c];
        }
        s->limits.budget = held + any(25);
        s->prefix.held = held;
        dbguard_reserve_look(&board, &limit);
        ck_assert_uint_eq(limit.missing, missing);
        for (c = 0; c < DBGUARD_CLASSES; c++) {
            uint32_t free = s->limits.budget - held;
            int may = free > 0 && s->class_held[c] < s->class_max[c]
                      && (s->class_held[c] < s->class_min[c] || free > missing);

            if (dbguard_reserve_allows(s, &limit, c, 20) != may)
                ck_abort_msg("step %d, class %u", i, c);
        }
    }
    board_again(8, 16);
}
END_TEST

/* A token comes back when its lease is over, and its ticket is worth nothing
 * any more. */
START_TEST(a_lease_ends)
{
    dbguard_limits_t *l = new_limits();
    dbguard_ticket_t holds, waits;
    int64_t held;

    l->budget = 1;
    l->classes[0].lease = 2 * SECOND;
    set_limits(l);
    holds = enter_to(DBGUARD_ADMITTED);
    waits = enter_to(DBGUARD_WAIT);
    now += 2 * SECOND - 1;
    ck_assert_int_eq(look(waits).outcome, DBGUARD_WAIT);
    now += DBGUARD_TICK; /* that is when it is looked at */
    ck_assert_int_eq(look(waits).outcome, DBGUARD_ADMITTED);
    ck_assert_uint_eq(counters()->released, 1);
    ck_assert_int_eq(dbguard_admission_leave(&board, holds, now, &held),
                     APR_NOTFOUND);
    board_expect(1, 0);
}
END_TEST

/* Who holds is looked at, 64 at a time, and grows heavier; those who would be
 * next may be gone by then. */
START_TEST(holders_grow_heavier)
{
    static dbguard_ticket_t t[100];
    int i;

    configure(120, 0, 0);
    for (i = 0; i < 100; i++)
        t[i] = enter_to(DBGUARD_ADMITTED);
    ck_assert_uint_eq(board.shared->bin_held[0], 100);
    now += SECOND;
    leave(t[99]);
    ck_assert_uint_eq(board.shared->bin_held[dbguard_bin_of(SECOND)], 64);
    ck_assert_uint_eq(board.shared->follow, t[64].slot);
    dbguard_board_unhold(board.shared, t[64].slot);
    dbguard_board_hold(board.shared, t[64].slot);
    ck_assert_uint_eq(board.shared->follow, t[65].slot);
    leave(t[98]);
    ck_assert_uint_eq(board.shared->bin_held[0], 0);
    ck_assert_uint_eq(board.shared->bin_held[dbguard_bin_of(SECOND)], 98);
    ck_assert_uint_eq(counters()->repairs, 0);
    board_expect(98, 0);
}
END_TEST

/* --- clients -------------------------------------------------------------- */

/* One who is alone has the whole budget for its long work. */
START_TEST(alone_it_leaves_nothing)
{
    int i;

    board.shared->limits.settle = 2000;
    configure(8, 16, 0);
    teach("GET /long", 0, LONG_HOLD);
    come_as("GET /long", 1, _i ? 11 : 0);
    for (i = 0; i < 8; i++) {
        enter_to(DBGUARD_ADMITTED);
        now += _i == 2 ? DBGUARD_LOAD_WINDOW * 2 / 3 : 1000;
    }
    board_expect(8, 0);
}
END_TEST

/* Others' load: 24 of the tokens are needed by them, an eighth of the budget
 * stays free, and is theirs. */
START_TEST(others_find_tokens_free)
{
    uint32_t others, got = 0;

    configure(32, 64, 0);
    teach("GET /long", 0, LONG_HOLD);
    teach("GET /short", 0, 200000);
    for (others = 0; others < 200; others++) {
        come_as("GET /short", 100 + others % 50, 0);
        leave(enter_to(DBGUARD_ADMITTED));
        teach("GET /short", 0, 200000);
    }
    now += DBGUARD_TICK;
    come_as("GET /long", 1, 0);
    while (enter().outcome == DBGUARD_ADMITTED)
        got++;
    /* need: 8 + 2 sqrt(8) = 13.7; an eighth is 4. And lighter work: 8. */
    ck_assert_uint_le(got, 28);
    ck_assert_uint_ge(got, 16);
    board_expect(got, 1);
    come_as("GET /short", 100, 0);
    enter_to(DBGUARD_ADMITTED);
}
END_TEST

/* Nobody is in anybody's way while more than half is free; nor is work that is
 * over soon. */
START_TEST(while_half_is_free_nobody_is_in_the_way)
{
    dbguard_limits_t *l = new_limits();
    int i;

    l->client_hold.number = 1;
    set_limits(l);
    teach("GET /long", 0, LONG_HOLD);
    come_as("GET /long", 1, 0);
    for (i = 0; i < 4; i++) /* 8, 7, 6, 5 are free */
        enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_WAIT);
    come_as("GET /", 1, 0); /* it is short */
    for (i = 0; i < 4; i++)
        enter_to(DBGUARD_ADMITTED);
    board_expect(8, 1);
}
END_TEST

/* The number of the operator: by address, and by session. */
START_TEST(a_client_has_no_more_than_it_may)
{
    dbguard_limits_t *l = new_limits();
    dbguard_ticket_t first;
    int i;

    l->client_hold.number = 2;
    set_limits(l);
    teach("GET /long", 0, LONG_HOLD);
    for (i = 0; i < 4; i++) { /* half of the budget */
        come_as("GET /", 50 + (uint64_t)i, 0);
        enter_to(DBGUARD_ADMITTED);
    }
    come_as("GET /long", 1, 11);
    first = enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_WAIT);
    come_as("GET /long", 1, 12); /* another session of that address */
    enter_to(DBGUARD_WAIT);
    come_as("GET /long", 2, 0);
    enter_to(DBGUARD_ADMITTED);
    board_expect(7, 2);
    leave(first); /* one of them has its turn */
    board_expect(7, 1);
}
END_TEST

/* --- excess --------------------------------------------------------------- */

/* A tab that loops, among twenty clients. */
START_TEST(ten_times_as_many_are_excess)
{
    const dbguard_slot_t *s;
    dbguard_ticket_t t;
    uint64_t i, k;

    configure(20, 40, 0);
    for (k = 0; k < 60; k++) {
        for (i = 0; i < 20; i++) {
            if (k % 30 != 0 && i != 0)
                continue;
            come_as("GET /", 1 + i, 0);
            t = enter_to(DBGUARD_ADMITTED);
            s = &board.shared->slots[t.slot];
            if (i != 0)
                ck_assert_uint_eq(s->excess, 0);
            leave(t);
        }
    }
    come_as("GET /", 1, 0);
    t = enter_to(DBGUARD_ADMITTED);
    ck_assert_uint_eq(board.shared->slots[t.slot].excess, 1);
    /* It counts for nothing that is kept free, nor as having it. */
    for (k = 0; k < DBGUARD_BINS; k++)
        ck_assert_uint_eq(board.shared->bin_held[k], 0);
    leave(t);
    /* In ten seconds it is forgotten. */
    now += 2 * DBGUARD_LOAD_WINDOW;
    t = enter_to(DBGUARD_ADMITTED);
    ck_assert_uint_eq(board.shared->slots[t.slot].excess, 0);
    leave(t);
}
END_TEST

Suite *reserve_suite(void)
{
    Suite *s = suite_create("reserve");
    TCase *tc = tcase_create("reserve");

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, board_close_in_order);
    tcase_add_test(tc, n_and_two_roots_of_n);
    tcase_add_loop_test(tc, the_largest_of_all_lighter_bins, 0, 3);
    tcase_add_test(tc, heavy_work_leaves_tokens_for_light);
    tcase_add_test(tc, at_most_a_quarter_is_kept);
    tcase_add_test(tc, nothing_is_kept_for_what_is_as_heavy);
    tcase_add_test(tc, the_window_moves_on);
    tcase_add_test(tc, an_endpoint_leaves_nothing_for_itself);
    tcase_add_test(tc, a_class_has_no_more_than_its_maximum);
    tcase_add_test(tc, a_minimum_is_kept_for_its_class);
    tcase_add_test(tc, below_its_minimum_it_leaves_nothing);
    tcase_add_test(tc, percents_follow_the_budget);
    tcase_add_test(tc, classes_at_random);
    tcase_add_test(tc, a_lease_ends);
    tcase_add_test(tc, holders_grow_heavier);
    tcase_add_loop_test(tc, alone_it_leaves_nothing, 0, 3);
    tcase_add_test(tc, others_find_tokens_free);
    tcase_add_test(tc, while_half_is_free_nobody_is_in_the_way);
    tcase_add_test(tc, a_client_has_no_more_than_it_may);
    tcase_add_test(tc, ten_times_as_many_are_excess);
    suite_add_tcase(s, tc);
    return s;
}
