#ifndef DBGUARD_SCENE_H
#define DBGUARD_SCENE_H

/* What would happen: requests over the very core that ships, on a clock that
 * jumps from event to event. A scenario is a plain text file (README.md in this
 * directory); the same file, policy and seed give the same figures.
 *
 * The model: an accepted connection occupies one of the server's workers until
 * it is answered; more wait in the backlog of the listening socket. A request
 * asks the core for a token, waits on its semaphore, looks at the clock every
 * 250 ms and at its deadline, and holds its token as long as its own time says.
 * Clients hang up after 15 s.
 *
 * Times are microseconds from the start of the scenario. */

#include <stddef.h>
#include <stdint.h>

#include "board.h"

#define SCENE_SECOND INT64_C(1000000)
#define SCENE_STREAMS 16
#define SCENE_CHANGES 32
#define SCENE_BARS 64
#define SCENE_NAME 24 /* bytes with NUL */
#define SCENE_TEXT 160
#define SCENE_PARTS 4

typedef enum scene_policy_t {
    SCENE_GUARD, /* what ships */
    SCENE_FIFO,  /* one queue with the same places, 8 s; nothing kept free */
    SCENE_LIMIT, /* no queue */
    SCENE_PROXY, /* one queue in front of the server: any number, 8 s */
    SCENE_POLICIES
} scene_policy_t;

/* How long requests hold. */
typedef struct scene_hold_t {
    int parts;            /* of a mixture; 0: log-normal */
    double share[SCENE_PARTS]; /* 0 to 1; they add up to 1 */
    double hold[SCENE_PARTS];
    double median, sigma, most;
    double factor; /* of the external system; does not lift `most` */
} scene_hold_t;

typedef enum scene_return_t {
    SCENE_LEAVES,  /* does not come again when refused */
    SCENE_EXACT,   /* comes when DBGuard-Retry-After says */
    SCENE_SECONDS, /* when Retry-After says */
    SCENE_ANYWAY   /* after a time of its own */
} scene_return_t;

typedef struct scene_stream_t {
    char name[SCENE_NAME];
    char to[SCENE_TEXT];       /* endpoint; # is a running number */
    double rate;               /* wishes a second; 0: clients come once */
    uint32_t clients;          /* 0: each wish has a client of its own */
    uint32_t loop;             /* each client wishes on and on, so many at
                                  once; 0: no */
    int64_t think;             /* in a loop, from answer to next wish */
    int64_t from, until;
    int64_t within;            /* clients that come once do so in this time */
    scene_hold_t hold;
    uint32_t addresses;        /* 0: each client has its own */
    char address[SCENE_NAME];  /* a common name, or the stream's */
    enum { SESSION_OWN, SESSION_NONE, SESSION_NEW } session;
    int unguarded;             /* occupies a worker, needs no token */
    scene_return_t returns;
    int64_t after;             /* SCENE_ANYWAY */
    double share;              /* of the clients do so, the others leave */
    uint32_t tries;            /* so often; 0: until served */
} scene_stream_t;

typedef struct scene_change_t {
    int64_t time;
    enum { CHANGE_BUDGET, CHANGE_HOLD, CHANGE_SLOW, CHANGE_RATE } what;
    uint32_t stream;
    double number;
    scene_hold_t hold;
} scene_change_t;

typedef enum scene_figure_t {
    FIGURE_SERVED,   /* wishes fulfilled, of all */
    FIGURE_P50,      /* latency of served requests */
    FIGURE_P99,
    FIGURE_MAX,
    FIGURE_REFUSED,  /* requests, of all */
    FIGURE_LAST,     /* when the last wish was fulfilled, from the first */
    FIGURE_ATTEMPTS, /* requests a wish */
    FIGURE_KEPT,     /* promises: served of those who came when told */
    FIGURE_USED,     /* tokens: busy, of all token-seconds */
    FIGURE_IDLE,     /* tokens: free while somebody waited */
    FIGURES
} scene_figure_t;

/* "At least", or "at most", so much; or so much of what another policy does. */
typedef struct scene_bar_t {
    int line;
    scene_policy_t policy;
    uint32_t stream; /* SCENE_STREAMS: the tokens */
    scene_figure_t figure;
    int least;
    double value;
    int relative;
    scene_policy_t other;
} scene_bar_t;

typedef struct scene_t {
    char file[256];
    char title[SCENE_TEXT];
    uint32_t workers, budget;
    int64_t settle;
    int64_t time; /* nobody new comes afterwards */
    scene_stream_t streams[SCENE_STREAMS];
    uint32_t nstreams;
    scene_change_t changes[SCENE_CHANGES];
    uint32_t nchanges;
    scene_bar_t bars[SCENE_BARS];
    uint32_t nbars;
} scene_t;

typedef struct scene_figures_t {
    uint64_t wishes, fulfilled, requests, served, gave_up;
    uint64_t refused[DBGUARD_REASONS];
    uint64_t promised, kept;
    int64_t first, last;
    int64_t *latency; /* of the served, sorted */
    size_t nlatency, room;
} scene_figures_t;

typedef struct scene_result_t {
    scene_figures_t streams[SCENE_STREAMS];
    double used, idle;      /* see FIGURE_USED, FIGURE_IDLE */
    uint64_t events;
    uint64_t lost_wakes;    /* found out only by looking at the clock */
    uint64_t overdrafts;    /* grants beyond the budget */
} scene_result_t;

/* Read a scenario; 0, and file:line and what is wrong in `error`, or 1. */
int scene_load(scene_t *scene, const char *file, char *error, size_t size);

/* Let it happen; the caller clears the result afterwards. */
void scene_run(const scene_t *scene, scene_policy_t policy, uint64_t seed,
               scene_result_t *result);
void scene_clear(scene_result_t *result);

double scene_figure(const scene_result_t *result, uint32_t stream,
                    scene_figure_t figure);
extern const char *const scene_policy_names[SCENE_POLICIES];
extern const char *const scene_figure_names[FIGURES];

/* Is the bar met? Results by policy; those that the bar does not speak of may
 * be NULL. *value and *wanted are what is and what should be. */
int scene_bar_met(const scene_bar_t *bar, scene_result_t *const *results,
                  double *value, double *wanted);

#endif
