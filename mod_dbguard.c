/* mod_dbguard: keeps a web application from running its database out of
 * connections.
 *
 * The front door: everything this module does to httpd, in the order in which
 * the server and then a request meet it. What happens behind each door is in
 * src/httpd; who gets a token, who waits and who is refused is decided in
 * src/core. docs/internals tells the whole story. */

#include "glue.h"

static void register_hooks(apr_pool_t *p)
{
    (void)p;

    /* The server reads its configuration (pre_config, directives) ... */
    dbguard_config_register();
    dbguard_logitems_register();
    dbguard_status_register();
    dbguard_refusal_register();

    /* ... compares its limits with each other (check_config) ... */
    dbguard_lint_register();

    /* ... and puts it into force (post_config). */
    dbguard_startup_register();
    dbguard_shm_register();

    /* A request comes, is admitted, ends and is logged (child_init, handler,
     * output filter, log_transaction). */
    dbguard_request_register();

    /* A process dies (child_status, monitor). */
    dbguard_reaper_register();
}

module AP_MODULE_DECLARE_DATA dbguard_module = {
    STANDARD20_MODULE_STUFF,
    dbguard_dir_create,    dbguard_dir_merge,
    dbguard_server_create, dbguard_server_merge,
    dbguard_commands,      register_hooks,
    AP_MODULE_FLAG_NONE
};
