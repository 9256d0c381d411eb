/* dbguard-monitor is kept running: started with a configuration, started again
 * when it dies, ended when the configuration or the server ends.
 *
 * Invariants
 *   - httpd never waits for it, except for a probe in a configtest and at a
 *     cold start, and then two seconds at most.
 *   - The password is read from its file when a monitor is started, and passes
 *     through a pipe: it is in no argument, environment, log or configuration
 *     dump.
 *   - Whoever dies at once again and again is started at longer and longer
 *     intervals. The waiting is done by the new process itself.
 *   - Files are opened in the new process before it drops its rights: the
 *     parent's lock on the scoreboard would be gone if the parent itself opened
 *     and closed that file. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apr_file_io.h"
#include "apr_strings.h"
#include "apr_thread_proc.h"
#include "ap_mpm.h"
#include "http_core.h"
#include "mpm_common.h"

#include "clock.h"
#include "derive.h"
#include "glue.h"
#include "value.h"

#define SECOND 1000000

/* Who lived so long was not started in vain. */
#define LONG_ENOUGH (10 * (int64_t)SECOND)
#define DELAY_MAX 30 /* seconds */

#define PROBE_MILLISECONDS 2000

/* What a child says that is no monitor after all; no answer begins so. */
#define NOT_EXECUTED "not executed: "

static struct {
    server_rec *server;
    const char *scoreboard;
    apr_proc_t process;
    int64_t started;
    int delay; /* seconds before the next one does anything */
} keeper;

/* Another program than the installed one: for a build that is tested before it
 * is installed. */
static const char *program(void)
{
    const char *name = getenv("DBGUARD_MONITOR");

    return name != NULL && *name == '/' ? name : DBGUARD_MONITOR_PROGRAM;
}

static const char *state_file(apr_pool_t *p, const char *scoreboard)
{
    return apr_pstrcat(p, scoreboard, ".budget", NULL);
}

/* The lines that the monitor reads, with the password, or NULL. */
static char *credentials(apr_pool_t *p, server_rec *s, apr_size_t *len)
{
    const dbguard_server_t *server = dbguard_server(s);
    const dbguard_value_t *file = &server->set[DBGUARD_SET_PASSWORD_FILE];
    dbguard_dsn_t dsn = server->dsn;
    char *lines = apr_palloc(p, DBGUARD_DSN_LINES);
    apr_status_t rv = APR_SUCCESS;
    apr_file_t *f;

    if (dbguard_is_set(server, DBGUARD_SET_PASSWORD_FILE)) {
        const char *name = ap_server_root_relative(p, file->text);
        apr_finfo_t info;

        /* A pipe would be waited for. */
        rv = apr_stat(&info, name, APR_FINFO_TYPE, p);
        if (rv == APR_SUCCESS && info.filetype != APR_REG)
            rv = EINVAL;
        if (rv == APR_SUCCESS)
            rv = apr_file_open(&f, name, APR_FOPEN_READ, APR_OS_DEFAULT, p);
        if (rv == APR_SUCCESS) {
            rv = apr_file_gets(dsn.password, sizeof(dsn.password), f);
            apr_file_close(f);
        }
        dsn.password[strcspn(dsn.password, "\r\n")] = '\0';
    }
    if (rv != APR_SUCCESS) {
        ap_log_error(APLOG_MARK, APLOG_ERR, rv, s,
                     "DBGUARD0035: DBGuardPasswordFile %s cannot be read; the "
                     "database is asked without a password", file->text);
        dsn.password[0] = '\0';
    }
    *len = dbguard_dsn_write(&dsn, lines, DBGUARD_DSN_LINES);
    explicit_bzero(dsn.password, sizeof(dsn.password));
    return *len > 0 ? lines : NULL;
}

/* --- in the new process -------------------------------------------------- */

/* Open a file as descriptor `as`, which stays open over exec. Returns it, or
 * -1. */
static int open_as(const char *file, int flags, int as)
{
    int fd = open(file, flags | O_CLOEXEC, 0640);

    if (fd < 0)
        return -1;
    if (fd == as)
        return fcntl(fd, F_SETFD, 0) == 0 ? as : -1;
    return dup2(fd, as);
}

static void drop_rights(apr_pool_t *p, server_rec *s)
{
    if (geteuid() == 0 && ap_run_drop_privileges(p, s) != 0)
        _exit(126);
}

/* Become the monitor. Its standard input is there already. */
static void become_monitor(apr_pool_t *p, server_rec *s)
{
    const dbguard_value_t *set = dbguard_server(s)->set;
    const dbguard_value_t *log = &set[DBGUARD_SET_SNAPSHOT_FILE];
    const char *args[7] = {program(), "--scoreboard=3", NULL};
    int n = 2;

    /* 3, 4 and 5 may be in use by what the parent left open; those are its
     * copies, and exec would close them anyway. */
    if (open_as(keeper.scoreboard, O_RDWR, 3) != 3)
        _exit(125);
    if (open_as(state_file(p, keeper.scoreboard), O_RDWR | O_CREAT, 4) == 4)
        args[n++] = "--state=4";
    if (dbguard_is_set(dbguard_server(s), DBGUARD_SET_SNAPSHOT_FILE)) {
        const char *name = ap_server_root_relative(p, log->text);

        if (name != NULL
            && open_as(name, O_WRONLY | O_APPEND | O_CREAT, 5) == 5) {
            args[n++] = "--snapshot=5";
            args[n++] = apr_pstrcat(p, "--every=",
                                    set[DBGUARD_SET_SNAPSHOT_EVERY].text, NULL);
        }
        else
            ap_log_error(APLOG_MARK, APLOG_ERR, errno, s,
                         "DBGUARD0037: DBGuardSnapshot file=%s cannot be "
                         "written; there are no snapshots", log->text);
    }
    if (keeper.delay > 0)
        args[n++] = apr_psprintf(p, "--delay=%ds", keeper.delay);
    args[n] = NULL;
    drop_rights(p, s);
    execv(args[0], (char *const *)args);
    /* It is the monitor that waits before it asks again; without one the
     * interval has to be kept here. */
    sleep((unsigned)keeper.delay);
    _exit(127);
}

/* --- in the parent ------------------------------------------------------- */

/* Fork; in the new process standard input is `in` and, unless out is -1,
 * standard output `out`. As fork. */
static pid_t fork_with(int in, int out)
{
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    if (dup2(in, STDIN_FILENO) < 0
        || (out >= 0 && dup2(out, STDOUT_FILENO) < 0))
        _exit(125);
    return 0;
}

/* Write them into a pipe, leave it to its reader, and forget them: children of
 * httpd would inherit them. Our own reading end is open meanwhile: a reader
 * that has already ended shall be noticed by its end, and not by SIGPIPE. */
static void hand_over(const int ends[2], char *lines, apr_size_t len)
{
    _Static_assert(DBGUARD_DSN_LINES <= PIPE_BUF, "the buffer takes them");

    if (write(ends[1], lines, len) < 0) {
        /* Without them the reader ends. */
    }
    explicit_bzero(lines, len);
    close(ends[0]);
    close(ends[1]);
}

static void maintain(int reason, void *data, int status);

static void start(void)
{
    server_rec *s = keeper.server;
    apr_pool_t *p = s->process->pconf, *scratch;
    char *lines;
    apr_size_t len;
    int in[2], error = 0;
    pid_t pid = -1;

    apr_pool_create(&scratch, p);
    lines = credentials(scratch, s, &len);
    if (lines != NULL && pipe2(in, O_CLOEXEC) == 0) {
        pid = fork_with(in[0], -1);
        if (pid == 0)
            become_monitor(scratch, s);
        error = errno;
        hand_over(in, lines, len);
    }
    apr_pool_destroy(scratch);
    if (pid < 0) {
        ap_log_error(APLOG_MARK, APLOG_ERR, error, s,
                     "DBGUARD0036: dbguard-monitor cannot be started; the "
                     "budget stays what it is until the next reload");
        return;
    }
    keeper.started = dbguard_clock_now();
    keeper.process.pid = pid;
    *dbguard_shm_monitor() = (int)pid;
    keeper.process.in = keeper.process.out = keeper.process.err = NULL;
    apr_proc_other_child_register(&keeper.process, maintain, &keeper, NULL, p);
}

static void maintain(int reason, void *data, int status)
{
    int state = 0;

    (void)data;
    if (reason == APR_OC_REASON_UNREGISTER) {
        /* The configuration ends, or the server; or it has just died. */
        if (keeper.process.pid > 0)
            kill(keeper.process.pid, SIGTERM);
        return;
    }
    if (reason != APR_OC_REASON_DEATH && reason != APR_OC_REASON_LOST)
        return;
    keeper.process.pid = 0;
    apr_proc_other_child_unregister(&keeper);
    if (ap_mpm_query(AP_MPMQ_MPM_STATE, &state) == APR_SUCCESS
        && state == AP_MPMQ_STOPPING)
        return;
    if (dbguard_clock_now() - keeper.started > LONG_ENOUGH)
        keeper.delay = 0;
    ap_log_error(APLOG_MARK, APLOG_WARNING, 0, keeper.server,
                 "DBGUARD0038: dbguard-monitor (%s) ended (exit status or "
                 "signal %d); the next one asks in %d s, until then the budget "
                 "stays what it is", program(), status, keeper.delay);
    start();
    keeper.delay = keeper.delay == 0 ? 1 : keeper.delay * 2;
    if (keeper.delay > DELAY_MAX)
        keeper.delay = DELAY_MAX;
}

/* The one before was told to end when its configuration did, and is reaped in
 * this one's time. */
static void farewell(int reason, void *data, int status)
{
    (void)status;
    if (reason == APR_OC_REASON_DEATH || reason == APR_OC_REASON_LOST)
        apr_proc_other_child_unregister(data);
}

void dbguard_keeper_adopt(server_rec *s)
{
    static apr_proc_t former;
    int *pid = dbguard_shm_monitor();

    if (*pid == 0)
        return;
    former.pid = *pid;
    former.in = former.out = former.err = NULL;
    *pid = 0;
    apr_proc_other_child_register(&former, farewell, &former, NULL,
                                  s->process->pconf);
}

void dbguard_keeper_start(server_rec *s, const char *scoreboard)
{
    const dbguard_server_t *server = dbguard_server(s);

    if (!dbguard_is_set(server, DBGUARD_SET_DATABASE))
        return;
    keeper.server = s;
    keeper.scoreboard = scoreboard;
    keeper.delay = 0;
    start();
}

uint32_t dbguard_keeper_last_budget(apr_pool_t *p, const char *scoreboard)
{
    char line[32];
    apr_file_t *f;
    int64_t budget = 0;

    if (apr_file_open(&f, state_file(p, scoreboard), APR_FOPEN_READ,
                      APR_OS_DEFAULT, p) != APR_SUCCESS)
        return 0;
    if (apr_file_gets(line, sizeof(line), f) == APR_SUCCESS) {
        line[strcspn(line, "\n")] = '\0';
        dbguard_value_number(line, 1, DBGUARD_BUDGET_MAX, &budget);
    }
    apr_file_close(f);
    return (uint32_t)budget;
}

/* --- asking once --------------------------------------------------------- */

/* Read until the end or until the time is over. */
static const char *read_within(apr_pool_t *p, int fd, int milliseconds)
{
    int64_t end = dbguard_clock_now() + milliseconds * 1000;
    char *text = apr_palloc(p, 8192);
    apr_size_t len = 0;

    for (;;) {
        struct pollfd wait = {fd, POLLIN, 0};
        int64_t left = (end - dbguard_clock_now()) / 1000;
        ssize_t n;

        if (left <= 0 || poll(&wait, 1, (int)left) <= 0)
            break;
        n = read(fd, text + len, 8191 - len);
        if (n <= 0)
            break;
        len += (apr_size_t)n;
    }
    text[len] = '\0';
    return text;
}

const char *dbguard_keeper_probe(apr_pool_t *p, server_rec *s,
                                 const char **why)
{
    int64_t begin = dbguard_clock_now();
    const char *answer;
    char *lines;
    apr_size_t len;
    int in[2], out[2];
    pid_t pid;

    *why = apr_psprintf(p, "%s could not be started", program());
    lines = credentials(p, s, &len);
    if (lines == NULL || pipe2(in, O_CLOEXEC) != 0)
        return NULL;
    if (pipe2(out, O_CLOEXEC) != 0) {
        close(in[0]);
        close(in[1]);
        return NULL;
    }
    pid = fork_with(in[0], out[1]);
    if (pid == 0) {
        drop_rights(p, s);
        execl(program(), program(), "--probe", (char *)NULL);
        dprintf(STDOUT_FILENO, NOT_EXECUTED "%s", strerror(errno));
        _exit(127);
    }
    hand_over(in, lines, len);
    close(out[1]);
    answer = pid > 0 ? read_within(p, out[0], PROBE_MILLISECONDS) : "";
    close(out[0]);
    if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    if (strncmp(answer, NOT_EXECUTED, strlen(NOT_EXECUTED)) == 0)
        *why = apr_psprintf(p, "%s cannot be executed (%s)", program(),
                            answer + strlen(NOT_EXECUTED));
    else if (*answer != '\0')
        return answer;
    else if (pid > 0)
        *why = apr_psprintf(p, "%s --probe %s", program(),
                            dbguard_clock_now() - begin
                                    < PROBE_MILLISECONDS * 1000
                                ? "ended without an answer"
                                : "gave no answer within two seconds");
    return NULL;
}
