/* Asking the database once: see ask.h. */

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apr_strings.h"

#include "ask.h"
#include "clock.h"

#define WITHIN 2000000 /* microseconds, from start to end */

/* Another program than the installed one: for a build that is tested before it
 * is installed. */
static const char *program(void)
{
    const char *name = getenv("DBGUARD_MONITOR");

    return name != NULL && *name == '/' ? name : DBGUARD_MONITOR_PROGRAM;
}

/* --- what the effective configuration says ------------------------------- */

static const dbguard_setting_t *setting(const dbguard_snapshot_t *s,
                                        const char *name)
{
    uint32_t i;

    for (i = 0; i < s->nsettings; i++)
        if (strcmp(s->settings[i].name, name) == 0)
            return &s->settings[i];
    return NULL;
}

static int is_set(const dbguard_setting_t *line)
{
    return line != NULL && line->value[0] != '\0'
           && strcmp(line->value, "none") != 0;
}

/* The scoreboard has room for so much of it. */
static int is_cut(const char *text, size_t size)
{
    return strlen(text) + 1 >= size;
}

static const char *read_url(apr_pool_t *p, const char *url, dbguard_dsn_t *dsn)
{
    const char *error;
    char **word;

    if (apr_tokenize_to_argv(url, &word, p) != APR_SUCCESS || *word == NULL)
        return "it cannot be split into words";
    error = dbguard_dsn_parse(dsn, *word);
    while (error == NULL && *++word != NULL)
        error = dbguard_dsn_option(dsn, *word);
    return error;
}

/* The first line of the file. NULL, or what is wrong. */
static const char *read_password(apr_pool_t *p, const char *file,
                                 dbguard_dsn_t *dsn)
{
    FILE *f = fopen(file, "re");
    const char *error = NULL;

    if (f == NULL)
        return apr_psprintf(p, "DBGuardPasswordFile %s cannot be read: %s%s",
                            file, strerror(errno),
                            errno == EACCES ? "; call dbguardctl doctor as "
                                              "root" : "");
    if (fgets(dsn->password, sizeof(dsn->password), f) == NULL)
        error = apr_psprintf(p, "DBGuardPasswordFile %s is empty", file);
    dsn->password[strcspn(dsn->password, "\r\n")] = '\0';
    fclose(f);
    return error;
}

static const char *credentials(apr_pool_t *p, const dbguard_snapshot_t *s,
                               ask_t *ask, dbguard_dsn_t *dsn)
{
    const dbguard_setting_t *url = setting(s, "DBGuardDatabase");
    const dbguard_setting_t *file = setting(s, "DBGuardPasswordFile");
    const char *error, *name;

    ask->url = url->value;
    if (is_cut(url->value, sizeof(url->value)))
        return "DBGuardDatabase is longer than the scoreboard has room for";
    error = read_url(p, url->value, dsn);
    if (error != NULL)
        return apr_psprintf(p, "DBGuardDatabase %s is not valid: %s",
                            url->value, error);
    ask->dsn = *dsn;
    if (!is_set(file)) {
        ask->password_note = "there is no DBGuardPasswordFile; it was asked "
                             "without a password";
        return NULL;
    }
    name = file->note[0] == '/' ? file->note : file->value;
    if (is_cut(file->value, sizeof(file->value))
        || is_cut(file->note, sizeof(file->note)))
        return "the name of DBGuardPasswordFile is longer than the scoreboard "
               "has room for";
    return read_password(p, name, dsn);
}

/* --- in the new process -------------------------------------------------- */

/* The first number of a line of /proc/PID/status, when it begins with key. */
static int numbers(const char *line, const char *key, unsigned *a)
{
    size_t len = strlen(key);

    return strncmp(line, key, len) == 0 && sscanf(line + len, "%u", a) == 1;
}

/* Whose rights has the running monitor? 1, or 0 when there is none. */
static int monitor_rights(const dbguard_snapshot_t *s, unsigned *uid,
                          unsigned *gid)
{
    unsigned parent = 0;
    char name[64], line[256];
    int found = 0;
    FILE *f;

    snprintf(name, sizeof(name), "/proc/%d/status", (int)s->database.monitor);
    f = s->database.monitor > 0 ? fopen(name, "re") : NULL;
    if (f == NULL)
        return 0;
    while (fgets(line, sizeof(line), f) != NULL) {
        numbers(line, "PPid:", &parent);
        found += numbers(line, "Uid:", uid);
        found += numbers(line, "Gid:", gid);
    }
    fclose(f);
    return found == 2 && parent == s->parent;
}

static void drop_rights(const dbguard_snapshot_t *s)
{
    unsigned uid, gid;
    struct passwd *user;

    if (geteuid() != 0 || !monitor_rights(s, &uid, &gid) || uid == 0)
        return;
    user = getpwuid((uid_t)uid);
    if (setgid((gid_t)gid) != 0
        || (user != NULL ? initgroups(user->pw_name, (gid_t)gid)
                         : setgroups(0, NULL)) != 0
        || setuid((uid_t)uid) != 0)
        _exit(126);
}

static void become_monitor(const dbguard_snapshot_t *s, int in, int out)
{
    if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0)
        _exit(125);
    drop_rights(s);
    execl(program(), program(), "--probe", (char *)NULL);
    _exit(127);
}

/* --- in this one --------------------------------------------------------- */

static void send_all(int fd, const char *lines, size_t len)
{
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);

    /* It fits into a pipe's buffer. A reader that is gone is noticed below. */
    if (write(fd, lines, len) < 0)
        lines = NULL;
    signal(SIGPIPE, before);
}

/* Read to the end, or until the time is over. */
static void read_until(int fd, int64_t end, char *text, size_t size)
{
    size_t len = 0;

    for (;;) {
        struct pollfd wait = {fd, POLLIN, 0};
        int64_t left = (end - dbguard_clock_now()) / 1000;
        ssize_t n;

        if (left <= 0 || poll(&wait, 1, (int)left) <= 0)
            break;
        n = read(fd, text + len, size - 1 - len);
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    text[len] = '\0';
}

/* What the monitor's end says when it said nothing else. */
static const char *why_silent(apr_pool_t *p, int status)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;

    if (code == 127)
        return apr_psprintf(p, "%s cannot be run: is it installed?", program());
    if (code == 126)
        return "the rights of httpd's User could not be taken on";
    if (code == 2)
        return apr_psprintf(p, "%s is of another version than dbguardctl",
                            program());
    return NULL;
}

static void run_monitor(apr_pool_t *p, const dbguard_snapshot_t *s, ask_t *ask,
                        const char *lines, size_t len)
{
    int64_t start = dbguard_clock_now();
    char text[DBGUARD_ANSWER_SIZE];
    int in[2], out[2], status = 0;
    pid_t pid;

    ask->outcome = ASK_IMPOSSIBLE;
    ask->why = "the system has no pipe or process left";
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
        return;
    pid = fork();
    if (pid == 0)
        become_monitor(s, in[0], out[1]);
    close(in[0]);
    close(out[1]);
    if (pid > 0) {
        send_all(in[1], lines, len);
        close(in[1]);
        read_until(out[0], start + WITHIN, text, sizeof(text));
        ask->took = dbguard_clock_now() - start;
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        ask->why = why_silent(p, status);
        if (dbguard_answer_read(&ask->answer, text))
            ask->outcome = ASK_ANSWERED;
        else if (ask->why == NULL)
            ask->outcome = ASK_SILENT;
    }
    close(out[0]);
}

void ask_database(apr_pool_t *p, const dbguard_snapshot_t *s, ask_t *ask)
{
    char lines[DBGUARD_DSN_LINES];
    dbguard_dsn_t dsn;
    size_t len;

    memset(ask, 0, sizeof(*ask));
    if (!is_set(setting(s, "DBGuardDatabase"))) {
        ask->outcome = ASK_NOT_CONFIGURED;
        return;
    }
    ask->why = credentials(p, s, ask, &dsn);
    if (ask->why != NULL) {
        ask->outcome = ASK_IMPOSSIBLE;
        return;
    }
    len = dbguard_dsn_write(&dsn, lines, sizeof(lines));
    run_monitor(p, s, ask, lines, len);
    explicit_bzero(lines, sizeof(lines));
    explicit_bzero(&dsn, sizeof(dsn));
}
