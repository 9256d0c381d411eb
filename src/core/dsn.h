#ifndef DBGUARD_DSN_H
#define DBGUARD_DSN_H

/* How to reach the database: the argument of DBGuardDatabase, and the lines by
 * which httpd and dbguardctl hand it to dbguard-monitor over a pipe. */

#include <stddef.h>
#include <stdint.h>

typedef struct dbguard_dsn_t {
    char user[81];
    char host[256];   /* empty: a socket */
    char socket[108]; /* empty: host; of sun_path's size */
    uint32_t port;    /* 0: 3306 with a host */
    uint32_t extra_port; /* 0: none */
    int tls;          /* 1 on, 0 off */
    char password[257];
} dbguard_dsn_t;

/* Read mariadb://USER@HOST[:PORT] or mariadb://USER@/SOCKET; HOST may be an
 * IPv6 address in brackets. dsn is cleared first. NULL, or what is wrong, as
 * the end of a sentence "... is not valid: ". */
const char *dbguard_dsn_parse(dbguard_dsn_t *dsn, const char *url);

/* Take one word extra-port=N or tls=on|off in. NULL, or what is allowed. */
const char *dbguard_dsn_option(dbguard_dsn_t *dsn, const char *word);

/* Write all of it, the password too, as lines "key value", ended by an empty
 * one. Returns the length; size must be at least DBGUARD_DSN_LINES. */
#define DBGUARD_DSN_LINES 1024
size_t dbguard_dsn_write(const dbguard_dsn_t *dsn, char *buf, size_t size);

/* Take one such line, without its newline, in. 1; 0 when it is none. */
int dbguard_dsn_read(dbguard_dsn_t *dsn, const char *line);

#endif
