#ifndef DBGUARD_CLIENT_H
#define DBGUARD_CLIENT_H

/* The monitor's one connection. The only user of libmariadb.
 *
 * Invariants
 *   - Nothing waits longer than it was told to. What is not done by then is
 *     not given up: it goes on with the next call. A server that hangs thus
 *     sees one connection that waits, not one a second that is broken off
 *     (which it would count as aborted, and block the host for, errno 1129).
 *   - After CLIENT_GIVE_UP without a sign of life the connection is dropped:
 *     the host may be gone. */

#include "database.h"
#include "dsn.h"

#define CLIENT_GIVE_UP 30000000 /* microseconds */

typedef struct client_t client_t;

/* details: ask also for dbguard_details_t, which costs the server a look at its
 * list of accounts. NULL when there is no memory. */
client_t *client_create(const dbguard_dsn_t *dsn, int details);

/* Ask, and wait at most until `deadline` (dbguard_clock_now's clock). Fills in
 * all of *answer but `held`. */
void client_ask(client_t *client, int64_t deadline, dbguard_answer_t *answer);

/* Say goodbye in an orderly way. */
void client_destroy(client_t *client);

#endif
