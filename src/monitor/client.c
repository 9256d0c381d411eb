/* The monitor's one connection: see client.h. libmariadb's non-blocking calls
 * come in pairs: _start, then _cont until nothing is left to wait for. */

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mysql.h>

#include "answer.h"
#include "client.h"
#include "clock.h"

/* By this the connections of monitors and probes know one another: nobody else
 * who uses the same account is one of the guard. Every account may use it. */
#define DATABASE "information_schema"

/* One question for all that is to be known: what is in the last four columns
 * depends on the first. The process list shows other accounts' connections to
 * an account with the PROCESS privilege only. */
#define QUESTION                                                              \
    "SELECT 'max_connections' k, '' n, @@global.max_connections a, 0 b, 0 c," \
    " 0 d"                                                                    \
    " UNION ALL SELECT 'max_user_connections', '',"                           \
    " @@global.max_user_connections, 0, 0, 0"                                 \
    " UNION ALL SELECT 'account_limit', '', @@session.max_user_connections,"  \
    " 0, 0, 0"                                                                \
    " UNION ALL SELECT LOWER(VARIABLE_NAME), '', VARIABLE_VALUE, 0, 0, 0"     \
    " FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME IN ("         \
    "'THREADS_CONNECTED', 'THREADS_RUNNING', 'MAX_USED_CONNECTIONS',"         \
    " 'UPTIME', 'CONNECTIONS', 'THREADS_CREATED', 'ABORTED_CONNECTS',"        \
    " 'ABORTED_CLIENTS', 'CONNECTION_ERRORS_MAX_CONNECTIONS')"                \
    " UNION ALL SELECT 'user', USER, COUNT(*), SUM(COMMAND = 'Sleep'),"       \
    " MAX(IF(COMMAND = 'Sleep', TIME, 0)),"                                   \
    " MAX(IF(COMMAND = 'Sleep', 0, TIME))"                                    \
    " FROM information_schema.PROCESSLIST GROUP BY USER"                      \
    " UNION ALL SELECT 'own', '', COUNT(*) + 1, 0, 0, 0"                      \
    " FROM information_schema.PROCESSLIST"                                    \
    " WHERE USER = SUBSTRING_INDEX(USER(), '@', 1) AND COMMAND <> 'Connect'"  \
    " AND COALESCE(DB, '') <> '" DATABASE "'"

static const char question[] = QUESTION;

/* What may be known to the account about itself: rows of a role are not there.
 * A name in USER_PRIVILEGES is quoted, but a quotation mark in it is not. */
static const char question_with_details[]
    = QUESTION
      " UNION ALL SELECT 'extra_port', '', @@global.extra_port, 0, 0, 0"
      " UNION ALL SELECT 'extra_max_connections', '',"
      " @@global.extra_max_connections, 0, 0, 0"
      " UNION ALL SELECT 'since_flush', '', VARIABLE_VALUE, 0, 0, 0"
      " FROM information_schema.GLOBAL_STATUS"
      " WHERE VARIABLE_NAME = 'UPTIME_SINCE_FLUSH_STATUS'"
      " UNION ALL SELECT 'version', @@global.version, 0, 0, 0, 0"
      " UNION ALL SELECT 'grant', PRIVILEGE_TYPE, 0, 0, 0, 0"
      " FROM information_schema.USER_PRIVILEGES WHERE REPLACE(GRANTEE, '''',"
      " '') = REPLACE(CURRENT_USER(), '''', '')";

/* For the last answer before the end, microseconds. */
#define GOODBYE 900000

typedef enum step_t {
    STEP_NONE, /* no connection */
    STEP_CONNECT,
    STEP_READY,
    STEP_QUERY,
    STEP_STORE
} step_t;

struct client_t {
    dbguard_dsn_t dsn;
    const char *question;
    MYSQL mysql;
    step_t step;
    int wait;      /* what the pending call waits for: MYSQL_WAIT_ bits */
    int64_t alive; /* last sign of life, or when the connection was begun */
    MYSQL *connected;
    MYSQL_RES *result;
    int failed;
    int bare; /* connected without the TLS that is wanted */
    int ordinary; /* the extra port was full: this is another connection */
};

client_t *client_create(const dbguard_dsn_t *dsn, int details)
{
    client_t *client = calloc(1, sizeof(*client));

    if (client == NULL)
        return NULL;
    client->dsn = *dsn;
    client->question = details ? question_with_details : question;
    return client;
}

static void drop(client_t *client)
{
    if (client->result != NULL)
        mysql_free_result(client->result);
    client->result = NULL;
    if (client->step != STEP_NONE)
        mysql_close(&client->mysql);
    client->step = STEP_NONE;
    client->wait = 0;
    client->ordinary = 0;
}

/* Wait for what the pending call waits for. The bits that came, or 0 when the
 * deadline did. */
static int wait_for(client_t *client, int64_t deadline)
{
    struct pollfd fd = {mysql_get_socket(&client->mysql), 0, 0};
    int64_t left = deadline - dbguard_clock_now();
    int came = 0;

    if (client->wait & MYSQL_WAIT_READ)
        fd.events |= POLLIN;
    if (client->wait & MYSQL_WAIT_WRITE)
        fd.events |= POLLOUT;
    if (client->wait & MYSQL_WAIT_EXCEPT)
        fd.events |= POLLPRI;
    if (left < 0 || poll(&fd, 1, (int)((left + 999) / 1000)) <= 0)
        return 0;
    if (fd.revents & (POLLIN | POLLHUP | POLLERR))
        came |= client->wait & MYSQL_WAIT_READ;
    if (fd.revents & (POLLOUT | POLLHUP | POLLERR))
        came |= client->wait & MYSQL_WAIT_WRITE;
    if (fd.revents & POLLPRI)
        came |= MYSQL_WAIT_EXCEPT;
    return came;
}

/* By the extra port, whose connections the server does not count with the
 * others? */
static int apart(const client_t *client)
{
    return client->dsn.extra_port != 0 && !client->ordinary;
}

static void begin_connect(client_t *client)
{
    const dbguard_dsn_t *d = &client->dsn;
    MYSQL *mysql = &client->mysql;
    unsigned int tcp = MYSQL_PROTOCOL_TCP;
    my_bool tls = d->tls != 0, unverified = 0;
    unsigned int port = apart(client) ? d->extra_port : d->port;

    mysql_init(mysql);
    mysql_options(mysql, MYSQL_OPT_NONBLOCK, 0);
    mysql_options4(mysql, MYSQL_OPT_CONNECT_ATTR_ADD, "program_name",
                   "dbguard-monitor");
    /* Both said outright: their defaults differ from version to version of the
     * library. */
    mysql_options(mysql, MYSQL_OPT_SSL_ENFORCE, &tls);
    if (!tls)
        mysql_options(mysql, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, &unverified);
    /* The library takes "localhost" for the socket, whatever the port. */
    if (d->host[0] != '\0' && port != 0)
        mysql_options(mysql, MYSQL_OPT_PROTOCOL, &tcp);
    client->alive = dbguard_clock_now();
    client->step = STEP_CONNECT;
    client->wait = mysql_real_connect_start(
        &client->connected, mysql, d->host[0] ? d->host : NULL, d->user,
        d->password, DATABASE, port, d->socket[0] ? d->socket : NULL, 0);
}

/* Let the pending call go on. */
static void go_on(client_t *client, int came)
{
    MYSQL *mysql = &client->mysql;

    client->alive = dbguard_clock_now();
    if (client->step == STEP_CONNECT)
        client->wait = mysql_real_connect_cont(&client->connected, mysql, came);
    else if (client->step == STEP_QUERY)
        client->wait = mysql_real_query_cont(&client->failed, mysql, came);
    else
        client->wait = mysql_store_result_cont(&client->result, mysql, came);
}

/* The pending call is done: begin the next. 1 when there is none. */
static int next_step(client_t *client)
{
    MYSQL *mysql = &client->mysql;

    switch (client->step) {
    case STEP_NONE:
        begin_connect(client);
        return 0;
    case STEP_CONNECT:
        client->failed = client->connected == NULL;
        if (client->failed)
            return 1;
        /* The library does not insist when the server has no TLS at all. */
        client->bare = client->dsn.tls && mysql_get_ssl_cipher(mysql) == NULL;
        client->failed = client->bare;
        if (client->bare)
            return 1;
        client->step = STEP_READY;
        return 0;
    case STEP_READY:
        client->alive = dbguard_clock_now();
        client->step = STEP_QUERY;
        client->wait = mysql_real_query_start(&client->failed, mysql,
                                              client->question,
                                              strlen(client->question));
        return 0;
    case STEP_QUERY:
        if (client->failed)
            return 1;
        client->step = STEP_STORE;
        client->wait = mysql_store_result_start(&client->result, mysql);
        return 0;
    case STEP_STORE:
        client->failed = client->result == NULL;
        return 1;
    }
    return 1;
}

static uint64_t number(const char *text)
{
    return text != NULL ? strtoull(text, NULL, 10) : 0;
}

static void take_user(dbguard_figures_t *f, MYSQL_ROW row)
{
    dbguard_user_t *u;
    uint32_t sleep = (uint32_t)number(row[4]);
    uint32_t active = (uint32_t)number(row[5]);

    if (f->nusers < DBGUARD_USERS) {
        u = &f->users[f->nusers++];
        snprintf(u->name, sizeof(u->name), "%s", row[1] ? row[1] : "");
    }
    else {
        u = &f->users[DBGUARD_USERS - 1];
        snprintf(u->name, sizeof(u->name), "(others)");
    }
    u->total += (uint32_t)number(row[2]);
    u->sleeping += (uint32_t)number(row[3]);
    if (sleep > u->longest_sleep)
        u->longest_sleep = sleep;
    if (active > u->longest_active)
        u->longest_active = active;
}

static void take_row(dbguard_answer_t *answer, MYSQL_ROW row)
{
    dbguard_figures_t *f = &answer->figures;
    dbguard_details_t *d = &answer->details;
    const char *key = row[0] != NULL ? row[0] : "";
    uint64_t n = number(row[2]);
    const struct {
        const char *key;
        uint32_t *small;
        uint64_t *large;
    } places[] = {
        {"max_connections", &f->max_connections, NULL},
        {"max_user_connections", &f->max_user_connections, NULL},
        {"account_limit", &f->account_limit, NULL},
        {"own", &f->own, NULL},
        {"threads_connected", &f->threads_connected, NULL},
        {"threads_running", &f->threads_running, NULL},
        {"max_used_connections", &f->max_used_connections, NULL},
        {"uptime", NULL, &f->uptime},
        {"connections", NULL, &f->connections},
        {"threads_created", NULL, &f->threads_created},
        {"aborted_connects", NULL, &f->aborted_connects},
        {"aborted_clients", NULL, &f->aborted_clients},
        {"connection_errors_max_connections", NULL, &f->refused},
        {"since_flush", NULL, &d->since_flush},
        {"extra_port", &d->extra_port, NULL},
        {"extra_max_connections", &d->extra_max_connections, NULL}
    };
    size_t i;

    if (strcmp(key, "user") == 0)
        take_user(f, row);
    else if (strcmp(key, "grant") == 0 && row[1] != NULL)
        d->may |= dbguard_answer_privilege(row[1]);
    else if (strcmp(key, "version") == 0 && row[1] != NULL)
        snprintf(d->version, sizeof(d->version), "%s", row[1]);
    for (i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if (strcmp(key, places[i].key) != 0)
            continue;
        if (places[i].small != NULL)
            *places[i].small = (uint32_t)n;
        else
            *places[i].large = n;
    }
}

static void take_result(client_t *client, dbguard_answer_t *answer)
{
    MYSQL_ROW row;

    while ((row = mysql_fetch_row(client->result)) != NULL)
        take_row(answer, row);
    mysql_free_result(client->result);
    client->result = NULL;
    client->step = STEP_READY;
    answer->apart = apart(client);
    answer->details.extra_full = (uint32_t)client->ordinary;
    if (answer->figures.max_connections == 0) {
        answer->error = 2000;
        snprintf(answer->text, sizeof(answer->text),
                 "the answer does not name max_connections");
    }
}

static void take_error(client_t *client, dbguard_answer_t *answer)
{
    answer->error = mysql_errno(&client->mysql);
    if (answer->error == 0)
        answer->error = client->bare ? 2026 : 2000;
    snprintf(answer->text, sizeof(answer->text), "%s",
             client->bare ? "tls=on, and the server has no TLS"
                          : mysql_error(&client->mysql));
    client->bare = 0;
    drop(client);
}

static void take_silence(client_t *client, dbguard_answer_t *answer)
{
    int64_t silent = dbguard_clock_now() - client->alive;

    answer->timed_out = 1;
    answer->error = 2013;
    snprintf(answer->text, sizeof(answer->text),
             "no answer for %.1f s while %s", (double)silent / 1e6,
             client->step == STEP_CONNECT ? "connecting" : "asking");
    if (silent > CLIENT_GIVE_UP)
        drop(client);
}

void client_ask(client_t *client, int64_t deadline, dbguard_answer_t *answer)
{
    int had_connection = client->step == STEP_READY;
    int was_apart;

    memset(answer, 0, sizeof(*answer));
    for (;;) {
        if (client->wait != 0) {
            int came = wait_for(client, deadline);

            if (came == 0) {
                take_silence(client, answer);
                return;
            }
            go_on(client, came);
        }
        else if (next_step(client))
            break;
    }
    if (!client->failed) {
        take_result(client, answer);
        return;
    }
    was_apart = apart(client);
    take_error(client, answer);
    /* By default an extra port has one place, and another monitor, or a person,
     * may be in it. */
    if (!had_connection && was_apart
        && dbguard_database_classify(answer->error, answer->text, 0)
               == DBGUARD_DB_FULL)
        client->ordinary = 1;
    /* A connection that was there may have been ended while it was idle: what
     * counts is what a new one meets. */
    if (had_connection || client->ordinary)
        client_ask(client, deadline, answer);
}

void client_destroy(client_t *client)
{
    /* A question that is under way is heard to its end, shortly: the server
     * would count the client as aborted and log it. */
    if (client->step == STEP_QUERY || client->step == STEP_STORE) {
        dbguard_answer_t unheard;

        client_ask(client, dbguard_clock_now() + GOODBYE, &unheard);
    }
    drop(client);
    free(client);
}
