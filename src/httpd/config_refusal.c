/* DBGuardRefusal: reading its words, and the last good answer of each server.
 *
 * Invariant: a reload that refuses a part of it (in any of its lines) changes
 * nothing of that part, and the other parts are as they were written. */

#include "apr_strings.h"
#include "http_protocol.h"
#include "util_cfgtree.h"

#include "config.h"
#include "value.h"

static const char *unknown(const cmd_parms *cmd, const char *word)
{
    return dbguard_config_wrong(cmd->pool, cmd->cmd->name, word,
                                cmd->cmd->errmsg);
}

/* httpd sends 500 for a code that it has no words for. */
static int is_status(int64_t status)
{
    return atoi(ap_get_status_line((int)status)) == status;
}

static const char *refusal_word(cmd_parms *cmd, dbguard_server_t *server,
                                const char *word)
{
    const char *error = NULL;
    const char *value = strchr(word, '=');
    int64_t status;

    if (value++ == NULL)
        return unknown(cmd, word);
    if (strncasecmp(word, "status=", 7) == 0) {
        if (!dbguard_value_number(value, 400, 599, &status)
            || !is_status(status))
            return dbguard_config_wrong(cmd->pool, "DBGuardRefusal status",
                                        value, "a whole number from 400 to 599 "
                                        "that HTTP gives a meaning");
        server->status = (int)status;
        server->status_source = dbguard_config_where(cmd);
        return NULL;
    }
    if (strncasecmp(word, "html=", 5) == 0) {
        server->html = dbguard_body_read(cmd->pool, value, &error);
        server->html_source = dbguard_config_where(cmd);
    }
    else if (strncasecmp(word, "json=", 5) == 0) {
        server->json = dbguard_body_read(cmd->pool, value, &error);
        server->json_source = dbguard_config_where(cmd);
    }
    else
        return unknown(cmd, word);
    return error != NULL ? dbguard_config_wrong(cmd->pool, cmd->cmd->name,
                                                word, error)
                         : NULL;
}

/* What a word that was refused was to set; any part, when that is not clear. */
static unsigned refusal_part(const char *word)
{
    if (word != NULL && strncasecmp(word, "status=", 7) == 0)
        return DBGUARD_BAD_STATUS;
    if (word != NULL && strncasecmp(word, "html=", 5) == 0)
        return DBGUARD_BAD_HTML;
    if (word != NULL && strncasecmp(word, "json=", 5) == 0)
        return DBGUARD_BAD_JSON;
    return DBGUARD_BAD_STATUS | DBGUARD_BAD_HTML | DBGUARD_BAD_JSON;
}

/* The <VirtualHost> of a server in the tree of the configuration, or NULL. */
static const ap_directive_t *find_host(const ap_directive_t *d,
                                       const server_rec *s)
{
    const ap_directive_t *found = NULL;

    for (; d != NULL && found == NULL; d = d->next) {
        if ((unsigned)d->line_num == s->defn_line_number
            && strcasecmp(d->directive, "<VirtualHost") == 0
            && strcmp(d->filename, s->defn_name) == 0)
            found = d;
        else
            found = find_host(d->first_child, s);
    }
    return found;
}

/* The last good values of a DBGuardRefusal are kept under address and names of
 * its server: a line more above it moves neither. In the tree, since its
 * ServerName may be read after its DBGuardRefusal. */
static const char *refusal_key(apr_pool_t *p, const server_rec *s,
                               const char *part)
{
    const ap_directive_t *host, *d;
    const char *name = "";

    if (!s->is_virtual)
        return apr_pstrcat(p, "DBGuardRefusal ", part, NULL);
    host = find_host(ap_conftree, s);
    if (host == NULL)
        return apr_psprintf(p, "DBGuardRefusal %s of %s:%u", part,
                            s->defn_name, s->defn_line_number);
    for (d = host->first_child; d != NULL; d = d->next)
        if (strcasecmp(d->directive, "ServerName") == 0
            || strcasecmp(d->directive, "ServerAlias") == 0)
            name = apr_pstrcat(p, name, d->args, " ", NULL);
    return apr_psprintf(p, "DBGuardRefusal %s of %sat %s", part, name,
                        host->args);
}

static const char *body_key(apr_pool_t *p, const char *file)
{
    return apr_pstrcat(p, "body ", file, NULL);
}

static const dbguard_body_t *last_body(cmd_parms *cmd, const char *part)
{
    const char *file = dbguard_shm_last_good(
        refusal_key(cmd->pool, cmd->server, part));
    const char *text = file != NULL
                           ? dbguard_shm_last_good(body_key(cmd->pool, file))
                           : NULL;

    return text != NULL ? dbguard_body_make(cmd->pool, file, text) : NULL;
}

/* What a reload refused goes back to what it was. */
static void keep_last_refusal(cmd_parms *cmd, dbguard_server_t *server)
{
    const char *source = apr_psprintf(
        cmd->pool, "last good value (%s was refused)",
        dbguard_config_where(cmd));
    const char *status = dbguard_shm_last_good(
        refusal_key(cmd->pool, cmd->server, "status"));
    unsigned bad = server->refusal_bad;

    if ((bad & DBGUARD_BAD_STATUS) && status != NULL) {
        server->status = atoi(status);
        server->status_source = source;
    }
    if (bad & DBGUARD_BAD_HTML) {
        server->html = last_body(cmd, "html");
        server->html_source = server->html ? source : NULL;
    }
    if (bad & DBGUARD_BAD_JSON) {
        server->json = last_body(cmd, "json");
        server->json_source = server->json ? source : NULL;
    }
}

static void remember_body(server_rec *s, const char *part,
                          const dbguard_body_t *body)
{
    apr_pool_t *p = s->process->pconf;

    dbguard_shm_keep(s, refusal_key(p, s, part),
                     body ? dbguard_body_name(body) : "");
    if (body != NULL)
        dbguard_shm_keep(s, body_key(p, dbguard_body_name(body)),
                         dbguard_body_text(body));
}

void dbguard_refusal_remember(server_rec *s)
{
    const dbguard_server_t *server = dbguard_server(s);

    remember_body(s, "html", server->html);
    remember_body(s, "json", server->json);
    dbguard_shm_keep(s, refusal_key(s->process->pconf, s, "status"),
                     apr_itoa(s->process->pconf, server->status));
}

const char *dbguard_refusal_set(cmd_parms *cmd, void *dir, const char *args)
{
    dbguard_server_t *server = ap_get_module_config(
        cmd->server->module_config, &dbguard_module);
    const char *error = ap_check_cmd_context(cmd, NOT_IN_DIR_LOC_FILE);
    const char *rest = args;

    (void)dir;
    if (error != NULL)
        return dbguard_config_stop(cmd, apr_pstrcat(cmd->pool, "DBGUARD0011: ",
                                                    error, NULL),
                                   "it is ignored");
    if (*rest == '\0') {
        error = unknown(cmd, "");
        server->refusal_bad |= refusal_part(NULL);
    }
    while (*rest != '\0') {
        const char *word = dbguard_config_word(cmd->pool, &rest);
        const char *wrong = word != NULL ? refusal_word(cmd, server, word)
                                         : unknown(cmd, args);

        if (wrong != NULL)
            server->refusal_bad |= refusal_part(word);
        if (error == NULL)
            error = wrong;
        if (word == NULL)
            break;
    }
    if (error == NULL)
        return NULL;
    error = dbguard_config_stop(cmd, error,
                                "the last good answer stays in force");
    if (error == NULL)
        keep_last_refusal(cmd, server);
    return error;
}
