/* The path of a request: admission before its handler runs, waiting if need
 * be, and giving the token back.
 *
 * Invariants
 *   - A request that is not guarded passes one comparison.
 *   - One token for a root request, whatever it includes, redirects to or
 *     fails into: the record lies at the root.
 *   - A token comes back at the first of: EOS passes and nothing is still to be
 *     produced (PHP's shutdown, which closes the database handles, is over by
 *     then), the request is logged, its pool dies, the parent reaps the
 *     process. Leaving twice is harmless.
 *   - A refusal precedes any handler.
 *   - A waiter looks every TICK whether its client is still there. */

#include <errno.h>
#include <poll.h>

#include "apr_portable.h"
#include "apr_strings.h"
#include "http_core.h"
#include "http_protocol.h"
#include "http_request.h"

#include "clock.h"
#include "endpoint.h"
#include "glue.h"

#define SECOND 1000000
#define TICK (SECOND / 4)

/* The log speaks of refusals as a whole this often, at level warn. */
#define WARN_EVERY (10 * SECOND)

static ap_filter_rec_t *hold_end;
static int32_t process;

static request_rec *root_of(request_rec *r)
{
    while (r->main != NULL || r->prev != NULL)
        r = r->main != NULL ? r->main : r->prev;
    return r;
}

static dbguard_record_t *record_of(const request_rec *root)
{
    return ap_get_module_config(root->request_config, &dbguard_module);
}

const dbguard_record_t *dbguard_request_record(const request_rec *r)
{
    return record_of(root_of((request_rec *)r));
}

/* --- giving the token back ---------------------------------------------- */

static void give_back(dbguard_record_t *record)
{
    dbguard_board_t *board = dbguard_board();
    int64_t held;

    apr_status_t rv;

    if (!record->holds || board == NULL)
        return;
    rv = dbguard_admission_leave(board, record->ticket, dbguard_clock_now(),
                                 &held);
    /* Whoever has the lock was stopped: there will be another occasion. */
    record->holds = rv == ETIMEDOUT;
    /* It came back before, when its lease ended. */
    if (rv == APR_NOTFOUND && record->lease > 0) {
        rv = APR_SUCCESS;
        held = record->lease;
    }
    if (rv == APR_SUCCESS && held >= 0)
        record->held = (record->held < 0 ? 0 : record->held) + held;
}

/* The last occasion. */
static apr_status_t pool_dies(void *data)
{
    dbguard_record_t *record = data;
    int tries = 0;

    while (record->holds && tries++ < 3)
        give_back(record);
    if (record->holds)
        ap_log_error(APLOG_MARK, APLOG_CRIT, 0, NULL,
                     "DBGUARD0029: a token could not be given back: the lock "
                     "of the scoreboard cannot be had, a process that has it "
                     "must have been stopped. It comes back when process %d "
                     "has ended", (int)process);
    return APR_SUCCESS;
}

/* Some handlers (mod_cgi) pass a pipe and EOS at once, before what comes out
 * of the pipe exists. */
static int is_complete(const apr_bucket_brigade *bb)
{
    apr_bucket *b;

    for (b = APR_BRIGADE_FIRST(bb); b != APR_BRIGADE_SENTINEL(bb);
         b = APR_BUCKET_NEXT(b))
        if (b->length == (apr_size_t)-1)
            return 0;
    return 1;
}

static apr_status_t hold_end_filter(ap_filter_t *f, apr_bucket_brigade *bb)
{
    dbguard_record_t *record = f->ctx;
    ap_filter_t *next = f->next;
    apr_status_t rv;

    if (APR_BRIGADE_EMPTY(bb) || !APR_BUCKET_IS_EOS(APR_BRIGADE_LAST(bb)))
        return ap_pass_brigade(next, bb);
    ap_remove_output_filter(f);
    /* Before what may take long: a client that reads slowly. */
    if (is_complete(bb))
        give_back(record);
    rv = ap_pass_brigade(next, bb);
    give_back(record);
    return rv;
}

/* --- what is guarded ---------------------------------------------------- */

/* r->handler is a media type that httpd derived from the file, not a handler
 * that somebody set. */
static int is_media_type(const request_rec *r)
{
    const char *type = r->content_type;
    apr_size_t len = type ? strcspn(type, "; \t") : 0;

    return len > 0 && strncmp(r->handler, type, len) == 0
           && r->handler[len] == '\0';
}

/* Static files, directory listings and httpd's own pages use no database, and
 * are what must go on when it is in trouble. Everything else in a guarded
 * place may use it. */
static int may_use_database(const request_rec *r)
{
    static const char *const own[] = {
        "default-handler", "server-status", "server-info", "balancer-manager",
        "ldap-status", "http2-status", "md-status",
        /* Files again: mod_asis, mod_imagemap (by handler and by media type)
         * and mod_negotiation, whose choice comes here again. */
        "send-as-is", "imap-file", "application/x-httpd-imap", "type-map",
        /* mod_rewrite's way to an internal redirect: what it leads to comes
         * here again, with a handler of its own. */
        "redirect-handler", NULL
    };
    int i;

    /* A file that no media type is known of has an empty handler. */
    if (r->handler == NULL || *r->handler == '\0')
        return 0;
    for (i = 0; own[i] != NULL; i++)
        if (strcmp(r->handler, own[i]) == 0)
            return 0;
    /* PHP says 404 by itself to a script that is not there. */
    if (strncmp(r->handler, "application/x-httpd-", 20) == 0)
        return r->finfo.filetype != APR_NOFILE;
    return !is_media_type(r);
}

/* --- words for the log -------------------------------------------------- */

static const char *verdict_of(apr_pool_t *p, const dbguard_decision_t *d,
                              int queued)
{
    const char *reason = dbguard_reason_name(d->reason);

    if (d->outcome == DBGUARD_REFUSED)
        return apr_pstrcat(p, "refused(", reason, ")", NULL);
    if (d->would == DBGUARD_REFUSED)
        return apr_pstrcat(p, "dryrun(", reason, ")", NULL);
    if (d->would == DBGUARD_WAIT)
        return "dryrun(waited)";
    return queued ? "waited" : "admitted";
}

const char *dbguard_request_number(apr_pool_t *p, int64_t n)
{
    return n == 0 ? "0" : apr_psprintf(p, "%" APR_INT64_T_FMT, n);
}

/* For the handler and for %{...}e, where they are not there yet. */
static void set_environment(request_rec *r, const dbguard_record_t *record)
{
    apr_table_t *env = r->subprocess_env;

    if (apr_table_get(env, "DBGUARD_VERDICT") != NULL)
        return;
    apr_table_addn(env, "DBGUARD_VERDICT", record->verdict);
    apr_table_addn(env, "DBGUARD_WAIT",
                   dbguard_request_number(r->pool, record->waited));
    apr_table_addn(env, "DBGUARD_CLASS", record->class);
    apr_table_addn(env, "DBGUARD_ENDPOINT", record->endpoint);
}

/* At most one line every WARN_EVERY from all processes together. */
static int may_warn(_Atomic int64_t *last)
{
    int64_t now = dbguard_clock_now();
    int64_t warned = *last;

    return (warned == 0 || now - warned >= WARN_EVERY)
           && atomic_compare_exchange_strong(last, &warned, now);
}

static void warn_of_board(request_rec *r, const dbguard_shared_t *shared)
{
    int full = shared->free_head == DBGUARD_NONE;
    uint32_t used = full ? shared->nslots
                         : shared->prefix.held + shared->prefix.waiting
                               + shared->settling;
    const char *why = shared->prefix.closed
                          ? "another one has replaced it in a reload; requests "
                            "of processes from before are refused"
                      : full
                          ? "it has no slot left"
                          : "it cannot be locked";

    ap_log_rerror(APLOG_MARK, APLOG_WARNING, 0, r,
                  "DBGUARD0022: refused because of the scoreboard, whatever "
                  "tokens are free: %s (%u of %u slots in use)", why, used,
                  shared->nslots);
}

static void warn_of_budget(request_rec *r, const dbguard_board_t *board)
{
    dbguard_shared_t *shared = board->shared;
    uint64_t total = shared->counters.refused;

    ap_log_rerror(APLOG_MARK, APLOG_WARNING, 0, r,
                  "DBGUARD0021: the budget of %u is used up: %u requests hold "
                  "a token, %u wait, %" APR_UINT64_T_FMT " have been refused "
                  "since the last line like this; see server-status or "
                  "dbguardctl status for what holds them",
                  shared->limits.budget,
                  shared->prefix.held
                      + (shared->elder && board->elder ? board->elder->held
                                                       : 0),
                  shared->prefix.waiting,
                  total - atomic_exchange(&shared->warned_total, total));
}

static void log_refusal(request_rec *r, const dbguard_record_t *record,
                        dbguard_reason_t reason, const dbguard_board_t *board)
{
    ap_log_rerror(APLOG_MARK, APLOG_INFO, 0, r,
                  "DBGUARD0020: %s after %" APR_INT64_T_FMT " us: %s",
                  record->verdict, record->waited, record->endpoint);
    /* That there is no board has been said. */
    if (board == NULL)
        return;
    switch (reason) {
    case DBGUARD_REASON_BOARD:
        if (may_warn(&board->shared->warned_board))
            warn_of_board(r, board->shared);
        break;
    case DBGUARD_REASON_BUDGET:
    case DBGUARD_REASON_PATIENCE:
    case DBGUARD_REASON_TIMEOUT:
    case DBGUARD_REASON_DISPLACED:
        if (may_warn(&board->shared->warned))
            warn_of_budget(r, board);
        break;
    default:
        /* An outage is the monitor's to tell; a client or a class that has its
         * share is as it was meant; who hung up is not refused. */
        break;
    }
}

/* --- waiting ------------------------------------------------------------ */

/* Has the client closed its side? A half-closed connection counts: hardly
 * anybody who has asked a question over HTTP stops listening on purpose, and
 * everybody who gave up looks like this. */
static int client_gone(const request_rec *r)
{
    conn_rec *c = r->connection;
    struct pollfd fd = {-1, POLLRDHUP, 0};
    apr_socket_t *socket;

    if (c->aborted)
        return 1;
    socket = ap_get_conn_socket(c->master ? c->master : c);
    if (socket == NULL || apr_os_sock_get(&fd.fd, socket) != APR_SUCCESS)
        return 0;
    /* A threaded MPM that stops at once has closed it under this request. */
    if (fd.fd < 0)
        return 1;
    return poll(&fd, 1, 0) == 1
           && (fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

static struct timespec instant(int64_t t)
{
    struct timespec at = {t / SECOND, t % SECOND * 1000};

    return at;
}

static void sleep_until(sem_t *wake, int64_t until)
{
    struct timespec at = instant(until);

    /* Woken, timed out or interrupted: the caller looks at the board. */
    sem_clockwait(wake, CLOCK_MONOTONIC, &at);
}

/* The last user's connection is only just closed: some milliseconds. */
static void let_settle(int64_t start)
{
    struct timespec at = instant(start);

    while (dbguard_clock_now() < start
           && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL)
                  == EINTR)
        ;
}

/* The caller gives back what the ticket stands for. */
static void give_up(const dbguard_board_t *board, dbguard_decision_t *d,
                    dbguard_reason_t reason)
{
    d->outcome = d->would = DBGUARD_REFUSED;
    d->reason = reason;
    d->retry.after = board->shared->limits.retry_min;
    d->retry.seconds = d->retry.after / SECOND;
}

static void wait_for_token(request_rec *r, dbguard_board_t *board,
                           dbguard_decision_t *d)
{
    sem_t *wake = dbguard_admission_wake(board, d->ticket);
    int64_t now = dbguard_clock_now();
    /* Only a lock that cannot be had keeps a waiter beyond its deadline. */
    int64_t last = d->deadline + 2 * SECOND;

    while (d->outcome == DBGUARD_WAIT) {
        int64_t tick = now + TICK;

        sleep_until(wake, tick < d->deadline ? tick : d->deadline);
        now = dbguard_clock_now();
        if (client_gone(r)) {
            give_up(board, d, DBGUARD_REASON_ABORTED);
            break;
        }
        dbguard_admission_poll(board, d->ticket, now, d);
        if (d->outcome == DBGUARD_WAIT && now > last)
            give_up(board, d, DBGUARD_REASON_BOARD);
        if (d->outcome == DBGUARD_WAIT && now >= tick)
            dbguard_reaper_sweep();
    }
}

/* --- the hooks ---------------------------------------------------------- */

static dbguard_record_t *record_for(request_rec *root)
{
    dbguard_record_t *record = record_of(root);
    char endpoint[DBGUARD_ENDPOINT_MAX];

    if (record == NULL) {
        record = apr_pcalloc(root->pool, sizeof(*record));
        record->held = -1;
        record->class = DBGUARD_CLASS_DEFAULT;
        /* The path that was asked for: not what rewriting made of it. */
        dbguard_endpoint_fold(root->method, root->parsed_uri.path, endpoint,
                              sizeof(endpoint));
        record->endpoint = apr_pstrdup(root->pool, endpoint);
        ap_set_module_config(root->request_config, &dbguard_module, record);
        apr_pool_cleanup_register(root->pool, record, pool_dies,
                                  apr_pool_cleanup_null);
    }
    return record;
}

/* A decision, and what it means for the record. Returns when the request may
 * go on, or is refused. */
static void ask(request_rec *r, const request_rec *root,
                const dbguard_classref_t *ref, dbguard_record_t *record,
                dbguard_decision_t *d)
{
    dbguard_board_t *board = dbguard_board();
    dbguard_visitor_t visitor = {0};
    int64_t begin;
    int queued;

    if (board == NULL) {
        memset(d, 0, sizeof(*d));
        d->outcome = d->would = DBGUARD_REFUSED;
        d->reason = DBGUARD_REASON_BOARD;
        d->retry.after
            = dbguard_server(r->server)->set[DBGUARD_SET_RETRY_MIN].number;
        d->retry.seconds = d->retry.after / SECOND;
        record->verdict = verdict_of(root->pool, d, 0);
        return;
    }
    begin = dbguard_clock_now();
    visitor.pid = process;
    visitor.class = ref != NULL ? ref->place : 0;
    record->class = visitor.class > 0 ? ref->name : DBGUARD_CLASS_DEFAULT;
    dbguard_client_identify(root, board, &visitor);
    apr_cpystrn(visitor.endpoint, record->endpoint, sizeof(visitor.endpoint));
    dbguard_admission_enter(board, &visitor, begin, d);
    record->ticket = d->ticket;
    record->holds = d->ticket.serial != 0;
    queued = d->outcome == DBGUARD_WAIT;
    if (queued)
        wait_for_token(r, board, d);
    if (d->outcome == DBGUARD_ADMITTED && d->start > begin)
        let_settle(d->start);
    /* Until it could go on, or was refused. */
    if (d->outcome == DBGUARD_ADMITTED && d->start > begin)
        record->waited += d->start - begin;
    else if (queued)
        record->waited += dbguard_clock_now() - begin;
    if (d->outcome != DBGUARD_ADMITTED)
        give_back(record);
    else
        record->lease = board->shared->limits.classes[visitor.class].lease;
    record->verdict = verdict_of(root->pool, d, queued);
}

static int guard(request_rec *r, const dbguard_classref_t *ref)
{
    request_rec *root;
    dbguard_record_t *record;
    dbguard_decision_t d;

    if (!dbguard_engine_runs() || !may_use_database(r))
        return DECLINED;

    root = root_of(r);
    record = record_for(root);
    if (record->refused)
        return HTTP_SERVICE_UNAVAILABLE;
    if (!record->holds) {
        ask(r, root, ref, record, &d);
        set_environment(r, record);
        if (d.outcome == DBGUARD_REFUSED) {
            log_refusal(r, record, d.reason, dbguard_board());
            record->refused = 1;
            /* Inside a page that is half written there is no room for
             * another page. */
            return r->main != NULL ? HTTP_SERVICE_UNAVAILABLE
                                   : dbguard_refusal_send(r, &d.retry);
        }
        if (d.would != DBGUARD_ADMITTED)
            ap_log_rerror(APLOG_MARK, APLOG_INFO, 0, r,
                          "DBGUARD0023: %s: %s", record->verdict,
                          record->endpoint);
    }
    else {
        set_environment(r, record);
        if (r->main != NULL)
            return DECLINED; /* the one that it is part of ends the hold */
    }
    ap_add_output_filter_handle(hold_end, record, r, r->connection);
    return DECLINED;
}

/* First of all handlers: authentication, mod_dir and rewriting are done,
 * r->handler is final, and nothing has run. */
static int handler(request_rec *r)
{
    const dbguard_dir_t *dir
        = ap_get_module_config(r->per_dir_config, &dbguard_module);

    return dir->guard == 1 ? guard(r, dir->ref) : DECLINED;
}

/* Before mod_log_config writes its line: a request that was cut off has no
 * EOS. */
static int log_transaction(request_rec *r)
{
    dbguard_record_t *record = record_of(root_of(r));

    if (record != NULL) {
        give_back(record);
        while (r->next != NULL)
            r = r->next;
        set_environment(r, record);
        if (record->held >= 0)
            apr_table_addn(r->subprocess_env, "DBGUARD_HOLD",
                           dbguard_request_number(r->pool, record->held));
    }
    return DECLINED;
}

static void child_init(apr_pool_t *p, server_rec *s)
{
    (void)p;
    (void)s;
    process = (int32_t)getpid();
}

void dbguard_request_register(void)
{
    ap_hook_child_init(child_init, NULL, NULL, APR_HOOK_FIRST);
    ap_hook_handler(handler, NULL, NULL, APR_HOOK_REALLY_FIRST);
    hold_end = ap_register_output_filter("DBGUARD_HOLD_END", hold_end_filter,
                                         NULL, AP_FTYPE_RESOURCE);
    ap_hook_log_transaction(log_transaction, NULL, NULL, APR_HOOK_FIRST);
}
