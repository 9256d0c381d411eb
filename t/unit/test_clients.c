/* The table of clients: found again by their keys, evicted when they are not
 * here and have been unseen longest of some, never while a slot names them. */

#include <stdlib.h>

#include "unit.h"

#define SLOTS 64

static void setup(void)
{
    board_open(SLOTS, 4, SLOTS);
}

static uint32_t arrive(uint64_t key)
{
    return dbguard_client_arrive(board.shared, key, DBGUARD_NONE, now);
}

static dbguard_client_t *client(uint32_t at)
{
    return &dbguard_clients(board.shared)[at];
}

START_TEST(found_again)
{
    uint32_t at[200];
    uint64_t i;

    ck_assert_uint_eq(arrive(0), DBGUARD_NONE);
    for (i = 0; i < 200; i++) {
        now += 10;
        /* many of them in one chain */
        at[i] = arrive(1 + i * (i % 2 ? 1 : board.shared->nclients));
        ck_assert_uint_lt(at[i], board.shared->nclients);
        ck_assert_int_eq(client(at[i])->seen, now);
    }
    for (i = 0; i < 200; i++)
        ck_assert_uint_eq(
            arrive(1 + i * (i % 2 ? 1 : board.shared->nclients)), at[i]);
    ck_assert_pstr_eq(board_disorder(board.shared), NULL);
}
END_TEST

START_TEST(as_many_as_the_slots_need)
{
    ck_assert_uint_eq(dbguard_clients_number(1), 8192);
    ck_assert_uint_eq(dbguard_clients_number(2048), 8192);
    ck_assert_uint_eq(dbguard_clients_number(2049), 16384);
    ck_assert_uint_eq(dbguard_clients_number(8192), 32768);
    ck_assert_uint_ge(dbguard_clients_number(DBGUARD_SLOTS_MAX),
                      4 * DBGUARD_SLOTS_MAX);
    ck_assert_uint_gt(dbguard_clients_number(UINT32_MAX), 0);
}
END_TEST

/* One that is told to come back is remembered until the table is full, and
 * nothing of one passes to the other. */
START_TEST(a_new_one_begins_with_nothing)
{
    uint32_t n = board.shared->nclients, at, i;

    at = arrive(1);
    client(at)->place = 7;
    client(at)->demand.load[0] = 7;
    client(at)->turn[1] = 7;
    for (i = 2; i <= n; i++)
        arrive(i);
    ck_assert_uint_eq(arrive(1), at);
    ck_assert_int_eq(client(at)->place, 7);
    now += 10;
    for (i = n + 1; i <= 3 * n; i++) {
        uint32_t other = arrive(i);

        if (other == at && client(other)->key != 1)
            break;
    }
    ck_assert_uint_eq(client(at)->key, i);
    ck_assert_int_eq(client(at)->place, 0);
    ck_assert_int_eq(client(at)->demand.load[0], 0);
    ck_assert_uint_eq(client(at)->turn[1], 0);
    ck_assert_pstr_eq(board_disorder(board.shared), NULL);
}
END_TEST

/* Of those it looks at, the one that has been unseen longest. */
START_TEST(the_longest_unseen_goes)
{
    uint32_t n = board.shared->nclients, at, i, old;

    for (i = 1; i <= n; i++)
        arrive(i);
    now += 10;
    for (i = 1; i <= n; i++)
        if (client(arrive(i))->key != i)
            ck_abort_msg("one was evicted while there was room");
    for (old = 0; old < 8; old++) {
        uint32_t hand = board.shared->clients_hand;
        uint32_t oldest = (hand + old) & (n - 1);

        client(oldest)->seen = 1;
        at = arrive(n + 1 + old);
        ck_assert_uint_eq(at, oldest);
    }
}
END_TEST

START_TEST(the_address_is_kept_for_its_session)
{
    uint32_t n = board.shared->nclients, i;

    for (i = 1; i <= n; i++)
        arrive(i);
    for (i = 0; i < 100; i++) {
        uint32_t keep = board.shared->clients_hand;
        uint64_t key = client(keep)->key;

        client(keep)->seen = 0; /* it would be the first to go */
        ck_assert_uint_ne(dbguard_client_arrive(board.shared, 2 * n + i, keep,
                                                now),
                          keep);
        ck_assert_uint_eq(client(keep)->key, key);
    }
    ck_assert_pstr_eq(board_disorder(board.shared), NULL);
}
END_TEST

/* Who holds, waits, or was sent away and has not looked is there, whoever else
 * comes. */
START_TEST(who_is_here_stays)
{
    dbguard_ticket_t t[40];
    uint64_t i;

    configure(4, 36, 0);
    for (i = 0; i < 40; i++) {
        come_as("GET /", 1 + i, 100 + i);
        t[i] = enter().ticket;
    }
    for (i = 10; i < 20; i++)
        board.shared->slots[t[i].slot].deadline = now;
    configure(15, 36, 0); /* expels those that are late */
    for (i = 0; i < 5 * (uint64_t)board.shared->nclients; i++) {
        now++;
        arrive(1000 + i);
    }
    for (i = 0; i < 40; i++) {
        const dbguard_slot_t *s = &board.shared->slots[t[i].slot];

        ck_assert_uint_eq(arrive(1 + i), s->address);
        ck_assert_uint_eq(arrive(100 + i), s->session);
    }
    ck_assert_pstr_eq(board_disorder(board.shared), NULL);
    for (i = 0; i < 40; i++)
        leave(t[i]);
    for (i = 0; i < board.shared->nclients; i++)
        ck_assert_uint_eq(client((uint32_t)i)->here, 0);
}
END_TEST

Suite *clients_suite(void)
{
    Suite *s = suite_create("clients");
    TCase *tc = tcase_create("clients");

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, board_close);
    tcase_add_test(tc, found_again);
    tcase_add_test(tc, as_many_as_the_slots_need);
    tcase_add_test(tc, a_new_one_begins_with_nothing);
    tcase_add_test(tc, the_longest_unseen_goes);
    tcase_add_test(tc, the_address_is_kept_for_its_session);
    tcase_add_test(tc, who_is_here_stays);
    suite_add_tcase(s, tc);
    return s;
}
