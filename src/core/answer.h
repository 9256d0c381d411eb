#ifndef DBGUARD_ANSWER_H
#define DBGUARD_ANSWER_H

/* An answer of the database as text: what dbguard-monitor --probe writes and
 * its callers (the lint, dbguardctl) read. A line "key value" each:
 *
 *     state NAME            as in states.def; for people, not read back
 *     error N               0, or the errno of server or client library
 *     timed_out 0|1
 *     text TEXT             what came with the error
 *     max_connections N     and so on: the fields of dbguard_figures_t and
 *                           dbguard_details_t
 *     version TEXT
 *     grant NAME            a privilege on *.* of the account itself
 *     user TOTAL SLEEPING LONGEST_SLEEP LONGEST_ACTIVE NAME
 *     end                   nothing is missing
 *
 * With an error the figures are not there. */

#include <stddef.h>

#include "database.h"

#define DBGUARD_ANSWER_SIZE 4096 /* bytes that are always enough, with NUL */

/* Write it into buf, of DBGUARD_ANSWER_SIZE. Returns the length. */
size_t dbguard_answer_write(const dbguard_answer_t *answer, char *buf);

/* Read it; *answer is cleared first. 1, or 0 when the text is not whole. */
int dbguard_answer_read(dbguard_answer_t *answer, const char *text);

/* The DBGUARD_MAY_ bit of a privilege's name, or 0. */
uint32_t dbguard_answer_privilege(const char *name);

#endif
