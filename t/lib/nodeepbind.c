/* Loaded into httpd before the library of AddressSanitizer, which ends a
 * program that opens a library with RTLD_DEEPBIND, as PHP does with each of its
 * extensions. */

#include <dlfcn.h>

void *dlopen(const char *file, int flags)
{
    void *(*next)(const char *, int) = dlsym(RTLD_NEXT, "dlopen");

    return next(file, flags & ~RTLD_DEEPBIND);
}
