#ifndef DBGUARD_RESERVE_H
#define DBGUARD_RESERVE_H

/* What a request must leave free for others before it may have a token. By
 * Little's law work that arrives lambda times a second and holds T needs
 * N = lambda x T tokens on average, and rarely more than N + 2 sqrt(N).
 *
 *   - For lighter work: of the bins at most half as long as its own, at least
 *     one token when there is any such work, at most a quarter of the budget
 *     (so none below a budget of four); less what lighter work holds already.
 *     The largest of these over all bins up to its own, so that what holds much
 *     in the middle does not use up what is kept for the lightest.
 *   - For other clients, by work that holds longer than DBGUARD_LONG, only by
 *     it, while more than half of the budget is out: when all other addresses
 *     (sessions) hold less than they need, or than three quarters of the
 *     budget, what is missing, at most an eighth. One that is alone leaves
 *     nothing.
 *   - For other classes: what is missing to their minimums. A class below its
 *     own minimum leaves nothing at all.
 *
 * Loads are those of the last DBGUARD_LOAD_WINDOW, whatever became of the
 * requests; lighter work counts as being there for ten minutes after its last
 * request, so that a quiet site keeps a token for it. They are an endpoint's,
 * and move with it when its bin changes: an endpoint whose holds grow would
 * else keep tokens free from itself. Looked at every DBGUARD_TICK.
 *
 * A client that sends ten times as many requests as clients do on average, and
 * more than fifty in ten seconds, is not what anything is kept free for: a tab
 * that loops comes one request after the other, however many, and would keep a
 * quarter of the budget free for itself. What it sends is excess: it leaves
 * free what all lighter work needs, however light it is, and counts neither as
 * need nor as use of that. The client is the session, once it has been seen
 * before; else the address. */

#include <stdint.h>

#include "flows.h"

struct dbguard_shared_t;
struct dbguard_board_t;

/* Loads are summed up over this many microseconds. */
#define DBGUARD_LOAD_WINDOW INT64_C(5000000)

#define DBGUARD_TICK INT64_C(250000)
#define DBGUARD_LOAD_TICKS 20 /* DBGUARD_LOAD_WINDOW / DBGUARD_TICK */
#define DBGUARD_LONG INT64_C(1000000) /* longer than the shortest patience */

/* What somebody asks for, in this window (tick / DBGUARD_LOAD_TICKS) and in the
 * one before, which counts less and less. */
typedef struct dbguard_demand_t {
    uint64_t window;
    int64_t load[2];  /* microseconds of tokens: now, before */
    int64_t asked[2]; /* requests */
    int64_t counted;  /* an endpoint's, in the loads by bin of the last tick */
} dbguard_demand_t;

/* N + 2 sqrt(N), rounded, at least 1, for a load of so many microseconds of
 * tokens in a DBGUARD_LOAD_WINDOW; 0 for none. */
uint32_t dbguard_reserve_need(int64_t load);

/* Tokens that nobody has; 0 when the budget has shrunk below what is out. */
uint32_t dbguard_reserve_free(const struct dbguard_board_t *board);

/* What is free, and what of it is kept: good for one decision, until somebody
 * is given a token. */
typedef struct dbguard_limit_t {
    uint32_t free;
    uint32_t missing;               /* to the minimums of all classes */
    uint32_t reserve[DBGUARD_BINS]; /* for lighter work, by bin */
} dbguard_limit_t;

void dbguard_reserve_look(const struct dbguard_board_t *board,
                          dbguard_limit_t *limit);
/* May work of this class and bin have a token? */
int dbguard_reserve_allows(const struct dbguard_shared_t *shared,
                           const dbguard_limit_t *limit, uint32_t class,
                           uint32_t bin);
/* Does its work hold longer than others would like to wait? So it is taken to
 * when it is not known. */
int dbguard_reserve_is_long(const struct dbguard_shared_t *shared,
                            uint32_t endpoint, int64_t now);
/* May the clients of this slot have one? */
int dbguard_reserve_client(struct dbguard_shared_t *shared,
                           const dbguard_limit_t *limit, uint32_t slot,
                           int64_t now);
/* Tokens that an endpoint can have for itself: all but those that other work
 * has, unless it is lighter; >= 1. */
uint32_t dbguard_reserve_own(const struct dbguard_shared_t *shared,
                             uint32_t endpoint);

/* A request to this endpoint for so much work has come from this address, with
 * this session or DBGUARD_NONE. Returns 1 when it is excess. */
int dbguard_reserve_arrive(struct dbguard_shared_t *shared, uint32_t endpoint,
                           int64_t work, uint32_t address,
                           uint32_t session);
/* The work of this endpoint is of another bin from now on. */
void dbguard_reserve_move(struct dbguard_shared_t *shared, uint32_t endpoint,
                          uint32_t from, uint32_t to);
/* Has a tick begun since the last call? Moves the window on. */
int dbguard_reserve_tick(struct dbguard_shared_t *shared, int64_t now);

/* Shares of classes in tokens, after a change of the budget. */
void dbguard_reserve_derive(struct dbguard_shared_t *shared);
/* What is derived from the parts of the window. */
void dbguard_reserve_rebuild(struct dbguard_shared_t *shared);

#endif
