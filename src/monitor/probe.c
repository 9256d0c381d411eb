/* dbguard-monitor --probe: see probe.h. */

#include <stdio.h>

#include "answer.h"
#include "client.h"
#include "clock.h"
#include "probe.h"

int probe(const dbguard_dsn_t *dsn)
{
    client_t *client = client_create(dsn, 1);
    char lines[DBGUARD_ANSWER_SIZE];
    dbguard_answer_t answer;

    if (client == NULL)
        return 1;
    client_ask(client, dbguard_clock_now() + PROBE_WITHIN, &answer);
    dbguard_answer_write(&answer, lines);
    fputs(lines, stdout);
    /* Whoever waits for it need not wait for the goodbye as well. */
    fflush(stdout);
    client_destroy(client);
    return answer.error != 0;
}
