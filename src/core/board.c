/* The scoreboard's memory: making, checking, locking, repairing, and its
 * lists. The invariants are in board.h; this file's part is that they hold
 * whatever instruction a process dies at:
 *   - a slot's state is stored after everything that state speaks of;
 *   - lists and sums may be torn, and are rebuilt by whoever locks next. */

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "board.h"
#include "queue.h"
#include "settle.h"

#define SECOND 1000000

/* Is this thread between lock and unlock? prefork's SIGTERM handler runs pool
 * cleanups, ours among them, on top of whatever it interrupted, and then exits.
 * It must not touch the mutex again: an error-checking one would say EDEADLK,
 * but in passing clear the kernel's note of the operation that was interrupted
 * (robust_list's list_op_pending), and with it the news of this thread's
 * death: the lock would be lost for good. */
static __thread volatile sig_atomic_t inside;

uint64_t dbguard_board_size(uint32_t nslots)
{
    return sizeof(dbguard_shared_t) + (uint64_t)nslots * sizeof(dbguard_slot_t)
           + (uint64_t)dbguard_clients_number(nslots)
                 * sizeof(dbguard_client_t);
}

/* Key of the hashes, out of one number. (splitmix64) */
static void make_secret(unsigned char secret[16], uint64_t seed)
{
    int i;

    for (i = 0; i < 2; i++) {
        uint64_t z = seed += 0x9E3779B97F4A7C15ULL;

        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
        z ^= z >> 31;
        memcpy(secret + i * sizeof(z), &z, sizeof(z));
    }
}

static apr_status_t lock_create(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attr;
    int rv = pthread_mutexattr_init(&attr);

    if (rv == 0) {
        rv = pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
        if (rv == 0)
            rv = pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
        if (rv == 0)
            rv = pthread_mutex_init(lock, &attr);
        pthread_mutexattr_destroy(&attr);
    }
    return rv;
}

apr_status_t dbguard_board_create(dbguard_shared_t *shared, uint64_t size,
                                  uint32_t nslots, pid_t parent, uint64_t seed,
                                  int64_t now, int64_t wall)
{
    apr_status_t rv;
    uint32_t i;

    if (nslots == 0 || nslots > DBGUARD_SLOTS_MAX
        || size < dbguard_board_size(nslots))
        return APR_EINVAL;

    memcpy(shared->prefix.magic, DBGUARD_MAGIC, sizeof(shared->prefix.magic));
    shared->prefix.pid = (uint32_t)parent;
    shared->prefix.size = dbguard_board_size(nslots);
    shared->created = now;
    shared->created_wall = wall;
    shared->nslots = nslots;
    shared->random = seed | 1;
    make_secret(shared->secret, seed);
    shared->hold = SECOND / 2;
    shared->limits.budget = 1;
    dbguard_flows_create(shared);
    dbguard_clients_create(shared);
    rv = lock_create(&shared->lock);
    if (rv != APR_SUCCESS)
        return rv;
    for (i = 0; i < nslots; i++)
        if (sem_init(&shared->slots[i].wake, 1, 0) != 0)
            return errno;
    dbguard_board_rebuild(shared);
    atomic_thread_fence(memory_order_release);
    shared->prefix.layout = DBGUARD_LAYOUT;
    return APR_SUCCESS;
}

dbguard_kind_t dbguard_board_kind(const void *base, uint64_t size)
{
    const dbguard_shared_t *shared = base;

    if (size < sizeof(dbguard_prefix_t)
        || memcmp(shared->prefix.magic, DBGUARD_MAGIC,
                  sizeof(shared->prefix.magic)) != 0)
        return DBGUARD_NOT_A_BOARD;
    if (shared->prefix.layout != DBGUARD_LAYOUT || shared->prefix.size != size
        || size < sizeof(dbguard_shared_t)
        || dbguard_board_size(shared->nslots) != size)
        return DBGUARD_OTHER_LAYOUT;
    return DBGUARD_SAME_LAYOUT;
}

void dbguard_board_push_free(dbguard_shared_t *shared, uint32_t slot)
{
    dbguard_slot_t *s = &shared->slots[slot];

    atomic_store_explicit(&s->state, DBGUARD_FREE, memory_order_release);
    s->prev = DBGUARD_NONE;
    s->next = shared->free_head;
    shared->free_head = slot;
}

uint32_t dbguard_board_pop_free(dbguard_shared_t *shared)
{
    uint32_t slot = shared->free_head;

    if (slot != DBGUARD_NONE)
        shared->free_head = shared->slots[slot].next;
    return slot;
}

void dbguard_board_hold(dbguard_shared_t *shared, uint32_t slot)
{
    dbguard_slot_t *s = &shared->slots[slot];

    s->prev = shared->held_tail;
    s->next = DBGUARD_NONE;
    if (s->prev == DBGUARD_NONE)
        shared->held_head = slot;
    else
        shared->slots[s->prev].next = slot;
    shared->held_tail = slot;
    shared->prefix.held++;
}

void dbguard_board_unhold(dbguard_shared_t *shared, uint32_t slot)
{
    dbguard_slot_t *s = &shared->slots[slot];

    if (shared->follow == slot)
        shared->follow = s->next;
    if (s->prev == DBGUARD_NONE)
        shared->held_head = s->next;
    else
        shared->slots[s->prev].next = s->next;
    if (s->next == DBGUARD_NONE)
        shared->held_tail = s->prev;
    else
        shared->slots[s->next].prev = s->prev;
    shared->prefix.held--;
}

/* Two lists in order of serial become one. */
static uint32_t merge(dbguard_shared_t *shared, uint32_t a, uint32_t b)
{
    uint32_t head = DBGUARD_NONE;
    uint32_t *end = &head;

    while (a != DBGUARD_NONE && b != DBGUARD_NONE) {
        uint32_t *first
            = shared->slots[a].serial < shared->slots[b].serial ? &a : &b;

        *end = *first;
        end = &shared->slots[*first].next;
        *first = *end;
    }
    *end = a != DBGUARD_NONE ? a : b;
    return head;
}

/* Slots that come in the order of the table, in order of serial: a merge sort
 * without memory. Everybody stands still meanwhile, so that its time counts
 * when thousands wait. `runs[i]` has none or 2^i of them, in order. */
typedef struct sorter_t {
    uint32_t runs[32];
} sorter_t;

static void sorter_add(dbguard_shared_t *shared, sorter_t *sorter,
                       uint32_t slot)
{
    int i;

    shared->slots[slot].next = DBGUARD_NONE;
    for (i = 0; sorter->runs[i] != DBGUARD_NONE; i++) {
        slot = merge(shared, sorter->runs[i], slot);
        sorter->runs[i] = DBGUARD_NONE;
    }
    sorter->runs[i] = slot;
}

static void add_sorted(dbguard_shared_t *shared, const sorter_t *sorter,
                       void (*add)(dbguard_shared_t *shared, uint32_t slot))
{
    uint32_t slot = DBGUARD_NONE;
    int i;

    for (i = 0; i < 32; i++)
        slot = merge(shared, sorter->runs[i], slot);
    while (slot != DBGUARD_NONE) {
        uint32_t next = shared->slots[slot].next;

        add(shared, slot);
        slot = next;
    }
}

static void holds_again(dbguard_shared_t *shared, uint32_t slot)
{
    dbguard_board_hold(shared, slot);
    dbguard_board_count_held(shared, slot, 1);
}

void dbguard_board_refer(dbguard_shared_t *shared, uint32_t slot, int one)
{
    const dbguard_slot_t *s = &shared->slots[slot];
    dbguard_client_t *clients = dbguard_clients(shared);

    shared->endpoints[s->endpoint].here += (uint32_t)one;
    if (s->address != DBGUARD_NONE)
        clients[s->address].here += (uint32_t)one;
    if (s->session != DBGUARD_NONE)
        clients[s->session].here += (uint32_t)one;
}

void dbguard_board_count_held(dbguard_shared_t *shared, uint32_t slot,
                              int one)
{
    dbguard_slot_t *s = &shared->slots[slot];
    dbguard_endpoint_t *e = &shared->endpoints[s->endpoint];
    dbguard_client_t *clients = dbguard_clients(shared);

    e->held += (uint32_t)one;
    e->granted += one * s->granted;
    shared->bin_held[s->bin] += s->excess ? 0 : (uint32_t)one;
    shared->class_held[s->class] += (uint32_t)one;
    if (s->address != DBGUARD_NONE) {
        clients[s->address].held += (uint32_t)one;
        clients[s->address].firsts += s->first ? (uint32_t)one : 0;
    }
    if (s->session != DBGUARD_NONE)
        clients[s->session].held += (uint32_t)one;
}

void dbguard_board_rebuild(dbguard_shared_t *shared)
{
    sorter_t waiters, holders;
    uint32_t i;

    memset(&waiters, 0xff, sizeof(waiters)); /* DBGUARD_NONE */
    memset(&holders, 0xff, sizeof(holders));

    dbguard_flows_rebuild(shared);
    dbguard_clients_rebuild(shared);
    dbguard_reserve_rebuild(shared);
    dbguard_queue_rebuild(shared);
    memset(shared->bin_held, 0, sizeof(shared->bin_held));
    memset(shared->class_held, 0, sizeof(shared->class_held));
    shared->free_head = DBGUARD_NONE;
    shared->held_head = shared->held_tail = DBGUARD_NONE;
    shared->prefix.held = shared->prefix.waiting = shared->shadows = 0;
    dbguard_settle_rebuild(shared);
    for (i = shared->nslots; i-- > 0;) {
        dbguard_slot_t *s = &shared->slots[i];

        /* A serial is given before its slot says so. */
        if (s->serial > shared->serial)
            shared->serial = s->serial;
        switch ((dbguard_state_t)s->state) {
        case DBGUARD_WAITING:
            dbguard_board_refer(shared, i, 1);
            sorter_add(shared, &waiters, i);
            break;
        case DBGUARD_HELD:
            dbguard_board_refer(shared, i, 1);
            sorter_add(shared, &holders, i);
            break;
        case DBGUARD_EXPELLED:
            dbguard_board_refer(shared, i, 1);
            break;
        case DBGUARD_SETTLING:
            break;
        default:
            dbguard_board_push_free(shared, i);
        }
    }
    add_sorted(shared, &holders, holds_again);
    add_sorted(shared, &waiters, dbguard_queue_add);
    shared->follow = shared->held_head;
}

static int is(const dbguard_shared_t *shared, uint32_t slot,
              dbguard_state_t state)
{
    return slot == DBGUARD_NONE
           || (slot < shared->nslots && shared->slots[slot].state == state);
}

/* Cheap enough for every lock: the ends of the lists are what they claim. */
static int sound(const dbguard_shared_t *shared)
{
    return is(shared, shared->free_head, DBGUARD_FREE)
           && is(shared, shared->held_head, DBGUARD_HELD)
           && is(shared, shared->held_tail, DBGUARD_HELD)
           && is(shared, shared->follow, DBGUARD_HELD)
           && is(shared, shared->parked_head, DBGUARD_WAITING)
           && is(shared, shared->parked_tail, DBGUARD_WAITING)
           && is(shared, shared->settle_head, DBGUARD_SETTLING)
           && is(shared, shared->settle_tail, DBGUARD_SETTLING)
           && (shared->held_head == DBGUARD_NONE) == (shared->prefix.held == 0)
           && (shared->heaviest == DBGUARD_NONE)
                  == (shared->prefix.waiting == 0)
           && (shared->settle_head == DBGUARD_NONE)
                  == (shared->settling == 0);
}

/* Usually nobody has it, and the clock is not asked. */
static int lock_soon(pthread_mutex_t *lock, int64_t now)
{
    int64_t last = now + DBGUARD_LOCK_PATIENCE;
    struct timespec at = {last / SECOND, last % SECOND * 1000};
    int rv = pthread_mutex_trylock(lock);

    return rv == EBUSY ? pthread_mutex_clocklock(lock, CLOCK_MONOTONIC, &at)
                       : rv;
}

apr_status_t dbguard_board_lock(dbguard_board_t *board, int64_t now)
{
    dbguard_shared_t *shared = board->shared;
    int rv;

    if (inside)
        return EDEADLK;
    inside = 1;
    rv = lock_soon(&shared->lock, now);
    if (rv != 0 && rv != EOWNERDEAD) {
        inside = 0;
        return rv;
    }

    /* Odd from here on. It already is when the last holder died. */
    atomic_store_explicit(&shared->seq, shared->seq | 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);

    if (rv == EOWNERDEAD || !sound(shared)) {
        dbguard_board_rebuild(shared);
        shared->counters.repairs++;
        /* Only now: whoever dies in the rebuild leaves it to the next one. */
        if (rv == EOWNERDEAD)
            pthread_mutex_consistent(&shared->lock);
    }
    return APR_SUCCESS;
}

void dbguard_board_unlock(dbguard_board_t *board)
{
    dbguard_shared_t *shared = board->shared;

    atomic_store_explicit(&shared->seq, shared->seq + 1, memory_order_release);
    pthread_mutex_unlock(&shared->lock);
    inside = 0;
}

dbguard_second_t *dbguard_board_second(dbguard_shared_t *shared, int64_t now)
{
    dbguard_second_t *s = &shared->seconds[shared->current];
    int64_t second;

    /* Nearly always, and spares the divisions. */
    if (now >= s->second * SECOND && now < (s->second + 1) * SECOND)
        return s;
    second = now / SECOND;
    shared->current = (uint32_t)(second % DBGUARD_SECONDS);
    s = &shared->seconds[shared->current];
    if (s->second != second) {
        memset(s, 0, sizeof(*s));
        s->second = second;
        s->held_max = s->held_last = shared->prefix.held;
        s->waiting_max = shared->prefix.waiting;
    }
    return s;
}

const char *dbguard_reason_name(dbguard_reason_t reason)
{
    static const char *const names[] = {
#define REASON(symbol, name, help) name,
#include "reasons.def"
#undef REASON
    };

    return reason < DBGUARD_REASONS ? names[reason] : "unknown";
}
