/* How the database is reached: what DBGuardDatabase takes and refuses, and that
 * what is written to the monitor's pipe is what is read from it, and nothing
 * else. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dsn.h"
#include "unit.h"

static const struct {
    const char *url, *user, *host, *socket;
    uint32_t port;
} good[] = {
    {"mariadb://dbguard@127.0.0.1", "dbguard", "127.0.0.1", "", 0},
    {"mariadb://dbguard@127.0.0.1:3306", "dbguard", "127.0.0.1", "", 3306},
    {"mariadb://dbguard@localhost", "dbguard", "localhost", "", 0},
    {"mariadb://dbguard@localhost:3307", "dbguard", "localhost", "", 3307},
    {"mariadb://u@db.example.org:1", "u", "db.example.org", "", 1},
    {"mariadb://u@db:65535", "u", "db", "", 65535},
    {"mariadb://u@[::1]", "u", "::1", "", 0},
    {"mariadb://u@[::1]:3306", "u", "::1", "", 3306},
    {"mariadb://u@[fe80::1%eth0]:3306", "u", "fe80::1%eth0", "", 3306},
    {"mariadb://u@[2001:db8::42]:13306", "u", "2001:db8::42", "", 13306},
    {"mariadb://u@/run/mysqld/mysqld.sock", "u", "", "/run/mysqld/mysqld.sock",
     0},
    /* A socket's path with an @ in it is no host. */
    {"mariadb://u@/run/x@db.sock", "u", "", "/run/x@db.sock", 0},
    {"mariadb://u@/run/a:b.sock", "u", "", "/run/a:b.sock", 0},
    {"mariadb://user@server@db", "user@server", "db", "", 0},
    {"mariadb://j\xc3\xb6rg@d\xc3\xb6ner.example", "j\xc3\xb6rg",
     "d\xc3\xb6ner.example", "", 0},
    {"mariadb://a%20b@db", "a%20b", "db", "", 0},
};

START_TEST(a_url)
{
    const char *error;
    dbguard_dsn_t dsn;

    memset(&dsn, 0xff, sizeof(dsn));
    error = dbguard_dsn_parse(&dsn, good[_i].url);
    if (error != NULL)
        ck_abort_msg("%s: %s", good[_i].url, error);
    ck_assert_str_eq(dsn.user, good[_i].user);
    ck_assert_str_eq(dsn.host, good[_i].host);
    ck_assert_str_eq(dsn.socket, good[_i].socket);
    ck_assert_uint_eq(dsn.port, good[_i].port);
    ck_assert_uint_eq(dsn.extra_port, 0);
    ck_assert_int_eq(dsn.tls, 0);
    ck_assert_str_eq(dsn.password, "");
}
END_TEST

static const char *const bad[] = {
    "", "mariadb", "mariadb:", "mariadb:/", "mariadb://", "mariadb://@",
    "mariadb://db", "mariadb://@db", "mariadb://u@", "mariadb://u@:3306",
    "mysql://u@db", "MARIADB://u@db", " mariadb://u@db", "u@db", "//u@db",
    "mariadb://u:secret@db", "mariadb://:secret@db",
    "mariadb://u:secret@/run/s",
    "mariadb://u@db:", "mariadb://u@db:0", "mariadb://u@db:65536",
    "mariadb://u@db:-1", "mariadb://u@db:+1", "mariadb://u@db: 1",
    "mariadb://u@db:33 06", "mariadb://u@db:0x50", "mariadb://u@db:port",
    "mariadb://u@db:3306:3306", "mariadb://u@db:3306/",
    "mariadb://u@db:99999999999999999999",
    "mariadb://u@db/name", "mariadb://u@db/", "mariadb://u@db?tls=on",
    "mariadb://u@db name", "mariadb://u@db\t", "mariadb://u@ db",
    "mariadb://u@[", "mariadb://u@[]", "mariadb://u@[::1",
    "mariadb://u@[::1]3306", "mariadb://u@[::1]:", "mariadb://u@[::1]:0",
    "mariadb://u@[::1]:65536", "mariadb://u@::1", "mariadb://u@fe80::1",
    "mariadb://u@[a b]",
    "mariadb://u@/run/with space.sock", "mariadb://my user@db",
    /* Lines that are not there. */
    "mariadb://u\nhost evil@db", "mariadb://u@db\nuser root",
    "mariadb://u@/run/s\npassword x", "mariadb://u@[::1\nuser root]",
    "mariadb://u\rx@db", "mariadb://u@d\x7f", "mariadb://\x01@db",
};

START_TEST(not_a_url)
{
    dbguard_dsn_t dsn;
    const char *error = dbguard_dsn_parse(&dsn, bad[_i]);

    if (error == NULL)
        ck_abort_msg("'%s' was taken for user '%s', host '%s', socket '%s', "
                     "port %u", bad[_i], dsn.user, dsn.host, dsn.socket,
                     dsn.port);
    ck_assert_uint_gt(strlen(error), 10);
    /* The end of a sentence that may go to a log. */
    ck_assert_ptr_null(strstr(error, "secret"));
}
END_TEST

/* A text of `before`, n letters and `after`. Good until the next. */
static const char *with_letters(const char *before, int n, const char *after)
{
    static char text[1000];

    snprintf(text, sizeof(text), "%s%0*d%s", before, n, 1, after);
    return text;
}

START_TEST(as_long_as_there_is_room)
{
    dbguard_dsn_t d;

    ck_assert_ptr_null(
        dbguard_dsn_parse(&d, with_letters("mariadb://", 80, "@h")));
    ck_assert_uint_eq(strlen(d.user), 80);
    ck_assert_ptr_nonnull(
        dbguard_dsn_parse(&d, with_letters("mariadb://", 81, "@h")));
    ck_assert_ptr_null(
        dbguard_dsn_parse(&d, with_letters("mariadb://u@", 255, ":1")));
    ck_assert_uint_eq(strlen(d.host), 255);
    ck_assert_ptr_nonnull(
        dbguard_dsn_parse(&d, with_letters("mariadb://u@", 256, ":1")));
    ck_assert_ptr_null(
        dbguard_dsn_parse(&d, with_letters("mariadb://u@[", 255, "]")));
    ck_assert_ptr_nonnull(
        dbguard_dsn_parse(&d, with_letters("mariadb://u@[", 256, "]")));
    /* The system's own limit of a socket's path. */
    ck_assert_ptr_null(
        dbguard_dsn_parse(&d, with_letters("mariadb://u@/", 106, "")));
    ck_assert_uint_eq(strlen(d.socket), 107);
    ck_assert_ptr_nonnull(
        dbguard_dsn_parse(&d, with_letters("mariadb://u@/", 107, "")));
}
END_TEST

static const struct {
    const char *word;
    uint32_t extra_port;
    int tls;
} options[] = {
    {"extra-port=3307", 3307, 1}, {"extra-port=1", 1, 1},
    {"extra-port=65535", 65535, 1}, {"tls=on", 7, 1}, {"tls=off", 7, 0},
};

START_TEST(an_option)
{
    dbguard_dsn_t dsn;

    ck_assert_ptr_null(dbguard_dsn_parse(&dsn, "mariadb://u@h"));
    dsn.extra_port = 7;
    dsn.tls = 1;
    ck_assert_ptr_null(dbguard_dsn_option(&dsn, options[_i].word));
    ck_assert_uint_eq(dsn.extra_port, options[_i].extra_port);
    ck_assert_int_eq(dsn.tls, options[_i].tls);
}
END_TEST

static const char *const no_options[] = {
    "", "tls", "tls=", "tls=ON", "tls=yes", "tls=1", "tls=on ", " tls=on",
    "TLS=on", "tls=off;", "extra-port", "extra-port=", "extra-port=0",
    "extra-port=65536", "extra-port=-1", "extra-port=3307x",
    "extra-port= 3307", "extra_port=3307", "Extra-Port=3307", "port=3307",
    "password=x", "extra-port=99999999999999999999", "tls=on,extra-port=1",
};

START_TEST(not_an_option)
{
    dbguard_dsn_t dsn, before;

    memset(&dsn, 0, sizeof(dsn));
    before = dsn;
    ck_assert_ptr_nonnull(dbguard_dsn_option(&dsn, no_options[_i]));
    ck_assert_mem_eq(&dsn, &before, sizeof(dsn));
}
END_TEST

/* --- through the pipe ---------------------------------------------------- */

/* As dbguard-monitor reads it. How many lines were none. */
static int read_all(dbguard_dsn_t *dsn, const char *lines)
{
    char line[512];
    int strange = 0;

    memset(dsn, 0, sizeof(*dsn));
    while (*lines != '\0' && *lines != '\n') {
        size_t len = strcspn(lines, "\n");

        ck_assert_uint_lt(len, sizeof(line));
        memcpy(line, lines, len);
        line[len] = '\0';
        strange += !dbguard_dsn_read(dsn, line);
        lines += len + (lines[len] == '\n');
    }
    return strange;
}

static void is_same(const dbguard_dsn_t *a, const dbguard_dsn_t *b)
{
    ck_assert_str_eq(a->user, b->user);
    ck_assert_str_eq(a->host, b->host);
    ck_assert_str_eq(a->socket, b->socket);
    ck_assert_str_eq(a->password, b->password);
    ck_assert_uint_eq(a->port, b->port);
    ck_assert_uint_eq(a->extra_port, b->extra_port);
    ck_assert_int_eq(a->tls, b->tls);
}

static const char *const passwords[] = {
    "", "sekrit", " ", " leading", "trailing ", "with space", "a b c d",
    "password x", "user root", "\t", "quote\"'\\", "${VAR}", "%s%n%d",
    "p\xc3\xa4ss", "#hash", ":/@?", "\r", "\x01\x02",
};

START_TEST(it_arrives_as_it_was_sent)
{
    char lines[DBGUARD_DSN_LINES];
    dbguard_dsn_t sent, read;
    size_t len, i;

    for (i = 0; i < sizeof(passwords) / sizeof(passwords[0]); i++) {
        ck_assert_ptr_null(dbguard_dsn_parse(&sent, good[_i].url));
        sent.extra_port = i % 2 ? 3307 : 0;
        sent.tls = i % 3 == 0;
        strcpy(sent.password, passwords[i]);
        len = dbguard_dsn_write(&sent, lines, sizeof(lines));
        ck_assert_uint_eq(len, strlen(lines));
        ck_assert_str_eq(lines + len - 2, "\n\n");
        ck_assert_int_eq(read_all(&read, lines), 0);
        is_same(&read, &sent);
    }
}
END_TEST

START_TEST(the_longest_fits)
{
    char lines[DBGUARD_DSN_LINES];
    dbguard_dsn_t sent, read;

    memset(&sent, 0, sizeof(sent));
    memset(sent.user, 'u', sizeof(sent.user) - 1);
    memset(sent.host, 'h', sizeof(sent.host) - 1);
    memset(sent.socket, 's', sizeof(sent.socket) - 1);
    memset(sent.password, 'p', sizeof(sent.password) - 1);
    sent.port = sent.extra_port = 65535;
    sent.tls = 1;
    ck_assert_uint_gt(dbguard_dsn_write(&sent, lines, sizeof(lines)), 0);
    ck_assert_int_eq(read_all(&read, lines), 0);
    is_same(&read, &sent);
}
END_TEST

/* Nothing is written rather than half of it. */
START_TEST(no_room_is_nothing)
{
    char lines[DBGUARD_DSN_LINES];
    dbguard_dsn_t sent;
    size_t len, size;

    ck_assert_ptr_null(dbguard_dsn_parse(&sent, "mariadb://u@h"));
    len = dbguard_dsn_write(&sent, lines, sizeof(lines));
    for (size = 1; size <= len; size++)
        if (dbguard_dsn_write(&sent, lines, size) != 0)
            ck_abort_msg("%zu bytes were enough for %zu", size, len);
    ck_assert_uint_eq(dbguard_dsn_write(&sent, lines, len + 1), len);
}
END_TEST

/* A line break in a password would be a line of its own: such a thing is not
 * sent. (The other parts come from parse, which refuses it.) */
START_TEST(no_lines_are_smuggled)
{
    char lines[DBGUARD_DSN_LINES];
    dbguard_dsn_t sent;

    ck_assert_ptr_null(dbguard_dsn_parse(&sent, "mariadb://u@h"));
    strcpy(sent.password, "x\nport 666");
    ck_assert_uint_eq(dbguard_dsn_write(&sent, lines, sizeof(lines)), 0);
}
END_TEST

static const char *const no_lines[] = {
    "", "user", "password", "nonsense", "colour blue", "User u", "users u",
    "use u", "port", "port ", "port x", "port -1", "port 65536", "port 1 ",
    "port  1", "extra-port x", "tls on", "tls -1", " user u",
};

START_TEST(not_a_line)
{
    dbguard_dsn_t dsn, before;

    memset(&dsn, 0, sizeof(dsn));
    before = dsn;
    if (dbguard_dsn_read(&dsn, no_lines[_i]))
        ck_abort_msg("'%s' was taken for a line", no_lines[_i]);
    ck_assert_mem_eq(&dsn, &before, sizeof(dsn));
}
END_TEST

START_TEST(a_part_that_is_too_long_is_not_read)
{
    dbguard_dsn_t d;

    memset(&d, 0, sizeof(d));
    ck_assert(!dbguard_dsn_read(&d, with_letters("user ", 81, "")));
    ck_assert(!dbguard_dsn_read(&d, with_letters("host ", 256, "")));
    ck_assert(!dbguard_dsn_read(&d, with_letters("socket /", 107, "")));
    ck_assert(!dbguard_dsn_read(&d, with_letters("password ", 257, "")));
    ck_assert_str_eq(d.user, "");
    ck_assert_str_eq(d.password, "");
    ck_assert(dbguard_dsn_read(&d, with_letters("password ", 256, "")));
    ck_assert_uint_eq(strlen(d.password), 256);
}
END_TEST

Suite *dsn_suite(void)
{
    Suite *s = suite_create("dsn");
    TCase *tc = tcase_create("dsn");

    tcase_add_loop_test(tc, a_url, 0, LENGTH(good));
    tcase_add_loop_test(tc, not_a_url, 0, LENGTH(bad));
    tcase_add_test(tc, as_long_as_there_is_room);
    tcase_add_loop_test(tc, an_option, 0, LENGTH(options));
    tcase_add_loop_test(tc, not_an_option, 0, LENGTH(no_options));
    tcase_add_loop_test(tc, it_arrives_as_it_was_sent, 0, LENGTH(good));
    tcase_add_test(tc, the_longest_fits);
    tcase_add_test(tc, no_room_is_nothing);
    tcase_add_test(tc, no_lines_are_smuggled);
    tcase_add_loop_test(tc, not_a_line, 0, LENGTH(no_lines));
    tcase_add_test(tc, a_part_that_is_too_long_is_not_read);
    suite_add_tcase(s, tc);
    return s;
}
