/* The segment: one file, mapped by the parent before it forks and so by every
 * child, and read by dbguardctl.
 *
 * Invariants
 *   - Made at a cold start, and from then on the same one across graceful
 *     restarts: old children go on counting in it. Its file is deleted when
 *     the parent ends, by APR's own cleanup: this module may have been
 *     unloaded by then.
 *   - The parent holds a lock on the file while it lives. A file that nobody
 *     has locked was left behind by a server that was killed, and is replaced;
 *     one that is locked belongs to another server, and is not touched; one
 *     that is not a scoreboard is not touched either.
 *   - All its blocks are allocated when it is made. A full disk is an error at
 *     start, never a SIGBUS later.
 *   - When a graceful restart brings a build with another layout, or finds
 *     that the file was deleted, which leaves a memory that nobody else can
 *     open, a new segment takes the place, and what the old one's holders hold
 *     is counted against the budget until the last of their processes has
 *     ended.
 *
 * Why not apr_shm: it attaches for writing only, which dbguardctl must not
 * need, and it does not allocate. */

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "apr_file_io.h"
#include "apr_general.h"
#include "apr_mmap.h"
#include "apr_strings.h"
#include "ap_mpm.h"
#include "http_core.h"
#include "mpm_common.h"
#include "scoreboard.h"
#include "unixd.h"

#include "glue.h"
#include "clock.h"

/* Kept by httpd across restarts, when this module's own variables are not. It
 * may be read by another build than wrote it: append only. */
typedef struct retained_t {
    void *base;       /* the segment in use, or NULL */
    apr_size_t size;
    const char *file; /* its name, in the process pool */
    void *elder;      /* one of another layout that may have holders, or NULL */
    int elder_generation;
    int monitor;            /* the process of dbguard-monitor, or 0 */
    apr_table_t *last_good; /* name -> value, in the process pool */
} retained_t;

#define RETAINED_KEY "mod_dbguard"

static dbguard_board_t board;

static retained_t *retained(void)
{
    return ap_retained_data_get(RETAINED_KEY);
}

dbguard_board_t *dbguard_board(void)
{
    return board.shared != NULL ? &board : NULL;
}

/* 0 in the first pass of a start and in a configtest, 1 in the second. Whether
 * this module was loaded before does not matter. */
int dbguard_shm_reloading(void)
{
    return ap_state_query(AP_SQ_CONFIG_GEN) > 1;
}

const char *dbguard_shm_last_good(const char *name)
{
    const retained_t *r = retained();

    return r != NULL && r->last_good != NULL ? apr_table_get(r->last_good, name)
                                             : NULL;
}

/* Do both, the open file and its name, still mean the same? */
static int is_named(apr_file_t *f, const char *file, apr_pool_t *p)
{
    apr_finfo_t open_one, named;
    const apr_int32_t want = APR_FINFO_DEV | APR_FINFO_INODE;

    return apr_file_info_get(&open_one, want, f) == APR_SUCCESS
           && apr_stat(&named, file, want, p) == APR_SUCCESS
           && open_one.device == named.device
           && open_one.inode == named.inode;
}

/* What was written of a scoreboard before its maker was killed, possibly
 * nothing, begins as every scoreboard does. */
static int is_scoreboard(apr_file_t *f, dbguard_prefix_t *prefix)
{
    apr_size_t len = 0, known = sizeof(prefix->magic);

    memset(prefix, 0, sizeof(*prefix));
    apr_file_read_full(f, prefix, sizeof(*prefix), &len);
    return memcmp(prefix->magic, DBGUARD_MAGIC, len < known ? len : known) == 0;
}

static void log_cannot_make(server_rec *s, const char *file, apr_status_t rv)
{
    ap_log_error(APLOG_MARK, APLOG_EMERG, rv, s,
                 "DBGUARD0010: cannot make the scoreboard %s; "
                 "DBGuardScoreboard must name a file in a directory where the "
                 "server may write, with room for it", file);
}

const char *dbguard_shm_obstacle(apr_pool_t *p, const char *file)
{
    const char *dir = ap_make_dirstr_parent(p, file);
    char why[80];
    apr_finfo_t info;
    apr_status_t rv = apr_stat(&info, dir, APR_FINFO_TYPE, p);

    if (APR_STATUS_IS_ENOENT(rv))
        return apr_psprintf(p, "there is no directory %s", dir);
    if (APR_STATUS_IS_ENOTDIR(rv)
        || (rv == APR_SUCCESS && info.filetype != APR_DIR))
        return apr_psprintf(p, "%s is not a directory", dir);
    if (rv == APR_SUCCESS && access(dir, W_OK | X_OK) != 0)
        rv = errno;
    return rv == APR_SUCCESS
               ? NULL
               : apr_psprintf(p, "user %u cannot make files in %s: %s",
                              (unsigned)geteuid(), dir,
                              apr_strerror(rv, why, sizeof(why)));
}

/* May what stands at `file` be replaced? Only a scoreboard whose server is
 * gone may; APR_ENOENT when nothing is there. */
static apr_status_t clear_stale(server_rec *s, const char *file)
{
    apr_pool_t *p = s->process->pool;
    dbguard_prefix_t prefix;
    apr_finfo_t info;
    apr_file_t *f;
    apr_status_t rv = apr_stat(&info, file, APR_FINFO_TYPE | APR_FINFO_LINK, p);

    if (APR_STATUS_IS_ENOENT(rv))
        return rv;
    if (rv != APR_SUCCESS) {
        log_cannot_make(s, file, rv);
        return rv;
    }
    if (info.filetype == APR_REG)
        rv = apr_file_open(&f, file, APR_FOPEN_READ | APR_FOPEN_WRITE,
                           APR_OS_DEFAULT, p);
    if (info.filetype != APR_REG || rv != APR_SUCCESS) {
        ap_log_error(APLOG_MARK, APLOG_EMERG, rv, s,
                     "DBGUARD0009: DBGuardScoreboard %s cannot be used: "
                     "something else stands there; name another file", file);
        return APR_EGENERAL;
    }
    if (!is_scoreboard(f, &prefix)) {
        rv = APR_EGENERAL;
        ap_log_error(APLOG_MARK, APLOG_EMERG, 0, s,
                     "DBGUARD0009: DBGuardScoreboard %s cannot be used: the "
                     "file that is there is not a scoreboard; name another "
                     "one", file);
    }
    else if (apr_file_lock(f, APR_FLOCK_EXCLUSIVE | APR_FLOCK_NONBLOCK)
             || !is_named(f, file, p)) {
        ap_log_error(APLOG_MARK, APLOG_EMERG, 0, s,
                     "DBGUARD0008: DBGuardScoreboard %s belongs to another "
                     "httpd that is running (process %u); give each its own "
                     "DefaultRuntimeDir or DBGuardScoreboard", file,
                     prefix.pid);
        rv = APR_EBUSY;
    }
    else {
        rv = apr_file_remove(file, p);
        ap_log_error(APLOG_MARK, APLOG_NOTICE, rv, s,
                     "DBGUARD0006: replaced the scoreboard %s that process %u "
                     "had left behind; it did not end in an orderly way", file,
                     prefix.pid);
    }
    apr_file_close(f);
    return rv;
}

/* Lock, allocate and own the file of a new segment, magic first: a kill from
 * now on leaves something that the next start knows for its own. */
static apr_status_t prepare(apr_file_t *f, const char *file, uint64_t size,
                            apr_pool_t *p)
{
    apr_size_t len = sizeof(DBGUARD_MAGIC);
    apr_os_file_t fd;
    apr_status_t rv = apr_file_lock(f,
                                    APR_FLOCK_EXCLUSIVE | APR_FLOCK_NONBLOCK);

    /* Another server that starts at this moment may have taken the file, which
     * nobody had locked, for a stale one. */
    if (rv == APR_SUCCESS && !is_named(f, file, p))
        rv = APR_EBUSY;
    if (rv == APR_SUCCESS)
        rv = apr_file_write_full(f, DBGUARD_MAGIC, len, NULL);
    if (rv == APR_SUCCESS)
        rv = apr_os_file_get(&fd, f);
    if (rv == APR_SUCCESS)
        rv = posix_fallocate(fd, 0, (off_t)size);
    if (rv == APR_SUCCESS)
        rv = apr_file_perms_set(file, APR_FPROT_UREAD | APR_FPROT_UWRITE
                                          | APR_FPROT_GREAD);
    /* dbguardctl may be used by the server's own group. */
    if (rv == APR_SUCCESS && geteuid() == 0
        && fchown(fd, (uid_t)-1, ap_unixd_config.group_id) != 0)
        rv = errno;
    return rv;
}

static apr_status_t create(server_rec *s, const char *file, uint32_t nslots,
                           void **base, apr_size_t *size)
{
    apr_pool_t *p;
    apr_file_t *f;
    apr_mmap_t *map;
    uint64_t seed;
    apr_status_t rv;

    *size = (apr_size_t)dbguard_board_size(nslots);
    apr_pool_create(&p, s->process->pool);
    rv = apr_file_open(&f, file,
                       APR_FOPEN_READ | APR_FOPEN_WRITE | APR_FOPEN_CREATE
                           | APR_FOPEN_EXCL | APR_FOPEN_BINARY
                           | APR_FOPEN_DELONCLOSE,
                       APR_FPROT_UREAD | APR_FPROT_UWRITE, p);
    if (rv == APR_SUCCESS)
        rv = prepare(f, file, *size, p);
    if (rv == APR_SUCCESS)
        rv = apr_mmap_create(&map, f, 0, *size,
                             APR_MMAP_READ | APR_MMAP_WRITE, p);
    if (rv == APR_SUCCESS)
        rv = apr_generate_random_bytes((unsigned char *)&seed, sizeof(seed));
    if (rv == APR_SUCCESS) {
        *base = map->mm;
        rv = dbguard_board_create(*base, *size, nslots, getpid(), seed,
                                  dbguard_clock_now(), apr_time_now());
    }
    /* The jitter's seed can be worked out from what clients are told: it must
     * not be the key of the hashes, too. */
    if (rv == APR_SUCCESS) {
        dbguard_shared_t *shared = *base;

        rv = apr_generate_random_bytes(shared->secret, sizeof(shared->secret));
    }
    if (rv == APR_SUCCESS)
        return rv;

    log_cannot_make(s, file, rv);
    apr_pool_destroy(p);
    return rv;
}

static retained_t *retain(void)
{
    retained_t *r = retained();

    return r != NULL ? r : ap_retained_data_create(RETAINED_KEY, sizeof(*r));
}

static void use(const retained_t *r)
{
    board.shared = r->base;
    board.elder = r->elder;
}

static apr_status_t replace(server_rec *s, retained_t *r, uint32_t nslots)
{
    dbguard_prefix_t *old = r->base;
    void *base;
    apr_size_t size;
    int generation = 0;
    apr_status_t rv;

    ap_mpm_query(AP_MPMQ_GENERATION, &generation);
    if (board.shared != NULL && board.shared->elder)
        ap_log_error(APLOG_MARK, APLOG_WARNING, 0, s,
                     "DBGUARD0017: this is the second upgrade while requests "
                     "from before the first are running; these are no longer "
                     "counted");
    /* The name is needed; the mapping stays. The deletion of that name that
     * APR still owes for the old file then takes the new one, at the same
     * moment when it would go anyway. */
    apr_file_remove(r->file, s->process->pool);
    rv = create(s, r->file, nslots, &base, &size);
    if (rv != APR_SUCCESS)
        return rv;
    /* What it has out comes back to it, and nothing more goes out. */
    old->closed = 1;
    r->elder = r->base;
    r->elder_generation = generation - 1;
    r->base = base;
    r->size = size;
    ((dbguard_shared_t *)base)->elder = 1;
    return APR_SUCCESS;
}

/* A graceful restart brought another build. */
static apr_status_t upgrade(server_rec *s, retained_t *r, uint32_t nslots)
{
    const dbguard_prefix_t *old = r->base;

    ap_log_error(APLOG_MARK, APLOG_WARNING, 0, s,
                 "DBGUARD0007: the scoreboard has layout %u, this build of "
                 "mod_dbguard has %u: a new one takes its place, and the "
                 "tokens that are out in the old one (%u) count until their "
                 "processes have ended", old->layout, DBGUARD_LAYOUT,
                 old->held);
    return replace(s, r, nslots);
}

/* Somebody deleted the file. A file without a name cannot be given one again;
 * when a new one cannot be made either, the memory goes on being used. */
static void restore(server_rec *s, retained_t *r, uint32_t nslots)
{
    uint32_t held = ((const dbguard_prefix_t *)r->base)->held;

    if (replace(s, r, nslots) == APR_SUCCESS)
        ap_log_error(APLOG_MARK, APLOG_WARNING, 0, s,
                     "DBGUARD0018: the scoreboard %s was deleted while the "
                     "server ran: a new one takes its place, and the tokens "
                     "that are out in the old one (%u) count until their "
                     "processes have ended", r->file, held);
    else
        ap_log_error(APLOG_MARK, APLOG_ERR, 0, s,
                     "DBGUARD0018: the scoreboard %s was deleted while the "
                     "server ran, and no new one can be made: the guard goes "
                     "on in memory, where dbguardctl and dbguard-monitor "
                     "cannot find it; make the directory and reload", r->file);
}

static int is_deleted(server_rec *s, const retained_t *r)
{
    apr_finfo_t info;

    return APR_STATUS_IS_ENOENT(apr_stat(&info, r->file, APR_FINFO_TYPE
                                                             | APR_FINFO_LINK,
                                         s->process->pconf));
}

int dbguard_shm_continue(void)
{
    const retained_t *r = retained();

    if (r == NULL || r->base == NULL
        || dbguard_board_kind(r->base, r->size) != DBGUARD_SAME_LAYOUT)
        return 0;
    use(r);
    return 1;
}

apr_status_t dbguard_shm_open(server_rec *s, const char *file, uint32_t nslots)
{
    retained_t *r = retain();
    apr_status_t rv = APR_SUCCESS;

    if (r->base == NULL) {
        rv = clear_stale(s, file);
        if (rv == APR_SUCCESS || APR_STATUS_IS_ENOENT(rv))
            rv = create(s, file, nslots, &r->base, &r->size);
        if (rv == APR_SUCCESS)
            r->file = apr_pstrdup(s->process->pool, file);
        else
            r->base = NULL;
    }
    else {
        if (strcmp(r->file, file) != 0)
            ap_log_error(APLOG_MARK, APLOG_WARNING, 0, s,
                         "DBGUARD0013: DBGuardScoreboard %s takes effect when "
                         "the server is stopped and started; until then it is "
                         "%s", file, r->file);
        if (dbguard_board_kind(r->base, r->size) != DBGUARD_SAME_LAYOUT)
            rv = upgrade(s, r, nslots);
        else if (is_deleted(s, r))
            restore(s, r, nslots);
    }
    if (rv == APR_SUCCESS)
        use(r);
    return rv;
}

int *dbguard_shm_monitor(void)
{
    return &retain()->monitor;
}

const char *dbguard_shm_file(void)
{
    const retained_t *r = retained();

    return r != NULL ? r->file : NULL;
}

void dbguard_shm_keep(server_rec *s, const char *name, const char *value)
{
    retained_t *r = retain();
    const char *old;

    if (r->last_good == NULL)
        r->last_good = apr_table_make(s->process->pool, 16);
    old = apr_table_get(r->last_good, name);
    /* What does not change takes no memory, however many reloads. */
    if (old == NULL || strcmp(old, value) != 0)
        apr_table_set(r->last_good, name, value);
}

/* Is a process of the elder's time still there, other than that of `slot`? */
static int elder_lives(int generation, int slot)
{
    int n = 0;
    int i;

    ap_mpm_query(AP_MPMQ_HARD_LIMIT_DAEMONS, &n);
    for (i = 0; i < n; i++) {
        const process_score *p = ap_get_scoreboard_process(i);

        if (i != slot && p->pid != 0 && p->generation <= generation)
            return 1;
    }
    return 0;
}

/* With the last process from before an upgrade goes the last holder in the
 * segment of the other layout. httpd tells before it clears the process's own
 * place in its scoreboard. */
static void child_status(server_rec *s, pid_t pid, ap_generation_t generation,
                         int slot, mpm_child_status state)
{
    const retained_t *r = retained();

    (void)s;
    (void)pid;
    if (state == MPM_CHILD_EXITED && board.shared != NULL
        && board.shared->elder && r != NULL
        && generation <= r->elder_generation
        && !elder_lives(r->elder_generation, slot))
        board.shared->elder = 0;
}

void dbguard_shm_register(void)
{
    ap_hook_child_status(child_status, NULL, NULL, APR_HOOK_MIDDLE);
}
