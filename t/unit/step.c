/* Stopping a child anywhere: see step.h.
 *
 * Single-stepping to stop n, for every n, takes n * n / 2 steps, and a step
 * takes two changes of the process. So the way is recorded once, and where
 * breakpoints are known (x86-64) a child is run straight to the address of its
 * n'th instruction. */

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "step.h"
#include "unit.h"

/* Instructions that one act may take. */
#define LONGEST 2000000

pid_t step_launch(const step_t *step)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        pid = getpid();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(1);
        if (step->before != NULL)
            step->before();
        kill(pid, SIGSTOP);
        step->act();
        kill(pid, SIGSTOP);
        _exit(0);
    }
    if (pid < 0)
        return -1;
    status = wait_for(pid);
    return WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP ? pid : -1;
}

void step_kill(pid_t pid)
{
    kill(pid, SIGKILL);
    while (WIFSTOPPED(wait_for(pid)))
        ;
}

void step_release(pid_t pid, int signal)
{
    ptrace(PTRACE_DETACH, pid, NULL, (void *)(intptr_t)signal);
}

static void nothing(void)
{
}

const char *step_obstacle(void)
{
    static const step_t step = {NULL, nothing};
    pid_t pid;

    if (under_valgrind())
        return "valgrind runs other instructions";
    /* Ten of theirs for each of ours: it would take a quarter of an hour. */
    if (under_sanitizers())
        return "the sanitizers add too many instructions";
    pid = step_launch(&step);
    if (pid < 0)
        return "ptrace is not permitted here";
    return step_record(pid) > 0 ? NULL : "this machine does not single-step";
}

int step_possible(void)
{
    return step_obstacle() == NULL;
}

/* Let it run on as `request` says, until it stops again. */
static int resume(pid_t pid, int request)
{
    if (ptrace(request, pid, NULL, NULL) != 0)
        return 0;
    return wait_for(pid);
}

static int stopped_by(int status, int signal)
{
    return WIFSTOPPED(status) && WSTOPSIG(status) == signal;
}

int step_one(pid_t pid)
{
    return stopped_by(resume(pid, PTRACE_SINGLESTEP), SIGTRAP);
}

static long ranks[LONGEST]; /* the how-manieth visit of a stop's address */

long step_rank(long n)
{
    return ranks[n];
}

#ifdef __x86_64__

#define PC ((void *)offsetof(struct user, regs.rip))

/* Where the child stood at each stop. An instruction that repeats itself is
 * one stop. */
static long way[LONGEST];

static long pc_of(pid_t pid)
{
    return ptrace(PTRACE_PEEKUSER, pid, PC, NULL);
}

/* One instruction, and all of its repetitions. */
static int step_over(pid_t pid)
{
    long pc = pc_of(pid);

    do {
        if (!step_one(pid))
            return 0;
    } while (pc_of(pid) == pc);
    return 1;
}

/* Run to pc, where a breakpoint stands from here to there. */
static int run_to(pid_t pid, long pc)
{
    long code = ptrace(PTRACE_PEEKTEXT, pid, pc, NULL);
    int hit;

    ptrace(PTRACE_POKETEXT, pid, pc, (code & ~0xffL) | 0xcc);
    hit = stopped_by(resume(pid, PTRACE_CONT), SIGTRAP)
          && pc_of(pid) == pc + 1;
    if (hit) {
        ptrace(PTRACE_POKETEXT, pid, pc, code);
        ptrace(PTRACE_POKEUSER, pid, PC, pc);
    }
    return hit;
}

int step_to(pid_t pid, long n)
{
    long times = ranks[n];

    while (run_to(pid, way[n])) {
        if (--times == 0)
            return 1;
        if (!step_over(pid))
            break;
    }
    return 0;
}

#else

static long way[LONGEST]; /* only its length matters */

static long pc_of(pid_t pid)
{
    return pid;
}

static int step_over(pid_t pid)
{
    return step_one(pid);
}

int step_to(pid_t pid, long n)
{
    while (n > 0 && step_one(pid))
        n--;
    return n == 0;
}

#endif

/* With a table of the addresses; there are far fewer than stops. */
static void rank(long stops)
{
    enum { SIZE = 1 << 16 };
    static long address[SIZE], visits[SIZE];
    long i;

    memset(visits, 0, sizeof(visits));
    for (i = 0; i < stops; i++) {
        unsigned at = (unsigned)(way[i] * 0x9E3779B1) % SIZE;

        while (visits[at] > 0 && address[at] != way[i])
            at = (at + 1) % SIZE;
        address[at] = way[i];
        ranks[i] = ++visits[at];
    }
}

long step_record(pid_t pid)
{
    long n = 0;

    way[n++] = pc_of(pid);
    while (n < LONGEST && step_over(pid))
        way[n++] = pc_of(pid);
    step_kill(pid);
    rank(n);
    /* The last one is behind the system call that ends it. */
    return n < LONGEST ? n - 1 : 0;
}
