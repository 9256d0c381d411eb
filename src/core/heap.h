#ifndef DBGUARD_HEAP_H
#define DBGUARD_HEAP_H

/* A pairing heap of indexes, for memory that every process maps elsewhere: the
 * links lie in the elements, nothing is allocated. Insert is O(1), taking the
 * first or any other element out is O(log n) amortised.
 * (Fredman, Sedgewick, Sleator, Tarjan: The pairing heap, 1986.) */

#include <stdint.h>

#define DBGUARD_NONE UINT32_MAX /* no element */

typedef struct dbguard_link_t {
    uint32_t child; /* first of those below */
    uint32_t next;  /* sibling */
    uint32_t prev;  /* sibling before, or parent of the first child */
} dbguard_link_t;

/* How to get at the elements of one kind of heap. */
typedef struct dbguard_heap_t {
    dbguard_link_t *(*link)(void *base, uint32_t element);
    /* Is a to come out before b? A strict order. */
    int (*before)(const void *base, uint32_t a, uint32_t b);
} dbguard_heap_t;

void dbguard_heap_insert(const dbguard_heap_t *heap, void *base,
                         uint32_t *root, uint32_t element);
void dbguard_heap_remove(const dbguard_heap_t *heap, void *base,
                         uint32_t *root, uint32_t element);

#endif
