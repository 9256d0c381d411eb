/* The table of endpoints: bins of half an octave, what is estimated and
 * learnt, and that the table is bounded without forgetting what counts. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

#define SLOTS 64

static void setup(void)
{
    board_open(SLOTS, 4, 16);
}

static uint32_t arrive(const char *name, uint32_t class)
{
    uint64_t key = dbguard_endpoint_key(board.shared, name, class);

    return dbguard_endpoint_arrive(board.shared, key, name, class, now);
}

static uint32_t arrive_numbered(const char *format, uint32_t n)
{
    char name[64];

    snprintf(name, sizeof(name), format, n);
    return arrive(name, 0);
}

static dbguard_endpoint_t *entry(uint32_t endpoint)
{
    return &board.shared->endpoints[endpoint];
}

/* --- bins ----------------------------------------------------------------- */

START_TEST(bins_end_every_half_octave)
{
    uint32_t bin;

    for (bin = 0; bin < DBGUARD_HEAVIEST; bin++) {
        int64_t end = dbguard_bin_end(bin);
        double exact = 20000 * exp2(bin / 2.0);

        if (fabs((double)end - exact) > 1 + exact * 1e-4)
            ck_abort_msg("bin %u ends at %ld", bin, (long)end);
        ck_assert_uint_eq(dbguard_bin_of(end), bin);
        ck_assert_uint_eq(dbguard_bin_of(end + 1), bin + 1);
    }
    ck_assert_int_eq(dbguard_bin_end(DBGUARD_HEAVIEST), INT64_MAX);
    ck_assert_uint_eq(dbguard_bin_of(INT64_MAX), DBGUARD_HEAVIEST);
    ck_assert_uint_eq(dbguard_bin_of(20000), 0);
    ck_assert_uint_eq(dbguard_bin_of(1), 0);
    ck_assert_uint_eq(dbguard_bin_of(0), 0);
    ck_assert_uint_eq(dbguard_bin_of(-5), 0);
    ck_assert_uint_eq(dbguard_bin_of(INT64_MIN), 0);
}
END_TEST

/* What the reserve counts on: all of bin k - 3 is at most half of any of k. */
START_TEST(three_bins_are_twice_as_long)
{
    uint32_t bin;

    for (bin = 3; bin < DBGUARD_BINS; bin++)
        ck_assert_int_le(dbguard_bin_end(bin - 3) * 2,
                         dbguard_bin_end(bin - 1) + 2);
}
END_TEST

START_TEST(longer_is_never_lighter)
{
    int64_t hold;
    uint32_t last = 0;

    for (hold = 1; hold < INT64_C(1) << 50; hold += 1 + hold / 97) {
        uint32_t bin = dbguard_bin_of(hold);

        if (bin < last || hold > dbguard_bin_end(bin)
            || (bin > 0 && hold <= dbguard_bin_end(bin - 1)))
            ck_abort_msg("%ld is of bin %u", (long)hold, bin);
        last = bin;
    }
    ck_assert_uint_eq(last, DBGUARD_HEAVIEST);
}
END_TEST

/* --- what is learnt ------------------------------------------------------- */

START_TEST(an_endpoint_becomes_known)
{
    uint32_t at = arrive("GET /new", 3);

    ck_assert_uint_ge(at, DBGUARD_FIXED);
    ck_assert_str_eq(entry(at)->name, "GET /new");
    ck_assert_uint_eq(entry(at)->class, 3);
    ck_assert_uint_eq(dbguard_endpoint_flow(board.shared, at), DBGUARD_NEW(3));
    ck_assert_uint_eq(dbguard_endpoint_bin(board.shared, at, now),
                      DBGUARD_HEAVIEST);
    ck_assert_int_eq(dbguard_endpoint_estimate(board.shared, at, now),
                     SECOND / 2);
    dbguard_endpoint_learn(board.shared, at, 30000, now);
    ck_assert_uint_eq(dbguard_endpoint_flow(board.shared, at), at);
    ck_assert_int_eq(dbguard_endpoint_estimate(board.shared, at, now), 30000);
    ck_assert_uint_eq(dbguard_endpoint_bin(board.shared, at, now),
                      dbguard_bin_of(30000));
    /* What is new next is like it, of the same class only. */
    ck_assert_int_eq(entry(DBGUARD_NEW(3))->hold, 30000);
    ck_assert_int_eq(entry(DBGUARD_NEW(2))->hold, SECOND / 2);
    ck_assert_int_eq(dbguard_endpoint_estimate(board.shared,
                                               arrive("GET /newer", 3), now),
                     30000);
    /* The second one says nothing of what is new. */
    dbguard_endpoint_learn(board.shared, at, 50000, now);
    ck_assert_int_eq(entry(at)->hold, 40000);
    ck_assert_int_eq(entry(DBGUARD_NEW(3))->hold, 30000);
    ck_assert_uint_eq(entry(at)->released, 2);
    ck_assert_uint_eq(entry(at)->hold_us, 80000);
}
END_TEST

START_TEST(the_mean_of_the_last_twenty_or_so)
{
    uint32_t at = arrive("GET /x", 0);
    double sum = 0, mean;
    int i;

    for (i = 1; i <= DBGUARD_SAMPLES; i++) {
        int64_t hold = 1000 + any(1000000);

        dbguard_endpoint_learn(board.shared, at, hold, now);
        sum += (double)hold;
        ck_assert_double_eq_tol((double)entry(at)->hold, sum / i, i);
    }
    mean = (double)entry(at)->hold;
    for (i = 0; i < 50; i++) {
        int64_t hold = 1000 + any(1000000);

        dbguard_endpoint_learn(board.shared, at, hold, now);
        mean += ((double)hold - mean) / DBGUARD_SAMPLES;
        ck_assert_double_eq_tol((double)entry(at)->hold, mean, 30);
    }
    ck_assert_uint_eq(entry(at)->samples, DBGUARD_SAMPLES);
}
END_TEST

/* hold + max(0, sum(age - hold)) / max(samples, running), as it is written. */
static double expected(uint32_t at, const int64_t *granted, int n)
{
    const dbguard_endpoint_t *e = entry(at);
    double excess = 0;
    int i, most = (int)e->samples > n ? (int)e->samples : n;

    for (i = 0; i < n; i++)
        excess += (double)(now - granted[i] - e->hold);
    return (double)e->hold + (n > 0 && excess > 0 ? excess / most : 0);
}

START_TEST(the_estimate_follows_what_runs)
{
    int64_t granted[30];
    uint32_t at = teach("GET /x", 0, 100000);
    int n;

    any_from((uint32_t)_i);
    configure(40, 0, 0);
    entry(at)->samples = 1 + any(DBGUARD_SAMPLES);
    come_as("GET /x", 0, 0);
    for (n = 0; n < 30; n++) {
        ck_assert_double_eq_tol(
            (double)dbguard_endpoint_estimate(board.shared, at, now),
            expected(at, granted, n), 1.5);
        granted[n] = now;
        enter_to(DBGUARD_ADMITTED);
        now += any(200000);
    }
    ck_assert_int_gt(dbguard_endpoint_estimate(board.shared, at, now), 200000);
}
END_TEST

START_TEST(histograms_forget)
{
    uint32_t at = arrive("GET /x", 0), i;

    for (i = 0; i < UINT16_MAX; i++)
        dbguard_endpoint_learn(board.shared, at, 1, now);
    for (i = 0; i < 10; i++)
        dbguard_endpoint_learn(board.shared, at, SECOND, now);
    dbguard_endpoint_learn(board.shared, at, 1, now);
    ck_assert_uint_eq(entry(at)->histogram[0], UINT16_MAX / 2 + 1);
    ck_assert_uint_eq(entry(at)->histogram[dbguard_bin_of(SECOND)], 5);
}
END_TEST

/* --- rates ---------------------------------------------------------------- */

START_TEST(rates_are_those_of_a_minute)
{
    static uint32_t came[4000];
    uint32_t at = arrive("GET /x", 0), sum, peak;
    int i, k;

    memset(came, 0, sizeof(came));
    any_from((uint32_t)_i);
    came[0] = 1;
    for (i = 0; i < 2000; i++) {
        int64_t second = now / SECOND;
        uint32_t all = 0, most = 0;

        for (k = 1; k <= DBGUARD_RATE_SECONDS; k++) {
            int64_t s = second - k - START / SECOND;

            if (s < 0)
                break;
            all += came[s];
            most = came[s] > most ? came[s] : most;
        }
        dbguard_endpoint_rate(entry(at), now, &sum, &peak);
        if (sum != all || peak != most)
            ck_abort_msg("step %d: %u, at most %u; not %u and %u", i, all,
                         most, sum, peak);
        now += any(100) ? any(2 * SECOND / 3) : any(90 * SECOND);
        if (now / SECOND - START / SECOND >= LENGTH(came))
            break;
        came[now / SECOND - START / SECOND]++;
        arrive("GET /x", 0);
    }
    ck_assert_int_gt(i, 200);
}
END_TEST

/* --- a bounded table ------------------------------------------------------ */

static uint64_t total_arrived(void)
{
    uint64_t n = 0;
    int i;

    for (i = 0; i < DBGUARD_ENDPOINTS; i++)
        n += entry((uint32_t)i)->arrived;
    return n;
}

#define PLACES (DBGUARD_ENDPOINTS - DBGUARD_FIXED)

/* Made-up names go through the table, and leave what is known alone. */
START_TEST(made_up_names_evict_nothing_known)
{
    uint32_t known[600], i, other = 0;
    char name[32];

    for (i = 0; i < 600; i++) {
        snprintf(name, sizeof(name), "GET /known/%u", i);
        known[i] = teach(name, 0, 1000);
    }
    for (i = 0; i < 20000; i++) {
        now += 1000;
        other += arrive_numbered("GET /made-up/%u", i) == DBGUARD_OTHER(0);
    }
    ck_assert_uint_lt(other, 14000); /* it looks at a few only */
    for (i = 0; i < 600; i++) {
        snprintf(name, sizeof(name), "GET /known/%u", i);
        ck_assert_uint_eq(arrive(name, 0), known[i]);
    }
    ck_assert_uint_eq(total_arrived(), 20000 + 600);
    ck_assert_uint_ge(entry(DBGUARD_OTHER(0))->arrived, other);
    ck_assert_pstr_eq(board_disorder(board.shared), NULL);
}
END_TEST

/* All are known and in use: OTHER counts for the rest, each class's own. */
START_TEST(no_place_is_left)
{
    char name[32];
    uint32_t i;

    for (i = 1; i < PLACES; i++) { /* and "GET /" */
        snprintf(name, sizeof(name), "GET /%u", i);
        teach(name, 0, 1000);
    }
    ck_assert_uint_eq(arrive("GET /new", 0), DBGUARD_OTHER(0));
    ck_assert_uint_eq(arrive("GET /new", 5), DBGUARD_OTHER(5));
    ck_assert_uint_eq(entry(DBGUARD_OTHER(5))->arrived, 1);
    ck_assert_uint_eq(dbguard_endpoint_flow(board.shared, DBGUARD_OTHER(5)),
                      DBGUARD_OTHER(5));
    /* It is a place to wait in and to hold from like any other. */
    come_as("GET /new", 0, 0);
    configure(1, 4, 0);
    enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_WAIT);
    board_expect(1, 1);
    ck_assert_uint_eq(entry(DBGUARD_OTHER(0))->held, 1);
    /* A minute later they are known, and not in use. */
    now += 61 * (int64_t)SECOND;
    ck_assert_uint_ge(arrive("GET /newer", 0), DBGUARD_FIXED);
}
END_TEST

/* Whoever goes leaves its sums to OTHER of its class. */
START_TEST(totals_are_never_lost)
{
    uint64_t arrived = 0, refused = 0, released = 0, hold_us = 0;
    int i, steps = scaled(30000);

    any_from((uint32_t)_i);
    for (i = 0; i < steps; i++) {
        char name[32];
        uint32_t class = any(3), at;

        snprintf(name, sizeof(name), "GET /%u", any(5000));
        now += any(20000);
        at = arrive(name, class);
        ck_assert(at == DBGUARD_OTHER(class) || entry(at)->class == class);
        arrived++;
        if (any(3) == 0) { /* what is said to have been refused */
            entry(at)->refused++;
            refused++;
        }
        if (any(2)) {
            uint32_t hold = any(100000);

            dbguard_endpoint_learn(board.shared, at, hold, now);
            released++;
            hold_us += hold;
        }
        if (i % 5000 == 0)
            ck_assert_pstr_eq(board_disorder(board.shared), NULL);
    }
    for (i = 0; i < DBGUARD_ENDPOINTS; i++) {
        const dbguard_endpoint_t *e = entry((uint32_t)i);

        if (e->key == 0 && i >= DBGUARD_FIXED)
            continue;
        arrived -= e->arrived;
        refused -= e->refused;
        released -= e->released;
        hold_us -= e->hold_us;
    }
    ck_assert_uint_eq(arrived, 0);
    ck_assert_uint_eq(refused, 0);
    ck_assert_uint_eq(released, 0);
    ck_assert_uint_eq(hold_us, 0);
    ck_assert_uint_gt(entry(DBGUARD_OTHER(0))->arrived, 0);
    ck_assert_uint_gt(entry(DBGUARD_OTHER(2))->arrived, 0);
}
END_TEST

/* Whatever slots speak of is there as long as they do: who holds, who waits in
 * the flow of what is new, who has been sent away and has not looked. */
START_TEST(what_slots_speak_of_stays)
{
    dbguard_ticket_t waits, late;
    uint32_t i;

    configure(1, 4, 0);
    come_as("GET /holds", 0, 0);
    enter_to(DBGUARD_ADMITTED);
    come_as("GET /late", 0, 0);
    late = enter_to(DBGUARD_WAIT);
    now += PATIENCE;
    look(late); /* its slot goes */
    come_as("GET /late", 0, 0);
    late = enter_to(DBGUARD_WAIT);
    board.shared->slots[late.slot].deadline = now;
    come_as("GET /waits", 0, 0);
    waits = enter_to(DBGUARD_WAIT);
    configure(2, 4, 0); /* finds the late one, and serves the other */
    ck_assert_int_eq(state_of(late), DBGUARD_EXPELLED);
    come_as("GET /waits too", 0, 0);
    enter_to(DBGUARD_WAIT);
    for (i = 0; i < 5000; i++)
        arrive_numbered("GET /made-up/%u", i);
    board_expect(2, 1); /* with the names that they came for */
    leave(waits);
    board_expect(2, 0);
}
END_TEST

START_TEST(names_and_keys)
{
    char longest[DBGUARD_ENDPOINT_MAX + 20];
    uint32_t at;

    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    at = arrive(longest, 0);
    ck_assert_uint_eq(strlen(entry(at)->name), DBGUARD_ENDPOINT_MAX - 1);
    ck_assert_uint_eq(arrive(longest, 0), at);
    ck_assert_uint_ne(arrive(longest, 1), at); /* of another class */
    ck_assert_uint_ne(dbguard_endpoint_key(board.shared, "", 0), 0);
    ck_assert_uint_ne(arrive("GET /a", 0), arrive("GET /b", 0));
    board.shared->secret[0] ^= 1;
    ck_assert_uint_ne(arrive(longest, 0), at); /* nobody can guess the key */
}
END_TEST

Suite *flows_suite(void)
{
    Suite *s = suite_create("flows");
    TCase *tc = tcase_create("flows");

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, board_close);
    tcase_add_test(tc, bins_end_every_half_octave);
    tcase_add_test(tc, three_bins_are_twice_as_long);
    tcase_add_test(tc, longer_is_never_lighter);
    tcase_add_test(tc, an_endpoint_becomes_known);
    tcase_add_test(tc, the_mean_of_the_last_twenty_or_so);
    tcase_add_loop_test(tc, the_estimate_follows_what_runs, 0, 8);
    tcase_add_test(tc, histograms_forget);
    tcase_add_loop_test(tc, rates_are_those_of_a_minute, 0, 3);
    tcase_add_test(tc, made_up_names_evict_nothing_known);
    tcase_add_test(tc, no_place_is_left);
    tcase_add_loop_test(tc, totals_are_never_lost, 0, 2);
    tcase_add_test(tc, what_slots_speak_of_stays);
    tcase_add_test(tc, names_and_keys);
    suite_add_tcase(s, tc);
    return s;
}
