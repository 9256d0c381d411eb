#ifndef DBGUARD_RATES_H
#define DBGUARD_RATES_H

/* What the counters of a database mean: raw ones mislead until they are divided
 * by the time and by the connection attempts in which they came together.
 *
 * Measured on MariaDB 10.11:
 *   - An attempt that is turned away at the door (all of max_connections + 1
 *     taken) is in Connection_errors_max_connections and in Aborted_connects,
 *     and not in Connections.
 *   - One that is turned away after its login, since the last place is kept for
 *     CONNECTION ADMIN, is in Aborted_connects and in Connections, and not in
 *     Connection_errors_max_connections, which is thus the least it can be.
 *   - FLUSH STATUS begins the errors, Aborted_* and Max_used_connections anew,
 *     but not Connections, Threads_created and Uptime. */

#include "database.h"

typedef struct dbguard_rates_t {
    double days;     /* that the counters have counted; > 0 */
    int flushed;     /* FLUSH STATUS was used: attempts is an estimate, made
                        from the mean rate since the server's start */
    double attempts; /* to connect, in these days */
    double refused_share, refused_per_day;
    double failed_share, failed_per_day; /* Aborted_connects, less refused */
    double broken_share, broken_per_day; /* Aborted_clients */
    double cache_hits; /* share of the connections that needed no new thread,
                          since the server's start */
    double peak;       /* Max_used_connections / max_connections; may be above
                          1: there is one place more for CONNECTION ADMIN */
} dbguard_rates_t;

/* since_flush: Uptime_since_flush_status; the uptime when it is not known. */
void dbguard_rates_derive(dbguard_rates_t *rates, const dbguard_figures_t *f,
                          uint64_t since_flush);

/* Little's law, N = lambda x T, with lambda in 1/s and T in microseconds. */
double dbguard_little_needed(double rate, double hold);
/* The mean hold, microseconds, at which that reaches n; 0 when nobody comes. */
double dbguard_little_hold(double rate, double n);

#endif
