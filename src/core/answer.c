/* An answer as text: see answer.h. One table for both directions. */

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "answer.h"
#include "value.h"

#define SMALL(struct_, field)                                                  \
    {#field, offsetof(dbguard_answer_t, struct_.field), 0}
#define LARGE(struct_, field)                                                  \
    {#field, offsetof(dbguard_answer_t, struct_.field), 1}

static const struct {
    const char *key;
    size_t offset;
    int large; /* a uint64_t; else a uint32_t */
} fields[] = {
    SMALL(figures, max_connections),
    SMALL(figures, max_user_connections),
    SMALL(figures, account_limit),
    SMALL(figures, own),
    SMALL(figures, threads_connected),
    SMALL(figures, threads_running),
    SMALL(figures, max_used_connections),
    LARGE(figures, uptime),
    LARGE(figures, connections),
    LARGE(figures, threads_created),
    LARGE(figures, aborted_connects),
    LARGE(figures, aborted_clients),
    LARGE(figures, refused),
    LARGE(details, since_flush),
    SMALL(details, extra_port),
    SMALL(details, extra_max_connections),
    SMALL(details, extra_full)
};

#define FIELDS (sizeof(fields) / sizeof(fields[0]))

static const struct {
    const char *name;
    uint32_t bit;
} privileges[] = {
    {"PROCESS", DBGUARD_MAY_PROCESS},
    {"CONNECTION ADMIN", DBGUARD_MAY_CONNECTION_ADMIN},
    {"SUPER", DBGUARD_MAY_SUPER}
};

#define PRIVILEGES (sizeof(privileges) / sizeof(privileges[0]))

uint32_t dbguard_answer_privilege(const char *name)
{
    size_t i;

    for (i = 0; i < PRIVILEGES; i++)
        if (strcmp(name, privileges[i].name) == 0)
            return privileges[i].bit;
    return 0;
}

/* --- writing ------------------------------------------------------------- */

typedef struct text_t {
    char *buf;
    size_t len;
} text_t;

__attribute__((format(printf, 2, 3)))
static void add(text_t *text, const char *format, ...)
{
    size_t room = DBGUARD_ANSWER_SIZE - text->len;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(text->buf + text->len, room, format, args);
    va_end(args);
    if (n > 0)
        text->len += (size_t)n < room ? (size_t)n : room - 1;
}

/* What comes from the server must not look like a line of its own. */
static void add_text(text_t *text, const char *key, const char *value)
{
    size_t from;

    add(text, "%s ", key);
    from = text->len;
    add(text, "%s", value);
    for (; from < text->len; from++)
        if ((unsigned char)text->buf[from] < ' ')
            text->buf[from] = ' ';
    add(text, "\n");
}

static void add_figures(text_t *text, const dbguard_answer_t *answer)
{
    const char *base = (const char *)answer;
    uint64_t large;
    uint32_t small;
    size_t i;

    for (i = 0; i < FIELDS; i++) {
        memcpy(&large, base + fields[i].offset, sizeof(large));
        memcpy(&small, base + fields[i].offset, sizeof(small));
        add(text, "%s %" PRIu64 "\n", fields[i].key,
            fields[i].large ? large : small);
    }
    add_text(text, "version", answer->details.version);
    for (i = 0; i < PRIVILEGES; i++)
        if (answer->details.may & privileges[i].bit)
            add(text, "grant %s\n", privileges[i].name);
}

static void add_users(text_t *text, const dbguard_figures_t *f)
{
    uint32_t i;

    for (i = 0; i < f->nusers && i < DBGUARD_USERS; i++) {
        const dbguard_user_t *u = &f->users[i];
        char key[64];

        snprintf(key, sizeof(key), "user %u %u %u %u", u->total, u->sleeping,
                 u->longest_sleep, u->longest_active);
        add_text(text, key, u->name);
    }
}

size_t dbguard_answer_write(const dbguard_answer_t *answer, char *buf)
{
    text_t text = {buf, 0};
    dbguard_dbstate_t state = dbguard_database_classify(
        answer->error, answer->text, answer->timed_out);

    add(&text, "state %s\nerror %u\ntimed_out %d\n",
        dbguard_dbstate_name(state), answer->error, answer->timed_out != 0);
    add_text(&text, "text", answer->text);
    if (answer->error == 0) {
        add_figures(&text, answer);
        add_users(&text, &answer->figures);
    }
    add(&text, "end\n");
    return text.len;
}

/* --- reading ------------------------------------------------------------- */

static void read_number(dbguard_answer_t *answer, const char *key,
                        const char *value)
{
    char *base = (char *)answer;
    int64_t n;
    size_t i;

    if (!dbguard_value_number(value, 0, INT64_MAX, &n))
        return;
    if (strcmp(key, "error") == 0)
        answer->error = (uint32_t)n;
    if (strcmp(key, "timed_out") == 0)
        answer->timed_out = n != 0;
    for (i = 0; i < FIELDS; i++) {
        uint64_t large = (uint64_t)n;
        uint32_t small = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;

        if (strcmp(key, fields[i].key) != 0)
            continue;
        if (fields[i].large)
            memcpy(base + fields[i].offset, &large, sizeof(large));
        else
            memcpy(base + fields[i].offset, &small, sizeof(small));
    }
}

static void read_user(dbguard_figures_t *f, const char *value)
{
    dbguard_user_t u;
    int at = 0;

    memset(&u, 0, sizeof(u));
    if (f->nusers >= DBGUARD_USERS
        || sscanf(value, "%u %u %u %u %n", &u.total, &u.sleeping,
                  &u.longest_sleep, &u.longest_active, &at) != 4
        || at == 0)
        return;
    snprintf(u.name, sizeof(u.name), "%s", value + at);
    f->users[f->nusers++] = u;
}

static void read_line(dbguard_answer_t *answer, const char *key,
                      const char *value)
{
    if (strcmp(key, "text") == 0)
        snprintf(answer->text, sizeof(answer->text), "%s", value);
    else if (strcmp(key, "version") == 0)
        snprintf(answer->details.version, sizeof(answer->details.version),
                 "%s", value);
    else if (strcmp(key, "grant") == 0)
        answer->details.may |= dbguard_answer_privilege(value);
    else if (strcmp(key, "user") == 0)
        read_user(&answer->figures, value);
    else
        read_number(answer, key, value);
}

int dbguard_answer_read(dbguard_answer_t *answer, const char *text)
{
    char line[512];
    int whole = 0;

    memset(answer, 0, sizeof(*answer));
    while (*text != '\0' && !whole) {
        size_t len = strcspn(text, "\n");
        size_t kept = len < sizeof(line) ? len : sizeof(line) - 1;
        char *value;

        memcpy(line, text, kept);
        line[kept] = '\0';
        text += len + (text[len] == '\n');
        value = strchr(line, ' ');
        whole = strcmp(line, "end") == 0;
        if (value == NULL)
            continue;
        *value++ = '\0';
        read_line(answer, line, value);
    }
    return whole && (answer->error != 0 || answer->figures.max_connections > 0);
}
