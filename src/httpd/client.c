/* Whose request it is: its address, and the session that a cookie names. What
 * is kept in shared memory is a keyed hash: the key is made at a cold start and
 * known to nobody else.
 *
 * Invariants
 *   - Nothing is allocated for a request, and the header is read once, from
 *     the left to the right: names that are none of ours are passed over by
 *     their first byte and length.
 *   - Whatever the header says, the worst is a session of its own, and that is
 *     part of its address. */

#include "apr_lib.h"
#include "apr_siphash.h"
#include "apr_strings.h"

#include "glue.h"

#define OWN_MAX 16      /* names of DBGuardClient session= */
#define NAME_MAX_LENGTH 64
#define KNOWN_MAX 64    /* bits of a mask */
#define HASHED_MAX 1024 /* bytes of a cookie that count: some keep all of a
                           session in it */

typedef enum kind_t {
    EXACT,
    PREFIX,    /* begins so */
    PREFIX_HEX /* begins so, then hex digits only */
} kind_t;

typedef struct cookie_t {
    const char *name;
    kind_t kind;
} cookie_t;

/* Session cookies of what is widely used. */
static const cookie_t common[] = {
    {"PHPSESSID", EXACT},          /* PHP; Symfony, Magento 2, WooCommerce */
    {"JSESSIONID", EXACT},         /* Java servlets */
    {"ASP.NET_SessionId", EXACT},
    {".AspNetCore.Session", EXACT},
    {"connect.sid", EXACT},        /* Express */
    {"sessionid", EXACT},          /* Django */
    {"_session_id", EXACT},        /* Rails */
    {"rack.session", EXACT},       /* Sinatra */
    {"laravel_session", EXACT},
    {"ci_session", EXACT},         /* CodeIgniter */
    {"CAKEPHP", EXACT},
    {"CGISESSID", EXACT},          /* Perl's CGI::Session */
    {"CFTOKEN", EXACT},            /* ColdFusion */
    {"frontend", EXACT},           /* Magento 1 */
    {"OCSESSID", EXACT},           /* OpenCart */
    {"oc_sessionPassphrase", EXACT}, /* ownCloud, Nextcloud */
    {"fe_typo_user", EXACT},       /* TYPO3 */
    {"be_typo_user", EXACT},
    {"roundcube_sessid", EXACT},
    {"osCsid", EXACT},             /* osCommerce */
    {"zenid", EXACT},              /* Zen Cart */
    {"wordpress_logged_in_", PREFIX},
    {"wp_woocommerce_session_", PREFIX},
    {"MoodleSession", PREFIX},
    {"PrestaShop-", PREFIX},
    {"ASPSESSIONID", PREFIX},
    {"SESS", PREFIX_HEX},          /* Drupal */
    {"SSESS", PREFIX_HEX},
#define VAGUE 3 /* names that something else may have, such as a banner that
                   counts visits: with a long value only */
    {"session", EXACT},            /* Flask */
    {"sid", EXACT},
    {"session-", PREFIX}           /* Shopware */
};

#define COMMON (sizeof(common) / sizeof(common[0]))
#define LONG_VALUE 16 /* bytes; one that is the same for many clients would
                         leave them two waiting places together */

/* Vague, too, and after these: Rails, MediaWiki. */
#define SUFFIX "_session"
#define SUFFIX_RANK KNOWN_MAX
/* A name of 32 hex digits: Joomla. */
#define HEX_LENGTH 32
#define HEX_RANK (KNOWN_MAX + 1)
#define NO_RANK (KNOWN_MAX + 2)

/* Made by the parent, and never changed in a child. The place of a name in
 * `names` is its rank: the lowest one in a header counts. */
static struct {
    cookie_t names[KNOWN_MAX];
    apr_size_t lengths[KNOWN_MAX];
    unsigned n;
    unsigned vague;                       /* from this rank on */
    uint64_t first[256];                  /* names that begin with this byte */
    uint64_t length[NAME_MAX_LENGTH + 2]; /* that may have this length; the last
                                             one: or a greater one */
    unsigned prefix;                      /* bits of an IPv6 address */
} known;

/* --- the configuration --------------------------------------------------- */

/* A token, as HTTP calls it. */
static int is_cookie_name(const char *name, apr_size_t length)
{
    apr_size_t i;

    if (length == 0 || length > NAME_MAX_LENGTH)
        return 0;
    for (i = 0; i < length; i++)
        if (!apr_isalnum(name[i])
            && (name[i] == '\0' || strchr("!#$%&'*+-.^_`|~", name[i]) == NULL))
            return 0;
    return strncmp(name, "${", 2) != 0;
}

int dbguard_client_cookies(const char *names)
{
    int n = 0;

    for (;;) {
        apr_size_t length = strcspn(names, ",");

        if (!is_cookie_name(names, length) || ++n > OWN_MAX
            || (length == 1 && *names == '*'))
            return 0;
        if (names[length] == '\0')
            return 1;
        names += length + 1;
    }
}

static void add(const char *name, kind_t kind)
{
    unsigned at = known.n++;
    uint64_t bit = UINT64_C(1) << at;
    apr_size_t length = strlen(name), i;

    known.names[at].name = name;
    known.names[at].kind = kind;
    known.lengths[at] = length;
    known.first[(unsigned char)*name] |= bit;
    known.length[length] |= bit;
    for (i = length + 1; kind != EXACT && i < NAME_MAX_LENGTH + 2; i++)
        known.length[i] |= bit;
}

void dbguard_client_configure(apr_pool_t *p, const dbguard_server_t *server)
{
    char *names = apr_pstrdup(p, server->set[DBGUARD_SET_CLIENT_SESSION].text);
    apr_size_t i;
    char *name, *last;

    memset(&known, 0, sizeof(known));
    known.prefix = (unsigned)server->set[DBGUARD_SET_CLIENT_PREFIX].number;
    if (!dbguard_is_set(server, DBGUARD_SET_CLIENT_SESSION))
        *names = '\0';
    for (name = apr_strtok(names, ",", &last); name != NULL;
         name = apr_strtok(NULL, ",", &last)) {
        apr_size_t length = strlen(name);

        if (name[length - 1] != '*')
            add(name, EXACT);
        else {
            name[length - 1] = '\0';
            add(name, PREFIX);
        }
    }
    for (i = 0; i < COMMON; i++)
        add(common[i].name, common[i].kind);
    known.vague = known.n - VAGUE;
}

/* --- the session --------------------------------------------------------- */

static int is_hex(const char *text, apr_size_t length)
{
    while (length > 0 && apr_isxdigit(*text)) {
        text++;
        length--;
    }
    return length == 0;
}

static int matches(unsigned at, const char *name, apr_size_t length)
{
    apr_size_t own = known.lengths[at];

    return memcmp(name, known.names[at].name, own) == 0
           && (known.names[at].kind != PREFIX_HEX
               || is_hex(name + own, length - own));
}

/* What stands before a name that only a safe connection may set. */
static void skip_security(const char **name, apr_size_t *length)
{
    apr_size_t skip = **name != '_'                          ? 0
                      : strncmp(*name, "__Host-", 7) == 0   ? 7
                      : strncmp(*name, "__Secure-", 9) == 0 ? 9
                                                            : 0;

    if (skip < *length) {
        *name += skip;
        *length -= skip;
    }
}

static unsigned rank_of(const char *name, apr_size_t length)
{
    uint64_t these;

    skip_security(&name, &length);
    these = known.first[(unsigned char)*name]
            & known.length[length <= NAME_MAX_LENGTH ? length
                                                     : NAME_MAX_LENGTH + 1];
    for (; these != 0; these &= these - 1)
        if (matches((unsigned)__builtin_ctzll(these), name, length))
            return (unsigned)__builtin_ctzll(these);
    if (length > strlen(SUFFIX)
        && memcmp(name + length - strlen(SUFFIX), SUFFIX, strlen(SUFFIX)) == 0)
        return SUFFIX_RANK;
    return length == HEX_LENGTH && is_hex(name, length) ? HEX_RANK : NO_RANK;
}

static apr_size_t trimmed(const char *text, apr_size_t length)
{
    while (length > 0 && (text[length - 1] == ' ' || text[length - 1] == '\t'))
        length--;
    return length;
}

/* Neither name= nor name="", and as long as it takes to be believed. */
static int has_value(const char *value, apr_size_t length, unsigned rank)
{
    apr_size_t blank = strspn(value, " \t");

    return blank < length
           && (rank < known.vague || length - blank >= LONG_VALUE)
           && !(length - blank == 2 && strncmp(value + blank, "\"\"", 2) == 0);
}

/* The cookie of the least rank, name and value as they were sent; NULL when
 * there is none that has a value. Several headers come as one, with a comma
 * between them (HTTP/1.1) or a semicolon (HTTP/2). */
static const char *find_session(const char *header, apr_size_t *length)
{
    const char *best = NULL;
    unsigned least = NO_RANK;

    while (least > 0) {
        const char *name = header + strspn(header, " \t;,");
        apr_size_t all = strcspn(name, ";,");
        const char *equals = memchr(name, '=', all);
        apr_size_t whole = trimmed(name, all);
        unsigned rank = NO_RANK;

        if (*name == '\0')
            break;
        if (equals != NULL && equals > name)
            rank = rank_of(name, trimmed(name, equals - name));
        if (rank < least
            && has_value(equals + 1, name + whole - (equals + 1), rank)) {
            least = rank;
            best = name;
            *length = whole;
        }
        header = name + all;
    }
    return best;
}

/* --- hashes -------------------------------------------------------------- */

static uint64_t hash(const dbguard_board_t *board, const void *what,
                     apr_size_t length)
{
    uint64_t h = apr_siphash24(what, length, board->shared->secret);

    return h != 0 ? h : 1;
}

static uint64_t session_of(const dbguard_board_t *board,
                           const request_rec *root)
{
    const char *header = apr_table_get(root->headers_in, "Cookie");
    apr_size_t length = 0;
    const char *cookie = header != NULL ? find_session(header, &length) : NULL;

    if (cookie == NULL)
        return 0;
    return hash(board, cookie, length < HASHED_MAX ? length : HASHED_MAX);
}

static uint64_t prefix_of(const dbguard_board_t *board,
                          const unsigned char *ip)
{
    unsigned char kept[16] = {0};
    unsigned whole = known.prefix / 8, rest = known.prefix % 8;

    memcpy(kept, ip, whole);
    if (rest > 0)
        kept[whole] = ip[whole] & (unsigned char)(0xff << (8 - rest));
    return hash(board, kept, sizeof(kept));
}

/* An IPv4 address, also in IPv6 clothes, counts whole. 0: it has none, as over
 * a socket of the file system, or inside the server. */
static uint64_t address_of(const dbguard_board_t *board,
                           const apr_sockaddr_t *sa)
{
    const unsigned char *ip = sa != NULL ? sa->ipaddr_ptr : NULL;

    if (ip == NULL)
        return 0;
#if APR_HAVE_IPV6
    if (sa->family == APR_INET6) {
        if (IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)sa->ipaddr_ptr))
            return hash(board, ip + 12, 4);
        return prefix_of(board, ip);
    }
#endif
    return sa->family == APR_INET ? hash(board, ip, 4) : 0;
}

/* After mod_remoteip, if there is one. */
void dbguard_client_identify(const request_rec *root,
                             const dbguard_board_t *board,
                             dbguard_visitor_t *visitor)
{
    visitor->address = address_of(board, root->useragent_addr);
    visitor->session = session_of(board, root);
    /* Nothing better is known of it. */
    if (visitor->address == 0) {
        visitor->address = visitor->session;
        visitor->session = 0;
    }
    /* A session is one of its address: a cookie that is the same for all makes
     * nobody share two waiting places with strangers. */
    else if (visitor->session != 0
             && visitor->session != visitor->address)
        visitor->session ^= visitor->address;
    apr_cpystrn(visitor->client,
                root->useragent_ip != NULL ? root->useragent_ip : "-",
                sizeof(visitor->client));
}
