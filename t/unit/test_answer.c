/* What dbguard-monitor --probe writes is what its callers read; what is cut off
 * or forged is not taken for an answer. */

#include <stdio.h>
#include <string.h>

#include "answer.h"
#include "unit.h"

static char text[DBGUARD_ANSWER_SIZE];
static dbguard_answer_t sent, got;

/* All bytes differ from zero and from each other, as far as they are shown. */
static void fill(void)
{
    dbguard_figures_t *f = &sent.figures;
    uint32_t i;

    memset(&sent, 0, sizeof(sent));
    f->max_connections = UINT32_MAX;
    f->max_user_connections = 2;
    f->account_limit = 3;
    f->own = 4;
    f->threads_connected = 5;
    f->threads_running = 6;
    f->max_used_connections = 7;
    f->uptime = UINT64_C(1) << 62;
    f->connections = 9;
    f->threads_created = 10;
    f->aborted_connects = 11;
    f->aborted_clients = 12;
    f->refused = 13;
    f->nusers = DBGUARD_USERS;
    for (i = 0; i < DBGUARD_USERS; i++) {
        dbguard_user_t *u = &f->users[i];

        memset(u->name, 'a' + (int)i, sizeof(u->name) - 1);
        u->total = UINT32_MAX - i;
        u->sleeping = 20 + i;
        u->longest_sleep = 40 + i;
        u->longest_active = 60 + i;
    }
    snprintf(sent.details.version, sizeof(sent.details.version),
             "10.11.19-MariaDB");
    sent.details.since_flush = 14;
    sent.details.extra_port = 15;
    sent.details.extra_max_connections = 16;
    sent.details.extra_full = 1;
    sent.details.may = DBGUARD_MAY_PROCESS | DBGUARD_MAY_CONNECTION_ADMIN
                       | DBGUARD_MAY_SUPER;
}

static int round_trip(void)
{
    size_t len = dbguard_answer_write(&sent, text);

    ck_assert_uint_eq(len, strlen(text));
    ck_assert_uint_lt(len, DBGUARD_ANSWER_SIZE);
    memset(&got, 0x55, sizeof(got));
    return dbguard_answer_read(&got, text);
}

START_TEST(the_longest_answer_arrives_whole)
{
    fill();
    ck_assert(round_trip());
    ck_assert_mem_eq(&got, &sent, sizeof(got));
}
END_TEST

START_TEST(names_with_spaces)
{
    fill();
    snprintf(sent.figures.users[0].name, 33, "system user");
    snprintf(sent.figures.users[1].name, 33, "a 1 2 3");
    sent.figures.nusers = 2;
    ck_assert(round_trip());
    ck_assert_uint_eq(got.figures.nusers, 2);
    ck_assert_str_eq(got.figures.users[0].name, "system user");
    ck_assert_str_eq(got.figures.users[1].name, "a 1 2 3");
    ck_assert_uint_eq(got.figures.users[1].longest_active, 61);
}
END_TEST

START_TEST(an_error_has_no_figures)
{
    fill();
    sent.error = 2013;
    sent.timed_out = 1;
    snprintf(sent.text, sizeof(sent.text), "no answer for 1.8 s");
    ck_assert(round_trip());
    ck_assert_ptr_nonnull(strstr(text, "state stalled\n"));
    ck_assert_uint_eq(got.error, 2013);
    ck_assert_int_eq(got.timed_out, 1);
    ck_assert_str_eq(got.text, sent.text);
    ck_assert_uint_eq(got.figures.max_connections, 0);
}
END_TEST

/* What a server says cannot add a line. */
START_TEST(no_lines_are_smuggled)
{
    fill();
    sent.error = 1045;
    snprintf(sent.text, sizeof(sent.text),
             "x\nerror 0\nmax_connections 9\nend");
    ck_assert(round_trip());
    ck_assert_uint_eq(got.error, 1045);
    ck_assert_str_eq(got.text, "x error 0 max_connections 9 end");
}
END_TEST

/* A probe that was killed in the middle. */
START_TEST(what_is_cut_is_no_answer)
{
    char whole[DBGUARD_ANSWER_SIZE];
    size_t len, i;

    fill();
    len = dbguard_answer_write(&sent, whole);
    for (i = 0; i < len - 1; i++) {
        memcpy(text, whole, i);
        text[i] = '\0';
        if (dbguard_answer_read(&got, text))
            ck_abort_msg("%zu of %zu bytes were taken for all", i, len);
    }
}
END_TEST

static const char *const none[] = {
    "", "\n", "end", "end\n", "error 0\nend\n", "error x\nend\n",
    "max_connections -1\nend\n", "max_connections 24\n",
    "max_connections 24x\nend\n", "y\ny\ny\ny\n"
};

START_TEST(not_an_answer)
{
    ck_assert(!dbguard_answer_read(&got, none[_i]));
}
END_TEST

START_TEST(more_accounts_than_there_is_room_for)
{
    int i;

    snprintf(text, sizeof(text), "max_connections 24\n");
    for (i = 0; i < DBGUARD_USERS + 3; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text),
                 "user 1 2 3 4 u%d\n", i);
    snprintf(text + strlen(text), sizeof(text) - strlen(text),
             "user 1 2 3\nend\n");
    ck_assert(dbguard_answer_read(&got, text));
    ck_assert_uint_eq(got.figures.nusers, DBGUARD_USERS);
}
END_TEST

Suite *answer_suite(void)
{
    Suite *s = suite_create("answer");
    TCase *tc = tcase_create("answer");

    tcase_add_test(tc, the_longest_answer_arrives_whole);
    tcase_add_test(tc, names_with_spaces);
    tcase_add_test(tc, an_error_has_no_figures);
    tcase_add_test(tc, no_lines_are_smuggled);
    tcase_add_test(tc, what_is_cut_is_no_answer);
    tcase_add_loop_test(tc, not_an_answer, 0,
                        (int)(sizeof(none) / sizeof(none[0])));
    tcase_add_test(tc, more_accounts_than_there_is_room_for);
    suite_add_tcase(s, tc);
    return s;
}
