/* dbguard-monitor: the one process that talks to the database.
 *
 * httpd's parent starts it, hands it the scoreboard and the files that it may
 * write as open descriptors, and how to reach the database (the password too)
 * over a pipe that is its standard input. Once a second it asks, puts what it
 * learnt into the scoreboard, and the budget with it. It has the rights of
 * httpd's User.
 *
 *     dbguard-monitor --scoreboard=FD [--state=FD] [--snapshot=FD]
 *                     [--every=DURATION] [--delay=DURATION]
 *     dbguard-monitor --probe
 *
 * --probe asks once, within PROBE_WITHIN, writes what it learnt as lines
 * "key value" (see probe.c), and ends with 0, or 1 when the database gave no
 * figures.
 *
 * Invariants
 *   - It ends when httpd's parent does, and says goodbye to the database.
 *   - Every wait is bounded; nothing of httpd ever waits for it.
 *   - One line in the log for a change of state, none for a poll. */

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "admission.h"
#include "client.h"
#include "clock.h"
#include "probe.h"
#include "snapshots.h"
#include "value.h"

#define SECOND 1000000

/* The answer is waited for almost until the next question is due: with a
 * database that stops just after a poll, its state is known in less than two
 * seconds. */
#define ANSWER_WITHIN (SECOND * 9 / 10)

/* Below DBGUARD_STALE. */
#define DENIED_EVERY (5 * SECOND)

typedef struct monitor_t {
    dbguard_board_t board;
    dbguard_database_t db;
    client_t *client;
    snapshots_t snapshots;
    int state_fd;
} monitor_t;

static volatile sig_atomic_t ending;

static void end(int signal)
{
    (void)signal;
    ending = 1;
}

/* A line that looks like httpd's own in the same file. */
__attribute__((format(printf, 2, 3)))
static void say(const char *level, const char *format, ...)
{
    char when[64], text[700];
    struct timespec now;
    struct tm tm;
    va_list args;

    clock_gettime(CLOCK_REALTIME, &now);
    strftime(when, sizeof(when), "%a %b %d %H:%M:%S",
             localtime_r(&now.tv_sec, &tm));
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fprintf(stderr, "[%s.%06ld %d] [dbguard:%s] [pid %d] %s\n", when,
            now.tv_nsec / 1000, tm.tm_year + 1900, level, (int)getpid(), text);
}

static void read_dsn(dbguard_dsn_t *dsn)
{
    char line[512];

    memset(dsn, 0, sizeof(*dsn));
    while (fgets(line, sizeof(line), stdin) != NULL && line[0] != '\n') {
        line[strcspn(line, "\n")] = '\0';
        dbguard_dsn_read(dsn, line);
    }
    memset(line, 0, sizeof(line));
}

static int map(monitor_t *m, int fd)
{
    struct stat st;
    void *base;

    if (fstat(fd, &st) != 0)
        return 0;
    base = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED,
                fd, 0);
    if (base == MAP_FAILED
        || dbguard_board_kind(base, (uint64_t)st.st_size)
               != DBGUARD_SAME_LAYOUT)
        return 0;
    m->board.shared = base;
    /* What the one before it knew goes on to be true. */
    m->db = m->board.shared->database;
    m->db.monitor = (int32_t)getpid();
    return 1;
}

static void log_change(const monitor_t *m)
{
    const dbguard_database_t *db = &m->db;
    int bad = db->state != DBGUARD_DB_OK && db->state != DBGUARD_DB_UNKNOWN;

    if (bad)
        say("warn", "DBGUARD0030: the database is %s: %s (error %u: %s); "
            "budget %u; remedy: %s", dbguard_dbstate_name(db->state),
            dbguard_dbstate_meaning(db->state), db->error,
            db->text[0] ? db->text : "none", m->board.shared->limits.budget,
            dbguard_dbstate_remedy(db->state));
    else
        say("notice", "DBGUARD0031: the database is %s; budget %s",
            dbguard_dbstate_name(db->state), db->why);
}

/* Where the next cold start finds a budget before the first answer. */
static void remember(monitor_t *m)
{
    char text[16];
    int len = snprintf(text, sizeof(text), "%u\n", m->db.budget);

    if (m->state_fd >= 0
        && (pwrite(m->state_fd, text, (size_t)len, 0) != len
            || ftruncate(m->state_fd, len) != 0)) {
        say("warn", "DBGUARD0032: the last good budget cannot be written: %s; "
            "the next start begins with what is there", strerror(errno));
        m->state_fd = -1;
    }
}

/* Those that settle may still be connections for the database. */
static uint32_t tokens_out(const dbguard_shared_t *shared)
{
    return shared->prefix.held + shared->settling;
}

/* Is it so much later than it should be? */
static int slept(int64_t expected)
{
    return dbguard_clock_now() - expected > SECOND / 2;
}

static void poll_once(monitor_t *m, int64_t start)
{
    const dbguard_shared_t *shared = m->board.shared;
    uint32_t before = tokens_out(shared), after;
    uint32_t budget = m->db.budget;
    dbguard_answer_t answer;
    int changed, why;

    client_ask(m->client, start + ANSWER_WITHIN, &answer);
    /* A signal may have cut the waiting short, or this process has been asleep
     * itself (frozen, a paused machine): then the answer says nothing. */
    if (ending || (answer.timed_out && slept(start + ANSWER_WITHIN)))
        return;
    after = tokens_out(shared);
    answer.held = before > after ? before : after;
    changed = dbguard_database_learn(&m->db, &shared->limits.rules, &answer,
                                     dbguard_clock_now());
    dbguard_admission_learn(&m->board, &m->db, dbguard_clock_now());
    if (changed)
        log_change(m);
    /* What a crisis leaves is no good beginning. */
    if (m->db.budget != budget && m->db.state == DBGUARD_DB_OK
        && m->db.ramp == 0)
        remember(m);
    why = snapshots_write(&m->snapshots, shared, dbguard_clock_now());
    if (why != 0)
        say("warn", "DBGUARD0033: DBGuardSnapshot cannot be written: %s; said "
            "once until it can be again", strerror(why));
}

static int wanted(const monitor_t *m)
{
    return !ending && getppid() == (pid_t)m->board.shared->prefix.pid;
}

/* Until then, or as long as it is wanted. */
static void rest(const monitor_t *m, int64_t until)
{
    int64_t left;

    while ((left = until - dbguard_clock_now()) > 0 && wanted(m))
        poll(NULL, 0, (int)((left < SECOND ? left + 999 : SECOND) / 1000));
}

static int watch(monitor_t *m)
{
    int64_t next = dbguard_clock_now();

    while (wanted(m)) {
        if (slept(next))
            next = dbguard_clock_now();
        poll_once(m, next);
        /* A server that denies logs every attempt. */
        next += m->db.state == DBGUARD_DB_DENIED ? DENIED_EVERY : SECOND;
        if (next < dbguard_clock_now())
            next = dbguard_clock_now();
        rest(m, next);
    }
    /* httpd tells it twice, as one of its process group and by itself. */
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    client_destroy(m->client);
    return 0;
}

static int usage(FILE *out, int code)
{
    fputs("usage: dbguard-monitor --probe | --help | --version\n"
          "httpd starts it by itself when DBGuardDatabase is set; with --probe "
          "it is\n"
          "asked by dbguardctl and the configuration test. How to reach the "
          "database\n"
          "comes in on standard input.\n", out);
    return code;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"scoreboard", required_argument, NULL, 'b'},
        {"state", required_argument, NULL, 's'},
        {"snapshot", required_argument, NULL, 'l'},
        {"every", required_argument, NULL, 'e'},
        {"delay", required_argument, NULL, 'd'},
        {"probe", no_argument, NULL, 'p'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
        {NULL, 0, NULL, 0}
    };
    monitor_t m = {.state_fd = -1, .snapshots = {.fd = -1, .every = SECOND}};
    struct sigaction action = {.sa_handler = end};
    int scoreboard = -1, probing = 0, option;
    int64_t delay = 0;
    dbguard_dsn_t dsn;

    while ((option = getopt_long(argc, argv, "hV", options, NULL)) != -1) {
        switch (option) {
        case 'b':
            scoreboard = atoi(optarg);
            break;
        case 's':
            m.state_fd = atoi(optarg);
            break;
        case 'l':
            m.snapshots.fd = atoi(optarg);
            break;
        case 'e':
            if (!dbguard_value_duration(optarg, SECOND, 86400 * (int64_t)SECOND,
                                        &m.snapshots.every))
                return usage(stderr, 2);
            break;
        case 'd':
            if (!dbguard_value_duration(optarg, 0, 60 * SECOND, &delay))
                return usage(stderr, 2);
            break;
        case 'p':
            probing = 1;
            break;
        case 'h':
            return usage(stdout, 0);
        case 'V':
            puts("dbguard-monitor " DBGUARD_VERSION);
            return 0;
        default:
            return usage(stderr, 2);
        }
    }
    if (optind != argc || probing == (scoreboard >= 0))
        return usage(stderr, 2);

    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    /* A hard restart is told to the whole process group; SIGTERM follows. */
    signal(SIGHUP, SIG_IGN);
    read_dsn(&dsn);
    if (probing)
        return probe(&dsn);
    if (!map(&m, scoreboard)) {
        say("error", "DBGUARD0034: dbguard-monitor does not know the "
            "scoreboard it was given: is it of the same version as the "
            "module?");
        return 1;
    }
    m.client = client_create(&dsn, 0);
    if (m.client == NULL)
        return 1;
    rest(&m, dbguard_clock_now() + delay);
    return watch(&m);
}
