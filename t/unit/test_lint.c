/* The lint: each rule's sentence with its numbers, on both sides of its
 * threshold, and what is said when a fact is missing. */

#include <stdio.h>
#include <string.h>

#include "lint.h"
#include "unit.h"

#define MIB (UINT64_C(1024) * 1024)
#define NOT_SAID DBGUARD_LINT_NOTHING

static dbguard_lint_t lint;
static dbguard_answer_t answer;

/* 192 workers under prefork, a guarded place, and a database of 24 connections
 * that has yet to be heard. */
static void setup(void)
{
    dbguard_facts_t *f = &lint.facts;

    now = START;
    memset(&lint, 0, sizeof(lint));
    memset(&answer, 0, sizeof(answer));
    f->known = 1;
    f->workers = f->server_limit = 192;
    f->threads = 1;
    f->keepalive = 5;
    strcpy(f->mpm, "prefork");
    f->guarded = 1;
    f->queue = 143;
    f->queue_auto = 1;
    f->rules.percent = DBGUARD_RESERVE_AUTO;
    f->has_database = 1;
    strcpy(f->user, "dbguard");
    strcpy(f->host, "127.0.0.1");
    lint.budget = 20;
    answer.figures.max_connections = 24;
    answer.figures.threads_connected = 2;
    answer.figures.max_used_connections = 9;
}

/* It answers; the budget follows. */
static void hear(void)
{
    now += SECOND;
    dbguard_database_learn(&lint.database, &lint.facts.rules, &answer, now);
    if (lint.database.budget)
        lint.budget = lint.database.budget;
}

static void cap(uint32_t n)
{
    lint.facts.cap = lint.facts.rules.cap = n;
}

/* --- looking at one rule -------------------------------------------------- */

static const char *wanted;
static dbguard_finding_t said;
static int reported;

static void catch_one(void *context, const dbguard_finding_t *finding)
{
    (void)context;
    reported++;
    if (strcmp(finding->id, wanted) == 0)
        said = *finding;
}

static uint32_t run(const char *id, uint32_t *refused)
{
    wanted = id;
    reported = 0;
    memset(&said, 0, sizeof(said));
    return dbguard_lint_run(&lint, catch_one, NULL, refused);
}

/* The rule says this, word by word. */
static void expect(const char *id, dbguard_severity_t severity,
                   const char *sentence)
{
    run(id, NULL);
    if (said.severity != severity || strcmp(said.sentence, sentence) != 0)
        ck_abort_msg("%s says (%s)\n%s\ninstead of (%s)\n%s", id,
                     dbguard_severity_name(said.severity), said.sentence,
                     dbguard_severity_name(severity), sentence);
    if (severity >= DBGUARD_LINT_WARNING && said.remedy[0] == '\0')
        ck_abort_msg("%s has no remedy", id);
    if (severity == DBGUARD_LINT_FINE && said.remedy[0] != '\0')
        ck_abort_msg("%s has a remedy for nothing: %s", id, said.remedy);
}

static void expect_remedy(const char *remedy)
{
    ck_assert_str_eq(said.remedy, remedy);
}

static void silent(const char *id)
{
    expect(id, NOT_SAID, "");
}

/* --- the database --------------------------------------------------------- */

START_TEST(says_what_the_database_said)
{
    hear();
    expect("database", DBGUARD_LINT_FINE,
           "the database is ok: max_connections 24, 2 connected, at most 9 "
           "since it was started");
    answer.figures.threads_connected = 24;
    hear();
    expect("database", DBGUARD_LINT_WARNING,
           "the database is full: max_connections 24, 24 connected, at most 9 "
           "since it was started");
}
END_TEST

START_TEST(says_what_could_not_be_checked)
{
    expect("database", DBGUARD_LINT_UNKNOWN,
           "the database could not be checked: nobody has asked it yet");
    answer.error = 2002;
    strcpy(answer.text, "Can't connect to server on '127.0.0.1' (111)");
    hear();
    expect("database", DBGUARD_LINT_WARNING,
           "the database could not be checked: down, it cannot be reached "
           "(error 2002: Can't connect to server on '127.0.0.1' (111)); "
           "MaxRequestWorkers 192 was compared with nothing");
    expect_remedy("start it, or correct host, port or socket in "
                  "DBGuardDatabase");
    silent("workers-database");
    silent("account-limit");
    silent("persistent-live");
}
END_TEST

/* The figures of before are judged, and said to be old. */
START_TEST(goes_on_with_the_last_answer)
{
    hear();
    answer.error = 1045;
    strcpy(answer.text, "Access denied");
    hear();
    expect("database", DBGUARD_LINT_WARNING,
           "the database could not be checked: denied, it answers and does not "
           "let the guard in; the last good budget stays (error 1045: Access "
           "denied); its figures are those of its last answer");
    run("workers-database", NULL);
    ck_assert_int_eq(said.severity, DBGUARD_LINT_WARNING);
    lint.silent = 40;
    expect("database", DBGUARD_LINT_WARNING,
           "nothing has been heard of dbguard-monitor for 40 s: the database's "
           "figures are old");
}
END_TEST

START_TEST(says_that_the_probe_said_nothing)
{
    strcpy(lint.mute, "/x/dbguard-monitor cannot be executed (No such file)");
    expect("database", DBGUARD_LINT_WARNING,
           "the database could not be checked: /x/dbguard-monitor cannot be "
           "executed (No such file); MaxRequestWorkers 192 was compared with "
           "nothing");
}
END_TEST

START_TEST(says_that_there_is_none)
{
    lint.facts.has_database = 0;
    expect("database", DBGUARD_LINT_INFO,
           "there is no DBGuardDatabase: what the database allows could not be "
           "compared with MaxRequestWorkers 192");
    ck_assert_uint_eq(run("", NULL), 0);
}
END_TEST

/* --- workers against connections ------------------------------------------ */

START_TEST(compares_workers_with_connections)
{
    answer.figures.threads_connected = 1;
    hear();
    expect("workers-database", DBGUARD_LINT_WARNING,
           "Apache may start 192 workers, the database allows 24 connections: "
           "8.0 times as many; the guard lets 21 at once use it where DBGuard "
           "is On, what is elsewhere is not counted");
    expect_remedy("see that all that uses the database is under DBGuard On "
                  "(then this is what the guard is for, and nothing is left to "
                  "do); otherwise MaxRequestWorkers 21, or max_connections "
                  "214");
    lint.facts.workers = 25;
    run("workers-database", NULL);
    ck_assert_int_eq(said.severity, DBGUARD_LINT_WARNING);
    lint.facts.workers = 24;
    expect("workers-database", DBGUARD_LINT_FINE,
           "Apache may start 24 workers, the database allows 24 connections");
}
END_TEST

START_TEST(is_an_error_when_nobody_is_kept_out)
{
    hear();
    lint.facts.guarded = 0;
    expect("workers-database", DBGUARD_LINT_ERROR,
           "Apache may start 192 workers, the database allows 24 connections: "
           "8.0 times as many, and none of them is guarded");
    lint.facts.guarded = 1;
    lint.facts.dryrun = 1;
    expect("workers-database", DBGUARD_LINT_ERROR,
           "Apache may start 192 workers, the database allows 24 connections: "
           "8.0 times as many, and DryRun keeps none of them out");
}
END_TEST

/* No max_connections leaves room for so many workers. */
START_TEST(advises_nothing_impossible)
{
    lint.facts.workers = 99999;
    hear();
    run("workers-database", NULL);
    ck_assert_ptr_nonnull(strstr(said.remedy, "MaxRequestWorkers 20"));
    ck_assert_ptr_null(strstr(said.remedy, "max_connections"));
}
END_TEST

START_TEST(takes_the_least_limit)
{
    answer.figures.max_connections = 151;
    answer.figures.max_user_connections = 12;
    hear();
    run("workers-database", NULL);
    ck_assert_ptr_nonnull(strstr(said.sentence,
                                 "allows 12 connections "
                                 "(max_user_connections): 16.0 times"));
}
END_TEST

START_TEST(names_the_limit_that_counts)
{
    hear();
    expect("account-limit", DBGUARD_LINT_FINE,
           "max_connections 24 is the limit that counts");
    answer.figures.max_user_connections = 24;
    hear();
    run("account-limit", NULL);
    ck_assert_int_eq(said.severity, DBGUARD_LINT_FINE);
    answer.figures.max_user_connections = 23;
    hear();
    expect("account-limit", DBGUARD_LINT_INFO,
           "max_user_connections 23 is below max_connections 24: it is the "
           "limit that counts");
}
END_TEST

/* The account's own limit counts when it is the application's account. */
START_TEST(tells_whose_account_it_is)
{
    int i;

    answer.figures.account_limit = 8;
    answer.figures.own = 1;
    hear();
    expect("account-limit", DBGUARD_LINT_INFO,
           "the account 'dbguard' that the guard asks with may have 8 "
           "connections, the server allows 24; nobody else uses it now, so "
           "that does not count");
    expect_remedy("if it is the application's account as well, DBGuardBudget 7 "
                  "or less");
    answer.figures.own = 2;
    for (i = 0; i < 5; i++)
        hear();
    expect("account-limit", DBGUARD_LINT_INFO,
           "the account's limit 8 is below max_connections 24: it is the "
           "limit that counts");
}
END_TEST

/* --- the guard ------------------------------------------------------------ */

START_TEST(compares_workers_with_the_budget)
{
    lint.facts.workers = 21;
    expect("workers-budget", DBGUARD_LINT_FINE,
           "MaxRequestWorkers 21 is above the budget of 20");
    lint.facts.workers = 20;
    expect("workers-budget", DBGUARD_LINT_WARNING,
           "MaxRequestWorkers 20 is not above the budget of 20: the guard can "
           "never act");
    hear();
    expect("workers-budget", DBGUARD_LINT_INFO,
           "MaxRequestWorkers 20 is not above the budget of 20: the guard can "
           "never act, and need not: the database has room for 20");
}
END_TEST

START_TEST(compares_the_budget_with_the_room)
{
    hear();
    expect("budget-room", DBGUARD_LINT_FINE,
           "the budget is 20 = min(max_connections 24) - reserve 3 - others 1");
    cap(20);
    expect("budget-room", DBGUARD_LINT_FINE,
           "DBGuardBudget 20 fits into the 20 that the database leaves: 24 "
           "connections - reserve 3 - others 1");
    cap(21);
    expect("budget-room", DBGUARD_LINT_WARNING,
           "DBGuardBudget 21 is more than the 20 that the database leaves: 24 "
           "connections - reserve 3 - others 1; 20 are in force");
    expect_remedy("DBGuardBudget 20, or auto, or max_connections 25");
    cap(24);
    run("budget-room", NULL);
    ck_assert_int_eq(said.severity, DBGUARD_LINT_WARNING);
    cap(25);
    run("budget-room", NULL);
    ck_assert_int_eq(said.severity, DBGUARD_LINT_ERROR);
}
END_TEST

static void keep(uint32_t reserve)
{
    lint.facts.rules.percent = 0;
    lint.facts.rules.reserve = reserve;
}

START_TEST(looks_at_the_reserve)
{
    hear();
    expect("reserve", DBGUARD_LINT_FINE,
           "of 24 connections the reserve keeps 3");
    keep(12);
    run("reserve", NULL);
    ck_assert_int_eq(said.severity, DBGUARD_LINT_FINE);
    keep(13);
    expect("reserve", DBGUARD_LINT_WARNING,
           "of 24 connections the reserve keeps 13, more than half");
    keep(22);
    run("reserve", NULL);
    ck_assert_int_eq(said.severity, DBGUARD_LINT_WARNING);
    keep(23);
    expect("reserve", DBGUARD_LINT_ERROR,
           "of 24 connections the reserve keeps 23 and others hold 1: none is "
           "left, and the budget is 1");
}
END_TEST

/* Without an answer, too. */
START_TEST(wants_some_reserve)
{
    silent("reserve");
    keep(0);
    expect("reserve", DBGUARD_LINT_WARNING,
           "DBGuardReserve 0 keeps no connection for cron, queue workers, "
           "backups and people");
    keep(1);
    silent("reserve");
}
END_TEST

START_TEST(wants_workers_for_everything_else)
{
    expect("queue-length", DBGUARD_LINT_FINE,
           "of 192 workers 20 may hold a token and 143 may wait for one, 29 "
           "are left for everything else");
    lint.facts.queue_auto = 0;
    lint.facts.queue = 144;
    expect("queue-length", DBGUARD_LINT_WARNING,
           "of 192 workers 20 may hold a token and 144 may wait for one: only "
           "28 are left for static files, health checks and the status page");
    expect_remedy("DBGuardQueue length=143, or auto");
    lint.facts.queue = 1000;
    expect("queue-length", DBGUARD_LINT_WARNING,
           "of 192 workers 20 may hold a token and 1000 may wait for one: 0 "
           "are left for static files, health checks and the status page");
    lint.facts.queue = 0;
    run("queue-length", NULL);
    ck_assert_int_eq(said.severity, DBGUARD_LINT_FINE);
}
END_TEST

START_TEST(wants_a_place_to_wait)
{
    lint.facts.workers = 28;
    lint.facts.queue = 0;
    expect("queue-length", DBGUARD_LINT_WARNING,
           "of 28 workers 20 may hold a token and 0 may wait for one: who "
           "finds no token is refused at once");
    expect_remedy("MaxRequestWorkers 29 or more, or a DBGuardQueue length");
    lint.facts.workers = 20;
    silent("queue-length");
}
END_TEST

START_TEST(wants_something_guarded)
{
    expect("guarded-scope", DBGUARD_LINT_FINE, "DBGuard is On in 1 place");
    lint.facts.guarded = 0;
    expect("guarded-scope", DBGUARD_LINT_WARNING,
           "nothing is guarded: there is no \"DBGuard On\" anywhere");
}
END_TEST

START_TEST(knows_what_localhost_means)
{
    silent("localhost-port");
    strcpy(lint.facts.host, "LocalHost");
    expect("localhost-port", DBGUARD_LINT_FINE,
           "DBGuardDatabase names localhost, which means the socket");
    lint.facts.port = 3307;
    expect("localhost-port", DBGUARD_LINT_WARNING,
           "DBGuardDatabase names localhost with port 3307: PHP and the "
           "clients take localhost for the socket and ignore the port, so that "
           "the application may talk to another server than the guard");
    expect_remedy("127.0.0.1:3307 here and in the application, or the socket's "
                  "path in both");
}
END_TEST

START_TEST(looks_at_the_password_file)
{
    silent("password-file");
    lint.facts.password_file = 1;
    lint.facts.password_mode = 0640;
    strcpy(lint.facts.password_name, "/etc/pw");
    expect("password-file", DBGUARD_LINT_FINE,
           "DBGuardPasswordFile /etc/pw has mode 0640");
    lint.facts.password_mode = 0604;
    expect("password-file", DBGUARD_LINT_ERROR,
           "DBGuardPasswordFile /etc/pw has mode 0604: everybody on this "
           "machine can read the password");
    lint.facts.password_file = 2;
    expect("password-file", DBGUARD_LINT_ERROR,
           "DBGuardPasswordFile /etc/pw cannot be read");
}
END_TEST

/* --- Apache --------------------------------------------------------------- */

static void write_workers(uint32_t n)
{
    lint.facts.written_workers.number = n;
    strcpy(lint.facts.written_workers.place, "a.conf:7");
}

START_TEST(says_what_is_in_effect)
{
    expect("server-limit", DBGUARD_LINT_FINE,
           "MaxRequestWorkers is written nowhere: the default of 192 is in "
           "effect");
    write_workers(192);
    expect("server-limit", DBGUARD_LINT_FINE,
           "MaxRequestWorkers 192 is in effect as written");
    write_workers(300);
    expect("server-limit", DBGUARD_LINT_WARNING,
           "MaxRequestWorkers 300 is written (a.conf:7), 192 are in effect: "
           "ServerLimit is 192");
    expect_remedy("ServerLimit 300, or MaxRequestWorkers 192");
}
END_TEST

START_TEST(knows_threads)
{
    lint.facts.threads = 25;
    lint.facts.server_limit = 16;
    lint.facts.workers = 400;
    write_workers(500);
    expect("server-limit", DBGUARD_LINT_WARNING,
           "MaxRequestWorkers 500 is written (a.conf:7), 400 are in effect: "
           "ServerLimit is 16, with 25 threads each");
    expect_remedy("ServerLimit 20, or MaxRequestWorkers 400");
    lint.facts.workers = 375;
    write_workers(390);
    expect("server-limit", DBGUARD_LINT_WARNING,
           "MaxRequestWorkers 390 is written (a.conf:7), 375 are in effect: it "
           "is counted in whole processes of 25 threads");
    expect_remedy("MaxRequestWorkers 375");
}
END_TEST

START_TEST(says_what_needs_a_restart)
{
    silent("server-limit-restart");
    lint.running = 1;
    silent("server-limit-restart");
    lint.server_limit_running = 192;
    expect("server-limit-restart", DBGUARD_LINT_FINE,
           "ServerLimit 192 is that of the running server");
    lint.facts.written_server_limit.number = 400;
    strcpy(lint.facts.written_server_limit.place, "a.conf:3");
    expect("server-limit-restart", DBGUARD_LINT_WARNING,
           "ServerLimit 400 (a.conf:3) is not in effect: the running server "
           "keeps 192 until it is stopped and started");
    lint.facts.written_server_limit.number = 0;
    lint.facts.written_server_limit.place[0] = '\0';
    lint.server_limit_running = 256;
    expect("server-limit-restart", DBGUARD_LINT_WARNING,
           "ServerLimit 192 is not in effect: the running server keeps 256 "
           "until it is stopped and started");
}
END_TEST

START_TEST(knows_blocks_that_never_match)
{
    silent("mpm-block");
    strcpy(lint.facts.block, "mpm.conf:1");
    strcpy(lint.facts.block_name, "mpm_prefork.c");
    expect("mpm-block", DBGUARD_LINT_WARNING,
           "<IfModule mpm_prefork.c> (mpm.conf:1) names no module: what it "
           "holds is skipped without a word");
    expect_remedy("<IfModule mpm_prefork_module>");
    strcpy(lint.facts.block_name, "mpm_event.c");
    run("mpm-block", NULL);
    expect_remedy("<IfModule mpm_event_module>");
}
END_TEST

START_TEST(counts_what_keepalive_costs)
{
    expect("keepalive", DBGUARD_LINT_FINE,
           "under prefork an idle client keeps one of 192 workers for 5 s "
           "(KeepAliveTimeout)");
    lint.facts.keepalive = 6;
    expect("keepalive", DBGUARD_LINT_WARNING,
           "under prefork an idle client keeps one of 192 workers for 6 s "
           "(KeepAliveTimeout)");
    lint.facts.async = 1;
    silent("keepalive");
    lint.facts.async = 0;
    lint.facts.keepalive = 0;
    expect("keepalive", DBGUARD_LINT_FINE,
           "KeepAlive is Off: no worker waits for an idle client");
}
END_TEST

START_TEST(multiplies_memory)
{
    expect("memory", DBGUARD_LINT_UNKNOWN,
           "the memory of the workers could not be measured: none runs");
    lint.memory.processes = 10;
    lint.memory.each = 45 * MIB;
    lint.memory.available = 182 * 45 * MIB;
    expect("memory", DBGUARD_LINT_FINE,
           "192 processes of 45.0 MiB each (the mean of the 10 that run) take "
           "8640 MiB, there are 8640 MiB for them");
    lint.memory.available -= MIB;
    expect("memory", DBGUARD_LINT_WARNING,
           "192 processes of 45.0 MiB each (the mean of the 10 that run) take "
           "8640 MiB, there are 8639 MiB for them");
    expect_remedy("MaxRequestWorkers 191 or less, or more memory");
    lint.facts.threads = 64;
    run("memory", NULL);
    ck_assert_int_eq(said.severity, DBGUARD_LINT_FINE);
    ck_assert_ptr_nonnull(strstr(said.sentence, "3 processes of 45.0 MiB"));
}
END_TEST

START_TEST(wants_a_list_of_proxies)
{
    silent("remoteip");
    strcpy(lint.facts.remoteip, "a.conf:9");
    expect("remoteip", DBGUARD_LINT_WARNING,
           "RemoteIPHeader (a.conf:9) without a list of trusted proxies: every "
           "client can pass for any other one, and take that one's share");
    lint.facts.proxies = 1;
    expect("remoteip", DBGUARD_LINT_FINE,
           "RemoteIPHeader (a.conf:9) has a list of trusted proxies");
}
END_TEST

/* --- persistent connections ----------------------------------------------- */

START_TEST(reads_what_php_was_told)
{
    silent("persistent-config");
    strcpy(lint.facts.persistent, "a.conf:9");
    strcpy(lint.facts.persistent_name, "mysqli.max_persistent -1");
    expect("persistent-config", DBGUARD_LINT_WARNING,
           "mysqli.max_persistent -1 (a.conf:9) lets PHP keep connections "
           "after the request: each of 192 workers may hold one that no token "
           "counts");
}
END_TEST

static void sleepers(uint32_t n, uint32_t seconds, uint32_t held)
{
    dbguard_user_t *u = answer.figures.users;

    answer.figures.nusers = 2;
    strcpy(u[0].name, "dbguard");
    u[0].total = 1;
    strcpy(u[1].name, "app");
    u[1].total = u[1].sleeping = n;
    u[1].longest_sleep = seconds;
    answer.held = held;
    answer.figures.threads_connected = n + 1;
    hear();
}

START_TEST(sees_connections_that_sleep)
{
    lint.running = 1;
    sleepers(4, 300, 0);
    expect("persistent-live", DBGUARD_LINT_FINE,
           "4 connections sleep that no token counts");
    sleepers(5, 3, 0);
    expect("persistent-live", DBGUARD_LINT_WARNING,
           "5 connections of the account 'app' sleep and no token counts them, "
           "one for 3 s: persistent connections, or a pool");
    lint.running = 0;
    run("persistent-live", NULL);
    ck_assert_int_eq(said.severity, DBGUARD_LINT_INFO);
    sleepers(5, 2, 0);
    run("persistent-live", NULL);
    ck_assert_int_eq(said.severity, DBGUARD_LINT_FINE);
}
END_TEST

/* A request that holds a token may sleep for as long as it likes. */
START_TEST(knows_sleepers_with_a_token)
{
    lint.running = 1;
    sleepers(20, 30, 16);
    run("persistent-live", NULL);
    ck_assert_int_eq(said.severity, DBGUARD_LINT_FINE);
    sleepers(20, 30, 15);
    run("persistent-live", NULL);
    ck_assert_int_eq(said.severity, DBGUARD_LINT_WARNING);
}
END_TEST

/* --- all of it ------------------------------------------------------------ */

START_TEST(counts_findings)
{
    uint32_t refused = 99;

    hear();
    ck_assert_uint_eq(run("", &refused), 1);
    ck_assert_uint_eq(refused, 1);
    lint.facts.workers = 24;
    lint.facts.queue_auto = 0;
    lint.facts.queue = 0;
    ck_assert_uint_eq(run("", &refused), 0);
    ck_assert_uint_eq(refused, 0);
    cap(22);
    keep(0);
    lint.facts.keepalive = 60;
    ck_assert_uint_eq(run("", &refused), 2);
    ck_assert_uint_eq(refused, 1);
}
END_TEST

START_TEST(says_nothing_of_what_nobody_looked_at)
{
    lint.facts.known = 0;
    ck_assert_uint_eq(run("", NULL), 0);
    ck_assert_int_eq(reported, 0);
}
END_TEST

static unsigned numbers[64];
static size_t rules_said;

static void collect(void *context, const dbguard_finding_t *f)
{
    size_t i;

    (void)context;
    for (i = 0; i < rules_said; i++)
        ck_assert_uint_ne(numbers[i], f->number);
    numbers[rules_said++] = f->number;
}

START_TEST(each_has_a_number_of_its_own)
{
    hear();
    lint.running = 1;
    lint.server_limit_running = 192;
    strcpy(lint.facts.host, "localhost");
    strcpy(lint.facts.block_name, "mpm_event.c");
    strcpy(lint.facts.remoteip, "a:1");
    strcpy(lint.facts.persistent, "a:1");
    lint.facts.password_file = 1;
    rules_said = 0;
    dbguard_lint_run(&lint, collect, NULL, NULL);
    ck_assert_uint_eq(rules_said, 18);
}
END_TEST

/* Names as long as they may be do no harm. */
START_TEST(cuts_what_is_too_long)
{
    dbguard_facts_t *f = &lint.facts;

    hear();
    memset(f->persistent, 'p', sizeof(f->persistent) - 1);
    memset(f->persistent_name, 'n', sizeof(f->persistent_name) - 1);
    memset(f->block, 'b', sizeof(f->block) - 1);
    memset(f->block_name, 'B', sizeof(f->block_name) - 1);
    memset(f->remoteip, 'r', sizeof(f->remoteip) - 1);
    memset(f->password_name, 'w', sizeof(f->password_name) - 1);
    f->password_file = 1;
    f->password_mode = 0644;
    write_workers(300);
    memset(f->written_workers.place, 'm', sizeof(f->written_workers.place) - 1);
    ck_assert_uint_ge(run("password-file", NULL), 5);
    ck_assert_int_eq(said.severity, DBGUARD_LINT_ERROR);
}
END_TEST

Suite *lint_suite(void)
{
    Suite *suite = suite_create("lint");
    TCase *tc = tcase_create("rules");

    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, says_what_the_database_said);
    tcase_add_test(tc, says_what_could_not_be_checked);
    tcase_add_test(tc, goes_on_with_the_last_answer);
    tcase_add_test(tc, says_that_the_probe_said_nothing);
    tcase_add_test(tc, says_that_there_is_none);
    tcase_add_test(tc, compares_workers_with_connections);
    tcase_add_test(tc, is_an_error_when_nobody_is_kept_out);
    tcase_add_test(tc, advises_nothing_impossible);
    tcase_add_test(tc, takes_the_least_limit);
    tcase_add_test(tc, names_the_limit_that_counts);
    tcase_add_test(tc, tells_whose_account_it_is);
    tcase_add_test(tc, compares_workers_with_the_budget);
    tcase_add_test(tc, compares_the_budget_with_the_room);
    tcase_add_test(tc, looks_at_the_reserve);
    tcase_add_test(tc, wants_some_reserve);
    tcase_add_test(tc, wants_workers_for_everything_else);
    tcase_add_test(tc, wants_a_place_to_wait);
    tcase_add_test(tc, wants_something_guarded);
    tcase_add_test(tc, knows_what_localhost_means);
    tcase_add_test(tc, looks_at_the_password_file);
    tcase_add_test(tc, says_what_is_in_effect);
    tcase_add_test(tc, knows_threads);
    tcase_add_test(tc, says_what_needs_a_restart);
    tcase_add_test(tc, knows_blocks_that_never_match);
    tcase_add_test(tc, counts_what_keepalive_costs);
    tcase_add_test(tc, multiplies_memory);
    tcase_add_test(tc, wants_a_list_of_proxies);
    tcase_add_test(tc, reads_what_php_was_told);
    tcase_add_test(tc, sees_connections_that_sleep);
    tcase_add_test(tc, knows_sleepers_with_a_token);
    tcase_add_test(tc, counts_findings);
    tcase_add_test(tc, says_nothing_of_what_nobody_looked_at);
    tcase_add_test(tc, each_has_a_number_of_its_own);
    tcase_add_test(tc, cuts_what_is_too_long);
    suite_add_tcase(suite, tc);
    return suite;
}
