/* The board of the unit tests, and the words that they are written in: see
 * unit.h. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "unit.h"

#ifdef __has_include
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#endif
#endif
#ifndef RUNNING_ON_VALGRIND
#define RUNNING_ON_VALGRIND 0
#endif

dbguard_board_t board;
int64_t now;

static uint32_t slots;  /* of the open board */
static uint64_t mapped; /* bytes, when it is shared memory */

/* --- the board ------------------------------------------------------------ */

void board_again(uint32_t budget, uint32_t queue)
{
    uint64_t size = dbguard_board_size(slots);

    now = START;
    memset(board.shared, 0, size);
    ck_assert_int_eq(dbguard_board_create(board.shared, size, slots, 4242, 1,
                                          now, now),
                     APR_SUCCESS);
    board.shared->engine = 1;
    configure(budget, queue, 0);
}

static void open_in(void *memory, uint32_t nslots, uint32_t budget,
                    uint32_t queue)
{
    slots = nslots;
    board.shared = memory;
    board.fifo = 0;
    board.elder = NULL;
    board_again(budget, queue);
}

void board_open(uint32_t nslots, uint32_t budget, uint32_t queue)
{
    void *memory = malloc(dbguard_board_size(nslots));

    ck_assert_ptr_nonnull(memory);
    mapped = 0;
    open_in(memory, nslots, budget, queue);
}

void board_open_shared(uint32_t nslots, uint32_t budget, uint32_t queue)
{
    void *memory;

    mapped = dbguard_board_size(nslots);
    memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    open_in(memory, nslots, budget, queue);
}

void board_close(void)
{
    if (mapped > 0)
        munmap(board.shared, mapped);
    else
        free(board.shared);
    board.shared = NULL;
    board.elder = NULL;
}

void board_close_in_order(void)
{
    const char *what = board_disorder(board.shared);

    if (what != NULL)
        ck_abort_msg("%s", what);
    board_close();
}

dbguard_shared_t *board_make(uint32_t nslots)
{
    uint64_t size = dbguard_board_size(nslots);
    dbguard_shared_t *shared = calloc(1, size);

    ck_assert_ptr_nonnull(shared);
    ck_assert_int_eq(dbguard_board_create(shared, size, nslots, 4242, 1, now,
                                          now),
                     APR_SUCCESS);
    return shared;
}

static uint32_t count(const dbguard_shared_t *shared, dbguard_state_t state)
{
    uint32_t n = 0, i;

    for (i = 0; i < shared->nslots; i++)
        n += shared->slots[i].state == state;
    return n;
}

static const char *free_list_disorder(const dbguard_shared_t *shared)
{
    uint32_t slot = shared->free_head;
    uint32_t n = 0;

    for (; slot != DBGUARD_NONE; slot = shared->slots[slot].next) {
        if (slot >= shared->nslots)
            return "the free list leads out of the table";
        if (shared->slots[slot].state != DBGUARD_FREE)
            return "a slot on the free list is in use";
        if (++n > shared->nslots)
            return "the free list runs in a circle";
    }
    return n == count(shared, DBGUARD_FREE) ? NULL
                                            : "the free list is not complete";
}

static const char *queue_disorder(const dbguard_shared_t *shared)
{
    uint32_t slot = shared->queue_head;
    uint32_t last = DBGUARD_NONE;
    uint32_t n = 0;

    for (; slot != DBGUARD_NONE; slot = shared->slots[slot].next) {
        const dbguard_slot_t *s = &shared->slots[slot];

        if (slot >= shared->nslots)
            return "the queue leads out of the table";
        if (s->state != DBGUARD_WAITING)
            return "a slot in the queue does not wait";
        if (s->prev != last)
            return "the queue's way back is broken";
        if (last != DBGUARD_NONE && shared->slots[last].serial >= s->serial)
            return "the queue is out of order";
        if (++n > shared->nslots)
            return "the queue runs in a circle";
        last = slot;
    }
    if (shared->queue_tail != last)
        return "the queue's tail is not its last";
    if (n != count(shared, DBGUARD_WAITING))
        return "the queue is not complete";
    return n == shared->prefix.waiting ? NULL : "waiting is not who waits";
}

static const char *settling_disorder(const dbguard_shared_t *shared)
{
    uint32_t slot = shared->settle_head;
    uint32_t last = DBGUARD_NONE;
    uint32_t n = 0;

    for (; slot != DBGUARD_NONE; slot = shared->slots[slot].next) {
        if (slot >= shared->nslots)
            return "the settling lead out of the table";
        if (shared->slots[slot].state != DBGUARD_SETTLING)
            return "a slot among the settling does not settle";
        if (++n > shared->nslots)
            return "the settling run in a circle";
        last = slot;
    }
    if (shared->settle_tail != last)
        return "the tail of the settling is not their last";
    if (n != count(shared, DBGUARD_SETTLING))
        return "the settling are not complete";
    return n == shared->settling ? NULL : "settling is not who settles";
}

static uint32_t count_beyond(const dbguard_shared_t *shared)
{
    uint32_t n = 0, i;

    for (i = 0; i < shared->nslots; i++)
        n += shared->slots[i].state == DBGUARD_HELD
             && shared->slots[i].reason != DBGUARD_REASON_NONE;
    return n;
}

const char *board_disorder(const dbguard_shared_t *shared)
{
    const char *what = free_list_disorder(shared);
    uint32_t i;

    if (what == NULL)
        what = queue_disorder(shared);
    if (what == NULL)
        what = settling_disorder(shared);
    if (what == NULL && shared->prefix.held != count(shared, DBGUARD_HELD))
        what = "held is not who holds";
    if (what == NULL && shared->beyond != count_beyond(shared))
        what = "beyond is not who holds thanks to DryRun";
    for (i = 0; what == NULL && i < shared->nslots; i++) {
        if (shared->slots[i].state > DBGUARD_SETTLING)
            what = "a state that is none";
        if (shared->slots[i].serial > shared->serial)
            what = "a serial that was never given";
    }
    return what;
}

void board_expect(uint32_t held, uint32_t waiting)
{
    const char *what = board_disorder(board.shared);

    if (what != NULL)
        ck_abort_msg("%s", what);
    if (board.shared->prefix.held != held
        || board.shared->prefix.waiting != waiting)
        ck_abort_msg("%u hold and %u wait where %u and %u should",
                     board.shared->prefix.held, board.shared->prefix.waiting,
                     held, waiting);
}

void board_exhaust(void)
{
    dbguard_ticket_t *tickets = calloc(slots, sizeof(*tickets));
    dbguard_decision_t d;
    uint32_t i;

    configure(slots + 1, 0, 0);
    for (i = 0; i < slots; i++) {
        d = enter();
        if (d.outcome != DBGUARD_ADMITTED)
            ck_abort_msg("only %u of %u slots can be taken", i, slots);
        tickets[i] = d.ticket;
    }
    d = enter();
    if (d.reason != DBGUARD_REASON_BOARD)
        ck_abort_msg("there are more slots than slots");
    for (i = 0; i < slots; i++)
        leave(tickets[i]);
    free(tickets);
    board_expect(0, 0);
}

/* --- what requests do ----------------------------------------------------- */

dbguard_decision_t enter_as(int32_t pid)
{
    dbguard_visitor_t visitor = {pid, "192.0.2.1", "GET /"};
    dbguard_decision_t d;

    dbguard_admission_enter(&board, &visitor, now, &d);
    return d;
}

dbguard_decision_t enter(void)
{
    return enter_as(WORKER);
}

dbguard_ticket_t enter_to(dbguard_outcome_t outcome)
{
    dbguard_decision_t d = enter();

    if (d.outcome != outcome)
        ck_abort_msg("outcome %d where %d was expected", d.outcome, outcome);
    return d.ticket;
}

dbguard_decision_t look(dbguard_ticket_t ticket)
{
    dbguard_decision_t d;

    dbguard_admission_poll(&board, ticket, now, &d);
    return d;
}

int64_t leave(dbguard_ticket_t ticket)
{
    int64_t held;
    apr_status_t rv = dbguard_admission_leave(&board, ticket, now, &held);

    if (rv != APR_SUCCESS)
        ck_abort_msg("leaving failed with %d", rv);
    return held;
}

uint32_t reap(int32_t pid)
{
    uint32_t taken;
    apr_status_t rv = dbguard_admission_reap(&board, pid, now, &taken);

    if (rv != APR_SUCCESS)
        ck_abort_msg("reaping failed with %d", rv);
    return taken;
}

void configure(uint32_t budget, uint32_t queue, int dryrun)
{
    dbguard_limits_t limits = {0};

    limits.budget = budget;
    limits.queue = queue;
    limits.dryrun = dryrun != 0;
    limits.patience = PATIENCE;
    limits.settle = board.shared->limits.settle;
    limits.retry_min = 2 * SECOND;
    limits.retry_max = 10 * SECOND;
    if (dbguard_admission_configure(&board, &limits, now) != APR_SUCCESS)
        ck_abort_msg("configuring failed");
}

dbguard_state_t state_of(dbguard_ticket_t ticket)
{
    return board.shared->slots[ticket.slot].state;
}

const dbguard_counters_t *counters(void)
{
    return &board.shared->counters;
}

int posts(dbguard_ticket_t ticket)
{
    int n = 0;

    while (sem_trywait(dbguard_admission_wake(&board, ticket)) == 0)
        n++;
    return n;
}

/* --- the machine ---------------------------------------------------------- */

static uint32_t random_state;

void any_from(uint32_t seed)
{
    random_state = seed;
}

uint32_t any(uint32_t n)
{
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % n;
}

int under_valgrind(void)
{
    return RUNNING_ON_VALGRIND != 0;
}

int under_sanitizers(void)
{
#ifdef __SANITIZE_ADDRESS__
    return 1;
#else
    return 0;
#endif
}

int at_full_speed(void)
{
#ifdef __OPTIMIZE__
    return !under_valgrind() && !under_sanitizers();
#else
    return 0;
#endif
}

int scaled(int n)
{
    return under_valgrind() || under_sanitizers() ? 1 + n / 12 : n;
}

int wait_for(pid_t pid)
{
    int status = 0;

    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            ck_abort_msg("child %d is lost", (int)pid);
    return status;
}

dbguard_snapshot_t *snapshot(void)
{
    dbguard_snapshot_t *s = malloc(dbguard_snapshot_size(board.shared));

    ck_assert_ptr_nonnull(s);
    dbguard_snapshot_take(s, board.shared, now);
    return s;
}
