/* Endpoints: see endpoint.h. One pass over the path, no allocation. */

#include <ctype.h>
#include <string.h>

#include "endpoint.h"

/* Room that is kept for "/..." and NUL. */
#define CUT 5

static int is_uuid(const char *s, size_t len)
{
    size_t i;

    if (len != 36)
        return 0;
    for (i = 0; i < len; i++) {
        int dash = i == 8 || i == 13 || i == 18 || i == 23;

        if (dash ? s[i] != '-' : !isxdigit((unsigned char)s[i]))
            return 0;
    }
    return 1;
}

enum { DIGIT = 1, HEX = 2, LETTER = 4, MARK = 8 };

/* What a character of a segment can be. */
static const unsigned char kinds[256] = {
    ['0' ... '9'] = DIGIT | HEX,
    ['a' ... 'f'] = LETTER | HEX,
    ['g' ... 'z'] = LETTER,
    ['A' ... 'F'] = LETTER | HEX,
    ['G' ... 'Z'] = LETTER,
    ['-'] = MARK, ['_'] = MARK, ['.'] = MARK, ['~'] = MARK, ['='] = MARK,
    ['%'] = MARK
};

/* Does the segment name one record? */
static int is_id(const char *s, size_t len)
{
    size_t digits = 0, hex = 0, letters = 0, marks = 0;
    size_t i;

    for (i = 0; i < len; i++) {
        unsigned char kind = kinds[(unsigned char)s[i]];

        digits += kind & DIGIT;
        hex += (kind & HEX) / HEX;
        letters += (kind & LETTER) / LETTER;
        marks += (kind & MARK) / MARK;
    }
    if (digits == len)
        return 1;
    if (hex == len && (len >= 16 || (len >= 8 && digits > 0)))
        return 1;
    if (is_uuid(s, len))
        return 1;
    return len >= 20 && digits + letters + marks == len && digits >= 2
           && letters > 0;
}

size_t dbguard_endpoint_fold(const char *method, const char *path, char *buf,
                             size_t size)
{
    const char *end;
    size_t n = 0, i;

    while (*method != '\0' && n < size - CUT - 3)
        buf[n++] = *method++;
    buf[n++] = ' ';
    if (path == NULL || *path != '/') {
        buf[n++] = '*';
        path = end = "";
    }
    else
        end = path + strcspn(path, "?");
    while (path < end) {
        const char *s = path + 1;
        size_t len = 0;

        while (s + len < end && s[len] != '/')
            len++;
        path = s + len;
        if (len == 0 && path < end)
            continue;
        if (len > 0 && is_id(s, len)) {
            s = "*";
            len = 1;
        }
        if (n + 1 + len > size - CUT) {
            memcpy(buf + n, "/...", 4);
            n += 4;
            break;
        }
        buf[n++] = '/';
        memcpy(buf + n, s, len);
        n += len;
    }
    buf[n] = '\0';
    for (i = 0; i < n; i++)
        if (buf[i] < ' ' || buf[i] > '~')
            buf[i] = '?';
    return n;
}
