#ifndef DBGUARD_VIEW_H
#define DBGUARD_VIEW_H

/* One snapshot, shown in several ways. The views only write; where to is the
 * caller's. */

#include <stdarg.h>

#include "snapshot.h"

typedef struct dbguard_view_t {
    void (*emit)(void *context, const char *format, va_list args);
    void *context;
} dbguard_view_t;

void dbguard_view_print(const dbguard_view_t *view, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Write text from column `column` on, broken at blanks so that no line is
 * longer than 80 columns; the next lines begin at column `indent`. Words that
 * do not fit into a line stay whole. Ends the line. */
void dbguard_view_wrap(const dbguard_view_t *view, int column, int indent,
                       const char *text);

/* Lines "DBGuardName: 123" for server-status?auto. Exporters split them at ": "
 * and take the rest for a number: bare numbers only, no second colon, no blank
 * line, names that are alphanumeric and begin with DBGuard. */
void dbguard_view_auto(const dbguard_view_t *view,
                       const dbguard_snapshot_t *snapshot);

/* A section for the page server-status: no scripts, nothing external. */
void dbguard_view_html(const dbguard_view_t *view,
                       const dbguard_snapshot_t *snapshot);

/* The effective configuration, as text. */
void dbguard_view_settings(const dbguard_view_t *view,
                           const dbguard_setting_t *settings, uint32_t n);

/* The lint's report, as text. Returns how many warnings and errors there
 * are. */
uint32_t dbguard_view_lint(const dbguard_view_t *view,
                           const dbguard_lint_t *lint);

/* Plain text for a terminal of 80 columns. */
void dbguard_view_text(const dbguard_view_t *view,
                       const dbguard_snapshot_t *snapshot);

#endif
