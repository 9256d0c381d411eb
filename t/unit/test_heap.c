/* The pairing heap: thousands of random operations against a table that is
 * searched from end to end. */

#include <math.h>

#include "heap.h"
#include "unit.h"

#define ELEMENTS 300

typedef struct element_t {
    dbguard_link_t link;
    uint32_t key;
    int inside;
} element_t;

static element_t elements[ELEMENTS];
static uint32_t root;
static long comparisons;

static dbguard_link_t *link_of(void *base, uint32_t element)
{
    return &((element_t *)base)[element].link;
}

static int before(const void *base, uint32_t a, uint32_t b)
{
    const element_t *e = base;

    comparisons++;
    return e[a].key < e[b].key || (e[a].key == e[b].key && a < b);
}

static const dbguard_heap_t heap = {link_of, before};

static void setup(void)
{
    int i;

    root = DBGUARD_NONE;
    for (i = 0; i < ELEMENTS; i++)
        elements[i].inside = 0;
    any_from(1);
}

static void put(uint32_t element, uint32_t key)
{
    elements[element].key = key;
    elements[element].inside = 1;
    dbguard_heap_insert(&heap, elements, &root, element);
}

static void take(uint32_t element)
{
    elements[element].inside = 0;
    dbguard_heap_remove(&heap, elements, &root, element);
}

static uint32_t first(void)
{
    uint32_t best = DBGUARD_NONE, i;

    for (i = 0; i < ELEMENTS; i++)
        if (elements[i].inside
            && (best == DBGUARD_NONE || before(elements, i, best)))
            best = i;
    return best;
}

/* All that are below, each once, and none before its parent. */
static uint32_t count(uint32_t parent, uint32_t at)
{
    uint32_t last = parent, n = 0;

    for (; at != DBGUARD_NONE; at = elements[at].link.next) {
        if (n++ > ELEMENTS || !elements[at].inside)
            ck_abort_msg("%u should not be there", at);
        if (elements[at].link.prev != last)
            ck_abort_msg("the way back from %u is broken", at);
        if (parent != DBGUARD_NONE && before(elements, at, parent))
            ck_abort_msg("%u is below %u", at, parent);
        n += count(at, elements[at].link.child);
        last = at;
    }
    return n;
}

static void expect_in_order(void)
{
    uint32_t inside = 0, i;

    for (i = 0; i < ELEMENTS; i++)
        inside += (uint32_t)elements[i].inside;
    ck_assert_uint_eq(root, first());
    if (count(DBGUARD_NONE, root) != inside)
        ck_abort_msg("not all of them are in the heap");
}

START_TEST(an_empty_one)
{
    put(7, 1);
    ck_assert_uint_eq(root, 7);
    take(7);
    ck_assert_uint_eq(root, DBGUARD_NONE);
    put(8, 1);
    put(7, 1);
    put(9, 0);
    ck_assert_uint_eq(root, 9);
    take(9);
    ck_assert_uint_eq(root, 7); /* of the same key, the smaller number */
    take(8);
    ck_assert_uint_eq(root, 7);
    take(7);
    ck_assert_uint_eq(root, DBGUARD_NONE);
}
END_TEST

/* Insert, take the first, take any, change a key: with few different keys, or
 * with many. */
START_TEST(any_operations)
{
    uint32_t keys = _i % 2 ? 8 : UINT32_MAX;
    int i, steps = scaled(6000);

    any_from((uint32_t)_i);
    for (i = 0; i < steps; i++) {
        uint32_t element = any(ELEMENTS);

        if (root != DBGUARD_NONE && any(3) == 0)
            take(root);
        else if (!elements[element].inside)
            put(element, any(keys));
        else {
            take(element);
            if (any(2))
                put(element, any(keys));
        }
        if (root != first())
            ck_abort_msg("step %d: %u is first", i, root);
        if (i % 50 == 0)
            expect_in_order();
    }
    expect_in_order();
    while (root != DBGUARD_NONE) {
        ck_assert_uint_eq(root, first());
        take(root);
    }
    ck_assert_uint_eq(first(), DBGUARD_NONE);
}
END_TEST

/* Whatever the order in which they come, they come out for O(log n) each. */
START_TEST(it_is_cheap)
{
    double most = ELEMENTS * log2(ELEMENTS);
    uint32_t i;

    for (i = 0; i < ELEMENTS; i++)
        put(i, _i == 0 ? i : _i == 1 ? ELEMENTS - i : any(1000));
    comparisons = 0;
    for (i = 0; i < ELEMENTS; i++)
        take(root);
    ck_assert_uint_eq(root, DBGUARD_NONE);
    if ((double)comparisons > 2 * most)
        ck_abort_msg("%ld comparisons for %d elements", comparisons, ELEMENTS);
}
END_TEST

Suite *heap_suite(void)
{
    Suite *s = suite_create("heap");
    TCase *tc = tcase_create("heap");

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, an_empty_one);
    tcase_add_loop_test(tc, any_operations, 0, 6);
    tcase_add_loop_test(tc, it_is_cheap, 0, 3);
    suite_add_tcase(s, tc);
    return s;
}
