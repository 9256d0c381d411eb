#ifndef DBGUARD_PROBE_H
#define DBGUARD_PROBE_H

/* Ask once, details included. What is learnt goes to standard output as
 * answer.h says. 0, or 1 when there are no figures. */

#include "dsn.h"

#define PROBE_WITHIN 1800000 /* microseconds */

int probe(const dbguard_dsn_t *dsn);

#endif
