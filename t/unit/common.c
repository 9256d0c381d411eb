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
dbguard_visitor_t guest;

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
    come_as("GET /", 0, 0);
    guest.class = 0;
    teach("GET /", 0, HOLD);
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

    come_as("GET /", 0, 0);
    guest.class = 0;
    /* So many that nothing is kept free for lighter work. */
    configure(2 * slots + 1, 0, 0);
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

void come_as(const char *endpoint, uint64_t address, uint64_t session)
{
    strcpy(guest.client, "192.0.2.1");
    memset(guest.endpoint, 0, sizeof(guest.endpoint));
    memcpy(guest.endpoint, endpoint, strlen(endpoint));
    guest.address = address;
    guest.session = session;
}

uint32_t teach(const char *endpoint, uint32_t class, int64_t hold)
{
    dbguard_shared_t *shared = board.shared;
    uint64_t key = dbguard_endpoint_key(shared, endpoint, class);
    uint32_t at = dbguard_endpoint_arrive(shared, key, endpoint, class, now);
    dbguard_endpoint_t *e = &shared->endpoints[at];

    e->arrived--;
    e->rate[e->second % DBGUARD_RATE_RING]--;
    e->hold = hold;
    e->samples = DBGUARD_SAMPLES;
    if (e->waiting == 0)
        e->bin = dbguard_bin_of(hold);
    return at;
}

dbguard_decision_t enter_as(int32_t pid)
{
    dbguard_decision_t d;

    guest.pid = pid;
    dbguard_admission_enter(&board, &guest, now, &d);
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
