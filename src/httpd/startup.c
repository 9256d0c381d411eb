/* A configuration comes into force: limits are derived, the segment is opened,
 * and the log says line by line what is in effect and why.
 *
 * Invariants
 *   - Nothing here runs in a configtest or in the first of the two passes of a
 *     cold start: a live segment is touched only by its own server.
 *   - The configuration of a reload never ends the server. When it cannot be
 *     put into force, guarded requests are refused, and the log says so.
 *   - What is shown as in force ends with the configuration it is of: after a
 *     reload without this module nobody comes who takes it back. */

#include <errno.h>

#include "apr_strings.h"
#include "ap_mpm.h"
#include "http_core.h"

#include "clock.h"
#include "glue.h"
#include "derive.h"
#include "settle.h"

static dbguard_engine_t engine;

int dbguard_engine_runs(void)
{
    return engine != DBGUARD_ENGINE_OFF;
}

static int query(int what)
{
    int n = 1;

    return ap_mpm_query(what, &n) == APR_SUCCESS && n > 0 ? n : 1;
}

static uint32_t max_workers(void)
{
    return (uint32_t)query(AP_MPMQ_MAX_DAEMONS)
           * (uint32_t)query(AP_MPMQ_MAX_THREADS);
}

/* One record for each request that can run at once, now or after any graceful
 * restart: ServerLimit and ThreadLimit cannot grow across one. Twice, since
 * mod_http2 has workers of its own, half as many again for each process. */
static uint32_t slots_needed(void)
{
    uint64_t n = 2 * (uint64_t)query(AP_MPMQ_HARD_LIMIT_DAEMONS)
                 * (uint64_t)query(AP_MPMQ_HARD_LIMIT_THREADS);

    return n < DBGUARD_SLOTS_MAX ? (uint32_t)n : DBGUARD_SLOTS_MAX;
}

static void derive_rules(const dbguard_value_t *set, dbguard_rules_t *rules)
{
    const dbguard_value_t *reserve = &set[DBGUARD_SET_RESERVE];

    if (set[DBGUARD_SET_BUDGET].number != DBGUARD_AUTO)
        rules->cap = (uint32_t)set[DBGUARD_SET_BUDGET].number;
    if (reserve->number == DBGUARD_AUTO)
        rules->percent = DBGUARD_RESERVE_AUTO;
    else if (reserve->percent)
        rules->percent = (uint32_t)reserve->number;
    else
        rules->reserve = (uint32_t)reserve->number;
    rules->admit = set[DBGUARD_SET_OUTAGE].number == DBGUARD_OUTAGE_ADMIT;
}

static const char *scoreboard_path(apr_pool_t *p,
                                   const dbguard_server_t *server)
{
    return ap_runtime_dir_relative(p, server->set[DBGUARD_SET_SCOREBOARD].text);
}

/* The budget until the database has answered: what it was a moment ago (a
 * reload), or when the server last ran; else what is configured; else the
 * safest there is. */
static uint32_t first_budget(apr_pool_t *p, const dbguard_server_t *server,
                             const dbguard_shared_t *shared, uint32_t cap)
{
    const char *file = dbguard_shm_file();
    uint32_t budget = 0;

    if (file == NULL)
        file = scoreboard_path(p, server);
    if (dbguard_is_set(server, DBGUARD_SET_DATABASE))
        budget = shared->database.budget > 0
                     ? shared->database.budget
                     : dbguard_keeper_last_budget(p, file);
    if (budget == 0)
        budget = cap > 0 ? cap : DBGUARD_BUDGET_UNKNOWN;
    return cap > 0 && cap < budget ? cap : budget;
}

static void derive_client(const dbguard_value_t *set, dbguard_limits_t *limits)
{
    const dbguard_value_t *hold = &set[DBGUARD_SET_CLIENT_HOLD];

    memset(&limits->client_hold, 0, sizeof(limits->client_hold));
    if (hold->number != DBGUARD_AUTO) {
        limits->client_hold.number = (uint32_t)hold->number;
        limits->client_hold.percent = (uint32_t)hold->percent;
    }
    limits->session_wait = (uint32_t)set[DBGUARD_SET_CLIENT_WAIT].number;
}

static void derive(apr_pool_t *p, const dbguard_server_t *server,
                   const dbguard_shared_t *shared, dbguard_limits_t *limits)
{
    const dbguard_value_t *set = server->set;

    derive_rules(set, &limits->rules);
    limits->budget = first_budget(p, server, shared, limits->rules.cap);
    limits->queue = (uint32_t)set[DBGUARD_SET_QUEUE_LENGTH].number;
    if (set[DBGUARD_SET_QUEUE_LENGTH].number == DBGUARD_AUTO) {
        limits->workers = max_workers();
        limits->queue = dbguard_derive_queue(limits->workers, limits->budget);
    }
    limits->patience = set[DBGUARD_SET_QUEUE_PATIENCE].number;
    if (limits->patience == DBGUARD_AUTO)
        limits->patience = 0;
    limits->settle = DBGUARD_SETTLE;
    limits->pace = DBGUARD_PACE;
    limits->dryrun = engine == DBGUARD_ENGINE_DRYRUN;
    limits->retry_min = set[DBGUARD_SET_RETRY_MIN].number;
    limits->retry_max = set[DBGUARD_SET_RETRY_MAX].number;
    derive_client(set, limits);
    dbguard_class_fill(shared, limits);
}

/* What an automatic or relative value comes to. */
static const char *note(apr_pool_t *p, const dbguard_server_t *server,
                        dbguard_set_t set, const dbguard_limits_t *limits)
{
    int is_auto = server->set[set].number == DBGUARD_AUTO;

    /* With a database the budget will move, and the places with it. */
    if (set == DBGUARD_SET_QUEUE_LENGTH && is_auto
        && dbguard_is_set(server, DBGUARD_SET_DATABASE))
        return apr_psprintf(p, "MaxRequestWorkers %u - the budget - "
                            "max(8, 15 %%) for everything else",
                            max_workers());
    if (set == DBGUARD_SET_QUEUE_LENGTH && is_auto)
        return apr_psprintf(p, "%u places: MaxRequestWorkers %u - budget %u - "
                            "max(8, 15 %%) for everything else",
                            limits->queue, max_workers(), limits->budget);
    if (set == DBGUARD_SET_QUEUE_PATIENCE && is_auto)
        return "6 times the hold of the endpoint, from 1s to 10s";
    if (set == DBGUARD_SET_CLIENT_SESSION)
        return "and the common ones";
    if (set == DBGUARD_SET_CLIENT_HOLD && is_auto)
        return "what others need stays free";
    if (set == DBGUARD_SET_CLIENT_WAIT && server->set[set].number == 0)
        return "no limit";
    if (set == DBGUARD_SET_SCOREBOARD
        && *server->set[set].text != '/')
        return scoreboard_path(p, server);
    if (set == DBGUARD_SET_PASSWORD_FILE && *server->set[set].text != '/'
        && strcmp(server->set[set].source, "default") != 0)
        return ap_server_root_relative(p, server->set[set].text);
    if (set == DBGUARD_SET_BUDGET && is_auto)
        return apr_psprintf(p, "%u to begin with, %s", limits->budget,
                            dbguard_is_set(server, DBGUARD_SET_DATABASE)
                                ? "then what the database allows"
                                : "for want of a DBGuardDatabase to ask");
    if (set == DBGUARD_SET_RESERVE && is_auto)
        return "10 % of the limit, at least 3 connections";
    return "";
}

static void add_line(dbguard_shared_t *shared, const char *name,
                     const char *value, const char *note, const char *source,
                     int valid)
{
    dbguard_setting_t *line = &shared->settings[shared->nsettings++];

    apr_cpystrn(line->name, name, sizeof(line->name));
    apr_cpystrn(line->value, value, sizeof(line->value));
    apr_cpystrn(line->note, note, sizeof(line->note));
    apr_cpystrn(line->source, source, sizeof(line->source));
    line->valid = (uint32_t)valid;
}

/* A share in tokens, at least so many. */
static const char *tokens_note(apr_pool_t *p, const dbguard_share_t *share,
                               const char *what, uint32_t least,
                               uint32_t budget)
{
    uint32_t n = (uint32_t)((uint64_t)budget * share->number / 100);

    if (!share->percent || share->number == 0)
        return "";
    return apr_psprintf(p, "%s %u of %u tokens", what, n > least ? n : least,
                        budget);
}

/* A line for each class. */
static void add_classes(dbguard_shared_t *shared, apr_pool_t *p,
                        const dbguard_limits_t *limits)
{
    int i, n;
    const dbguard_named_t *classes = dbguard_class_list(&n);
    const char *refused = dbguard_class_refused();

    for (i = 0; i < n; i++) {
        const dbguard_class_t *c = &classes[i].class;
        const char *min = tokens_note(p, &c->min, "min", 0, limits->budget);
        const char *max = tokens_note(p, &c->max, "max", 1, limits->budget);

        add_line(shared, "DBGuardClass", classes[i].text,
                 apr_pstrcat(p, min, *min && *max ? ", " : "", max, NULL),
                 classes[i].source, classes[i].valid);
    }
    if (refused != NULL)
        add_line(shared, "DBGuardClass", "none", "",
                 apr_psprintf(p, "last good value (%s was refused)", refused),
                 0);
}

/* A part of DBGuardRefusal; value is NULL when no line sets it. */
static void add_part(dbguard_shared_t *shared, const char *name,
                     const char *value, const char *initial,
                     const char *source, int bad)
{
    add_line(shared, name, value ? value : initial,
             bad ? "what a reload said was refused" : "",
             source ? source : "default", !bad);
}

static void add_refusal(dbguard_shared_t *shared,
                        const dbguard_server_t *server, apr_pool_t *p)
{
    unsigned bad = server->refusal_bad;

    add_part(shared, "DBGuardRefusal status",
             server->status ? apr_itoa(p, server->status) : NULL, "503",
             server->status_source, bad & DBGUARD_BAD_STATUS);
    add_part(shared, "DBGuardRefusal html",
             server->html ? dbguard_body_name(server->html) : NULL, "built-in",
             server->html_source, bad & DBGUARD_BAD_HTML);
    add_part(shared, "DBGuardRefusal json",
             server->json ? dbguard_body_name(server->json) : NULL, "built-in",
             server->json_source, bad & DBGUARD_BAD_JSON);
}

/* Written into the segment, where dbguardctl reads it. */
static void publish(server_rec *s, dbguard_shared_t *shared,
                    const dbguard_limits_t *limits)
{
    const dbguard_server_t *server = dbguard_server(s);
    apr_pool_t *p = s->process->pconf;
    int set, guarded, refused;

    shared->engine = engine;
    shared->nsettings = 0;
    for (set = 0; set < DBGUARD_SETS; set++)
        add_line(shared, dbguard_set_name(set), server->set[set].text,
                 note(p, server, set, limits), server->set[set].source,
                 server->set[set].valid);
    guarded = dbguard_config_guarded(&refused);
    add_line(shared, "DBGuard", apr_psprintf(p, "On in %d place(s)", guarded),
             refused > 0 ? "a reload refused some of them: guarded" : "",
             "the whole configuration", refused == 0);
    add_classes(shared, p, limits);
    add_refusal(shared, server, p);
    shared->facts = *dbguard_lint_facts();
}

/* A reload begins, and may leave the module out. Old processes go on as before:
 * these words are only shown. When the server ends instead, its segment may be
 * unmapped already. */
static apr_status_t withdraw(void *data)
{
    dbguard_shared_t *shared = data;

    if (ap_state_query(AP_SQ_MAIN_STATE) == AP_SQ_MS_DESTROY_CONFIG) {
        shared->engine = DBGUARD_ENGINE_OFF;
        shared->nsettings = 0;
    }
    return APR_SUCCESS;
}

void dbguard_startup_rules(const dbguard_server_t *server,
                           dbguard_rules_t *rules)
{
    derive_rules(server->set, rules);
}

void dbguard_startup_preview(apr_pool_t *p, server_rec *s,
                             dbguard_shared_t *shown)
{
    const dbguard_server_t *server = dbguard_server(s);

    engine = (dbguard_engine_t)server->set[DBGUARD_SET_ENGINE].number;
    derive(p, server, shown, &shown->limits);
    publish(s, shown, &shown->limits);
}

static void log_lines(server_rec *s, const dbguard_shared_t *shared)
{
    uint32_t i;

    for (i = 0; i < shared->nsettings; i++) {
        const dbguard_setting_t *line = &shared->settings[i];

        ap_log_error(APLOG_MARK, line->valid ? APLOG_NOTICE : APLOG_CRIT, 0, s,
                     "DBGUARD0002: effective: %s = %s%s%s%s, source: %s, "
                     "valid: %s", line->name, line->value,
                     *line->note ? " (" : "", line->note,
                     *line->note ? ")" : "", line->source,
                     line->valid ? "yes" : "no");
    }
}

/* Virtual hosts that answer in their own way. */
static void log_hosts(server_rec *main_server)
{
    const dbguard_server_t *base = dbguard_server(main_server);
    server_rec *s;

    for (s = main_server->next; s != NULL; s = s->next) {
        const dbguard_server_t *own = dbguard_server(s);

        if (own->html == base->html && own->json == base->json
            && own->status == base->status
            && own->refusal_bad == base->refusal_bad)
            continue;
        ap_log_error(APLOG_MARK, own->refusal_bad ? APLOG_CRIT : APLOG_NOTICE,
                     0, main_server,
                     "DBGUARD0002: effective: DBGuardRefusal of %s = html %s, "
                     "json %s, status %d, source: %s:%u, valid: %s",
                     s->server_hostname ? s->server_hostname : "a virtual host",
                     own->html ? dbguard_body_name(own->html) : "built-in",
                     own->json ? dbguard_body_name(own->json) : "built-in",
                     own->status ? own->status : 503, s->defn_name,
                     s->defn_line_number, own->refusal_bad ? "no" : "yes");
    }
}

static void log_start(server_rec *s, const dbguard_shared_t *shared)
{
    int refused;

    ap_log_error(APLOG_MARK, APLOG_NOTICE, 0, s,
                 "DBGUARD0001: mod_dbguard " DBGUARD_VERSION " guards: at most "
                 "%u requests at once may hold a database connection, up to %u "
                 "wait", shared->limits.budget, shared->limits.queue);
    log_lines(s, shared);
    log_hosts(s);
    if (shared->limits.dryrun)
        ap_log_error(APLOG_MARK, APLOG_WARNING, 0, s,
                     "DBGUARD0014: DBGuardEngine DryRun: refusals are recorded "
                     "and nobody is refused; the database is NOT protected");
    if (dbguard_config_guarded(&refused) == 0)
        ap_log_error(APLOG_MARK, APLOG_WARNING, 0, s,
                     "DBGUARD0003: nothing is guarded: there is no \"DBGuard "
                     "On\" anywhere; put one where the requests are that use "
                     "the database");
}

/* A reload has taken DBGuardDatabase away: what was known of it is history. */
static void forget_database(dbguard_board_t *board)
{
    static const dbguard_database_t nothing;

    if (board->shared->database.attempted != 0)
        dbguard_admission_learn(board, &nothing, dbguard_clock_now());
}

static int enforce(server_rec *s, const dbguard_server_t *server)
{
    const char *file = scoreboard_path(s->process->pconf, server);
    dbguard_limits_t limits = {0};
    dbguard_board_t *board;
    int generation = 0;
    apr_status_t rv = dbguard_shm_open(s, file, slots_needed());

    board = dbguard_board();
    if (rv == APR_SUCCESS && board != NULL) {
        derive(s->process->pconf, server, board->shared, &limits);
        ap_mpm_query(AP_MPMQ_GENERATION, &generation);
        board->shared->generation = (uint32_t)generation;
        publish(s, board->shared, &limits);
        rv = dbguard_admission_configure(board, &limits, dbguard_clock_now());
        if (APR_STATUS_IS_TIMEUP(rv) || rv == ETIMEDOUT) {
            ap_log_error(APLOG_MARK, APLOG_CRIT, 0, s,
                         "DBGUARD0028: the lock of the scoreboard cannot be "
                         "had: a process that has it must have been stopped "
                         "(kill -STOP, a debugger). The limits from before "
                         "this reload stay in force; let that process go on "
                         "or kill it, and reload again");
            rv = APR_SUCCESS;
        }
    }
    if (rv == APR_SUCCESS && board != NULL) {
        if (!dbguard_is_set(server, DBGUARD_SET_DATABASE))
            forget_database(board);
        dbguard_class_resolve(s, &board->shared->limits);
        dbguard_client_configure(s->process->pconf, server);
        log_start(s, board->shared);
        dbguard_keeper_start(s, dbguard_shm_file());
        return OK;
    }
    if (!dbguard_shm_reloading())
        return HTTP_INTERNAL_SERVER_ERROR;
    ap_log_error(APLOG_MARK, APLOG_CRIT, rv, s,
                 "DBGUARD0016: there is no scoreboard after this reload: every "
                 "guarded request is refused until the server is restarted");
    return OK;
}

static int post_config(apr_pool_t *pconf, apr_pool_t *plog, apr_pool_t *ptemp,
                       server_rec *s)
{
    const dbguard_server_t *server = dbguard_server(s);
    int rv = OK;

    (void)plog;
    (void)ptemp;
    if (ap_state_query(AP_SQ_MAIN_STATE) == AP_SQ_MS_CREATE_PRE_CONFIG)
        return OK;

    dbguard_keeper_adopt(s);
    engine = (dbguard_engine_t)server->set[DBGUARD_SET_ENGINE].number;
    if (engine != DBGUARD_ENGINE_OFF)
        rv = enforce(s, server);
    else {
        /* Those who look at a segment that is still there shall see it. */
        if (dbguard_shm_continue())
            publish(s, dbguard_board()->shared,
                    &dbguard_board()->shared->limits);
        ap_log_error(APLOG_MARK, APLOG_NOTICE, 0, s,
                     "DBGUARD0015: mod_dbguard " DBGUARD_VERSION " is loaded "
                     "and guards nothing: DBGuardEngine is Off (%s)",
                     server->set[DBGUARD_SET_ENGINE].source);
    }
    if (rv == OK)
        dbguard_config_remember(s);
    if (rv == OK && dbguard_board() != NULL)
        apr_pool_cleanup_register(pconf, dbguard_board()->shared, withdraw,
                                  apr_pool_cleanup_null);
    return rv;
}

void dbguard_startup_register(void)
{
    ap_hook_post_config(post_config, NULL, NULL, APR_HOOK_MIDDLE);
}
