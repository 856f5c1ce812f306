/* Kills its process with SIGKILL before the n-th change of a file whose name contains a text: what SQLite does to its
   database, journal, log and index is a sequence of system calls, and a crash can come between any two of them.
   Preloaded into Python; armed by `kill_switch_arm`, or in a child process by the environment variables
   KILL_SWITCH_AT, KILL_SWITCH_NAME and KILL_SWITCH_ONCE, a file whose existence disarms it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

static long count, at;
static char name[256], once[1024], phases[1 << 16];

void kill_switch_arm(long when, const char *part) {
    count = 0;
    phases[0] = 0;
    snprintf(name, sizeof name, "%s", part);
    at = when;
}

long kill_switch_count(void) { return count; }

const char *kill_switch_calls(void) { return phases; }

__attribute__((constructor)) static void from_environment(void) {
    const char *when = getenv("KILL_SWITCH_AT"), *part = getenv("KILL_SWITCH_NAME"), *mark = getenv("KILL_SWITCH_ONCE");
    if (when && part && mark) {
        snprintf(once, sizeof once, "%s", mark);
        kill_switch_arm(atol(when), part);
    }
}

static void step(const char *call, const char *path) {
    if (!name[0] || !path || !strstr(path, name))
        return;
    count++;
    size_t used = strlen(phases);
    const char *last = strrchr(path, '/');
    if (used + 200 < sizeof phases)
        snprintf(phases + used, sizeof phases - used, "%s %.100s\n", call, last ? last + 1 : path);
    if (count != at)
        return;
    if (once[0]) {
        int mark = open(once, O_CREAT | O_EXCL | O_WRONLY, 0600);
        if (mark < 0)
            return;
        close(mark);
    }
    kill(getpid(), SIGKILL);
}

static void step_of(const char *call, int descriptor) {
    char link[64], path[4096];
    if (!name[0])
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return;
    path[length] = 0;
    step(call, path);
}

#define REAL(result, function, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) \
        real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #function)

#define OPEN(function) \
    int function(const char *path, int flags, ...) { \
        va_list list; \
        va_start(list, flags); \
        mode_t mode = va_arg(list, mode_t); \
        va_end(list); \
        REAL(int, function, const char *, int, mode_t); \
        if (flags & (O_CREAT | O_TRUNC)) \
            step("open", path); \
        return real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OF_DESCRIPTOR(result, function, call, parameters, arguments, ...) \
    result function parameters { \
        REAL(result, function, __VA_ARGS__); \
        step_of(call, descriptor); \
        return real arguments; \
    }
OF_DESCRIPTOR(ssize_t, write, "write", (int descriptor, const void *data, size_t size), (descriptor, data, size), int, const void *, size_t)
OF_DESCRIPTOR(ssize_t, pwrite, "write", (int descriptor, const void *data, size_t size, off_t where), (descriptor, data, size, where), int, const void *, size_t, off_t)
OF_DESCRIPTOR(ssize_t, pwrite64, "write", (int descriptor, const void *data, size_t size, off64_t where), (descriptor, data, size, where), int, const void *, size_t, off64_t)
OF_DESCRIPTOR(int, ftruncate, "truncate", (int descriptor, off_t size), (descriptor, size), int, off_t)
OF_DESCRIPTOR(int, ftruncate64, "truncate", (int descriptor, off64_t size), (descriptor, size), int, off64_t)
OF_DESCRIPTOR(int, fsync, "sync", (int descriptor), (descriptor), int)
OF_DESCRIPTOR(int, fdatasync, "sync", (int descriptor), (descriptor), int)
OF_DESCRIPTOR(int, close, "close", (int descriptor), (descriptor), int)

#define OF_PATH(function, call) \
    int function(const char *path) { \
        REAL(int, function, const char *); \
        step(call, path); \
        return real(path); \
    }
OF_PATH(unlink, "unlink")

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    step("rename", to);
    return real(from, to);
}

int unlinkat(int folder, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    step("unlink", path);
    return real(folder, path, flags);
}

void *mmap64(void *address, size_t length, int protection, int flags, int descriptor, off64_t offset) {
    REAL(void *, mmap64, void *, size_t, int, int, int, off64_t);
    if (descriptor >= 0 && flags & MAP_SHARED)
        step_of("map", descriptor);
    return real(address, length, protection, flags, descriptor, offset);
}
