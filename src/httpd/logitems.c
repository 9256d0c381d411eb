/* Log items for mod_log_config: %^DV verdict, %^DW wait and %^DH hold in
 * microseconds, %^DC class, %^DE endpoint; "-" where a request was not
 * guarded. mod_log_config writes at MIDDLE of log_transaction; by then
 * request.c has given the token back. */

#include "apr_optional.h"
#include "mod_log_config.h"

#include "glue.h"

static const char *verdict(request_rec *r, char *unused)
{
    const dbguard_record_t *record = dbguard_request_record(r);

    (void)unused;
    return record ? record->verdict : "-";
}

static const char *waited(request_rec *r, char *unused)
{
    const dbguard_record_t *record = dbguard_request_record(r);

    (void)unused;
    return record ? dbguard_request_number(r->pool, record->waited) : "-";
}

static const char *held(request_rec *r, char *unused)
{
    const dbguard_record_t *record = dbguard_request_record(r);

    (void)unused;
    return record && record->held >= 0
               ? dbguard_request_number(r->pool, record->held)
               : "-";
}

static const char *class(request_rec *r, char *unused)
{
    const dbguard_record_t *record = dbguard_request_record(r);

    (void)unused;
    return record ? record->class : "-";
}

static const char *endpoint(request_rec *r, char *unused)
{
    const dbguard_record_t *record = dbguard_request_record(r);

    (void)unused;
    return record ? ap_escape_logitem(r->pool, record->endpoint) : "-";
}

static int pre_config(apr_pool_t *pconf, apr_pool_t *plog, apr_pool_t *ptemp)
{
    APR_OPTIONAL_FN_TYPE(ap_register_log_handler) *add
        = APR_RETRIEVE_OPTIONAL_FN(ap_register_log_handler);

    (void)plog;
    (void)ptemp;
    if (add != NULL) {
        add(pconf, "^DV", verdict, 0);
        add(pconf, "^DW", waited, 0);
        add(pconf, "^DH", held, 0);
        add(pconf, "^DC", class, 0);
        add(pconf, "^DE", endpoint, 0);
    }
    return OK;
}

void dbguard_logitems_register(void)
{
    ap_hook_pre_config(pre_config, NULL, NULL, APR_HOOK_MIDDLE);
}
