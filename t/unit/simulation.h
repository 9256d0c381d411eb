#ifndef DBGUARD_SIMULATION_H
#define DBGUARD_SIMULATION_H

/* Requests by the thousand over the very core, on a clock that jumps from event
 * to event, and a checker that looks at the whole board after each of them.
 * The same plan and seed give the same run. */

#include "unit.h"

/* What a driver may do wrong, for the negative controls. */
typedef enum sim_flaw_t {
    SIM_NO_FLAW,
    SIM_FORGETS,        /* now and then a request ends and keeps its token */
    SIM_FORGES,         /* gives back what another request holds */
    SIM_RAISES_BUDGET,  /* admits one more than the budget, unseen */
    SIM_HURRIES,        /* polls with a clock that is ahead */
    SIM_REAPS_THE_LIVING,
    SIM_RAISES_NEED,    /* keeps tokens back that nobody needs, unseen */
    SIM_IGNORES_MAXIMUM, /* lets a class have one more than it may, unseen */
    SIM_SKIPS_TURNS,    /* the first of a flow goes to its end, unseen */
    SIM_FLAWS
} sim_flaw_t;

typedef struct sim_plan_t {
    const char *name;
    uint32_t requests;
    uint32_t slots, budget, queue;
    uint32_t processes;
    int64_t settle;
    uint32_t crowd;   /* so many come together */
    int64_t gap;      /* mean time from one crowd to the next */
    int64_t holds[2]; /* short and long ones, mean */
    uint32_t longs;   /* percent that hold long */
    uint32_t hang_up; /* percent of the waiting whose client hangs up */
    uint32_t lost;    /* percent of the posts that wake nobody */
    uint32_t late;    /* percent of the looks that come up to 3 s late */
    uint32_t deaths;  /* of processes, in a thousand events */
    uint32_t changes; /* of the limits, in a thousand events */
    uint32_t dryruns; /* percent of the changes that turn DryRun on */
    uint32_t endpoints; /* names that are asked for; 0: one, well known */
    uint32_t made_up;   /* percent of requests to names that nobody knows */
    uint32_t addresses; /* 0: not known */
    uint32_t sessions;  /* percent of the requests that have one */
    uint32_t classes;   /* besides the first: a maximum, a minimum, a weight */
    int64_t lease;      /* of the second one */
    int fifo;
} sim_plan_t;

/* How the requests ended, by the book of the model. */
typedef struct sim_result_t {
    uint32_t events, came;
    uint32_t served, refused, timeouts, aborted, died;
    uint32_t displaced; /* of the timeouts */
    uint32_t lost;      /* a lease was over before they looked */
    uint32_t leases;    /* tokens that came back so */
    uint32_t waited;    /* were given a token after waiting */
    uint32_t parked;    /* seen parked after an event */
    uint32_t evicted;   /* endpoints that were in the table and are not */
    uint32_t held_max;
} sim_result_t;

/* NULL, or the first thing that was wrong. */
const char *sim_run(const sim_plan_t *plan, uint32_t seed, sim_flaw_t flaw,
                    sim_result_t *result);

#endif
