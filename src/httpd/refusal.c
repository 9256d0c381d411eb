/* The refusal: an answer from memory that touches neither a handler, nor a
 * file, nor the database.
 *
 * Invariants
 *   - It is written here and the handler returns OK: httpd sees no error, so
 *     no ErrorDocument (which may well be a PHP page) runs.
 *   - No content filter of the place sees it, as with httpd's own error pages;
 *     "Header always" still applies.
 *   - It is never cached, and its length is exact, with HEAD as well.
 *   - It waits for nobody: who sends a body slowly finds the connection
 *     closed. */

#include <poll.h>

#include "apr_file_io.h"
#include "apr_lib.h"
#include "apr_portable.h"
#include "apr_strings.h"
#include "http_core.h"
#include "http_protocol.h"
#include "http_request.h"

#include "clock.h"
#include "glue.h"

#define SECOND 1000000

/* Where a body names the seconds of Retry-After: whole ones in a page, and
 * with milliseconds in JSON. */
#define PLACE "@RETRY_AFTER@"

#define BODY_MAX (1024 * 1024)

/* A request body up to this size that comes within this time is read, so that
 * the connection can go on. A browser sends it right after the headers. */
#define DISCARD_MAX (64 * 1024)
#define DISCARD_TIME (SECOND / 10)

/* A body, cut where the seconds go. */
struct dbguard_body_t {
    const char *name;
    const char *text;
    const apr_array_header_t *pieces; /* const char * */
    apr_size_t length;                /* of the pieces together */
};

static const dbguard_body_t *builtin[2]; /* HTML and JSON */

static const char builtin_html[] =
    "<!DOCTYPE html>\n"
    "<html lang=\"en\">\n"
    "<head>\n"
    "<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, "
    "initial-scale=1\">\n"
    "<meta name=\"robots\" content=\"noindex\">\n"
    "<title>Busy, one moment please</title>\n"
    "<style>\n"
    ":root{color-scheme:light dark;--bg:#f5f6f8;--card:#fff;--ink:#1c2430;"
    "--dim:#556070;--line:#d9dee5;--mark:#2f6fde}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#12161c;--card:#1b212a;"
    "--ink:#e8ecf2;--dim:#a4afbd;--line:#2d3642;--mark:#7aa7ff}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;min-height:100vh;display:grid;place-items:center;"
    "padding:1.25rem;background:var(--bg);color:var(--ink);"
    "font:1.0625rem/1.55 system-ui,sans-serif}\n"
    "main{width:100%;max-width:28rem;background:var(--card);"
    "border:1px solid var(--line);border-radius:.75rem;padding:2rem}\n"
    "svg{display:block;margin-bottom:1rem}\n"
    "h1{font-size:1.375rem;line-height:1.3;margin:0 0 .5rem}\n"
    "p{margin:.5rem 0 0;color:var(--dim)}\n"
    "strong{color:var(--ink)}\n"
    "</style>\n"
    "</head>\n"
    "<body>\n"
    "<main>\n"
    "<svg width=\"56\" height=\"56\" viewBox=\"0 0 56 56\" fill=\"none\" "
    "stroke=\"var(--mark)\" stroke-width=\"3\" stroke-linecap=\"round\" "
    "role=\"img\" aria-label=\"An hourglass\">"
    "<path d=\"M16 8h24M16 48h24M19 8v7c0 6 9 9 9 13s-9 7-9 13v7M37 8v7c0 6-9 "
    "9-9 13s9 7 9 13v7\"/><path d=\"M24 43h8\"/></svg>\n"
    "<h1>Busy, one moment please</h1>\n"
    "<p>More people are using this site right now than it can serve at once. "
    "Your request was <strong>not</strong> carried out; nothing was changed."
    "</p>\n"
    "<p>Please try again in <strong>" PLACE " seconds</strong>. A page that "
    "you were only looking at comes back by itself.</p>\n"
    "</main>\n"
    "</body>\n"
    "</html>\n";

static const char builtin_json[] =
    "{\"error\":\"busy\",\"message\":\"More requests than can be "
    "served at once. This one was not carried out.\",\"retry_after\":" PLACE
    "}\n";

const dbguard_body_t *dbguard_body_make(apr_pool_t *p, const char *name,
                                        const char *text)
{
    dbguard_body_t *body = apr_pcalloc(p, sizeof(*body));
    apr_array_header_t *pieces = apr_array_make(p, 3, sizeof(const char *));
    const char *place;

    body->name = name;
    body->text = text;
    body->pieces = pieces;
    while ((place = strstr(text, PLACE)) != NULL) {
        *(const char **)apr_array_push(pieces)
            = apr_pstrmemdup(p, text, place - text);
        body->length += place - text;
        text = place + strlen(PLACE);
    }
    *(const char **)apr_array_push(pieces) = text;
    body->length += strlen(text);
    return body;
}

const dbguard_body_t *dbguard_body_read(apr_pool_t *p, const char *name,
                                        const char **error)
{
    const char *file = ap_server_root_relative(p, name);
    apr_finfo_t info;
    apr_file_t *f = NULL;
    char *text, why[80];
    apr_status_t rv = APR_EBADPATH;

    /* Looked at before it is opened: a pipe would be waited for. */
    if (file != NULL)
        rv = apr_stat(&info, file, APR_FINFO_SIZE | APR_FINFO_TYPE, p);
    if (rv == APR_SUCCESS && info.filetype == APR_REG)
        rv = apr_file_open(&f, file, APR_FOPEN_READ, APR_OS_DEFAULT, p);
    if (rv != APR_SUCCESS || info.filetype != APR_REG) {
        *error = apr_psprintf(p, "a file that can be read: %s",
                              rv ? apr_strerror(rv, why, sizeof(why))
                                 : "it is not a regular file");
        return NULL;
    }
    if (info.size == 0 || info.size > BODY_MAX) {
        *error = "a file of 1 byte to 1 MiB: it is kept in memory";
        return NULL;
    }
    text = apr_pcalloc(p, (apr_size_t)info.size + 1);
    rv = apr_file_read_full(f, text, (apr_size_t)info.size, NULL);
    apr_file_close(f);
    if (rv != APR_SUCCESS) {
        *error = "a file that can be read to its end";
        return NULL;
    }
    return dbguard_body_make(p, name, text);
}

const char *dbguard_body_name(const dbguard_body_t *body)
{
    return body->name;
}

const char *dbguard_body_text(const dbguard_body_t *body)
{
    return body->text;
}

/* JSON for those who ask for it: scripts, as opposed to somebody who looks at
 * a page. Whoever names both gets what comes first. */
static int wants_json(const request_rec *r)
{
    const char *with = apr_table_get(r->headers_in, "X-Requested-With");
    const char *accept = apr_table_get(r->headers_in, "Accept");
    const char *json, *html;

    if (with != NULL && strcasecmp(with, "XMLHttpRequest") == 0)
        return 1;
    if (accept == NULL)
        return 0;
    json = ap_strcasestr(accept, "json");
    html = ap_strcasestr(accept, "text/html");
    return json != NULL && (html == NULL || json < html);
}

/* Somebody looks at a page, and to ask for it again does no harm. */
static int is_navigation(const request_rec *r)
{
    const char *mode = apr_table_get(r->headers_in, "Sec-Fetch-Mode");

    return r->method_number == M_GET
           && (mode == NULL || strcmp(mode, "navigate") == 0);
}

/* Is there something to read before that time? */
static int readable(const request_rec *r, int64_t until)
{
    int64_t left = (until - dbguard_clock_now()) / 1000;
    apr_socket_t *socket = ap_get_conn_socket(r->connection);
    struct pollfd fd = {-1, POLLIN, 0};

    return left > 0 && r->connection->master == NULL && socket != NULL
           && apr_os_sock_get(&fd.fd, socket) == APR_SUCCESS && fd.fd >= 0
           && poll(&fd, 1, (int)left) == 1;
}

/* Read the body away. 0 when its end has not come within DISCARD_TIME: then
 * the rest is still to come. */
static int discard_body(request_rec *r)
{
    int64_t until = dbguard_clock_now() + DISCARD_TIME;
    apr_bucket_brigade *bb
        = apr_brigade_create(r->pool, r->connection->bucket_alloc);
    int complete = 0, goes_on = 1;

    while (!complete && goes_on) {
        apr_status_t rv
            = ap_get_brigade(r->input_filters, bb, AP_MODE_READBYTES,
                             APR_NONBLOCK_READ, HUGE_STRING_LEN);

        complete = rv == APR_SUCCESS && !APR_BRIGADE_EMPTY(bb)
                   && APR_BUCKET_IS_EOS(APR_BRIGADE_LAST(bb));
        if (rv == APR_SUCCESS && !APR_BRIGADE_EMPTY(bb))
            goes_on = dbguard_clock_now() < until;
        else
            goes_on = (rv == APR_SUCCESS || APR_STATUS_IS_EAGAIN(rv))
                      && readable(r, until);
        apr_brigade_cleanup(bb);
    }
    return complete;
}

/* A body that nobody reads would be taken for the next request. Reading a long
 * or slow one would keep the worker that is to be freed, and so would lingering
 * for half a minute after the last byte of the answer. */
static void dispose_of_body(request_rec *r)
{
    const char *length = apr_table_get(r->headers_in, "Content-Length");
    int chunked = apr_table_get(r->headers_in, "Transfer-Encoding") != NULL;

    if (r->main != NULL || (length == NULL && !chunked))
        return;
    if (!chunked && !r->expecting_100 && apr_atoi64(length) <= DISCARD_MAX
        && !ap_status_drops_connection(r->status) && discard_body(r))
        return;
    r->connection->keepalive = AP_CONN_CLOSE;
    apr_table_setn(r->connection->notes, "short-lingering-close", "1");
}

static void write_body(request_rec *r, const dbguard_body_t *body,
                       const char *wait)
{
    const char **piece = (const char **)body->pieces->elts;
    int i;

    for (i = 0; i < body->pieces->nelts; i++) {
        if (i > 0)
            ap_rputs(wait, r);
        ap_rputs(piece[i], r);
    }
}

int dbguard_refusal_send(request_rec *r, const dbguard_promise_t *retry)
{
    const dbguard_server_t *server = dbguard_server(r->server);
    int json = wants_json(r);
    const dbguard_body_t *body = json ? server->json : server->html;
    const char *seconds
        = apr_psprintf(r->pool, "%" APR_INT64_T_FMT, retry->seconds);
    /* Never a little before its time. */
    int64_t ms = (retry->after + 999) / 1000;
    const char *wait
        = json ? apr_psprintf(r->pool, "%" APR_INT64_T_FMT ".%03d", ms / 1000,
                              (int)(ms % 1000))
               : seconds;

    if (body == NULL)
        body = builtin[json];
    r->status = server->status ? server->status : HTTP_SERVICE_UNAVAILABLE;
    r->status_line = NULL;
    dispose_of_body(r);

    apr_table_clear(r->headers_out);
    apr_table_setn(r->err_headers_out, "Retry-After", seconds);
    apr_table_setn(r->err_headers_out, "DBGuard-Retry-After",
                   apr_psprintf(r->pool, "%" APR_INT64_T_FMT, ms));
    apr_table_setn(r->err_headers_out, "Cache-Control", "no-store");
    if (!json && is_navigation(r))
        apr_table_setn(r->err_headers_out, "Refresh", seconds);
    r->no_local_copy = 1;
    r->content_encoding = NULL;

    r->output_filters = r->proto_output_filters;
    ap_run_insert_error_filter(r);
    ap_set_content_type(r, json ? "application/json"
                                : "text/html; charset=utf-8");
    ap_set_content_length(r, (apr_off_t)(body->length
                                         + (body->pieces->nelts - 1)
                                               * strlen(wait)));
    write_body(r, body, wait);
    return OK;
}

static int pre_config(apr_pool_t *pconf, apr_pool_t *plog, apr_pool_t *ptemp)
{
    (void)plog;
    (void)ptemp;
    builtin[0] = dbguard_body_make(pconf, "built-in", builtin_html);
    builtin[1] = dbguard_body_make(pconf, "built-in", builtin_json);
    return OK;
}

void dbguard_refusal_register(void)
{
    ap_hook_pre_config(pre_config, NULL, NULL, APR_HOOK_MIDDLE);
}
