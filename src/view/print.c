/* The one way in which views write. */

#include "view.h"

void dbguard_view_print(const dbguard_view_t *view, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    view->emit(view->context, format, args);
    va_end(args);
}
