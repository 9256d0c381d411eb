#ifndef DBGUARD_PLACES_H
#define DBGUARD_PLACES_H

/* Which class stands at which place of limits.classes. Pure.
 *
 * Invariants
 *   - Place 0 is nobody's: that of requests in no class.
 *   - A class keeps its place over all reloads that name it: processes from
 *     before a reload go on counting in the places that they know.
 *   - A class that is configured no more stays where it is, without limits,
 *     until its place is needed and nobody holds a token or waits in it. A
 *     request of an old process that comes after that is counted in the class
 *     which has the place now: it is one of the last that this process takes.
 *
 * 16 classes may be configured and there are 31 places: only who renames many
 * of them while requests of the old ones run can be left without one. */

#include "board.h"

/* Fill in `places` for the n classes that are wanted, given the `old` ones and
 * which places are in use (non-zero). Both have DBGUARD_CLASSES entries, and
 * may not overlap. Returns how many were left without a place. */
uint32_t dbguard_places_assign(const dbguard_class_t *old,
                               const unsigned char *used,
                               const dbguard_class_t *wanted, uint32_t n,
                               dbguard_class_t *places);

/* The place of the class with that name; 0 when it has none. */
uint32_t dbguard_places_find(const dbguard_class_t *places, const char *name);

#endif
