#ifndef DBGUARD_MEMORY_H
#define DBGUARD_MEMORY_H

/* How much memory the processes of a running httpd take, and how much there is
 * for more: from /proc, for the lint of the module and of dbguardctl.
 *
 * A process's part is its PSS where the kernel tells it (root, or the same
 * user): pages that n processes share count one n-th in each. Elsewhere it is
 * what it has resident and shares with nobody's file. What is available is the
 * kernel's MemAvailable, or less in a container with a limit of its own. */

#include <sys/types.h>

#include "lint.h"

/* Children of `parent` that run the same program as it does. At most
 * DBGUARD_MEMORY_SAMPLE of them are measured, which takes some ten
 * milliseconds. m->processes is 0 when there are none. */
#define DBGUARD_MEMORY_SAMPLE 64
void dbguard_memory_measure(dbguard_memory_t *m, pid_t parent);

#endif
