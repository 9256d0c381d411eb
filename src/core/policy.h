#ifndef DBGUARD_POLICY_H
#define DBGUARD_POLICY_H

/* Who is next. Admission asks the policy of its board; nothing else decides
 * the order of the waiting. */

#include "board.h"

typedef struct dbguard_policy_t {
    const char *name;

    /* The waiting slot that shall have the next free token, or DBGUARD_NONE
     * when none of them may have it now. Called under the lock, once for each
     * token to give; must not change the board and must not cost more than a
     * few hundred nanoseconds whatever the number of waiters. */
    uint32_t (*next)(const dbguard_shared_t *shared, int64_t now);
} dbguard_policy_t;

/* First come, first served. */
extern const dbguard_policy_t dbguard_policy_fifo;

#endif
