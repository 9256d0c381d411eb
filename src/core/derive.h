#ifndef DBGUARD_DERIVE_H
#define DBGUARD_DERIVE_H

/* What follows from the budget and the server's own limits when the operator
 * says nothing. Pure arithmetic. */

#include <stdint.h>

/* The budget of a server that was told none. MariaDB cannot be set below 10
 * connections; three of them stay with cron, queue workers and people. */
#define DBGUARD_BUDGET_UNKNOWN 7

/* Ceiling of max_connections in MariaDB. */
#define DBGUARD_BUDGET_MAX 100000

/* Microseconds from a token's return to its next use, and by which those that
 * come back together follow one another. PHP closes its connection before its
 * token comes back, but the server counts the connection until its thread has
 * run once more, and on a busy machine that takes its time. Measured with
 * budget 20, max_connections 24 and holds of 15 to 50 ms: with none, up to 25
 * connections and 1 % of the requests in error 1040; with 2 ms, 20 on a quiet
 * machine, up to 25 on one short of CPU; with both, seldom more than 20 there
 * (docs/internals/admission.md). */
#define DBGUARD_SETTLE 3000
#define DBGUARD_PACE 500

/* Waiting places for a server of `workers` request threads and a budget of
 * `budget` tokens: what is left when max(8, 15 %) of the workers are kept for
 * static files, health checks and the status page. A waiting request keeps its
 * worker, which is why the queue has to be bounded by them. 0 when nothing is
 * left. */
uint32_t dbguard_derive_queue(uint32_t workers, uint32_t budget);

/* Microseconds that a request is worth waiting when tokens are held for
 * `hold` microseconds: six holds, at least 1 s, at most 10 s. */
int64_t dbguard_derive_patience(int64_t hold);

#endif
