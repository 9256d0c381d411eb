#ifndef DBGUARD_ADMISSION_H
#define DBGUARD_ADMISSION_H

/* Admission in three verbs: enter, poll while it waits, leave.
 *
 *                 enter                    leave
 *     (nobody) --+------> HELD -----------------------> (nobody)
 *                |          ^                               ^
 *                |          | somebody's token,             |
 *                |          | handed over                   |
 *                +------> WAITING ------> EXPELLED ---------+
 *                |            patience ended,   poll or leave
 *                |            displaced
 *                +------> refused
 *
 * Invariants
 *   - Tokens out never exceed the budget that was in force when the last of
 *     them was given. When the budget shrinks below what is out, nothing is
 *     given until enough came back. In DryRun, too: the board does what On
 *     would, while the requests run.
 *   - A token comes back exactly once: a ticket names one occupancy of a slot,
 *     and leaving with a ticket that is no longer in force changes nothing.
 *   - A token that came back counts as out for limits.settle more, until the
 *     database has noticed; who is given it meanwhile begins at the end of
 *     that time. Those that come back together follow one another (settle.h).
 *   - No token is idle while somebody waits who may have it: every call ends
 *     by giving what is free to the waiting, in their order (queue.h), and
 *     nobody who comes later takes it from under them. Only those whose client
 *     had its share when their turn came are looked at again a few at a time,
 *     and each at its own next poll.
 *   - A token is never given to one whose patience has ended; it may begin some
 *     milliseconds after that, while it settles.
 *
 * Enter, poll and leave take the lock once, for well under a microsecond on
 * average: a heap that only grew is put in order by the first who takes from
 * it, and four times a second somebody adds up the needs. Waking more than a
 * few, reaping and configuring take longer. None of them allocates, logs or
 * calls the system under the lock. `now`: see board.h. */

#include "board.h"
#include "retry.h"

typedef struct dbguard_ticket_t {
    uint64_t serial; /* 0: no ticket */
    uint32_t slot;
} dbguard_ticket_t;

typedef enum dbguard_outcome_t {
    DBGUARD_ADMITTED, /* the ticket holds a token, to be used from `start` on */
    DBGUARD_WAIT,     /* the ticket waits: sleep on its semaphore, then poll */
    DBGUARD_REFUSED   /* there is no ticket (any more) */
} dbguard_outcome_t;

typedef struct dbguard_decision_t {
    dbguard_outcome_t outcome;
    dbguard_reason_t reason; /* when refused */
    /* What On would have decided; differs from outcome in DryRun only. */
    dbguard_outcome_t would;
    dbguard_ticket_t ticket;
    int64_t start;       /* when admitted: now, or a moment later while the
                            token settles; the caller sleeps until then */
    int64_t waited;      /* microseconds in the queue so far */
    int64_t deadline;    /* when waiting: the end of its patience */
    dbguard_promise_t retry; /* when refused */
} dbguard_decision_t;

/* A request asks for a token. The visitor is copied. */
void dbguard_admission_enter(dbguard_board_t *board,
                             const dbguard_visitor_t *visitor, int64_t now,
                             dbguard_decision_t *decision);

/* How does it stand with a ticket that waits? To be called whenever its
 * semaphore was posted, at its deadline, and every quarter of a second besides:
 * a post is lost when its sender dies, and room may come from elsewhere. */
void dbguard_admission_poll(dbguard_board_t *board, dbguard_ticket_t ticket,
                            int64_t now, dbguard_decision_t *decision);

/* The request has ended, or does not want to wait any longer. Whatever the
 * ticket stands for is given back, the first time: APR_SUCCESS, and *held is
 * the time its token was out, or -1 when it had none. After that, APR_NOTFOUND.
 * Other errors are those of dbguard_board_lock, and nothing was given back. */
apr_status_t dbguard_admission_leave(dbguard_board_t *board,
                                     dbguard_ticket_t ticket, int64_t now,
                                     int64_t *held);

/* Give back all that process pid had: it is gone. *taken is the number of
 * slots. Errors are those of dbguard_board_lock. */
apr_status_t dbguard_admission_reap(dbguard_board_t *board, int32_t pid,
                                    int64_t now, uint32_t *taken);

/* Put new limits in force; whoever has room through them is given a token. With
 * limits->workers set, limits->queue is derived. */
apr_status_t dbguard_admission_configure(dbguard_board_t *board,
                                         const dbguard_limits_t *limits,
                                         int64_t now);

/* The monitor has heard of the database: put what follows from it in force.
 * When it is closed, the waiting are sent away. */
apr_status_t dbguard_admission_learn(dbguard_board_t *board,
                                     const dbguard_database_t *database,
                                     int64_t now);

/* What a waiter sleeps on. */
sem_t *dbguard_admission_wake(dbguard_board_t *board, dbguard_ticket_t ticket);

#endif
