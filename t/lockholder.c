/* Has the lock of a scoreboard and is stopped: what a debugger or kill -STOP
 * does to a worker in the fraction of a microsecond that it has it.
 *
 *     lockholder SCOREBOARD [torn]
 *
 * Says so, stops, and gives the lock back when it is told to go on. With
 * `torn` the lists are in disorder by then, as in the middle of a change. */

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "board.h"
#include "clock.h"

static dbguard_shared_t *open_board(const char *file)
{
    int fd = open(file, O_RDWR | O_CLOEXEC);
    struct stat info;
    void *base;

    if (fd < 0 || fstat(fd, &info) != 0)
        return NULL;
    base = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED,
                fd, 0);
    return base != MAP_FAILED
                   && dbguard_board_kind(base, (uint64_t)info.st_size)
                          == DBGUARD_SAME_LAYOUT
               ? base
               : NULL;
}

int main(int argc, char **argv)
{
    dbguard_board_t board = {0};

    board.shared = argc > 1 ? open_board(argv[1]) : NULL;
    if (board.shared == NULL) {
        fprintf(stderr, "no scoreboard of this build\n");
        return 1;
    }
    if (dbguard_board_lock(&board, dbguard_clock_now()) != APR_SUCCESS) {
        fprintf(stderr, "the lock cannot be had\n");
        return 1;
    }
    if (argc > 2)
        board.shared->free_head = board.shared->held_head = DBGUARD_NONE;
    printf("locked\n");
    fflush(stdout);
    raise(SIGSTOP);
    dbguard_board_unlock(&board);
    return 0;
}
