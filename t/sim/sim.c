/* sim: what would happen, as a table. See scene.h and README.md. */

#include <getopt.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"

#ifndef SCENARIOS
#define SCENARIOS "t/sim/*.scenario"
#endif

static void usage(FILE *out)
{
    fputs("usage: sim [--policy guard|fifo|limit|proxy|all] [--seed N] "
          "[--seeds N]\n"
          "           [--scenario FILE | FILE] ...\n"
          "Runs each scenario and prints what became of whom; without any,\n"
          "all of " SCENARIOS ".\n"
          "  --policy P  one of them; default: guard and fifo, and those that\n"
          "              the scenario expects something of\n"
          "  --seed N    begin with this seed; default 1\n"
          "  --seeds N   so many seeds, one after the other; default 1\n"
          "The exit code is 1 when an expectation of a scenario was not met.\n",
          out);
}

static char *duration(double us, char *text, size_t size)
{
    if (us < 0)
        snprintf(text, size, "-");
    else if (us < 99950)
        snprintf(text, size, "%.1f ms", us / 1e3);
    else if (us < 999500)
        snprintf(text, size, "%.0f ms", us / 1e3);
    else
        snprintf(text, size, "%.2f s", us / 1e6);
    return text;
}

static void print_reasons(const scene_figures_t *f)
{
    uint64_t most = 0;
    int i;

    for (i = 0; i < DBGUARD_REASONS; i++) {
        if (f->refused[i] > 0) {
            printf("%s%s %llu", most > 0 ? ", " : "  refused: ",
                   dbguard_reason_name((dbguard_reason_t)i),
                   (unsigned long long)f->refused[i]);
            most = f->refused[i];
        }
    }
    if (f->gave_up > 0)
        printf("; gave up %llu", (unsigned long long)f->gave_up);
}

static void print_stream(const scene_stream_t *stream,
                         const scene_result_t *result, uint32_t s)
{
    const scene_figures_t *f = &result->streams[s];
    char p50[24], p99[24], max[24], last[24];

    printf("  %-10s %6llu %7.2f %% %9s %9s %9s", stream->name,
           (unsigned long long)f->wishes,
           100 * scene_figure(result, s, FIGURE_SERVED),
           duration(scene_figure(result, s, FIGURE_P50), p50, sizeof(p50)),
           duration(scene_figure(result, s, FIGURE_P99), p99, sizeof(p99)),
           duration(scene_figure(result, s, FIGURE_MAX), max, sizeof(max)));
    if (stream->returns != SCENE_LEAVES)
        printf("  last %s, %.2f attempts, promises kept %llu of %llu",
               duration(scene_figure(result, s, FIGURE_LAST), last,
                        sizeof(last)),
               scene_figure(result, s, FIGURE_ATTEMPTS),
               (unsigned long long)f->kept, (unsigned long long)f->promised);
    print_reasons(f);
    putchar('\n');
}

static void print_result(const scene_t *scene, scene_policy_t policy,
                         const scene_result_t *result)
{
    uint32_t i;

    printf(" %-11s   came    served       p50       p99       max\n",
           scene_policy_names[policy]);
    for (i = 0; i < scene->nstreams; i++)
        print_stream(&scene->streams[i], result, i);
    printf("  tokens: busy %.1f %%, idle while somebody waited %.1f %%",
           100 * result->used, 100 * result->idle);
    if (result->overdrafts > 0)
        printf(", OVERDRAWN %llu times",
               (unsigned long long)result->overdrafts);
    if (result->lost_wakes > 0)
        printf(", WAKES LOST %llu", (unsigned long long)result->lost_wakes);
    printf("\n");
}

static char *print_value(scene_figure_t figure, double value, char *text,
                         size_t size)
{
    switch (figure) {
    case FIGURE_P50:
    case FIGURE_P99:
    case FIGURE_MAX:
    case FIGURE_LAST:
        return duration(value, text, size);
    case FIGURE_ATTEMPTS:
        snprintf(text, size, "%.2f", value);
        return text;
    default:
        snprintf(text, size, "%.2f %%", 100 * value);
        return text;
    }
}

/* How many bars of the scenario were missed, of those that can be judged. */
static int judge(const scene_t *scene, scene_result_t *const *results)
{
    char is[24], should[24];
    double value, wanted;
    uint32_t i;
    int missed = 0;

    for (i = 0; i < scene->nbars; i++) {
        const scene_bar_t *b = &scene->bars[i];

        if (results[b->policy] == NULL
            || (b->relative && results[b->other] == NULL)
            || scene_bar_met(b, results, &value, &wanted))
            continue;
        missed++;
        printf("  MISSED %s:%d: %s %s %s is %s, not %s %s\n", scene->file,
               b->line, scene_policy_names[b->policy],
               b->stream < scene->nstreams ? scene->streams[b->stream].name
                                           : "tokens",
               scene_figure_names[b->figure],
               print_value(b->figure, value, is, sizeof(is)),
               b->least ? ">=" : "<=",
               print_value(b->figure, wanted, should, sizeof(should)));
    }
    return missed;
}

static int run(const scene_t *scene, unsigned policies, uint64_t seed)
{
    scene_result_t *results[SCENE_POLICIES] = {NULL};
    int missed, i;

    printf("%s (%s, seed %llu)\n", scene->title, scene->file,
           (unsigned long long)seed);
    for (i = 0; i < SCENE_POLICIES; i++) {
        if (!(policies & 1u << i))
            continue;
        results[i] = malloc(sizeof(*results[i]));
        if (results[i] == NULL)
            abort();
        scene_run(scene, (scene_policy_t)i, seed, results[i]);
        print_result(scene, (scene_policy_t)i, results[i]);
    }
    missed = judge(scene, results);
    printf("\n");
    for (i = 0; i < SCENE_POLICIES; i++) {
        if (results[i] != NULL)
            scene_clear(results[i]);
        free(results[i]);
    }
    return missed;
}

static unsigned policies_of(const scene_t *scene, unsigned asked)
{
    unsigned policies = 1u << SCENE_GUARD | 1u << SCENE_FIFO;
    uint32_t i;

    if (asked != 0)
        return asked;
    for (i = 0; i < scene->nbars; i++) {
        policies |= 1u << scene->bars[i].policy;
        if (scene->bars[i].relative)
            policies |= 1u << scene->bars[i].other;
    }
    return policies;
}

/* Policies as bits, or 0. */
static unsigned policy_named(const char *name)
{
    unsigned i;

    if (strcmp(name, "all") == 0)
        return (1u << SCENE_POLICIES) - 1;
    for (i = 0; i < SCENE_POLICIES; i++)
        if (strcmp(name, scene_policy_names[i]) == 0)
            return 1u << i;
    return 0;
}

static int run_file(const char *file, unsigned asked, uint64_t seed,
                    uint64_t seeds)
{
    scene_t scene;
    char error[512];
    int missed = 0;
    uint64_t i;

    if (!scene_load(&scene, file, error, sizeof(error))) {
        fprintf(stderr, "%s\n", error);
        exit(2);
    }
    for (i = 0; i < seeds; i++)
        missed += run(&scene, policies_of(&scene, asked), seed + i);
    return missed;
}

typedef struct order_t {
    const char **files;
    int nfiles;
    unsigned policies; /* 0: those that the scenarios speak of */
    uint64_t seed, seeds;
} order_t;

/* The exit code when there is nothing to do, or -1. */
static int read_options(int argc, char **argv, order_t *order)
{
    static const struct option options[] = {
        {"scenario", required_argument, NULL, 'f'},
        {"policy", required_argument, NULL, 'p'},
        {"seed", required_argument, NULL, 's'},
        {"seeds", required_argument, NULL, 'n'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'f':
            order->files[order->nfiles++] = optarg;
            break;
        case 'p':
            if (policy_named(optarg) == 0) {
                fprintf(stderr, "sim: there is no policy %s\n", optarg);
                return 2;
            }
            order->policies |= policy_named(optarg);
            break;
        case 's':
            order->seed = strtoull(optarg, NULL, 10);
            break;
        case 'n':
            order->seeds = strtoull(optarg, NULL, 10);
            break;
        default:
            usage(option == 'h' ? stdout : stderr);
            return option == 'h' ? 0 : 2;
        }
    }
    while (optind < argc)
        order->files[order->nfiles++] = argv[optind++];
    return -1;
}

int main(int argc, char **argv)
{
    order_t order = {calloc((size_t)argc, sizeof(char *)), 0, 0, 1, 1};
    glob_t all = {0};
    int missed = 0, code, i;

    if (order.files == NULL)
        return 2;
    code = read_options(argc, argv, &order);
    if (code >= 0)
        return code;
    for (i = 0; i < order.nfiles; i++)
        missed += run_file(order.files[i], order.policies, order.seed,
                           order.seeds);
    if (order.nfiles == 0 && glob(SCENARIOS, 0, NULL, &all) == 0)
        for (i = 0; i < (int)all.gl_pathc; i++)
            missed += run_file(all.gl_pathv[i], order.policies, order.seed,
                               order.seeds);
    globfree(&all);
    free(order.files);
    return missed > 0;
}
