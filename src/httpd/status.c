/* The guard's part of server-status, and of server-status?auto. mod_status
 * calls this whether ExtendedStatus is on or off. */

#include "apr_optional.h"
#include "apr_optional_hooks.h"
#include "http_protocol.h"
#include "mod_status.h"

#include "clock.h"
#include "glue.h"
#include "snapshot.h"
#include "view.h"

static void emit(void *r, const char *format, va_list args)
{
    ap_vrprintf(r, format, args);
}

static int status(request_rec *r, int flags)
{
    const dbguard_board_t *board = dbguard_board();
    dbguard_view_t view = {emit, r};
    dbguard_snapshot_t *snapshot;

    if (board == NULL)
        return DECLINED;
    snapshot = apr_palloc(r->pool, dbguard_snapshot_size(board->shared));
    dbguard_snapshot_take(snapshot, board->shared, dbguard_clock_now());
    /* Between two configurations: what this process goes by. */
    if (snapshot->nsettings == 0 && dbguard_engine_runs())
        snapshot->engine = snapshot->limits.dryrun ? DBGUARD_ENGINE_DRYRUN
                                                   : DBGUARD_ENGINE_ON;
    if (flags & AP_STATUS_SHORT)
        dbguard_view_auto(&view, snapshot);
    else
        dbguard_view_html(&view, snapshot);
    return OK;
}

/* mod_status declares its hook in pre_config at the latest, and needs it
 * optional: it may not be loaded. */
static int pre_config(apr_pool_t *pconf, apr_pool_t *plog, apr_pool_t *ptemp)
{
    (void)pconf;
    (void)plog;
    (void)ptemp;
    APR_OPTIONAL_HOOK(ap, status_hook, status, NULL, NULL, APR_HOOK_MIDDLE);
    return OK;
}

void dbguard_status_register(void)
{
    ap_hook_pre_config(pre_config, NULL, NULL, APR_HOOK_MIDDLE);
}
