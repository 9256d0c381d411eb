/* Thousands of requests over the very core, every step of them checked: calm
 * days, herds, bimodal holds, clients that hang up, processes that die, limits
 * that change, wake-ups that are lost. And the negative controls: with a policy
 * or a driver that is wrong, the same checker says so. */

#include <stdlib.h>

#include "simulation.h"

#define MS 1000

static const sim_plan_t plans[] = {
    {.name = "calm",
     .requests = 3000, .slots = 64, .budget = 20, .queue = 30,
     .processes = 40, .crowd = 1, .gap = 4 * MS,
     .holds = {50 * MS, SECOND}, .longs = 2},
    {.name = "just enough",
     .requests = 3000, .slots = 48, .budget = 8, .queue = 30,
     .processes = 40, .crowd = 1, .gap = 20 * MS, .settle = 2 * MS,
     .holds = {150 * MS, 2 * SECOND}, .longs = 1, .hang_up = 5, .lost = 2},
    {.name = "overloaded",
     .requests = 4000, .slots = 40, .budget = 6, .queue = 20,
     .processes = 40, .crowd = 2, .gap = 60 * MS, .settle = 2 * MS,
     .holds = {300 * MS, 20 * SECOND}, .longs = 3, .hang_up = 10, .lost = 10,
     .late = 10},
    {.name = "a herd",
     .requests = 4000, .slots = 100, .budget = 10, .queue = 60,
     .processes = 90, .crowd = 400, .gap = 10 * SECOND, .settle = 2 * MS,
     .holds = {50 * MS, 50 * MS}, .hang_up = 2},
    {.name = "one token",
     .requests = 3000, .slots = 16, .budget = 1, .queue = 12,
     .processes = 16, .crowd = 3, .gap = 300 * MS,
     .holds = {90 * MS, 3 * SECOND}, .longs = 1, .hang_up = 20, .lost = 30,
     .late = 30},
    {.name = "no queue",
     .requests = 3000, .slots = 8, .budget = 5, .queue = 0,
     .processes = 8, .crowd = 2, .gap = 40 * MS, .settle = 2 * MS,
     .holds = {100 * MS, SECOND}, .longs = 10},
    {.name = "too few slots",
     .requests = 3000, .slots = 12, .budget = 8, .queue = 20,
     .processes = 30, .crowd = 3, .gap = 60 * MS,
     .holds = {150 * MS, SECOND}, .longs = 10, .hang_up = 10, .deaths = 2},
    {.name = "everything goes wrong",
     .requests = 5000, .slots = 64, .budget = 10, .queue = 25,
     .processes = 30, .crowd = 2, .gap = 50 * MS, .settle = 5 * MS,
     .holds = {200 * MS, 12 * SECOND}, .longs = 4, .hang_up = 15, .lost = 20,
     .late = 20, .deaths = 5, .changes = 8, .dryruns = 20},
    {.name = "the same as a FIFO", .fifo = 1,
     .requests = 4000, .slots = 64, .budget = 10, .queue = 25,
     .processes = 30, .crowd = 2, .gap = 50 * MS, .settle = 5 * MS,
     .holds = {200 * MS, 12 * SECOND}, .longs = 4, .hang_up = 15, .lost = 20,
     .late = 20, .deaths = 5, .changes = 8, .dryruns = 20},
    {.name = "many endpoints and addresses",
     .requests = 4000, .slots = 64, .budget = 10, .queue = 30,
     .processes = 40, .crowd = 2, .gap = 60 * MS, .settle = 2 * MS,
     .holds = {50 * MS, 6 * SECOND}, .longs = 6, .hang_up = 5, .lost = 5,
     .endpoints = 40, .addresses = 12, .sessions = 60},
    {.name = "made-up names",
     .requests = 5000, .slots = 64, .budget = 12, .queue = 30,
     .processes = 40, .crowd = 4, .gap = 100 * MS, .settle = 2 * MS,
     .holds = {50 * MS, 4 * SECOND}, .longs = 3, .hang_up = 5, .lost = 5,
     .endpoints = 200, .made_up = 40, .addresses = 500, .sessions = 30},
    {.name = "classes with leases",
     .requests = 4000, .slots = 64, .budget = 10, .queue = 30,
     .processes = 40, .crowd = 2, .gap = 60 * MS, .settle = 2 * MS,
     .holds = {50 * MS, 6 * SECOND}, .longs = 8, .hang_up = 5, .lost = 10,
     .late = 10, .endpoints = 40, .addresses = 20, .sessions = 50,
     .classes = 4, .lease = 3 * SECOND / 2},
    {.name = "everything at once goes wrong",
     .requests = 5000, .slots = 64, .budget = 10, .queue = 25,
     .processes = 30, .crowd = 3, .gap = 80 * MS, .settle = 5 * MS,
     .holds = {80 * MS, 8 * SECOND}, .longs = 6, .hang_up = 10, .lost = 20,
     .late = 20, .deaths = 5, .changes = 8, .dryruns = 20, .endpoints = 80,
     .made_up = 20, .addresses = 30, .sessions = 50, .classes = 4,
     .lease = 2 * SECOND},
};

#define PLANS LENGTH(plans)
#define WORST (&plans[PLANS - 1])

/* The plan with as many requests as there is time for here. */
static sim_plan_t shortened(const sim_plan_t *plan)
{
    sim_plan_t copy = *plan;

    copy.requests = (uint32_t)scaled((int)plan->requests);
    return copy;
}

START_TEST(every_plan_holds)
{
    sim_plan_t plan = shortened(&plans[_i % PLANS]);
    sim_result_t result;
    const char *fault = sim_run(&plan, (uint32_t)_i * 7919 + 1,
                                SIM_NO_FLAW, &result);

    if (fault != NULL)
        ck_abort_msg("%s, seed %d, event %u: %s", plan.name, _i,
                     result.events, fault);
    ck_assert_uint_eq(result.came, plan.requests);
}
END_TEST

/* What was simulated did happen: a calm day that refuses nobody, a bad one with
 * every kind of end. */
START_TEST(the_plans_are_what_they_say)
{
    sim_result_t r;

    ck_assert_ptr_null(sim_run(&plans[0], 1, SIM_NO_FLAW,
                               &r));
    ck_assert_uint_eq(r.served, r.came);
    ck_assert_ptr_null(sim_run(&plans[3], 1, SIM_NO_FLAW,
                               &r));
    ck_assert_uint_eq(r.held_max, 10);
    ck_assert_uint_gt(r.refused, r.came / 2);
    ck_assert_uint_gt(r.waited, r.came / 10);
    ck_assert_ptr_null(sim_run(WORST, 1, SIM_NO_FLAW,
                               &r));
    ck_assert_uint_gt(r.served, 1000);
    ck_assert_uint_gt(r.refused, 100);
    ck_assert_uint_gt(r.timeouts, 20);
    ck_assert_uint_gt(r.aborted, 20);
    ck_assert_uint_gt(r.died, 20);
    ck_assert_uint_gt(r.waited, 100);
    ck_assert_uint_gt(r.displaced, 20);
    ck_assert_uint_gt(r.leases, 5);
    ck_assert_uint_gt(r.parked, 5);
    ck_assert_uint_gt(r.evicted, 0);
}
END_TEST

/* The same seed, the same run. */
START_TEST(a_run_can_be_repeated)
{
    sim_plan_t plan = shortened(WORST);
    sim_result_t a, b;

    sim_run(&plan, 5, SIM_NO_FLAW, &a);
    sim_run(&plan, 5, SIM_NO_FLAW, &b);
    ck_assert_mem_eq(&a, &b, sizeof(a));
    sim_run(&plan, 6, SIM_NO_FLAW, &b);
    ck_assert_mem_ne(&a, &b, sizeof(a));
}
END_TEST

/* --- negative controls: wrong drivers ------------------------------------- */

/* What the checker has to say, and not just anything. */
static const char *const complaints[SIM_FLAWS] = {
    [SIM_FORGETS] = "a slot belongs to nobody",
    [SIM_FORGES] = "a request has lost its slot",
    [SIM_RAISES_BUDGET] = "more tokens out than the budget",
    [SIM_HURRIES] = "a waiting one was refused without a reason",
    [SIM_REAPS_THE_LIVING] = "a request has lost its slot",
    [SIM_RAISES_NEED] = "more work needs less",
    [SIM_IGNORES_MAXIMUM] = "a class has more than its maximum",
    [SIM_SKIPS_TURNS] = "an element of a heap is before its parent",
};

START_TEST(a_wrong_driver_is_noticed)
{
    sim_plan_t plan = _i == SIM_HURRIES        ? plans[4]
                      : _i < SIM_RAISES_NEED ? plans[2]
                                             : *WORST;
    sim_result_t result;
    const char *fault = sim_run(&plan, 1, (sim_flaw_t)_i, &result);

    ck_assert_pstr_eq(fault, complaints[_i]);
}
END_TEST

Suite *simulation_suite(void)
{
    Suite *s = suite_create("simulation");
    TCase *tc = tcase_create("simulation");

    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, every_plan_holds, 0, 4 * PLANS);
    tcase_add_test(tc, the_plans_are_what_they_say);
    tcase_add_test(tc, a_run_can_be_repeated);
    tcase_add_loop_test(tc, a_wrong_driver_is_noticed, SIM_NO_FLAW + 1,
                        SIM_FLAWS);
    suite_add_tcase(s, tc);
    return s;
}
