/* Little's law for the whole budget: what the last minute says about how many
 * tokens are needed, and how much longer the holds may get. The same words in
 * dbguardctl status and on the page. */

#include <stdio.h>
#include <string.h>

#include "rates.h"
#include "view.h"

#define SECOND 1000000

/* The mean hold of what came, whatever became of it: the mean of the holds that
 * ended would leave out those who were refused, who are not like the others. */
static double expected(const dbguard_snapshot_t *s, int *known)
{
    double rate = 0, needed = 0;
    uint32_t i;

    *known = 0;
    for (i = 0; i < s->nrows; i++) {
        rate += s->rows[i].rate;
        needed += s->rows[i].needed;
        *known |= s->rows[i].rate > 0 && s->rows[i].samples > 0;
    }
    if (rate > 0)
        return needed * SECOND / rate;
    *known = s->minute.released > 0;
    return *known ? (double)(s->minute.hold_us / s->minute.released) : 0;
}

void dbguard_view_reckon(dbguard_outlook_t *o, const dbguard_snapshot_t *s)
{
    const dbguard_span_t *minute = &s->minute;
    double budget = s->limits.budget;

    memset(o, 0, sizeof(*o));
    o->came = (uint32_t)(minute->admitted + minute->refused + minute->aborted);
    o->peak = minute->came_max;
    o->rate = o->came / dbguard_snapshot_lived(s, minute->seconds);
    o->hold = expected(s, &o->known);
    o->needed = dbguard_little_needed(o->rate, o->hold);
    o->needed_peak = dbguard_little_needed(o->peak, o->hold);
    o->lasts = dbguard_little_hold(o->rate, budget);
    o->lasts_peak = dbguard_little_hold(o->peak, budget);
}

static const char *verdict(const dbguard_outlook_t *o)
{
    if (o->hold > o->lasts)
        return "More is needed than there is: requests wait and are refused "
               "until fewer come or holds get shorter.";
    if (o->hold > o->lasts_peak)
        return "The budget is enough on average, but not for the busiest "
               "second: then requests wait.";
    return "";
}

void dbguard_view_explain(dbguard_words_t *w, const dbguard_snapshot_t *s)
{
    dbguard_outlook_t o;

    memset(w, 0, sizeof(*w));
    dbguard_view_reckon(&o, s);
    if (o.came == 0 || o.hold <= 0)
        return;
    snprintf(w->needed, sizeof(w->needed), "%.2f tokens of %u: %.2f/s x %.3f s "
             "(Little's law, the last minute); %.2f in its busiest second, "
             "when %u came", o.needed, s->limits.budget, o.rate,
             o.hold / SECOND, o.needed_peak, o.peak);
    snprintf(w->lasts, sizeof(w->lasts), "at %.2f/s (mean) the budget of %u "
             "lasts up to a mean hold of %.3f s; at %u/s (busiest second) up "
             "to %.3f s; now %.3f s%s", o.rate, s->limits.budget,
             o.lasts / SECOND, o.peak, o.lasts_peak / SECOND, o.hold / SECOND,
             o.known ? "" : ", a guess: none has ended yet");
    snprintf(w->verdict, sizeof(w->verdict), "%s", verdict(&o));
}
