/* What the guard makes of what it hears of the database: the state that an
 * error means, the budget that follows from the figures and how it moves, when
 * an outage closes the door, and what admission does then. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "database.h"
#include "unit.h"

static dbguard_database_t db;
static dbguard_rules_t rules;
static dbguard_answer_t answer;

/* A database of 24 connections, nobody connected but the monitor; the reserve
 * is automatic. */
static void setup(void)
{
    now = START;
    memset(&db, 0, sizeof(db));
    memset(&rules, 0, sizeof(rules));
    memset(&answer, 0, sizeof(answer));
    rules.percent = DBGUARD_RESERVE_AUTO;
    answer.figures.max_connections = 24;
    answer.figures.threads_connected = 1;
    answer.figures.uptime = 1000;
}

/* One more poll, a second after the last. Returns 1 when the state changed. */
static int hear(void)
{
    now += SECOND;
    answer.figures.uptime++;
    return dbguard_database_learn(&db, &rules, &answer, now);
}

/* A good answer: so many tokens are out, and others have so many. */
static int good(uint32_t held, uint32_t others)
{
    answer.error = 0;
    answer.timed_out = 0;
    answer.text[0] = '\0';
    answer.held = held;
    answer.figures.threads_connected = held + 1 + others;
    return hear();
}

static int failed(uint32_t error, const char *text)
{
    answer.error = error;
    answer.timed_out = error == 2013 && strstr(text, "no answer") != NULL;
    snprintf(answer.text, sizeof(answer.text), "%s", text);
    return hear();
}

static int stall(void)
{
    return failed(2013, "no answer for 0.9 s while asking");
}

static int down(void)
{
    return failed(2002, "Can't connect to server on '127.0.0.1' (111)");
}

static int turned_away(void)
{
    return failed(1040, "Too many connections");
}

/* --- what an error means ------------------------------------------------- */

#define BEFORE_TLS                                                            \
    "Received error packet before completion of TLS handshake. The "         \
    "authenticity of the following error cannot be verified: "

static const struct {
    uint32_t error;
    const char *text;
    int timed_out;
    dbguard_dbstate_t state;
} errors[] = {
    {0, "", 0, DBGUARD_DB_OK},
    {1040, "Too many connections", 0, DBGUARD_DB_FULL},
    {1203, "User app already has more than 'max_user_connections' active "
           "connections", 0, DBGUARD_DB_FULL},
    {1226, "User 'app' has exceeded the 'max_user_connections' resource "
           "(current value: 5)", 0, DBGUARD_DB_FULL},
    {2002, BEFORE_TLS "1040 - Too many connections", 0, DBGUARD_DB_FULL},

    {2013, "no answer for 0.9 s while asking", 1, DBGUARD_DB_STALLED},
    {2013, "no answer for 1.8 s while connecting", 1, DBGUARD_DB_STALLED},

    {2002, "Can't connect to server on '127.0.0.1' (111)", 0, DBGUARD_DB_DOWN},
    {2002, "Can't connect to local server through socket '/run/no' (2)", 0,
     DBGUARD_DB_DOWN},
    {2003, "Can't connect to server on 'db' (113)", 0, DBGUARD_DB_DOWN},
    {2005, "Unknown server host 'db' (-2)", 0, DBGUARD_DB_DOWN},
    {2006, "Server has gone away", 0, DBGUARD_DB_DOWN},
    {2013, "Lost connection to server at 'handshake: reading initial "
           "communication packet', system error: 104", 0, DBGUARD_DB_DOWN},
    {1053, "Server shutdown in progress", 0, DBGUARD_DB_DOWN},
    {2002, BEFORE_TLS "1053 - Server shutdown in progress", 0,
     DBGUARD_DB_DOWN},

    {1047, "WSREP has not yet prepared node for application use", 0,
     DBGUARD_DB_NOTREADY},

    {1044, "Access denied for user 'dbguard'@'%' to database 'x'", 0,
     DBGUARD_DB_DENIED},
    {1045, "Access denied for user 'dbguard'@'127.0.0.1' (using password: "
           "YES)", 0, DBGUARD_DB_DENIED},
    {1129, "Host '10.0.0.1' is blocked because of many connection errors", 0,
     DBGUARD_DB_DENIED},
    {1130, "Host '10.0.0.1' is not allowed to connect to this server", 0,
     DBGUARD_DB_DENIED},
    {1142, "SELECT command denied to user", 0, DBGUARD_DB_DENIED},
    {1227, "Access denied; you need (at least one of) the PROCESS privilege",
     0, DBGUARD_DB_DENIED},
    {1251, "Client does not support authentication protocol", 0,
     DBGUARD_DB_DENIED},
    {1275, "Server is running in --secure-auth mode", 0, DBGUARD_DB_DENIED},
    {1698, "Access denied for user 's'@'127.0.0.1'", 0, DBGUARD_DB_DENIED},
    {1820, "You must SET PASSWORD before executing this statement", 0,
     DBGUARD_DB_DENIED},
    {1862, "Your password has expired", 0, DBGUARD_DB_DENIED},
    {2012, "Error in server handshake", 0, DBGUARD_DB_DENIED},
    {2026, "TLS/SSL error: SSL is required, but the server does not support "
           "it", 0, DBGUARD_DB_DENIED},
    {2049, "Connection using old (pre-4.1.1) authentication protocol refused",
     0, DBGUARD_DB_DENIED},
    {2054, "Server sent charset unknown to the client", 0, DBGUARD_DB_DENIED},
    {2059, "Authentication plugin 'x' cannot be loaded", 0, DBGUARD_DB_DENIED},
    {2061, "Authentication plugin 'x' reported error", 0, DBGUARD_DB_DENIED},
    {2002, BEFORE_TLS "1130 - Host '10.0.0.1' is not allowed to connect to "
           "this server", 0, DBGUARD_DB_DENIED},

    /* The server's own numbers do not end at 1999. */
    {3159, "Connections using insecure transport are prohibited", 0,
     DBGUARD_DB_DENIED},
    {4151, "Access denied, this account is locked", 0, DBGUARD_DB_DENIED},

    /* What an account is not allowed in an hour is no lack of connections. */
    {1226, "User 'dbguard' has exceeded the 'max_queries_per_hour' resource "
           "(current value: 1)", 0, DBGUARD_DB_DENIED},

    /* Names with a number in them. */
    {1045, "Access denied for user 'shop1040'@'127.0.0.1' (using password: "
           "YES)", 0, DBGUARD_DB_DENIED},
    {1044, "Access denied for user 'u'@'h' to database 'Too many connections'",
     0, DBGUARD_DB_DENIED},
    {2005, "Unknown server host 'db1040.example' (-2)", 0, DBGUARD_DB_DOWN},
    {2002, "Can't connect to server on 'db1040' (111)", 0, DBGUARD_DB_DOWN},
    {2002, "Can't connect to local server through socket '/run/1040/s' (2)",
     0, DBGUARD_DB_DOWN},
};

START_TEST(an_error_means_a_state)
{
    dbguard_dbstate_t state = dbguard_database_classify(
        errors[_i].error, errors[_i].text, errors[_i].timed_out);

    if (state != errors[_i].state)
        ck_abort_msg("%u (%s) was taken for %s, not for %s", errors[_i].error,
                     errors[_i].text, dbguard_dbstate_name(state),
                     dbguard_dbstate_name(errors[_i].state));
}
END_TEST

static const struct {
    dbguard_dbstate_t state;
    const char *name;
    int closed;
} names[] = {
    {DBGUARD_DB_UNKNOWN, "unknown", 0}, {DBGUARD_DB_OK, "ok", 0},
    {DBGUARD_DB_FULL, "full", 0},       {DBGUARD_DB_STALLED, "stalled", 1},
    {DBGUARD_DB_DOWN, "down", 1},       {DBGUARD_DB_DENIED, "denied", 0},
    {DBGUARD_DB_NOTREADY, "notready", 1},
};

/* The numbers are on server-status: they are never used anew. */
START_TEST(a_state_has_a_number_a_name_and_a_remedy)
{
    ck_assert_int_eq(DBGUARD_DB_STATES, LENGTH(names));
    ck_assert_int_eq(names[_i].state, _i);
    ck_assert_str_eq(dbguard_dbstate_name(names[_i].state), names[_i].name);
    ck_assert_uint_gt(strlen(dbguard_dbstate_meaning(names[_i].state)), 10);
    ck_assert_uint_ge(strlen(dbguard_dbstate_remedy(names[_i].state)), 7);
}
END_TEST

START_TEST(a_number_from_elsewhere_is_no_state)
{
    ck_assert_str_eq(dbguard_dbstate_name(DBGUARD_DB_STATES), "unknown");
    ck_assert_str_eq(dbguard_dbstate_name((dbguard_dbstate_t)-1), "unknown");
    ck_assert_str_eq(dbguard_dbstate_remedy((dbguard_dbstate_t)77),
                     dbguard_dbstate_remedy(DBGUARD_DB_UNKNOWN));
}
END_TEST

/* --- limit and reserve --------------------------------------------------- */

static const struct {
    uint32_t max, user, account;
    int shares; /* the application uses the monitor's account */
    uint32_t limit;
} limits[] = {
    {151, 0, 0, 1, 151},     {151, 50, 0, 1, 50},  {151, 0, 24, 1, 24},
    {151, 50, 24, 1, 24},    {151, 24, 50, 1, 24}, {24, 50, 60, 1, 24},
    {10, 0, 0, 1, 10},       {100000, 0, 0, 1, 100000},
    {24, UINT32_MAX, 0, 1, 24}, {1, 1, 1, 1, 1},
    {151, 50, 2, 0, 50},     {151, 0, 2, 0, 151},
};

START_TEST(the_limit_is_the_least_that_is_set)
{
    dbguard_figures_t f = {0};

    f.max_connections = limits[_i].max;
    f.max_user_connections = limits[_i].user;
    f.account_limit = limits[_i].account;
    ck_assert_uint_eq(dbguard_database_limit(&f, limits[_i].shares),
                      limits[_i].limit);
}
END_TEST

static const struct {
    uint32_t reserve, percent, limit, kept;
} reserves[] = {
    {0, DBGUARD_RESERVE_AUTO, 10, 3},   {0, DBGUARD_RESERVE_AUTO, 24, 3},
    {0, DBGUARD_RESERVE_AUTO, 30, 3},   {0, DBGUARD_RESERVE_AUTO, 31, 4},
    {0, DBGUARD_RESERVE_AUTO, 151, 16}, {0, DBGUARD_RESERVE_AUTO, 1000, 100},
    {0, DBGUARD_RESERVE_AUTO, 100000, 10000},
    {0, DBGUARD_RESERVE_AUTO, UINT32_MAX, 429496730},
    {5, 0, 24, 5},   {0, 0, 24, 0},   {50, 0, 24, 50},
    {0, 10, 24, 3},  {0, 1, 100, 1},  {0, 1, 101, 2}, {0, 90, 10, 9},
    {0, 50, UINT32_MAX, 2147483648u},
};

START_TEST(a_reserve_is_kept)
{
    dbguard_rules_t r = {0};

    r.reserve = reserves[_i].reserve;
    r.percent = reserves[_i].percent;
    ck_assert_uint_eq(dbguard_database_reserve(&r, reserves[_i].limit),
                      reserves[_i].kept);
}
END_TEST

/* --- the budget ---------------------------------------------------------- */

START_TEST(from_the_first_answer_on)
{
    ck_assert_uint_eq(db.budget, 0);
    ck_assert_int_eq(good(0, 0), 1);
    ck_assert_uint_eq(db.state, DBGUARD_DB_OK);
    ck_assert_uint_eq(db.budget, 21);
    ck_assert_str_eq(db.why,
                     "21 = min(max_connections 24) - reserve 3 - others 0");
    ck_assert_int_eq(db.since, now);
    ck_assert_int_eq(db.attempted, now);
    ck_assert_int_eq(db.answered, now);
    ck_assert_int_eq(good(0, 0), 0);
    ck_assert_int_eq(db.since, now - SECOND);
}
END_TEST

START_TEST(it_follows_the_limits)
{
    int i;

    good(0, 0);
    answer.figures.max_connections = 12;
    good(0, 0);
    ck_assert_uint_eq(db.budget, 9);
    answer.figures.max_user_connections = 8;
    good(0, 0);
    ck_assert_uint_eq(db.budget, 5);
    ck_assert_str_eq(db.why, "5 = min(max_connections 12, max_user_connections "
                             "8) - reserve 3 - others 0");
    answer.figures.account_limit = 6;
    good(0, 0);
    ck_assert_uint_eq(db.budget, 5);
    answer.figures.own = 2;
    for (i = 0; i < 5; i++)
        good(0, 0);
    ck_assert_uint_eq(db.budget, 3);
    ck_assert_str_eq(db.why, "3 = min(max_connections 12, max_user_connections "
                             "8, account 6) - reserve 3 - others 0");
    answer.figures.max_connections = 24;
    answer.figures.account_limit = answer.figures.max_user_connections = 0;
    good(0, 0);
    ck_assert_uint_eq(db.budget, 21);
}
END_TEST

/* A monitor's account may well be limited to one or two connections: that is
 * no limit of the application, unless it uses the same account. A second
 * monitor, in a reload, or a probe now and then are no proof; five polls in a
 * row are, for good. */
START_TEST(the_accounts_limit_counts_when_it_is_shared)
{
    int i;

    answer.figures.account_limit = 6;
    for (i = 0; i < 40; i++) {
        answer.figures.own = i % 5 == 4 ? 1 : 4;
        good(3, 0);
        ck_assert_uint_eq(db.budget, 21);
        ck_assert_ptr_null(strstr(db.why, "account"));
    }
    answer.figures.own = 4;
    for (i = 0; i < 5; i++)
        good(3, 0);
    ck_assert_uint_eq(db.budget, 3);
    answer.figures.own = 1;
    good(0, 0);
    ck_assert_uint_eq(db.budget, 3);
    ck_assert_str_eq(db.why, "3 = min(max_connections 24, account 6) - reserve "
                             "3 - others 0");
}
END_TEST

START_TEST(tokens_and_the_monitor_are_no_others)
{
    good(20, 0);
    ck_assert_uint_eq(db.budget, 21);
    good(0, 6);
    ck_assert_uint_eq(db.budget, 15);
}
END_TEST

/* Who holds a token need not have connected yet. */
START_TEST(others_are_never_less_than_none)
{
    good(20, 0);
    answer.figures.threads_connected = 3;
    hear();
    ck_assert_uint_eq(db.budget, 21);
    answer.figures.threads_connected = 0;
    answer.held = UINT32_MAX - 1;
    hear();
    ck_assert_uint_eq(db.budget, 21);
}
END_TEST

/* The most of ten polls counts, so that cron does not shake the budget. */
START_TEST(others_count_for_ten_polls)
{
    int i;

    good(0, 2);
    good(0, 6);
    for (i = 1; i < DBGUARD_WINDOW; i++) {
        good(0, 0);
        if (db.budget != 15)
            ck_abort_msg("%u after %d polls", db.budget, i);
    }
    good(0, 0);
    ck_assert_uint_eq(db.budget, 21);
    good(0, 1);
    ck_assert_uint_eq(db.budget, 20);
}
END_TEST

START_TEST(more_others_count_at_once)
{
    good(0, 1);
    good(0, 9);
    ck_assert_uint_eq(db.budget, 12);
    good(0, 11);
    ck_assert_uint_eq(db.budget, 10);
}
END_TEST

START_TEST(never_less_than_one)
{
    answer.figures.max_connections = 3;
    good(0, 0);
    ck_assert_uint_eq(db.budget, 1);
    ck_assert_str_eq(db.why, "1 = min(max_connections 3) - reserve 3 - others "
                             "0, and never less than 1");
    answer.figures.max_connections = 24;
    good(0, 22);
    ck_assert_uint_eq(db.budget, 1);
    rules.percent = 0;
    rules.reserve = 4000000000u;
    good(0, 0);
    ck_assert_uint_eq(db.budget, 1);
}
END_TEST

START_TEST(a_cap_is_absolute)
{
    rules.cap = 10;
    good(0, 0);
    ck_assert_uint_eq(db.budget, 10);
    ck_assert_str_eq(db.why, "10 = min(max_connections 24) - reserve 3 - "
                             "others 0, at most DBGuardBudget");
    good(0, 15); /* less is less */
    ck_assert_uint_eq(db.budget, 6);
    ck_assert_str_eq(db.why, "6 = min(max_connections 24) - reserve 3 - others "
                             "15");
    rules.cap = 5000;
    good(0, 15);
    ck_assert_uint_eq(db.budget, 6);
}
END_TEST

/* A reload can lower it while there is nobody to ask. */
START_TEST(a_cap_binds_without_figures)
{
    good(0, 0);
    failed(1045, "Access denied");
    rules.cap = 5;
    failed(1045, "Access denied");
    ck_assert_uint_eq(db.budget, 5);
    ck_assert_int_eq(atoi(db.why), 5);
    rules.cap = 10;
    failed(1045, "Access denied");
    ck_assert_uint_le(db.budget, 10);
    rules.cap = 0;
    good(0, 0);
    ck_assert_uint_eq(db.budget, 21);
}
END_TEST

/* --- trouble: x 0.8, + 1 ------------------------------------------------- */

START_TEST(a_full_server_cuts_and_a_clean_poll_adds)
{
    static const uint32_t cut[] = {16, 12, 9, 7, 5, 4, 3, 2, 1, 1, 1};
    uint32_t i;

    good(20, 0);
    for (i = 0; i < (uint32_t)LENGTH(cut); i++) {
        good(23, 0); /* 24 connections of 24 */
        ck_assert_uint_eq(db.state, DBGUARD_DB_FULL);
        if (db.budget != cut[i])
            ck_abort_msg("cut to %u, not to %u", db.budget, cut[i]);
    }
    ck_assert_ptr_nonnull(strstr(db.why, ", cut because it was full"));
    for (i = 2; i < 21; i++) {
        good(1, 0);
        ck_assert_uint_eq(db.state, DBGUARD_DB_OK);
        if (db.budget != i)
            ck_abort_msg("grew to %u, not to %u", db.budget, i);
    }
    good(1, 0);
    ck_assert_uint_eq(db.budget, 21);
    ck_assert_ptr_null(strstr(db.why, "cut"));
    good(1, 0);
    ck_assert_uint_eq(db.budget, 21);
}
END_TEST

START_TEST(who_was_turned_away_was_one_too_many)
{
    good(5, 0);
    answer.figures.refused = 1;
    ck_assert_int_eq(good(5, 0), 1);
    ck_assert_uint_eq(db.state, DBGUARD_DB_FULL);
    ck_assert_uint_eq(db.budget, 16);
    ck_assert_int_eq(good(5, 0), 1);
    ck_assert_uint_eq(db.state, DBGUARD_DB_OK);
    ck_assert_uint_eq(db.budget, 17);
}
END_TEST

/* One more than max_connections may log in, and is turned away then: an aborted
 * connect. In a server that is nowhere near its limit it was something else. */
START_TEST(the_last_place_is_no_place)
{
    good(19, 0);
    answer.figures.aborted_connects++;
    good(19, 0);
    ck_assert_uint_eq(db.state, DBGUARD_DB_OK);
    answer.figures.max_used_connections = 25;
    good(19, 0);
    ck_assert_uint_eq(db.state, DBGUARD_DB_OK);
    answer.figures.aborted_connects++;
    good(19, 0);
    ck_assert_uint_eq(db.state, DBGUARD_DB_FULL);
    ck_assert_uint_eq(db.budget, 16);
    answer.figures.aborted_connects++;
    good(10, 0);
    ck_assert_uint_eq(db.state, DBGUARD_DB_OK);
}
END_TEST

/* What was before the first answer is the past. */
START_TEST(old_refusals_do_not_count)
{
    answer.figures.refused = 1000;
    good(5, 0);
    ck_assert_uint_eq(db.state, DBGUARD_DB_OK);
    ck_assert_uint_eq(db.budget, 21);
}
END_TEST

/* The counters of a server that was started anew begin at 0. */
START_TEST(a_restart_of_the_server_is_no_refusal)
{
    answer.figures.refused = 10;
    good(5, 0);
    answer.figures.uptime = 1;
    answer.figures.refused = 0;
    good(5, 0);
    ck_assert_uint_eq(db.state, DBGUARD_DB_OK);
    answer.figures.uptime = 0;
    answer.figures.refused = 3;
    good(5, 0);
    ck_assert_uint_eq(db.state, DBGUARD_DB_OK);
    answer.figures.refused = 4;
    good(5, 0);
    ck_assert_uint_eq(db.state, DBGUARD_DB_FULL);
}
END_TEST

/* A first answer can already be a bad one. */
START_TEST(a_server_that_is_full_at_first_is_cut_too)
{
    good(23, 0);
    ck_assert_uint_eq(db.state, DBGUARD_DB_FULL);
    ck_assert_uint_eq(db.budget, 16);
}
END_TEST

/* The monitor itself meets 1040, and has no figures. */
START_TEST(it_is_cut_without_figures)
{
    good(5, 0);
    ck_assert_int_eq(turned_away(), 1);
    ck_assert_uint_eq(db.state, DBGUARD_DB_FULL);
    ck_assert_uint_eq(db.budget, 16);
    ck_assert_uint_eq(db.error, 1040);
    ck_assert_str_eq(db.why, "16, cut because it was full (error 1040)");
    ck_assert_int_eq(turned_away(), 0);
    ck_assert_uint_eq(db.budget, 12);
    ck_assert_int_eq(good(5, 0), 1);
    ck_assert_uint_eq(db.budget, 13);
}
END_TEST

START_TEST(nothing_is_cut_where_nothing_is_known)
{
    turned_away();
    ck_assert_uint_eq(db.state, DBGUARD_DB_FULL);
    ck_assert_uint_eq(db.budget, 0);
    ck_assert_str_eq(db.why, "");
    good(5, 0);
    ck_assert_uint_eq(db.budget, 21);
}
END_TEST

START_TEST(a_cut_begins_at_the_cap)
{
    rules.cap = 10;
    good(5, 0);
    turned_away();
    ck_assert_uint_eq(db.budget, 8);
    good(5, 0);
    good(5, 0);
    ck_assert_uint_eq(db.budget, 10);
    good(5, 0);
    ck_assert_uint_eq(db.budget, 10);
}
END_TEST

/* --- after an outage ----------------------------------------------------- */

static void outage(int state)
{
    static const struct {
        uint32_t error;
        const char *text;
    } causes[] = {
        {2013, "no answer for 0.9 s while asking"},
        {2002, "Can't connect to server on '127.0.0.1' (111)"},
        {1047, "WSREP has not yet prepared node for application use"},
    };

    ck_assert_int_eq(failed(causes[state].error, causes[state].text), 1);
    ck_assert(dbguard_database_closed(&db, &rules, now));
}

START_TEST(it_comes_back_over_ten_seconds)
{
    int i;

    good(0, 0);
    outage(_i);
    ck_assert_int_eq(good(0, 0), 1);
    ck_assert_uint_eq(db.budget, 1);
    ck_assert_ptr_nonnull(strstr(db.why, ", rising after an outage"));
    for (i = 1; i < 10; i++) {
        good(0, 0);
        if (db.budget != (uint32_t)(21 * i / 10))
            ck_abort_msg("%u after %d s", db.budget, i);
    }
    good(0, 0);
    ck_assert_uint_eq(db.budget, 21);
    ck_assert_ptr_null(strstr(db.why, "outage"));
    good(0, 0);
    ck_assert_uint_eq(db.budget, 21);
}
END_TEST

START_TEST(polls_that_were_missed_do_not_slow_it)
{
    good(0, 0);
    down();
    good(0, 0);
    now += 4 * SECOND;
    good(0, 0);
    ck_assert_uint_eq(db.budget, 10);
    now += 20 * SECOND;
    good(0, 0);
    ck_assert_uint_eq(db.budget, 21);
}
END_TEST

START_TEST(a_second_outage_begins_anew)
{
    int i;

    good(0, 0);
    down();
    for (i = 0; i < 6; i++)
        good(0, 0);
    ck_assert_uint_eq(db.budget, 10);
    stall();
    ck_assert_uint_eq(db.budget, 10);
    good(0, 0);
    ck_assert_uint_eq(db.budget, 1);
}
END_TEST

START_TEST(the_cap_binds_in_the_rise_too)
{
    int i;

    rules.cap = 4;
    good(0, 0);
    down();
    good(0, 0);
    ck_assert_uint_eq(db.budget, 1);
    for (i = 0; i < 12; i++) {
        good(0, 0);
        ck_assert_uint_le(db.budget, 4);
    }
    ck_assert_uint_eq(db.budget, 4);
}
END_TEST

START_TEST(no_rise_after_what_was_no_outage)
{
    good(0, 0);
    failed(1045, "Access denied");
    good(0, 0);
    ck_assert_uint_eq(db.budget, 21);
    answer.figures.refused++;
    good(0, 0);
    ck_assert_uint_eq(db.budget, 16);
    good(0, 0);
    ck_assert_uint_eq(db.budget, 17);
}
END_TEST

/* Everybody comes at once to a server that has just been started: it can be
 * full before the monitor gets in, or not know its account yet. */
START_TEST(it_rises_slowly_after_an_outage_that_ends_badly)
{
    good(0, 0);
    down();
    if (_i == 0)
        turned_away();
    else
        failed(1045, "Access denied");
    good(0, 0);
    ck_assert_uint_eq(db.state, DBGUARD_DB_OK);
    ck_assert_uint_eq(db.budget, 1);
}
END_TEST

START_TEST(full_after_an_outage)
{
    good(0, 0);
    down();
    good(23, 0);
    ck_assert_uint_eq(db.state, DBGUARD_DB_FULL);
    ck_assert_uint_eq(db.budget, 1);
}
END_TEST

/* --- knowledge that is old ----------------------------------------------- */

/* Whatever is heard instead of figures, the budget is not raised by it. */
START_TEST(no_figures_never_raise_it)
{
    uint32_t before;

    if (errors[_i].error == 0)
        return;
    rules.cap = 12;
    good(0, 0);
    before = db.budget;
    rules.cap = 0;
    answer.figures.max_connections = 1000;
    failed(errors[_i].error, errors[_i].text);
    ck_assert_uint_le(db.budget, before);
    if (db.state != DBGUARD_DB_FULL)
        ck_assert_uint_eq(db.budget, before);
    ck_assert_int_eq(db.answered, now - SECOND);
    ck_assert_int_eq(db.attempted, now);
    ck_assert_uint_eq(db.figures.max_connections, 24);
}
END_TEST

START_TEST(it_keeps_what_the_error_said)
{
    good(0, 0);
    down();
    ck_assert_uint_eq(db.error, 2002);
    ck_assert_str_eq(db.text, "Can't connect to server on '127.0.0.1' (111)");
    good(0, 0);
    ck_assert_uint_eq(db.error, 0);
    ck_assert_str_eq(db.text, "");
}
END_TEST

/* One log line a change: learn says 1 when there is one, and only then. */
START_TEST(a_change_is_told_once)
{
    int i, told = 0;

    told += good(0, 0);
    for (i = 0; i < 20; i++)
        told += stall();
    for (i = 0; i < 20; i++)
        told += down();
    for (i = 0; i < 20; i++)
        told += good(0, 0);
    ck_assert_int_eq(told, 4);
}
END_TEST

/* --- the door ------------------------------------------------------------ */

START_TEST(closed_in_an_outage)
{
    db.state = names[_i].state;
    db.attempted = now;
    ck_assert_int_eq(dbguard_database_closed(&db, &rules, now),
                     names[_i].closed);
    rules.admit = 1;
    ck_assert_int_eq(dbguard_database_closed(&db, &rules, now), 0);
}
END_TEST

/* Who does not hear of the monitor does not know that it is still down. */
START_TEST(open_when_the_news_are_old)
{
    good(0, 0);
    down();
    now += DBGUARD_STALE - 1;
    ck_assert(dbguard_database_closed(&db, &rules, now));
    now++;
    ck_assert(!dbguard_database_closed(&db, &rules, now));
    ck_assert_uint_eq(db.budget, 21);
}
END_TEST

START_TEST(open_before_anything_is_known)
{
    ck_assert(!dbguard_database_closed(&db, &rules, now));
}
END_TEST

/* --- any course of events ------------------------------------------------ */

static void any_rules(void)
{
    memset(&rules, 0, sizeof(rules));
    rules.cap = any(3) ? 0 : 1 + any(41);
    switch (any(3)) {
    case 0:
        rules.percent = DBGUARD_RESERVE_AUTO;
        break;
    case 1:
        rules.percent = any(91);
        break;
    default:
        rules.reserve = any(31);
    }
}

static void any_answer(void)
{
    dbguard_figures_t *f = &answer.figures;

    if (any(4) == 0) {
        int i = (int)any(LENGTH(errors));

        answer.error = errors[i].error;
        answer.timed_out = errors[i].timed_out;
        snprintf(answer.text, sizeof(answer.text), "%s", errors[i].text);
        return;
    }
    answer.error = 0;
    answer.timed_out = 0;
    answer.text[0] = '\0';
    if (any(21) == 0) {
        f->max_connections = 1 + any(41);
        f->max_user_connections = any(2) ? 0 : 1 + any(41);
        f->account_limit = any(2) ? 0 : 1 + any(41);
        f->own = any(4);
    }
    answer.held = any(31);
    f->threads_connected = any(f->max_connections + 1);
    f->max_used_connections = any(f->max_connections + 2);
    if (any(31) == 0)
        f->refused += any(4);
    if (any(11) == 0)
        f->aborted_connects += any(4);
    if (any(51) == 0)
        f->uptime = f->refused = f->aborted_connects = 0;
}

/* What the text says has to be what is so. NULL, or what is wrong. */
static const char *why_is_wrong(void)
{
    uint32_t limit = dbguard_database_limit(&db.figures,
                                            (int)db.shares_account);
    uint32_t reserve = dbguard_database_reserve(&rules, limit);
    unsigned says, kept, others;
    const char *minus = strstr(db.why, ") - reserve ");
    int64_t base;
    int end = 0;

    if (sscanf(db.why, "%u", &says) != 1 || says != db.budget)
        return "it begins with another number than the budget";
    if (strlen(db.why) + 1 >= sizeof(db.why))
        return "it was cut off";
    if (db.error != 0)
        return NULL; /* of an earlier answer, or of none */
    if (minus == NULL
        || sscanf(minus, ") - reserve %u - others %u%n", &kept, &others, &end)
               != 2)
        return "it does not name reserve and others";
    if (kept != reserve)
        return "the reserve is another";
    base = (int64_t)limit - kept - others;
    if (base < 1)
        base = 1;
    if (db.budget > base)
        return "the budget is above what it says";
    if (minus[end] == '\0' && db.budget != base)
        return "the sum does not come out, and it does not say why";
    if (strstr(minus, "DBGuardBudget") && db.budget != rules.cap)
        return "it is not DBGuardBudget";
    return NULL;
}

START_TEST(any_course_of_events)
{
    int polls = scaled(200000), i;
    const char *wrong;

    any_from(1);
    for (i = 0; i < polls; i++) {
        uint32_t before = db.budget, state = db.state;
        int changed;

        if (i % 5000 == 0)
            setup();
        if (any(101) == 0)
            any_rules();
        any_answer();
        if (i % 5000 == 0)
            before = state = 0;
        now += any(31) ? 0 : any(21) * SECOND;
        changed = hear();
        if (changed != (db.state != state))
            ck_abort_msg("poll %d: a change that is none", i);
        if (answer.error != 0 && before > 0 && db.budget > before)
            ck_abort_msg("poll %d: raised from %u to %u by an error", i, before,
                         db.budget);
        if (db.answered != 0 && db.budget < 1)
            ck_abort_msg("poll %d: no budget", i);
        if (rules.cap > 0 && db.budget > rules.cap)
            ck_abort_msg("poll %d: above DBGuardBudget", i);
        if (db.answered != 0 && (wrong = why_is_wrong()) != NULL)
            ck_abort_msg("poll %d: budget %u, why '%s': %s", i, db.budget,
                         db.why, wrong);
    }
}
END_TEST

/* --- admission with a database ------------------------------------------- */

#define SLOTS 128

static void board_setup(void)
{
    setup();
    board_open(SLOTS, 2, 100);
    now = START;
    good(0, 0);
    db.budget = 2;
}

static void tell(void)
{
    if (dbguard_admission_learn(&board, &db, now) != APR_SUCCESS)
        ck_abort_msg("the board did not learn");
}

START_TEST(refused_for_the_database)
{
    dbguard_decision_t d;

    tell();
    down();
    tell();
    d = enter();
    ck_assert_int_eq(d.outcome, DBGUARD_REFUSED);
    ck_assert_int_eq(d.would, DBGUARD_REFUSED);
    ck_assert_int_eq(d.reason, DBGUARD_REASON_DATABASE);
    ck_assert_str_eq(dbguard_reason_name(d.reason), "database");
    ck_assert_uint_eq(d.ticket.serial, 0);
    ck_assert_int_ge(d.retry.after, 2 * SECOND);
    ck_assert_int_le(d.retry.after, 10 * SECOND);
    ck_assert_uint_eq(counters()->refused, 1);
    ck_assert_uint_eq(counters()->refused_database, 1);
    ck_assert_uint_eq(counters()->refused_board, 0);
    board_expect(0, 0);
}
END_TEST

/* More of them than one critical section wakes. */
START_TEST(the_waiting_are_sent_away)
{
    dbguard_ticket_t holds[2], waits[100];
    dbguard_decision_t d;
    int i;

    tell();
    for (i = 0; i < 2; i++)
        holds[i] = enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < 100; i++)
        waits[i] = enter_to(DBGUARD_WAIT);
    stall();
    tell();
    board_expect(2, 0);
    for (i = 0; i < 100; i++) {
        ck_assert_int_eq(state_of(waits[i]), DBGUARD_EXPELLED);
        ck_assert_int_eq(posts(waits[i]), 1);
        d = look(waits[i]);
        ck_assert_int_eq(d.outcome, DBGUARD_REFUSED);
        ck_assert_int_eq(d.reason, DBGUARD_REASON_DATABASE);
    }
    ck_assert_uint_eq(counters()->refused_database, 100);
    ck_assert_uint_eq(counters()->refused, 100);
    /* Who is inside may go on, and gives back as ever. */
    for (i = 0; i < 2; i++)
        ck_assert_int_ge(leave(holds[i]), 0);
    board_expect(0, 0);
}
END_TEST

START_TEST(full_and_denied_are_no_outage)
{
    dbguard_ticket_t holds, waits;

    tell();
    holds = enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_ADMITTED);
    waits = enter_to(DBGUARD_WAIT);
    if (_i == 0)
        failed(1045, "Access denied");
    else
        turned_away();
    tell();
    ck_assert_int_eq(state_of(waits), DBGUARD_WAITING);
    leave(holds);
    ck_assert_int_eq(look(waits).outcome,
                     _i == 0 ? DBGUARD_ADMITTED : DBGUARD_WAIT);
}
END_TEST

START_TEST(an_outage_that_is_admitted)
{
    board.shared->limits.rules.admit = 1;
    tell();
    down();
    tell();
    enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_WAIT);
    ck_assert_uint_eq(counters()->refused, 0);
}
END_TEST

START_TEST(a_monitor_that_is_gone_does_not_keep_it_shut)
{
    tell();
    down();
    tell();
    enter_to(DBGUARD_REFUSED);
    now += DBGUARD_STALE;
    enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_WAIT);
    ck_assert_uint_eq(board.shared->limits.budget, 2);
}
END_TEST

START_TEST(it_lets_in_as_many_as_the_rise_allows)
{
    int i;

    tell();
    down();
    tell();
    for (i = 0; i < 5; i++)
        enter_to(DBGUARD_REFUSED);
    good(0, 0);
    tell();
    ck_assert_uint_eq(board.shared->limits.budget, 1);
    enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < 5; i++)
        enter_to(DBGUARD_WAIT);
    good(1, 0);
    good(1, 0);
    good(1, 0); /* 3 s: 30 % of 21 */
    tell();
    board_expect(6, 0);
}
END_TEST

START_TEST(a_larger_budget_serves_the_waiting)
{
    dbguard_ticket_t waits[4];
    int i;

    tell();
    enter_to(DBGUARD_ADMITTED);
    enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < 4; i++)
        waits[i] = enter_to(DBGUARD_WAIT);
    db.budget = 5;
    tell();
    board_expect(5, 1);
    for (i = 0; i < 4; i++) {
        ck_assert_int_eq(posts(waits[i]), i < 3);
        ck_assert_int_eq(look(waits[i]).outcome,
                         i < 3 ? DBGUARD_ADMITTED : DBGUARD_WAIT);
    }
}
END_TEST

START_TEST(a_smaller_budget_takes_nothing_back)
{
    dbguard_ticket_t holds[5], waits;
    int i;

    db.budget = 5;
    tell();
    for (i = 0; i < 5; i++)
        holds[i] = enter_to(DBGUARD_ADMITTED);
    db.budget = 2;
    tell();
    board_expect(5, 0);
    waits = enter_to(DBGUARD_WAIT);
    for (i = 0; i < 3; i++)
        leave(holds[i]);
    board_expect(2, 1);
    leave(holds[3]);
    ck_assert_int_eq(look(waits).outcome, DBGUARD_ADMITTED);
}
END_TEST

START_TEST(what_is_not_known_changes_nothing)
{
    memset(&db, 0, sizeof(db));
    down();
    ck_assert_uint_eq(db.budget, 0);
    tell();
    ck_assert_uint_eq(board.shared->limits.budget, 2);
}
END_TEST

/* The queue has what the budget leaves of the workers, if it is to. */
START_TEST(the_queue_follows_the_budget)
{
    dbguard_limits_t l = board.shared->limits;

    db.budget = 20;
    tell();
    ck_assert_uint_eq(board.shared->limits.queue, 100);
    l.workers = 100;
    ck_assert_int_eq(dbguard_admission_configure(&board, &l, now), APR_SUCCESS);
    tell();
    ck_assert_uint_eq(board.shared->limits.queue, 100 - 20 - 15);
    db.budget = 5;
    tell();
    ck_assert_uint_eq(board.shared->limits.queue, 100 - 5 - 15);
}
END_TEST

START_TEST(dryrun_says_what_it_would_do)
{
    dbguard_decision_t d;

    configure(2, 100, 1);
    tell();
    down();
    tell();
    d = enter();
    ck_assert_int_eq(d.outcome, DBGUARD_ADMITTED);
    ck_assert_int_eq(d.would, DBGUARD_REFUSED);
    ck_assert_int_eq(d.reason, DBGUARD_REASON_DATABASE);
    ck_assert_uint_eq(counters()->dryrun_refused, 1);
    ck_assert_uint_eq(counters()->refused, 0);
    ck_assert_uint_eq(counters()->refused_database, 0);
}
END_TEST

START_TEST(a_snapshot_tells_old_news)
{
    dbguard_snapshot_t *s = snapshot();

    ck_assert_int_eq(s->stale, 0); /* nothing is known, and nothing is old */
    free(s);
    tell();
    now += DBGUARD_STALE;
    s = snapshot();
    ck_assert_int_eq(s->stale, 0);
    free(s);
    now++;
    s = snapshot();
    ck_assert_int_eq(s->stale, 1);
    ck_assert_uint_eq(s->database.budget, 2);
    free(s);
}
END_TEST

static TCase *learning(void)
{
    TCase *tc = tcase_create("learning");

    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_loop_test(tc, an_error_means_a_state, 0, LENGTH(errors));
    tcase_add_loop_test(tc, a_state_has_a_number_a_name_and_a_remedy, 0,
                        LENGTH(names));
    tcase_add_test(tc, a_number_from_elsewhere_is_no_state);
    tcase_add_loop_test(tc, the_limit_is_the_least_that_is_set, 0,
                        LENGTH(limits));
    tcase_add_loop_test(tc, a_reserve_is_kept, 0, LENGTH(reserves));
    tcase_add_test(tc, from_the_first_answer_on);
    tcase_add_test(tc, it_follows_the_limits);
    tcase_add_test(tc, the_accounts_limit_counts_when_it_is_shared);
    tcase_add_test(tc, tokens_and_the_monitor_are_no_others);
    tcase_add_test(tc, others_are_never_less_than_none);
    tcase_add_test(tc, others_count_for_ten_polls);
    tcase_add_test(tc, more_others_count_at_once);
    tcase_add_test(tc, never_less_than_one);
    tcase_add_test(tc, a_cap_is_absolute);
    tcase_add_test(tc, a_cap_binds_without_figures);
    tcase_add_test(tc, a_full_server_cuts_and_a_clean_poll_adds);
    tcase_add_test(tc, who_was_turned_away_was_one_too_many);
    tcase_add_test(tc, the_last_place_is_no_place);
    tcase_add_test(tc, old_refusals_do_not_count);
    tcase_add_test(tc, a_restart_of_the_server_is_no_refusal);
    tcase_add_test(tc, a_server_that_is_full_at_first_is_cut_too);
    tcase_add_test(tc, it_is_cut_without_figures);
    tcase_add_test(tc, nothing_is_cut_where_nothing_is_known);
    tcase_add_test(tc, a_cut_begins_at_the_cap);
    tcase_add_loop_test(tc, it_comes_back_over_ten_seconds, 0, 3);
    tcase_add_test(tc, polls_that_were_missed_do_not_slow_it);
    tcase_add_test(tc, a_second_outage_begins_anew);
    tcase_add_test(tc, the_cap_binds_in_the_rise_too);
    tcase_add_test(tc, no_rise_after_what_was_no_outage);
    tcase_add_loop_test(tc, it_rises_slowly_after_an_outage_that_ends_badly, 0,
                        2);
    tcase_add_test(tc, full_after_an_outage);
    tcase_add_loop_test(tc, no_figures_never_raise_it, 0, LENGTH(errors));
    tcase_add_test(tc, it_keeps_what_the_error_said);
    tcase_add_test(tc, a_change_is_told_once);
    tcase_add_loop_test(tc, closed_in_an_outage, 0, LENGTH(names));
    tcase_add_test(tc, open_when_the_news_are_old);
    tcase_add_test(tc, open_before_anything_is_known);
    tcase_add_test(tc, any_course_of_events);
    return tc;
}

static TCase *admission(void)
{
    TCase *tc = tcase_create("admission");

    tcase_add_checked_fixture(tc, board_setup, board_close_in_order);
    tcase_add_test(tc, refused_for_the_database);
    tcase_add_test(tc, the_waiting_are_sent_away);
    tcase_add_loop_test(tc, full_and_denied_are_no_outage, 0, 2);
    tcase_add_test(tc, an_outage_that_is_admitted);
    tcase_add_test(tc, a_monitor_that_is_gone_does_not_keep_it_shut);
    tcase_add_test(tc, it_lets_in_as_many_as_the_rise_allows);
    tcase_add_test(tc, a_larger_budget_serves_the_waiting);
    tcase_add_test(tc, a_smaller_budget_takes_nothing_back);
    tcase_add_test(tc, what_is_not_known_changes_nothing);
    tcase_add_test(tc, the_queue_follows_the_budget);
    tcase_add_test(tc, dryrun_says_what_it_would_do);
    tcase_add_test(tc, a_snapshot_tells_old_news);
    return tc;
}

Suite *database_suite(void)
{
    Suite *s = suite_create("database");

    suite_add_tcase(s, learning());
    suite_add_tcase(s, admission());
    return s;
}
