#ifndef DBGUARD_UNIT_H
#define DBGUARD_UNIT_H

/* What the unit tests share: a board, a clock that only the tests move, short
 * words for what a request does, and a check of the whole board that asks
 * nothing of the code under test.
 *
 * A bulk check calls ck_abort_msg when something is wrong and says nothing
 * otherwise: every ck_assert writes a line to a file. */

#include <check.h>

#include "admission.h"
#include "queue.h"
#include "snapshot.h"
#include "view.h"

#define LENGTH(table) ((int)(sizeof(table) / sizeof((table)[0])))

#define SECOND 1000000
#define START (INT64_C(1000) * SECOND) /* what the clock shows at first */
#define PATIENCE (INT64_C(5) * SECOND)
#define HOLD 1000 /* microseconds: what "GET /" is known to hold */
#define WORKER 4711 /* the process that requests run in unless told */

/* --- the board under test (common.c) -------------------------------------- */

extern dbguard_board_t board;
extern int64_t now;
extern dbguard_visitor_t guest; /* who comes next; enter sets its pid */

/* A board of its own in memory that ends where the board ends; the clock goes
 * back to START. Patience PATIENCE, tokens that settle at once, Retry-After
 * from 2 s to 10 s. Guests have no address and ask for "GET /", which is well
 * known: they queue in order of arrival. */
void board_open(uint32_t nslots, uint32_t budget, uint32_t queue);
/* The same in memory that children share. */
void board_open_shared(uint32_t nslots, uint32_t budget, uint32_t queue);
/* Make the open board anew, where it is. */
void board_again(uint32_t budget, uint32_t queue);
void board_close(void);
/* Fails when the board is not in order, whatever a test has done to it. */
void board_close_in_order(void);

/* A second board beside it, that the caller frees. */
dbguard_shared_t *board_make(uint32_t nslots);

/* What is wrong with what is derived on a board, or NULL (disorder.c). */
const char *board_disorder(const dbguard_shared_t *shared);
/* Fails when there is disorder, or when these are not the sums. */
void board_expect(uint32_t held, uint32_t waiting);
/* Fails unless every slot can be taken and given back: ends with none. */
void board_exhaust(void);

/* --- what requests do ----------------------------------------------------- */

/* Who comes from now on. An address or session of 0 is none. */
void come_as(const char *endpoint, uint64_t address, uint64_t session);
/* An endpoint is as well known as can be, and holds so long: its index. */
uint32_t teach(const char *endpoint, uint32_t class, int64_t hold);
dbguard_decision_t enter(void);
dbguard_decision_t enter_as(int32_t pid);
/* Fails unless the outcome is this one. */
dbguard_ticket_t enter_to(dbguard_outcome_t outcome);
dbguard_decision_t look(dbguard_ticket_t ticket);
/* Fails unless leaving succeeds. The time that a token was out, or -1. */
int64_t leave(dbguard_ticket_t ticket);
uint32_t reap(int32_t pid);
/* The other limits are those of board_open, and limits.settle what it is. */
void configure(uint32_t budget, uint32_t queue, int dryrun);
dbguard_state_t state_of(dbguard_ticket_t ticket);
const dbguard_counters_t *counters(void);
/* How often a ticket's semaphore was posted; takes the posts. */
int posts(dbguard_ticket_t ticket);

/* --- the machine ---------------------------------------------------------- */

/* Numbers below n, the same ones whenever they begin with the same seed. */
void any_from(uint32_t seed);
uint32_t any(uint32_t n);

/* n, or less of it where everything is slow (valgrind, sanitizers). */
int scaled(int n);
int under_valgrind(void);
int under_sanitizers(void);
/* Neither of them, and compiled with optimisation. */
int at_full_speed(void);
/* Wait for a child and say how it ended (see waitpid). */
int wait_for(pid_t pid);
/* A snapshot of the board; the caller frees it. */
dbguard_snapshot_t *snapshot(void);

/* --- one suite a file; unit.c runs them ----------------------------------- */

Suite *admission_suite(void);
Suite *answer_suite(void);
Suite *board_suite(void);
Suite *clients_suite(void);
Suite *cost_suite(void);
Suite *crash_suite(void);
Suite *database_suite(void);
Suite *dsn_suite(void);
Suite *endpoint_suite(void);
Suite *flows_suite(void);
Suite *heap_suite(void);
Suite *limits_suite(void);
Suite *lint_suite(void);
Suite *queue_suite(void);
Suite *rates_suite(void);
Suite *recorder_suite(void);
Suite *registered_suite(void);
Suite *reserve_suite(void);
Suite *retry_suite(void);
Suite *settle_suite(void);
Suite *sim_suite(void);
Suite *simulation_suite(void);
Suite *snapshot_suite(void);
Suite *value_suite(void);
Suite *view_suite(void);

#endif
