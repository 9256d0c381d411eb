/* What operators see: ?auto lines that every exporter can read, a page that no
 * client can break, and text that fits a terminal. */

#include <ctype.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

#define SLOTS 128

typedef void (*view_fn)(const dbguard_view_t *, const dbguard_snapshot_t *);

static void setup(void)
{
    board_open(SLOTS, 20, 40);
}

/* --- catching what a view writes ------------------------------------------ */

typedef struct text_t {
    char *bytes;
    size_t len, size;
} text_t;

static void capture(void *context, const char *format, va_list args)
{
    text_t *text = context;
    va_list again;
    int n;

    va_copy(again, args);
    n = vsnprintf(NULL, 0, format, again);
    va_end(again);
    ck_assert_int_ge(n, 0);
    if (text->len + (size_t)n + 1 > text->size) {
        text->size = 2 * text->size + (size_t)n + 1;
        text->bytes = realloc(text->bytes, text->size);
        ck_assert_ptr_nonnull(text->bytes);
    }
    vsnprintf(text->bytes + text->len, (size_t)n + 1, format, args);
    text->len += (size_t)n;
}

static void text_top(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    dbguard_view_text(view, s, 0);
}

static void text_all(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    dbguard_view_text(view, s, 1);
}

/* The board as a view shows it. The caller frees it. */
static char *shown(view_fn show)
{
    text_t text = {NULL, 0, 0};
    dbguard_view_t view = {capture, &text};
    dbguard_snapshot_t *s = snapshot();

    show(&view, s);
    free(s);
    ck_assert_uint_eq(strlen(text.bytes), text.len);
    return text.bytes;
}

static void expect_shown(view_fn show, const char *what, int is_shown)
{
    char *text = shown(show);

    if ((strstr(text, what) != NULL) != is_shown)
        ck_abort_msg("'%s' should%s be in\n%s", what, is_shown ? "" : " not",
                     text);
    free(text);
}

/* --- boards to show ------------------------------------------------------- */

static void enter_as_endpoint(const char *client, const char *endpoint)
{
    dbguard_visitor_t visitor = {.pid = 12345};
    dbguard_decision_t d;

    snprintf(visitor.client, sizeof(visitor.client), "%s", client);
    snprintf(visitor.endpoint, sizeof(visitor.endpoint), "%s", endpoint);
    dbguard_admission_enter(&board, &visitor, now, &d);
}

static void set(const char *name, const char *value, const char *source)
{
    dbguard_setting_t *s = &board.shared->settings[board.shared->nsettings++];

    snprintf(s->name, sizeof(s->name), "%s", name);
    snprintf(s->value, sizeof(s->value), "%s", value);
    snprintf(s->source, sizeof(s->source), "%s", source);
    s->valid = 1;
}

/* An afternoon in which everything has happened. */
static void normal_board(void)
{
    static const char conf[] = "/etc/apache2/mods-enabled/dbguard.conf:12";
    dbguard_ticket_t t[70];
    int i, round;

    teach("GET /", 0, SECOND);
    teach("POST /orders/*/reset", 0, SECOND);
    for (round = 0; round < 90; round++) {
        for (i = 0; i < 70; i++) {
            if (i == 60)
                now += SECOND / 2;
            t[i] = enter().ticket;
        }
        for (i = 0; i < 70; i++)
            if (t[i].serial != 0)
                leave(t[i]);
        now += SECOND / 2;
    }
    for (i = 0; i < 45; i++)
        enter_as_endpoint("203.0.113.207", "POST /orders/*/reset");
    set("DBGuardEngine", "On", conf);
    set("DBGuardBudget", "20", conf);
    set("DBGuardQueue length", "auto", "default");
    snprintf(board.shared->settings[2].note, 120,
             "40 places: MaxRequestWorkers 71 - budget 20 - max(8, 15 %%) for "
             "everything else");
    board.shared->generation = 12;
    board.shared->prefix.pid = 1234567;
    now += SECOND;
}

/* The largest numbers that there may ever be. */
static void huge_board(void)
{
    uint64_t *counter = (uint64_t *)&board.shared->counters;
    size_t i;

    normal_board();
    for (i = 0; i < sizeof(dbguard_counters_t) / sizeof(uint64_t); i++)
        counter[i] = UINT64_MAX;
    for (i = 0; i < DBGUARD_SECONDS; i++) {
        dbguard_second_t *s = &board.shared->seconds[i];

        s->admitted = s->refused = s->held_max = s->waiting_max = UINT32_MAX;
        s->hold_us = UINT64_MAX / DBGUARD_SECONDS;
    }
    board.shared->limits.budget = UINT32_MAX;
    board.shared->limits.queue = UINT32_MAX;
    board.shared->prefix.held = UINT32_MAX;
}

static void empty_board(void)
{
}

static void (*const boards[])(void) = {empty_board, normal_board, huge_board};

#define BOARDS LENGTH(boards)

/* --- ?auto ---------------------------------------------------------------- */

/* The next line of *text, ended in place. NULL at the end. */
static char *next_line(char **text)
{
    char *line = *text;
    char *end = strchr(line, '\n');

    if (*line == '\0')
        return NULL;
    ck_assert_ptr_nonnull(end); /* the last line is ended, too */
    *end = '\0';
    *text = end + 1;
    return line;
}

START_TEST(auto_lines)
{
    char *text, *rest, *line;
    char names[100][64];
    int n = 0, i;
    regex_t pattern;

    boards[_i]();
    ck_assert_int_eq(regcomp(&pattern, "^DBGuard[A-Za-z0-9]+: [0-9]+$",
                             REG_EXTENDED | REG_NOSUB),
                     0);
    text = rest = shown(dbguard_view_auto);
    while ((line = next_line(&rest)) != NULL) {
        if (regexec(&pattern, line, 0, NULL, 0) != 0)
            ck_abort_msg("not a line for exporters: '%s'", line);
        snprintf(names[n], sizeof(names[n]), "%.*s", (int)strcspn(line, ":"),
                 line);
        for (i = 0; i < n; i++)
            if (strcasecmp(names[i], names[n]) == 0)
                ck_abort_msg("twice: %s", names[n]);
        ck_assert_int_lt(++n, 100);
    }
    ck_assert_int_gt(n, 20);
    free(text);
    regfree(&pattern);
}
END_TEST

/* The names that people's tools rely on. */
START_TEST(auto_names)
{
    static const char *const lines[] = {
        "DBGuardBudget: 20\n", "DBGuardHeld: 20\n", "DBGuardWaiting: 25\n",
        "DBGuardAdmittedTotal: ", "DBGuardWaitedTotal: ",
        "DBGuardRefusedTotal: ", "DBGuardHeldPeak: 20\n", "DBGuardDryRun: 0\n"
    };
    int i;

    normal_board();
    for (i = 0; i < LENGTH(lines); i++)
        expect_shown(dbguard_view_auto, lines[i], 1);
    configure(20, 40, 1);
    expect_shown(dbguard_view_auto, "DBGuardDryRun: 1\n", 1);
}
END_TEST

START_TEST(counters_have_names_and_help)
{
#define COUNTER(field, name, help)                                            \
    ck_assert_uint_eq(strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"               \
                                   "abcdefghijklmnopqrstuvwxyz"),             \
                      strlen(name));                                          \
    ck_assert_str_eq(&name[strlen(name) - 5], "Total");                       \
    ck_assert_uint_gt(strlen(help), 10);
#include "counters.def"
#undef COUNTER
}
END_TEST

/* --- HTML ----------------------------------------------------------------- */

static const char *const void_elements[] = {"hr", "br", "meta", "img", NULL};

static int is_void(const char *name)
{
    int i;

    for (i = 0; void_elements[i] != NULL; i++)
        if (strcmp(void_elements[i], name) == 0)
            return 1;
    return 0;
}

/* The attributes of a tag: name="value", each value without '<'. What stands
 * behind them, or NULL. */
static const char *attributes(const char *p)
{
    while (isspace((unsigned char)*p)) {
        size_t name = strspn(p + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOP"
                                    "QRSTUVWXYZ0123456789-");
        size_t value;

        if (name == 0 || strncmp(p + 1 + name, "=\"", 2) != 0)
            return NULL;
        p += 1 + name + 2;
        value = strcspn(p, "\"<");
        if (p[value] != '"')
            return NULL;
        p += value + 1;
    }
    return p;
}

typedef struct tags_t {
    char open[32][16];
    int depth;
} tags_t;

/* A tag that begins at p. What stands behind it, or NULL. */
static const char *tag(const char *p, tags_t *tags)
{
    int closes = p[1] == '/';
    char name[16];
    size_t len;

    p += 1 + closes;
    len = strspn(p, "abcdefghijklmnopqrstuvwxyz0123456789");
    if (len == 0 || len >= sizeof(name))
        return NULL;
    snprintf(name, sizeof(name), "%.*s", (int)len, p);
    p = attributes(p + len);
    if (p == NULL)
        return NULL;
    if (closes) {
        if (tags->depth == 0 || strcmp(tags->open[--tags->depth], name) != 0)
            return NULL;
    }
    else if (*p == '/')
        p++;
    else if (!is_void(name)) {
        if (tags->depth == 32)
            return NULL;
        strcpy(tags->open[tags->depth++], name);
    }
    return *p == '>' ? p + 1 : NULL;
}

/* Where a piece of HTML stops being well-formed, or NULL. */
static const char *html_fault(const char *html)
{
    tags_t tags = {{""}, 0};
    const char *p = html, *behind;

    while (*p != '\0') {
        if (*p == '<') {
            behind = tag(p, &tags);
            if (behind == NULL)
                return p;
            p = behind;
        }
        else if (*p == '&') {
            size_t len = strspn(p + 1, "abcdefghijklmnopqrstuvwxyz");

            if (len == 0 || p[1 + len] != ';')
                return p;
            p += len + 2;
        }
        else if (*p == '>')
            return p;
        else
            p++;
    }
    return tags.depth == 0 ? NULL : "something is not closed";
}

/* The negative control. */
START_TEST(broken_html_is_noticed)
{
    static const char *const broken[] = {
        "<p>a", "<p>a</b>", "a</p>", "<p><b>a</p></b>", "a < b", "a > b",
        "a & b", "a &amp b", "<p class=a></p>", "<p class=\"a></p>",
        "<p class=\"a<b\"></p>", "<>", "<p", "<P></P>"
    };
    int i;

    for (i = 0; i < LENGTH(broken); i++)
        if (html_fault(broken[i]) == NULL)
            ck_abort_msg("taken for well-formed: %s", broken[i]);
    ck_assert_ptr_null(html_fault("<hr>\n<p class=\"a\" id=\"b\">a &lt; b<i>c"
                                  "</i></p><rect x=\"1\"/>"));
}
END_TEST

static void expect_good_html(void)
{
    char *html = shown(dbguard_view_html);
    const char *fault = html_fault(html);

    if (fault != NULL)
        ck_abort_msg("not well-formed: %.200s", fault);
    free(html);
}

START_TEST(html_is_well_formed)
{
    boards[_i]();
    expect_good_html();
    configure(3, 1, 1);
    board.shared->elder = 1;
    expect_good_html();
}
END_TEST

static const char *const hostile[] = {
    "GET /<script>alert(1)</script>",
    "GET /\"><img/src=x/onerror=alert(1)>",
    "GET /'onmouseover='alert(1)",
    "GET /</td></table></section>",
    "GET /<!--",
    "GET /]]>",
    "GET /&lt;b&gt;&amp;",
    "GET /&#60;script&#62;",
    "GET /%n%s%s%s%99999d",
    "<>&\"'<>&\"'<>&\"'",
    "GET /</style><script>x</script>",
};

START_TEST(html_escapes_what_clients_chose)
{
    enter_as_endpoint("192.0.2.1", hostile[_i]);
    enter_as_endpoint(hostile[_i], "GET /");
    expect_good_html();
    expect_shown(dbguard_view_html, "<script", 0);
    expect_shown(dbguard_view_html, "<img", 0);
    expect_shown(dbguard_view_html, "<!--", 0);
    expect_shown(dbguard_view_html, "%99999d", _i == 8);
}
END_TEST

START_TEST(html_loads_nothing)
{
    normal_board();
    expect_shown(dbguard_view_html, "<script", 0);
    expect_shown(dbguard_view_html, "http:", 0);
    expect_shown(dbguard_view_html, "https:", 0);
    expect_shown(dbguard_view_html, "src=", 0);
    expect_shown(dbguard_view_html, "url(", 0);
    expect_shown(dbguard_view_html, "@import", 0);
}
END_TEST

START_TEST(html_says_what_matters)
{
    normal_board();
    expect_shown(dbguard_view_html, "DBGuardEngine is Off", 0);
    expect_shown(dbguard_view_html, "20 of 20 tokens out", 1);
    expect_shown(dbguard_view_html, "25 of 40 waiting places taken", 1);
    expect_shown(dbguard_view_html, "DryRun: nobody is refused", 0);
    expect_shown(dbguard_view_html, "before an upgrade", 0);
    expect_shown(dbguard_view_html, "POST /orders/*/reset", 1);
    configure(20, 40, 1);
    board.shared->elder = 1;
    expect_shown(dbguard_view_html, "DryRun: nobody is refused", 1);
    expect_shown(dbguard_view_html, "before an upgrade", 1);
    board.shared->engine = 0;
    expect_shown(dbguard_view_html, "DBGuardEngine is Off", 1);
}
END_TEST

/* --- text ----------------------------------------------------------------- */

static void expect_narrow(view_fn show)
{
    char *text = shown(show), *rest = text, *line;

    while ((line = next_line(&rest)) != NULL) {
        size_t i;

        if (strlen(line) > 80)
            ck_abort_msg("%d columns: %s", (int)strlen(line), line);
        for (i = 0; line[i] != '\0'; i++)
            if (!isprint((unsigned char)line[i]))
                ck_abort_msg("not printable: %s", line);
    }
    free(text);
}

static void expect_narrow_text(void)
{
    expect_narrow(text_top);
    expect_narrow(text_all);
}

START_TEST(text_fits_eighty_columns)
{
    empty_board();
    expect_narrow_text();
    normal_board();
    expect_narrow_text();
}
END_TEST

/* 1,500 refusals a second, as in an incident. */
START_TEST(text_fits_in_a_storm)
{
    int i, j;

    normal_board();
    for (i = 0; i < 5; i++) {
        for (j = 0; j < 1500; j++)
            enter();
        now += SECOND;
    }
    expect_narrow_text();
}
END_TEST

START_TEST(text_fits_with_long_words)
{
    enter_as_endpoint("2001:db8:1234:5678:9abc:def0:1234:5678",
                      "POST /api/v2/customers/*/orders/*/positions/*/prices");
    teach("POST /api/v2/customers/*/orders/*/positions/*/prices", 0, SECOND);
    expect_narrow_text();
}
END_TEST

START_TEST(text_fits_in_dryrun)
{
    normal_board();
    configure(20, 40, 1);
    board.shared->elder = 1;
    expect_narrow_text();
    board.shared->engine = 0;
    expect_narrow_text();
}
END_TEST

static const struct {
    int column, indent;
    const char *text, *wrapped;
} wraps[] = {
    {0, 0, "", "\n"},
    {0, 0, "a", "a\n"},
    {70, 4, "nine char", "nine char\n"},
    {70, 4, "ten letter", "ten letter\n"}, /* up to column 80 */
    {70, 4, "ten letters", "ten\n    letters\n"},
    {79, 4, "ab", "\n    ab\n"},
    {76, 4, "  a   b  ", "a b\n"},
    {78, 2, "a b c", "a\n  b c\n"},
    {78, 78, "abcdef", "abcdef\n"}, /* it will not fit there either */
};

static int which; /* of the wraps */

static void show_wrap(const dbguard_view_t *view, const dbguard_snapshot_t *s)
{
    (void)s;
    dbguard_view_wrap(view, wraps[which].column, wraps[which].indent,
                      wraps[which].text);
}

START_TEST(wrapping)
{
    char *text;

    which = _i;
    text = shown(show_wrap);
    ck_assert_str_eq(text, wraps[_i].wrapped);
    free(text);
}
END_TEST

/* Every counter, whatever it has come to in a year. */
START_TEST(text_fits_with_all_counters)
{
    uint64_t *counter = (uint64_t *)&board.shared->counters;
    size_t i;

    for (i = 0; i < sizeof(dbguard_counters_t) / sizeof(uint64_t); i++)
        counter[i] = UINT64_C(99999999999);
    expect_narrow_text();
}
END_TEST

/* What a reload with a bad value leaves: the operator has to see it. */
START_TEST(text_fits_when_a_value_was_refused)
{
    set("DBGuardBudget", "20", "last good value (/etc/apache2/mods-enabled/"
                               "dbguard.conf:12 was refused)");
    board.shared->settings[0].valid = 0;
    expect_shown(text_top, "NOT VALID", 1);
    expect_narrow_text();
}
END_TEST

START_TEST(text_says_what_matters)
{
    normal_board();
    expect_shown(text_top, "20 of 20 out", 1);
    expect_shown(text_top, "25 of 40 places, patience 5s", 1);
    expect_shown(text_top, "POST /orders/*/reset", 1);
    expect_shown(text_top, "DBGuardBudget", 1);
    expect_shown(text_top, "40 places: MaxRequestWorkers 71", 1);
    expect_shown(text_top, "... and 25 more", 1);
    expect_shown(text_top, "NOBODY IS REFUSED", 0);
    expect_shown(text_top, "may not add up", 0);
    configure(20, 40, 1);
    board.shared->elder = 1;
    board.shared->seq = 1;
    expect_shown(text_top, "NOBODY IS REFUSED", 1);
    expect_shown(text_top, "before an upgrade", 1);
    expect_shown(text_top, "may not add up", 1);
    board.shared->engine = 0;
    expect_shown(text_top, "NOTHING IS GUARDED", 1);
}
END_TEST

/* --- endpoints, and Little's law ------------------------------------------ */

/* One request, from its coming to its end. */
static void serve(const char *endpoint, int64_t hold)
{
    dbguard_ticket_t t;

    come_as(endpoint, 0, 0);
    t = enter().ticket;
    now += hold;
    leave(t);
}

/* A minute in which so many came to each of n endpoints "GET /x<i>" in each
 * second, and held for i + 1 times 10 ms. */
static void a_minute_of(int n, int each)
{
    char endpoint[32];
    int64_t second;
    int t, i, j;

    for (t = 0; t < DBGUARD_RECENT; t++) {
        second = now;
        for (i = 0; i < n; i++) {
            snprintf(endpoint, sizeof(endpoint), "GET /x%03d", i);
            for (j = 0; j < each; j++) {
                serve(endpoint, (i + 1) * 10000);
                now = second;
            }
        }
        now = second + SECOND;
    }
}

/* The sentence and what it is made of. */
static void expect_little(double rate, double peak, double hold)
{
    double n, r, t, n_peak, n_came, at, lasts, at_peak, lasts_peak, is;
    uint32_t of, budget;
    dbguard_snapshot_t *s = snapshot();
    dbguard_words_t w;

    dbguard_view_explain(&w, s);
    free(s);
    if (sscanf(w.needed, "%lf tokens of %u: %lf/s x %lf s (Little's law, the "
               "last minute); %lf in its busiest second, when %lf came", &n,
               &of, &r, &t, &n_peak, &n_came) != 6
        || sscanf(w.lasts, "at %lf/s (mean) the budget of %u lasts up to a "
                  "mean hold of %lf s; at %lf/s (busiest second) up to %lf s; "
                  "now %lf s", &at, &budget, &lasts, &at_peak, &lasts_peak, &is)
               != 6)
        ck_abort_msg("%s\n%s", w.needed, w.lasts);
    ck_assert_uint_eq(of, board.shared->limits.budget);
    ck_assert_uint_eq(budget, of);
    ck_assert_double_eq_tol(r, rate, 0.01);
    ck_assert_double_eq_tol(at, r, 1e-9);
    ck_assert_double_eq_tol(t, hold, 0.001);
    ck_assert_double_eq_tol(is, t, 1e-9);
    ck_assert_double_eq_tol(n_came, peak, 1e-9);
    ck_assert_double_eq_tol(at_peak, peak, 1e-9);
    ck_assert_double_eq_tol(n, r * t, 0.006 + r * 0.0006);
    ck_assert_double_eq_tol(n_peak, peak * t, 0.006 + peak * 0.0006);
    ck_assert_double_eq_tol(lasts * r, budget, 0.001 * r + 0.01 * lasts);
    ck_assert_double_eq_tol(lasts_peak * peak, budget, 0.001 * peak);
}

START_TEST(little_fits_itself)
{
    int i;

    now += 100 * (int64_t)SECOND;
    a_minute_of(1, 4);
    expect_little(4, 4, 0.010);
    expect_shown(text_top, "is needed than there is", 0);
    /* A busy second. */
    for (i = 0; i < 90; i++)
        serve("GET /x000", 0);
    now += SECOND;
    expect_shown(dbguard_view_auto, "DBGuardArrivedPeakSecond: 90\n", 1);
    expect_shown(dbguard_view_auto, "DBGuardArrivedLastMinute: 326\n", 1);
    a_minute_of(4, 2);
    expect_little(8, 8, 0.025);
    /* The means have not quite forgotten the busy second. */
    expect_shown(dbguard_view_auto, "DBGuardHoldExpectedMicroseconds: 2499", 1);
    expect_shown(dbguard_view_auto, "DBGuardHoldLimitMicroseconds: 2500000\n",
                 1);
    expect_shown(dbguard_view_html, "At 8.00/s (mean) the budget of 20 lasts "
                 "up to a mean hold of 2.500 s; at 8/s (busiest second) up to "
                 "2.500 s; now 0.025 s.", 1);
}
END_TEST

/* The server has been up for ten seconds. */
START_TEST(little_of_a_young_server)
{
    int i;

    for (i = 0; i < 10; i++) {
        int64_t second = now;

        serve("GET /", 100000);
        serve("GET /", 100000);
        now = second + SECOND;
    }
    expect_little(2, 2, 0.1 * (1 - 0.358)); /* 20 samples of it */
}
END_TEST

/* It began in the middle of a second: the mean is not above the busiest one. */
START_TEST(little_of_a_broken_second)
{
    dbguard_snapshot_t *s;
    dbguard_outlook_t o;
    int i;

    board.shared->created = now += 900000;
    for (i = 0; i < 5; i++)
        serve("GET /", 0);
    now += SECOND;
    for (i = 0; i < 5; i++)
        serve("GET /", 0);
    now += 200000;
    s = snapshot();
    dbguard_view_reckon(&o, s);
    ck_assert_uint_eq(o.came, 10);
    ck_assert_uint_eq(o.peak, 5);
    ck_assert_double_eq_tol(o.rate, 5, 1e-9);
    free(s);
}
END_TEST

/* Those who are refused need tokens, too, and more than those who are not. */
START_TEST(little_counts_who_was_refused)
{
    int t, i;

    now += 100 * (int64_t)SECOND;
    configure(2, 0, 0);
    teach("GET /long", 0, 10 * SECOND);
    for (t = 0; t < DBGUARD_RECENT; t++) {
        int64_t second = now;

        come_as("GET /long", 0, 0);
        for (i = 0; i < 3; i++)
            enter();
        now = second + SECOND;
    }
    expect_shown(text_top, "More is needed than there is", 1);
    expect_shown(dbguard_view_html, "More is needed than there is", 1);
}
END_TEST

START_TEST(little_of_nothing)
{
    expect_shown(text_top, "Little", 0);
    expect_shown(dbguard_view_auto, "DBGuardHoldLimitMicroseconds: 0\n", 1);
    come_as("GET /new", 0, 0);
    enter();
    now += SECOND;
    expect_shown(text_top, "a guess: none has", 1);
}
END_TEST

static int lines_with(view_fn show, const char *what)
{
    char *text = shown(show), *p = text;
    int n = 0;

    while ((p = strstr(p, what)) != NULL) {
        n++;
        p += strlen(what);
    }
    free(text);
    return n;
}

START_TEST(no_list_is_cut_silently)
{
    now += 100 * (int64_t)SECOND;
    a_minute_of(30, 1);
    ck_assert_int_eq(lines_with(text_top, "GET /x0"), 10);
    ck_assert_int_eq(lines_with(text_all, "GET /x0"), 30);
    ck_assert_int_eq(lines_with(dbguard_view_html, "GET /x0"), 20);
    /* N of 10, 20 ... 200 ms at 1/s each, and GET /, which nobody asked for. */
    expect_shown(text_top,
                 "  2.10     0   20.00                        0  ... 21 more: "
                 "status --all\n", 1);
    expect_shown(dbguard_view_html,
                 "11 more: dbguardctl status --all</td>"
                 "<td class=\"n\">0.55", 1);
    expect_shown(text_all, "more: status", 0);
    expect_narrow_text();
    expect_good_html();
}
END_TEST

/* Many endpoints and clients, each with a request: the rest is added up. */
START_TEST(groups_are_added_up)
{
    char client[32], endpoint[32];
    int i;

    for (i = 0; i < 30; i++) {
        snprintf(client, sizeof(client), "192.0.2.%d", i / 2);
        snprintf(endpoint, sizeof(endpoint), "GET /y%02d", i);
        enter_as_endpoint(client, endpoint);
    }
    expect_shown(text_top, "  holds   waits  oldest s  endpoint\n", 1);
    expect_shown(text_top, "  holds   waits  oldest s  client\n", 1);
    expect_shown(text_top, "     10      10            ... 20 more\n", 1);
    expect_shown(text_top, "     10      10            ... 10 more\n", 1);
    expect_shown(dbguard_view_html, "<td>20 more</td><td class=\"n\">10</td>"
                                    "<td class=\"n\">10</td>", 1);
    expect_narrow_text();
}
END_TEST

START_TEST(words_for_what_has_no_name)
{
    board.shared->endpoints[DBGUARD_OTHER(0)].arrived = 5;
    enter_as_endpoint("192.0.2.1", "GET /unheard-of");
    enter_as_endpoint("192.0.2.1", "GET /unheard-of-too");
    expect_shown(text_top, "(not seen before: 2 endpoints)", 1);
    expect_shown(text_top, "(no place in the table)", 1);
    expect_shown(dbguard_view_html,
                 "<em>not seen before</em> (2 endpoints)", 1);
    expect_shown(dbguard_view_html, "<em>no place in the table</em>", 1);
    expect_good_html();
    expect_narrow_text();
}
END_TEST

START_TEST(who_has_become_slower)
{
    teach("GET /slow", 0, SECOND);
    come_as("GET /slow", 0, 0);
    enter();
    now += SECOND;
    expect_shown(text_top, "1000.0 ", 1);
    expect_shown(text_top, "\n+ what runs", 0);
    expect_shown(dbguard_view_html, "<strong>1000.0</strong>", 0);
    now += 40 * (int64_t)SECOND;
    expect_shown(text_top, "3000.0+", 1);
    expect_shown(text_top, "\n+ what runs now has run for at least twice", 1);
    expect_shown(dbguard_view_html, "<strong>3000.0</strong>", 1);
    expect_narrow_text();
}
END_TEST

static void with_classes(void)
{
    dbguard_class_t *classes = board.shared->limits.classes;
    dbguard_limits_t limits;

    snprintf(classes[1].name, sizeof(classes[1].name), "reports");
    classes[1].max.number = 4;
    snprintf(classes[2].name, sizeof(classes[2].name), "checkout");
    classes[2].min.number = 25;
    classes[2].min.percent = 1;
    limits = board.shared->limits;
    dbguard_admission_configure(&board, &limits, now);
}

START_TEST(classes)
{
    int i;

    expect_shown(text_top, "reports", 0);
    expect_shown(dbguard_view_html, "<h3>Classes", 0);
    with_classes();
    teach("GET /r", 1, SECOND);
    come_as("GET /r", 0, 0);
    guest.class = 1;
    for (i = 0; i < 6; i++)
        enter();
    expect_shown(text_top,
                 "\n  holds     min     max   waits  class\n"
                 "      0       -       -       0  default\n"
                 "      4       -       4       2  reports\n"
                 "      0       5       -       0  checkout\n", 1);
    expect_shown(text_top, "GET /r [reports]\n", 1);
    expect_shown(text_top, "kept     5 free for classes below", 1);
    expect_shown(dbguard_view_html,
                 "<tr><td>reports</td><td class=\"n\">4</td>"
                 "<td class=\"n\">-</td><td class=\"n\">4</td>"
                 "<td class=\"n\">2</td></tr>", 1);
    expect_narrow_text();
    expect_good_html();
}
END_TEST

/* A picture says in words what it shows. */
START_TEST(histogram_in_words)
{
    int i;

    for (i = 0; i < 90; i++)
        serve("GET /h", 30000);
    for (i = 0; i < 10; i++)
        serve("GET /h", 2 * SECOND);
    expect_shown(dbguard_view_html, "aria-label=\"half of the holds up to "
                                    "0.04 s, 95 % up to 2.56 s\"", 1);
}
END_TEST

/* Names that clients chose are harmless in the table of endpoints, too. */
START_TEST(html_escapes_known_endpoints)
{
    serve(hostile[_i], SECOND);
    expect_good_html();
    expect_shown(dbguard_view_html, "<script", 0);
    expect_shown(dbguard_view_html, "<img", 0);
    expect_shown(dbguard_view_html, "<!--", 0);
}
END_TEST

/* Numbers that no board has do not take a view out of its arrays. */
START_TEST(text_survives_anything)
{
    boards[_i]();
    board.shared->limits.budget = 0;
    board.shared->limits.patience = 0;
    board.shared->hold = -1;
    memset(&board.shared->endpoints[DBGUARD_FIXED + 1],
           _i == 0 ? 0xff : _i == 1 ? 0x7f : 0x80,
           900 * sizeof(board.shared->endpoints[0]));
    memset(board.shared->class_max, 0x55, sizeof(board.shared->class_max));
    free(shown(text_top));
    free(shown(text_all));
    free(shown(dbguard_view_html));
    free(shown(dbguard_view_auto));
}
END_TEST

static TCase *fixed(const char *name)
{
    TCase *tc = tcase_create(name);

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, board_close);
    return tc;
}

static TCase *html(void)
{
    TCase *tc = fixed("html");

    tcase_add_test(tc, broken_html_is_noticed);
    tcase_add_loop_test(tc, html_is_well_formed, 0, BOARDS);
    tcase_add_loop_test(tc, html_escapes_what_clients_chose, 0,
                        LENGTH(hostile));
    tcase_add_test(tc, html_loads_nothing);
    tcase_add_test(tc, html_says_what_matters);
    return tc;
}

static TCase *text(void)
{
    TCase *tc = fixed("text");

    tcase_add_loop_test(tc, wrapping, 0, LENGTH(wraps));
    tcase_add_test(tc, text_fits_eighty_columns);
    tcase_add_test(tc, text_fits_in_a_storm);
    tcase_add_test(tc, text_fits_with_long_words);
    tcase_add_test(tc, text_fits_in_dryrun);
    tcase_add_test(tc, text_fits_with_all_counters);
    tcase_add_test(tc, text_fits_when_a_value_was_refused);
    tcase_add_test(tc, text_says_what_matters);
    tcase_add_loop_test(tc, text_survives_anything, 0, BOARDS);
    return tc;
}

static TCase *endpoints(void)
{
    TCase *tc = fixed("endpoints");

    tcase_add_test(tc, little_fits_itself);
    tcase_add_test(tc, little_of_a_young_server);
    tcase_add_test(tc, little_of_a_broken_second);
    tcase_add_test(tc, little_counts_who_was_refused);
    tcase_add_test(tc, little_of_nothing);
    tcase_add_test(tc, no_list_is_cut_silently);
    tcase_add_test(tc, groups_are_added_up);
    tcase_add_test(tc, words_for_what_has_no_name);
    tcase_add_test(tc, who_has_become_slower);
    tcase_add_test(tc, classes);
    tcase_add_test(tc, histogram_in_words);
    tcase_add_loop_test(tc, html_escapes_known_endpoints, 0, LENGTH(hostile));
    return tc;
}

Suite *view_suite(void)
{
    Suite *s = suite_create("view");
    TCase *tc = fixed("auto");

    tcase_add_loop_test(tc, auto_lines, 0, BOARDS);
    tcase_add_test(tc, auto_names);
    tcase_add_test(tc, counters_have_names_and_help);
    suite_add_tcase(s, tc);
    suite_add_tcase(s, html());
    suite_add_tcase(s, text());
    suite_add_tcase(s, endpoints());
    return s;
}
