/* What the dead left behind.
 *
 * The parent tells of every child that it reaps, crashes included: that is the
 * normal way, and takes a second at most. The sweep is for what it did not
 * see; it asks the system about every process that waits or holds, outside the
 * lock, at most once a second. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "ap_mpm.h"
#include "http_main.h"
#include "mpm_common.h"

#include "clock.h"
#include "glue.h"

#define SECOND 1000000

static uint64_t repairs_seen;

static void reap(server_rec *s, pid_t pid)
{
    dbguard_board_t *board = dbguard_board();
    uint32_t taken;
    apr_status_t rv;

    if (board == NULL)
        return;
    rv = dbguard_admission_reap(board, (int32_t)pid, dbguard_clock_now(),
                                &taken);
    if (rv != APR_SUCCESS)
        ap_log_error(APLOG_MARK, APLOG_ERR, rv, s,
                     "DBGUARD0026: what process %" APR_PID_T_FMT " held could "
                     "not be taken back; the next look is in ten seconds",
                     pid);
    else if (taken > 0)
        ap_log_error(APLOG_MARK, APLOG_NOTICE, 0, s,
                     "DBGUARD0024: process %" APR_PID_T_FMT " ended in the "
                     "middle of %u guarded request(s); taken back", pid,
                     taken);
}

/* Has it ended, without anybody having reaped it? A leader whose threads go on
 * is shown as a zombie, too. */
static int is_zombie(pid_t pid)
{
    char name[40], text[512];
    const char *rest;
    char state = '?';
    long threads = 0;
    size_t len;
    FILE *f;

    snprintf(name, sizeof(name), "/proc/%ld/stat", (long)pid);
    f = fopen(name, "re");
    if (f == NULL)
        return 0;
    len = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[len] = '\0';
    /* The name of the command may hold anything; numbers follow. */
    rest = strrchr(text, ')');
    return rest != NULL
           && sscanf(rest, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u "
                     "%*u %*d %*d %*d %*d %ld", &state, &threads) == 2
           && state == 'Z' && threads <= 1;
}

static int is_gone(pid_t pid)
{
    return kill(pid, 0) == 0 ? is_zombie(pid) : errno == ESRCH;
}

void dbguard_reaper_sweep(void)
{
    dbguard_board_t *board = dbguard_board();
    dbguard_shared_t *shared = board ? board->shared : NULL;
    int64_t now = dbguard_clock_now();
    int64_t swept;
    uint32_t i;

    if (shared == NULL)
        return;
    swept = shared->swept;
    if (now - swept < SECOND
        || !atomic_compare_exchange_strong(&shared->swept, &swept, now))
        return;
    for (i = 0; i < shared->nslots; i++) {
        pid_t pid = shared->slots[i].visitor.pid;

        if (shared->slots[i].state != DBGUARD_FREE && pid > 0
            && is_gone(pid))
            reap(ap_server_conf, pid);
    }
}

static void child_status(server_rec *s, pid_t pid, ap_generation_t generation,
                         int slot, mpm_child_status state)
{
    (void)generation;
    (void)slot;
    if (state == MPM_CHILD_EXITED)
        reap(s, pid);
}

/* In the parent, about every ten seconds. */
static int monitor(apr_pool_t *p, server_rec *s)
{
    dbguard_board_t *board = dbguard_board();
    uint64_t repairs;

    (void)p;
    if (board == NULL)
        return DECLINED;
    dbguard_reaper_sweep();
    repairs = board->shared->counters.repairs;
    if (repairs > repairs_seen)
        ap_log_error(APLOG_MARK, APLOG_WARNING, 0, s,
                     "DBGUARD0025: the scoreboard was rebuilt %"
                     APR_UINT64_T_FMT " time(s): a process died while it "
                     "changed it; nothing was lost", repairs - repairs_seen);
    repairs_seen = repairs;
    return DECLINED;
}

void dbguard_reaper_register(void)
{
    ap_hook_child_status(child_status, NULL, NULL, APR_HOOK_MIDDLE);
    ap_hook_monitor(monitor, NULL, NULL, APR_HOOK_MIDDLE);
}
