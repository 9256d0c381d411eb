#ifndef DBGUARD_ASK_H
#define DBGUARD_ASK_H

/* Asking the database once, by way of dbguard-monitor --probe: this program
 * itself links no database library.
 *
 * Invariants
 *   - It takes two seconds at most, whatever the database, the network or the
 *     monitor do.
 *   - The password goes from its file through a pipe to the monitor and is
 *     nowhere else: in no argument, no environment, no output.
 *   - Root gives its rights up in favour of the User of httpd, as far as the
 *     running monitor shows who that is: what is asked is asked with the rights
 *     with which the guard asks. */

#include "apr_pools.h"

#include "answer.h"
#include "dsn.h"
#include "snapshot.h"

typedef enum ask_outcome_t {
    ASK_ANSWERED,      /* *answer is what the database said, or why it said
                          nothing */
    ASK_SILENT,        /* the monitor did not even say that */
    ASK_NOT_CONFIGURED, /* there is no DBGuardDatabase */
    ASK_IMPOSSIBLE     /* `why` says what to do about it */
} ask_outcome_t;

typedef struct ask_t {
    ask_outcome_t outcome;
    dbguard_dsn_t dsn;      /* without the password */
    const char *url;        /* DBGuardDatabase as it was written */
    const char *why;        /* a sentence, or NULL */
    const char *password_note; /* a sentence when there is none, or NULL */
    dbguard_answer_t answer;
    int64_t took;           /* microseconds */
} ask_t;

/* Ask whom the effective configuration in the snapshot names. */
void ask_database(apr_pool_t *p, const dbguard_snapshot_t *s, ask_t *ask);

#endif
