/* Classes: DBGuardClass, who names one, and where they stand in shared memory.
 *
 * Invariants
 *   - The order of the lines does not matter: whoever says DBGuard NAME finds
 *     the line that defines NAME in the tree of the configuration, whether it
 *     has been carried out or not.
 *   - Classes are one value: when a line of a reload is refused, or their
 *     minimums do not fit, all of them stay as they were. Half of a change
 *     would give tokens to some that were taken from nobody.
 *   - Places are found by name when the limits are in force, never before:
 *     until then whoever names a class counts as being in none. */

#include "apr_lib.h"
#include "apr_strings.h"

#include "config.h"
#include "derive.h"
#include "places.h"
#include "value.h"

#define SECOND INT64_C(1000000)

#define KEY "DBGuardClass" /* of the last good ones, a line each */

/* Counted anew with every reading of the configuration. */
static dbguard_named_t classes[DBGUARD_CLASSES_MAX];
static int nclasses;
static apr_array_header_t *refs; /* dbguard_classref_t * */
static const char *refused;        /* the place of a line that was */

const dbguard_named_t *dbguard_class_list(int *number)
{
    *number = nclasses;
    return classes;
}

const char *dbguard_class_refused(void)
{
    return nclasses == 0 ? refused : NULL;
}

/* --- reading a line ------------------------------------------------------ */

/* What is wrong with a line. */
typedef struct wrong_t {
    const char *what, *value, *allowed;
} wrong_t;

static int complain(wrong_t *wrong, const char *what, const char *value,
                    const char *allowed)
{
    wrong->what = what;
    wrong->value = value;
    wrong->allowed = allowed;
    return 0;
}

static int is_name(const char *text)
{
    apr_size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-");

    return *text >= 'a' && *text <= 'z' && text[len] == '\0'
           && len < DBGUARD_CLASS_MAX;
}

/* Words that mean, or might one day mean, something else there. */
static int is_reserved(const char *text)
{
    static const char *const words[] = {
        "on", "off", "dryrun", "auto", "default", "none", "all", "other"};
    apr_size_t i;

    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(text, words[i]) == 0)
            return 1;
    return 0;
}

static int read_name(dbguard_class_t *class, const char *word, wrong_t *wrong)
{
    if (!is_name(word))
        return complain(wrong, KEY, word,
                        "a name of a class: a letter from a to z, then up to "
                        "30 of a to z, 0 to 9 and -");
    if (is_reserved(word))
        return complain(wrong, KEY, word,
                        "a name of a class: it is one of on, off, dryrun, "
                        "auto, default, none, all, other, which mean "
                        "something else");
    apr_cpystrn(class->name, word, sizeof(class->name));
    return 1;
}

static int read_share(dbguard_share_t *share, const char *text, int64_t min)
{
    int64_t number;
    int percent;

    if (!dbguard_config_share(text, min, DBGUARD_BUDGET_MAX, 100, &number,
                              &percent))
        return 0;
    share->number = (uint32_t)number;
    share->percent = (uint32_t)percent;
    return 1;
}

static int read_weight(uint32_t *weight, const char *text)
{
    int64_t number;

    if (!dbguard_value_number(text, 1, 100, &number))
        return 0;
    *weight = (uint32_t)number;
    return 1;
}

/* One key=value. */
static int read_option(apr_pool_t *p, dbguard_class_t *class, const char *word,
                       const char *keys, wrong_t *wrong)
{
    static const char *const names[] = {"min", "max", "patience", "hold",
                                        "weight"};
    static const char *const allowed[] = {
        "a whole number from 0 to 100000, or a share from 0% to 100%",
        "a whole number from 1 to 100000, or a share from 1% to 100%",
        "a duration from 1ms to 10min such as 500ms or 2s",
        "a duration from 100ms to 60min such as 500ms or 5s",
        "a whole number from 1 to 100"};
    const char *value = strchr(word, '=');
    const char *name = value != NULL ? apr_pstrmemdup(p, word, value - word)
                                     : "";
    int key = 0, good;

    while (key < 5 && strcasecmp(name, names[key]) != 0)
        key++;
    if (key == 5)
        return complain(wrong, KEY, word, keys);
    value++;
    good = key == 0   ? read_share(&class->min, value, 0)
           : key == 1 ? read_share(&class->max, value, 1)
           : key == 2 ? dbguard_value_duration(value, 1000, 600 * SECOND,
                                               &class->patience)
           : key == 3 ? dbguard_value_duration(value, SECOND / 10,
                                               3600 * SECOND, &class->lease)
                      : read_weight(&class->weight, value);
    return good ? 1
                : complain(wrong, apr_pstrcat(p, KEY " ", names[key], NULL),
                           value, allowed[key]);
}

static const char *share_text(apr_pool_t *p, const dbguard_share_t *share)
{
    return apr_psprintf(p, "%u%s", share->number, share->percent ? "%" : "");
}

/* A line, by itself. */
static int read_line(apr_pool_t *p, const char *args, dbguard_class_t *class,
                     const char *keys, wrong_t *wrong)
{
    const char *rest = args;
    const char *word = dbguard_config_word(p, &rest);

    memset(class, 0, sizeof(*class));
    if (word == NULL)
        return complain(wrong, KEY, args, keys);
    if (!read_name(class, word, wrong))
        return 0;
    while (*rest != '\0') {
        word = dbguard_config_word(p, &rest);
        if (word == NULL)
            return complain(wrong, KEY, args, keys);
        if (!read_option(p, class, word, keys, wrong))
            return 0;
    }
    if (class->max.number > 0 && class->min.percent == class->max.percent
        && class->min.number > class->max.number)
        return complain(wrong, KEY, args,
                        apr_psprintf(p, "a min (%s) up to max (%s)",
                                     share_text(p, &class->min),
                                     share_text(p, &class->max)));
    return 1;
}

/* As it would be written. */
static const char *text_of(apr_pool_t *p, const dbguard_class_t *class)
{
    const char *text = class->name;
    char duration[24];

    if (class->min.number > 0)
        text = apr_pstrcat(p, text, " min=", share_text(p, &class->min), NULL);
    if (class->max.number > 0)
        text = apr_pstrcat(p, text, " max=", share_text(p, &class->max), NULL);
    if (class->patience > 0)
        text = apr_pstrcat(p, text, " patience=",
                           dbguard_value_print_duration(class->patience,
                                                        duration), NULL);
    if (class->lease > 0)
        text = apr_pstrcat(p, text, " hold=",
                           dbguard_value_print_duration(class->lease,
                                                        duration), NULL);
    if (class->weight > 0)
        text = apr_psprintf(p, "%s weight=%u", text, class->weight);
    return apr_pstrdup(p, text);
}

/* --- adding it to the others --------------------------------------------- */

static const dbguard_named_t *find(const char *name)
{
    int i;

    for (i = 0; i < nclasses; i++)
        if (strcmp(classes[i].class.name, name) == 0)
            return &classes[i];
    return NULL;
}

/* Does it go with those that are there? */
static int fits_in(apr_pool_t *p, const dbguard_class_t *class,
                   wrong_t *wrong)
{
    const dbguard_named_t *same = find(class->name);
    uint32_t percent = 0;
    int i;

    if (same != NULL)
        return complain(wrong, KEY, class->name,
                        apr_psprintf(p, "a new name: %s defines it already",
                                     same->source));
    if (nclasses == DBGUARD_CLASSES_MAX)
        return complain(wrong, KEY, class->name,
                        "one of the first 16 classes: there may be no more");
    for (i = 0; i < nclasses; i++)
        if (classes[i].class.min.percent)
            percent += classes[i].class.min.number;
    if (class->min.percent && class->min.number + percent > 100)
        return complain(wrong, KEY " min", share_text(p, &class->min),
                        apr_psprintf(p, "what the minimums of other classes, "
                                     "%u%% together, leave of 100%%: %u%%",
                                     percent, 100 - percent));
    return 1;
}

static void add(apr_pool_t *p, const dbguard_class_t *class,
                const char *source, int valid)
{
    dbguard_named_t *named = &classes[nclasses++];

    named->class = *class;
    named->text = text_of(p, class);
    named->source = source;
    named->valid = valid;
}

const char *dbguard_class_set(cmd_parms *cmd, void *dir, const char *args)
{
    const char *error = ap_check_cmd_context(cmd, GLOBAL_ONLY);
    dbguard_class_t class;
    wrong_t wrong;

    (void)dir;
    if (error != NULL)
        return dbguard_config_stop(cmd, apr_pstrcat(cmd->pool, "DBGUARD0011: ",
                                                    error, NULL),
                                   "it is ignored");
    if (read_line(cmd->pool, args, &class, cmd->cmd->errmsg, &wrong)
        && fits_in(cmd->pool, &class, &wrong)) {
        add(cmd->pool, &class, dbguard_config_where(cmd), 1);
        return NULL;
    }
    refused = dbguard_config_where(cmd);
    return dbguard_config_stop(
        cmd, dbguard_config_wrong(cmd->pool, wrong.what, wrong.value,
                                  wrong.allowed),
        "all classes stay as they were");
}

/* --- who names one ------------------------------------------------------- */

/* Is there a line for it, wherever? */
static int is_written(apr_pool_t *p, const char *name)
{
    const ap_directive_t *d;

    for (d = ap_conftree; d != NULL; d = d->next) {
        const char *rest = d->args;

        if (strcasecmp(d->directive, KEY) == 0
            && strcmp(ap_getword_conf(p, &rest), name) == 0)
            return 1;
    }
    return 0;
}

const dbguard_classref_t *dbguard_class_ref(cmd_parms *cmd, const char *name)
{
    dbguard_classref_t *ref;
    int i;

    if (!is_name(name) || is_reserved(name) || !is_written(cmd->pool, name))
        return NULL;
    for (i = 0; i < refs->nelts; i++) {
        ref = APR_ARRAY_IDX(refs, i, dbguard_classref_t *);
        if (strcmp(ref->name, name) == 0)
            return ref;
    }
    ref = apr_pcalloc(refs->pool, sizeof(*ref));
    ref->name = apr_pstrdup(refs->pool, name);
    APR_ARRAY_PUSH(refs, dbguard_classref_t *) = ref;
    return ref;
}

/* --- do they fit the budget? --------------------------------------------- */

static uint32_t tokens(const dbguard_share_t *share, uint32_t budget)
{
    return share->percent
               ? (uint32_t)((uint64_t)budget * share->number / 100)
               : share->number;
}

/* What is wrong at a budget, which `origin` names; NULL: nothing. *culprit is
 * the class at which it shows. */
static const char *misfit(apr_pool_t *p, uint32_t budget, const char *origin,
                          const dbguard_named_t **culprit)
{
    uint64_t sum = 0;
    int i;

    for (i = 0; i < nclasses; i++) {
        const dbguard_class_t *class = &classes[i].class;
        uint32_t min = tokens(&class->min, budget);
        uint32_t max = tokens(&class->max, budget);

        *culprit = &classes[i];
        if (class->max.number > 0 && min > (max > 0 ? max : 1))
            return apr_psprintf(p, "min=%s is more than max=%s at %s %u",
                                share_text(p, &class->min),
                                share_text(p, &class->max), origin, budget);
        sum += min;
        if (sum > budget)
            return apr_psprintf(p, "with min=%s the minimums of all classes "
                                "are %" APR_UINT64_T_FMT " tokens, and %s is "
                                "%u", share_text(p, &class->min), sum, origin,
                                budget);
    }
    return NULL;
}

/* The budget as far as the configuration alone says what it can be; 0: the
 * database will say. */
static uint32_t known_budget(apr_pool_t *p, const server_rec *s,
                             const char **origin)
{
    const dbguard_server_t *server = dbguard_server(s);
    const dbguard_value_t *budget = &server->set[DBGUARD_SET_BUDGET];

    if (budget->number != DBGUARD_AUTO) {
        *origin = apr_psprintf(p, "DBGuardBudget (%s)", budget->source);
        return (uint32_t)budget->number;
    }
    *origin = "DBGuardBudget auto without a DBGuardDatabase";
    return dbguard_is_set(server, DBGUARD_SET_DATABASE)
               ? 0
               : DBGUARD_BUDGET_UNKNOWN;
}

int dbguard_class_fits(server_rec *s, const dbguard_shared_t *shared)
{
    const dbguard_named_t *culprit;
    const char *why = NULL;

    /* Until it has answered, the budget is a guess. */
    if (shared->database.budget > 0)
        why = misfit(s->process->pconf, shared->limits.budget,
                     "the budget that the database leaves", &culprit);
    if (why == NULL)
        return 1;
    ap_log_error(APLOG_MARK, APLOG_WARNING, 0, s,
                 "DBGUARD0045: DBGuardClass %s (%s): %s; while that is so, "
                 "requests of other classes may get no token at all",
                 culprit->class.name, culprit->source, why);
    return 0;
}

/* --- when all has been read ---------------------------------------------- */

/* All classes go back to what they were. */
static void restore(apr_pool_t *p)
{
    const char *text = dbguard_shm_last_good(KEY);
    const char *source = apr_psprintf(
        p, "last good value (%s was refused)", refused);
    char *rest = apr_pstrdup(p, text != NULL ? text : "");
    char *line, *last;

    nclasses = 0;
    for (line = apr_strtok(rest, "\n", &last); line != NULL;
         line = apr_strtok(NULL, "\n", &last)) {
        dbguard_class_t class;
        wrong_t wrong;

        if (read_line(p, line, &class, "", &wrong)
            && fits_in(p, &class, &wrong))
            add(p, &class, source, 0);
    }
}

static void drop_minimums(apr_pool_t *p)
{
    int i;

    for (i = 0; i < nclasses; i++) {
        memset(&classes[i].class.min, 0, sizeof(classes[i].class.min));
        classes[i].text = text_of(p, &classes[i].class);
        classes[i].valid = 0;
    }
}

static int check_config(apr_pool_t *pconf, apr_pool_t *plog, apr_pool_t *ptemp,
                        server_rec *s)
{
    const dbguard_named_t *culprit = NULL;
    const char *origin, *why = NULL, *keeps;
    uint32_t budget = known_budget(pconf, s, &origin);

    (void)plog;
    (void)ptemp;
    if (refused != NULL)
        restore(pconf);
    if (budget > 0)
        why = misfit(pconf, budget, origin, &culprit);
    if (why == NULL)
        return OK;

    why = apr_psprintf(pconf, "%s: DBGuardClass %s: %s; smaller minimums, or "
                       "a larger DBGuardBudget", culprit->source,
                       culprit->class.name, why);
    if (!dbguard_shm_reloading()) {
        ap_log_error(APLOG_MARK, APLOG_ERR, 0, s, "DBGUARD0044: %s", why);
        return HTTP_INTERNAL_SERVER_ERROR;
    }
    if (refused == NULL) {
        refused = culprit->source;
        restore(pconf);
    }
    keeps = "all classes stay as they were";
    if (misfit(pconf, budget, origin, &culprit) != NULL) {
        drop_minimums(pconf);
        keeps = "no class has a minimum";
    }
    ap_log_error(APLOG_MARK, APLOG_CRIT, 0, s,
                 "DBGUARD0044: %s; a reload cannot stop here, so %s until this "
                 "is corrected and the server reloaded", why, keeps);
    return OK;
}

void dbguard_class_remember(server_rec *s)
{
    apr_pool_t *p = s->process->pconf;
    const char *all = "";
    int i;

    if (refused != NULL)
        return;
    for (i = 0; i < nclasses; i++)
        all = apr_pstrcat(p, all, classes[i].text, "\n", NULL);
    dbguard_shm_keep(s, KEY, all);
}

/* --- in force ------------------------------------------------------------ */

/* Who holds or waits there? Without the lock: it is for the choice of a place
 * only, see places.h. */
static void look_who_is_there(const dbguard_shared_t *shared,
                              unsigned char *used)
{
    int i;

    for (i = 0; i < DBGUARD_CLASSES; i++)
        used[i] = shared->class_held[i] > 0;
    for (i = 0; i < DBGUARD_ENDPOINTS; i++)
        if (shared->endpoints[i].waiting > 0)
            used[shared->endpoints[i].class % DBGUARD_CLASSES] = 1;
}

void dbguard_class_fill(const dbguard_shared_t *shared,
                        dbguard_limits_t *limits)
{
    dbguard_class_t wanted[DBGUARD_CLASSES_MAX], places[DBGUARD_CLASSES];
    unsigned char used[DBGUARD_CLASSES];
    int i;

    look_who_is_there(shared, used);
    for (i = 0; i < nclasses; i++)
        wanted[i] = classes[i].class;
    dbguard_places_assign(shared->limits.classes, used, wanted,
                          (uint32_t)nclasses, places);
    memcpy(limits->classes, places, sizeof(places));
}

void dbguard_class_resolve(server_rec *s, const dbguard_limits_t *limits)
{
    int i;

    for (i = 0; i < refs->nelts; i++) {
        dbguard_classref_t *ref
            = APR_ARRAY_IDX(refs, i, dbguard_classref_t *);

        ref->place = find(ref->name) != NULL
                           ? dbguard_places_find(limits->classes, ref->name)
                           : 0;
    }
    for (i = 0; i < nclasses; i++)
        if (dbguard_places_find(limits->classes, classes[i].class.name) == 0)
            ap_log_error(APLOG_MARK, APLOG_CRIT, 0, s,
                         "DBGUARD0046: DBGuardClass %s (%s) is not in force: "
                         "requests hold tokens or wait in too many classes of "
                         "configurations before this one. Its requests count "
                         "as being in no class; reload again when the old "
                         "ones have ended", classes[i].class.name,
                         classes[i].source);
}

static int forget(apr_pool_t *pconf, apr_pool_t *plog, apr_pool_t *ptemp)
{
    (void)plog;
    (void)ptemp;
    nclasses = 0;
    refused = NULL;
    refs = apr_array_make(pconf, 4, sizeof(dbguard_classref_t *));
    return OK;
}

void dbguard_class_register(void)
{
    ap_hook_pre_config(forget, NULL, NULL, APR_HOOK_MIDDLE);
    /* Before the lint, which shows what is in effect. */
    ap_hook_check_config(check_config, NULL, NULL, APR_HOOK_MIDDLE);
}
