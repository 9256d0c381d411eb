/* Whose request it is. What is kept in shared memory is a keyed hash: the key
 * is made at a cold start and known to nobody else. */

#include "apr_siphash.h"
#include "apr_strings.h"

#include "glue.h"

#define IPV6_PREFIX 64 /* bits; what one customer has of an IPv6 network */

static uint64_t hash(const dbguard_board_t *board, const void *what,
                     apr_size_t length)
{
    uint64_t h = apr_siphash24(what, length, board->shared->secret);

    return h != 0 ? h : 1;
}

/* An IPv4 address, also in IPv6 clothes, counts whole. */
static uint64_t address_of(const dbguard_board_t *board,
                           const apr_sockaddr_t *sa)
{
    const unsigned char *ip = sa->ipaddr_ptr;

    if (sa->ipaddr_len == 16) {
        if (IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)sa->ipaddr_ptr))
            return hash(board, ip + 12, 4);
        return hash(board, ip, IPV6_PREFIX / 8);
    }
    return hash(board, ip, (apr_size_t)sa->ipaddr_len);
}

/* After mod_remoteip, if there is one. */
void dbguard_client_identify(const request_rec *root,
                             const dbguard_board_t *board,
                             dbguard_visitor_t *visitor)
{
    visitor->address = address_of(board, root->useragent_addr);
    apr_cpystrn(visitor->client, root->useragent_ip, sizeof(visitor->client));
}
