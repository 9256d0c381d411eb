/* Measuring memory: see memory.h. */

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory.h"

#define CGROUP "/sys/fs/cgroup/" /* version 2; a container sees its own here */

/* The number after a key at the start of a line of a file; 0 when there is
 * none. An empty key: the first line. */
static uint64_t number_in(const char *file, const char *key)
{
    size_t len = strlen(key);
    uint64_t n = 0;
    char line[256];
    FILE *f = fopen(file, "re");

    if (f == NULL)
        return 0;
    while (fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, key, len) != 0)
            continue;
        n = strtoull(line + len, NULL, 10);
        break;
    }
    fclose(f);
    return n;
}

/* The parent of a process and its program's name, as in /proc/PID/stat. */
static pid_t parent_of(const char *pid, char *name, size_t size)
{
    char file[300], line[512] = "", *open, *close;
    int parent = 0;
    FILE *f;

    snprintf(file, sizeof(file), "/proc/%s/stat", pid);
    f = fopen(file, "re");
    if (f == NULL)
        return 0;
    if (fgets(line, sizeof(line), f) == NULL)
        line[0] = '\0';
    fclose(f);
    open = strchr(line, '(');
    close = strrchr(line, ')');
    if (open == NULL || close == NULL
        || sscanf(close + 1, " %*c %d", &parent) != 1)
        return 0;
    *close = '\0';
    snprintf(name, size, "%s", open + 1);
    return (pid_t)parent;
}

static uint64_t part_of(const char *pid)
{
    unsigned long size, resident = 0, shared = 0;
    char file[300];
    uint64_t pss;
    FILE *f;

    snprintf(file, sizeof(file), "/proc/%s/smaps_rollup", pid);
    pss = number_in(file, "Pss:") * 1024;
    if (pss != 0)
        return pss;
    snprintf(file, sizeof(file), "/proc/%s/statm", pid);
    f = fopen(file, "re");
    if (f == NULL)
        return 0;
    if (fscanf(f, "%lu %lu %lu", &size, &resident, &shared) != 3)
        resident = shared = 0;
    fclose(f);
    return (uint64_t)(resident > shared ? resident - shared : 0)
           * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t available(void)
{
    uint64_t machine = number_in("/proc/meminfo", "MemAvailable:") * 1024;
    uint64_t most = number_in(CGROUP "memory.max", "");
    uint64_t used = number_in(CGROUP "memory.current", "");
    uint64_t cache = number_in(CGROUP "memory.stat", "inactive_file ");
    uint64_t left;

    if (most == 0)
        return machine;
    used = used > cache ? used - cache : 0;
    left = most > used ? most - used : 0;
    return left < machine ? left : machine;
}

void dbguard_memory_measure(dbguard_memory_t *m, pid_t parent)
{
    char program[64] = "", name[64], self[16];
    uint64_t sum = 0;
    uint32_t measured = 0;
    struct dirent *entry;
    DIR *proc = opendir("/proc");

    memset(m, 0, sizeof(*m));
    snprintf(self, sizeof(self), "%d", (int)parent);
    if (proc == NULL)
        return;
    if (parent <= 1 || parent_of(self, program, sizeof(program)) == 0) {
        closedir(proc);
        return;
    }
    while ((entry = readdir(proc)) != NULL) {
        uint64_t part;

        if (!isdigit((unsigned char)entry->d_name[0])
            || parent_of(entry->d_name, name, sizeof(name)) != parent
            || strcmp(name, program) != 0)
            continue;
        m->processes++;
        part = measured < DBGUARD_MEMORY_SAMPLE ? part_of(entry->d_name) : 0;
        sum += part;
        measured += part != 0;
    }
    closedir(proc);
    if (measured > 0)
        m->each = sum / measured;
    m->available = available();
}
