#ifndef DBGUARD_DATABASE_H
#define DBGUARD_DATABASE_H

/* What is known of the database, and the budget that follows from it. Pure:
 * dbguard-monitor asks the database and tells the answer here.
 *
 *     limit  = least of max_connections, max_user_connections and, when the
 *              application uses the monitor's account, that account's own
 *              limit, as far as they are set
 *     base   = limit - reserve - what others hold, at least 1
 *     budget = least of base, DBGuardBudget N, and the ceiling
 *
 * others: connections that are neither a token's nor the monitor's, the most
 * of the last DBGUARD_WINDOW polls, since cron comes and goes. The ceiling is
 * there only after trouble: x 0.8 with every poll that finds the server full or
 * having turned clients away, + 1 with every clean one (additive increase,
 * multiplicative decrease, as in TCP); and after an outage it rises from 1 to
 * base within DBGUARD_RAMP, so that a database which has just come back is not
 * run over.
 *
 * Invariants
 *   - Knowledge that is old never raises the budget, and never lifts it: with
 *     no answer it stays what it was.
 *   - The budget is at least 1 and never above what was configured. */

#include <stdint.h>

#define DBGUARD_WINDOW 10       /* polls */
#define DBGUARD_RAMP 10000000   /* microseconds */
#define DBGUARD_STALE 10000000  /* without a sign of the monitor for so long,
                                   the state is history */
#define DBGUARD_USERS 12        /* accounts that are told apart */

typedef enum dbguard_dbstate_t {
#define STATE(symbol, name, closed, meaning, remedy) DBGUARD_DB_##symbol,
#include "states.def"
#undef STATE
    DBGUARD_DB_STATES
} dbguard_dbstate_t;

/* What the configuration says of the budget. */
typedef struct dbguard_rules_t {
    uint32_t cap;     /* DBGuardBudget N; 0: auto */
    uint32_t reserve; /* connections kept free, when percent is not set */
    uint32_t percent; /* of the limit; DBGUARD_RESERVE_AUTO: max(3, 10 %) */
    uint32_t admit;   /* DBGuardOutage admit */
} dbguard_rules_t;

#define DBGUARD_RESERVE_AUTO UINT32_MAX

/* Connections of one account, from the process list. */
typedef struct dbguard_user_t {
    char name[33];
    uint32_t total, sleeping;
    uint32_t longest_sleep, longest_active; /* seconds */
} dbguard_user_t;

/* The server's own figures; see MariaDB's status variables of these names. */
typedef struct dbguard_figures_t {
    uint32_t max_connections;
    uint32_t max_user_connections; /* 0: no limit */
    uint32_t account_limit;        /* of the account that asks; 0: none */
    uint32_t own;                  /* connections of that account */
    uint32_t threads_connected, threads_running;
    uint32_t max_used_connections;
    uint64_t uptime; /* seconds */
    uint64_t connections, threads_created;
    uint64_t aborted_connects, aborted_clients;
    uint64_t refused; /* Connection_errors_max_connections */
    uint32_t nusers;  /* DBGUARD_USERS at most; the rest is in the last one,
                         named "(others)" */
    dbguard_user_t users[DBGUARD_USERS];
} dbguard_figures_t;

/* What only a probe asks for, on top of the figures. */
typedef struct dbguard_details_t {
    char version[64];
    uint64_t since_flush; /* seconds since FLUSH STATUS, or since the start */
    uint32_t extra_port;  /* 0: none */
    uint32_t extra_max_connections;
    uint32_t extra_full; /* the extra port was full; asked by the other one */
    uint32_t may; /* DBGUARD_MAY_ bits: what the account itself was granted on
                     *.*; not by a role, whose privileges are not listed */
} dbguard_details_t;

enum {
    DBGUARD_MAY_PROCESS = 1,
    DBGUARD_MAY_CONNECTION_ADMIN = 2,
    DBGUARD_MAY_SUPER = 4
};

/* One attempt to ask. */
typedef struct dbguard_answer_t {
    uint32_t error;   /* 0, or the errno of server or client library */
    char text[160];   /* and what it said */
    int timed_out;    /* no answer in time */
    int apart;        /* by the extra port, which the server counts elsewhere */
    uint32_t held;    /* tokens out meanwhile, the most of before and after */
    dbguard_figures_t figures; /* when error is 0 */
    dbguard_details_t details; /* the same; empty unless asked for */
} dbguard_answer_t;

/* All that is kept, in shared memory; written by the monitor only. */
typedef struct dbguard_database_t {
    uint32_t state; /* dbguard_dbstate_t */
    uint32_t error; /* of the last attempt */
    char text[160];
    int64_t since;     /* when the state began */
    int64_t attempted; /* the last attempt's end; 0: never */
    int64_t answered;  /* the last good answer's */
    int32_t monitor;   /* its process */
    dbguard_figures_t figures;

    uint32_t budget; /* 0: nothing to say yet */
    uint32_t ceiling; /* UINT32_MAX: none */
    int64_t ramp;     /* when the recovery began; 0: none */
    uint32_t recovering;     /* there was an outage, and no good answer since */
    uint32_t own_polls;      /* in a row with more than one of its account */
    uint32_t shares_account; /* five of them have been seen: the account is the
                                application's, too */
    uint32_t others[DBGUARD_WINDOW];
    uint32_t polls; /* good answers so far */
    char why[160];  /* "20 = min(max_connections 24) - reserve 3 - others 1" */
} dbguard_database_t;

/* The state that an error means. text: what came with it. */
dbguard_dbstate_t dbguard_database_classify(uint32_t error, const char *text,
                                            int timed_out);

/* Take one more answer in. Returns 1 when the state changed. */
int dbguard_database_learn(dbguard_database_t *db, const dbguard_rules_t *rules,
                           const dbguard_answer_t *answer, int64_t now);

/* Is there an outage that requests are to be kept out of? */
int dbguard_database_closed(const dbguard_database_t *db,
                            const dbguard_rules_t *rules, int64_t now);

/* Connections kept free out of `limit`. */
uint32_t dbguard_database_reserve(const dbguard_rules_t *rules, uint32_t limit);

/* The least of the limits that are set. The limit of the account that asks
 * counts when the application uses the same one. */
uint32_t dbguard_database_limit(const dbguard_figures_t *figures,
                                int shares_account);

const char *dbguard_dbstate_name(dbguard_dbstate_t state);
const char *dbguard_dbstate_meaning(dbguard_dbstate_t state);
const char *dbguard_dbstate_remedy(dbguard_dbstate_t state);

#endif
