/* First come, first served: the queue is kept in order of arrival. */

#include "policy.h"

static uint32_t next(const dbguard_shared_t *shared, int64_t now)
{
    (void)now;
    return shared->queue_head;
}

const dbguard_policy_t dbguard_policy_fifo = {"fifo", next};
