/* What the counters of a database mean: see rates.h. */

#include "rates.h"

#define DAY 86400.0

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

void dbguard_rates_derive(dbguard_rates_t *rates, const dbguard_figures_t *f,
                          uint64_t since_flush)
{
    uint64_t seconds = f->uptime > 0 ? f->uptime : 1;
    double connections = (double)f->connections;
    uint64_t failed = minus(f->aborted_connects, f->refused);

    rates->cache_hits = f->connections > 0
        ? 1 - share((double)f->threads_created, connections) : 1;
    if (rates->cache_hits < 0)
        rates->cache_hits = 0;
    rates->flushed = since_flush < f->uptime;
    if (rates->flushed) {
        seconds = since_flush > 0 ? since_flush : 1;
        connections *= (double)seconds / (double)f->uptime;
    }
    rates->days = (double)seconds / DAY;
    rates->attempts = connections + (double)f->refused;
    rates->refused_share = share((double)f->refused, rates->attempts);
    rates->refused_per_day = (double)f->refused / rates->days;
    rates->failed_share = share((double)failed, rates->attempts);
    rates->failed_per_day = (double)failed / rates->days;
    rates->broken_share = share((double)f->aborted_clients, rates->attempts);
    rates->broken_per_day = (double)f->aborted_clients / rates->days;
    rates->peak = share(f->max_used_connections, f->max_connections);
}

double dbguard_little_needed(double rate, double hold)
{
    return rate * hold / 1e6;
}

double dbguard_little_hold(double rate, double n)
{
    return rate > 0 ? n * 1e6 / rate : 0;
}
