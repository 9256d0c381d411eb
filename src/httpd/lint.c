/* The lint in httpd: gathers what the configuration, the MPM, the machine and
 * the database say, lets src/core/lint.c judge, and reports.
 *
 *     occasion            asks the database      reports to         may refuse
 *     configtest          yes                    the terminal       yes
 *     start, first pass   with DBGuardLint refuse, and when it      yes
 *                         refuses only, the terminal
 *     start, second pass  unless the first did   the error log      no
 *     reload              no: what is known      the error log      no
 *
 * A configtest and the first pass fail, whatever DBGuardLint says, when no
 * scoreboard can be made where it is to be.
 *
 * Invariants
 *   - What may fail is a configtest and the first pass of a start. In the
 *     second one httpd has left its terminal, and the exit code would be lost;
 *     a failure in a reload would end the parent.
 *   - httpd -k stop and its like read the configuration as the first pass does.
 *     They are told from a start by the server that runs already, and nothing
 *     is done then.
 *   - The database is asked once, within two seconds, and never in a reload.
 *   - Whatever cannot be found out is left unknown, and is no error. */

#include <errno.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "apr_file_io.h"
#include "apr_hash.h"
#include "apr_lib.h"
#include "apr_mmap.h"
#include "apr_strings.h"
#include "ap_mpm.h"
#include "http_core.h"
#include "mpm_common.h"
#include "util_cfgtree.h"

#include "answer.h"
#include "clock.h"
#include "glue.h"
#include "memory.h"
#include "value.h"
#include "view.h"

typedef enum occasion_t {
    CONFIGTEST,
    FIRST_PASS,
    SECOND_PASS,
    RELOAD
} occasion_t;

/* What the first pass of a start learnt, for the second: it is kept by httpd
 * while the module is loaded anew. */
typedef struct learnt_t {
    apr_size_t size; /* of this struct in the build that wrote it; 0: used up */
    dbguard_database_t database;
    char mute[sizeof(((dbguard_lint_t *)NULL)->mute)];
} learnt_t;

#define LEARNT_KEY "mod_dbguard lint"

#define INCLUDE_DEPTH 20 /* files within files that are looked into */

static dbguard_facts_t facts;

const dbguard_facts_t *dbguard_lint_facts(void)
{
    return &facts;
}

static int is(const char *a, const char *b)
{
    return strcasecmp(a, b) == 0;
}

/* --- the configuration's tree --------------------------------------------- */

static void put_place(char *place, const ap_directive_t *d)
{
    apr_snprintf(place, DBGUARD_PLACE, "%s:%d", d->filename, d->line_num);
}

static void take_number(dbguard_written_t *w, const ap_directive_t *d)
{
    int64_t n;

    if (!dbguard_value_number(d->args, 1, UINT32_MAX, &n))
        return;
    w->number = (uint32_t)n;
    put_place(w->place, d);
}

/* php_admin_value, php_value and the two flags: does this one allow
 * connections that outlive their request? The last word on a name counts. */
static void take_php(const ap_directive_t *d, apr_pool_t *p)
{
    const char *rest = d->args;
    const char *name = ap_getword_conf(p, &rest);
    const char *value = ap_getword_conf(p, &rest);
    const char *dot = strrchr(name, '.');
    int number = atoi(value);
    int allows;

    if (dot == NULL)
        return;
    if (is(dot, ".allow_persistent"))
        allows = number != 0 || is(value, "on") || is(value, "yes")
                 || is(value, "true");
    else if (is(dot, ".max_persistent"))
        allows = number != 0;
    else
        return;
    if (allows) {
        put_place(facts.persistent, d);
        apr_snprintf(facts.persistent_name, sizeof(facts.persistent_name),
                     "%s %s", name, value);
    }
    else if (strncmp(facts.persistent_name, name, strcspn(name, ".")) == 0)
        facts.persistent[0] = '\0';
}

static void take_directive(const ap_directive_t *d, apr_pool_t *p)
{
    const char *name = d->directive;

    if (is(name, "MaxRequestWorkers") || is(name, "MaxClients"))
        take_number(&facts.written_workers, d);
    else if (is(name, "ServerLimit"))
        take_number(&facts.written_server_limit, d);
    else if (is(name, "RemoteIPHeader"))
        put_place(facts.remoteip, d);
    else if (strncasecmp(name, "RemoteIPTrustedProxy", 20) == 0
             || strncasecmp(name, "RemoteIPInternalProxy", 21) == 0)
        facts.proxies = 1;
    else if (strncasecmp(name, "php_", 4) == 0)
        take_php(d, p);
}

/* --- the configuration's text --------------------------------------------- */

/* An <IfModule> that does not match leaves nothing in the tree. */

typedef struct scan_t {
    apr_pool_t *p;
    apr_hash_t *seen; /* files */
} scan_t;

static void scan_file(scan_t *scan, const char *file, int depth);

/* Is this a name for an MPM that no MPM has? prefork.c and mpm_prefork_module
 * are names, mpm_prefork.c and its like are not. */
static int is_misnomer(apr_pool_t *p, const char *name)
{
    static const char *const mpms[] = {"prefork", "worker", "event"};
    const char *core = name;
    size_t len, i;

    if (strncmp(core, "mod_", 4) == 0)
        core += 4;
    if (strncmp(core, "mpm_", 4) == 0)
        core += 4;
    len = strcspn(core, ".");
    if (core[len] == '\0' && len > 7 && is(core + len - 7, "_module"))
        len -= 7;
    for (i = 0; i < sizeof(mpms) / sizeof(mpms[0]); i++)
        if (strlen(mpms[i]) == len && strncasecmp(core, mpms[i], len) == 0)
            return !is(name, apr_pstrcat(p, mpms[i], ".c", NULL))
                   && !is(name, apr_pstrcat(p, "mpm_", mpms[i], "_module",
                                            NULL));
    return 0;
}

static void take_block(scan_t *scan, const char *args, const char *file,
                       int line)
{
    const char *name;

    args += strspn(args, " \t\"");
    name = apr_pstrmemdup(scan->p, args, strcspn(args, " \t\">"));
    if (*name == '!' || facts.block_name[0] || !is_misnomer(scan->p, name))
        return;
    apr_cpystrn(facts.block_name, name, sizeof(facts.block_name));
    apr_snprintf(facts.block, sizeof(facts.block), "%s:%d", file, line);
}

static void take_include(scan_t *scan, const char *args, int depth)
{
    const char *pattern = ap_getword_conf(scan->p, &args);
    glob_t found;
    apr_size_t i;

    pattern = ap_server_root_relative(scan->p,
                                      ap_resolve_env(scan->p, pattern));
    if (pattern == NULL || glob(pattern, 0, NULL, &found) != 0)
        return;
    for (i = 0; i < found.gl_pathc; i++)
        scan_file(scan, apr_pstrdup(scan->p, found.gl_pathv[i]), depth + 1);
    globfree(&found);
}

static void scan_line(scan_t *scan, const char *text, const char *file,
                      int line, int depth)
{
    text += strspn(text, " \t");
    if (strncasecmp(text, "<IfModule", 9) == 0 && apr_isspace(text[9]))
        take_block(scan, text + 9, file, line);
    else if (strncasecmp(text, "Include", 7) == 0 && apr_isspace(text[7]))
        take_include(scan, text + 8 + strspn(text + 8, " \t"), depth);
    else if (strncasecmp(text, "IncludeOptional", 15) == 0
             && apr_isspace(text[15]))
        take_include(scan, text + 16 + strspn(text + 16, " \t"), depth);
}

static void scan_file(scan_t *scan, const char *file, int depth)
{
    char text[MAX_STRING_LEN];
    apr_finfo_t info;
    apr_file_t *f;
    int line = 0;

    if (depth > INCLUDE_DEPTH
        || apr_hash_get(scan->seen, file, APR_HASH_KEY_STRING) != NULL)
        return;
    apr_hash_set(scan->seen, file, APR_HASH_KEY_STRING, file);
    /* Never a FIFO or the like, which would make us wait. */
    if (apr_stat(&info, file, APR_FINFO_TYPE, scan->p) != APR_SUCCESS
        || info.filetype != APR_REG
        || apr_file_open(&f, file, APR_FOPEN_READ | APR_FOPEN_BUFFERED,
                         APR_OS_DEFAULT, scan->p) != APR_SUCCESS)
        return;
    while (apr_file_gets(text, sizeof(text), f) == APR_SUCCESS) {
        text[strcspn(text, "\r\n")] = '\0';
        scan_line(scan, text, file, ++line, depth);
    }
    apr_file_close(f);
}

static void walk(const ap_directive_t *d, scan_t *scan)
{
    for (; d != NULL; d = d->next) {
        take_directive(d, scan->p);
        scan_file(scan, d->filename, 0);
        walk(d->first_child, scan);
    }
}

/* --- the facts ------------------------------------------------------------ */

static uint32_t query(int what)
{
    int n = 0;

    return ap_mpm_query(what, &n) == APR_SUCCESS && n > 0 ? (uint32_t)n : 1;
}

static void take_mpm(const server_rec *s)
{
    int async = 0;

    facts.threads = query(AP_MPMQ_MAX_THREADS);
    facts.workers = query(AP_MPMQ_MAX_DAEMONS) * facts.threads;
    facts.server_limit = query(AP_MPMQ_HARD_LIMIT_DAEMONS);
    if (ap_mpm_query(AP_MPMQ_IS_ASYNC, &async) == APR_SUCCESS)
        facts.async = async != 0;
    apr_cpystrn(facts.mpm, ap_show_mpm(), sizeof(facts.mpm));
    for (; s != NULL; s = s->next) {
        uint32_t timeout = (uint32_t)apr_time_sec(s->keep_alive_timeout);

        if (s->keep_alive && timeout > facts.keepalive)
            facts.keepalive = timeout;
    }
}

static void take_password_file(apr_pool_t *p, const dbguard_value_t *file)
{
    const char *name;
    apr_finfo_t info;
    apr_file_t *f;

    if (is(file->source, "default"))
        return;
    name = ap_server_root_relative(p, file->text);
    apr_cpystrn(facts.password_name, name ? name : file->text,
                sizeof(facts.password_name));
    facts.password_file = 2;
    if (name == NULL
        || apr_stat(&info, name, APR_FINFO_PROT, p) & ~APR_INCOMPLETE
        || apr_file_open(&f, name, APR_FOPEN_READ, APR_OS_DEFAULT, p)
               != APR_SUCCESS)
        return;
    apr_file_close(f);
    facts.password_file = 1;
    facts.password_mode = info.protection & APR_FPROT_WREAD ? 0004 : 0;
    facts.password_mode |= info.protection & APR_FPROT_UREAD ? 0400 : 0;
    facts.password_mode |= info.protection & APR_FPROT_UWRITE ? 0200 : 0;
    facts.password_mode |= info.protection & APR_FPROT_GREAD ? 0040 : 0;
    facts.password_mode |= info.protection & APR_FPROT_GWRITE ? 0020 : 0;
    facts.password_mode |= info.protection & APR_FPROT_WWRITE ? 0002 : 0;
}

static void take_guard(apr_pool_t *p, const dbguard_server_t *server)
{
    const dbguard_value_t *set = server->set;
    int refused;

    dbguard_startup_rules(server, &facts.rules);
    facts.cap = facts.rules.cap;
    facts.guarded = (uint32_t)dbguard_config_guarded(&refused);
    facts.dryrun = set[DBGUARD_SET_ENGINE].number == DBGUARD_ENGINE_DRYRUN;
    facts.queue_auto = set[DBGUARD_SET_QUEUE_LENGTH].number == DBGUARD_AUTO;
    facts.has_database = (uint32_t)dbguard_is_set(server,
                                                  DBGUARD_SET_DATABASE);
    if (!facts.has_database)
        return;
    apr_cpystrn(facts.user, server->dsn.user, sizeof(facts.user));
    apr_cpystrn(facts.host, server->dsn.host, sizeof(facts.host));
    facts.port = server->dsn.port;
    take_password_file(p, &set[DBGUARD_SET_PASSWORD_FILE]);
}

static void gather(apr_pool_t *p, server_rec *s)
{
    scan_t scan = {p, apr_hash_make(p)};

    memset(&facts, 0, sizeof(facts));
    take_mpm(s);
    walk(ap_conftree, &scan);
    take_guard(p, dbguard_server(s));
    facts.known = 1;
}

/* --- the database --------------------------------------------------------- */

/* Ask it. held: connections besides the probe's own that are not others'. */
static void ask(apr_pool_t *p, server_rec *s, dbguard_lint_t *lint,
                uint32_t held)
{
    const char *why = "what dbguard-monitor --probe said is no answer";
    const char *text = dbguard_keeper_probe(p, s, &why);
    dbguard_answer_t answer;

    if (text == NULL || !dbguard_answer_read(&answer, text)) {
        apr_cpystrn(lint->mute, why, sizeof(lint->mute));
        return;
    }
    lint->mute[0] = '\0';
    answer.held = held;
    dbguard_database_learn(&lint->database, &facts.rules, &answer,
                           dbguard_clock_now());
}

static void keep_learnt(const dbguard_lint_t *lint)
{
    learnt_t *learnt = ap_retained_data_get(LEARNT_KEY);

    if (learnt == NULL)
        learnt = ap_retained_data_create(LEARNT_KEY, sizeof(*learnt));
    learnt->size = sizeof(*learnt);
    learnt->database = lint->database;
    memcpy(learnt->mute, lint->mute, sizeof(learnt->mute));
}

/* What the first pass learnt, once. */
static int take_learnt(dbguard_lint_t *lint)
{
    learnt_t *learnt = ap_retained_data_get(LEARNT_KEY);

    if (learnt == NULL || learnt->size != sizeof(*learnt))
        return 0;
    learnt->size = 0;
    lint->database = learnt->database;
    memcpy(lint->mute, learnt->mute, sizeof(lint->mute));
    return 1;
}

/* What the monitor knows, unless it speaks of another database. */
static void take_known(const dbguard_server_t *server, dbguard_database_t *db)
{
    const char *before = dbguard_shm_last_good(
        dbguard_set_name(DBGUARD_SET_DATABASE));

    if (dbguard_shm_continue() && before != NULL
        && strcmp(before, server->set[DBGUARD_SET_DATABASE].text) == 0)
        *db = dbguard_board()->shared->database;
}

/* --- the server that runs already ----------------------------------------- */

static int alive(pid_t pid)
{
    return pid > 1 && (kill(pid, 0) == 0 || errno == EPERM);
}

/* The process that PidFile names, or 0. */
static pid_t running_parent(apr_pool_t *p)
{
    pid_t pid = 0;

    if (ap_pid_fname == NULL || ap_read_pid(p, ap_pid_fname, &pid)
        || !alive(pid))
        return 0;
    return pid;
}

/* The scoreboard of a running server, or NULL. For a configtest only: a server
 * that opened and closed its own file would lose its lock on it. */
static const dbguard_shared_t *running_board(apr_pool_t *p,
                                             const dbguard_server_t *server)
{
    const char *file = ap_runtime_dir_relative(
        p, server->set[DBGUARD_SET_SCOREBOARD].text);
    const dbguard_shared_t *shared;
    apr_finfo_t info;
    apr_file_t *f;
    apr_mmap_t *map;

    if (file == NULL
        || apr_file_open(&f, file, APR_FOPEN_READ, APR_OS_DEFAULT, p))
        return NULL;
    if (apr_file_info_get(&info, APR_FINFO_SIZE | APR_FINFO_TYPE, f)
        || info.filetype != APR_REG || info.size == 0
        || apr_mmap_create(&map, f, 0, (apr_size_t)info.size, APR_MMAP_READ,
                           p))
        return NULL;
    shared = map->mm;
    if (dbguard_board_kind(shared, (uint64_t)info.size) != DBGUARD_SAME_LAYOUT
        || !alive((pid_t)shared->prefix.pid))
        return NULL;
    return shared;
}

/* --- all of it ------------------------------------------------------------ */

static void look_around(apr_pool_t *p, server_rec *s, dbguard_lint_t *lint)
{
    const dbguard_shared_t *shared = running_board(p, dbguard_server(s));
    uint32_t held = 0;

    if (shared != NULL) {
        lint->running = 1;
        lint->held = held = shared->prefix.held;
        lint->server_limit_running = shared->facts.server_limit;
        held += alive(shared->database.monitor);
    }
    if (facts.has_database)
        ask(p, s, lint, held);
    dbguard_memory_measure(&lint->memory, running_parent(p));
}

static void look_back(server_rec *s, dbguard_lint_t *lint)
{
    take_known(dbguard_server(s), &lint->database);
    if (dbguard_board() == NULL)
        return;
    lint->running = 1;
    lint->held = dbguard_board()->shared->prefix.held;
    lint->server_limit_running = facts.server_limit;
}

/* Everything that is to be judged, and the settings that follow, in a board
 * that is for show only. */
static dbguard_shared_t *prepare(apr_pool_t *p, server_rec *s,
                                 occasion_t occasion, dbguard_lint_t *lint)
{
    dbguard_shared_t *shown = apr_pcalloc(p, sizeof(*shown));

    if (occasion == CONFIGTEST)
        look_around(p, s, lint);
    else if (occasion == RELOAD)
        look_back(s, lint);
    else if (!take_learnt(lint) && facts.has_database)
        ask(p, s, lint, 0);
    shown->database = lint->database;
    dbguard_startup_preview(p, s, shown);
    facts.queue = shown->limits.queue;
    lint->budget = shown->limits.budget;
    lint->facts = facts;
    return shown;
}

/* --- the report ----------------------------------------------------------- */

static void quiet(void *context, const dbguard_finding_t *finding)
{
    (void)context;
    (void)finding;
}

static void log_finding(void *context, const dbguard_finding_t *f)
{
    server_rec *s = context;
    int level = f->severity == DBGUARD_LINT_ERROR     ? APLOG_ERR
                : f->severity == DBGUARD_LINT_WARNING ? APLOG_WARNING
                                                      : APLOG_INFO;

    if (f->severity < DBGUARD_LINT_INFO)
        return;
    ap_log_error(APLOG_MARK, level, 0, s, "DBGUARD%04u: lint: %s: %s: %s%s%s",
                 f->number, f->id, dbguard_severity_name(f->severity),
                 f->sentence, f->remedy[0] ? "; remedy: " : "", f->remedy);
}

static void emit(void *out, const char *format, va_list args)
{
    vfprintf(out, format, args);
}

static void dump(const dbguard_shared_t *shown, const dbguard_lint_t *lint)
{
    const dbguard_view_t view = {emit, stdout};

    dbguard_view_settings(&view, shown->settings, shown->nsettings);
    printf("\n");
    dbguard_view_lint(&view, lint);
    fflush(stdout);
}

static int refuse(server_rec *s, uint32_t mismatches)
{
    ap_log_error(APLOG_MARK, APLOG_ERR, 0, s,
                 "DBGUARD0068: DBGuardLint refuse: the limits contradict each "
                 "other (%u finding%s above: workers-database, budget-room, "
                 "reserve); correct them, or set DBGuardLint warn", mismatches,
                 mismatches == 1 ? "" : "s");
    return HTTP_INTERNAL_SERVER_ERROR;
}

static int judge(apr_pool_t *p, server_rec *s, occasion_t occasion, int dumps)
{
    int may_refuse = dbguard_server(s)->set[DBGUARD_SET_LINT].number
                         == DBGUARD_LINT_REFUSE
                     && (occasion == CONFIGTEST || occasion == FIRST_PASS);
    dbguard_lint_t lint = {0};
    const dbguard_shared_t *shown = prepare(p, s, occasion, &lint);
    uint32_t mismatches;
    int refuses, fits = 1;

    dbguard_lint_run(&lint, quiet, NULL, &mismatches);
    refuses = may_refuse && mismatches > 0;
    if (dumps)
        dump(shown, &lint);
    else if (occasion != FIRST_PASS || refuses)
        dbguard_lint_run(&lint, log_finding, s, NULL);
    if (!dumps && (occasion != FIRST_PASS || may_refuse))
        fits = dbguard_class_fits(s, shown);
    if (refuses)
        return refuse(s, mismatches);
    if (may_refuse && !fits)
        return HTTP_INTERNAL_SERVER_ERROR;
    if (occasion == FIRST_PASS)
        keep_learnt(&lint);
    return OK;
}

/* --- when ----------------------------------------------------------------- */

/* Has the parent served before this configuration was read? The module itself
 * may be new to it. */
static int is_reload(void)
{
    return dbguard_shm_reloading() || ap_state_query(AP_SQ_CONFIG_GEN) > 1;
}

static occasion_t occasion_now(void)
{
    int mode = ap_state_query(AP_SQ_RUN_MODE);

    if (mode == AP_SQ_RM_CONFIG_TEST || mode == AP_SQ_RM_CONFIG_DUMP)
        return CONFIGTEST;
    if (ap_state_query(AP_SQ_MAIN_STATE) == AP_SQ_MS_CREATE_PRE_CONFIG)
        return FIRST_PASS;
    return is_reload() ? RELOAD : SECOND_PASS;
}

/* In the second pass the terminal is gone. */
static int has_place(apr_pool_t *p, server_rec *s)
{
    const dbguard_value_t *set
        = &dbguard_server(s)->set[DBGUARD_SET_SCOREBOARD];
    const char *file = ap_runtime_dir_relative(p, set->text);
    const char *why = file != NULL ? dbguard_shm_obstacle(p, file)
                                   : "not a name of a file";

    if (why == NULL)
        return 1;
    ap_log_error(APLOG_MARK, APLOG_EMERG, 0, s,
                 "DBGUARD0010: cannot make the scoreboard %s "
                 "(DBGuardScoreboard %s, %s): %s", file ? file : set->text,
                 set->text, set->source, why);
    return 0;
}

static int check_config(apr_pool_t *pconf, apr_pool_t *plog, apr_pool_t *ptemp,
                        server_rec *s)
{
    const dbguard_value_t *set = dbguard_server(s)->set;
    int64_t lint = set[DBGUARD_SET_LINT].number;
    occasion_t occasion = occasion_now();
    int dumps = occasion == CONFIGTEST
                && ap_exists_config_define("DUMP_DBGUARD");

    (void)pconf;
    (void)plog;
    /* Who asks httpd -S about virtual hosts gets an answer to that. */
    if ((set[DBGUARD_SET_ENGINE].number == DBGUARD_ENGINE_OFF
         || ap_state_query(AP_SQ_RUN_MODE) == AP_SQ_RM_CONFIG_DUMP)
        && !dumps)
        return OK;
    if (occasion == FIRST_PASS && running_parent(ptemp) != 0)
        return OK;
    if ((occasion == CONFIGTEST || occasion == FIRST_PASS)
        && !has_place(ptemp, s))
        return HTTP_INTERNAL_SERVER_ERROR;
    if (occasion == FIRST_PASS && lint != DBGUARD_LINT_REFUSE)
        return OK;
    gather(ptemp, s);
    if (lint == DBGUARD_LINT_OFF && !dumps)
        return OK;
    return judge(ptemp, s, occasion, dumps);
}

void dbguard_lint_register(void)
{
    /* After the MPM, which settles its limits in the middle. */
    ap_hook_check_config(check_config, NULL, NULL, APR_HOOK_REALLY_LAST);
}
