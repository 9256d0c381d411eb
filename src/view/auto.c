/* server-status?auto: see dbguard_view_auto in view.h. The totals come from
 * counters.def. */

#include <inttypes.h>

#include "view.h"

static void line(const dbguard_view_t *view, const char *name, uint64_t number)
{
    dbguard_view_print(view, "DBGuard%s: %" PRIu64 "\n", name, number);
}

void dbguard_view_auto(const dbguard_view_t *view,
                       const dbguard_snapshot_t *s)
{
    dbguard_outlook_t o;

    dbguard_view_reckon(&o, s);
    line(view, "Budget", s->limits.budget);
    line(view, "Engine", s->engine);
    line(view, "DryRun", s->limits.dryrun);
    line(view, "Held", s->held);
    line(view, "HeldPeak", s->held_peak);
    line(view, "Settling", s->settling);
    line(view, "Waiting", s->waiting);
    line(view, "QueueLength", s->limits.queue);
    line(view, "Slots", s->nslots);
    line(view, "HoldMeanMicroseconds", (uint64_t)s->hold);
    line(view, "RefusedLastMinute", s->minute.refused);
    line(view, "ArrivedLastMinute", o.came);
    line(view, "ArrivedPeakSecond", o.peak);
    line(view, "HoldExpectedMicroseconds", (uint64_t)o.hold);
    line(view, "HoldLimitMicroseconds", (uint64_t)o.lasts);
    line(view, "HoldLimitPeakMicroseconds", (uint64_t)o.lasts_peak);
    line(view, "DatabaseState", s->database.state);
    line(view, "DatabaseStale", (uint64_t)s->stale);
    line(view, "DatabaseMaxConnections", s->database.figures.max_connections);
    line(view, "DatabaseConnected", s->database.figures.threads_connected);
    line(view, "DatabaseRunning", s->database.figures.threads_running);
#define COUNTER(field, name, help) line(view, name, s->counters.field);
#include "counters.def"
#undef COUNTER
}
