/* The board itself: what create refuses, how a segment is recognised, that it
 * is repaired from its slots whatever its lists and sums look like, and that
 * the lock cannot be taken twice. Death inside the lock is in test_crash.c. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

#define SLOTS 16

static void setup(void)
{
    board_open(SLOTS, 4, 8);
}

static void setup_shared(void)
{
    board_open_shared(SLOTS, 4, 8);
}

/* --- making --------------------------------------------------------------- */

static apr_status_t create(uint32_t nslots, uint64_t size)
{
    dbguard_shared_t *shared = calloc(1, dbguard_board_size(SLOTS));
    apr_status_t rv = dbguard_board_create(shared, size, nslots, 1, 1, now,
                                           now);

    /* Nobody may take what was refused for a board. */
    if (rv != APR_SUCCESS)
        ck_assert_uint_eq(shared->prefix.layout, 0);
    free(shared);
    return rv;
}

START_TEST(create_refuses)
{
    uint64_t size = dbguard_board_size(SLOTS);

    ck_assert_int_eq(create(0, size), APR_EINVAL);
    ck_assert_int_eq(create(SLOTS + 1, size), APR_EINVAL);
    ck_assert_int_eq(create(SLOTS, size - 1), APR_EINVAL);
    ck_assert_int_eq(create(SLOTS, 0), APR_EINVAL);
    ck_assert_int_eq(create(UINT32_MAX, size), APR_EINVAL);
    ck_assert_int_eq(create(DBGUARD_SLOTS_MAX + 1, UINT64_MAX), APR_EINVAL);
    ck_assert_int_eq(create(SLOTS, size), APR_SUCCESS);
    ck_assert_int_eq(create(1, size), APR_SUCCESS);
}
END_TEST

/* Every slot brings itself, and there are clients for all of them. */
START_TEST(size_grows_by_the_slot)
{
    static const uint32_t numbers[] = {1, 2, 64, 2048, 2049, 8192, 65536,
                                       DBGUARD_SLOTS_MAX};
    uint64_t slot = sizeof(dbguard_slot_t), client = sizeof(dbguard_client_t);
    uint64_t clients, left;
    int i;

    for (i = 0; i < LENGTH(numbers); i++) {
        left = dbguard_board_size(numbers[i]) - sizeof(dbguard_shared_t)
               - numbers[i] * slot;
        clients = left / client;
        ck_assert_uint_eq(left % client, 0);
        ck_assert_uint_eq(clients & (clients - 1), 0);
        /* two in use by each slot, and as many that are not */
        ck_assert_uint_ge(clients, 4 * (uint64_t)numbers[i]);
        ck_assert_uint_ge(clients, 8192);
        ck_assert_uint_le(clients, 8 * (uint64_t)numbers[i] + 8192);
    }
    /* What a damaged segment may say. */
    ck_assert_uint_gt(dbguard_board_size(UINT32_MAX), slot * UINT32_MAX);
    ck_assert_uint_gt(dbguard_board_size(UINT32_C(1) << 29), slot << 29);
}
END_TEST

START_TEST(a_new_board)
{
    const dbguard_shared_t *shared = board.shared;

    board_expect(0, 0);
    ck_assert_str_eq(shared->prefix.magic, DBGUARD_MAGIC);
    ck_assert_uint_eq(shared->prefix.layout, DBGUARD_LAYOUT);
    ck_assert_uint_eq(shared->prefix.pid, 4242);
    ck_assert_uint_eq(shared->prefix.size, dbguard_board_size(SLOTS));
    ck_assert_uint_eq(shared->nslots, SLOTS);
    ck_assert_int_eq(shared->created, START);
    ck_assert_uint_eq(shared->counters.repairs, 0);
    ck_assert_uint_eq(shared->seq % 2, 0);
    board_exhaust();
}
END_TEST

/* The prefix is read by every build there will ever be. */
START_TEST(the_prefix_stays)
{
    ck_assert_uint_eq(offsetof(dbguard_prefix_t, magic), 0);
    ck_assert_uint_eq(offsetof(dbguard_prefix_t, layout), 8);
    ck_assert_uint_eq(offsetof(dbguard_prefix_t, pid), 12);
    ck_assert_uint_eq(offsetof(dbguard_prefix_t, size), 16);
    ck_assert_uint_eq(offsetof(dbguard_prefix_t, held), 24);
    ck_assert_uint_eq(offsetof(dbguard_prefix_t, waiting), 28);
    ck_assert_uint_eq(offsetof(dbguard_prefix_t, closed), 32);
    ck_assert_uint_eq(sizeof(dbguard_prefix_t), 40);
    ck_assert_uint_eq(offsetof(dbguard_shared_t, prefix), 0);
}
END_TEST

START_TEST(kinds)
{
    dbguard_shared_t *shared = board.shared;
    uint64_t size = dbguard_board_size(SLOTS);

    ck_assert_int_eq(dbguard_board_kind(shared, size), DBGUARD_SAME_LAYOUT);

    /* cut short, or longer than it says */
    ck_assert_int_eq(dbguard_board_kind(shared, size - 1),
                     DBGUARD_OTHER_LAYOUT);
    ck_assert_int_eq(dbguard_board_kind(shared, size + 1),
                     DBGUARD_OTHER_LAYOUT);
    ck_assert_int_eq(dbguard_board_kind(shared, sizeof(dbguard_prefix_t)),
                     DBGUARD_OTHER_LAYOUT);
    ck_assert_int_eq(dbguard_board_kind(shared, sizeof(dbguard_prefix_t) - 1),
                     DBGUARD_NOT_A_BOARD);
    ck_assert_int_eq(dbguard_board_kind(shared, 0), DBGUARD_NOT_A_BOARD);

    shared->nslots++;
    ck_assert_int_eq(dbguard_board_kind(shared, size), DBGUARD_OTHER_LAYOUT);
    shared->nslots--;
    shared->prefix.layout = DBGUARD_LAYOUT + 1;
    ck_assert_int_eq(dbguard_board_kind(shared, size), DBGUARD_OTHER_LAYOUT);
    shared->prefix.layout = 0; /* being made */
    ck_assert_int_eq(dbguard_board_kind(shared, size), DBGUARD_OTHER_LAYOUT);
    shared->prefix.layout = DBGUARD_LAYOUT;
    shared->prefix.magic[7] = '!';
    ck_assert_int_eq(dbguard_board_kind(shared, size), DBGUARD_NOT_A_BOARD);
    shared->prefix.magic[7] = '\0';
    ck_assert_int_eq(dbguard_board_kind(shared, size), DBGUARD_SAME_LAYOUT);
}
END_TEST

/* Bytes that end where the mapping ends: valgrind and the sanitizers see a
 * read beyond. */
START_TEST(kind_reads_no_more_than_there_is)
{
    uint64_t size;

    for (size = 0; size < dbguard_board_size(1); size += 1 + size / 64) {
        char *bytes = malloc(size + 1);

        memcpy(bytes, board.shared, size);
        ck_assert_int_ne(dbguard_board_kind(bytes, size), DBGUARD_SAME_LAYOUT);
        free(bytes);
    }
}
END_TEST

START_TEST(reasons_have_names)
{
    int reason;

    for (reason = 0; reason < DBGUARD_REASONS; reason++) {
        const char *name = dbguard_reason_name(reason);

        ck_assert_uint_gt(strlen(name), 0);
        ck_assert_uint_eq(strspn(name, "abcdefghijklmnopqrstuvwxyz"),
                          strlen(name));
    }
    ck_assert_str_eq(dbguard_reason_name(DBGUARD_REASON_TIMEOUT), "timeout");
    ck_assert_str_eq(dbguard_reason_name(DBGUARD_REASONS), "unknown");
    ck_assert_str_eq(dbguard_reason_name((dbguard_reason_t)999), "unknown");
}
END_TEST

/* --- the lock ------------------------------------------------------------- */

START_TEST(locking_twice)
{
    dbguard_ticket_t ticket = enter_to(DBGUARD_ADMITTED);
    uint32_t seq;
    int i;

    ck_assert_int_eq(dbguard_board_lock(&board, now), APR_SUCCESS);
    seq = board.shared->seq;
    ck_assert_uint_eq(seq % 2, 1);
    for (i = 0; i < 3; i++)
        ck_assert_int_eq(dbguard_board_lock(&board, now), EDEADLK);
    ck_assert_uint_eq(board.shared->seq, seq);
    dbguard_board_unlock(&board);
    ck_assert_uint_eq(board.shared->seq, seq + 1);

    ck_assert_uint_eq(counters()->repairs, 0);
    board_expect(1, 0);
    leave(ticket);
    board_exhaust();
}
END_TEST

START_TEST(every_section_moves_seq_by_two)
{
    uint32_t seq = board.shared->seq;

    leave(enter_to(DBGUARD_ADMITTED));
    ck_assert_uint_eq(board.shared->seq, seq + 4);
    board.shared->seq = UINT32_MAX - 1;
    leave(enter_to(DBGUARD_ADMITTED));
    ck_assert_uint_eq(board.shared->seq, 2);
    board_expect(0, 0);
}
END_TEST

/* --- repairing ------------------------------------------------------------ */

/* What a check on every lock finds. */
static void spoil(int how, uint32_t waits)
{
    dbguard_shared_t *shared = board.shared;

    switch (how) {
    case 0:
        shared->free_head = waits;
        break;
    case 1:
        shared->free_head = SLOTS;
        break;
    case 2:
        shared->heaviest = DBGUARD_NONE;
        break;
    case 3:
        shared->held_head = shared->free_head;
        break;
    case 4:
        shared->held_head = UINT32_MAX - 1;
        break;
    case 5:
        shared->held_tail = shared->free_head;
        break;
    case 6:
        shared->held_tail = SLOTS + 7;
        break;
    case 7:
        shared->prefix.waiting = 0;
        break;
    case 8:
        shared->prefix.held = 0;
        break;
    case 9:
        shared->follow = waits;
        break;
    case 10:
        shared->settle_head = shared->free_head;
        break;
    case 11:
        shared->settle_tail = waits;
        break;
    case 12:
        shared->settling = 1;
        break;
    case 13:
        shared->parked_head = shared->free_head;
        break;
    case 14:
        shared->parked_tail = SLOTS;
        break;
    default:
        shared->held_head = DBGUARD_NONE;
    }
}

START_TEST(a_failed_check_repairs)
{
    dbguard_ticket_t holds, waits;

    board_again(1, 8);
    holds = enter_to(DBGUARD_ADMITTED);
    waits = enter_to(DBGUARD_WAIT);
    enter_to(DBGUARD_WAIT);
    spoil(_i, waits.slot);
    ck_assert_int_eq(look(holds).outcome, DBGUARD_ADMITTED);
    ck_assert_uint_eq(counters()->repairs, 1);
    board_expect(1, 2);

    /* Once is enough, and the order of the waiting is what it was. */
    leave(holds);
    ck_assert_uint_eq(counters()->repairs, 1);
    board_expect(1, 1);
    ck_assert_int_eq(look(waits).outcome, DBGUARD_ADMITTED);
}
END_TEST

static void spoil_settling(int how)
{
    dbguard_shared_t *shared = board.shared;

    switch (how) {
    case 0:
        shared->settle_head = shared->free_head;
        break;
    case 1:
        shared->settle_head = SLOTS + 1;
        break;
    case 2:
        shared->settle_tail = shared->free_head;
        break;
    case 3:
        shared->settle_head = DBGUARD_NONE;
        break;
    default:
        shared->settling = 0;
    }
}

START_TEST(what_settles_is_checked)
{
    dbguard_ticket_t holds = enter_to(DBGUARD_ADMITTED);

    board.shared->limits.settle = SECOND;
    leave(enter_to(DBGUARD_ADMITTED));
    spoil_settling(_i);
    leave(holds);
    ck_assert_uint_eq(counters()->repairs, 1);
    ck_assert_uint_eq(board.shared->settling, 2);
    board_expect(0, 0);
}
END_TEST

#define ENDPOINTS 9
#define ADDRESSES 11

/* Of things that are there: what a slot's state speaks of was stored before
 * it. */
static void scramble_slot(dbguard_shared_t *shared, uint32_t i)
{
    dbguard_slot_t *s = &shared->slots[i];
    uint32_t endpoint = DBGUARD_FIXED + any(ENDPOINTS);
    const dbguard_endpoint_t *e = &shared->endpoints[endpoint];
    const dbguard_client_t *clients = dbguard_clients(shared);
    uint32_t kind = any(7);

    s->state = kind < 5 ? kind : any(UINT32_MAX);
    s->reason = any(2) ? any(DBGUARD_REASONS) : 0;
    s->serial = 1 + i + shared->nslots * any(5);
    s->prev = any(UINT32_MAX);
    s->next = any(2) ? any(UINT32_MAX) : any(shared->nslots);
    s->visitor.pid = (int32_t)any(7);
    s->released = now - any(9);
    s->granted = now - any(9);
    s->class = e->class;
    s->endpoint = endpoint;
    memcpy(s->visitor.endpoint, e->name, sizeof(e->name));
    s->flow = any(2) ? endpoint : DBGUARD_NEW(e->class);
    s->bin = any(DBGUARD_BINS);
    s->address = any(3) ? any(ADDRESSES) : DBGUARD_NONE;
    s->session = s->address != DBGUARD_NONE && any(2) ? any(ADDRESSES)
                                                      : DBGUARD_NONE;
    if (s->address != DBGUARD_NONE)
        s->visitor.address = clients[s->address].key;
    if (s->session != DBGUARD_NONE)
        s->visitor.session = clients[s->session].key;
    s->first = any(2);
    s->fresh = any(2);
    s->parked = any(2);
    s->excess = any(2);
    s->lane = any(DBGUARD_EARLY + 1);
    s->tag = any(UINT32_MAX);
    s->link.child = any(UINT32_MAX);
    s->link.next = any(shared->nslots);
    s->link.prev = any(UINT32_MAX);
}

static void scramble_tables(dbguard_shared_t *shared)
{
    dbguard_client_t *clients = dbguard_clients(shared);
    uint32_t i;

    for (i = 0; i < DBGUARD_ENDPOINTS; i += 1 + any(3)) {
        dbguard_endpoint_t *e = &shared->endpoints[i];

        e->head = any(UINT32_MAX);
        e->chain = any(DBGUARD_ENDPOINTS);
        e->here = any(9);
        e->held = any(9);
        e->waiting = any(9);
        e->fresh = any(9);
        e->granted = any(99);
        e->bin = any(DBGUARD_BINS);
        e->ready = any(DBGUARD_BINS);
        e->first = any(UINT32_MAX);
        e->last = any(shared->nslots);
        e->waiters = any(UINT32_MAX);
        e->backlog = any(999);
    }
    for (i = 0; i < 2 * ADDRESSES; i++) {
        clients[i].head = any(UINT32_MAX);
        clients[i].chain = any(shared->nclients);
        clients[i].here = any(9);
        clients[i].held = any(9);
        clients[i].waiting = any(9);
        clients[i].firsts = any(9);
        clients[i].parked = any(UINT32_MAX);
    }
    for (i = 0; i < DBGUARD_BINS; i++) {
        shared->ready[any(DBGUARD_CLASSES)][i] = any(UINT32_MAX);
        shared->need[i] = any(99);
        shared->bin_held[i] = any(99);
    }
    shared->ready_bins[any(DBGUARD_CLASSES)] = any(UINT32_MAX);
    shared->ready_classes = any(UINT32_MAX);
    shared->heaviest = any(UINT32_MAX);
    shared->parked_head = any(UINT32_MAX);
    shared->parked_tail = any(shared->nslots);
    shared->shadows = any(9);
    shared->class_held[any(DBGUARD_CLASSES)] = any(UINT32_MAX);
    shared->class_min[any(DBGUARD_CLASSES)] = any(9);
    shared->class_max[any(DBGUARD_CLASSES)] = any(9);
    shared->client_max = any(9);
    shared->endpoints_hand = any(UINT32_MAX);
    shared->clients_hand = any(UINT32_MAX);
}

/* Any states in any slots, lists, heaps and sums that are garbage. */
static void scramble(dbguard_shared_t *shared, uint32_t *held,
                     uint32_t *waiting)
{
    uint32_t i;

    *held = *waiting = 0;
    scramble_tables(shared);
    for (i = 0; i < shared->nslots; i++) {
        scramble_slot(shared, i);
        *held += shared->slots[i].state == DBGUARD_HELD;
        *waiting += shared->slots[i].state == DBGUARD_WAITING;
    }
    shared->settle_head = any(UINT32_MAX);
    shared->settle_tail = any(shared->nslots);
    shared->settling = any(UINT32_MAX);
    shared->free_head = any(UINT32_MAX);
    shared->held_head = any(shared->nslots);
    shared->held_tail = any(UINT32_MAX);
    shared->follow = any(UINT32_MAX);
    shared->prefix.held = any(UINT32_MAX);
    shared->prefix.waiting = any(UINT32_MAX);
    shared->serial = any(3);
}

/* Endpoints and clients that slots can speak of. */
static void populate(void)
{
    char name[16];
    int i;

    for (i = 0; i < ENDPOINTS; i++) {
        snprintf(name, sizeof(name), "GET /%d", i);
        teach(name, (uint32_t)i % 3, 1000 << i);
    }
    for (i = 0; i < ADDRESSES; i++)
        dbguard_client_arrive(board.shared, 100 + (uint64_t)i, DBGUARD_NONE,
                              now);
}

START_TEST(rebuild_from_anything)
{
    uint32_t held, waiting, pid;
    int i, runs = scaled(600);

    any_from((uint32_t)_i);
    populate();
    for (i = 0; i < runs; i++) {
        scramble(board.shared, &held, &waiting);
        dbguard_board_rebuild(board.shared);
        board_expect(held, waiting);
        dbguard_board_rebuild(board.shared);
        board_expect(held, waiting);

        board.shared->limits.budget = SLOTS;
        for (pid = 0; pid < 7; pid++)
            reap((int32_t)pid);
        board_exhaust();
    }
}
END_TEST

/* Serials go on above the highest there is: a ticket from before the rebuild
 * can never fit an occupancy after it. */
START_TEST(rebuild_finds_the_serial)
{
    dbguard_ticket_t old = enter_to(DBGUARD_ADMITTED);

    board.shared->serial = 0;
    dbguard_board_rebuild(board.shared);
    ck_assert_uint_eq(board.shared->serial, old.serial);
    ck_assert_uint_gt(enter_to(DBGUARD_ADMITTED).serial, old.serial);
    leave(old);
    ck_assert_uint_gt(enter_to(DBGUARD_ADMITTED).serial, old.serial + 1);
}
END_TEST

/* What waits is in order of arrival again, wherever it sits. */
START_TEST(rebuild_keeps_the_order)
{
    dbguard_ticket_t first = enter_to(DBGUARD_ADMITTED), t[12];
    int i;

    configure(1, 12, 0);
    for (i = 0; i < 12; i++)
        t[i] = enter_to(DBGUARD_WAIT);
    for (i = 0; i < 12; i += 2) /* so that later ones sit before earlier ones */
        leave(t[i]);
    for (i = 0; i < 12; i += 2)
        t[i] = enter_to(DBGUARD_WAIT);
    dbguard_board_rebuild(board.shared);
    board_expect(1, 12);

    leave(first);
    for (i = 1; i < 12; i += 2)
        ck_assert_int_ge(leave(t[i]), 0);
    for (i = 0; i < 12; i += 2)
        ck_assert_int_ge(leave(t[i]), 0);
    ck_assert_uint_eq(counters()->aborted, 6);
    ck_assert_uint_eq(counters()->admitted, 13);
    board_expect(0, 0);
}
END_TEST

Suite *board_suite(void)
{
    Suite *s = suite_create("board");
    TCase *tc = tcase_create("making");

    tcase_add_checked_fixture(tc, setup, board_close);
    tcase_add_test(tc, create_refuses);
    tcase_add_test(tc, size_grows_by_the_slot);
    tcase_add_test(tc, a_new_board);
    tcase_add_test(tc, the_prefix_stays);
    tcase_add_test(tc, kinds);
    tcase_add_test(tc, kind_reads_no_more_than_there_is);
    tcase_add_test(tc, reasons_have_names);
    suite_add_tcase(s, tc);

    tc = tcase_create("lock and repair");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup_shared, board_close);
    tcase_add_test(tc, locking_twice);
    tcase_add_test(tc, every_section_moves_seq_by_two);
    tcase_add_loop_test(tc, a_failed_check_repairs, 0, 16);
    tcase_add_loop_test(tc, what_settles_is_checked, 0, 5);
    tcase_add_loop_test(tc, rebuild_from_anything, 1, 4);
    tcase_add_test(tc, rebuild_finds_the_serial);
    tcase_add_test(tc, rebuild_keeps_the_order);
    suite_add_tcase(s, tc);
    return s;
}
