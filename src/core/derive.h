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
