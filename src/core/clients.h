#ifndef DBGUARD_CLIENTS_H
#define DBGUARD_CLIENTS_H

/* Clients: the addresses and sessions that requests come from, known by keyed
 * hashes that the caller makes. A request has an address, and perhaps a
 * session; a made-up session has that address all the same.
 *
 * Invariants
 *   - The table is larger than all that the slots can refer to, so that there
 *     is always an entry that no slot names; of some of those the
 *     one that has been unseen longest is evicted.
 *
 * Everything is called under the lock of the board. Times are microseconds. */

#include <stdint.h>

#include "reserve.h"

struct dbguard_shared_t;

typedef struct dbguard_client_t {
    uint64_t key;   /* 0: unused. Stored last */
    uint32_t head;  /* of the hash bucket that has this entry's number */
    uint32_t chain; /* the next in the same bucket */
    int64_t seen;   /* its last request */
    dbguard_demand_t demand; /* what it asks for (reserve.h) */
    int64_t place;  /* when it was last told to come, exactly; 0: never */
    int64_t second; /* the same in the line of those that count in seconds, */
    int64_t told;   /* and as it was said to it, in whole ones */
    uint32_t promised; /* and to which endpoint */
    uint64_t turn[2]; /* of an address: the last tags given to it in this */
    uint32_t flow;    /* flow, to a further request and to a first one */

    /* Derived from the slots. */
    uint32_t here; /* slots that name it, whatever their state */
    uint32_t held, waiting;
    uint32_t parked; /* of those that wait */
    uint32_t firsts; /* of those, the ones whose session had nothing else */
} dbguard_client_t;

/* Entries of a board with so many slots: a power of two. */
uint32_t dbguard_clients_number(uint32_t nslots);
/* The table. */
dbguard_client_t *dbguard_clients(struct dbguard_shared_t *shared);

/* The client with this key has come: its entry, made if need be, at the expense
 * of any but `keep`. Key 0 is nobody: DBGUARD_NONE. */
uint32_t dbguard_client_arrive(struct dbguard_shared_t *shared, uint64_t key,
                               uint32_t keep, int64_t now);

/* Make the table; or derive anew what is derived in it. */
void dbguard_clients_create(struct dbguard_shared_t *shared);
void dbguard_clients_rebuild(struct dbguard_shared_t *shared);

#endif
