#ifndef DBGUARD_STEP_H
#define DBGUARD_STEP_H

/* Children that are stopped after any number of instructions.
 *
 *     before();                 not counted
 *     ----- stop 0 -----        step_launch returns
 *     act();                    stops 1 .. step_record - 1
 *     ----- the end -----
 *
 * Both run in the child, on its copy of everything but shared memory. */

#include <sys/types.h>

typedef struct step_t {
    void (*before)(void); /* or NULL */
    void (*act)(void);
} step_t;

/* NULL, or why children cannot be stopped so here: tests that need it are
 * skipped then. */
const char *step_obstacle(void);
int step_possible(void);

/* Fork a child and let it run up to stop 0. */
pid_t step_launch(const step_t *step);

/* One instruction. 0 at the end of act. */
int step_one(pid_t pid);

/* Run a child of step_launch to the end of act, write down its way for step_to,
 * and return the number of its instructions. The child is gone then. */
long step_record(pid_t pid);

/* How often the address of stop n has been passed by then: the inside of a long
 * loop has a high one, and takes long to reach. */
long step_rank(long n);

/* Bring a child that stands at stop 0 to stop n, on the way that was recorded;
 * 0 when it took another one. */
int step_to(pid_t pid, long n);

/* Let it go on from where it stands, with a signal. */
void step_release(pid_t pid, int signal);

/* Kill it where it stands; it is gone, and waited for, when this returns. */
void step_kill(pid_t pid);

#endif
