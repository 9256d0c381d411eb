/* The lint's report: every rule that had something to judge, also when all is
 * well. */

#include <string.h>

#include "view.h"

#define WIDTH 80
#define INDENT 10

/* Words in lines of WIDTH; all but the first begin at INDENT, where the first
 * is already. */
static void wrap(const dbguard_view_t *view, const char *text)
{
    size_t column = INDENT;

    while (*text != '\0') {
        size_t len = strcspn(text, " ");

        if (column > INDENT && column + 1 + len > WIDTH) {
            dbguard_view_print(view, "\n%*s", INDENT, "");
            column = INDENT;
        }
        else if (column > INDENT) {
            dbguard_view_print(view, " ");
            column++;
        }
        dbguard_view_print(view, "%.*s", (int)len, text);
        column += len;
        text += len + strspn(text + len, " ");
    }
    dbguard_view_print(view, "\n");
}

static void finding(void *context, const dbguard_finding_t *f)
{
    const dbguard_view_t *view = context;

    dbguard_view_print(view, "\n%-9s %s (DBGUARD%04u)\n%*s",
                       dbguard_severity_name(f->severity), f->id, f->number,
                       INDENT, "");
    wrap(view, f->sentence);
    if (f->remedy[0] == '\0')
        return;
    dbguard_view_print(view, "  remedy: ");
    wrap(view, f->remedy);
}

uint32_t dbguard_view_lint(const dbguard_view_t *view,
                           const dbguard_lint_t *lint)
{
    uint32_t found;

    dbguard_view_print(view, "lint\n");
    if (!lint->facts.known)
        dbguard_view_print(view, "  nothing is known of this configuration\n");
    found = dbguard_lint_run(lint, finding, (void *)view, NULL);
    dbguard_view_print(view, "\nwarnings and errors: %u\n", found);
    return found;
}
