/* Directives: reading, merging, and what happens to a bad one.
 *
 * Invariants
 *   - A value is read whole or refused with one sentence that names the
 *     directive, the value and what is allowed; httpd adds file and line.
 *   - At a start and in a configtest a refused value stops the server. In a
 *     reload by signal httpd would end the parent, with all sites on it: there
 *     the last good value stays in force and the log says so at level crit.
 *   - Every directive is RAW_ARGS and allowed everywhere as far as httpd
 *     knows, so that wrong places and wrong numbers of words take this path
 *     too. */

#include "apr_strings.h"

#include "config.h"
#include "derive.h"
#include "value.h"

#define SECOND 1000000

typedef enum dbguard_type_t {
    TYPE_WORD,
    TYPE_NUMBER,
    TYPE_SHARE, /* a number, or one of percent */
    TYPE_DURATION,
    TYPE_SECONDS, /* a duration of whole seconds */
    TYPE_FILE,
    TYPE_COOKIES, /* names with commas between them */
    TYPE_DATABASE
} dbguard_type_t;

#define NONE "none"

static const struct {
    const char *directive;
    const char *key; /* of key=value, or NULL: the only argument */
    dbguard_type_t type;
    int64_t min, max;
    const char *words[4]; /* of a TYPE_WORD, in the order of their numbers */
    int may_auto;
    const char *initial;
    const char *allowed; /* "is not ..." */
} specs[DBGUARD_SETS] = {
    {"DBGuardEngine", NULL, TYPE_WORD, 0, 0, {"Off", "On", "DryRun"}, 0, "Off",
     "one of On, Off, DryRun"},
    {"DBGuardBudget", NULL, TYPE_NUMBER, 1, DBGUARD_BUDGET_MAX, {0}, 1, "auto",
     "a whole number from 1 to 100000, or auto"},
    {"DBGuardReserve", NULL, TYPE_SHARE, 0, DBGUARD_BUDGET_MAX, {0}, 1, "auto",
     "a whole number from 0 to 100000, a share from 0% to 90%, or auto"},
    {"DBGuardDatabase", NULL, TYPE_DATABASE, 0, 0, {0}, 0, NONE,
     "mariadb://USER@HOST[:PORT] or mariadb://USER@/SOCKET, with extra-port=N "
     "and tls=on|off after it"},
    {"DBGuardPasswordFile", NULL, TYPE_FILE, 0, 0, {0}, 0, NONE,
     "a file name"},
    {"DBGuardOutage", NULL, TYPE_WORD, 0, 0, {"refuse", "admit"}, 0, "refuse",
     "one of refuse, admit"},
    {"DBGuardLint", NULL, TYPE_WORD, 0, 0, {"warn", "refuse", "off"}, 0, "warn",
     "one of warn, refuse, off"},
    {"DBGuardQueue", "length", TYPE_NUMBER, 0, DBGUARD_SLOTS_MAX, {0}, 1,
     "auto", "a whole number from 0 to 1000000, or auto"},
    {"DBGuardQueue", "patience", TYPE_DURATION, 1000, 600 * (int64_t)SECOND,
     {0}, 1, "auto",
     "a duration from 1ms to 10min such as 500ms or 2s, or auto"},
    {"DBGuardRetryAfter", "min", TYPE_SECONDS, SECOND,
     3600 * (int64_t)SECOND, {0}, 0, "1s", "whole seconds from 1s to 60min"},
    {"DBGuardRetryAfter", "max", TYPE_SECONDS, SECOND,
     3600 * (int64_t)SECOND, {0}, 0, "120s", "whole seconds from 1s to 60min"},
    {"DBGuardClient", "session", TYPE_COOKIES, 0, 0, {0}, 0, NONE,
     "up to 16 names of cookies with commas between them, or none"},
    {"DBGuardClient", "ipv6-prefix", TYPE_NUMBER, 32, 128, {0}, 0, "64",
     "a whole number from 32 to 128"},
    {"DBGuardClient", "hold", TYPE_SHARE, 1, DBGUARD_BUDGET_MAX, {0}, 1, "auto",
     "a whole number from 1 to 100000, a share from 1% to 100%, or auto"},
    {"DBGuardClient", "wait", TYPE_NUMBER, 0, DBGUARD_SLOTS_MAX, {0}, 0, "2",
     "a whole number from 0 to 1000000"},
    {"DBGuardSnapshot", "every", TYPE_SECONDS, SECOND, 3600 * (int64_t)SECOND,
     {0}, 0, "10s", "whole seconds from 1s to 60min"},
    {"DBGuardSnapshot", "file", TYPE_FILE, 0, 0, {0}, 0, NONE, "a file name"},
    {"DBGuardScoreboard", NULL, TYPE_FILE, 0, 0, {0}, 0, "dbguard.scoreboard",
     "a file name"}
};

/* Counted anew with every reading of the configuration. */
static int guarded, guarded_in_doubt;

int dbguard_config_guarded(int *refused)
{
    *refused = guarded_in_doubt;
    return guarded;
}

const char *dbguard_set_name(dbguard_set_t set)
{
    static const char *const names[DBGUARD_SETS] = {
        "DBGuardEngine", "DBGuardBudget", "DBGuardReserve", "DBGuardDatabase",
        "DBGuardPasswordFile", "DBGuardOutage", "DBGuardLint",
        "DBGuardQueue length", "DBGuardQueue patience",
        "DBGuardRetryAfter min", "DBGuardRetryAfter max",
        "DBGuardClient session", "DBGuardClient ipv6-prefix",
        "DBGuardClient hold", "DBGuardClient wait", "DBGuardSnapshot every",
        "DBGuardSnapshot file", "DBGuardScoreboard"
    };

    return names[set];
}

const dbguard_server_t *dbguard_server(const server_rec *s)
{
    return ap_get_module_config(s->module_config, &dbguard_module);
}

int dbguard_is_set(const dbguard_server_t *server, dbguard_set_t set)
{
    return strcmp(server->set[set].text, NONE) != 0;
}

/* --- reading one value --------------------------------------------------- */

static int read_word(dbguard_set_t set, const char *text, int64_t *number)
{
    int i;

    for (i = 0; specs[set].words[i] != NULL; i++) {
        if (strcasecmp(text, specs[set].words[i]) == 0) {
            *number = i;
            return 1;
        }
    }
    return 0;
}

int dbguard_config_share(const char *text, int64_t min, int64_t max,
                         int64_t most, int64_t *number, int *percent)
{
    apr_size_t len = strlen(text);
    char digits[8];

    *percent = len > 1 && len < sizeof(digits) && text[len - 1] == '%';
    if (!*percent)
        return dbguard_value_number(text, min, max, number);
    apr_cpystrn(digits, text, len);
    return dbguard_value_number(digits, min, most, number);
}

static int read_value(dbguard_set_t set, const char *text,
                      dbguard_value_t *value)
{
    int64_t min = specs[set].min, max = specs[set].max;

    value->number = 0;
    value->percent = 0;
    if (specs[set].may_auto && strcasecmp(text, "auto") == 0) {
        value->number = DBGUARD_AUTO;
        return 1;
    }
    switch (specs[set].type) {
    case TYPE_WORD:
        return read_word(set, text, &value->number);
    case TYPE_NUMBER:
        return dbguard_value_number(text, min, max, &value->number);
    case TYPE_SHARE:
        /* A reserve must leave something. */
        return dbguard_config_share(text, min, max,
                                    set == DBGUARD_SET_RESERVE ? 90 : 100,
                                    &value->number, &value->percent);
    case TYPE_COOKIES:
        return dbguard_client_cookies(text);
    case TYPE_DURATION:
        return dbguard_value_duration(text, min, max, &value->number);
    case TYPE_SECONDS:
        return dbguard_value_duration(text, min, max, &value->number)
               && value->number % SECOND == 0;
    case TYPE_FILE:
    case TYPE_DATABASE: /* whose words set_database has looked at */
        return *text != '\0' && strstr(text, "${") == NULL;
    }
    return 0;
}

static int set_value(dbguard_value_t *value, dbguard_set_t set,
                     const char *text, const char *source)
{
    dbguard_value_t read;

    if (!read_value(set, text, &read))
        return 0;
    *value = read;
    value->text = specs[set].type == TYPE_WORD
                      ? specs[set].words[value->number]
                      : text;
    value->source = source;
    value->valid = 1;
    return 1;
}

const char *dbguard_config_where(const cmd_parms *cmd)
{
    return apr_psprintf(cmd->pool, "%s:%d", cmd->directive->filename,
                        cmd->directive->line_num);
}

const char *dbguard_config_word(apr_pool_t *p, const char **rest)
{
    char quote = **rest;

    if (quote == '"' || quote == '\'') {
        const char *end = *rest + 1;

        while (*end != '\0' && *end != quote)
            end += *end == '\\' && end[1] != '\0' ? 2 : 1;
        if (*end == '\0')
            return NULL;
    }
    return ap_getword_conf(p, rest);
}

/* All of the words of DBGuardDatabase. NULL, or what is wrong. */
static const char *read_database(apr_pool_t *p, const char *args,
                                 dbguard_dsn_t *dsn)
{
    const char *word = dbguard_config_word(p, &args);
    const char *error = word != NULL ? dbguard_dsn_parse(dsn, word)
                                     : "a quotation mark is left open";

    while (error == NULL && *args != '\0') {
        word = dbguard_config_word(p, &args);
        error = word != NULL ? dbguard_dsn_option(dsn, word)
                             : "a quotation mark is left open";
        if (error != NULL)
            error = apr_psprintf(p, "'%s' is none of %s", word ? word : args,
                                 error);
    }
    return error;
}

/* --- refusing one -------------------------------------------------------- */

const char *dbguard_config_wrong(apr_pool_t *p, const char *what,
                                 const char *value, const char *allowed)
{
    const char *hint = "";

    if (strstr(value, "${") != NULL)
        hint = " (a variable in it is not defined)";
    else if (strchr(value, '#') != NULL)
        hint = " (a comment needs a line of its own)";
    return apr_psprintf(p, "DBGUARD0011: %s: '%s' is not %s%s", what, value,
                        allowed, hint);
}

static const char *complain(cmd_parms *cmd, const char *what,
                            const char *value, const char *allowed)
{
    return dbguard_config_wrong(cmd->pool, what, value, allowed);
}

const char *dbguard_config_stop(cmd_parms *cmd, const char *error,
                                const char *keeps)
{
    if (!dbguard_shm_reloading())
        return error;
    /* No server: a virtual host that is being read has no log yet. */
    ap_log_error(APLOG_MARK, APLOG_CRIT, 0, NULL,
                 "DBGUARD0012: %s: %s; a reload cannot stop here, so %s "
                 "until this line is corrected and the server reloaded",
                 dbguard_config_where(cmd), error, keeps);
    return NULL;
}

/* Settings, a bit each. */
typedef unsigned dbguard_sets_t;

/* All settings of this directive: it cannot be told which one was meant. */
static dbguard_sets_t all_of(const char *directive)
{
    dbguard_sets_t all = 0;
    int set;

    for (set = 0; set < DBGUARD_SETS; set++)
        if (strcasecmp(specs[set].directive, directive) == 0)
            all |= 1U << set;
    return all;
}

/* What was refused goes back to its last good value. */
static void keep_last_good(cmd_parms *cmd, dbguard_server_t *server,
                           dbguard_sets_t bad)
{
    int set;

    for (set = 0; set < DBGUARD_SETS; set++) {
        const char *text = dbguard_shm_last_good(dbguard_set_name(set));

        const char *source = apr_psprintf(
            cmd->pool, "%s (%s was refused)",
            text != NULL ? "last good value" : "default",
            dbguard_config_where(cmd));

        if (!(bad & 1U << set))
            continue;
        if (text != NULL)
            set_value(&server->set[set], set, apr_pstrdup(cmd->pool, text),
                      source);
        if (text != NULL && set == DBGUARD_SET_DATABASE
            && strcmp(text, NONE) != 0)
            read_database(cmd->pool, text, &server->dsn);
        else
            server->set[set].source = source;
        server->set[set].valid = 0;
    }
}

/* --- DBGuardEngine, -Budget, -Queue, -RetryAfter, -Scoreboard ----------- */

/* The setting of a directive that key (NULL: none) names, or DBGUARD_SETS. */
static dbguard_set_t find_set(const char *directive, const char *key)
{
    int set;

    for (set = 0; set < DBGUARD_SETS; set++) {
        const char *k = specs[set].key;

        if (strcasecmp(specs[set].directive, directive) == 0
            && (k == NULL ? key == NULL
                          : key != NULL && strcasecmp(k, key) == 0))
            break;
    }
    return set;
}

static const char *only_argument(cmd_parms *cmd, dbguard_server_t *server,
                                 const char *args)
{
    dbguard_set_t set = find_set(cmd->cmd->name, NULL);
    const char *rest = args;
    const char *word = dbguard_config_word(cmd->pool, &rest);

    if (word == NULL || *rest != '\0')
        return complain(cmd, cmd->cmd->name, args, specs[set].allowed);
    if (!set_value(&server->set[set], set, word, dbguard_config_where(cmd)))
        return complain(cmd, cmd->cmd->name, word, specs[set].allowed);
    return NULL;
}

/* A word of several, or NULL: none can be read in what is left. *bad gets what
 * it was to set and does not. */
static const char *key_value(cmd_parms *cmd, dbguard_server_t *server,
                             const char *word, const char *args,
                             dbguard_sets_t *bad)
{
    const char *name = cmd->cmd->name;
    const char *equals = word != NULL ? strchr(word, '=') : NULL;
    dbguard_set_t set = DBGUARD_SETS;

    if (equals != NULL)
        set = find_set(name, apr_pstrmemdup(cmd->pool, word, equals - word));
    if (set == DBGUARD_SETS) {
        *bad |= all_of(name);
        return complain(cmd, name, word ? word : args, cmd->cmd->errmsg);
    }
    if (set_value(&server->set[set], set, equals + 1,
                  dbguard_config_where(cmd)))
        return NULL;
    *bad |= 1U << set;
    return complain(cmd, dbguard_set_name(set), equals + 1, specs[set].allowed);
}

/* All words; the first error of several. */
static const char *key_values(cmd_parms *cmd, dbguard_server_t *server,
                              const char *args, dbguard_sets_t *bad)
{
    const char *rest = args;
    const char *error = NULL;

    if (*rest == '\0')
        error = complain(cmd, cmd->cmd->name, "", cmd->cmd->errmsg);
    while (*rest != '\0') {
        const char *word = dbguard_config_word(cmd->pool, &rest);
        const char *wrong = key_value(cmd, server, word, args, bad);

        if (error == NULL)
            error = wrong;
        if (word == NULL)
            break;
    }
    return error;
}

/* min goes up to max. A default gives way to what was written. */
static const char *order_retry(cmd_parms *cmd, dbguard_server_t *server,
                               const char *args)
{
    dbguard_value_t *min = &server->set[DBGUARD_SET_RETRY_MIN];
    dbguard_value_t *max = &server->set[DBGUARD_SET_RETRY_MAX];

    if (min->number <= max->number)
        return NULL;
    if (strcmp(max->source, "default") == 0) {
        max->number = min->number;
        max->text = min->text;
    }
    else if (strcmp(min->source, "default") == 0) {
        min->number = max->number;
        min->text = max->text;
    }
    else
        return complain(cmd, cmd->cmd->name, args,
                        apr_psprintf(cmd->pool, "a min (%s) up to max (%s)",
                                     min->text, max->text));
    return NULL;
}

/* Somebody may have put the password where it does not belong. */
static const char *masked(apr_pool_t *p, const char *url)
{
    const char *at = strrchr(url, '@');
    const char *user = strstr(url, "://");
    const char *colon = user != NULL ? strchr(user + 3, ':') : NULL;

    if (colon == NULL || at == NULL || at < colon)
        return url;
    return apr_pstrcat(p, apr_pstrmemdup(p, url, colon + 1 - url), "***", at,
                       NULL);
}

static const char *database(cmd_parms *cmd, dbguard_server_t *server,
                            const char *args)
{
    dbguard_dsn_t dsn;
    const char *error = read_database(cmd->pool, args, &dsn);

    if (error == NULL
        && set_value(&server->set[DBGUARD_SET_DATABASE], DBGUARD_SET_DATABASE,
                     args, dbguard_config_where(cmd))) {
        server->dsn = dsn;
        return NULL;
    }
    return apr_psprintf(cmd->pool, "%s (%s)",
                        complain(cmd, cmd->cmd->name, masked(cmd->pool, args),
                                 specs[DBGUARD_SET_DATABASE].allowed),
                        error ? error : "a variable in it is not defined");
}

static const char *setting(cmd_parms *cmd, void *dir, const char *args)
{
    dbguard_server_t *server = ap_get_module_config(
        cmd->server->module_config, &dbguard_module);
    const char *error = ap_check_cmd_context(cmd, GLOBAL_ONLY);
    dbguard_sets_t bad = 0;

    (void)dir;
    if (error != NULL)
        return dbguard_config_stop(cmd, apr_pstrcat(cmd->pool, "DBGUARD0011: ",
                                                    error, NULL),
                                   "it is ignored");
    if (find_set(cmd->cmd->name, NULL) == DBGUARD_SET_DATABASE)
        error = database(cmd, server, args);
    else if (find_set(cmd->cmd->name, NULL) != DBGUARD_SETS)
        error = only_argument(cmd, server, args);
    else
        error = key_values(cmd, server, args, &bad);
    if (error == NULL)
        error = order_retry(cmd, server, args);
    if (error == NULL)
        return NULL;
    error = dbguard_config_stop(cmd, error,
                                "the last good value stays in force");
    if (error != NULL)
        return error;
    if (bad == 0)
        bad = all_of(cmd->cmd->name);
    keep_last_good(cmd, server, bad);
    /* What was good of it does not go with what stays. */
    if (order_retry(cmd, server, args) != NULL)
        keep_last_good(cmd, server, all_of(cmd->cmd->name));
    return NULL;
}

void dbguard_config_remember(server_rec *main_server)
{
    const dbguard_value_t *value = dbguard_server(main_server)->set;
    server_rec *s;
    int set;

    for (set = 0; set < DBGUARD_SETS; set++)
        if (value[set].valid)
            dbguard_shm_keep(main_server, dbguard_set_name(set),
                             value[set].text);
    dbguard_class_remember(main_server);
    for (s = main_server; s != NULL; s = s->next)
        dbguard_refusal_remember(s);
}

/* --- DBGuard ------------------------------------------------------------ */

static const char *set_guard(cmd_parms *cmd, void *config, const char *args)
{
    dbguard_dir_t *dir = config;
    const char *error = ap_check_cmd_context(cmd, NOT_IN_LIMIT);
    const char *rest = args;
    const char *word = dbguard_config_word(cmd->pool, &rest);

    if (word == NULL)
        word = args;
    if (error != NULL)
        error = apr_pstrcat(cmd->pool, "DBGUARD0011: ", error, NULL);
    else if (*rest == '\0' && strcasecmp(word, "Off") == 0)
        dir->guard = 0;
    else if (*rest == '\0' && strcasecmp(word, "On") == 0)
        dir->guard = 1;
    else if (*rest == '\0'
             && (dir->ref = dbguard_class_ref(cmd, word)) != NULL)
        dir->guard = 1;
    else
        error = complain(cmd, cmd->cmd->name, *rest ? args : word,
                         "one of On, Off, or a class that a DBGuardClass "
                         "defines");
    if (error != NULL) {
        error = dbguard_config_stop(
            cmd, error, "what it applies to is guarded, in no class");
        dir->guard = 1;
        guarded_in_doubt++;
    }
    guarded += dir->guard;
    return error;
}

/* --- the table, and merging --------------------------------------------- */

#define EVERYWHERE (RSRC_CONF | ACCESS_CONF)

const command_rec dbguard_commands[] = {
    AP_INIT_RAW_ARGS("DBGuardEngine", setting, NULL, EVERYWHERE,
                     "one of On, Off, DryRun"),
    AP_INIT_RAW_ARGS("DBGuard", set_guard, NULL, EVERYWHERE,
                     "On, Off or a class"),
    AP_INIT_RAW_ARGS("DBGuardClass", dbguard_class_set, NULL, EVERYWHERE,
                     "a name, then min=SHARE, max=SHARE, patience=DURATION, "
                     "hold=DURATION or weight=N"),
    AP_INIT_RAW_ARGS("DBGuardClient", setting, NULL, EVERYWHERE,
                     "session=COOKIE,..., ipv6-prefix=N, hold=SHARE or wait=N"),
    AP_INIT_RAW_ARGS("DBGuardBudget", setting, NULL, EVERYWHERE,
                     "a whole number of tokens, or auto"),
    AP_INIT_RAW_ARGS("DBGuardReserve", setting, NULL, EVERYWHERE,
                     "a number of connections, or a share of them"),
    AP_INIT_RAW_ARGS("DBGuardDatabase", setting, NULL, EVERYWHERE,
                     "mariadb://USER@HOST[:PORT] or mariadb://USER@/SOCKET"),
    AP_INIT_RAW_ARGS("DBGuardPasswordFile", setting, NULL, EVERYWHERE,
                     "a file name"),
    AP_INIT_RAW_ARGS("DBGuardOutage", setting, NULL, EVERYWHERE,
                     "one of refuse, admit"),
    AP_INIT_RAW_ARGS("DBGuardLint", setting, NULL, EVERYWHERE,
                     "one of warn, refuse, off"),
    AP_INIT_RAW_ARGS("DBGuardSnapshot", setting, NULL, EVERYWHERE,
                     "every=DURATION or file=FILE"),
    AP_INIT_RAW_ARGS("DBGuardQueue", setting, NULL, EVERYWHERE,
                     "length=N|auto or patience=DURATION|auto"),
    AP_INIT_RAW_ARGS("DBGuardRefusal", dbguard_refusal_set, NULL, EVERYWHERE,
                     "html=FILE, json=FILE or status=N"),
    AP_INIT_RAW_ARGS("DBGuardRetryAfter", setting, NULL, EVERYWHERE,
                     "min=DURATION or max=DURATION"),
    AP_INIT_RAW_ARGS("DBGuardScoreboard", setting, NULL, EVERYWHERE,
                     "a file name"),
    {0}
};

void *dbguard_server_create(apr_pool_t *p, server_rec *s)
{
    dbguard_server_t *server = apr_pcalloc(p, sizeof(*server));
    int set;

    (void)s;
    for (set = 0; set < DBGUARD_SETS; set++)
        set_value(&server->set[set], set, specs[set].initial, "default");
    return server;
}

void *dbguard_server_merge(apr_pool_t *p, void *b, void *a)
{
    const dbguard_server_t *base = b, *add = a;
    dbguard_server_t *merged = apr_pmemdup(p, base, sizeof(*base));

    if (add->status) {
        merged->status = add->status;
        merged->status_source = add->status_source;
    }
    if (add->html) {
        merged->html = add->html;
        merged->html_source = add->html_source;
    }
    if (add->json) {
        merged->json = add->json;
        merged->json_source = add->json_source;
    }
    merged->refusal_bad |= add->refusal_bad;
    return merged;
}

void *dbguard_dir_create(apr_pool_t *p, char *unused)
{
    dbguard_dir_t *dir = apr_palloc(p, sizeof(*dir));

    (void)unused;
    dir->guard = -1;
    dir->ref = NULL;
    return dir;
}

void *dbguard_dir_merge(apr_pool_t *p, void *b, void *a)
{
    const dbguard_dir_t *base = b, *add = a;
    dbguard_dir_t *dir = apr_palloc(p, sizeof(*dir));

    dir->guard = add->guard >= 0 ? add->guard : base->guard;
    dir->ref = add->guard >= 0 ? add->ref : base->ref;
    return dir;
}

static int forget(apr_pool_t *pconf, apr_pool_t *plog, apr_pool_t *ptemp)
{
    (void)pconf;
    (void)plog;
    (void)ptemp;
    guarded = guarded_in_doubt = 0;
    return OK;
}

void dbguard_config_register(void)
{
    ap_hook_pre_config(forget, NULL, NULL, APR_HOOK_MIDDLE);
    dbguard_class_register();
}
