/* The snapshot for a terminal: dbguardctl status. */

#include <inttypes.h>
#include <string.h>

#include "value.h"
#include "parts.h"

#define SECOND 1000000
#define BAR 50
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* All who hold are listed, and who waits up to so many lines; the rest is
 * counted. */
#define LISTED 20

static void bar(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    uint64_t budget = s->limits.budget;
    uint64_t filled = s->held >= budget ? BAR : s->held * BAR / budget;
    char text[BAR + 1];
    int i;

    for (i = 0; i < BAR; i++)
        text[i] = (uint64_t)i < filled ? '#' : '.';
    text[BAR] = '\0';
    dbguard_view_print(view, "tokens   [%s] %u of %u out\n", text, s->held,
                       s->limits.budget);
}

/* A character for a level: blank for none, then eight steps up to most. */
static char step(uint32_t level, uint32_t most)
{
    static const char steps[] = ".:-=+*#@";

    if (level == 0)
        return ' ';
    return steps[level >= most ? 7 : (uint64_t)level * 7 / most];
}

static uint32_t figure(const dbguard_second_t *s, int which)
{
    return which == 0 ? s->held_max
                      : which == 1 ? s->waiting_max : s->refused;
}

static void minute(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    static const char *const names[] = {"held", "waiting", "refused"};
    int which, i;

    dbguard_view_print(view, "\nthe last minute, a character a second, now at "
                             "the right; @ is the most,\nwhich stands behind "
                             "it\n");
    for (which = 0; which < 3; which++) {
        char text[DBGUARD_RECENT + 1];
        uint32_t most = 0;

        for (i = 0; i < DBGUARD_RECENT; i++)
            if (figure(&s->recent[i], which) > most)
                most = figure(&s->recent[i], which);
        for (i = 0; i < DBGUARD_RECENT; i++)
            text[i] = step(figure(&s->recent[i], which), most);
        text[DBGUARD_RECENT] = '\0';
        dbguard_view_print(view, "%-8s |%s| %u\n", names[which], text, most);
    }
}

static void span(const dbguard_view_t *view, const char *name,
                 const dbguard_span_t *s, double lived)
{
    double hold = s->released ? (double)s->hold_us / (double)s->released / 1e3
                              : 0;

    dbguard_view_print(view, "%-12s %9.2f %9" PRIu64 " %9" PRIu64 " %9" PRIu64
                       " %9u %11.1f\n", name,
                       (double)s->admitted / lived, s->admitted,
                       s->refused, s->aborted, s->held_max, hold);
}

static void spans(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    dbguard_view_print(view, "\n%-12s %9s %9s %9s %9s %9s %11s\n", "",
                       "admitted/s", "admitted", "refused", "hung up",
                       "held peak", "mean hold ms");
    span(view, "last minute", &s->minute,
         dbguard_snapshot_lived(s, s->minute.seconds));
    span(view, "last hour", &s->hour,
         dbguard_snapshot_lived(s, s->hour.seconds));
}

static void total(const dbguard_view_t *view, uint64_t n, const char *help)
{
    dbguard_view_print(view, "%15" PRIu64 "  ", n);
    dbguard_view_wrap(view, 17, 17, help);
}

static void totals(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    dbguard_view_print(view, "\nsince the start\n");
#define COUNTER(field, name, help)                                            \
    if (s->counters.field > 0)                                                \
        total(view, s->counters.field, help);
#include "counters.def"
#undef COUNTER
}

static void holders(const dbguard_view_t *view, const dbguard_snapshot_t *s,
                    int all)
{
    uint32_t i;
    int length;

    if (s->nholders == 0)
        return;
    dbguard_view_print(view, "\n%-7s %9s %8s  %-16s %s\n", "state",
                       "seconds", "process", "client", "endpoint");
    for (i = 0; i < s->nholders; i++) {
        const dbguard_holder_t *h = &s->holders[i];

        if (!all && i >= LISTED && h->state == DBGUARD_WAITING)
            break;

        dbguard_view_print(view, "%-7s %9.3f %8d  %-16s ",
                           h->state == DBGUARD_HELD ? "holds" : "waits",
                           (double)h->age / SECOND, h->visitor.pid,
                           h->visitor.client);
        length = (int)strlen(h->visitor.client);
        dbguard_view_wrap(view, 29 + (length > 16 ? length : 16), 28,
                          h->visitor.endpoint);
    }
    if (i < s->nholders)
        dbguard_view_print(view, "... and %u more that wait\n",
                           s->nholders - i);
}

static void indented(const dbguard_view_t *view, const char *text)
{
    if (*text == '\0')
        return;
    dbguard_view_print(view, "%27s", "");
    dbguard_view_wrap(view, 27, 27, text);
}

void dbguard_view_settings(const dbguard_view_t *view,
                           const dbguard_setting_t *settings, uint32_t n)
{
    uint32_t i;

    dbguard_view_print(view, "effective configuration\n");
    for (i = 0; i < n && i < DBGUARD_SETTINGS; i++) {
        const dbguard_setting_t *line = &settings[i];

        const char *said = line->valid ? line->source : "NOT VALID";

        if (27 + MAX(10, strlen(line->value)) + strlen(said) <= 80)
            dbguard_view_print(view, "  %-22s %-10s %s\n", line->name,
                               line->value, said);
        else {
            dbguard_view_print(view, "  %-22s %s\n", line->name, line->value);
            indented(view, said);
        }
        if (!line->valid)
            indented(view, line->source);
        indented(view, line->note);
    }
}

static void database(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    const dbguard_database_t *db = &s->database;
    uint32_t i;

    if (db->attempted == 0) {
        if (s->facts.has_database)
            dbguard_view_print(view, "database nobody has asked it yet; when "
                               "that lasts, see what httpd's error log says of "
                               "dbguard-monitor\n");
        return;
    }
    dbguard_view_print(view, "database %s for %" PRId64 " s: %s%s\n",
                       dbguard_dbstate_name(db->state),
                       (s->now - db->since) / SECOND,
                       dbguard_dbstate_meaning(db->state),
                       s->stale ? " (OLD NEWS: dbguard-monitor is silent)"
                                : "");
    if (db->error != 0)
        dbguard_view_print(view, "         error %u: %s\n         remedy: %s\n",
                           db->error, db->text,
                           dbguard_dbstate_remedy(db->state));
    if (db->why[0] != '\0')
        dbguard_view_print(view, "budget   %s\n", db->why);
    if (db->answered == 0)
        return;
    dbguard_view_print(view, "         %u connected, %u running\n",
                       db->figures.threads_connected,
                       db->figures.threads_running);
    for (i = 0; i < db->figures.nusers && i < DBGUARD_USERS; i++) {
        const dbguard_user_t *u = &db->figures.users[i];

        dbguard_view_print(view, "         %-16s %4u, %u asleep (longest %u "
                           "s), longest active %u s\n", u->name, u->total,
                           u->sleeping, u->longest_sleep, u->longest_active);
    }
}

static void said(const dbguard_view_t *view, const char *label,
                 const char *words)
{
    if (*words == '\0')
        return;
    dbguard_view_print(view, "%-9s", label);
    dbguard_view_wrap(view, 9, 9, words);
}

static void little(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    dbguard_words_t words;

    dbguard_view_explain(&words, s);
    said(view, "needed", words.needed);
    said(view, "", words.lasts);
    said(view, "", words.verdict);
}

static void kept(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    if (s->kept_lighter > 0)
        dbguard_view_print(view, "kept     %u free for lighter work than the "
                           "heaviest\n", s->kept_lighter);
    if (s->kept_classes > 0)
        dbguard_view_print(view, "kept     %u free for classes below their "
                           "minimum\n", s->kept_classes);
}

void dbguard_view_text(const dbguard_view_t *view,
                       const dbguard_snapshot_t *s, int all)
{
    char patience[24];

    dbguard_view_print(view, "mod_dbguard of httpd %u, up %" PRId64
                       " s, generation %u\n%s\n", s->parent,
                       s->uptime / SECOND, s->generation,
                       !s->nsettings ? ""
                       : !s->engine ? "DBGuardEngine Off: NOTHING IS GUARDED\n"
                       : s->limits.dryrun
                           ? "DBGuardEngine DryRun: NOBODY IS REFUSED; "
                             "what waits is running\n"
                           : "");
    bar(view, s);
    dbguard_view_print(view, "waiting  %u of %u places, patience %s\n",
                       s->waiting, s->limits.queue,
                       s->limits.patience == 0
                           ? "automatic"
                           : dbguard_value_print_duration(s->limits.patience,
                                                          patience));
    kept(view, s);
    database(view, s);
    little(view, s);
    if (s->elder)
        dbguard_view_print(view, "         requests from before an upgrade are "
                                 "counted against the budget, too\n");
    if (!s->steady)
        dbguard_view_print(view, "         the scoreboard is being changed all "
                                 "the time; sums may not add up\n");
    /* Who holds is what is looked for first. */
    dbguard_text_groups(view, s);
    dbguard_text_endpoints(view, s, all);
    dbguard_text_classes(view, s);
    holders(view, s, all);
    minute(view, s);
    spans(view, s);
    totals(view, s);
    dbguard_view_print(view, "\n");
    dbguard_view_settings(view, s->settings, s->nsettings);
}
