/* What the guard promises, scenario by scenario, and that a plain FIFO does not
 * keep it: t/sim over the very core. The figures are deterministic, the bars
 * are in the scenario files at DBGUARD_SRCDIR. */

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "scene.h"
#include "unit.h"

#define POLICIES ((int)SCENE_POLICIES)

static const char *const scenarios[] = {
    "a-looping-tab", "b-slow-system", "bimodal", "budget-cut",
    "c-herd-deaf", "c-herd-fraction", "c-herd-seconds", "cold-start",
    "five-thousand-clients", "forged-cookies", "made-up-urls", "office",
    "office-overload", "photo-browser", "turns-heavy", "two-heavy",
};

#define SCENARIOS LENGTH(scenarios)

static scene_t scene;
static scene_result_t results[SCENE_POLICIES];
static scene_result_t *by_policy[SCENE_POLICIES];

static char *path_of(const char *name, char *path, size_t size)
{
    const char *dir = getenv("DBGUARD_SRCDIR");

    snprintf(path, size, "%s/t/sim/%s.scenario", dir ? dir : ".", name);
    return path;
}

static void load(const char *name)
{
    char path[4096], error[512];

    if (!scene_load(&scene, path_of(name, path, sizeof(path)), error,
                    sizeof(error)))
        ck_abort_msg("%s", error);
}

/* Results of every policy that the loaded scenario speaks of. */
static void run(uint64_t seed)
{
    int wanted[SCENE_POLICIES] = {1}, i;
    uint32_t b;

    for (b = 0; b < scene.nbars; b++) {
        wanted[scene.bars[b].policy] = 1;
        if (scene.bars[b].relative)
            wanted[scene.bars[b].other] = 1;
    }
    for (i = 0; i < POLICIES; i++) {
        by_policy[i] = wanted[i] ? &results[i] : NULL;
        if (wanted[i])
            scene_run(&scene, (scene_policy_t)i, seed, &results[i]);
    }
}

static void forget(void)
{
    int i;

    for (i = 0; i < POLICIES; i++)
        if (by_policy[i] != NULL)
            scene_clear(&results[i]);
}

static void judge(uint64_t seed)
{
    double value, wanted;
    uint32_t i;

    for (i = 0; i < scene.nbars; i++)
        if (!scene_bar_met(&scene.bars[i], by_policy, &value, &wanted))
            ck_abort_msg("%s:%d, seed %d: it is %g, it should be %g",
                         scene.file, scene.bars[i].line, (int)seed, value,
                         wanted);
    ck_assert_uint_eq(results[SCENE_GUARD].overdrafts, 0);
    ck_assert_uint_eq(results[SCENE_GUARD].lost_wakes, 0);
}

/* With one seed; with more where they take no time. Where everything is slow,
 * some of the scenarios. */
START_TEST(the_bars_are_met)
{
    uint64_t seeds = at_full_speed() ? 5 : 1, seed;

    if (under_valgrind() && _i % 5 != 0)
        return;
    load(scenarios[_i]);
    for (seed = 1; seed <= seeds; seed++) {
        run(seed);
        judge(seed);
        forget();
    }
}
END_TEST

/* Does a scenario that says what the guard makes of pages say also what becomes
 * of them without it? */
START_TEST(every_scenario_has_bars_and_a_control)
{
    uint32_t guard = 0, control = 0, i;

    load(scenarios[_i]);
    for (i = 0; i < scene.nbars; i++) {
        guard += scene.bars[i].policy == SCENE_GUARD;
        control += scene.bars[i].policy == SCENE_FIFO;
    }
    ck_assert_uint_gt(guard, 0);
    if (strncmp(scenarios[_i], "office", 6) != 0
        && strcmp(scenarios[_i], "cold-start") != 0)
        ck_assert_uint_gt(control, 0);
}
END_TEST

START_TEST(every_scenario_is_tested)
{
    char path[4096];
    glob_t found;

    ck_assert_int_eq(glob(path_of("*", path, sizeof(path)), 0, NULL, &found),
                     0);
    ck_assert_uint_eq(found.gl_pathc, SCENARIOS);
    globfree(&found);
}
END_TEST

/* The negative control, in one figure: what the guard promises of pages while
 * the external system is slow is not met by the plain FIFO. */
START_TEST(a_fifo_fails_the_bars_of_the_guard)
{
    uint32_t i, failed = 0, asked = 0;
    double value, wanted;

    load("b-slow-system");
    run(1);
    by_policy[SCENE_GUARD] = &results[SCENE_FIFO];
    for (i = 0; i < scene.nbars; i++) {
        const scene_bar_t *b = &scene.bars[i];

        if (b->policy != SCENE_GUARD || b->stream == SCENE_STREAMS
            || strcmp(scene.streams[b->stream].name, "page") != 0)
            continue;
        asked++;
        failed += !scene_bar_met(b, by_policy, &value, &wanted);
    }
    by_policy[SCENE_GUARD] = &results[SCENE_GUARD];
    forget();
    ck_assert_uint_eq(asked, 2);
    ck_assert_uint_eq(failed, 2);
}
END_TEST

START_TEST(a_run_can_be_repeated)
{
    scene_result_t first, again, other;

    load("c-herd-fraction");
    scene_run(&scene, SCENE_GUARD, 7, &first);
    scene_run(&scene, SCENE_GUARD, 7, &again);
    scene_run(&scene, SCENE_GUARD, 8, &other);
    ck_assert_uint_eq(first.events, again.events);
    ck_assert(first.used == again.used);
    ck_assert_uint_eq(first.streams[1].nlatency, again.streams[1].nlatency);
    ck_assert_mem_eq(first.streams[1].latency, again.streams[1].latency,
                     first.streams[1].nlatency * sizeof(int64_t));
    ck_assert_uint_ne(first.events, other.events);
    scene_clear(&first);
    scene_clear(&again);
    scene_clear(&other);
}
END_TEST

/* --- what operators write ------------------------------------------------ */

typedef struct wrong_t {
    const char *text;
    const char *error; /* behind the name of the file */
} wrong_t;

#define FINE "time 1s\nstream page rate=1/s hold=2ms\n"

static const wrong_t wrongs[] = {
    {"", ": how long does it last? time DURATION"},
    {"time 1s\n", ": nobody comes: there is no stream"},
    {"time 1\n" FINE, ":1: '1' is not a duration such as 250ms or 2s"},
    {"time -1s\n" FINE, ":1: '-1s' is not a duration such as 250ms or 2s"},
    {FINE "stream\n", ":3: expected: stream NAME ..."},
    {FINE "stream a\n    rate=2/s\n",
     ":3: stream a holds for how long? hold= or busy="},
    {FINE "stream a hold=2ms\n", ":3: stream a needs rate= or clients="},
    {FINE "stream a rate=2 hold=2ms\n", ":3: '2' is not a rate such as 40/s"},
    {FINE "stream a rate=2/s hold=95%:2ms,6%:5s\n",
     ":3: the parts of a hold must add up to 100%"},
    {FINE "stream a rate=2/s hold=2ms colour=red\n",
     ":3: a stream has no colour"},
    {FINE "\n# note\nat 1s budget 0\n", ":5: a budget is at least one"},
    {FINE "at 1s page hold\n",
     ":3: expected: at TIME budget N, or at TIME STREAM hold|slow|rate VALUE"},
    {FINE "expect guard pages served >= 1%\n",
     ":3: there is no stream pages"},
    {FINE "expect guard page served > 1%\n",
     ":3: '>' where >= or <= is expected"},
    {FINE "expect luck page served >= 1%\n", ":3: there is no policy luck"},
    {FINE "server workers=0\n",
     ":3: a server has workers and a budget of at least one"},
    {FINE "sevrer workers=9\n",
     ":3: 'sevrer' where title, server, time, stream, at or expect is "
     "expected"},
};

START_TEST(a_wrong_scenario_is_refused)
{
    char path[] = "/tmp/dbguard-scenario-XXXXXX", error[512];
    int fd = mkstemp(path);
    size_t n = strlen(wrongs[_i].text);
    int loaded;

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, wrongs[_i].text, n), (ssize_t)n);
    close(fd);
    loaded = scene_load(&scene, path, error, sizeof(error));
    unlink(path);
    ck_assert_int_eq(loaded, 0);
    ck_assert_int_eq(strncmp(error, path, strlen(path)), 0);
    ck_assert_str_eq(error + strlen(path), wrongs[_i].error);
}
END_TEST

START_TEST(a_missing_scenario_is_named)
{
    char error[512];

    ck_assert_int_eq(scene_load(&scene, "/nowhere/x.scenario", error,
                                sizeof(error)),
                     0);
    ck_assert_ptr_nonnull(strstr(error, "/nowhere/x.scenario"));
}
END_TEST

Suite *sim_suite(void)
{
    Suite *s = suite_create("sim");
    TCase *tc = tcase_create("sim");

    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, the_bars_are_met, 0, SCENARIOS);
    tcase_add_loop_test(tc, every_scenario_has_bars_and_a_control, 0,
                        SCENARIOS);
    tcase_add_test(tc, every_scenario_is_tested);
    tcase_add_test(tc, a_fifo_fails_the_bars_of_the_guard);
    tcase_add_test(tc, a_run_can_be_repeated);
    tcase_add_loop_test(tc, a_wrong_scenario_is_refused, 0, LENGTH(wrongs));
    tcase_add_test(tc, a_missing_scenario_is_named);
    suite_add_tcase(s, tc);
    return s;
}
