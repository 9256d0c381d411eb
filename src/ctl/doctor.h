#ifndef DBGUARD_DOCTOR_H
#define DBGUARD_DOCTOR_H

/* dbguardctl doctor: ask the database once, and say in words what its counters
 * mean, divided by the time and the attempts that they stand for. */

#include "apr_pools.h"

#include "snapshot.h"

/* Writes the report to standard output. 1 when the database was asked and
 * answered with its figures; 0 when not, and the report says why. */
int doctor(apr_pool_t *p, const dbguard_snapshot_t *snapshot);

#endif
