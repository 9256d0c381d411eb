#ifndef DBGUARD_CONFIG_H
#define DBGUARD_CONFIG_H

/* What the units of the configuration share: config.c,
 * config_class.c and config_refusal.c. */

#include "glue.h"

/* file:line of a directive. */
const char *dbguard_config_where(const cmd_parms *cmd);

/* The next word of *rest, or NULL when a quotation mark is left open. */
const char *dbguard_config_word(apr_pool_t *p, const char **rest);

/* A number from min to max, or one of percent up to most. 1, or 0. */
int dbguard_config_share(const char *text, int64_t min, int64_t max,
                         int64_t most, int64_t *number, int *percent);

/* "DBGUARD0011: what: 'value' is not allowed", with a hint at usual errors. */
const char *dbguard_config_wrong(apr_pool_t *p, const char *what,
                                 const char *value, const char *allowed);

/* What is to be done about an error: it is returned at a start and in a
 * configtest, and ends it. In a reload it is a line in the log, and NULL: then
 * the caller keeps what was, which `keeps` says. */
const char *dbguard_config_stop(cmd_parms *cmd, const char *error,
                                const char *keeps);

/* --- config_class.c: DBGuardClass, and who names one ---------------------- */

const char *dbguard_class_set(cmd_parms *cmd, void *dir, const char *args);
/* What a place with DBGuard NAME is to keep; NULL when no DBGuardClass of the
 * whole configuration, read or still to be read, defines that name. */
const dbguard_classref_t *dbguard_class_ref(cmd_parms *cmd, const char *name);
/* The classes in force are the last good ones. */
void dbguard_class_remember(server_rec *s);
void dbguard_class_register(void);

/* --- config_refusal.c: DBGuardRefusal ------------------------------------- */

const char *dbguard_refusal_set(cmd_parms *cmd, void *dir, const char *args);
/* The answers of a server are its last good ones. */
void dbguard_refusal_remember(server_rec *s);

#endif
