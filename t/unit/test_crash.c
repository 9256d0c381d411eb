/* Death at any instruction.
 *
 * Children share a board and are killed: after every single instruction of
 * every verb, at random in the middle of a crowd, with a token that they have
 * not noticed yet. Afterwards the lock can be had, every token and every slot
 * is there, and nobody has a token too many. */

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "step.h"
#include "unit.h"

/* --- every instruction ---------------------------------------------------- */

#define REQUESTS 48
#define SETTLE 2000
#define OTHER 77 /* a process that is dead already */

/* What is special about a scenario. */
enum {
    DRYRUN = 1,
    HEAVY = 2,   /* they ask for what holds long */
    CLIENT = 4,  /* one client, which may hold one token */
    LEASE = 8,   /* a token comes back after a second */
    CROWDED = 16 /* the tables of endpoints and clients are full */
};

typedef struct scenario_t {
    const char *name;
    uint32_t nslots, budget, queue;
    int flags;
    /* Requests of this process before and after those of the child. */
    int first, childs, later;
    void (*stage)(void); /* in this process, when all of them are there */
    void (*act)(void);   /* in the child: where it dies */
} scenario_t;

static const scenario_t *scenario;
static dbguard_ticket_t mine[REQUESTS], its[REQUESTS];
static int nmine;

static void come(int times)
{
    while (times-- > 0)
        mine[nmine++] = enter_as(getpid()).ticket;
}

static void child_comes(void)
{
    int i;

    for (i = 0; i < scenario->childs; i++)
        its[i] = enter_as(getpid()).ticket;
}

static void child_enters(void)
{
    enter_as(getpid());
}

/* It is lighter than those who wait. */
static void child_enters_light(void)
{
    come_as("GET /", 0, 0);
    enter_as(getpid());
}

/* A stranger, to something that nobody has heard of. */
static void child_enters_new(void)
{
    come_as("GET /new", 77777, 88888);
    enter_as(getpid());
}

static void child_enters_after_a_while(void)
{
    now += 2 * SECOND;
    enter_as(getpid());
}

static void child_enters_later(void)
{
    now += SETTLE;
    enter_as(getpid());
}

static void child_leaves(void)
{
    int64_t held;

    dbguard_admission_leave(&board, its[0], now, &held);
}

static void child_looks(void)
{
    look(its[0]);
}

static void child_looks_late(void)
{
    now += PATIENCE;
    look(its[0]);
}

static void child_leaves_late(void)
{
    now += PATIENCE;
    child_leaves();
}

static void child_reaps(void)
{
    reap(OTHER);
}

static void child_configures(void)
{
    configure(scenario->budget + REQUESTS, scenario->queue, 0);
}

static void with_flags(uint32_t budget, int flags)
{
    dbguard_limits_t limits;

    configure(budget, scenario->queue, (flags & DRYRUN) != 0);
    limits = board.shared->limits;
    limits.client_hold.number = (flags & CLIENT) != 0;
    limits.classes[0].lease = flags & LEASE ? SECOND : 0;
    dbguard_admission_configure(&board, &limits, now);
}

/* With classes: the first one may have two tokens more, and a third one keeps
 * some for itself. */
static void child_configures_classes(void)
{
    dbguard_limits_t limits = board.shared->limits;

    limits.budget = scenario->budget + REQUESTS;
    limits.classes[0].max.number = scenario->budget + 2;
    limits.classes[2].min.number = 50;
    limits.classes[2].min.percent = 1;
    limits.classes[1].weight = 7;
    dbguard_admission_configure(&board, &limits, now);
}

static void child_begins_dryrun(void)
{
    configure(scenario->budget, scenario->queue, 1);
}

static void child_ends_dryrun(void)
{
    configure(scenario->budget, scenario->queue, 0);
}

/* mine[0] leaves: somebody gets its token. */
static void leave_first(void)
{
    leave(mine[0]);
    mine[0] = mine[--nmine];
}

/* The child's patience has ended, and a hand-over has found out. */
static void leave_first_late(void)
{
    now += PATIENCE;
    leave_first();
}

/* Somebody holds and somebody waits, and both are dead. */
static void others_come(void)
{
    enter_as(OTHER);
    come(2);
    enter_as(OTHER);
    come(1);
}

/* The one before has died inside the lock, and left a mess. */
static void somebody_dies_inside(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        dbguard_board_lock(&board, now);
        board.shared->free_head = DBGUARD_NONE;
        board.shared->prefix.held = 7;
        board.shared->heaviest = DBGUARD_NONE;
        _exit(0);
    }
    ck_assert_int_eq(wait_for(pid), 0);
}

static const scenario_t scenarios[] = {
    {"enter, a token is free", 8, 2, 4, 0, 1, 0, 0, NULL, child_enters},
    {"enter and wait", 8, 2, 4, 0, 3, 0, 0, NULL, child_enters},
    {"enter, a token settles", 8, 2, 4, 0, 2, 0, 0, leave_first, child_enters},
    {"enter, a token has settled", 8, 2, 4, 0, 2, 0, 0, leave_first,
     child_enters_later},
    {"enter, refused", 8, 2, 0, 0, 2, 0, 0, NULL, child_enters},
    {"enter, no slot", 3, 2, 4, 0, 3, 0, 0, NULL, child_enters},
    {"enter in DryRun", 8, 1, 1, DRYRUN, 3, 0, 0, NULL, child_enters},
    {"leave", 8, 2, 4, 0, 1, 1, 0, NULL, child_leaves},
    {"leave and hand over", 8, 1, 4, 0, 0, 1, 3, NULL, child_leaves},
    {"leave, and all are late", 8, 1, 4, 0, 0, 1, 3, NULL, child_leaves_late},
    {"leave while waiting", 8, 1, 4, 0, 2, 1, 1, NULL, child_leaves},
    {"leave when expelled", 8, 1, 4, 0, 1, 1, 0, leave_first_late,
     child_leaves_late},
    {"leave without a ticket", 8, 2, 4, 0, 1, 0, 0, NULL, child_leaves},
    {"poll while waiting", 8, 1, 4, 0, 2, 1, 1, NULL, child_looks},
    {"poll with a token", 8, 1, 4, 0, 1, 1, 2, leave_first, child_looks},
    {"poll when late", 8, 1, 4, 0, 1, 1, 0, NULL, child_looks_late},
    {"poll when expelled", 8, 1, 4, 0, 1, 1, 0, leave_first_late,
     child_looks_late},
    {"leave in DryRun", 8, 1, 0, DRYRUN, 2, 1, 1, NULL, child_leaves},
    {"displacing", 8, 1, 2, HEAVY, 3, 0, 0, NULL, child_enters_light},
    {"a new endpoint and client", 8, 2, 4, 0, 2, 0, 0, NULL, child_enters_new},
    {"evicting an endpoint and clients", 8, 2, 4, CROWDED, 2, 0, 0, NULL,
     child_enters_new},
    {"enter and be parked", 8, 2, 4, HEAVY | CLIENT, 1, 0, 0, NULL,
     child_enters},
    {"poll when parked", 8, 2, 4, HEAVY | CLIENT, 1, 1, 1, NULL, child_looks},
    {"leave to the parked", 8, 2, 4, HEAVY | CLIENT, 0, 1, 3, NULL,
     child_leaves},
    {"a lease ends", 8, 1, 4, LEASE, 3, 0, 0, NULL,
     child_enters_after_a_while},
    {"ticks", 8, 2, 4, 0, 4, 0, 0, NULL, child_enters_after_a_while},
    {"classes", 8, 1, 6, 0, 5, 0, 0, NULL, child_configures_classes},
    {"DryRun begins", 8, 1, 4, 0, 3, 0, 0, NULL, child_begins_dryrun},
    {"DryRun ends", 8, 1, 2, DRYRUN, 5, 0, 0, NULL, child_ends_dryrun},
    {"reap", 8, 3, 5, 0, 1, 1, 0, others_come, child_reaps},
    {"a larger budget", 8, 1, 4, 0, 4, 0, 0, NULL, child_configures},
    {"a much larger budget", 44, 1, 40, 0, 41, 0, 0, NULL, child_configures},
    {"repair", 8, 2, 4, 0, 3, 0, 0, somebody_dies_inside, child_enters},
    {"repair and hand over", 8, 1, 4, 0, 0, 1, 3, somebody_dies_inside,
     child_leaves},
};

#define SCENARIOS LENGTH(scenarios)

static const scenario_t *named(const char *name)
{
    int i;

    for (i = 0; i < SCENARIOS; i++)
        if (strcmp(scenarios[i].name, name) == 0)
            return &scenarios[i];
    ck_abort_msg("no scenario: %s", name);
}

/* No endpoint and no client is free. */
static void crowd_in(void)
{
    char name[32];
    uint32_t i;

    for (i = DBGUARD_FIXED; i < DBGUARD_ENDPOINTS; i++) {
        snprintf(name, sizeof(name), "GET /%u", i);
        board.shared->endpoints[teach(name, 0, HOLD)].samples = 1;
    }
    for (i = 0; i < board.shared->nclients; i++)
        dbguard_client_arrive(board.shared, i + 1, DBGUARD_NONE, now);
}

/* A new board and a child that is about to act. */
static pid_t set_the_scene(void (*before)(void))
{
    const step_t step = {before, scenario->act};
    pid_t pid;

    board_again(scenario->budget, scenario->queue);
    board.shared->limits.settle = SETTLE;
    with_flags(scenario->budget, scenario->flags);
    if (scenario->flags & CROWDED)
        crowd_in();
    if (scenario->flags & HEAVY) {
        teach("GET /heavy", 0, 2 * SECOND);
        come_as("GET /heavy", scenario->flags & CLIENT ? 5 : 0, 0);
    }
    nmine = 0;
    come(scenario->first);
    pid = step_launch(&step);
    come(scenario->later);
    if (scenario->stage != NULL)
        scenario->stage();
    return pid;
}

static long at; /* the stop at which the child died */

/* SIGALRM: somebody waits for a lock that nobody will ever give back. */
static void stuck(int signal)
{
    (void)signal;
    dprintf(STDERR_FILENO, "stuck: %s, killed at stop %ld\n",
            scenario ? scenario->name : "", at);
    _exit(1);
}

/* What lies behind a state was there before the state. */
static void expect_whole_slots(void)
{
    uint32_t i;

    for (i = 0; i < board.shared->nslots; i++) {
        const dbguard_slot_t *s = &board.shared->slots[i];

        if ((s->state == DBGUARD_SETTLING && s->released < START)
            || (s->state == DBGUARD_HELD && s->granted < START)
            || (s->state == DBGUARD_WAITING && s->deadline < START)
            || (s->state == DBGUARD_EXPELLED
                && s->reason != DBGUARD_REASON_TIMEOUT
                && s->reason != DBGUARD_REASON_DISPLACED
                && !s->runs))
            ck_abort_msg("a slot has state %u before its time", s->state);
    }
}

/* Of those of this process that are left: who waited in vain? */
static uint32_t count_expelled(void)
{
    uint32_t n = 0;
    int i;

    for (i = 0; i < nmine; i++)
        n += state_of(mine[i]) == DBGUARD_EXPELLED;
    return n;
}

/* What the tokens are limited by now. */
static uint32_t tokens(void)
{
    if (scenario->act == child_configures_classes)
        return scenario->budget + 2;
    if (scenario->act == child_ends_dryrun)
        return REQUESTS; /* all of them run, and are counted */
    return scenario->flags & CLIENT ? 1 : board.shared->limits.budget;
}

/* The one whose lease has ended has lost its token. */
static void expect_lease_over(void)
{
    int64_t held;

    ck_assert_int_eq(dbguard_admission_leave(&board, mine[0], now, &held),
                     APR_NOTFOUND);
    mine[0] = mine[--nmine];
}

static void expect_in_order(pid_t dead)
{
    static const dbguard_ticket_t none;
    uint32_t most, n;
    int i;

    expect_whole_slots();
    if (scenario->act == child_enters_after_a_while)
        now += 2 * SECOND;
    reap(dead);
    reap(OTHER);
    look(none); /* who had nothing is not reaped, but missed by the next one */
    /* It may have died before or after. */
    if (scenario->act == child_configures
        || scenario->act == child_configures_classes
        || scenario->act == child_begins_dryrun
        || scenario->act == child_ends_dryrun)
        scenario->act();
    if (scenario->flags & LEASE)
        expect_lease_over();
    most = tokens();
    n = (uint32_t)nmine - count_expelled();
    board_expect(n < most ? n : most, n < most ? 0 : n - most);
    for (i = 0; i < nmine; i++)
        leave(mine[i]); /* fails when its slot is not its own any more */
    board_expect(0, 0);
    board_exhaust();
}

/* The way to a stop is as long as its rank: of a loop, the first few rounds and
 * one in the middle. */
static int is_near(long stop)
{
    return step_rank(stop) <= 16 || step_rank(stop) == 500;
}

/* Where to die: at `wanted` instructions, or at all of them with UNIT_THOROUGH
 * in the environment. */
static long next_stop(long stop, long stops, long wanted)
{
    static long often;

    if (stop < 0) {
        long i, near = 0;

        for (i = 0; i < stops; i++)
            near += is_near(i);
        often = getenv("UNIT_THOROUGH") != NULL ? 1 : 1 + near / wanted;
    }
    do
        stop++;
    while (stop < stops && (!is_near(stop) || stop % often != 0));
    return stop;
}

/* What is bound at its first call is bound before the recording. */
static void warm_up(void)
{
    int i;

    somebody_dies_inside();
    nmine = 0;
    come(3);
    for (i = 0; i < nmine; i++) /* hands over */
        leave(mine[i]);
    board_exhaust();
}

START_TEST(killed_at_every_instruction)
{
    long stops;

    if (!step_possible())
        return;
    scenario = &scenarios[_i];
    signal(SIGALRM, stuck);
    board_open_shared(scenario->nslots, 1, 4);
    warm_up();
    stops = step_record(set_the_scene(child_comes));
    ck_assert_int_gt(stops, 20);
    for (at = next_stop(-1, stops, scaled(60)); at < stops;
         at = next_stop(at, stops, 0)) {
        pid_t pid = set_the_scene(child_comes);

        if (!step_to(pid, at))
            ck_abort_msg("%s: stop %ld of %ld was not reached",
                         scenario->name, at, stops);
        step_kill(pid);
        alarm(10);
        expect_in_order(pid);
        alarm(0);
    }
    board_close();
}
END_TEST

/* The negative control: with a board that is never rebuilt, this very test
 * finds tokens lost and slots lost. */
START_TEST(without_repair_something_is_lost)
{
    long stops, wrong = 0;

    if (!step_possible())
        return;
    scenario = named("leave and hand over");
    board_open_shared(scenario->nslots, 1, 4);
    warm_up();
    stops = step_record(set_the_scene(child_comes));
    for (at = next_stop(-1, stops, scaled(60)); at < stops;
         at = next_stop(at, stops, 0)) {
        pid_t pid = set_the_scene(child_comes);

        ck_assert(step_to(pid, at));
        step_kill(pid);
        wrong += board_disorder(board.shared) != NULL;
    }
    ck_assert_int_gt(wrong, 0);
    board_close();
}
END_TEST

/* --- a signal at every instruction ---------------------------------------- */

/* prefork ends a child from inside its SIGTERM handler, and pool cleanups give
 * back what the interrupted request has: also in the middle of a poll. */
static void end_like_prefork(int signal)
{
    (void)signal;
    child_leaves();
    _exit(0);
}

static void child_comes_and_listens(void)
{
    child_comes();
    signal(SIGTERM, end_like_prefork);
}

/* Nobody is left who could have it: can it be had? */
static int lock_is_lost(void)
{
    int rv = pthread_mutex_trylock(&board.shared->lock);

    if (rv == EOWNERDEAD) {
        dbguard_board_rebuild(board.shared);
        pthread_mutex_consistent(&board.shared->lock);
    }
    if (rv != EBUSY)
        pthread_mutex_unlock(&board.shared->lock);
    return rv == EBUSY;
}

START_TEST(ended_by_a_signal_at_every_instruction)
{
    long stops, lost = 0, lost_at = 0;

    if (!step_possible())
        return;
    scenario = &scenarios[_i];
    if (scenario->childs == 0) /* it has nothing to give back */
        return;
    board_open_shared(scenario->nslots, 1, 4);
    warm_up();
    stops = step_record(set_the_scene(child_comes));
    for (at = next_stop(-1, stops, scaled(25)); at < stops;
         at = next_stop(at, stops, 0)) {
        pid_t pid = set_the_scene(child_comes_and_listens);

        if (!step_to(pid, at))
            ck_abort_msg("stop %ld of %ld was not reached", at, stops);
        step_release(pid, SIGTERM);
        ck_assert_int_eq(wait_for(pid), 0);
        if (lock_is_lost()) {
            lost++;
            lost_at = at;
            continue;
        }
        expect_in_order(pid);
    }
    if (lost > 0)
        ck_abort_msg("%s: the lock is lost for ever at %ld of %ld stops, the "
                     "last of them %ld", scenario->name, lost, stops, lost_at);
    board_close();
}
END_TEST

/* --- a token not yet noticed ---------------------------------------------- */

/* Children tell here how far they are and what they saw. */
static _Atomic int *news;

static void setup(void)
{
    scenario = NULL;
    signal(SIGALRM, stuck);
    alarm(120);
    news = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                -1, 0);
    ck_assert_ptr_ne(news, MAP_FAILED);
}

static void teardown(void)
{
    alarm(0);
    board_close();
    munmap(news, 4096);
}

/* Until `what` reaches n: whoever must bring it about is running. */
static void until(_Atomic int *what, int n)
{
    while (*what < n)
        sched_yield();
}

static pid_t spawn(void (*act)(void))
{
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        act();
        _exit(0);
    }
    return pid;
}

static void wait_and_never_look(void)
{
    enter_as(getpid());
    news[0]++;
    for (;;)
        pause();
}

START_TEST(killed_with_a_token_just_handed_over)
{
    dbguard_ticket_t holds, next;
    pid_t pid;
    int i;

    board_open_shared(8, 1, 4);
    holds = enter_to(DBGUARD_ADMITTED);
    for (i = 1; i <= scaled(60); i++) {
        pid = spawn(wait_and_never_look);
        until(&news[0], i);
        next = enter_to(DBGUARD_WAIT);
        leave(holds);
        board_expect(1, 1);
        kill(pid, SIGKILL);
        wait_for(pid);
        ck_assert_int_eq(look(next).outcome, DBGUARD_WAIT);
        ck_assert_uint_eq(reap(pid), 1);
        ck_assert_int_eq(look(next).outcome, DBGUARD_ADMITTED);
        board_expect(1, 0);
        holds = next;
    }
    leave(holds);
    board_exhaust();
}
END_TEST

START_TEST(killed_while_waiting)
{
    dbguard_ticket_t holds;
    pid_t pid;
    int i;

    board_open_shared(8, 1, 4);
    holds = enter_to(DBGUARD_ADMITTED);
    for (i = 1; i <= scaled(60); i++) {
        pid = spawn(wait_and_never_look);
        until(&news[0], i);
        kill(pid, SIGKILL);
        wait_for(pid);
        board_expect(1, 1);
        ck_assert_uint_eq(reap(pid), 1);
        board_expect(1, 0);
    }
    leave(holds);
    board_exhaust();
}
END_TEST

/* --- woken across processes ----------------------------------------------- */

/* 1 for each child that a post woke and that then had a token. */
static void sleep_until_woken(void)
{
    struct timespec end;
    dbguard_ticket_t ticket = enter_as(getpid()).ticket;
    int rv;

    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += 20;
    news[0]++;
    rv = sem_clockwait(dbguard_admission_wake(&board, ticket), CLOCK_MONOTONIC,
                       &end);
    if (rv == 0 && look(ticket).outcome == DBGUARD_ADMITTED)
        news[1]++;
    leave(ticket);
}

/* One holds, five sleep in processes of their own; the token goes through all
 * of them, each waking the next. */
START_TEST(a_post_wakes_another_process)
{
    dbguard_ticket_t holds;
    pid_t pids[5];
    int i;

    board_open_shared(8, 1, 5);
    holds = enter_to(DBGUARD_ADMITTED);
    for (i = 0; i < 5; i++)
        pids[i] = spawn(sleep_until_woken);
    until(&news[0], 5);
    board_expect(1, 5);
    ck_assert_int_eq(news[1], 0);
    leave(holds);
    for (i = 0; i < 5; i++)
        ck_assert_int_eq(wait_for(pids[i]), 0);
    ck_assert_int_eq(news[1], 5);
    board_expect(0, 0);
    board_exhaust();
}
END_TEST

/* --- killed at random ----------------------------------------------------- */

#define CROWD 4   /* processes */
#define THREADS 3 /* of each */
#define BUDGET 3

/* A bit for each thread that is inside, in one word, so that one look at it is
 * one instant. news[0 .. CROWD - 1] count what each process has done, and
 * news[TOO_MANY] how often more than the budget were inside. */
static _Atomic uint64_t *inside;
#define TOO_MANY CROWD

static uint64_t bit_of(int process, int thread)
{
    return UINT64_C(1) << (process * THREADS + thread);
}

static uint64_t bits_of(int process)
{
    uint64_t bits = 0;
    int i;

    for (i = 0; i < THREADS; i++)
        bits |= bit_of(process, i);
    return bits;
}

static void wait_for_token(dbguard_decision_t *d)
{
    struct timespec end;

    while (d->outcome == DBGUARD_WAIT) {
        clock_gettime(CLOCK_MONOTONIC, &end);
        end.tv_nsec += 2000000;
        if (end.tv_nsec >= 1000000000) {
            end.tv_nsec -= 1000000000;
            end.tv_sec++;
        }
        sem_clockwait(dbguard_admission_wake(&board, d->ticket),
                      CLOCK_MONOTONIC, &end);
        dbguard_admission_poll(&board, d->ticket, dbguard_clock_now(), d);
    }
}

static int crowd_process; /* which of them this one is */

static void *crowd_thread(void *thread)
{
    dbguard_visitor_t visitor = {.pid = getpid(), .endpoint = "GET /"};
    uint64_t bit = bit_of(crowd_process, (int)(intptr_t)thread);
    dbguard_decision_t d;
    int64_t held;

    for (;;) {
        dbguard_admission_enter(&board, &visitor, dbguard_clock_now(), &d);
        wait_for_token(&d);
        if (d.outcome == DBGUARD_ADMITTED) {
            uint64_t all = atomic_fetch_or(inside, bit) | bit;

            if (__builtin_popcountll(all) > BUDGET)
                news[TOO_MANY]++;
            while (dbguard_clock_now() < d.start + 20)
                sched_yield();
            atomic_fetch_and(inside, ~bit);
            dbguard_admission_leave(&board, d.ticket, dbguard_clock_now(),
                                    &held);
        }
        news[crowd_process]++;
    }
    return NULL;
}

static void be_one_of_the_crowd(void)
{
    pthread_t t;
    intptr_t i;

    for (i = 1; i < THREADS; i++)
        pthread_create(&t, NULL, crowd_thread, (void *)i);
    crowd_thread(NULL);
}

static pid_t join_crowd(int process)
{
    crowd_process = process;
    return spawn(be_one_of_the_crowd);
}

/* When it is dead, what it was in is over; then its tokens may go on. */
static void bury(int process, pid_t pid)
{
    uint32_t taken;

    kill(pid, SIGKILL);
    wait_for(pid);
    atomic_fetch_and(inside, ~bits_of(process));
    ck_assert_int_eq(dbguard_admission_reap(&board, pid, dbguard_clock_now(),
                                            &taken),
                     APR_SUCCESS);
}

START_TEST(a_hundred_kills)
{
    pid_t pids[CROWD];
    int i, kills = scaled(150);

    inside = (_Atomic uint64_t *)(news + 512);
    board_open_shared(CROWD * THREADS, BUDGET, CROWD * THREADS);
    board.shared->limits.settle = 50;
    for (i = 0; i < CROWD; i++)
        pids[i] = join_crowd(i);
    for (i = 0; i < kills; i++) {
        int victim = i * 7 % CROWD;

        /* Every one of them works, and this one a little longer each time. */
        until(&news[(i + 1) % CROWD], news[(i + 1) % CROWD] + 3);
        until(&news[victim], news[victim] + 5 + i % 17);
        bury(victim, pids[victim]);
        pids[victim] = join_crowd(victim);
    }
    for (i = 0; i < CROWD; i++)
        bury(i, pids[i]);
    ck_assert_int_eq(news[TOO_MANY], 0);
    ck_assert_uint_eq(*inside, 0);
    board_expect(0, 0);
    ck_assert_uint_ge(counters()->admitted, (uint64_t)kills);
    now = dbguard_clock_now();
    board_exhaust();
}
END_TEST

/* The negative control: a crowd that nothing limits is noticed. */
START_TEST(a_crowd_without_a_limit)
{
    pid_t pids[CROWD];
    int i;

    inside = (_Atomic uint64_t *)(news + 512);
    board_open_shared(CROWD * THREADS, BUDGET, CROWD * THREADS);
    configure(BUDGET, CROWD * THREADS, 1);
    for (i = 0; i < CROWD; i++)
        pids[i] = join_crowd(i);
    until(&news[TOO_MANY], 1);
    for (i = 0; i < CROWD; i++)
        bury(i, pids[i]);
}
END_TEST

Suite *crash_suite(void)
{
    Suite *s = suite_create("crash");
    TCase *tc = tcase_create("every instruction");

    tcase_set_timeout(tc, 120);
    /* As long as all the others: make check-unit runs them beside these. */
    tcase_set_tags(tc, "killed");
    tcase_add_loop_test(tc, killed_at_every_instruction, 0, SCENARIOS);
    suite_add_tcase(s, tc);

    tc = tcase_create("every instruction, repaired or ended");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, without_repair_something_is_lost);
    tcase_add_loop_test(tc, ended_by_a_signal_at_every_instruction, 0,
                        SCENARIOS);
    suite_add_tcase(s, tc);

    tc = tcase_create("processes");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, killed_with_a_token_just_handed_over);
    tcase_add_test(tc, killed_while_waiting);
    tcase_add_test(tc, a_post_wakes_another_process);
    tcase_add_test(tc, a_hundred_kills);
    tcase_add_test(tc, a_crowd_without_a_limit);
    suite_add_tcase(s, tc);
    return s;
}
