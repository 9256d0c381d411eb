#ifndef DBGUARD_SECTION_H
#define DBGUARD_SECTION_H

/* What happens under one lock. Every verb of the admission begins a section,
 * changes slots, and finishes it.
 *
 * Invariants
 *   - What is free is given to the waiting at the beginning and at the end:
 *     room may have appeared without an event on this board, for time has
 *     passed or an elder's token has come back, and by the verb itself.
 *   - Nobody is woken before the lock is gone. */

#include "board.h"

/* As many waiters as are woken after one section. With more to wake, the next
 * one follows at once. */
#define DBGUARD_WAKES 32

typedef struct dbguard_section_t {
    dbguard_board_t *board;
    int64_t now;
    uint32_t wakes[DBGUARD_WAKES]; /* slots to be woken when the lock is gone */
    int nwakes;
} dbguard_section_t;

/* Errors are those of dbguard_board_lock; there is no section then. */
apr_status_t dbguard_section_begin(dbguard_section_t *in,
                                   dbguard_board_t *board, int64_t now);
void dbguard_section_finish(dbguard_section_t *in);

/* Give what is free to the waiting, as far as they can be woken. */
void dbguard_section_dispatch(dbguard_section_t *in);

/* Why nobody gets a token, whatever is free; usually NONE. */
dbguard_reason_t dbguard_section_shut(const dbguard_shared_t *shared,
                                      int64_t now);

#endif
