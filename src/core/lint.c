/* The rules: see lint.h. Each check looks at the facts that it needs, says
 * nothing when one of them is missing, and otherwise writes a sentence with the
 * numbers in it, also when all is well. */

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "derive.h"
#include "lint.h"

/* httpd's own default. A worker that is not async does nothing else for so
 * long after each page. */
#define KEEPALIVE_MAX 5 /* seconds */

/* A request may be between two statements for a moment; these are more
 * connections, asleep for longer, than cron or somebody at a client has. */
#define SLEEPERS 5
#define SLEEP_MIN 3 /* seconds */

/* MariaDB's ceiling for max_connections. */
#define CONNECTIONS_MAX 100000

#define MIB (1024.0 * 1024.0)

/* What a check finds; FOUND has the severity of its rule, GRAVE is an error. */
typedef enum verdict_t {
    NOTHING,
    FINE,
    UNKNOWN,
    NOTE,
    FOUND,
    GRAVE
} verdict_t;

__attribute__((format(printf, 2, 3)))
static void put(dbguard_finding_t *f, const char *format, ...)
{
    size_t len = strlen(f->sentence);
    va_list args;

    va_start(args, format);
    vsnprintf(f->sentence + len, sizeof(f->sentence) - len, format, args);
    va_end(args);
}

/* In place of the remedy that the table has. */
__attribute__((format(printf, 2, 3)))
static void advise(dbguard_finding_t *f, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(f->remedy, sizeof(f->remedy), format, args);
    va_end(args);
}

/* --- what several rules need ---------------------------------------------- */

static uint32_t minus(uint32_t a, uint32_t b)
{
    return a > b ? a - b : 0;
}

/* Has the database ever told its figures? */
static int answered(const dbguard_lint_t *l)
{
    return l->database.answered != 0;
}

static uint32_t limit_of(const dbguard_lint_t *l)
{
    return dbguard_database_limit(&l->database.figures,
                                  (int)l->database.shares_account);
}

static uint32_t reserve_of(const dbguard_lint_t *l)
{
    return dbguard_database_reserve(&l->facts.rules, limit_of(l));
}

/* The most that others held in the last polls. */
static uint32_t others_of(const dbguard_lint_t *l)
{
    const dbguard_database_t *db = &l->database;
    uint32_t most = 0;
    uint32_t i;

    for (i = 0; i < DBGUARD_WINDOW && i < db->polls; i++)
        if (db->others[i] > most)
            most = db->others[i];
    return most;
}

/* And in the last one. */
static uint32_t others_now(const dbguard_lint_t *l)
{
    const dbguard_database_t *db = &l->database;

    return db->polls ? db->others[(db->polls - 1) % DBGUARD_WINDOW] : 0;
}

/* What the database leaves for the guarded requests. */
static uint32_t room_of(const dbguard_lint_t *l)
{
    return minus(minus(limit_of(l), reserve_of(l)), others_of(l));
}

/* Add the max_connections that leaves room for n, if there is such a one. */
static void advise_connections(dbguard_finding_t *f, const dbguard_lint_t *l,
                               uint32_t n)
{
    size_t len = strlen(f->remedy);
    uint32_t max;

    for (max = n; max <= CONNECTIONS_MAX; max++)
        if (minus(minus(max, dbguard_database_reserve(&l->facts.rules, max)),
                  others_of(l)) >= n)
            break;
    if (max <= CONNECTIONS_MAX)
        snprintf(f->remedy + len, sizeof(f->remedy) - len,
                 ", or max_connections %u", max);
}

/* --- the database --------------------------------------------------------- */

static verdict_t database(const dbguard_lint_t *l, dbguard_finding_t *f)
{
    const dbguard_database_t *db = &l->database;
    const dbguard_figures_t *n = &db->figures;

    if (!l->facts.has_database) {
        put(f, "there is no DBGuardDatabase: what the database allows could "
            "not be compared with MaxRequestWorkers %u", l->facts.workers);
        advise(f, "set DBGuardDatabase and DBGuardPasswordFile");
        return NOTE;
    }
    if (l->mute[0] != '\0') {
        put(f, "the database could not be checked: %s; MaxRequestWorkers %u "
            "was compared with nothing", l->mute, l->facts.workers);
        advise(f, "see that User may execute dbguard-monitor, and that the "
               "host's name in DBGuardDatabase resolves");
        return FOUND;
    }
    if (db->attempted == 0) {
        put(f, "the database could not be checked: nobody has asked it yet");
        return UNKNOWN;
    }
    if (l->silent) {
        put(f, "nothing has been heard of dbguard-monitor for %u s: the "
            "database's figures are old", l->silent);
        advise(f, "see what httpd's error log says of it");
        return FOUND;
    }
    advise(f, "%s", dbguard_dbstate_remedy(db->state));
    if (db->error != 0) {
        put(f, "the database could not be checked: %s, %s (error %u: %s)",
            dbguard_dbstate_name(db->state), dbguard_dbstate_meaning(db->state),
            db->error, db->text);
        if (answered(l))
            put(f, "; its figures are those of its last answer");
        else
            put(f, "; MaxRequestWorkers %u was compared with nothing",
                l->facts.workers);
        return FOUND;
    }
    put(f, "the database is %s: max_connections %u, %u connected, at most %u "
        "since it was started", dbguard_dbstate_name(db->state),
        n->max_connections, n->threads_connected, n->max_used_connections);
    return db->state == DBGUARD_DB_OK ? FINE : FOUND;
}

/* The limit that is not max_connections, in words. */
static const char *limit_name(const dbguard_lint_t *l)
{
    const dbguard_figures_t *n = &l->database.figures;

    return n->max_user_connections == limit_of(l)
               ? "max_user_connections"
               : "the account's limit";
}

static verdict_t workers_database(const dbguard_lint_t *l,
                                  dbguard_finding_t *f)
{
    const dbguard_facts_t *c = &l->facts;
    uint32_t limit = limit_of(l);
    const char *first;

    if (!answered(l) || limit == 0)
        return NOTHING;
    put(f, "Apache may start %u workers, the database allows %u connections",
        c->workers, limit);
    if (limit < l->database.figures.max_connections)
        put(f, " (%s)", limit_name(l));
    if (c->workers <= limit)
        return FINE;
    put(f, ": %.1f times as many", (double)c->workers / limit);
    if (c->dryrun || c->guarded == 0) {
        put(f, ", and %s", c->dryrun ? "DryRun keeps none of them out"
                                     : "none of them is guarded");
        first = c->dryrun ? "set DBGuardEngine On"
                          : "put DBGuard On where the requests are that use "
                            "the database";
    }
    else {
        put(f, "; the guard lets %u at once use it where DBGuard is On, what "
            "is elsewhere is not counted", l->budget);
        first = "see that all that uses the database is under DBGuard On (then "
                "this is what the guard is for, and nothing is left to do)";
    }
    advise(f, "%s; otherwise MaxRequestWorkers %u", first,
           room_of(l) ? room_of(l) : 1);
    advise_connections(f, l, c->workers);
    return c->dryrun || c->guarded == 0 ? GRAVE : FOUND;
}

static verdict_t account_limit(const dbguard_lint_t *l, dbguard_finding_t *f)
{
    const dbguard_figures_t *n = &l->database.figures;
    uint32_t limit = limit_of(l);

    if (!answered(l))
        return NOTHING;
    if (limit < n->max_connections) {
        put(f, "%s %u is below max_connections %u: it is the limit that counts",
            limit_name(l), limit, n->max_connections);
        return NOTE;
    }
    if (n->account_limit > 0 && n->account_limit < limit) {
        put(f, "the account '%s' that the guard asks with may have %u "
            "connections, the server allows %u; nobody else uses it now, so "
            "that does not count", l->facts.user, n->account_limit, limit);
        advise(f, "if it is the application's account as well, DBGuardBudget "
               "%u or less", n->account_limit > 1 ? n->account_limit - 1 : 1);
        return NOTE;
    }
    put(f, "max_connections %u is the limit that counts", limit);
    return FINE;
}

/* --- the guard ------------------------------------------------------------ */

static verdict_t workers_budget(const dbguard_lint_t *l, dbguard_finding_t *f)
{
    uint32_t workers = l->facts.workers;

    if (l->budget == 0)
        return NOTHING;
    if (workers > l->budget) {
        put(f, "MaxRequestWorkers %u is above the budget of %u", workers,
            l->budget);
        return FINE;
    }
    put(f, "MaxRequestWorkers %u is not above the budget of %u: the guard can "
        "never act", workers, l->budget);
    if (answered(l) && workers <= room_of(l)) {
        put(f, ", and need not: the database has room for %u", room_of(l));
        return NOTE;
    }
    return FOUND;
}

static verdict_t budget_room(const dbguard_lint_t *l, dbguard_finding_t *f)
{
    uint32_t cap = l->facts.cap, limit = limit_of(l), room = room_of(l);

    if (!answered(l))
        return NOTHING;
    if (cap == 0) {
        put(f, "the budget is %s", l->database.why);
        return FINE;
    }
    put(f, "DBGuardBudget %u %s %u that the database leaves: %u connections - "
        "reserve %u - others %u", cap,
        cap > room ? "is more than the" : "fits into the", room, limit,
        reserve_of(l), others_of(l));
    if (cap <= room)
        return FINE;
    put(f, "; %u are in force", room ? room : 1);
    advise(f, "DBGuardBudget %u, or auto", room ? room : 1);
    advise_connections(f, l, cap);
    return cap > limit ? GRAVE : FOUND;
}

static verdict_t reserve(const dbguard_lint_t *l, dbguard_finding_t *f)
{
    const dbguard_rules_t *rules = &l->facts.rules;
    uint32_t limit = limit_of(l), kept = reserve_of(l), others = others_of(l);

    if (rules->percent == 0 && rules->reserve == 0) {
        put(f, "DBGuardReserve 0 keeps no connection for cron, queue workers, "
            "backups and people");
        return FOUND;
    }
    if (!answered(l))
        return NOTHING;
    put(f, "of %u connections the reserve keeps %u", limit, kept);
    if (kept + others >= limit) {
        put(f, " and others hold %u: none is left, and the budget is 1",
            others);
        advise(f, "a smaller DBGuardReserve");
        advise_connections(f, l, l->facts.cap ? l->facts.cap
                                              : DBGUARD_BUDGET_UNKNOWN);
        return GRAVE;
    }
    if (kept * 2 > limit) {
        put(f, ", more than half");
        advise(f, "a smaller DBGuardReserve: auto is 10 %%, at least 3");
        return FOUND;
    }
    return FINE;
}

/* The least MaxRequestWorkers with which somebody may wait. */
static uint32_t workers_to_wait(uint32_t budget)
{
    uint32_t workers = budget;

    while (dbguard_derive_queue(workers, budget) == 0)
        workers++;
    return workers;
}

static verdict_t queue_length(const dbguard_lint_t *l, dbguard_finding_t *f)
{
    const dbguard_facts_t *c = &l->facts;
    uint32_t most = dbguard_derive_queue(c->workers, l->budget);
    uint32_t used = l->budget + c->queue;

    if (l->budget == 0 || c->workers <= l->budget)
        return NOTHING;
    put(f, "of %u workers %u may hold a token and %u may wait for one",
        c->workers, l->budget, c->queue);
    if (c->queue_auto && c->queue == 0) {
        put(f, ": who finds no token is refused at once");
        advise(f, "MaxRequestWorkers %u or more, or a DBGuardQueue length",
               workers_to_wait(l->budget));
        return FOUND;
    }
    if (c->queue <= most) {
        put(f, ", %u are left for everything else", minus(c->workers, used));
        return FINE;
    }
    put(f, used < c->workers ? ": only %u are left" : ": %u are left",
        minus(c->workers, used));
    put(f, " for static files, health checks and the status page");
    advise(f, "DBGuardQueue length=%u, or auto", most);
    return FOUND;
}

static verdict_t guarded_scope(const dbguard_lint_t *l, dbguard_finding_t *f)
{
    if (l->facts.guarded == 0) {
        put(f, "nothing is guarded: there is no \"DBGuard On\" anywhere");
        return FOUND;
    }
    put(f, "DBGuard is On in %u place%s", l->facts.guarded,
        l->facts.guarded == 1 ? "" : "s");
    return FINE;
}

static verdict_t localhost_port(const dbguard_lint_t *l, dbguard_finding_t *f)
{
    if (!l->facts.has_database || strcasecmp(l->facts.host, "localhost") != 0)
        return NOTHING;
    if (l->facts.port == 0) {
        put(f, "DBGuardDatabase names localhost, which means the socket");
        return FINE;
    }
    put(f, "DBGuardDatabase names localhost with port %u: PHP and the clients "
        "take localhost for the socket and ignore the port, so that the "
        "application may talk to another server than the guard",
        l->facts.port);
    advise(f, "127.0.0.1:%u here and in the application, or the socket's path "
           "in both", l->facts.port);
    return FOUND;
}

static verdict_t password_file(const dbguard_lint_t *l, dbguard_finding_t *f)
{
    const dbguard_facts_t *c = &l->facts;

    if (!c->has_database || c->password_file == 0)
        return NOTHING;
    if (c->password_file == 2) {
        put(f, "DBGuardPasswordFile %s cannot be read", c->password_name);
        advise(f, "correct its name; when this is a configtest, run it as the "
               "user that starts httpd");
        return FOUND;
    }
    put(f, "DBGuardPasswordFile %s has mode %04o", c->password_name,
        c->password_mode & 07777);
    if ((c->password_mode & 04) == 0)
        return FINE;
    put(f, ": everybody on this machine can read the password");
    advise(f, "chmod 600 %s", c->password_name);
    return FOUND;
}

/* --- Apache --------------------------------------------------------------- */

static verdict_t server_limit(const dbguard_lint_t *l, dbguard_finding_t *f)
{
    const dbguard_facts_t *c = &l->facts;
    const dbguard_written_t *w = &c->written_workers;
    uint32_t threads = c->threads ? c->threads : 1;

    if (w->number == 0) {
        put(f, "MaxRequestWorkers is written nowhere: the default of %u is in "
            "effect", c->workers);
        return FINE;
    }
    if (w->number == c->workers) {
        put(f, "MaxRequestWorkers %u is in effect as written", c->workers);
        return FINE;
    }
    put(f, "MaxRequestWorkers %u is written (%s), %u are in effect", w->number,
        w->place, c->workers);
    if (w->number > c->server_limit * threads) {
        put(f, ": ServerLimit is %u", c->server_limit);
        if (threads > 1)
            put(f, ", with %u threads each", threads);
        advise(f, "ServerLimit %u, or MaxRequestWorkers %u",
               (w->number + threads - 1) / threads, c->workers);
    }
    else {
        put(f, ": it is counted in whole processes of %u threads", threads);
        advise(f, "MaxRequestWorkers %u", c->workers);
    }
    return FOUND;
}

static verdict_t server_limit_restart(const dbguard_lint_t *l,
                                      dbguard_finding_t *f)
{
    const dbguard_written_t *w = &l->facts.written_server_limit;
    uint32_t next = w->number ? w->number : l->facts.server_limit;

    if (!l->running || l->server_limit_running == 0)
        return NOTHING;
    if (next == l->server_limit_running) {
        put(f, "ServerLimit %u is that of the running server", next);
        return FINE;
    }
    put(f, "ServerLimit %u%s%s%s is not in effect: the running server keeps %u "
        "until it is stopped and started", next, w->number ? " (" : "",
        w->place, w->number ? ")" : "", l->server_limit_running);
    return FOUND;
}

static verdict_t mpm_block(const dbguard_lint_t *l, dbguard_finding_t *f)
{
    const char *name = l->facts.block_name;
    const char *mpm = strstr(name, "prefork") ? "prefork"
                      : strstr(name, "worker") ? "worker"
                                               : "event";

    if (name[0] == '\0')
        return NOTHING;
    put(f, "<IfModule %s> (%s) names no module: what it holds is skipped "
        "without a word", name, l->facts.block);
    advise(f, "<IfModule mpm_%s_module>", mpm);
    return FOUND;
}

static verdict_t keepalive(const dbguard_lint_t *l, dbguard_finding_t *f)
{
    const dbguard_facts_t *c = &l->facts;

    if (c->async)
        return NOTHING;
    if (c->keepalive == 0) {
        put(f, "KeepAlive is Off: no worker waits for an idle client");
        return FINE;
    }
    put(f, "under %s an idle client keeps one of %u workers for %u s "
        "(KeepAliveTimeout)", c->mpm, c->workers, c->keepalive);
    return c->keepalive > KEEPALIVE_MAX ? FOUND : FINE;
}

static verdict_t memory(const dbguard_lint_t *l, dbguard_finding_t *f)
{
    const dbguard_memory_t *m = &l->memory;
    uint32_t threads = l->facts.threads ? l->facts.threads : 1;
    uint32_t max = (l->facts.workers + threads - 1) / threads, most;
    double need, have;

    if (m->processes == 0 || m->each == 0) {
        put(f, "the memory of the workers could not be measured: none runs");
        return UNKNOWN;
    }
    need = (double)m->each * max;
    have = (double)m->available + (double)m->each * m->processes;
    put(f, "%u processes of %.1f MiB each (the mean of the %u that run) take "
        "%.0f MiB, there are %.0f MiB for them", max, (double)m->each / MIB,
        m->processes, need / MIB, have / MIB);
    if (need <= have)
        return FINE;
    most = (uint32_t)(have / (double)m->each);
    advise(f, "MaxRequestWorkers %u or less, or more memory",
           most ? most * threads : threads);
    return FOUND;
}

static verdict_t remoteip(const dbguard_lint_t *l, dbguard_finding_t *f)
{
    if (l->facts.remoteip[0] == '\0')
        return NOTHING;
    put(f, "RemoteIPHeader (%s)", l->facts.remoteip);
    if (l->facts.proxies) {
        put(f, " has a list of trusted proxies");
        return FINE;
    }
    put(f, " without a list of trusted proxies: every client can pass for any "
        "other one, and take that one's share");
    return FOUND;
}

/* --- persistent connections ----------------------------------------------- */

static verdict_t persistent_config(const dbguard_lint_t *l,
                                   dbguard_finding_t *f)
{
    if (l->facts.persistent[0] == '\0')
        return NOTHING;
    put(f, "%s (%s) lets PHP keep connections after the request: each of %u "
        "workers may hold one that no token counts", l->facts.persistent_name,
        l->facts.persistent, l->facts.workers);
    return FOUND;
}

static verdict_t persistent_live(const dbguard_lint_t *l, dbguard_finding_t *f)
{
    const dbguard_figures_t *n = &l->database.figures;
    const dbguard_user_t *most = NULL;
    uint32_t i, idle = 0;

    if (!answered(l))
        return NOTHING;
    for (i = 0; i < n->nusers && i < DBGUARD_USERS; i++)
        if (n->users[i].longest_sleep >= SLEEP_MIN
            && (most == NULL || n->users[i].sleeping > most->sleeping))
            most = &n->users[i];
    if (most != NULL)
        idle = most->sleeping < others_now(l) ? most->sleeping : others_now(l);
    if (idle < SLEEPERS) {
        put(f, "%u connections sleep that no token counts", idle);
        return FINE;
    }
    put(f, "%u connections of the account '%s' sleep and no token counts them, "
        "one for %u s: persistent connections, or a pool", idle, most->name,
        most->longest_sleep);
    return l->running ? FOUND : NOTE;
}

/* --- the table ------------------------------------------------------------ */

static const struct {
    const char *id;
    unsigned number;
    int mismatch;
    dbguard_severity_t severity;
    verdict_t (*check)(const dbguard_lint_t *lint, dbguard_finding_t *finding);
    const char *remedy; /* unless the check has a better one */
} rules[] = {
#define WARN DBGUARD_LINT_WARNING
    {"database", 50, 0, WARN, database, ""},
    {"workers-database", 51, 1, WARN, workers_database, ""},
    {"workers-budget", 52, 0, WARN, workers_budget,
         "a lower DBGuardBudget, or more workers"},
    {"budget-room", 53, 1, WARN, budget_room, ""},
    {"account-limit", 54, 0, WARN, account_limit, ""},
    {"reserve", 55, 1, WARN, reserve,
         "DBGuardReserve auto: 10 %, at least 3"},
    {"queue-length", 56, 0, WARN, queue_length, ""},
    {"guarded-scope", 57, 0, WARN, guarded_scope,
         "put DBGuard On where the requests are that use the database"},
    {"server-limit", 58, 0, WARN, server_limit, ""},
    {"server-limit-restart", 59, 0, WARN, server_limit_restart,
         "stop and start the server"},
    {"mpm-block", 60, 0, WARN, mpm_block, ""},
    {"keepalive", 61, 0, WARN, keepalive,
         "KeepAliveTimeout 2, or the event MPM with PHP-FPM"},
    {"memory", 62, 0, WARN, memory, ""},
    {"persistent-config", 63, 0, WARN, persistent_config,
         "php_admin_flag mysqli.allow_persistent Off, and no "
         "PDO::ATTR_PERSISTENT in the application"},
    {"persistent-live", 64, 0, WARN, persistent_live,
         "no persistent connections in PHP (mysqli's p: before the host, "
         "PDO::ATTR_PERSISTENT); for a pool of another program, a "
         "DBGuardReserve that covers it"},
    {"remoteip", 65, 0, WARN, remoteip,
         "RemoteIPInternalProxy or RemoteIPTrustedProxy with the addresses of "
         "the proxies"},
    {"localhost-port", 66, 0, WARN, localhost_port, ""},
    {"password-file", 67, 0, DBGUARD_LINT_ERROR, password_file, ""}
#undef WARN
};

static dbguard_severity_t severity_of(verdict_t verdict,
                                      dbguard_severity_t severity)
{
    switch (verdict) {
    case NOTHING:
        return DBGUARD_LINT_NOTHING;
    case FINE:
        return DBGUARD_LINT_FINE;
    case UNKNOWN:
        return DBGUARD_LINT_UNKNOWN;
    case NOTE:
        return DBGUARD_LINT_INFO;
    case FOUND:
        return severity;
    case GRAVE:
        break;
    }
    return DBGUARD_LINT_ERROR;
}

uint32_t dbguard_lint_run(const dbguard_lint_t *lint,
                          dbguard_lint_report_t *report, void *context,
                          uint32_t *refused)
{
    uint32_t found = 0, mismatches = 0;
    size_t i;

    for (i = 0; lint->facts.known && i < sizeof(rules) / sizeof(rules[0]);
         i++) {
        dbguard_finding_t f = {0};

        f.id = rules[i].id;
        f.number = rules[i].number;
        f.mismatch = rules[i].mismatch;
        snprintf(f.remedy, sizeof(f.remedy), "%s", rules[i].remedy);
        f.severity = severity_of(rules[i].check(lint, &f), rules[i].severity);
        if (f.severity == DBGUARD_LINT_NOTHING)
            continue;
        if (f.severity == DBGUARD_LINT_FINE)
            f.remedy[0] = '\0';
        found += f.severity >= DBGUARD_LINT_WARNING;
        mismatches += f.severity >= DBGUARD_LINT_WARNING && f.mismatch;
        report(context, &f);
    }
    if (refused != NULL)
        *refused = mismatches;
    return found;
}

const char *dbguard_severity_name(dbguard_severity_t severity)
{
    static const char *const names[] = {
        "nothing", "fine", "unknown", "info", "warning", "error"
    };

    return names[severity];
}
