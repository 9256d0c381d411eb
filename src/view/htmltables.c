/* The tables of the page, and the small pictures in them. */

#include <inttypes.h>

#include "parts.h"

#define SECOND 1000000
#define TOP_ENDPOINTS 20
#define TOP_GROUPS 10

#define STEP 3   /* width of a bin */
#define ABOVE 18 /* height of the bars */

void dbguard_html_escaped(const dbguard_view_t *view, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '<':
            dbguard_view_print(view, "&lt;");
            break;
        case '>':
            dbguard_view_print(view, "&gt;");
            break;
        case '&':
            dbguard_view_print(view, "&amp;");
            break;
        case '"':
            dbguard_view_print(view, "&quot;");
            break;
        default:
            dbguard_view_print(view, "%c", *text);
        }
    }
}

/* --- who holds and who waits ---------------------------------------------- */

static void groups(const dbguard_view_t *view, const dbguard_groups_t *g,
                   const char *what)
{
    uint32_t held = g->held, waiting = g->waiting, i;

    dbguard_view_print(view, "<div class=\"s\"><table><tr><th>%s</th>"
                       "<th class=\"n\">holds</th><th class=\"n\">waits</th>"
                       "<th class=\"n\">oldest, seconds</th></tr>\n", what);
    for (i = 0; i < g->nlisted && i < TOP_GROUPS; i++) {
        const dbguard_group_t *line = &g->listed[i];

        dbguard_view_print(view, "<tr><td class=\"w\">");
        dbguard_html_escaped(view, line->name);
        dbguard_view_print(view, "</td><td class=\"n\">%u</td><td class=\"n\">"
                           "%u</td><td class=\"n\">%.3f</td></tr>\n",
                           line->held, line->waiting,
                           (double)line->oldest / SECOND);
        held -= line->held;
        waiting -= line->waiting;
    }
    if (i < g->number)
        dbguard_view_print(view, "<tr><td>%u more</td><td class=\"n\">%u</td>"
                           "<td class=\"n\">%u</td><td></td></tr>\n",
                           g->number - i, held, waiting);
    dbguard_view_print(view, "</table></div>\n");
}

void dbguard_html_groups(const dbguard_view_t *view,
                         const dbguard_snapshot_t *s)
{
    if (s->nholders == 0)
        return;
    dbguard_view_print(view, "<h3>Who holds and who waits</h3>\n");
    groups(view, &s->endpoints, "endpoint");
    groups(view, &s->clients, "client");
}

/* --- endpoints ------------------------------------------------------------ */

/* The end of the bin up to which so many percent of the holds are, in words
 * that fit a sentence. */
static void up_to(const dbguard_view_t *view, const dbguard_row_t *row,
                  uint64_t total, uint32_t percent)
{
    uint64_t sum = 0;
    uint32_t bin = 0;

    for (; bin < DBGUARD_BINS; bin++) {
        sum += row->histogram[bin];
        if (sum * 100 >= total * percent)
            break;
    }
    if (bin >= DBGUARD_HEAVIEST)
        dbguard_view_print(view, "%.0f s and more",
                           (double)dbguard_bin_end(DBGUARD_HEAVIEST - 1)
                               / SECOND);
    else
        dbguard_view_print(view, "%.2f s", (double)dbguard_bin_end(bin)
                                                / SECOND);
}

/* How the holds are spread, the shortest at the left. All pictures have the
 * same axis. */
static void histogram(const dbguard_view_t *view, const dbguard_row_t *row)
{
    uint64_t total = 0;
    uint32_t most = 1, i;
    uint32_t second = STEP * (dbguard_bin_of(SECOND) + 1);

    for (i = 0; i < DBGUARD_BINS; i++) {
        total += row->histogram[i];
        if (row->histogram[i] > most)
            most = row->histogram[i];
    }
    if (total == 0)
        return;
    dbguard_view_print(view, "<svg class=\"h\" viewBox=\"0 0 %d %d\" "
                       "role=\"img\" aria-label=\"half of the holds up to ",
                       DBGUARD_BINS * STEP, ABOVE + 1);
    up_to(view, row, total, 50);
    dbguard_view_print(view, ", 95 %% up to ");
    up_to(view, row, total, 95);
    dbguard_view_print(view, "\">");
    for (i = 0; i < DBGUARD_BINS; i++) {
        /* One is seen, too. */
        uint32_t up = (row->histogram[i] * (ABOVE - 1) + most - 1) / most;

        if (up > 0)
            dbguard_view_print(view, "<rect class=\"held\" x=\"%u\" y=\"%u\" "
                               "width=\"%d\" height=\"%u\"/>", i * STEP,
                               ABOVE - up, STEP - 1, up);
    }
    dbguard_view_print(view, "<path class=\"axis\" d=\"M0 %d.5H%dM%u.5 0V%d\"/>"
                       "</svg>", ABOVE, DBGUARD_BINS * STEP, second - 1,
                       ABOVE);
}

static void name_of(const dbguard_view_t *view, const dbguard_snapshot_t *s,
                    const dbguard_row_t *row)
{
    if (row->known == DBGUARD_ENDPOINT_NEW)
        dbguard_view_print(view, "<em>not seen before</em> (%u endpoint%s)",
                           row->endpoints, row->endpoints == 1 ? "" : "s");
    else if (row->known == DBGUARD_ENDPOINT_OTHER)
        dbguard_view_print(view, "<em>no place in the table</em>");
    else
        dbguard_html_escaped(view, row->name);
    if (row->class != 0) {
        dbguard_view_print(view, " [");
        dbguard_html_escaped(view, dbguard_view_class(s, row->class));
        dbguard_view_print(view, "]");
    }
}

static void endpoint(const dbguard_view_t *view, const dbguard_snapshot_t *s,
                     const dbguard_row_t *row)
{
    dbguard_view_print(view, "<tr><td class=\"w\">");
    name_of(view, s, row);
    dbguard_view_print(view, "</td><td class=\"n\">%.2f</td><td class=\"n\">%u"
                       "</td><td class=\"n\">%u</td><td class=\"n\">%.2f</td>"
                       "<td class=\"n\">%u</td><td class=\"n\">",
                       row->needed, row->held, row->waiting, row->rate,
                       row->peak);
    dbguard_view_print(view, "%s%.1f%s</td><td>",
                       dbguard_view_is_slower(row) ? "<strong>" : "",
                       (double)row->estimate / 1e3,
                       dbguard_view_is_slower(row) ? "</strong>" : "");
    histogram(view, row);
    dbguard_view_print(view, "</td><td class=\"n\">");
    if (row->released > 0)
        dbguard_view_print(view, "%.1f", (double)row->mean / 1e3);
    dbguard_view_print(view, "</td><td class=\"n\">%" PRIu64 "</td>"
                       "<td class=\"n\">%" PRIu64 "</td></tr>\n", row->arrived,
                       row->refused);
}

static void more(const dbguard_view_t *view, const dbguard_snapshot_t *s,
                 uint32_t first)
{
    dbguard_row_t sum = {.held = 0};
    uint32_t i;

    for (i = first; i < s->nrows; i++)
        dbguard_view_add(&sum, &s->rows[i]);
    dbguard_view_print(view, "<tr><td>%u more: dbguardctl status --all</td>"
                       "<td class=\"n\">%.2f</td><td class=\"n\">%u</td>"
                       "<td class=\"n\">%u</td><td class=\"n\">%.2f</td>"
                       "<td></td><td></td><td></td><td></td><td class=\"n\">%"
                       PRIu64 "</td><td class=\"n\">%" PRIu64 "</td></tr>\n",
                       s->nrows - first, sum.needed, sum.held, sum.waiting,
                       sum.rate, sum.arrived, sum.refused);
}

void dbguard_html_endpoints(const dbguard_view_t *view,
                            const dbguard_snapshot_t *s)
{
    uint32_t listed = s->nrows < TOP_ENDPOINTS ? s->nrows : TOP_ENDPOINTS;
    uint32_t i;

    if (s->nrows == 0)
        return;
    dbguard_view_print(view, "<h3>Endpoints, by the tokens that they need</h3>"
                       "\n<div class=\"s\"><table><tr><th>endpoint</th>"
                       "<th class=\"n\">needs</th><th class=\"n\">holds</th>"
                       "<th class=\"n\">waits</th>"
                       "<th class=\"n\">a second</th>"
                       "<th class=\"n\">busiest second</th>"
                       "<th class=\"n\">hold, ms</th>"
                       "<th>holds</th>"
                       "<th class=\"n\">mean of all, ms</th>"
                       "<th class=\"n\">came</th><th class=\"n\">refused</th>"
                       "</tr>\n");
    for (i = 0; i < listed; i++)
        endpoint(view, s, &s->rows[i]);
    if (listed < s->nrows)
        more(view, s, listed);
    dbguard_view_print(view, "</table></div>\n<p>Little's law: needs = a "
                       "second x hold, over the last minute. hold is what the "
                       "next request is expected to hold its token for; in "
                       "bold when what runs now has run for twice as long as "
                       "its like used to. The pictures go from 20 ms at the "
                       "left to an hour at the right, each step a factor of "
                       "1.4; the upright line is at 1 s.</p>\n");
}

/* --- classes -------------------------------------------------------------- */

static void number(const dbguard_view_t *view, uint32_t n, uint32_t none)
{
    dbguard_view_print(view, n == none ? "<td class=\"n\">-</td>"
                                       : "<td class=\"n\">%u</td>", n);
}

void dbguard_html_classes(const dbguard_view_t *view,
                          const dbguard_snapshot_t *s)
{
    uint32_t i;

    if (s->nclasses < 2)
        return;
    dbguard_view_print(view, "<h3>Classes</h3>\n<div class=\"s\"><table><tr>"
                       "<th>class</th><th class=\"n\">holds</th>"
                       "<th class=\"n\">min</th><th class=\"n\">max</th>"
                       "<th class=\"n\">waits</th></tr>\n");
    for (i = 0; i < s->nclasses; i++) {
        dbguard_view_print(view, "<tr><td>");
        dbguard_html_escaped(view, dbguard_view_class(s, i));
        dbguard_view_print(view, "</td><td class=\"n\">%u</td>",
                           s->classes[i].held);
        number(view, s->classes[i].min, 0);
        number(view, s->classes[i].max, UINT32_MAX);
        dbguard_view_print(view, "<td class=\"n\">%u</td></tr>\n",
                           s->classes[i].waiting);
    }
    dbguard_view_print(view, "</table></div>\n");
}
