/* Little's law for the whole budget: what the last minute says about how many
 * tokens are needed, and how much longer the holds may get. The same words in
 * dbguardctl status and on the page. */

#include <stdio.h>
#include <string.h>

#include "rates.h"
#include "view.h"

#define SECOND 1000000

static double mean_age(const dbguard_snapshot_t *s)
{
    double sum = 0;
    uint32_t n = 0, i;

    for (i = 0; i < s->nholders; i++) {
        if (s->holders[i].state == DBGUARD_HELD) {
            sum += (double)s->holders[i].age;
            n++;
        }
    }
    return n > 0 ? sum / n : 0;
}

double dbguard_view_lived(const dbguard_span_t *span,
                          const dbguard_snapshot_t *s)
{
    double lived = (double)s->uptime / SECOND;

    if (lived > span->seconds)
        return span->seconds;
    return lived > 1 ? lived : 1;
}

void dbguard_view_reckon(dbguard_outlook_t *o, const dbguard_snapshot_t *s)
{
    const dbguard_span_t *minute = &s->minute;
    double budget = s->limits.budget;

    memset(o, 0, sizeof(*o));
    o->came = (uint32_t)(minute->admitted + minute->refused + minute->aborted);
    o->peak = minute->came_max;
    o->rate = o->came / dbguard_view_lived(minute, s);
    o->ended = minute->released > 0;
    o->hold = o->ended ? (int64_t)(minute->hold_us / minute->released)
                       : (int64_t)mean_age(s);
    o->needed = dbguard_little_needed(o->rate, (double)o->hold);
    o->needed_peak = dbguard_little_needed(o->peak, (double)o->hold);
    o->lasts = dbguard_little_hold(o->rate, budget);
    o->lasts_peak = dbguard_little_hold(o->peak, budget);
}

static const char *verdict(const dbguard_outlook_t *o)
{
    if ((double)o->hold > o->lasts)
        return "More is needed than there is: requests wait and are refused "
               "until fewer come or holds get shorter.";
    if ((double)o->hold > o->lasts_peak)
        return "The budget is enough on average, but not for the busiest "
               "second: then requests wait.";
    return "";
}

void dbguard_view_explain(dbguard_words_t *w, const dbguard_snapshot_t *s)
{
    dbguard_outlook_t o;
    char now[80];

    memset(w, 0, sizeof(*w));
    dbguard_view_reckon(&o, s);
    if (o.came == 0 || o.hold <= 0)
        return;
    snprintf(now, sizeof(now), o.ended ? "now %.3f s" : "none has ended yet, "
             "those that hold now have done so for %.3f s",
             (double)o.hold / SECOND);
    snprintf(w->needed, sizeof(w->needed), "%.2f of %u tokens: %.2f/s x %.3f s "
             "(Little's law, the last minute); %.2f in its busiest second, when "
             "%u came", o.needed, s->limits.budget, o.rate,
             (double)o.hold / SECOND, o.needed_peak, o.peak);
    snprintf(w->lasts, sizeof(w->lasts), "at %.2f/s (mean) the budget of %u "
             "lasts up to a mean hold of %.3f s; at %u/s (busiest second) up "
             "to %.3f s; %s", o.rate, s->limits.budget, o.lasts / SECOND,
             o.peak, o.lasts_peak / SECOND, now);
    snprintf(w->verdict, sizeof(w->verdict), "%s", verdict(&o));
}
