/* The two ways in which views write. */

#include <string.h>

#include "view.h"

#define COLUMNS 80

void dbguard_view_print(const dbguard_view_t *view, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    view->emit(view->context, format, args);
    va_end(args);
}

void dbguard_view_wrap(const dbguard_view_t *view, int column, int indent,
                       const char *text)
{
    int begun = 0; /* there is a word on this line already */

    while (*text != '\0') {
        int len = (int)strcspn(text, " ");

        if (len > 0) {
            if (column + begun + len > COLUMNS && column > indent) {
                dbguard_view_print(view, "\n%*s", indent, "");
                column = indent;
                begun = 0;
            }
            dbguard_view_print(view, "%s%.*s", begun ? " " : "", len, text);
            column += begun + len;
            begun = 1;
        }
        text += len + (text[len] == ' ');
    }
    dbguard_view_print(view, "\n");
}
