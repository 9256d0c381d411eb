/* How to reach the database: see dsn.h. */

#include <stdio.h>
#include <string.h>

#include "dsn.h"
#include "value.h"

#define SCHEME "mariadb://"

/* Copy len bytes when they fit. */
static int copy(char *to, size_t size, const char *from, size_t len)
{
    if (len >= size)
        return 0;
    memcpy(to, from, len);
    to[len] = '\0';
    return 1;
}

static const char *parse_port(dbguard_dsn_t *dsn, const char *text)
{
    int64_t port;

    if (*text == '\0')
        return NULL;
    if (*text != ':' || !dbguard_value_number(text + 1, 1, 65535, &port))
        return "the port is a whole number from 1 to 65535";
    dsn->port = (uint32_t)port;
    return NULL;
}

static const char *parse_host(dbguard_dsn_t *dsn, const char *text)
{
    size_t len = strcspn(text, ":");

    if (*text == '[') {
        const char *end = strchr(text, ']');

        if (end == NULL)
            return "an IPv6 address ends in ]";
        len = (size_t)(end - text) - 1;
        text++;
        if (len == 0 || !copy(dsn->host, sizeof(dsn->host), text, len))
            return "there is no host, or it is too long";
        return parse_port(dsn, end + 1);
    }
    if (len == 0 || text[strcspn(text, "/?@ \t")] != '\0'
        || !copy(dsn->host, sizeof(dsn->host), text, len))
        return "after @ comes HOST, HOST:PORT or a socket's absolute path";
    return parse_port(dsn, text + len);
}

const char *dbguard_dsn_parse(dbguard_dsn_t *dsn, const char *url)
{
    const char *user = url + strlen(SCHEME);
    const char *at, *c;

    memset(dsn, 0, sizeof(*dsn));
    if (strncmp(url, SCHEME, strlen(SCHEME)) != 0)
        return "it begins with mariadb://";
    for (c = url; *c != '\0'; c++)
        if ((unsigned char)*c <= ' ' || *c == 127)
            return "it has no blanks or control characters";
    /* A socket's path may have an @ in it. */
    at = strstr(user, "@/");
    if (at == NULL)
        at = strrchr(user, '@');
    if (at == NULL || at == user)
        return "an account's name and @ come after mariadb://";
    if (memchr(user, ':', (size_t)(at - user)) != NULL)
        return "the password belongs in the file that DBGuardPasswordFile "
               "names";
    if (!copy(dsn->user, sizeof(dsn->user), user, (size_t)(at - user)))
        return "the account's name is too long";
    if (at[1] != '/')
        return parse_host(dsn, at + 1);
    if (!copy(dsn->socket, sizeof(dsn->socket), at + 1, strlen(at + 1)))
        return "the socket's path is too long";
    return NULL;
}

const char *dbguard_dsn_option(dbguard_dsn_t *dsn, const char *word)
{
    int64_t port;

    if (strncmp(word, "extra-port=", 11) == 0
        && dbguard_value_number(word + 11, 1, 65535, &port)) {
        dsn->extra_port = (uint32_t)port;
        return NULL;
    }
    if (strcmp(word, "tls=on") == 0 || strcmp(word, "tls=off") == 0) {
        dsn->tls = word[5] == 'n';
        return NULL;
    }
    return "extra-port=N with a port from 1 to 65535, or tls=on, or tls=off";
}

size_t dbguard_dsn_write(const dbguard_dsn_t *dsn, char *buf, size_t size)
{
    int n;

    if (strchr(dsn->password, '\n') != NULL)
        return 0;
    n = snprintf(buf, size,
                     "user %s\nhost %s\nsocket %s\nport %u\nextra-port %u\n"
                     "tls %u\npassword %s\n\n",
                     dsn->user, dsn->host, dsn->socket, dsn->port,
                     dsn->extra_port, (unsigned)dsn->tls, dsn->password);

    return n > 0 && (size_t)n < size ? (size_t)n : 0;
}

int dbguard_dsn_read(dbguard_dsn_t *dsn, const char *line)
{
    const char *value = strchr(line, ' ');
    int64_t n = 0;
    size_t key, len;

    if (value == NULL)
        return 0;
    key = (size_t)(value++ - line);
    len = strlen(value);
#define IS(name) (key == strlen(name) && strncmp(line, name, key) == 0)
    if (IS("user"))
        return copy(dsn->user, sizeof(dsn->user), value, len);
    if (IS("host"))
        return copy(dsn->host, sizeof(dsn->host), value, len);
    if (IS("socket"))
        return copy(dsn->socket, sizeof(dsn->socket), value, len);
    if (IS("password"))
        return copy(dsn->password, sizeof(dsn->password), value, len);
    if (!dbguard_value_number(value, 0, 65535, &n))
        return 0;
    if (IS("port"))
        dsn->port = (uint32_t)n;
    else if (IS("extra-port"))
        dsn->extra_port = (uint32_t)n;
    else if (IS("tls"))
        dsn->tls = n != 0;
    else
        return 0;
#undef IS
    return 1;
}
