/* The tables of dbguardctl status. A list that is cut short says how many
 * lines are missing, and what they come to. */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "parts.h"

#define SECOND 1000000
#define TOP_ENDPOINTS 10
#define TOP_GROUPS 10
#define TOP_CLIENTS 5

const char *dbguard_view_class(const dbguard_snapshot_t *s, uint32_t class)
{
    return class == 0 ? "default" : s->limits.classes[class].name;
}

int dbguard_view_is_slower(const dbguard_row_t *row)
{
    return row->samples > 0 && row->estimate >= 2 * row->hold;
}

void dbguard_view_add(dbguard_row_t *sum, const dbguard_row_t *row)
{
    sum->needed += row->needed;
    sum->held += row->held;
    sum->waiting += row->waiting;
    sum->rate += row->rate;
    sum->arrived += row->arrived;
    sum->refused += row->refused;
}

/* --- who holds and who waits ---------------------------------------------- */

static void groups(const dbguard_view_t *view, const dbguard_groups_t *g,
                   const char *what, uint32_t top)
{
    uint32_t held = g->held, waiting = g->waiting, i;

    dbguard_view_print(view, "\n%7s %7s %9s  %s\n", "holds", "waits",
                       "oldest s", what);
    for (i = 0; i < g->nlisted && i < top; i++) {
        const dbguard_group_t *line = &g->listed[i];

        dbguard_view_print(view, "%7u %7u %9.3f  ", line->held, line->waiting,
                           (double)line->oldest / SECOND);
        dbguard_view_wrap(view, 27, 27, line->name);
        held -= line->held;
        waiting -= line->waiting;
    }
    if (i < g->number)
        dbguard_view_print(view, "%7u %7u %9s  ... %u more\n", held, waiting,
                           "", g->number - i);
}

void dbguard_text_groups(const dbguard_view_t *view,
                         const dbguard_snapshot_t *s)
{
    if (s->nholders == 0)
        return;
    groups(view, &s->endpoints, "endpoint", TOP_GROUPS);
    groups(view, &s->clients, "client", TOP_CLIENTS);
}

/* --- endpoints ------------------------------------------------------------ */

static void name_of(const dbguard_snapshot_t *s, const dbguard_row_t *row,
                    char *name, size_t size)
{
    char class[DBGUARD_CLASS_MAX + 4] = "";

    if (row->class != 0)
        snprintf(class, sizeof(class), " [%s]",
                 dbguard_view_class(s, row->class));
    if (row->known == DBGUARD_ENDPOINT_NEW)
        snprintf(name, size, "(not seen before: %u endpoint%s)%s",
                 row->endpoints, row->endpoints == 1 ? "" : "s", class);
    else if (row->known == DBGUARD_ENDPOINT_OTHER)
        snprintf(name, size, "(no place in the table)%s", class);
    else
        snprintf(name, size, "%s%s", row->name, class);
}

static void endpoint(const dbguard_view_t *view, const dbguard_snapshot_t *s,
                     const dbguard_row_t *row)
{
    char name[DBGUARD_ENDPOINT_MAX + DBGUARD_CLASS_MAX + 4];

    name_of(s, row, name, sizeof(name));
    dbguard_view_print(view, "%6.2f %5u %7.2f %5u %9.1f%c %7" PRIu64 "  ",
                       row->needed, row->held, row->rate, row->peak,
                       (double)row->estimate / 1e3,
                       dbguard_view_is_slower(row) ? '+' : ' ', row->refused);
    dbguard_view_wrap(view, 47, 27, name);
}

void dbguard_text_endpoints(const dbguard_view_t *view,
                            const dbguard_snapshot_t *s, int all)
{
    uint32_t listed = all || s->nrows < TOP_ENDPOINTS ? s->nrows
                                                      : TOP_ENDPOINTS;
    dbguard_row_t more = {.held = 0};
    int slower = 0;
    uint32_t i;

    if (s->nrows == 0)
        return;
    dbguard_view_print(view, "\nendpoints by tokens held or needed; needs = "
                             "per s (the last minute) x hold\n"
                             "%6s %5s %7s %5s %9s %8s  %s\n", "needs", "holds",
                       "per s", "peak", "hold ms", "refused", "endpoint");
    for (i = 0; i < listed; i++) {
        endpoint(view, s, &s->rows[i]);
        slower |= dbguard_view_is_slower(&s->rows[i]);
    }
    for (; i < s->nrows; i++)
        dbguard_view_add(&more, &s->rows[i]);
    if (listed < s->nrows)
        dbguard_view_print(view, "%6.2f %5u %7.2f %5s %9s  %7" PRIu64 "  ... "
                                 "%u more: status --all\n",
                           more.needed, more.held, more.rate, "", "",
                           more.refused, s->nrows - listed);
    if (slower)
        dbguard_view_print(view, "+ what runs now has run for at least twice "
                                 "as long as its like used to\n");
}

/* --- classes -------------------------------------------------------------- */

static const char *number(char *text, size_t size, uint32_t n, uint32_t none)
{
    snprintf(text, size, n == none ? "-" : "%u", n);
    return text;
}

void dbguard_text_classes(const dbguard_view_t *view,
                          const dbguard_snapshot_t *s)
{
    char min[16], max[16];
    uint32_t i;

    if (s->nclasses < 2)
        return;
    dbguard_view_print(view, "\n%7s %7s %7s %7s  %s\n", "holds", "min", "max",
                       "waits", "class");
    for (i = 0; i < s->nclasses; i++)
        dbguard_view_print(view, "%7u %7s %7s %7u  %s\n", s->classes[i].held,
                           number(min, sizeof(min), s->classes[i].min, 0),
                           number(max, sizeof(max), s->classes[i].max,
                                  UINT32_MAX),
                           s->classes[i].waiting, dbguard_view_class(s, i));
}
