#ifndef DBGUARD_LINT_H
#define DBGUARD_LINT_H

/* Do the limits of Apache, of the guard, of the database and of the machine fit
 * together? Pure: others gather the facts, one table of rules judges them.
 *
 * Invariants
 *   - A fact that is not known is never guessed: its rules say nothing, or say
 *     that they could not check.
 *   - A sentence carries the numbers that it speaks of, and those that are in
 *     effect, not those that were written.
 *   - A rule's number and id are never given to another one.
 *
 * Where a threshold comes from is said at its definition in lint.c. */

#include <stddef.h>

#include "database.h"

#define DBGUARD_PLACE 160 /* bytes of a file:line, with NUL */

/* A directive as it was written. */
typedef struct dbguard_written_t {
    uint32_t number;           /* 0: it was not */
    char place[DBGUARD_PLACE]; /* file:line */
} dbguard_written_t;

/* What the configuration and the MPM say. Kept in shared memory, where
 * dbguardctl finds it. */
typedef struct dbguard_facts_t {
    uint32_t known; /* 0: nothing below is */

    /* Apache */
    uint32_t workers;      /* effective MaxRequestWorkers */
    uint32_t threads;      /* of them per process */
    uint32_t server_limit; /* effective, processes */
    uint32_t async;        /* an idle keep-alive connection takes no worker */
    dbguard_written_t written_workers, written_server_limit;
    uint32_t keepalive; /* seconds that a worker waits for a client's next
                           request, the most of all hosts; 0: off */
    char mpm[16];
    char block[DBGUARD_PLACE]; /* an <IfModule> that can never match */
    char block_name[40];       /* and what it names */

    /* the guard */
    uint32_t guarded;  /* places that say DBGuard On */
    uint32_t dryrun;
    uint32_t cap;      /* DBGuardBudget N; 0: auto */
    uint32_t queue;    /* waiting places */
    uint32_t queue_auto;
    dbguard_rules_t rules;
    uint32_t has_database;
    char user[81], host[256]; /* of DBGuardDatabase */
    uint32_t port;            /* 0: none was written */
    uint32_t password_file;   /* 0 none, 1 its mode is known, 2 unreadable */
    uint32_t password_mode;   /* as of stat */
    char password_name[DBGUARD_PLACE];

    /* other modules */
    char remoteip[DBGUARD_PLACE]; /* the place of RemoteIPHeader */
    uint32_t proxies;             /* is there a list of trusted proxies? */
    char persistent[DBGUARD_PLACE]; /* the place of a PHP setting that allows
                                       persistent connections */
    char persistent_name[80];       /* and what it says */
} dbguard_facts_t;

/* What the processes of a running server take. */
typedef struct dbguard_memory_t {
    uint32_t processes;     /* that were looked at; 0: nothing is known */
    uint64_t each;          /* bytes, mean */
    uint64_t available;     /* bytes that are free for more */
} dbguard_memory_t;

/* All that is judged. */
typedef struct dbguard_lint_t {
    dbguard_facts_t facts;
    dbguard_database_t database; /* attempted == 0: nobody has asked */
    dbguard_memory_t memory;
    char mute[256];      /* it was to be asked: why dbguard-monitor --probe said
                            nothing at all, or "" */
    uint32_t silent;     /* seconds without a sign of dbguard-monitor, when
                            these are too many; else 0 */
    uint32_t budget;     /* in force, or to begin with */
    uint32_t running;    /* a server with this scoreboard runs; what follows is
                            known then only */
    uint32_t held;       /* its tokens that are out */
    uint32_t server_limit_running; /* its ServerLimit; 0: not known */
} dbguard_lint_t;

typedef enum dbguard_severity_t {
    DBGUARD_LINT_NOTHING, /* the rule has nothing to judge here */
    DBGUARD_LINT_FINE,
    DBGUARD_LINT_UNKNOWN, /* could not be checked */
    DBGUARD_LINT_INFO,    /* worth knowing, nothing to do */
    DBGUARD_LINT_WARNING,
    DBGUARD_LINT_ERROR
} dbguard_severity_t;

typedef struct dbguard_finding_t {
    const char *id;
    unsigned number;     /* of the message, as in DBGUARD0050 */
    int mismatch;        /* it is about limits that contradict each other: what
                            DBGuardLint refuse refuses */
    dbguard_severity_t severity;
    char sentence[512];
    char remedy[400];    /* what to do; empty when there is nothing to */
} dbguard_finding_t;

/* Called for each rule that has something to say, in the order of the table. */
typedef void dbguard_lint_report_t(void *context,
                                   const dbguard_finding_t *finding);

/* Judge. Reports everything but NOTHING. Returns how many are warnings or
 * errors; in *refused, unless it is NULL, how many of these are mismatches. */
uint32_t dbguard_lint_run(const dbguard_lint_t *lint,
                          dbguard_lint_report_t *report, void *context,
                          uint32_t *refused);

/* One word: fine, unknown, info, warning, error. */
const char *dbguard_severity_name(dbguard_severity_t severity);

#endif
