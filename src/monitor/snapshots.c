/* DBGuardSnapshot: see snapshots.h. A line is built in memory and written at
 * once, so that lines of an old and a new monitor never mix. */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "snapshots.h"

#define SECOND 1000000

typedef struct line_t {
    char text[4096];
    size_t len;
} line_t;

__attribute__((format(printf, 2, 3)))
static void add(line_t *line, const char *format, ...)
{
    size_t left = sizeof(line->text) - line->len;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(line->text + line->len, left, format, args);
    va_end(args);
    if (n > 0)
        line->len += (size_t)n < left ? (size_t)n : left - 1;
}

static void add_string(line_t *line, const char *text)
{
    add(line, "\"");
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            add(line, "\\%c", *text);
        else if ((unsigned char)*text < ' ')
            add(line, "\\u%04x", (unsigned)*text);
        else
            add(line, "%c", *text);
    }
    add(line, "\"");
}

static void build(line_t *line, const dbguard_shared_t *shared)
{
    const dbguard_database_t *db = &shared->database;
    char when[32];
    time_t t = time(NULL);
    struct tm tm;
    uint32_t i;

    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
    add(line, "{\"time\":\"%s\",\"state\":\"%s\",\"budget\":%u,\"held\":%u,"
        "\"waiting\":%u,\"max_connections\":%u,\"connected\":%u,"
        "\"running\":%u,\"users\":[", when, dbguard_dbstate_name(db->state),
        shared->limits.budget, shared->prefix.held, shared->prefix.waiting,
        db->figures.max_connections, db->figures.threads_connected,
        db->figures.threads_running);
    for (i = 0; i < db->figures.nusers; i++) {
        const dbguard_user_t *u = &db->figures.users[i];

        add(line, "%s{\"user\":", i > 0 ? "," : "");
        add_string(line, u->name);
        add(line, ",\"total\":%u,\"sleeping\":%u,\"longest_sleep\":%u,"
            "\"longest_active\":%u}", u->total, u->sleeping, u->longest_sleep,
            u->longest_active);
    }
    add(line, "]}\n");
}

/* The whole line, or nothing of it. */
static int append(int fd, const line_t *line)
{
    struct stat before;
    int known = fstat(fd, &before) == 0;
    ssize_t n = write(fd, line->text, line->len);

    if (n > 0 && (size_t)n < line->len && known
        && ftruncate(fd, before.st_size) != 0)
        return 0;
    return n == (ssize_t)line->len;
}

int snapshots_write(snapshots_t *snapshots, const dbguard_shared_t *shared,
                    int64_t now)
{
    int64_t every = shared->database.state == DBGUARD_DB_FULL
                        ? SECOND
                        : snapshots->every;
    line_t line = {.len = 0};
    int was_failing = snapshots->failing;
    int why;

    /* The clock of the polls is not exact to the microsecond. */
    if (snapshots->fd < 0 || now - snapshots->last < every - SECOND / 10)
        return 0;
    snapshots->last = now;
    build(&line, shared);
    errno = 0;
    snapshots->failing = !append(snapshots->fd, &line);
    why = errno != 0 ? errno : ENOSPC;
    return snapshots->failing && !was_failing ? why : 0;
}
