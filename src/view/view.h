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

/* Plain text for a terminal of 80 columns. all: no list is cut short. */
void dbguard_view_text(const dbguard_view_t *view,
                       const dbguard_snapshot_t *snapshot, int all);

/* Little's law for the whole budget: N = lambda x T, over the last minute. */
typedef struct dbguard_outlook_t {
    uint32_t came;     /* requests in the last minute; also who was refused */
    uint32_t peak;     /* in its busiest second */
    double rate;       /* came a second, on average */
    double hold;       /* mean of what each is expected to hold, microseconds;
                          0: not known */
    int known;         /* 0: no hold has ended yet; hold is a guess */
    double needed;     /* tokens at rate and hold */
    double needed_peak; /* and at peak */
    double lasts;      /* the mean hold at which the budget runs out at rate,
                          microseconds; 0: at none */
    double lasts_peak; /* and at peak */
} dbguard_outlook_t;

void dbguard_view_reckon(dbguard_outlook_t *outlook,
                         const dbguard_snapshot_t *snapshot);

#define DBGUARD_SENTENCE 256

/* What is needed, how long the budget lasts, and what that means; each a line
 * of words, "" when there is nothing to say. */
typedef struct dbguard_words_t {
    char needed[DBGUARD_SENTENCE];
    char lasts[DBGUARD_SENTENCE];
    char verdict[DBGUARD_SENTENCE];
} dbguard_words_t;

void dbguard_view_explain(dbguard_words_t *words,
                          const dbguard_snapshot_t *snapshot);

#endif
