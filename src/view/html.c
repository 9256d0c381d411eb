/* The guard's section of server-status. Everything that a client could have
 * chosen (endpoints) is escaped. The picture is inline SVG: a bar a second for
 * the last minute, tokens out against the budget, refusals hanging below. */

#include <inttypes.h>

#include "parts.h"

#define SECOND 1000000

/* All who hold are listed, and who waits up to so many lines; the rest is
 * counted. */
#define LISTED 50

#define STEP 10   /* width of a second */
#define ABOVE 100 /* height of the tokens */
#define BELOW 40  /* height of the refusals */

static void style(const dbguard_view_t *view)
{
    dbguard_view_print(
        view,
        "<style>:root{color-scheme:light dark}"
        ".dbguard svg{display:block;width:100%%;max-width:40rem;height:auto}"
        ".dbguard table{border-collapse:collapse;margin:.5rem 0}"
        ".dbguard td,.dbguard th{padding:.15rem .7rem .15rem 0;"
        "text-align:left;vertical-align:top}"
        ".dbguard .n{text-align:right;font-variant-numeric:tabular-nums}"
        ".dbguard .s{overflow-x:auto}"
        ".dbguard .w{min-width:9rem;overflow-wrap:anywhere}"
        ".dbguard .h{width:6.75rem}"
        ".dbguard .axis{stroke:currentColor;opacity:.5;fill:none}"
        ".dbguard .held{fill:#3b82c4}.dbguard .over{fill:#8a63d2}"
        ".dbguard .refused{fill:#d9534f}"
        ".dbguard .line{stroke:currentColor;stroke-dasharray:4 3}"
        ".dbguard text{fill:currentColor;font:12px sans-serif}</style>\n");
}

static uint32_t most(const dbguard_snapshot_t *s, int refused)
{
    uint32_t max = 1;
    int i;

    for (i = 0; i < DBGUARD_RECENT; i++) {
        uint32_t n = refused ? s->recent[i].refused : s->recent[i].held_max;

        if (n > max)
            max = n;
    }
    return max;
}

static void picture(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    uint32_t budget = s->limits.budget;
    uint32_t top = most(s, 0) > budget ? most(s, 0) : budget;
    uint32_t refused = most(s, 1);
    int width = DBGUARD_RECENT * STEP;
    int y = ABOVE - (int)((uint64_t)budget * ABOVE / top);
    int i;

    dbguard_view_print(view,
                       "<svg viewBox=\"0 -16 %d %d\" role=\"img\" aria-label=\""
                       "The last minute: at most %u of %u tokens out, %" PRIu64
                       " requests refused\">\n",
                       width, ABOVE + BELOW + 34, s->minute.held_max, budget,
                       s->minute.refused);
    for (i = 0; i < DBGUARD_RECENT; i++) {
        const dbguard_second_t *t = &s->recent[i];
        int up = (int)((uint64_t)t->held_max * ABOVE / top);
        int down = (int)((uint64_t)t->refused * BELOW / refused);

        if (up > 0)
            dbguard_view_print(view, "<rect class=\"%s\" x=\"%d\" y=\"%d\" "
                               "width=\"%d\" height=\"%d\"/>",
                               t->held_max > budget ? "over" : "held", i * STEP,
                               ABOVE - up, STEP - 2, up);
        if (down > 0)
            dbguard_view_print(view, "<rect class=\"refused\" x=\"%d\" y=\"%d\""
                               " width=\"%d\" height=\"%d\"/>", i * STEP, ABOVE,
                               STEP - 2, down);
    }
    dbguard_view_print(view,
                       "<line class=\"line\" x1=\"0\" x2=\"%d\" y1=\"%d\" "
                       "y2=\"%d\"/><text x=\"0\" y=\"%d\">budget %u</text>"
                       "<text x=\"0\" y=\"%d\">a minute ago</text>"
                       "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">now</text>"
                       "</svg>\n",
                       width, y, y, y - 4, budget, ABOVE + BELOW + 14, width,
                       ABOVE + BELOW + 14);
}

static void span(const dbguard_view_t *view, const char *name,
                 const dbguard_span_t *s, double lived)
{
    double hold = s->released ? (double)s->hold_us / (double)s->released / 1e3
                              : 0;

    dbguard_view_print(view, "<tr><th scope=\"row\">%s</th><td class=\"n\">%.2f"
                       "</td><td class=\"n\">%" PRIu64 "</td><td class=\"n\">%"
                       PRIu64 "</td><td class=\"n\">%" PRIu64 "</td>"
                       "<td class=\"n\">%u</td><td class=\"n\">%.1f</td>"
                       "</tr>\n",
                       name, (double)s->admitted / lived, s->admitted,
                       s->refused, s->aborted, s->held_max, hold);
}

static void figures(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    dbguard_view_print(view, "<div class=\"s\"><table><tr><th></th>"
                       "<th class=\"n\">admitted a second</th>"
                       "<th class=\"n\">admitted</th>"
                       "<th class=\"n\">refused</th>"
                       "<th class=\"n\">hung up</th>"
                       "<th class=\"n\">held at most</th>"
                       "<th class=\"n\">mean hold, ms</th></tr>\n");
    span(view, "last minute", &s->minute,
         dbguard_snapshot_lived(s, s->minute.seconds));
    span(view, "last hour", &s->hour,
         dbguard_snapshot_lived(s, s->hour.seconds));
    dbguard_view_print(view, "</table></div>\n<details><summary>All totals "
                       "since the start</summary><table>\n");
#define COUNTER(field, name, help)                                            \
    dbguard_view_print(view, "<tr><td class=\"n\">%" PRIu64 "</td><td>%s</td>" \
                       "</tr>\n", s->counters.field, help);
#include "counters.def"
#undef COUNTER
    dbguard_view_print(view, "</table></details>\n");
}

static void holders(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    uint32_t i;

    if (s->nholders == 0)
        return;
    dbguard_view_print(view, "<h3>Request by request</h3>\n"
                       "<div class=\"s\"><table><tr><th>state</th>"
                       "<th class=\"n\">seconds</th>"
                       "<th class=\"n\">process</th><th>client</th>"
                       "<th>endpoint</th></tr>\n");
    for (i = 0; i < s->nholders; i++) {
        const dbguard_holder_t *h = &s->holders[i];

        if (i >= LISTED && h->state == DBGUARD_WAITING)
            break;

        dbguard_view_print(view, "<tr><td>%s</td><td class=\"n\">%.3f</td>"
                           "<td class=\"n\">%d</td><td>",
                           h->state == DBGUARD_HELD ? "holds" : "waits",
                           (double)h->age / SECOND, h->visitor.pid);
        dbguard_html_escaped(view, h->visitor.client);
        dbguard_view_print(view, "</td><td>");
        dbguard_html_escaped(view, h->visitor.endpoint);
        dbguard_view_print(view, "</td></tr>\n");
    }
    dbguard_view_print(view, "</table></div>\n");
    if (i < s->nholders)
        dbguard_view_print(view, "<p>and %u more that wait</p>\n",
                           s->nholders - i);
}

static void database(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    const dbguard_database_t *db = &s->database;

    if (db->attempted == 0) {
        if (s->facts.has_database)
            dbguard_view_print(view, "<p>Database: nobody has asked it yet; "
                               "when that lasts, see what httpd's error log "
                               "says of dbguard-monitor.</p>\n");
        return;
    }
    dbguard_view_print(view, "<p>Database: <strong>%s</strong> for %" PRId64
                       " s (%s)%s.", dbguard_dbstate_name(db->state),
                       (s->now - db->since) / SECOND,
                       dbguard_dbstate_meaning(db->state),
                       s->stale ? "; old news: dbguard-monitor is silent" : "");
    if (db->error != 0) {
        dbguard_view_print(view, " Error %u: ", db->error);
        dbguard_html_escaped(view, db->text);
        dbguard_view_print(view, ". Remedy: %s.",
                           dbguard_dbstate_remedy(db->state));
    }
    if (db->why[0] != '\0')
        dbguard_view_print(view, "<br>Budget: %s", db->why);
    if (db->answered != 0)
        dbguard_view_print(view, "<br>%u connections, %u running",
                           db->figures.threads_connected,
                           db->figures.threads_running);
    dbguard_view_print(view, "</p>\n");
}

static void little(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    dbguard_words_t words;

    dbguard_view_explain(&words, s);
    if (words.needed[0] == '\0')
        return;
    dbguard_view_print(view, "<p>Needed: %s.<br>%c%s.", words.needed,
                       words.lasts[0] - 'a' + 'A', words.lasts + 1);
    if (words.verdict[0] != '\0')
        dbguard_view_print(view, "<br><strong>%s</strong>", words.verdict);
    dbguard_view_print(view, "</p>\n");
}

static void kept(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    if (s->kept_lighter > 0)
        dbguard_view_print(view, "<br>%u free and kept for lighter work than "
                           "the heaviest.", s->kept_lighter);
    if (s->kept_classes > 0)
        dbguard_view_print(view, "<br>%u free and kept for classes below their "
                           "minimum.", s->kept_classes);
}

void dbguard_view_html(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    dbguard_view_print(view,
                       "<hr>\n<section id=\"dbguard\" class=\"dbguard\">\n");
    style(view);
    dbguard_view_print(view,
                       "<h2>Database connections (mod_dbguard)</h2>\n"
                       "<p><strong>%u of %u tokens out</strong>, %u of %u "
                       "waiting places taken.%s%s",
                       s->held, s->limits.budget, s->waiting, s->limits.queue,
                       !s->engine
                           ? " <strong>DBGuardEngine is Off: nothing is "
                             "guarded.</strong>"
                       : s->limits.dryrun
                           ? " <strong>DryRun: nobody is refused.</strong> "
                             "What waits is running."
                           : "",
                       s->elder ? " Requests from before an upgrade count "
                                  "against the budget, too."
                                : "");
    kept(view, s);
    dbguard_view_print(view, "</p>\n");
    database(view, s);
    little(view, s);
    picture(view, s);
    dbguard_html_groups(view, s);
    dbguard_html_endpoints(view, s);
    dbguard_html_classes(view, s);
    holders(view, s);
    figures(view, s);
    dbguard_view_print(view, "</section>\n");
}
