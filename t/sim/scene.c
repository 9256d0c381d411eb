/* Reading scenarios, and what is asked of their results: see scene.h. */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "settle.h"
#include "scene.h"

#define WORDS 40
#define LINE 1024

const char *const scene_policy_names[SCENE_POLICIES]
    = {"guard", "fifo", "limit", "proxy"};
const char *const scene_figure_names[FIGURES]
    = {"served", "p50", "p99", "max", "refused",
       "last", "attempts", "kept", "used", "idle"};

typedef struct reader_t {
    scene_t *scene;
    int line; /* where the statement began; 0: the file as a whole */
    int words;
    char *word[WORDS];
    char *error;
    size_t size;
} reader_t;

/* Says what is wrong; always 0. */
static int wrong(reader_t *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int wrong(reader_t *r, const char *format, ...)
{
    va_list args;
    int n = r->line > 0 ? snprintf(r->error, r->size, "%s:%d: ",
                                   r->scene->file, r->line)
                        : snprintf(r->error, r->size, "%s: ", r->scene->file);

    if (n > 0 && (size_t)n < r->size) {
        va_start(args, format);
        vsnprintf(r->error + n, r->size - (size_t)n, format, args);
        va_end(args);
    }
    return 0;
}

/* --- values -------------------------------------------------------------- */

/* A number with one of these units behind it; 0 when it is not one. */
typedef struct unit_t {
    const char *name;
    double factor;
} unit_t;

static const unit_t durations[]
    = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"min", 6e7}, {NULL, 0}};
static const unit_t rates[] = {{"/s", 1}, {NULL, 0}};
static const unit_t parts[] = {{"%", 0.01}, {NULL, 0}};
static const unit_t numbers[] = {{"", 1}, {NULL, 0}};

static int read_unit(const char *text, const unit_t *units, double *value)
{
    char *end;

    if ((*text < '0' || *text > '9') && *text != '.')
        return 0;
    *value = strtod(text, &end);
    for (; units->name != NULL; units++) {
        if (strcmp(end, units->name) == 0) {
            *value *= units->factor;
            return 1;
        }
    }
    return 0;
}

static int read_time(reader_t *r, const char *text, int64_t *time)
{
    double value;

    if (!read_unit(text, durations, &value))
        return wrong(r, "'%s' is not a duration such as 250ms or 2s", text);
    *time = (int64_t)(value + 0.5);
    return 1;
}

static int read_count(reader_t *r, const char *text, uint32_t *count)
{
    double value;

    if (!read_unit(text, numbers, &value) || value > 1e6)
        return wrong(r, "'%s' is not a number up to 1000000", text);
    *count = (uint32_t)value;
    return 1;
}

static int read_part(reader_t *r, const char *text, double *part)
{
    if (!read_unit(text, parts, part) || *part > 1)
        return wrong(r, "'%s' is not a part such as 50%%", text);
    return 1;
}

/* lognormal(MEDIAN,SIGMA,MOST) */
static int read_lognormal(reader_t *r, char *text, scene_hold_t *hold)
{
    char *save, *median = strtok_r(text, "(,)", &save);
    char *sigma = strtok_r(NULL, "(,)", &save);
    char *most = strtok_r(NULL, "(,)", &save);

    if (median == NULL || sigma == NULL || most == NULL
        || !read_unit(median, durations, &hold->median)
        || !read_unit(sigma, numbers, &hold->sigma)
        || !read_unit(most, durations, &hold->most))
        return wrong(r, "expected lognormal(MEDIAN,SIGMA,MOST)");
    return 1;
}

/* 2ms, or 95%:2ms,5%:5s, or lognormal(1s,0.85,5.4s) */
static int read_hold(reader_t *r, char *text, scene_hold_t *hold)
{
    double sum = 0;
    char *save, *part;

    memset(hold, 0, sizeof(*hold));
    hold->factor = 1;
    if (strncmp(text, "lognormal", 9) == 0)
        return read_lognormal(r, text + 9, hold);
    for (part = strtok_r(text, ",", &save); part != NULL;
         part = strtok_r(NULL, ",", &save)) {
        char *colon = strchr(part, ':');
        double *share = &hold->share[hold->parts];

        if (hold->parts == SCENE_PARTS)
            return wrong(r, "more than %d parts", SCENE_PARTS);
        *share = 1;
        if (colon != NULL) {
            *colon = '\0';
            if (!read_part(r, part, share))
                return 0;
            part = colon + 1;
        }
        if (!read_unit(part, durations, &hold->hold[hold->parts]))
            return wrong(r, "'%s' is not a duration such as 250ms or 2s",
                         part);
        sum += *share;
        hold->parts++;
    }
    if (hold->parts == 0 || sum < 0.999 || sum > 1.001)
        return wrong(r, "the parts of a hold must add up to 100%%");
    return 1;
}

/* --- statements ---------------------------------------------------------- */

static int read_title(reader_t *r)
{
    int i;

    for (i = 1; i < r->words; i++) {
        char *title = r->scene->title;

        if (strlen(title) + strlen(r->word[i]) + 2 > SCENE_TEXT)
            return wrong(r, "the title is too long");
        if (i > 1)
            strcat(title, " ");
        strcat(title, r->word[i]);
    }
    return 1;
}

/* Splits NAME=VALUE; NULL when there is no =. */
static char *value_of(char *word)
{
    char *equals = strchr(word, '=');

    if (equals == NULL)
        return NULL;
    *equals = '\0';
    return equals + 1;
}

static int read_server(reader_t *r)
{
    int i;

    for (i = 1; i < r->words; i++) {
        char *name = r->word[i], *value = value_of(name);
        int read;

        if (value == NULL)
            return wrong(r, "'%s' where NAME=VALUE is expected", name);
        if (strcmp(name, "workers") == 0)
            read = read_count(r, value, &r->scene->workers);
        else if (strcmp(name, "budget") == 0)
            read = read_count(r, value, &r->scene->budget);
        else if (strcmp(name, "settle") == 0)
            read = read_time(r, value, &r->scene->settle);
        else
            return wrong(r, "a server has workers, budget and settle, no %s",
                         name);
        if (!read)
            return 0;
    }
    if (r->scene->workers == 0 || r->scene->budget == 0)
        return wrong(r, "a server has workers and a budget of at least one");
    return 1;
}

/* exactly, seconds, or after a time */
static int read_returns(reader_t *r, const char *value, scene_stream_t *s)
{
    if (strcmp(value, "exactly") == 0)
        s->returns = SCENE_EXACT;
    else if (strcmp(value, "seconds") == 0)
        s->returns = SCENE_SECONDS;
    else if (read_time(r, value, &s->after))
        s->returns = SCENE_ANYWAY;
    else
        return wrong(r, "returns= exactly, seconds or a duration, not '%s'",
                     value);
    return 1;
}

static int read_session(reader_t *r, const char *value, scene_stream_t *s)
{
    if (strcmp(value, "own") == 0)
        s->session = SESSION_OWN;
    else if (strcmp(value, "none") == 0)
        s->session = SESSION_NONE;
    else if (strcmp(value, "new") == 0)
        s->session = SESSION_NEW;
    else
        return wrong(r, "session= own, none or new, not '%s'", value);
    return 1;
}

static int read_rate(reader_t *r, const char *value, double *rate)
{
    return read_unit(value, rates, rate)
           || wrong(r, "'%s' is not a rate such as 40/s", value);
}

static int read_text(reader_t *r, const char *value, char *text, size_t size)
{
    if (strlen(value) >= size)
        return wrong(r, "'%s' is too long", value);
    strcpy(text, value);
    return 1;
}

static int read_attribute(reader_t *r, scene_stream_t *s, const char *name,
                          char *value)
{
    if (strcmp(name, "to") == 0)
        return read_text(r, value, s->to, DBGUARD_ENDPOINT_MAX - 24);
    if (strcmp(name, "rate") == 0)
        return read_rate(r, value, &s->rate);
    if (strcmp(name, "clients") == 0)
        return read_count(r, value, &s->clients);
    if (strcmp(name, "loop") == 0)
        return read_count(r, value, &s->loop);
    if (strcmp(name, "think") == 0)
        return read_time(r, value, &s->think);
    if (strcmp(name, "from") == 0)
        return read_time(r, value, &s->from);
    if (strcmp(name, "until") == 0)
        return read_time(r, value, &s->until);
    if (strcmp(name, "within") == 0)
        return read_time(r, value, &s->within);
    if (strcmp(name, "hold") == 0)
        return read_hold(r, value, &s->hold);
    if (strcmp(name, "busy") == 0) {
        s->unguarded = 1;
        return read_hold(r, value, &s->hold);
    }
    if (strcmp(name, "addresses") == 0)
        return read_count(r, value, &s->addresses);
    if (strcmp(name, "address") == 0) {
        s->addresses = 1;
        return read_text(r, value, s->address, sizeof(s->address));
    }
    if (strcmp(name, "session") == 0)
        return read_session(r, value, s);
    if (strcmp(name, "returns") == 0)
        return read_returns(r, value, s);
    if (strcmp(name, "share") == 0)
        return read_part(r, value, &s->share);
    if (strcmp(name, "tries") == 0)
        return read_count(r, value, &s->tries);
    return wrong(r, "a stream has no %s", name);
}

static int read_stream(reader_t *r)
{
    scene_stream_t *s = &r->scene->streams[r->scene->nstreams];
    int i;

    if (r->scene->nstreams == SCENE_STREAMS)
        return wrong(r, "more than %d streams", SCENE_STREAMS);
    if (r->words < 2 || strlen(r->word[1]) >= SCENE_NAME)
        return wrong(r, "expected: stream NAME ...");
    strcpy(s->name, r->word[1]);
    strcat(strcpy(s->to, "GET /"), r->word[1]);
    s->until = r->scene->time;
    s->share = 1;
    s->think = 100;
    s->hold.factor = 0;
    for (i = 2; i < r->words; i++) {
        char *name = r->word[i], *value = value_of(name);

        if (value == NULL)
            return wrong(r, "'%s' where NAME=VALUE is expected", name);
        if (!read_attribute(r, s, name, value))
            return 0;
    }
    if (s->hold.factor == 0)
        return wrong(r, "stream %s holds for how long? hold= or busy=",
                     s->name);
    if (s->rate <= 0 && s->clients == 0)
        return wrong(r, "stream %s needs rate= or clients=", s->name);
    r->scene->nstreams++;
    return 1;
}

/* The number of a stream, or SCENE_STREAMS. */
static uint32_t find_stream(const scene_t *scene, const char *name)
{
    uint32_t i;

    for (i = 0; i < scene->nstreams; i++)
        if (strcmp(scene->streams[i].name, name) == 0)
            return i;
    return SCENE_STREAMS;
}

/* at TIME budget N, at TIME STREAM hold|slow|rate VALUE */
static int read_change(reader_t *r)
{
    scene_change_t *c = &r->scene->changes[r->scene->nchanges];
    uint32_t number = 0;
    const char *what;

    if (r->scene->nchanges == SCENE_CHANGES)
        return wrong(r, "more than %d changes", SCENE_CHANGES);
    if (r->words < 4)
        return wrong(r, "expected: at TIME WHAT VALUE");
    if (!read_time(r, r->word[1], &c->time))
        return 0;
    r->scene->nchanges++;
    if (strcmp(r->word[2], "budget") == 0) {
        c->what = CHANGE_BUDGET;
        if (!read_count(r, r->word[3], &number))
            return 0;
        c->number = number;
        return number > 0 || wrong(r, "a budget is at least one");
    }
    c->stream = find_stream(r->scene, r->word[2]);
    if (c->stream == SCENE_STREAMS || r->words < 5)
        return wrong(r, "expected: at TIME budget N, or "
                        "at TIME STREAM hold|slow|rate VALUE");
    what = r->word[3];
    if (strcmp(what, "hold") == 0) {
        c->what = CHANGE_HOLD;
        return read_hold(r, r->word[4], &c->hold);
    }
    if (strcmp(what, "rate") == 0) {
        c->what = CHANGE_RATE;
        return read_rate(r, r->word[4], &c->number);
    }
    if (strcmp(what, "slow") != 0)
        return wrong(r, "a stream changes its hold, slow or rate, no %s",
                     what);
    c->what = CHANGE_SLOW;
    return read_unit(r->word[4], numbers, &c->number)
           || wrong(r, "'%s' is not a factor", r->word[4]);
}

static int find_name(const char *const *names, int n, const char *name)
{
    int i;

    for (i = 0; i < n && strcmp(names[i], name) != 0; i++)
        ;
    return i;
}

/* expect POLICY STREAM|tokens FIGURE >= VALUE [of POLICY] */
static int read_bar(reader_t *r)
{
    scene_bar_t *b = &r->scene->bars[r->scene->nbars];

    if (r->scene->nbars == SCENE_BARS)
        return wrong(r, "more than %d expectations", SCENE_BARS);
    if (r->words != 6 && !(r->words == 8 && strcmp(r->word[6], "of") == 0))
        return wrong(r, "expected: expect POLICY STREAM|tokens FIGURE "
                        ">=|<= VALUE [of POLICY]");
    b->line = r->line;
    b->policy = (scene_policy_t)find_name(scene_policy_names, SCENE_POLICIES,
                                          r->word[1]);
    b->stream = find_stream(r->scene, r->word[2]);
    b->figure = (scene_figure_t)find_name(scene_figure_names, FIGURES,
                                          r->word[3]);
    b->least = strcmp(r->word[4], ">=") == 0;
    if (b->policy == SCENE_POLICIES)
        return wrong(r, "there is no policy %s", r->word[1]);
    if (b->stream == SCENE_STREAMS && strcmp(r->word[2], "tokens") != 0)
        return wrong(r, "there is no stream %s", r->word[2]);
    if (b->figure == FIGURES)
        return wrong(r, "there is no figure %s", r->word[3]);
    if (!b->least && strcmp(r->word[4], "<=") != 0)
        return wrong(r, "'%s' where >= or <= is expected", r->word[4]);
    if (!read_unit(r->word[5], parts, &b->value)
        && !read_unit(r->word[5], durations, &b->value)
        && !read_unit(r->word[5], numbers, &b->value))
        return wrong(r, "'%s' is not a value", r->word[5]);
    if (r->words == 8) {
        b->relative = 1;
        b->other = (scene_policy_t)find_name(scene_policy_names,
                                             SCENE_POLICIES, r->word[7]);
        if (b->other == SCENE_POLICIES)
            return wrong(r, "there is no policy %s", r->word[7]);
    }
    r->scene->nbars++;
    return 1;
}

static int read_statement(reader_t *r, char *line)
{
    const char *what;
    char *save, *word;

    r->words = 0;
    for (word = strtok_r(line, " \t\n", &save); word != NULL;
         word = strtok_r(NULL, " \t\n", &save)) {
        if (r->words == WORDS)
            return wrong(r, "more than %d words", WORDS);
        r->word[r->words++] = word;
    }
    if (r->words == 0)
        return 1;
    what = r->word[0];
    if (strcmp(what, "title") == 0)
        return read_title(r);
    if (strcmp(what, "server") == 0)
        return read_server(r);
    if (strcmp(what, "time") == 0)
        return r->words == 2 ? read_time(r, r->word[1], &r->scene->time)
                             : wrong(r, "expected: time DURATION");
    if (strcmp(what, "stream") == 0)
        return read_stream(r);
    if (strcmp(what, "at") == 0)
        return read_change(r);
    if (strcmp(what, "expect") == 0)
        return read_bar(r);
    return wrong(r, "'%s' where title, server, time, stream, at or expect is "
                    "expected", what);
}

/* A line that begins with white space goes on with the one before. */
static int read_file(reader_t *r, FILE *in)
{
    char statement[LINE] = "", line[LINE];
    int n = 0;

    while (fgets(line, sizeof(line), in) != NULL) {
        n++;
        if (line[0] == '#')
            continue;
        if (line[0] != ' ' && line[0] != '\t' && line[0] != '\n') {
            if (!read_statement(r, statement))
                return 0;
            statement[0] = '\0';
            r->line = n;
        }
        if (strlen(statement) + strlen(line) >= LINE)
            return wrong(r, "the statement is too long");
        strcat(statement, line);
    }
    return read_statement(r, statement);
}

int scene_load(scene_t *scene, const char *file, char *error, size_t size)
{
    reader_t r = {0};
    FILE *in = fopen(file, "r");
    int read;

    memset(scene, 0, sizeof(*scene));
    snprintf(scene->file, sizeof(scene->file), "%s", file);
    scene->workers = 192;
    scene->budget = 20;
    scene->settle = DBGUARD_SETTLE;
    r.scene = scene;
    r.error = error;
    r.size = size;
    if (in == NULL)
        return wrong(&r, "%s", strerror(errno));
    read = read_file(&r, in);
    r.line = 0;
    fclose(in);
    if (read && scene->time == 0)
        return wrong(&r, "how long does it last? time DURATION");
    if (read && scene->nstreams == 0)
        return wrong(&r, "nobody comes: there is no stream");
    return read;
}

/* --- figures ------------------------------------------------------------- */

static double quotient(uint64_t a, uint64_t b)
{
    return b > 0 ? (double)a / (double)b : 0;
}

static double percentile(const scene_figures_t *f, int percent)
{
    if (f->nlatency == 0)
        return 0;
    return (double)f->latency[(f->nlatency - 1) * (size_t)percent / 100];
}

static uint64_t refusals(const scene_figures_t *f)
{
    uint64_t sum = 0;
    int i;

    for (i = 0; i < DBGUARD_REASONS; i++)
        sum += f->refused[i];
    return sum;
}

double scene_figure(const scene_result_t *result, uint32_t stream,
                    scene_figure_t figure)
{
    const scene_figures_t *f = &result->streams[stream % SCENE_STREAMS];

    switch (figure) {
    case FIGURE_SERVED:
        return quotient(f->fulfilled, f->wishes);
    case FIGURE_P50:
        return percentile(f, 50);
    case FIGURE_P99:
        return percentile(f, 99);
    case FIGURE_MAX:
        return percentile(f, 100);
    case FIGURE_REFUSED:
        return quotient(refusals(f), f->requests);
    case FIGURE_LAST:
        return (double)(f->last - f->first);
    case FIGURE_ATTEMPTS:
        return quotient(f->requests, f->wishes);
    case FIGURE_KEPT:
        return quotient(f->kept, f->promised);
    case FIGURE_USED:
        return result->used;
    case FIGURE_IDLE:
        return result->idle;
    default:
        return 0;
    }
}

int scene_bar_met(const scene_bar_t *bar, scene_result_t *const *results,
                  double *value, double *wanted)
{
    *value = scene_figure(results[bar->policy], bar->stream, bar->figure);
    *wanted = bar->value;
    if (bar->relative)
        *wanted *= scene_figure(results[bar->other], bar->stream,
                                bar->figure);
    return bar->least ? *value >= *wanted : *value <= *wanted;
}
