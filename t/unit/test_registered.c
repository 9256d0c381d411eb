/* The tests of the tests: every test that is written in t/unit is also run,
 * and so is every suite. Reads the sources at DBGUARD_SRCDIR. */

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

#define TEXT 300000

/* The sources at t/unit/`pattern`. The caller frees it with globfree. */
static glob_t sources(const char *pattern)
{
    const char *dir = getenv("DBGUARD_SRCDIR");
    char path[4096];
    glob_t found;

    snprintf(path, sizeof(path), "%s/t/unit/%s", dir ? dir : ".", pattern);
    if (glob(path, 0, NULL, &found) != 0)
        ck_abort_msg("no %s: DBGUARD_SRCDIR must name the sources", path);
    return found;
}

/* A whole file as text. The caller frees it. */
static char *text_of(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = calloc(1, TEXT);
    size_t n;

    ck_assert_ptr_nonnull(text);
    if (f == NULL)
        ck_abort_msg("%s cannot be read", path);
    n = fread(text, 1, TEXT, f);
    fclose(f);
    ck_assert_uint_lt(n, TEXT);
    return text;
}

/* How often `before`, name and `after` stand in text in this order, with
 * nothing but a space or a line break between them. */
static int mentions(const char *text, const char *before, const char *name,
                    const char *after)
{
    const char *p = text;
    int n = 0;

    while ((p = strstr(p, before)) != NULL) {
        p += strlen(before);
        p += strspn(p, " \n");
        if (strncmp(p, name, strlen(name)) == 0
            && strncmp(p + strlen(name), after, strlen(after)) == 0)
            n++;
    }
    return n;
}

/* The test of one source that is not registered exactly once, in memory that
 * the next call uses, or NULL. *tests grows by all that it has looked at. */
static const char *unregistered(const char *text, int *tests)
{
    static const char start[] = "\nSTART_TEST(";
    static char name[100];
    const char *p = text;

    while ((p = strstr(p, start)) != NULL) {
        p += strlen(start);
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(p, ")"), p);
        ++*tests;
        if (mentions(text, "tcase_add_test(tc,", name, ")")
                + mentions(text, "tcase_add_loop_test(tc,", name, ",")
            != 1)
            return name;
    }
    return NULL;
}

START_TEST(every_test_is_registered)
{
    glob_t files = sources("test_*.c");
    int tests = 0;
    size_t i;

    for (i = 0; i < files.gl_pathc; i++) {
        char *text = text_of(files.gl_pathv[i]);

        const char *name = unregistered(text, &tests);

        if (name != NULL)
            ck_abort_msg("%s is not registered once", name);
        free(text);
    }
    globfree(&files);
    ck_assert_int_gt(tests, 50);
}
END_TEST

START_TEST(every_suite_runs)
{
    glob_t files = sources("test_*.c");
    glob_t mains = sources("unit.c");
    char *unit = text_of(mains.gl_pathv[0]);
    size_t i;

    for (i = 0; i < files.gl_pathc; i++) {
        const char *base = strrchr(files.gl_pathv[i], '/') + 1;
        char name[100];

        /* test_x.c has x_suite(). */
        snprintf(name, sizeof(name), "%.*s_suite()",
                 (int)strcspn(base + 5, "."), base + 5);
        if (strstr(unit, name) == NULL)
            ck_abort_msg("%s: unit.c does not run %s", base, name);
    }
    free(unit);
    globfree(&mains);
    globfree(&files);
}
END_TEST

/* The negative control: the check above notices. */
START_TEST(a_forgotten_one_is_noticed)
{
    static const char good[] = "\nSTART_TEST(a)\n\nSTART_TEST(ab)\n"
                               "tcase_add_test(tc, a);\n"
                               "tcase_add_loop_test(tc, ab, 0, 9);\n";
    static const char forgotten[] = "\nSTART_TEST(a)\n\nSTART_TEST(ab)\n"
                                    "tcase_add_test(tc, ab);\n";
    static const char twice[] = "\nSTART_TEST(a)\n"
                                "tcase_add_test(tc, a);\n"
                                "tcase_add_test(tc, a);\n";
    int tests = 0;

    ck_assert_ptr_null(unregistered(good, &tests));
    ck_assert_int_eq(tests, 2);
    ck_assert_pstr_eq(unregistered(forgotten, &tests), "a");
    ck_assert_pstr_eq(unregistered(twice, &tests), "a");
}
END_TEST

Suite *registered_suite(void)
{
    Suite *s = suite_create("registered");
    TCase *tc = tcase_create("registered");

    tcase_add_test(tc, every_test_is_registered);
    tcase_add_test(tc, every_suite_runs);
    tcase_add_test(tc, a_forgotten_one_is_noticed);
    suite_add_tcase(s, tc);
    return s;
}
