/* The table of clients: see clients.h. Hashing with chains; the heads of the
 * chains lie in the entries. */

#include <string.h>

#include "board.h"

#define LEAST 8192 /* entries: a crowd of clients that were told to come back */
#define SAMPLED 8  /* candidates for an eviction */

uint32_t dbguard_clients_number(uint32_t nslots)
{
    uint32_t n = LEAST;

    /* Two a slot can be in use. */
    while (n < 4 * (uint64_t)nslots && nslots <= DBGUARD_SLOTS_MAX)
        n *= 2;
    return n;
}

dbguard_client_t *dbguard_clients(dbguard_shared_t *shared)
{
    return (dbguard_client_t *)&shared->slots[shared->nslots];
}

static dbguard_client_t *bucket_of(dbguard_shared_t *shared, uint64_t key)
{
    return &dbguard_clients(shared)[key & (shared->nclients - 1)];
}

static void chain_in(dbguard_shared_t *shared, uint32_t client)
{
    dbguard_client_t *c = &dbguard_clients(shared)[client];
    dbguard_client_t *bucket = bucket_of(shared, c->key);

    c->chain = bucket->head;
    bucket->head = client;
}

static void chain_out(dbguard_shared_t *shared, uint32_t client)
{
    dbguard_client_t *clients = dbguard_clients(shared);
    uint32_t *at = &bucket_of(shared, clients[client].key)->head;

    while (*at != client)
        at = &clients[*at].chain;
    *at = clients[client].chain;
}

/* Whose going is noticed least: of some that are not here, nor `keep`. */
static uint32_t candidate(dbguard_shared_t *shared, uint32_t keep)
{
    const dbguard_client_t *clients = dbguard_clients(shared);
    uint32_t oldest = DBGUARD_NONE;
    uint32_t i;

    for (i = 0; i < SAMPLED || oldest == DBGUARD_NONE; i++) {
        uint32_t at = shared->clients_hand;

        shared->clients_hand = (at + 1) & (shared->nclients - 1);
        if (clients[at].key == 0)
            return at;
        if (clients[at].here == 0 && at != keep
            && (oldest == DBGUARD_NONE
                || clients[at].seen < clients[oldest].seen))
            oldest = at;
    }
    return oldest;
}

static uint32_t make(dbguard_shared_t *shared, uint64_t key, uint32_t keep)
{
    uint32_t at = candidate(shared, keep);
    dbguard_client_t *c = &dbguard_clients(shared)[at];
    uint32_t head;

    if (c->key != 0) {
        chain_out(shared, at);
        c->key = 0;
    }
    head = c->head;
    memset(c, 0, sizeof(*c));
    c->head = head;
    atomic_thread_fence(memory_order_release);
    c->key = key;
    chain_in(shared, at);
    return at;
}

uint32_t dbguard_client_arrive(dbguard_shared_t *shared, uint64_t key,
                               uint32_t keep, int64_t now)
{
    dbguard_client_t *clients = dbguard_clients(shared);
    uint32_t at;

    if (key == 0)
        return DBGUARD_NONE;
    at = bucket_of(shared, key)->head;
    while (at != DBGUARD_NONE && clients[at].key != key)
        at = clients[at].chain;
    if (at == DBGUARD_NONE)
        at = make(shared, key, keep);
    clients[at].seen = now;
    return at;
}

void dbguard_clients_create(dbguard_shared_t *shared)
{
    dbguard_client_t *clients = dbguard_clients(shared);
    uint32_t i;

    shared->nclients = dbguard_clients_number(shared->nslots);
    for (i = 0; i < shared->nclients; i++)
        clients[i].head = clients[i].chain = DBGUARD_NONE;
}

void dbguard_clients_rebuild(dbguard_shared_t *shared)
{
    dbguard_client_t *clients = dbguard_clients(shared);
    uint32_t i;

    for (i = 0; i < shared->nclients; i++) {
        dbguard_client_t *c = &clients[i];

        c->head = c->chain = DBGUARD_NONE;
        c->turn[0] = c->turn[1] = 0;
        c->here = c->held = c->waiting = c->parked = c->firsts = 0;
    }
    for (i = 0; i < shared->nclients; i++)
        if (clients[i].key != 0)
            chain_in(shared, i);
    shared->clients_hand &= shared->nclients - 1;
}
