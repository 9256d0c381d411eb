/* Endpoints: what is folded, what is left, and that no input whatever makes
 * one that is too long, not printable or not ended. */

#include <stdlib.h>
#include <string.h>

#include "endpoint.h"
#include "unit.h"

#define UUID "6f1c2b3a-90ab-4cde-8f01-23456789abcd"

static const struct {
    const char *method, *path, *endpoint;
} folds[] = {
    {"GET", "/", "GET /"},
    {"GET", "/index.php", "GET /index.php"},
    {"POST", "/orders/123/reset", "POST /orders/*/reset"},
    {"GET", "/orders/123", "GET /orders/*"},
    {"GET", "/orders/123/", "GET /orders/*/"},
    {"GET", "/1/2/3", "GET /*/*/*"},
    {"GET", "/0", "GET /*"},
    {"GET", "/page2", "GET /page2"},
    {"GET", "/2fa", "GET /2fa"},
    {"GET", "/v1/users/42", "GET /v1/users/*"},
    {"GET", "/2024/05/31/title", "GET /*/*/*/title"},
    {"GET", "/-1", "GET /-1"},
    {"GET", "/1.5", "GET /1.5"},
    /* the query is no part of it */
    {"GET", "/a?b=/c/1", "GET /a"},
    {"GET", "/a/?b", "GET /a/"},
    {"GET", "/?", "GET /"},
    {"GET", "/??", "GET /"},
    {"GET", "/1?", "GET /*"},
    /* empty segments */
    {"GET", "//", "GET /"},
    {"GET", "////", "GET /"},
    {"GET", "//a", "GET /a"},
    {"GET", "/a//b///1", "GET /a/b/*"},
    {"GET", "/a//", "GET /a/"},
    {"GET", "//?", "GET /"},
    /* not a path */
    {"OPTIONS", NULL, "OPTIONS *"},
    {"OPTIONS", "*", "OPTIONS *"},
    {"GET", "", "GET *"},
    {"GET", "?", "GET *"},
    {"GET", "a/b", "GET *"},
    {"CONNECT", "example.com:443", "CONNECT *"},
    {"", "/a", " /a"},
    {"", NULL, " *"},
    /* UUIDs */
    {"GET", "/o/" UUID, "GET /o/*"},
    {"GET", "/o/6F1C2B3A-90AB-4CDE-8F01-23456789ABCD/x", "GET /o/*/x"},
    {"GET", "/abcdefab-cdef-abcd-efab-cdefabcdefab", "GET /*"},
    {"GET", "/" UUID "?q", "GET /*"},
    /* hexadecimal: eight with a digit, or sixteen */
    {"GET", "/deadbee1", "GET /*"},
    {"GET", "/DEADBEE1", "GET /*"},
    {"GET", "/deadbeef", "GET /deadbeef"},
    {"GET", "/dead1", "GET /dead1"},
    {"GET", "/abcde12", "GET /abcde12"},
    {"GET", "/abcdefabcdefabc", "GET /abcdefabcdefabc"},
    {"GET", "/abcdefabcdefabcd", "GET /*"},
    {"GET", "/d41d8cd98f00b204e9800998ecf8427e", "GET /*"},
    {"GET", "/deadbee1.html", "GET /deadbee1.html"},
    /* tokens: twenty with a letter and two digits */
    {"GET", "/eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9", "GET /*"},
    {"GET", "/abcdefghijklmnopqr12", "GET /*"},
    {"GET", "/abcdefghijklmnopq12", "GET /abcdefghijklmnopq12"},
    {"GET", "/abcdefghijklmnopqrs1", "GET /abcdefghijklmnopqrs1"},
    {"GET", "/abcdefghijklmnopqrstuvwxyz", "GET /abcdefghijklmnopqrstuvwxyz"},
    {"GET", "/a-b_c.d~e=f-12345678", "GET /*"},
    {"GET", "/a%2Fb%2Fc%2Fd%2Fe%2Fzz", "GET /*"},
    {"GET", "/abcdefghijklmnopqr12!", "GET /abcdefghijklmnopqr12!"},
    {"GET", "/1234567890-1234567890", "GET /1234567890-1234567890"},
    /* what is not printable ASCII */
    {"GET", "/caf\xc3\xa9", "GET /caf??"},
    {"GET", "/a\nb", "GET /a?b"},
    {"GET", "/a\x01\x7f\x80\xff", "GET /a????"},
    {"GET", "/a\r\nSet-Cookie: b", "GET /a??Set-Cookie: b"},
    {"G\tT", "/", "G?T /"},
    {"GET", "/<script>alert(1)</script>", "GET /<script>alert(1)</script>"},
};

START_TEST(folding)
{
    char buf[DBGUARD_ENDPOINT_MAX];
    size_t n = dbguard_endpoint_fold(folds[_i].method, folds[_i].path, buf,
                                     sizeof(buf));

    ck_assert_str_eq(buf, folds[_i].endpoint);
    ck_assert_uint_eq(n, strlen(buf));
}
END_TEST

static const struct {
    size_t size;
    const char *method, *path, *endpoint;
} cuts[] = {
    /* 16 bytes: the smallest buffer there may be */
    {16, "GET", "/", "GET /"},
    {16, "GET", NULL, "GET *"},
    {16, "GET", "/orders", "GET /orders"},
    {16, "GET", "/orders/1/reset", "GET /orders/..."},
    {16, "GET", "/reservations", "GET /..."},
    {16, "GET", "/a/b/c/d/e/f/g", "GET /a/b/c/..."},
    {16, "PROPPATCHES", "/a", "PROPPATC /a"},
    {16, "PROPPATCHES", "/ab", "PROPPATC /..."},
    {16, "PROPPATCHES", NULL, "PROPPATC *"},
    {32, "GET", "/one/two/three/four/five/six", "GET /one/two/three/four/..."},
};

START_TEST(cutting)
{
    char buf[DBGUARD_ENDPOINT_MAX];

    dbguard_endpoint_fold(cuts[_i].method, cuts[_i].path, buf, cuts[_i].size);
    ck_assert_str_eq(buf, cuts[_i].endpoint);
}
END_TEST

/* A path of one segment after another, or of a single one, of any length. */
START_TEST(long_paths_are_cut_at_a_segment)
{
    char path[400], buf[DBGUARD_ENDPOINT_MAX];
    size_t len, n;

    for (len = 1; len < sizeof(path); len++) {
        memset(path, 'x', len);
        path[0] = '/';
        path[len] = '\0';
        dbguard_endpoint_fold("GET", path, buf, sizeof(buf));
        if (strcmp(buf + 4, path) != 0 && strcmp(buf, "GET /...") != 0)
            ck_abort_msg("half a segment: %s", buf);
        for (n = 0; n < len; n += 2)
            path[n] = '/';
        n = dbguard_endpoint_fold("GET", path, buf, sizeof(buf));
        if (strncmp(buf + 4, path, n - 8) != 0
            || (strcmp(buf + 4, path) != 0
                && strcmp(buf + n - 4, "/...") != 0))
            ck_abort_msg("not cut at a segment: %s", buf);
    }
}
END_TEST

START_TEST(a_very_long_everything)
{
    size_t len = 1000000;
    char *text = malloc(len + 1);
    char buf[DBGUARD_ENDPOINT_MAX];

    ck_assert_ptr_nonnull(text);
    memset(text, '7', len);
    text[0] = '/';
    text[len] = '\0';
    dbguard_endpoint_fold("GET", text, buf, sizeof(buf));
    ck_assert_str_eq(buf, "GET /*");
    ck_assert_uint_lt(dbguard_endpoint_fold(text, text, buf, sizeof(buf)),
                      sizeof(buf));
    memset(text, '/', len);
    dbguard_endpoint_fold("GET", text, buf, sizeof(buf));
    ck_assert_str_eq(buf, "GET /");
    free(text);
}
END_TEST

/* --- any input ------------------------------------------------------------ */

/* Text in memory that ends where the text ends. */
static char *any_text(uint32_t longest)
{
    static const char likely[] = "////??%.0123456789abcdefABCDEF-_~=xyz*\x80";
    uint32_t len = any(longest + 1);
    char *text = malloc(len + 1);
    uint32_t i;

    ck_assert_ptr_nonnull(text);
    for (i = 0; i < len; i++)
        text[i] = (char)(any(8) ? likely[any(sizeof(likely) - 1)]
                                : (char)(1 + any(255)));
    if (len > 0 && any(8))
        text[0] = '/';
    text[len] = '\0';
    return text;
}

static const char *endpoint_fault(const char *buf, size_t n, size_t size)
{
    size_t i;

    if (n >= size || strlen(buf) != n)
        return "its length";
    for (i = 0; i < n; i++)
        if (buf[i] < ' ' || buf[i] > '~')
            return "not printable";
    if (strstr(strchr(buf, ' '), "//") != NULL)
        return "an empty segment";
    return NULL;
}

START_TEST(any_input)
{
    int i, runs = scaled(60000);

    any_from((uint32_t)_i);
    for (i = 0; i < runs; i++) {
        size_t size = 16 + any(120);
        char *method = any_text(any(4) ? 8 : 200);
        char *path = any_text(any(4) ? 40 : 300);
        char *buf = malloc(size);
        const char *fault;

        method[strcspn(method, " /")] = '\0';
        fault = endpoint_fault(
            buf, dbguard_endpoint_fold(method, path, buf, size), size);
        if (fault != NULL)
            ck_abort_msg("%s, seed %d, input %d", fault, _i, i);
        free(method);
        free(path);
        free(buf);
    }
}
END_TEST

Suite *endpoint_suite(void)
{
    Suite *s = suite_create("endpoint");
    TCase *tc = tcase_create("endpoint");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, folding, 0, LENGTH(folds));
    tcase_add_loop_test(tc, cutting, 0, LENGTH(cuts));
    tcase_add_test(tc, long_paths_are_cut_at_a_segment);
    tcase_add_test(tc, a_very_long_everything);
    tcase_add_loop_test(tc, any_input, 1, 4);
    suite_add_tcase(s, tc);
    return s;
}
