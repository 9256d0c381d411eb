/* dbguardctl: what the guard is doing, for whoever is on the console.
 *
 * It reads the scoreboard itself, through a read-only mapping and without the
 * lock: it can neither disturb the server nor be held up by it, and answers
 * while every worker is stuck.
 *
 * Exit: 0 all is well, 1 the scoreboard cannot be read, 2 wrong usage, 3 its
 * server is not running (any more), or without the module, 4 doctor: the
 * database did not answer; lint: it found something. */

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apr_file_io.h"
#include "apr_general.h"
#include "apr_mmap.h"
#include "apr_pools.h"

#include "clock.h"
#include "doctor.h"
#include "memory.h"
#include "snapshot.h"
#include "view.h"

enum { EXIT_UNREADABLE = 1, EXIT_USAGE = 2, EXIT_GONE = 3, EXIT_UNASKED = 4,
       EXIT_FOUND = 4 };

/* A reload takes less than a second, as a rule. */
#define RELOAD_LOOKS 20
#define RELOAD_PAUSE 100000 /* microseconds */

static int show_all; /* --all */

static int usage(FILE *out, int code)
{
    fprintf(out,
            "usage: dbguardctl [-f SCOREBOARD] status [--all] | doctor | "
            "lint\n"
            "       dbguardctl --help | --version\n\n"
            "  status         tokens, queue, refusals, and who holds what\n"
            "  doctor         asks the database once: what its counters mean\n"
            "  lint           do the limits of httpd, guard and database fit?\n"
            "  -a, --all      status: cut no list short\n"
            "  -f SCOREBOARD  file named by DBGuardScoreboard (default:\n"
            "                 " DBGUARD_SCOREBOARD ")\n"
            "  -h, --help     this text\n"
            "  -V, --version  the version\n");
    return code;
}

static void emit(void *out, const char *format, va_list args)
{
    vfprintf(out, format, args);
}

static int fail(const char *file, const char *what, apr_status_t rv)
{
    char why[120] = "";

    if (rv != APR_SUCCESS)
        apr_strerror(rv, why, sizeof(why));
    fprintf(stderr, "dbguardctl: %s: %s%s%s\n", file, what, rv ? ": " : "",
            why);
    return EXIT_UNREADABLE;
}

/* Map the scoreboard; 0, or an exit code. */
static int map(apr_pool_t *p, const char *file,
               const dbguard_shared_t **shared)
{
    apr_finfo_t info;
    apr_file_t *f;
    apr_mmap_t *m;
    apr_status_t rv = apr_file_open(&f, file, APR_FOPEN_READ, APR_OS_DEFAULT,
                                    p);

    if (APR_STATUS_IS_ENOENT(rv))
        return fail(file, "no scoreboard there: is the server running, with "
                          "DBGuardEngine On, and is this its DBGuardScoreboard "
                          "(see -f)?", 0);
    if (rv == APR_SUCCESS)
        rv = apr_file_info_get(&info, APR_FINFO_SIZE | APR_FINFO_TYPE, f);
    if (rv == APR_SUCCESS && info.filetype != APR_REG)
        return fail(file, "is not a file", 0);
    if (rv == APR_SUCCESS && info.size == 0)
        return fail(file, "is empty: the server is just being started", 0);
    if (rv == APR_SUCCESS)
        rv = apr_mmap_create(&m, f, 0, (apr_size_t)info.size, APR_MMAP_READ,
                             p);
    if (rv != APR_SUCCESS)
        return fail(file, "cannot be read", rv);
    *shared = m->mm;
    switch (dbguard_board_kind(m->mm, (uint64_t)info.size)) {
    case DBGUARD_NOT_A_BOARD:
        return fail(file, "is not a scoreboard of mod_dbguard", 0);
    case DBGUARD_OTHER_LAYOUT:
        return fail(file, "was made by another version of mod_dbguard; use the "
                          "dbguardctl that came with it", 0);
    case DBGUARD_SAME_LAYOUT:
        break;
    }
    return 0;
}

static int show_status(apr_pool_t *p, const dbguard_snapshot_t *snapshot)
{
    const dbguard_view_t view = {emit, stdout};

    (void)p;
    dbguard_view_text(&view, snapshot, show_all);
    return 0;
}

static int show_doctor(apr_pool_t *p, const dbguard_snapshot_t *snapshot)
{
    return doctor(p, snapshot) ? 0 : EXIT_UNASKED;
}

/* What the server knows, and the memory as it is now. */
static int show_lint(apr_pool_t *p, const dbguard_snapshot_t *s)
{
    const dbguard_view_t view = {emit, stdout};
    dbguard_lint_t lint = {.facts = s->facts, .database = s->database};

    (void)p;
    lint.facts.queue = s->limits.queue;
    lint.budget = s->limits.budget;
    lint.held = s->held;
    lint.running = 1;
    lint.server_limit_running = s->facts.server_limit;
    if (s->stale)
        lint.silent = (uint32_t)((s->now - s->database.attempted) / 1000000);
    dbguard_memory_measure(&lint.memory, (pid_t)s->parent);
    dbguard_view_settings(&view, s->settings, s->nsettings);
    printf("\n");
    return dbguard_view_lint(&view, &lint) ? EXIT_FOUND : 0;
}

static const struct {
    const char *name;
    int (*run)(apr_pool_t *p, const dbguard_snapshot_t *snapshot);
} commands[] = {{"status", show_status}, {"doctor", show_doctor},
              {"lint", show_lint}};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* The place of a command's name in the table, or COMMANDS. */
static size_t find(const char *name)
{
    size_t i;

    for (i = 0; i < COMMANDS && strcmp(commands[i].name, name) != 0; i++)
        continue;
    return i;
}

/* Is there nobody whom these figures are of? Says so. */
static int is_history(const dbguard_snapshot_t *s)
{
    if (kill((pid_t)s->parent, 0) != 0 && errno == ESRCH)
        printf("httpd %u, which this scoreboard belonged to, is not running; "
               "these are its last figures\n\n", s->parent);
    else if (s->nsettings == 0)
        printf("httpd %u runs WITHOUT mod_dbguard since a reload: NOTHING IS "
               "GUARDED; these are\nits last figures\n\n", s->parent);
    else
        return 0;
    return 1;
}

/* In the middle of a reload there is no configuration in force for a moment. */
static void take(dbguard_snapshot_t *snapshot, const dbguard_shared_t *shared)
{
    int looks = RELOAD_LOOKS;

    dbguard_snapshot_take(snapshot, shared, dbguard_clock_now());
    while (snapshot->nsettings == 0 && looks-- > 0) {
        usleep(RELOAD_PAUSE);
        dbguard_snapshot_take(snapshot, shared, dbguard_clock_now());
    }
}

static int run(apr_pool_t *p, const char *file, size_t command)
{
    const dbguard_shared_t *shared = NULL;
    dbguard_snapshot_t *snapshot;
    int code = map(p, file, &shared), gone;

    if (code != 0)
        return code;
    snapshot = malloc(dbguard_snapshot_size(shared));
    if (snapshot == NULL)
        return fail(file, "is too large for the memory there is", ENOMEM);
    take(snapshot, shared);
    gone = is_history(snapshot);
    code = commands[command].run(p, snapshot);
    free(snapshot);
    if (fflush(stdout) != 0)
        return fail("standard output", "cannot be written", errno);
    return gone ? EXIT_GONE : code;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"all", no_argument, NULL, 'a'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
        {NULL, 0, NULL, 0}
    };
    const char *file = DBGUARD_SCOREBOARD;
    apr_pool_t *pool;
    size_t command;
    int option, code;

    while ((option = getopt_long(argc, argv, "af:hV", options, NULL)) != -1) {
        switch (option) {
        case 'a':
            show_all = 1;
            break;
        case 'f':
            file = optarg;
            break;
        case 'h':
            return usage(stdout, 0);
        case 'V':
            puts("dbguardctl " DBGUARD_VERSION);
            return 0;
        default:
            return usage(stderr, EXIT_USAGE);
        }
    }
    command = argc - optind == 1 ? find(argv[optind]) : COMMANDS;
    if (command == COMMANDS)
        return usage(stderr, EXIT_USAGE);

    apr_initialize();
    apr_pool_create(&pool, NULL);
    code = run(pool, file, command);
    apr_pool_destroy(pool);
    apr_terminate();
    return code;
}
