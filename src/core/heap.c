/* Pairing heap on indexes: see heap.h. */

#include "heap.h"

/* One tree out of two; the loser becomes the winner's first child. */
static uint32_t meld(const dbguard_heap_t *heap, void *base, uint32_t a,
                     uint32_t b)
{
    dbguard_link_t *la, *lb;

    if (a == DBGUARD_NONE)
        return b;
    if (b == DBGUARD_NONE)
        return a;
    if (heap->before(base, b, a)) {
        uint32_t swap = a;

        a = b;
        b = swap;
    }
    la = heap->link(base, a);
    lb = heap->link(base, b);
    lb->prev = a;
    lb->next = la->child;
    if (la->child != DBGUARD_NONE)
        heap->link(base, la->child)->prev = b;
    la->child = b;
    la->next = la->prev = DBGUARD_NONE;
    return a;
}

/* All siblings from `first` on into one tree: in pairs from the left, then
 * together from the right. The pairs are strung on `prev` meanwhile. */
static uint32_t combine(const dbguard_heap_t *heap, void *base, uint32_t first)
{
    uint32_t pairs = DBGUARD_NONE, root = DBGUARD_NONE;

    while (first != DBGUARD_NONE) {
        uint32_t a = first;
        uint32_t b = heap->link(base, a)->next;
        uint32_t rest = DBGUARD_NONE;

        if (b != DBGUARD_NONE) {
            rest = heap->link(base, b)->next;
            heap->link(base, b)->next = DBGUARD_NONE;
        }
        heap->link(base, a)->next = DBGUARD_NONE;
        a = meld(heap, base, a, b);
        heap->link(base, a)->prev = pairs;
        pairs = a;
        first = rest;
    }
    while (pairs != DBGUARD_NONE) {
        uint32_t before = heap->link(base, pairs)->prev;

        heap->link(base, pairs)->prev = DBGUARD_NONE;
        root = meld(heap, base, root, pairs);
        pairs = before;
    }
    return root;
}

void dbguard_heap_insert(const dbguard_heap_t *heap, void *base,
                         uint32_t *root, uint32_t element)
{
    dbguard_link_t *l = heap->link(base, element);

    l->child = l->next = l->prev = DBGUARD_NONE;
    *root = meld(heap, base, *root, element);
}

void dbguard_heap_remove(const dbguard_heap_t *heap, void *base,
                         uint32_t *root, uint32_t element)
{
    dbguard_link_t *l = heap->link(base, element);
    uint32_t below = combine(heap, base, l->child);

    if (*root == element)
        *root = below;
    else {
        dbguard_link_t *p = heap->link(base, l->prev);

        if (p->child == element)
            p->child = l->next;
        else
            p->next = l->next;
        if (l->next != DBGUARD_NONE)
            heap->link(base, l->next)->prev = l->prev;
        *root = meld(heap, base, *root, below);
    }
    l->child = l->next = l->prev = DBGUARD_NONE;
}
