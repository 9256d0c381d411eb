/* What is known of the database, and the budget that follows: database.h. */

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "database.h"

static const struct {
    const char *name;
    int closed;
    const char *meaning, *remedy;
} states[] = {
#define STATE(symbol, name, closed, meaning, remedy)                          \
    {name, closed, meaning, remedy},
#include "states.def"
#undef STATE
};

static uint32_t known(dbguard_dbstate_t state)
{
    return state < DBGUARD_DB_STATES ? state : DBGUARD_DB_UNKNOWN;
}

const char *dbguard_dbstate_name(dbguard_dbstate_t state)
{
    return states[known(state)].name;
}

const char *dbguard_dbstate_meaning(dbguard_dbstate_t state)
{
    return states[known(state)].meaning;
}

const char *dbguard_dbstate_remedy(dbguard_dbstate_t state)
{
    return states[known(state)].remedy;
}

/* Is it the client library's own? All other numbers are said by a server, which
 * therefore is there. */
static int is_library(uint32_t error)
{
    return (error >= 2000 && error < 3000) || (error >= 5000 && error < 6000);
}

/* mysqld_error.h and errmsg.h. */
dbguard_dbstate_t dbguard_database_classify(uint32_t error, const char *text,
                                            int timed_out)
{
    /* What a server says before TLS is there, the library reports as an error
     * of its own, with the server's in the text. */
    const char *said = strstr(text, "cannot be verified: ");

    if (is_library(error) && said != NULL)
        error = (uint32_t)strtoul(said + strlen("cannot be verified: "), NULL,
                                  10);
    if (is_library(error) && strstr(text, "Too many connections") != NULL)
        return DBGUARD_DB_FULL;
    if (timed_out)
        return DBGUARD_DB_STALLED;
    switch (error) {
    case 0:
        return DBGUARD_DB_OK;
    case 1040: /* too many connections */
    case 1203: /* max_user_connections */
        return DBGUARD_DB_FULL;
    case 1226: /* one of the account's own limits */
        return strstr(text, "max_user_connections") != NULL
                   ? DBGUARD_DB_FULL
                   : DBGUARD_DB_DENIED;
    case 1047: /* a Galera node that is not ready */
        return DBGUARD_DB_NOTREADY;
    case 1053: /* shutdown in progress */
        return DBGUARD_DB_DOWN;
    case 2000: /* an answer without figures */
    case 2007: /* another protocol */
    case 2012: /* error in the handshake */
    case 2026: /* TLS */
    case 2027: /* packets that make no sense */
    case 2049: /* old authentication */
    case 2054: /* packets that cannot be read */
    case 2059: /* authentication plugin */
    case 2061:
        return DBGUARD_DB_DENIED;
    }
    return is_library(error) ? DBGUARD_DB_DOWN : DBGUARD_DB_DENIED;
}

uint32_t dbguard_database_limit(const dbguard_figures_t *f, int shares_account)
{
    uint32_t limit = f->max_connections;

    if (f->max_user_connections > 0 && f->max_user_connections < limit)
        limit = f->max_user_connections;
    if (shares_account && f->account_limit > 0 && f->account_limit < limit)
        limit = f->account_limit;
    return limit;
}

static uint32_t percent_of(uint32_t percent, uint32_t n)
{
    return (uint32_t)(((uint64_t)n * percent + 99) / 100);
}

uint32_t dbguard_database_reserve(const dbguard_rules_t *rules, uint32_t limit)
{
    uint32_t tenth = percent_of(10, limit);

    if (rules->percent == DBGUARD_RESERVE_AUTO)
        return tenth > 3 ? tenth : 3;
    if (rules->percent > 0)
        return percent_of(rules->percent, limit);
    return rules->reserve;
}

static uint32_t minus(uint32_t a, uint32_t b)
{
    return a > b ? a - b : 0;
}

/* The most that others held in the last polls, this one included. */
static uint32_t others(dbguard_database_t *db, const dbguard_answer_t *answer)
{
    uint32_t most = 0;
    uint32_t i;

    db->others[db->polls++ % DBGUARD_WINDOW]
        = minus(answer->figures.threads_connected,
                answer->held + !answer->apart);
    for (i = 0; i < DBGUARD_WINDOW && i < db->polls; i++)
        if (db->others[i] > most)
            most = db->others[i];
    return most;
}

/* Additive increase, multiplicative decrease. */
static void move_ceiling(dbguard_database_t *db, uint32_t base, int full)
{
    if (full) {
        uint32_t from = db->budget < db->ceiling ? db->budget : db->ceiling;

        if (base < from)
            from = base;
        db->ceiling = from * 4 / 5 > 1 ? from * 4 / 5 : 1;
    }
    else if (db->ceiling != UINT32_MAX && ++db->ceiling >= base)
        db->ceiling = UINT32_MAX;
}

/* What may be out so soon after an outage. */
static uint32_t ramped(dbguard_database_t *db, uint32_t base, int64_t now)
{
    uint32_t part;

    if (db->ramp == 0)
        return UINT32_MAX;
    if (now - db->ramp >= DBGUARD_RAMP) {
        db->ramp = 0;
        return UINT32_MAX;
    }
    part = (uint32_t)(base * (now - db->ramp) / DBGUARD_RAMP);
    return part > 1 ? part : 1;
}

/* Append to a text that has room for size bytes. */
__attribute__((format(printf, 3, 4)))
static void say(char *text, size_t size, const char *format, ...)
{
    size_t len = strlen(text);
    va_list args;

    va_start(args, format);
    vsnprintf(text + len, size - len, format, args);
    va_end(args);
}

static void explain(dbguard_database_t *db, uint32_t reserve, uint32_t other,
                    const char *bound)
{
    const dbguard_figures_t *f = &db->figures;
    const size_t size = sizeof(db->why);

    snprintf(db->why, size, "%u = min(max_connections %u", db->budget,
             f->max_connections);
    if (f->max_user_connections > 0)
        say(db->why, size, ", max_user_connections %u",
            f->max_user_connections);
    if (db->shares_account && f->account_limit > 0)
        say(db->why, size, ", account %u", f->account_limit);
    say(db->why, size, ") - reserve %u - others %u%s", reserve, other, bound);
}

static void bound(uint32_t *budget, uint32_t by, const char *name,
                  const char **why)
{
    if (by < *budget) {
        *budget = by;
        *why = name;
    }
}

static void set_budget(dbguard_database_t *db, const dbguard_rules_t *rules,
                       const dbguard_answer_t *answer, int full, int64_t now)
{
    uint32_t limit = dbguard_database_limit(&answer->figures,
                                            (int)db->shares_account);
    uint32_t reserve = dbguard_database_reserve(rules, limit);
    uint32_t other = others(db, answer);
    uint32_t base = minus(minus(limit, reserve), other);
    const char *why = "";

    if (base < 1) {
        base = 1;
        why = ", and never less than 1";
    }
    move_ceiling(db, base, full);
    db->budget = base;
    if (rules->cap > 0)
        bound(&db->budget, rules->cap, ", at most DBGuardBudget", &why);
    bound(&db->budget, db->ceiling, ", cut because it was full", &why);
    bound(&db->budget, ramped(db, base, now), ", rising after an outage", &why);
    explain(db, reserve, other, why);
}

/* It was full for the monitor itself, which therefore has no figures. */
static void cut_blindly(dbguard_database_t *db)
{
    if (db->budget == 0)
        return;
    move_ceiling(db, db->budget, 1);
    if (db->ceiling < db->budget) {
        db->budget = db->ceiling;
        snprintf(db->why, sizeof(db->why),
                 "%u, cut because it was full (error %u)", db->budget,
                 db->error);
    }
}

/* The server has no room, or has turned clients away since the last poll. */
static int is_full(const dbguard_database_t *db, const dbguard_figures_t *f)
{
    const dbguard_figures_t *before = &db->figures;

    if (f->threads_connected >= f->max_connections)
        return 1;
    if (db->polls == 0 || f->uptime < before->uptime)
        return 0;
    /* One more than max_connections may log in, and is turned away then: that
     * counts as an aborted connect. The counter of refusals tells only of
     * those who found even that place taken. */
    return f->refused > before->refused
           || (f->aborted_connects > before->aborted_connects
               && f->max_used_connections > f->max_connections
               && (uint64_t)f->threads_connected * 10
                      >= (uint64_t)f->max_connections * 8);
}

int dbguard_database_learn(dbguard_database_t *db, const dbguard_rules_t *rules,
                           const dbguard_answer_t *answer, int64_t now)
{
    uint32_t before = db->state;
    dbguard_dbstate_t state = dbguard_database_classify(
        answer->error, answer->text, answer->timed_out);

    if (state == DBGUARD_DB_OK && is_full(db, &answer->figures))
        state = DBGUARD_DB_FULL;
    if (states[known(before)].closed)
        db->recovering = 1;
    db->attempted = now;
    db->error = answer->error;
    memcpy(db->text, answer->text, sizeof(db->text));
    if (answer->error == 0) {
        db->answered = now;
        if (db->ceiling == 0)
            db->ceiling = UINT32_MAX;
        if (db->budget == 0)
            db->budget = UINT32_MAX;
        if (db->recovering && !states[state].closed) {
            db->recovering = 0;
            db->ramp = now;
        }
        /* An old and a new monitor overlap, and probes come and go. */
        db->own_polls = answer->figures.own > 1 ? db->own_polls + 1 : 0;
        if (db->own_polls >= 5)
            db->shares_account = 1;
        db->figures = answer->figures;
        set_budget(db, rules, answer, state == DBGUARD_DB_FULL, now);
    }
    else if (state == DBGUARD_DB_FULL)
        cut_blindly(db);
    /* What is configured binds without figures, too. */
    if (rules->cap > 0 && rules->cap < db->budget) {
        db->budget = rules->cap;
        snprintf(db->why, sizeof(db->why), "%u, at most DBGuardBudget; the "
                 "database gives no figures", db->budget);
    }
    if (state != before || db->since == 0)
        db->since = now;
    db->state = state;
    return state != before;
}

int dbguard_database_closed(const dbguard_database_t *db,
                            const dbguard_rules_t *rules, int64_t now)
{
    return states[known(db->state)].closed && !rules->admit
           && now - db->attempted < DBGUARD_STALE;
}
