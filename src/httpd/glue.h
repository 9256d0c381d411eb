#ifndef DBGUARD_GLUE_H
#define DBGUARD_GLUE_H

/* What the units of src/httpd share. Each unit registers its own hooks; the
 * front door, mod_dbguard.c, calls them in the order in which the server and a
 * request meet them.
 *
 * A process has one board, dbguard_board(); the core below takes it as an
 * argument everywhere, so that a second one stays a small change. */

#include "httpd.h"
#include "http_config.h"
#include "http_log.h"

#include "admission.h"
#include "dsn.h"

extern module AP_MODULE_DECLARE_DATA dbguard_module;

APLOG_USE_MODULE(dbguard);

/* What the class is called that everybody is in who is in no other. */
#define DBGUARD_CLASS_DEFAULT "default"

/* --- config.c: directives ------------------------------------------------ */

typedef enum dbguard_engine_t {
    DBGUARD_ENGINE_OFF,
    DBGUARD_ENGINE_ON,
    DBGUARD_ENGINE_DRYRUN
} dbguard_engine_t;

/* The settings of the whole server, in the order in which they are shown. */
typedef enum dbguard_set_t {
    DBGUARD_SET_ENGINE,
    DBGUARD_SET_BUDGET,
    DBGUARD_SET_RESERVE,
    DBGUARD_SET_DATABASE,
    DBGUARD_SET_PASSWORD_FILE,
    DBGUARD_SET_OUTAGE,
    DBGUARD_SET_LINT,
    DBGUARD_SET_QUEUE_LENGTH,
    DBGUARD_SET_QUEUE_PATIENCE,
    DBGUARD_SET_RETRY_MIN,
    DBGUARD_SET_RETRY_MAX,
    DBGUARD_SET_CLIENT_SESSION,
    DBGUARD_SET_CLIENT_PREFIX,
    DBGUARD_SET_CLIENT_HOLD,
    DBGUARD_SET_CLIENT_WAIT,
    DBGUARD_SET_SNAPSHOT_EVERY,
    DBGUARD_SET_SNAPSHOT_FILE,
    DBGUARD_SET_SCOREBOARD,
    DBGUARD_SETS
} dbguard_set_t;

/* DBGuardOutage and DBGuardLint, as numbers. */
enum { DBGUARD_OUTAGE_REFUSE, DBGUARD_OUTAGE_ADMIT };
enum { DBGUARD_LINT_WARN, DBGUARD_LINT_REFUSE, DBGUARD_LINT_OFF };

#define DBGUARD_AUTO (-1)

typedef struct dbguard_value_t {
    int64_t number;     /* DBGUARD_AUTO for the word auto; microseconds for
                           durations; the place of a word among those that are
                           allowed, such as a dbguard_engine_t */
    int percent;        /* number is one of percent */
    const char *text;   /* as it would be written */
    const char *source; /* "default" or file:line */
    int valid;          /* 0: another one was written and could not be read */
} dbguard_value_t;

typedef struct dbguard_body_t dbguard_body_t;

/* The parts of DBGuardRefusal. */
enum { DBGUARD_BAD_STATUS = 1, DBGUARD_BAD_HTML = 2, DBGUARD_BAD_JSON = 4 };

typedef struct dbguard_server_t {
    dbguard_value_t set[DBGUARD_SETS]; /* main server only */
    dbguard_dsn_t dsn;                 /* main server only */
    int status;                        /* 0: not set */
    const dbguard_body_t *html;        /* NULL: not set */
    const dbguard_body_t *json;
    const char *html_source, *json_source, *status_source;
    unsigned refusal_bad; /* DBGUARD_BAD_ bits: what a reload could not take */
} dbguard_server_t;

/* The class that a place with DBGuard NAME is in; all that say the same name
 * share one. */
typedef struct dbguard_classref_t {
    const char *name;
    uint32_t place; /* in limits.classes, once it is in force; 0 when it has
                       none: it counts as being in no class */
} dbguard_classref_t;

typedef struct dbguard_dir_t {
    int guard; /* 1 On or a class, 0 Off, -1 not set */
    const dbguard_classref_t *ref; /* NULL: no class */
} dbguard_dir_t;

extern const command_rec dbguard_commands[];
void *dbguard_server_create(apr_pool_t *p, server_rec *s);
void *dbguard_server_merge(apr_pool_t *p, void *base, void *add);
void *dbguard_dir_create(apr_pool_t *p, char *dir);
void *dbguard_dir_merge(apr_pool_t *p, void *base, void *add);
void dbguard_config_register(void);

const dbguard_server_t *dbguard_server(const server_rec *s);
/* Is a setting that is "none" by default something else? */
int dbguard_is_set(const dbguard_server_t *server, dbguard_set_t set);
/* This configuration is in force: its valid values are the last good ones. */
void dbguard_config_remember(server_rec *s);
/* The name of a setting, as "DBGuardQueue length". */
const char *dbguard_set_name(dbguard_set_t set);
/* How many places of the configuration said DBGuard On, and how many of those
 * are guarded because what they said was refused in a reload. */
int dbguard_config_guarded(int *refused);

/* --- config_class.c: classes --------------------------------------------- */

#define DBGUARD_CLASSES_MAX 16 /* that can be configured: so many again are in
                                  force while requests from before a reload run,
                                  and there are DBGUARD_CLASSES places */

/* One that is in effect. */
typedef struct dbguard_named_t {
    dbguard_class_t class;
    const char *text;   /* as it would be written */
    const char *source; /* file:line */
    int valid;
} dbguard_named_t;

/* All of them, in the order of the configuration. */
const dbguard_named_t *dbguard_class_list(int *number);
/* The line that was refused, when no class is left; or NULL. */
const char *dbguard_class_refused(void);
/* Fill in limits: each class in its place, beside those that are on the board
 * already. */
void dbguard_class_fill(const dbguard_shared_t *shared,
                        dbguard_limits_t *limits);
/* These limits are in force: whoever names a class shall find its place. */
void dbguard_class_resolve(server_rec *s, const dbguard_limits_t *limits);
/* Do the minimums fit what the database has told? 0 when not, and the log says
 * so. */
int dbguard_class_fits(server_rec *s, const dbguard_shared_t *shared);

/* --- shm.c: the segment -------------------------------------------------- */

/* The board of this process, or NULL while there is none. */
dbguard_board_t *dbguard_board(void);
/* Is this the configuration of a reload? Then an error would end the parent. */
int dbguard_shm_reloading(void);
/* Keep a value beyond the configuration it is of; find it again, or NULL. */
void dbguard_shm_keep(server_rec *s, const char *name, const char *value);
const char *dbguard_shm_last_good(const char *name);
/* Is there a segment of this build from before this reload? It becomes the
 * board. */
int dbguard_shm_continue(void);
/* Make the segment at `file`, or take the one that is there from before a
 * graceful restart. nslots matters for a new one only. Logs what went wrong. */
apr_status_t dbguard_shm_open(server_rec *s, const char *file,
                              uint32_t nslots);
/* What keeps a segment from being made at `file`, as far as its directory
 * shows; NULL when nothing does. */
const char *dbguard_shm_obstacle(apr_pool_t *p, const char *file);
/* Where the number of the monitor's process is kept over a reload. */
int *dbguard_shm_monitor(void);
/* The file of the segment in use, or NULL. */
const char *dbguard_shm_file(void);
void dbguard_shm_register(void);

/* --- keeper.c: dbguard-monitor is kept running --------------------------- */

/* See the one of the configuration before off, if there was one. */
void dbguard_keeper_adopt(server_rec *s);
/* Start it for this configuration; it ends with it. */
void dbguard_keeper_start(server_rec *s, const char *scoreboard);
/* The budget that was good before the last stop, or 0. */
uint32_t dbguard_keeper_last_budget(apr_pool_t *p, const char *scoreboard);
/* Ask the database once, at most two seconds long: the lines that
 * dbguard-monitor --probe writes, or NULL, and *why says why. */
const char *dbguard_keeper_probe(apr_pool_t *p, server_rec *s,
                                 const char **why);

/* --- startup.c: the configuration comes into force ----------------------- */

void dbguard_startup_register(void);
/* What the configuration says of the budget. */
void dbguard_startup_rules(const dbguard_server_t *server,
                           dbguard_rules_t *rules);
/* Fill in limits and settings as they would come into force, given
 * shown->database. Nothing else of *shown is touched. */
void dbguard_startup_preview(apr_pool_t *p, server_rec *s,
                             dbguard_shared_t *shown);
/* On or DryRun in this process? */
int dbguard_engine_runs(void);

/* --- lint.c: do the limits fit together? --------------------------------- */

void dbguard_lint_register(void);
/* What was found out of the configuration that is in force. */
const dbguard_facts_t *dbguard_lint_facts(void);

/* --- request.c: the path of a request ------------------------------------ */

/* What became of a request, kept at its root. */
typedef struct dbguard_record_t {
    dbguard_ticket_t ticket;
    int holds;           /* a token is out for it now */
    int refused;         /* it was answered by the refusal */
    const char *verdict; /* as in the log */
    const char *class;
    int64_t lease;       /* its token comes back after so long; 0: with it */
    char *endpoint;
    int64_t waited;      /* microseconds */
    int64_t held;        /* microseconds, of all tokens that came back; -1
                            when none has yet */
} dbguard_record_t;

void dbguard_request_register(void);
/* The record of the request that r belongs to, or NULL: not guarded. */
const dbguard_record_t *dbguard_request_record(const request_rec *r);
/* A figure of a record, as text. */
const char *dbguard_request_number(apr_pool_t *p, int64_t n);

/* --- refusal.c: the answer that runs nothing ----------------------------- */

/* The file that a body was read from, as it was written, and what it said. */
const char *dbguard_body_name(const dbguard_body_t *body);
const char *dbguard_body_text(const dbguard_body_t *body);
const dbguard_body_t *dbguard_body_make(apr_pool_t *p, const char *name,
                                        const char *text);
/* Read a body from a file. NULL and a sentence in *error when that fails. */
const dbguard_body_t *dbguard_body_read(apr_pool_t *p, const char *file,
                                        const char **error);
void dbguard_refusal_register(void);
/* Answer r with the refusal: nothing but this writes to the client. The value
 * a handler returns. */
int dbguard_refusal_send(request_rec *r, const dbguard_promise_t *retry);

/* --- client.c: whose request it is ---------------------------------------- */

/* Can these names of cookies be read? */
int dbguard_client_cookies(const char *names);
/* From now on, in this process and its children, these settings count. */
void dbguard_client_configure(apr_pool_t *p, const dbguard_server_t *server);
/* Address, session, and what an operator is shown. */
void dbguard_client_identify(const request_rec *root,
                             const dbguard_board_t *board,
                             dbguard_visitor_t *visitor);

/* --- the rest ------------------------------------------------------------ */

void dbguard_logitems_register(void); /* logitems.c: %^DV and its like */
void dbguard_status_register(void);   /* status.c: server-status */
void dbguard_reaper_register(void);   /* reaper.c: what the dead left behind */
/* Look for holders and waiters whose process is gone, unless somebody did so
 * within the last second. */
void dbguard_reaper_sweep(void);

#endif
