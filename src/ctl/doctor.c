/* dbguardctl doctor: see doctor.h.
 *
 * A line of the report is a mark, a topic and a sentence with the figure and
 * what it means; under it, where something is wrong, what to do.
 *
 * Invariants
 *   - A counter is never shown without what it is divided by.
 *   - Every "!" has a remedy under it, and nothing else has.
 *   - What is not known is said to be so, never guessed. */

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ask.h"
#include "doctor.h"
#include "rates.h"

#define SECOND 1000000
#define WIDTH 79
#define INDENT 17

/* Below this the counters are too young for a rate per day, or for a share. */
#define YOUNG (1.0 / 24) /* days */
#define FEW 1000         /* attempts */

/* From here on the rates are worth a look. In the incident of the guide 0.27 %
 * of the attempts were refused for half a year: any refusal is too many. */
#define FAILED_SHARE 0.01
#define BROKEN_SHARE 0.01
#define CACHE_HITS 0.9
#define PEAK 0.9
#define LONG_SLEEP 60 /* seconds */

/* Figures of the running monitor that are older are not worth a word. */
#define FRESH (10 * (int64_t)SECOND)

typedef struct report_t {
    const dbguard_snapshot_t *s;
    ask_t ask;
    const dbguard_figures_t *figures; /* NULL: nobody has any */
    int details;                      /* those of ask.answer are known */
    dbguard_rates_t rates;
    unsigned things;                  /* lines with "!" */
} report_t;

/* --- writing ------------------------------------------------------------- */

/* Words, broken where a line is full; the first one begins at column INDENT. */
static void write_wrapped(const char *text)
{
    size_t at = INDENT;

    while (*text != '\0') {
        size_t len = strcspn(text, " ");

        if (at == INDENT)
            ;
        else if (at + 1 + len > WIDTH) {
            printf("\n%*s", INDENT, "");
            at = INDENT;
        }
        else {
            putchar(' ');
            at++;
        }
        printf("%.*s", (int)len, text);
        at += len;
        text += len + strspn(text + len, " ");
    }
    putchar('\n');
}

__attribute__((format(printf, 3, 4)))
static void line(const char *mark, const char *topic, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    printf("%-2s%-*s", mark, INDENT - 2, topic);
    write_wrapped(text);
}

static void remedy(report_t *r, const char *text)
{
    r->things++;
    printf("%*s-> ", INDENT - 3, "");
    write_wrapped(text);
}

/* A length of time for people. buf has room for 32 bytes. */
static const char *duration(double seconds, char *buf)
{
    if (seconds < 100)
        snprintf(buf, 32, "%.0f s", seconds);
    else if (seconds < 2 * 3600)
        snprintf(buf, 32, "%.0f minutes", seconds / 60);
    else if (seconds < 2 * 86400)
        snprintf(buf, 32, "%.1f hours", seconds / 3600);
    else
        snprintf(buf, 32, "%.1f days", seconds / 86400);
    return buf;
}

/* "N a day", or why not. buf has room for 80 bytes. */
static const char *per_day(const report_t *r, double n, char *buf)
{
    char time[32];

    if (r->rates.days < YOUNG)
        snprintf(buf, 80, "in %s, which is too short for a rate a day",
                 duration(r->rates.days * 86400, time));
    else
        snprintf(buf, 80, n < 10 ? "%.1f a day" : "%.0f a day", n);
    return buf;
}

/* --- the database, and whether it answers -------------------------------- */

static void say_impossible(report_t *r)
{
    const ask_t *ask = &r->ask;

    if (ask->outcome == ASK_NOT_CONFIGURED) {
        line("!", "database", "not asked: there is no DBGuardDatabase in the "
             "effective configuration");
        remedy(r, "create an account as docs/database.md says, and set "
                  "DBGuardDatabase and DBGuardPasswordFile; without them the "
                  "budget cannot follow the database");
        return;
    }
    if (ask->outcome == ASK_SILENT) {
        line("!", "database", "%s: no word within two seconds, not even from "
             "dbguard-monitor", ask->url);
        remedy(r, "look at name resolution and at the way to the database's "
                  "host; then at that host");
        return;
    }
    line("!", "database", "not asked: %s", ask->why);
    remedy(r, "correct that; see docs/database.md");
}

static void say_error(report_t *r)
{
    const dbguard_answer_t *a = &r->ask.answer;
    dbguard_dbstate_t state = dbguard_database_classify(a->error, a->text,
                                                        a->timed_out);

    line("!", "database", "%s is %s: %s (error %u: %s)", r->ask.url,
         dbguard_dbstate_name(state), dbguard_dbstate_meaning(state), a->error,
         a->text);
    remedy(r, dbguard_dbstate_remedy(state));
    if (state == DBGUARD_DB_FULL && r->ask.dsn.extra_port != 0)
        line("", "", "Its extra port %u is full as well.",
             r->ask.dsn.extra_port);
}

/* The monitor's connection goes on where a new one is turned away. */
static void say_borrowed(const report_t *r)
{
    if (r->figures != NULL)
        line("", "", "The monitor's own connection was there before, and got "
             "an answer %.1f s ago: the figures below are from it.",
             (double)(r->s->now - r->s->database.answered) / SECOND);
    else
        line("", "", "Nothing more can be said about the database.");
}

static void say_database(report_t *r)
{
    const ask_t *ask = &r->ask;
    char time[32];

    if (ask->outcome != ASK_ANSWERED)
        say_impossible(r);
    else if (ask->answer.error != 0)
        say_error(r);
    else
        line("", "database", "%s answered within %.2f s: %s, up for %s",
             ask->url, (double)ask->took / SECOND, ask->answer.details.version,
             duration((double)r->figures->uptime, time));
    if (ask->password_note != NULL
        && (!r->details || ask->dsn.socket[0] == '\0')) {
        line("!", "password", "%s", ask->password_note);
        remedy(r, "name a file that only root can read in "
                  "DBGuardPasswordFile; an account that the database knows by "
                  "its socket needs none");
    }
    if (!r->details && ask->outcome != ASK_NOT_CONFIGURED)
        say_borrowed(r);
    if (r->figures != NULL && r->rates.flushed)
        line("", "", "FLUSH STATUS was used %s ago: what is said of attempts "
             "since then is an estimate from the server's whole life.",
             duration(r->rates.days * 86400, time));
}

/* --- what the counters mean ---------------------------------------------- */

static void say_refusals(report_t *r)
{
    const dbguard_figures_t *f = r->figures;
    char day[80];

    if (f->refused == 0) {
        line("", "refusals", "none was counted in %.0f connection attempts",
             r->rates.attempts);
        return;
    }
    line("!", "refusals", "%.2f %% of the connection attempts were turned away "
         "for want of a free connection (error 1040): %" PRIu64 " of %.0f, %s. "
         "Even a small share means that there was no margin.",
         r->rates.refused_share * 100, f->refused, r->rates.attempts,
         per_day(r, r->rates.refused_per_day, day));
    remedy(r, "when the number still grows with DBGuardEngine On: others fill "
              "the database, or places that use it are not guarded; see who "
              "holds connections below");
}

static void say_peak(report_t *r)
{
    const dbguard_figures_t *f = r->figures;
    int percent = (int)(r->rates.peak * 100 + 0.5);

    if (r->rates.peak < PEAK) {
        line("", "peak", "at most %u of %u connections were in use at once "
             "(%d %%)", f->max_used_connections, f->max_connections, percent);
        return;
    }
    line("!", "peak", "%u of %u connections were in use at once (%d %%): %s",
         f->max_used_connections, f->max_connections, percent,
         f->max_used_connections < f->max_connections
             ? "hardly one was left"
             : "it was full. Logins that were then turned away at the very "
               "last place are not in the refusals above, but in the failed "
               "logins");
    remedy(r, "lower DBGuardBudget or raise DBGuardReserve, or raise "
              "max_connections if the database's memory allows; FLUSH STATUS "
              "begins this figure anew");
}

static void say_cache(report_t *r)
{
    const dbguard_figures_t *f = r->figures;
    int hits = (int)(r->rates.cache_hits * 1000);

    if (f->connections < FEW) {
        line("", "thread cache", "%" PRIu64 " connections are too few to judge "
             "it", f->connections);
        return;
    }
    if (r->rates.cache_hits >= CACHE_HITS) {
        line("", "thread cache", "%d.%d %% of the connections found a thread "
             "that was there (%" PRIu64 " threads made for %" PRIu64
             " connections): fine", hits / 10, hits % 10, f->threads_created,
             f->connections);
        return;
    }
    line("!", "thread cache", "only %d.%d %% of the connections found a thread "
         "that was there (%" PRIu64 " threads made for %" PRIu64
         " connections)", hits / 10, hits % 10, f->threads_created,
         f->connections);
    remedy(r, "raise thread_cache_size to about what connects at once");
}

static void say_broken(report_t *r)
{
    const dbguard_figures_t *f = r->figures;
    int bad = r->rates.broken_share >= BROKEN_SHARE
              && r->rates.attempts >= FEW;
    char day[80];

    if (f->aborted_clients == 0) {
        line("", "broken off", "no connection ended without a goodbye: "
             "nothing leaks");
        return;
    }
    line(bad ? "!" : "", "broken off", "%" PRIu64 " of %.0f connections ended "
         "without a goodbye (Aborted_clients): %.2f %%, %s%s",
         f->aborted_clients, r->rates.attempts, r->rates.broken_share * 100,
         per_day(r, r->rates.broken_per_day, day),
         bad ? "" : r->rates.broken_per_day < 1 && r->rates.days >= YOUNG
             ? ": a leak would look different" : "");
    if (bad)
        remedy(r, "look for processes that are killed (memory, time limits), "
                  "for a wait_timeout that is shorter than the pauses, and "
                  "into the database's log (log_warnings=2 names them)");
}

static void say_failed(report_t *r)
{
    const dbguard_figures_t *f = r->figures;
    uint64_t failed = f->aborted_connects > f->refused
                          ? f->aborted_connects - f->refused : 0;
    int bad = r->rates.failed_share >= FAILED_SHARE
              && r->rates.attempts >= FEW;
    char day[80];

    if (failed == 0) {
        line("", "failed logins", "none but the refusals");
        return;
    }
    line(bad ? "!" : "", "failed logins", "%" PRIu64 " of %.0f attempts failed "
         "before or at their login, the refusals not counted "
         "(Aborted_connects): %.2f %%, %s", failed, r->rates.attempts,
         r->rates.failed_share * 100,
         per_day(r, r->rates.failed_per_day, day));
    if (bad)
        remedy(r, "wrong passwords, health checks that connect and hang up, "
                  "handshakes cut by a time limit, or a full server: the "
                  "database's log says which (log_warnings=2)");
}

/* --- who holds connections now ------------------------------------------- */

/* Other accounts' connections are listed for those with PROCESS only. */
static int sees_all(const report_t *r)
{
    return r->figures->nusers > 1
           || (r->details
               && (r->ask.answer.details.may & DBGUARD_MAY_PROCESS));
}

static void list_users(const report_t *r)
{
    const dbguard_figures_t *f = r->figures;
    uint32_t i;

    for (i = 0; i < f->nusers && i < DBGUARD_USERS; i++) {
        const dbguard_user_t *u = &f->users[i];
        char sleep[32], busy[32];

        line("", "", "- %s%s: %u, of them %u asleep for up to %s, %u busy for "
             "up to %s", u->name,
             strcmp(u->name, r->ask.dsn.user) == 0 ? " (the guard)" : "",
             u->total, u->sleeping, duration(u->longest_sleep, sleep),
             u->total - u->sleeping, duration(u->longest_active, busy));
    }
}

/* The longest sleep of anybody but the guard. */
static uint32_t longest_sleep(const report_t *r)
{
    const dbguard_figures_t *f = r->figures;
    uint32_t i, longest = 0;

    for (i = 0; i < f->nusers && i < DBGUARD_USERS; i++)
        if (strcmp(f->users[i].name, r->ask.dsn.user) != 0
            && f->users[i].longest_sleep > longest)
            longest = f->users[i].longest_sleep;
    return longest;
}

/* Connections in the process list. */
static uint32_t listed(const dbguard_figures_t *f)
{
    uint32_t i, total = 0;

    for (i = 0; i < f->nusers && i < DBGUARD_USERS; i++)
        total += f->users[i].total;
    return total;
}

static void say_now(report_t *r)
{
    const dbguard_figures_t *f = r->figures;
    uint32_t total = listed(f), asleep = 0, i;
    int is_long = longest_sleep(r) >= LONG_SLEEP;

    if (!sees_all(r)) {
        line("", "now", "%u of %u connections are in use, %u of them run a "
             "query; whose they are cannot be seen (see PROCESS below)",
             f->threads_connected, f->max_connections, f->threads_running);
        return;
    }
    for (i = 0; i < f->nusers && i < DBGUARD_USERS; i++)
        asleep += f->users[i].sleeping;
    line(is_long ? "!" : "", "now", "%u of %u connections are in use; %u of %u "
         "in the process list (%u %%) are asleep: held by somebody who waits "
         "for something else than the database", f->threads_connected,
         f->max_connections, asleep, total, total ? asleep * 100 / total : 0);
    list_users(r);
    if (is_long)
        remedy(r, "a connection that sleeps for a minute and more belongs to a "
                  "pool, to PHP's persistent connections (turn them off: the "
                  "guide says how), or to a script that waits for another "
                  "system: close it before that wait");
}

/* --- what the account may do --------------------------------------------- */

static void say_process(report_t *r)
{
    uint32_t may = r->ask.answer.details.may;

    if (sees_all(r)) {
        line("", "PROCESS", "%s sees the connections of other accounts%s",
             r->ask.dsn.user,
             may & DBGUARD_MAY_PROCESS ? "" : " (by a role)");
        return;
    }
    line("!", "PROCESS", "was not granted to %s, which sees no connections but "
         "its own%s: the snapshots and this report cannot say who holds what. "
         "The budget does not need it.", r->ask.dsn.user,
         r->figures->threads_connected > listed(r->figures)
             ? "" : " (unless a role gives it; nobody else is connected now)");
    remedy(r, "GRANT PROCESS ON *.* TO the account of DBGuardDatabase");
}

/* Before 11.0 SUPER contains CONNECTION ADMIN. */
static int may_enter_full(const report_t *r)
{
    const dbguard_details_t *d = &r->ask.answer.details;

    return (d->may & DBGUARD_MAY_CONNECTION_ADMIN)
           || ((d->may & DBGUARD_MAY_SUPER) && atoi(d->version) < 11);
}

static void say_limits(report_t *r)
{
    const dbguard_figures_t *f = r->figures;
    char global[16] = "none", account[16] = "none";
    int shared = r->s->database.shares_account != 0;

    if (f->max_user_connections > 0)
        snprintf(global, sizeof(global), "%u", f->max_user_connections);
    if (f->account_limit > 0 && f->account_limit != f->max_user_connections)
        snprintf(account, sizeof(account), "%u", f->account_limit);
    line("", "limits", "%u is the least of max_connections %u, "
         "max_user_connections %s%s%s. %s has a limit of its own: %s%s",
         dbguard_database_limit(f, shared), f->max_connections, global,
         shared ? ", and the limit of the account " : "",
         shared ? r->ask.dsn.user : "", r->ask.dsn.user, account,
         shared ? "; the application uses the same account"
                : "; one of the application's account cannot be seen from "
                  "here: set DBGuardBudget below it");
}

/* Does the running monitor have a connection that works? */
static int monitor_is_there(const report_t *r)
{
    const dbguard_database_t *db = &r->s->database;

    return db->answered != 0 && r->s->now - db->answered < FRESH
           && db->monitor > 0
           && (kill(db->monitor, 0) == 0 || errno == EPERM);
}

static void say_extra_port(report_t *r)
{
    const dbguard_details_t *d = &r->ask.answer.details;

    if (!d->extra_full) {
        line("", "when full", "the extra port %u has room of its own "
             "(extra_max_connections %u): monitoring goes on through a full "
             "server", r->ask.dsn.extra_port, d->extra_max_connections);
        return;
    }
    line("!", "when full", "all of the extra port's extra_max_connections %u "
         "are taken%s: this report came in by the ordinary port, and so would "
         "find a full server closed", d->extra_max_connections,
         monitor_is_there(r) ? ", the monitor's among them" : "");
    remedy(r, "extra_max_connections=3 in the database's configuration: for "
              "the monitor, for this report or a configuration test, and for "
              "you");
}

static void say_full(report_t *r)
{
    const dbguard_details_t *d = &r->ask.answer.details;
    const char *here = monitor_is_there(r)
        ? "The monitor's connection is there and goes on through a full server"
        : "The monitor has no connection just now";

    if (r->ask.dsn.extra_port != 0) {
        say_extra_port(r);
        return;
    }
    if (may_enter_full(r)) {
        line("", "when full", "%s; a new one gets in as well, since %s may use "
             "the one place that is kept for CONNECTION ADMIN, as long as "
             "nobody else with that right is in it", here, r->ask.dsn.user);
        return;
    }
    line(monitor_is_there(r) ? "" : "!", "when full", "%s. Only a new one "
         "(after a restart, or when this one was ended) is turned away with "
         "1040: then the state is full, the budget is cut, and the figures "
         "stay those from before. %s", here, d->extra_port != 0
             ? "The server has an extra port: extra-port= in DBGuardDatabase "
               "would use it."
             : "An extra port or CONNECTION ADMIN would let it in.");
    if (!monitor_is_there(r))
        remedy(r, "see why the monitor has no connection: dbguardctl status, "
                  "and the error log (DBGUARD0030 to DBGUARD0038)");
}

/* --- the budget ---------------------------------------------------------- */

static void say_budget(report_t *r)
{
    const dbguard_snapshot_t *s = r->s;

    line("", "budget", "%u token%s, %u out now%s%s%s", s->limits.budget,
         s->limits.budget == 1 ? "" : "s", s->held,
         s->database.why[0] ? ": " : "", s->database.why,
         s->stale ? " (old news: dbguard-monitor is silent)" : "");
    if ((s->engine && !s->limits.dryrun) || s->nsettings == 0)
        return;
    line("!", "engine", "DBGuardEngine is %s: nobody is refused",
         s->engine ? "DryRun" : "Off");
    remedy(r, "DBGuardEngine On, when the figures convince you");
}

static void say_little(report_t *r)
{
    const dbguard_snapshot_t *s = r->s;
    const dbguard_span_t *hour = &s->hour;
    double seconds = (double)hour->seconds, budget = s->limits.budget;
    double lived = (double)s->uptime / SECOND;
    double came = (double)(hour->admitted + hour->refused + hour->aborted);
    double rate, hold, needed;
    char time[32];

    if (lived < seconds)
        seconds = lived > 1 ? lived : 1;
    if (came == 0 || hour->released == 0) {
        line("", "Little's law", "no guarded request ended in the last %s: "
             "nothing to reckon with", duration(seconds, time));
        return;
    }
    rate = came / seconds;
    hold = (double)hour->hold_us / (double)hour->released;
    needed = dbguard_little_needed(rate, hold);
    line(needed > budget ? "!" : "", "Little's law", "in the last %s %.2f "
         "requests/s came and held for %.0f ms: N = %.2f x %.3f = %.2f tokens "
         "of %.0f on average. At this rate the budget runs out when the mean "
         "hold reaches %.3f s; at the busiest second's %u requests, at %.3f "
         "s.",
         duration(seconds, time), rate, hold / 1e3, rate, hold / 1e6, needed,
         budget, dbguard_little_hold(rate, budget) / 1e6, hour->came_max,
         dbguard_little_hold(hour->came_max, budget) / 1e6);
    if (needed > budget)
        remedy(r, "shorten the holds: dbguardctl status shows who holds "
                  "longest; close the connection before slow calls. More "
                  "tokens help only as far as the database can bear them.");
}

/* --- all of it ----------------------------------------------------------- */

static void examine(report_t *r)
{
    const dbguard_database_t *db = &r->s->database;

    if (r->ask.outcome == ASK_ANSWERED && r->ask.answer.error == 0) {
        r->figures = &r->ask.answer.figures;
        r->details = 1;
    }
    else if (r->ask.outcome != ASK_NOT_CONFIGURED && monitor_is_there(r)) {
        r->figures = &db->figures;
    }
    if (r->figures != NULL)
        dbguard_rates_derive(&r->rates, r->figures,
                             r->details ? r->ask.answer.details.since_flush
                                        : r->figures->uptime);
}

int doctor(apr_pool_t *p, const dbguard_snapshot_t *snapshot)
{
    report_t r;

    memset(&r, 0, sizeof(r));
    r.s = snapshot;
    ask_database(p, snapshot, &r.ask);
    examine(&r);
    say_database(&r);
    if (r.figures != NULL) {
        say_refusals(&r);
        say_peak(&r);
        say_failed(&r);
        say_broken(&r);
        say_cache(&r);
        say_now(&r);
        say_limits(&r);
    }
    if (r.details) {
        say_process(&r);
        say_full(&r);
    }
    say_budget(&r);
    say_little(&r);
    printf("\n%u thing%s to look at%s\n", r.things, r.things == 1 ? "" : "s",
           r.things > 0 ? ": see \"!\" and \"->\"" : "");
    return r.details;
}
