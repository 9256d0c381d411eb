/* How long a token that came back is not used again: see settle.h. */

#include "settle.h"

/* So many tokens that come back together follow one another by limits.pace. */
#define PACED 20

/* When a token that comes back now counts as having come back. */
static int64_t pace(dbguard_shared_t *shared, int64_t now)
{
    uint32_t budget = shared->limits.budget;
    int64_t all = PACED * shared->limits.pace;
    int64_t next = shared->paced + all / (budget > PACED ? budget : PACED);

    if (next > now + all)
        next = now + all;
    shared->paced = next > now ? next : now;
    return shared->paced;
}

static void append(dbguard_shared_t *shared, uint32_t slot)
{
    shared->slots[slot].next = DBGUARD_NONE;
    if (shared->settle_tail == DBGUARD_NONE)
        shared->settle_head = slot;
    else
        shared->slots[shared->settle_tail].next = slot;
    shared->settle_tail = slot;
    shared->settling++;
}

void dbguard_settle_add(dbguard_shared_t *shared, uint32_t slot, int64_t now)
{
    dbguard_slot_t *s = &shared->slots[slot];

    s->released = pace(shared, now);
    atomic_store_explicit(&s->state, DBGUARD_SETTLING, memory_order_release);
    append(shared, slot);
}

uint32_t dbguard_settle_first(dbguard_shared_t *shared)
{
    uint32_t slot = shared->settle_head;

    shared->settle_head = shared->slots[slot].next;
    if (shared->settle_head == DBGUARD_NONE)
        shared->settle_tail = DBGUARD_NONE;
    shared->settling--;
    return slot;
}

void dbguard_settle_retire(dbguard_shared_t *shared, int64_t now)
{
    while (shared->settle_head != DBGUARD_NONE
           && now - shared->slots[shared->settle_head].released
                  >= shared->limits.settle)
        dbguard_board_push_free(shared, dbguard_settle_first(shared));
}

int64_t dbguard_settle_take(dbguard_shared_t *shared, uint32_t free,
                            int64_t now)
{
    int64_t start = now;

    /* One, or more when the budget has shrunk meanwhile. */
    while (shared->settling > 0 && shared->settling >= free) {
        uint32_t slot = dbguard_settle_first(shared);

        start = shared->slots[slot].released + shared->limits.settle;
        dbguard_board_push_free(shared, slot);
    }
    return start > now ? start : now;
}

void dbguard_settle_rebuild(dbguard_shared_t *shared)
{
    int64_t last = 0;
    uint32_t i;

    shared->settle_head = shared->settle_tail = DBGUARD_NONE;
    shared->settling = 0;
    for (i = 0; i < shared->nslots; i++) {
        if (shared->slots[i].state == DBGUARD_SETTLING) {
            if (shared->slots[i].released > last)
                last = shared->slots[i].released;
            append(shared, i);
        }
    }
    for (i = shared->settle_head; i != DBGUARD_NONE; i = shared->slots[i].next)
        shared->slots[i].released = last;
    shared->paced = last;
}
