/* Reading a board that others are changing: a copy that calls itself steady is
 * of one instant, whoever writes meanwhile, and a writer that died in the
 * middle keeps nobody from reading. */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "step.h"
#include "unit.h"

#define SLOTS 32

static void setup(void)
{
    board_open_shared(SLOTS, 4, 8);
}

/* Do the sums of a snapshot belong together? Only while nobody is reaped. */
static int torn(const dbguard_snapshot_t *s)
{
    const dbguard_counters_t *c = &s->counters;

    return c->admitted != c->released + s->held
           || c->refused
                  != c->refused_budget + c->refused_timeout + c->refused_board
           || s->held > s->limits.budget;
}

START_TEST(what_it_copies)
{
    dbguard_snapshot_t *s;
    dbguard_ticket_t t[8];
    int i;

    board.shared->generation = 3;
    for (i = 0; i < 8; i++) {
        t[i] = enter_as(100 + i).ticket;
        now += SECOND / 100;
    }
    leave(t[6]);
    s = snapshot();
    ck_assert_int_eq(s->steady, 1);
    ck_assert_int_eq(s->now, now);
    ck_assert_int_eq(s->uptime, 8 * SECOND / 100);
    ck_assert_int_eq(s->created_wall, START);
    ck_assert_uint_eq(s->parent, 4242);
    ck_assert_uint_eq(s->generation, 3);
    ck_assert_uint_eq(s->engine, 1);
    ck_assert_uint_eq(s->nslots, SLOTS);
    ck_assert_uint_eq(s->held, 4);
    ck_assert_uint_eq(s->waiting, 3);
    ck_assert_uint_eq(s->held_peak, 4);
    ck_assert_uint_eq(s->limits.budget, 4);
    ck_assert_uint_eq(s->counters.admitted, 4);
    ck_assert_uint_eq(s->counters.aborted, 1);
    ck_assert_int_eq(s->hold, SECOND / 2);
    ck_assert(!torn(s));
    free(s);
}
END_TEST

START_TEST(holders_first_and_longest_first)
{
    dbguard_snapshot_t *s;
    dbguard_ticket_t first;
    uint32_t i;

    teach("GET /", 0, 5 * (int64_t)SECOND); /* it does not grow heavier */
    first = enter_as(100).ticket;
    for (i = 1; i < 6; i++) {
        now += SECOND;
        enter_as((int32_t)(100 + i));
    }
    now += SECOND;
    leave(first); /* 104 gets the token, 105 waits */
    s = snapshot();
    ck_assert_uint_eq(s->nholders, 5);
    for (i = 1; i < 4; i++)
        ck_assert_int_le(s->holders[i].age, s->holders[i - 1].age);
    ck_assert_int_eq(s->holders[0].visitor.pid, 101);
    ck_assert_int_eq(s->holders[0].age, 5 * SECOND);
    ck_assert_int_eq(s->holders[3].visitor.pid, 104);
    ck_assert_int_eq(s->holders[3].age, 0); /* since it has its token */
    /* It is older, and comes last all the same: it only waits. */
    ck_assert_int_eq(s->holders[4].visitor.pid, 105);
    ck_assert_int_eq(s->holders[4].state, DBGUARD_WAITING);
    ck_assert_int_eq(s->holders[4].age, SECOND);
    ck_assert_str_eq(s->holders[0].visitor.client, "192.0.2.1");
    free(s);
}
END_TEST

START_TEST(who_holds_nothing_is_not_listed)
{
    dbguard_ticket_t holds;
    dbguard_snapshot_t *s;

    configure(1, 8, 0);
    board.shared->limits.settle = SECOND;
    holds = enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_WAIT);
    now += PATIENCE;
    leave(holds); /* one settles, one is expelled */
    s = snapshot();
    ck_assert_uint_eq(s->settling, 1);
    ck_assert_uint_eq(s->nholders, 0);
    free(s);
}
END_TEST

/* Every slot in use: the holders fill what dbguard_snapshot_size asked for. */
START_TEST(a_full_table)
{
    dbguard_snapshot_t *s;
    int i;

    configure(SLOTS, 0, 0);
    for (i = 0; i < SLOTS; i++)
        enter_to(DBGUARD_ADMITTED);
    s = snapshot();
    ck_assert_uint_eq(s->nholders, SLOTS);
    free(s);
}
END_TEST

/* What a damaged segment says is not believed. */
START_TEST(a_damaged_board)
{
    dbguard_snapshot_t *s;
    uint32_t i;
    dbguard_visitor_t *v = &board.shared->slots[0].visitor;

    enter();
    memset(v->client, 'x', sizeof(v->client));
    memset(v->endpoint, 'y', sizeof(v->endpoint));
    memset(&board.shared->endpoints[100], 'z', sizeof(dbguard_endpoint_t));
    memset(board.shared->limits.classes, 'c', sizeof(dbguard_class_t));
    board.shared->endpoints[100].class = 0;
    board.shared->nsettings = 1000;
    now -= SECOND; /* a reader whose clock is behind */
    s = snapshot();
    ck_assert_uint_eq(s->nsettings, DBGUARD_SETTINGS);
    ck_assert_uint_eq(strlen(s->holders[0].visitor.client),
                      DBGUARD_CLIENT_MAX - 1);
    ck_assert_uint_eq(strlen(s->holders[0].visitor.endpoint),
                      DBGUARD_ENDPOINT_MAX - 1);
    ck_assert_int_eq(s->holders[0].age, 0);
    for (i = 0; i < s->nrows; i++)
        if (s->rows[i].name[0] == 'z')
            break;
    ck_assert_uint_lt(i, s->nrows);
    ck_assert_uint_eq(strlen(s->rows[i].name), DBGUARD_ENDPOINT_MAX - 1);
    ck_assert_uint_eq(strlen(s->limits.classes[0].name),
                      DBGUARD_CLASS_MAX - 1);
    free(s);
}
END_TEST

/* dbguardctl maps the segment for reading only. */
START_TEST(a_read_only_mapping)
{
    size_t size = dbguard_board_size(SLOTS);

    enter();
    ck_assert_int_eq(mprotect(board.shared, size, PROT_READ), 0);
    free(snapshot());
    ck_assert_int_eq(mprotect(board.shared, size, PROT_READ | PROT_WRITE), 0);
}
END_TEST

/* --- endpoints ------------------------------------------------------------ */

static const dbguard_row_t *row_named(const dbguard_snapshot_t *s,
                                      const char *name)
{
    uint32_t i;

    for (i = 0; i < s->nrows; i++)
        if (strcmp(s->rows[i].name, name) == 0)
            return &s->rows[i];
    ck_abort_msg("no row %s", name);
}

static dbguard_ticket_t come_to(const char *endpoint)
{
    come_as(endpoint, 0, 0);
    return enter().ticket;
}

/* Three a second to one that holds 0.1 s, one a second to one of 0.9 s. */
START_TEST(rows_are_what_the_core_knows)
{
    uint32_t slow = teach("GET /slow", 0, 900000);
    uint32_t fast = teach("GET /fast", 0, 100000);
    const dbguard_row_t *row;
    dbguard_snapshot_t *s;
    uint32_t i, sum, peak;
    int t;

    now += 100 * (int64_t)SECOND;
    for (t = 0; t < 70; t++) {
        int64_t second = now;
        dbguard_ticket_t one = come_to("GET /slow");

        for (i = 0; i < (t == 40 ? 6 : 3); i++) {
            dbguard_ticket_t other = come_to("GET /fast");

            now += 100000;
            leave(other);
        }
        now = second + 900000;
        leave(one);
        now = second + SECOND;
    }
    come_to("GET /slow");
    now += 5 * (int64_t)SECOND;
    s = snapshot();
    row = row_named(s, "GET /slow");
    ck_assert_ptr_eq(row, &s->rows[0]);
    dbguard_endpoint_rate(&board.shared->endpoints[slow], now, &sum, &peak);
    ck_assert_uint_eq(row->came, sum);
    ck_assert_uint_eq(row->came, 56);
    ck_assert_uint_eq(row->peak, 1);
    ck_assert_uint_eq(row->held, 1);
    ck_assert_uint_eq(row->arrived, 71);
    ck_assert_uint_eq(row->released, 70);
    ck_assert_int_eq(row->mean, 900000);
    ck_assert_int_eq(row->hold, 900000);
    ck_assert_int_eq(row->estimate,
                     dbguard_endpoint_estimate(board.shared, slow, now));
    ck_assert_int_gt(row->estimate, 900000);
    ck_assert_double_eq_tol(row->needed,
                            56 / 60.0 * (double)row->estimate / 1e6, 1e-9);
    row = row_named(s, "GET /fast");
    ck_assert_ptr_eq(row, &s->rows[1]);
    ck_assert_uint_eq(row->came, 55 * 3 + 3);
    ck_assert_uint_eq(row->peak, 6);
    ck_assert_int_eq(row->estimate,
                     dbguard_endpoint_estimate(board.shared, fast, now));
    ck_assert_uint_eq(row->histogram[dbguard_bin_of(100000)], 213);
    free(s);
}
END_TEST

/* All that is not known yet is one row, which is what the core does with it. */
START_TEST(what_is_new_is_one_row)
{
    dbguard_snapshot_t *s;
    char name[32];
    int i;

    come_to("GET /"); /* is known */
    for (i = 0; i < 6; i++) {
        snprintf(name, sizeof(name), "GET /new%d", i / 2);
        come_to(name);
    }
    now += SECOND;
    s = snapshot();
    ck_assert_uint_eq(s->nrows, 2);
    ck_assert_int_eq(s->rows[0].known, DBGUARD_ENDPOINT_NEW);
    ck_assert_uint_eq(s->rows[0].endpoints, 3);
    ck_assert_uint_eq(s->rows[0].arrived, 6);
    ck_assert_uint_eq(s->rows[0].came, 6);
    ck_assert_uint_eq(s->rows[0].peak, 6);
    ck_assert_uint_eq(s->rows[0].held, 3);
    ck_assert_uint_eq(s->rows[0].waiting, 3);
    ck_assert_str_eq(s->rows[1].name, "GET /");
    free(s);
}
END_TEST

/* A table that is full: nothing is lost. */
START_TEST(what_has_no_place_is_counted)
{
    uint64_t arrived = 0;
    dbguard_snapshot_t *s;
    char name[32];
    uint32_t i;

    for (i = 0; i < 3000; i++) {
        snprintf(name, sizeof(name), "GET /%u", i);
        leave(come_to(name));
        now += 100;
    }
    s = snapshot();
    ck_assert_uint_le(s->nrows, DBGUARD_ENDPOINTS);
    for (i = 0; i < s->nrows; i++)
        arrived += s->rows[i].arrived;
    ck_assert_uint_eq(arrived, 3000);
    free(s);
}
END_TEST

START_TEST(groups)
{
    dbguard_snapshot_t *s;
    uint32_t i;

    for (i = 0; i < 9; i++) {
        come_as(i % 3 == 0 ? "GET /a" : "GET /b", 0, 0);
        snprintf(guest.client, sizeof(guest.client), "192.0.2.%u", i);
        enter();
        now += SECOND;
    }
    s = snapshot();
    ck_assert_uint_eq(s->endpoints.number, 2);
    ck_assert_uint_eq(s->endpoints.held, 4);
    ck_assert_uint_eq(s->endpoints.waiting, 5);
    ck_assert_str_eq(s->endpoints.listed[0].name, "GET /b");
    ck_assert_uint_eq(s->endpoints.listed[0].held, 2);
    ck_assert_uint_eq(s->endpoints.listed[0].waiting, 4);
    ck_assert_int_eq(s->endpoints.listed[0].oldest, 8 * SECOND);
    ck_assert_int_eq(s->endpoints.listed[1].oldest, 9 * SECOND);
    ck_assert_uint_eq(s->clients.number, 9);
    ck_assert_uint_eq(s->clients.nlisted, 9);
    ck_assert_str_eq(s->clients.listed[0].name, "192.0.2.0");
    ck_assert_uint_eq(s->clients.listed[8].held, 0);
    ck_assert_str_eq(s->holders[0].visitor.client, "192.0.2.0");
    free(s);
}
END_TEST

/* More groups than are listed: the largest are, in order. */
START_TEST(the_largest_groups)
{
    dbguard_snapshot_t *s;
    uint32_t i;

    configure(SLOTS, 0, 0);
    for (i = 0; i < SLOTS; i++) {
        come_as("GET /", 0, 0);
        snprintf(guest.client, sizeof(guest.client), "192.0.2.%u",
                 i < 8 ? 100 + i / 4 : i);
        enter();
    }
    s = snapshot();
    ck_assert_uint_eq(s->clients.number, SLOTS - 6);
    ck_assert_uint_eq(s->clients.nlisted, DBGUARD_GROUPS);
    ck_assert_uint_eq(s->clients.held, SLOTS);
    ck_assert_uint_eq(s->clients.listed[0].held, 4);
    ck_assert_uint_eq(s->clients.listed[1].held, 4);
    for (i = 2; i < DBGUARD_GROUPS; i++)
        ck_assert_uint_eq(s->clients.listed[i].held, 1);
    free(s);
}
END_TEST

/* --- while somebody writes ------------------------------------------------ */

static void come_and_go(void)
{
    dbguard_ticket_t t[10];
    int i;

    for (i = 0; i < 10; i++)
        t[i] = enter_as(getpid()).ticket;
    for (i = 0; i < 10; i++)
        if (t[i].serial != 0)
            leave(t[i]);
}

START_TEST(while_another_process_writes)
{
    int steady = 0, tries = 0, enough = scaled(3000);
    pid_t pid;

    /* Only the child changes it, but never the limits. */
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            come_and_go();
    }
    while (steady < enough && tries++ < 100 * enough) {
        dbguard_snapshot_t *s = snapshot();

        if (s->steady) {
            steady++;
            if (torn(s))
                ck_abort_msg("torn: %u held", s->held);
        }
        free(s);
    }
    kill(pid, SIGKILL);
    wait_for(pid);
    ck_assert_int_eq(steady, enough);
}
END_TEST

/* More endpoints than there is room for, each named by one letter again and
 * again. */
static void come_and_go_anywhere(void)
{
    static uint32_t n;
    char name[DBGUARD_ENDPOINT_MAX] = "";
    dbguard_ticket_t t;

    n = n * 1664525 + 1013904223;
    memset(name, 'a' + (int)(n >> 28), sizeof(name) - 12);
    snprintf(&name[sizeof(name) - 12], 12, "%u", n >> 8);
    t = come_to(name);
    now += 10000;
    leave(t);
}

static void check_names(const dbguard_snapshot_t *s)
{
    uint32_t i, j;

    for (i = 0; i < s->nrows; i++) {
        const char *name = s->rows[i].name;

        if (strlen(name) < DBGUARD_ENDPOINT_MAX - 12)
            continue;
        for (j = 0; j < DBGUARD_ENDPOINT_MAX - 12; j++)
            if (name[j] != name[0])
                ck_abort_msg("of two endpoints: %s", name);
    }
}

/* Entries are evicted and made anew all the while: no row is of two of them,
 * and it takes no longer to copy them. */
START_TEST(while_endpoints_come_and_go)
{
    int i, enough = scaled(6000);
    uint32_t rows = 0;
    pid_t pid;

    for (i = 0; i < 2000; i++)
        come_and_go_anywhere();
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            come_and_go_anywhere();
    }
    for (i = 0; i < enough; i++) {
        dbguard_snapshot_t *s = snapshot();

        check_names(s);
        rows += s->nrows;
        free(s);
    }
    kill(pid, SIGKILL);
    wait_for(pid);
    ck_assert_uint_gt(rows / (uint32_t)enough, DBGUARD_ENDPOINTS / 2);
}
END_TEST

static dbguard_ticket_t holds;

static void hand_over(void)
{
    leave(holds);
}

/* The writer stands still after each of its instructions: either the sums
 * belong together, or the snapshot says that it does not know. And there are
 * moments when they do not, so that this proves something. */
START_TEST(a_writer_that_stands_still)
{
    static const step_t step = {NULL, hand_over};
    long apart = 0, stops = 0;
    pid_t pid;

    if (!step_possible())
        return;
    configure(1, 8, 0);
    holds = enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_WAIT);
    pid = step_launch(&step);
    do {
        dbguard_snapshot_t *s = snapshot();

        if (torn(s)) {
            apart++;
            if (s->steady)
                ck_abort_msg("torn after %ld instructions", stops);
        }
        free(s);
        stops++;
    } while (step_one(pid));
    step_kill(pid);
    ck_assert_int_gt(apart, 0);
    ck_assert_int_gt(stops, 50);
}
END_TEST

START_TEST(a_writer_that_died)
{
    dbguard_ticket_t t = enter_to(DBGUARD_ADMITTED);
    dbguard_snapshot_t *s;
    pid_t pid = fork();

    if (pid == 0) {
        dbguard_board_lock(&board, now);
        _exit(0);
    }
    ck_assert_int_eq(wait_for(pid), 0);
    s = snapshot();
    ck_assert_int_eq(s->steady, 0);
    ck_assert_uint_eq(s->held, 1);
    free(s);
    leave(t); /* repairs */
    s = snapshot();
    ck_assert_int_eq(s->steady, 1);
    ck_assert_uint_eq(s->held, 0);
    free(s);
}
END_TEST

Suite *snapshot_suite(void)
{
    Suite *s = suite_create("snapshot");
    TCase *tc = tcase_create("snapshot");

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, board_close);
    tcase_add_test(tc, what_it_copies);
    tcase_add_test(tc, holders_first_and_longest_first);
    tcase_add_test(tc, who_holds_nothing_is_not_listed);
    tcase_add_test(tc, a_full_table);
    tcase_add_test(tc, a_damaged_board);
    tcase_add_test(tc, a_read_only_mapping);
    tcase_add_test(tc, rows_are_what_the_core_knows);
    tcase_add_test(tc, what_is_new_is_one_row);
    tcase_add_test(tc, what_has_no_place_is_counted);
    tcase_add_test(tc, groups);
    tcase_add_test(tc, the_largest_groups);
    tcase_add_test(tc, while_endpoints_come_and_go);
    tcase_add_test(tc, while_another_process_writes);
    tcase_add_test(tc, a_writer_that_stands_still);
    tcase_add_test(tc, a_writer_that_died);
    suite_add_tcase(s, tc);
    return s;
}
