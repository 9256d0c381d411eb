/* Runs all unit tests. CK_FORK=no keeps them in one process, CK_RUN_SUITE and
 * CK_RUN_CASE choose some of them, CK_VERBOSITY=verbose names each. */

#include <stdio.h>
#include <stdlib.h>

#include "step.h"
#include "unit.h"

int main(void)
{
    SRunner *runner = srunner_create(registered_suite());
    int failed;

    srunner_add_suite(runner, value_suite());
    srunner_add_suite(runner, endpoint_suite());
    srunner_add_suite(runner, dsn_suite());
    srunner_add_suite(runner, database_suite());
    srunner_add_suite(runner, answer_suite());
    srunner_add_suite(runner, rates_suite());
    srunner_add_suite(runner, lint_suite());
    srunner_add_suite(runner, heap_suite());
    srunner_add_suite(runner, flows_suite());
    srunner_add_suite(runner, clients_suite());
    srunner_add_suite(runner, reserve_suite());
    srunner_add_suite(runner, queue_suite());
    srunner_add_suite(runner, retry_suite());
    srunner_add_suite(runner, board_suite());
    srunner_add_suite(runner, admission_suite());
    srunner_add_suite(runner, limits_suite());
    srunner_add_suite(runner, settle_suite());
    srunner_add_suite(runner, recorder_suite());
    srunner_add_suite(runner, snapshot_suite());
    srunner_add_suite(runner, view_suite());
    srunner_add_suite(runner, simulation_suite());
    srunner_add_suite(runner, sim_suite());
    srunner_add_suite(runner, cost_suite());
    srunner_add_suite(runner, crash_suite());
    srunner_run_all(runner, CK_ENV);
    if (step_obstacle() != NULL)
        printf("SKIPPED: what stops a process at every instruction (%s)\n",
               step_obstacle());
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
