#ifndef DBGUARD_ENDPOINT_H
#define DBGUARD_ENDPOINT_H

/* The endpoint of a request: its method and its path, with what names one
 * record rather than a piece of the application folded away.
 *
 *     GET /orders/123/reset        -> GET /orders/STAR/reset
 *
 * where STAR is an asterisk. */

#include <stddef.h>

/* Write the endpoint into buf (size >= 16), always ended by NUL and never
 * longer than the buffer: a path that does not fit is cut after its last whole
 * segment and ends in "/...". path is the raw path of the request line, up to
 * a '?' if there is one; NULL stands for "*". A segment is folded to "*" when
 * it is
 *   - all decimal digits;
 *   - a UUID, or at least 8 hex digits with a decimal digit among them, or at
 *     least 16 hex digits;
 *   - at least 20 letters, digits, '-', '_', '.', '~', '=' or %-escapes with
 *     both a letter and at least two decimal digits among them: a token.
 * Empty segments ("//") are dropped. What is not printable ASCII
 * becomes '?'.
 * Returns the length. */
size_t dbguard_endpoint_fold(const char *method, const char *path, char *buf,
                             size_t size);

#endif
