/* What counters mean: divided by the time and the attempts that they stand for,
 * also after FLUSH STATUS, and never by zero. The first figures are those of
 * the incident that the guide tells of. */

#include <math.h>
#include <string.h>

#include "rates.h"
#include "unit.h"

static dbguard_rates_t derive(const dbguard_figures_t *f, uint64_t since)
{
    dbguard_rates_t rates;

    dbguard_rates_derive(&rates, f, since);
    return rates;
}

static int near(double a, double b)
{
    return fabs(a - b) <= 1e-6 * (fabs(b) + 1e-6);
}

START_TEST(raw_counters_mislead)
{
    const dbguard_figures_t f = {
        .uptime = 180 * 86400, .connections = 39890000, .refused = 108000,
        .threads_created = 398900, .aborted_clients = 150,
        .aborted_connects = 109800, .max_connections = 20,
        .max_used_connections = 21
    };
    dbguard_rates_t rates = derive(&f, f.uptime);

    ck_assert(!rates.flushed);
    ck_assert(near(rates.days, 180));
    ck_assert(near(rates.attempts, 39998000));
    ck_assert(near(rates.refused_share, 108000 / 39998000.0));
    ck_assert(near(rates.refused_per_day, 600));
    ck_assert(near(rates.cache_hits, 0.99));
    ck_assert(near(rates.broken_per_day, 150 / 180.0));
    ck_assert(near(rates.failed_per_day, 10));
    ck_assert(near(rates.peak, 1.05));
}
END_TEST

/* FLUSH STATUS begins the errors anew, and not the connections. */
START_TEST(after_flush_status)
{
    const dbguard_figures_t f = {
        .uptime = 10 * 86400, .connections = 1000000, .refused = 1000,
        .aborted_connects = 1000
    };
    dbguard_rates_t rates = derive(&f, 86400);

    ck_assert(rates.flushed);
    ck_assert(near(rates.days, 1));
    ck_assert(near(rates.attempts, 101000));
    ck_assert(near(rates.refused_share, 1 / 101.0));
    ck_assert(near(rates.refused_per_day, 1000));
    ck_assert(near(rates.failed_share, 0));
}
END_TEST

START_TEST(a_server_that_has_just_started)
{
    const dbguard_figures_t f = {.connections = 1, .aborted_connects = 1};
    const dbguard_figures_t nothing = {.uptime = 0};
    dbguard_rates_t rates = derive(&f, 0);

    ck_assert(!rates.flushed);
    ck_assert(near(rates.days * 86400, 1));
    ck_assert(near(rates.failed_share, 1));
    rates = derive(&nothing, 0);
    ck_assert(near(rates.refused_share, 0));
    ck_assert(near(rates.peak, 0));
    ck_assert(near(rates.cache_hits, 1));
}
END_TEST

START_TEST(flushed_within_this_second)
{
    const dbguard_figures_t f = {.uptime = 100, .connections = 200};
    dbguard_rates_t rates = derive(&f, 0);

    ck_assert(rates.flushed);
    ck_assert(near(rates.attempts, 2));
}
END_TEST

/* Counters that are read one after the other need not fit together. */
START_TEST(no_share_is_negative)
{
    const dbguard_figures_t f = {
        .uptime = 10, .connections = 5, .threads_created = 9, .refused = 7,
        .aborted_connects = 3
    };
    dbguard_rates_t rates = derive(&f, 10);

    ck_assert(near(rates.cache_hits, 0));
    ck_assert(near(rates.failed_share, 0));
}
END_TEST

/* The guide's example: a pool of 20 ran out at a mean hold of 14 s at the mean
 * rate and of 3.4 s at the peak. */
START_TEST(little)
{
    ck_assert(near(dbguard_little_needed(1.4, 10 * SECOND), 14));
    ck_assert(near(dbguard_little_hold(20 / 14.0, 20), 14 * SECOND));
    ck_assert(near(dbguard_little_hold(20 / 3.4, 20), 3.4 * SECOND));
    ck_assert(near(dbguard_little_hold(0, 20), 0));
}
END_TEST

Suite *rates_suite(void)
{
    Suite *s = suite_create("rates");
    TCase *tc = tcase_create("rates");

    tcase_add_test(tc, raw_counters_mislead);
    tcase_add_test(tc, after_flush_status);
    tcase_add_test(tc, a_server_that_has_just_started);
    tcase_add_test(tc, flushed_within_this_second);
    tcase_add_test(tc, no_share_is_negative);
    tcase_add_test(tc, little);
    suite_add_tcase(s, tc);
    return s;
}
