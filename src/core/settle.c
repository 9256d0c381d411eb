/* How long a token that came back is not used again: see settle.h. */

#include "settle.h"

/* So many tokens that come back together follow one another by limits.pace. */
#define PACED 20

/* When a token that comes back now counts as having come back. Clocks are read
 * before the lock is had: `now` may be a little before that of the last one. */
static int64_t pace(dbguard_shared_t *shared, int64_t now)
{
    uint32_t budget = shared->limits.budget;
    int64_t all = PACED * shared->limits.pace;
    int64_t next = shared->paced + all / (budget > PACED ? budget : PACED);

    if (next > now + all)
        next = now + all;
    if (next < now)
        next = now;
    if (shared->settle_tail != DBGUARD_NONE
        && next < shared->slots[shared->settle_tail].released)
        next = shared->slots[shared->settle_tail].released;
    shared->paced = next;
    return next;
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

uint32_t dbguard_settle_pop(dbguard_shared_t *shared)
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
        dbguard_board_push_free(shared, dbguard_settle_pop(shared));
}

/* Is one of those that settle needed, when so many tokens are free? */
static int is_needed(const dbguard_shared_t *shared, uint32_t free)
{
    return free > 0 && shared->settling >= free;
}

int64_t dbguard_settle_start(const dbguard_shared_t *shared, uint32_t free,
                             int64_t now)
{
    uint32_t slot = shared->settle_head, more;
    int64_t start;

    if (!is_needed(shared, free))
        return now;
    /* More when the budget has shrunk meanwhile: so many have to be back. */
    for (more = shared->settling - free; more > 0; more--)
        slot = shared->slots[slot].next;
    start = shared->slots[slot].released + shared->limits.settle;
    return start > now ? start : now;
}

void dbguard_settle_take(dbguard_shared_t *shared, uint32_t free)
{
    if (is_needed(shared, free))
        dbguard_board_push_free(shared, dbguard_settle_pop(shared));
}

void dbguard_settle_rebuild(dbguard_shared_t *shared)
{
    int64_t last = 0, handed = 0;
    uint32_t i;

    shared->settle_head = shared->settle_tail = DBGUARD_NONE;
    shared->settling = 0;
    for (i = 0; i < shared->nslots; i++) {
        const dbguard_slot_t *s = &shared->slots[i];

        if (s->state == DBGUARD_SETTLING) {
            if (s->released > last)
                last = s->released;
            append(shared, i);
        }
        if (s->state == DBGUARD_HELD
            && s->granted - shared->limits.settle > handed)
            handed = s->granted - shared->limits.settle;
    }
    for (i = shared->settle_head; i != DBGUARD_NONE; i = shared->slots[i].next)
        shared->slots[i].released = last;
    shared->paced = last > handed ? last : handed;
}
