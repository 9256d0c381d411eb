/* Values of directives: read whole or not at all, and written so that they can
 * be read again. */

#include <stdio.h>

#include "unit.h"
#include "value.h"

#define MINUTE (60 * (int64_t)SECOND)

/* What nobody may take for a number from 1 to 100000. The first eight are the
 * ones that must stop a start. */
static const char *const not_numbers[] = {
    "50 # note", "1k", "150;", "abc", "${UNDEFINED}", "-1", "0", "99999999999",
    "", " ", " 5", "5 ", "5\n", "\t5", "+5", "-0", "--5", "0x10", "0b1", "1e3",
    "5.0", "5,000", "1_000", "5%", "5s", "five", "auto", "100001", "5 6",
    "18446744073709551616", "18446744073709551617", "9223372036854775808",
    "340282366920938463463374607431768211457",
    "99999999999999999999999999999999999999999999999999999999999999999999",
    "\xef\xbc\x95", "5\xc2\xa0", "\"5\"", "$5", "#5", "inf", "nan"
};

START_TEST(not_a_number)
{
    int64_t number = -7;

    if (dbguard_value_number(not_numbers[_i], 1, 100000, &number))
        ck_abort_msg("'%s' was read as %ld", not_numbers[_i], (long)number);
    ck_assert_int_eq(number, -7);
}
END_TEST

static const struct {
    const char *text;
    int64_t min, max, number;
} numbers[] = {
    {"1", 1, 100000, 1},
    {"100000", 1, 100000, 100000},
    {"0", 0, 1000000, 0},
    {"00020", 1, 100000, 20},
    {"000000000000000000000000000000000000000000020", 1, 100000, 20},
    {"400", 400, 599, 400},
    {"599", 400, 599, 599},
    {"9223372036854775807", 0, INT64_MAX, INT64_MAX},
    {"7", 7, 7, 7},
    {"0", 0, 0, 0},
};

START_TEST(a_number)
{
    int64_t number = -7;

    ck_assert(dbguard_value_number(numbers[_i].text, numbers[_i].min,
                                   numbers[_i].max, &number));
    ck_assert_int_eq(number, numbers[_i].number);
}
END_TEST

/* Every border: a number is read if and only if it is within. */
START_TEST(the_limits_are_exact)
{
    int64_t max, n, number;
    char text[24];

    for (max = 3; max <= 120; max++) {
        for (n = 0; n <= 1300; n++) {
            snprintf(text, sizeof(text), "%d", (int)n);
            if (dbguard_value_number(text, 3, max, &number)
                != (n >= 3 && n <= max))
                ck_abort_msg("%s in 3 to %d", text, (int)max);
        }
    }
}
END_TEST

static const struct {
    const char *text;
    int64_t duration;
} durations[] = {
    {"250ms", SECOND / 4},  {"2s", 2 * SECOND},    {"5min", 5 * MINUTE},
    {"1ms", 1000},          {"10min", 10 * MINUTE}, {"600s", 10 * MINUTE},
    {"600000ms", 10 * MINUTE}, {"002s", 2 * SECOND},
};

START_TEST(a_duration)
{
    int64_t duration = -7;

    ck_assert(dbguard_value_duration(durations[_i].text, 1000, 10 * MINUTE,
                                     &duration));
    ck_assert_int_eq(duration, durations[_i].duration);
}
END_TEST

/* What nobody may take for a duration from 1 ms to 10 min. */
static const char *const not_durations[] = {
    "", "5", "0", "250", "ms", "s", "min", "2 s", " 2s", "2s ", "2S", "2sec",
    "2m", "2h", "2us", "2mins", "2minute", "2s2", "1min30s", "1.5s", "1,5s",
    "-2s", "+2s", "0x2s", "2s # note", "2s;", "abc", "${UNDEFINED}", "auto",
    "0ms", "0s", "0min", "601s", "600001ms", "11min", "10.5min",
    "9223372036854775807s", "9223372036854775807min", "153722867280912931min",
    "9223372036854775808ms", "18446744073709551616s", "18446744073709551618s",
    "99999999999999999999999999999999999999s"
};

START_TEST(not_a_duration)
{
    int64_t duration = -7;

    if (dbguard_value_duration(not_durations[_i], 1000, 10 * MINUTE,
                               &duration))
        ck_abort_msg("'%s' was read as %ld", not_durations[_i],
                     (long)duration);
    ck_assert_int_eq(duration, -7);
}
END_TEST

/* With no limit but the type's own. */
START_TEST(durations_do_not_overflow)
{
    int64_t d = -7;

    ck_assert(!dbguard_value_duration("153722867281min", 0, INT64_MAX, &d));
    ck_assert(!dbguard_value_duration("9223372036855s", 0, INT64_MAX, &d));
    ck_assert(!dbguard_value_duration("9223372036854776ms", 0, INT64_MAX, &d));
    ck_assert_int_eq(d, -7);
    ck_assert(dbguard_value_duration("9223372036854s", 0, INT64_MAX, &d));
    ck_assert_int_eq(d, INT64_C(9223372036854) * SECOND);
    ck_assert(dbguard_value_duration("0s", 0, INT64_MAX, &d));
    ck_assert_int_eq(d, 0);
}
END_TEST

static const struct {
    int64_t duration;
    const char *text;
} printed[] = {
    {1000, "1ms"},
    {SECOND / 4, "250ms"},
    {1500000, "1500ms"},
    {2 * SECOND, "2s"},
    {90 * (int64_t)SECOND, "90s"},
    {MINUTE, "1min"},
    {60 * MINUTE, "60min"},
    {999, "999us"},
    {1000001, "1000001us"},
    {INT64_MAX, "9223372036854775807us"},
};

START_TEST(a_duration_in_its_largest_unit)
{
    char buf[24];

    ck_assert_ptr_eq(dbguard_value_print_duration(printed[_i].duration, buf),
                     buf);
    ck_assert_str_eq(buf, printed[_i].text);
}
END_TEST

START_TEST(what_is_written_can_be_read)
{
    int64_t d, back;
    char buf[24];

    for (d = 1000; d < 3600 * (int64_t)SECOND; d += 1000 + d / 7000 * 1000) {
        dbguard_value_print_duration(d, buf);
        if (!dbguard_value_duration(buf, 0, INT64_MAX, &back) || back != d)
            ck_abort_msg("%ld became %s", (long)d, buf);
    }
}
END_TEST

Suite *value_suite(void)
{
    Suite *s = suite_create("value");
    TCase *tc = tcase_create("value");

    tcase_add_loop_test(tc, not_a_number, 0, LENGTH(not_numbers));
    tcase_add_loop_test(tc, a_number, 0, LENGTH(numbers));
    tcase_add_test(tc, the_limits_are_exact);
    tcase_add_loop_test(tc, a_duration, 0, LENGTH(durations));
    tcase_add_loop_test(tc, not_a_duration, 0, LENGTH(not_durations));
    tcase_add_test(tc, durations_do_not_overflow);
    tcase_add_loop_test(tc, a_duration_in_its_largest_unit, 0,
                        LENGTH(printed));
    tcase_add_test(tc, what_is_written_can_be_read);
    suite_add_tcase(s, tc);
    return s;
}
