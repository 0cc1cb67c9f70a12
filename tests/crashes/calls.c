/* System calls of a process, counted, and at a chosen one: a kill, half of a write, or an error.

   Built as a library for LD_PRELOAD. It stands between the process and its C library, so that it meets the calls of
   Python and those of its libraries. Only files below one folder count. Unarmed, every call goes through.
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { PASS, BEFORE, AFTER, HALF, ERROR, FULL };
enum { WRITE = 1, SYNC = 2, NAME = 4, CUT = 8, MAKE = 16 };

static struct {
    char folder[PATH_MAX], name[NAME_MAX];
    int kinds, how, error, log;
    long first, last;
} plan;
static atomic_int armed;
static atomic_long met;
static atomic_long short_writes;
static int lock_error;
static long step_s;
static atomic_long readings;

/* Count the calls of these kinds on files below `folder` whose name fits the pattern `name`, or of any if it is empty; log each to a descriptor.
   Those numbered `first` to `last` (from 1) meet with `how`. */
void crash_plan(const char *folder, const char *name, int kinds, long first, long last, int how, int error, int log) {
    snprintf(plan.folder, sizeof plan.folder, "%s/", folder);
    snprintf(plan.name, sizeof plan.name, "%s", name);
    plan.kinds = kinds, plan.first = first, plan.last = last, plan.how = how, plan.error = error, plan.log = log;
    armed = 1;
}

/* flock fails with this error; -1: it succeeds and locks nothing. */
void crash_locks(int error) { lock_error = error; }

/* Each reading of the wall clock is so many seconds before the one before. */
void crash_clock(long seconds) { step_s = seconds; }

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;)
        pause();
}

static int meet(int kind, const char *call, const char *path, size_t size) {
    if (!(plan.kinds & kind) || strncmp(path, plan.folder, strlen(plan.folder)))
        return PASS;
    const char *name = strrchr(path, '/') + 1;
    if (*plan.name && fnmatch(plan.name, name, 0))
        return PASS;
    long number = ++met;
    int how = number >= plan.first && number <= plan.last ? plan.how : PASS;
    if (plan.log >= 0) {
        char line[NAME_MAX + 80];
        int length = snprintf(line, sizeof line, "%ld %s %s %zu %d\n", number, call, name, size, how);
        syscall(SYS_write, plan.log, line, length);
    }
    if (how == BEFORE)
        die();
    return how;
}

static int meet_file(int kind, const char *call, int file, size_t size) {
    if (!armed)
        return PASS;
    char link[40], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return PASS;
    path[length] = 0;
    return meet(kind, call, path, size);
}

static int meet_path(int kind, const char *call, int folder, const char *given) {
    if (!armed || !given)
        return PASS;
    char path[2 * PATH_MAX] = "";
    if (given[0] != '/') {
        char link[40];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(folder == AT_FDCWD ? "/proc/self/cwd" : link, path, PATH_MAX - 1);
        if (length < 0)
            return PASS;
        path[length] = '/', path[length + 1] = 0;
    }
    strncat(path, given, PATH_MAX - 1);
    return meet(kind, call, path, 0);
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* A call that succeeds or fails as a whole. */
#define WHOLE(how, call)                                                                                               \
    if (how == ERROR || how == FULL) { errno = plan.error; return -1; }                                                \
    if (how == HALF) die();                                                                                            \
    __typeof__(call) result = call;                                                                                    \
    if (how == AFTER) die();                                                                                           \
    return result

/* A write. A disk that fills up takes half of the first write and nothing of the next. */
#define PARTS(how, size, call_of)                                                                                      \
    if (how == ERROR || (how == FULL && (size < 2 || short_writes++))) { errno = plan.error; return -1; }              \
    ssize_t result = call_of(how == HALF || how == FULL ? size / 2 : size);                                            \
    if (how == AFTER || how == HALF) die();                                                                            \
    return result

ssize_t write(int file, const void *data, size_t size) {
    REAL(write);
    int how = meet_file(WRITE, "write", file, size);
#define CALL(n) real(file, data, n)
    PARTS(how, size, CALL);
#undef CALL
}

#define PWRITE(name, type)                                                                                             \
    ssize_t name(int file, const void *data, size_t size, type at) {                                                   \
        REAL(name);                                                                                                    \
        int how = meet_file(WRITE, #name, file, size);                                                                 \
        PARTS(how, size, CALL);                                                                                        \
    }
#define CALL(n) real(file, data, n, at)
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
#undef CALL

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(writev);
    int how = meet_file(WRITE, "writev", file, count);
    WHOLE(how, real(file, parts, count));
}

#define OF_FILE(name, kind)                                                                                            \
    int name(int file) {                                                                                               \
        REAL(name);                                                                                                    \
        int how = meet_file(kind, #name, file, 0);                                                                     \
        WHOLE(how, real(file));                                                                                        \
    }
OF_FILE(fsync, SYNC)
OF_FILE(fdatasync, SYNC)

#define TRUNCATE(name, type)                                                                                           \
    int name(int file, type size) {                                                                                    \
        REAL(name);                                                                                                    \
        int how = meet_file(CUT, #name, file, size);                                                                   \
        WHOLE(how, real(file, size));                                                                                  \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define OF_TWO_PATHS(name)                                                                                             \
    int name(const char *from, const char *to) {                                                                       \
        REAL(name);                                                                                                    \
        int how = meet_path(NAME, #name, AT_FDCWD, to);                                                                \
        WHOLE(how, real(from, to));                                                                                    \
    }
OF_TWO_PATHS(rename)
OF_TWO_PATHS(link)
OF_TWO_PATHS(symlink)

#define OF_PATH(name)                                                                                                  \
    int name(const char *path) {                                                                                       \
        REAL(name);                                                                                                    \
        int how = meet_path(NAME, #name, AT_FDCWD, path);                                                              \
        WHOLE(how, real(path));                                                                                        \
    }
OF_PATH(unlink)
OF_PATH(rmdir)

int renameat(int folder, const char *from, int to_folder, const char *to) {
    REAL(renameat);
    int how = meet_path(NAME, "renameat", to_folder, to);
    WHOLE(how, real(folder, from, to_folder, to));
}

int symlinkat(const char *target, int folder, const char *path) {
    REAL(symlinkat);
    int how = meet_path(NAME, "symlinkat", folder, path);
    WHOLE(how, real(target, folder, path));
}

int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    int how = meet_path(NAME, "unlinkat", folder, path);
    WHOLE(how, real(folder, path, flags));
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    int how = meet_path(NAME, "mkdir", AT_FDCWD, path);
    WHOLE(how, real(path, mode));
}

#define MODE                                                                                                           \
    va_list rest;                                                                                                      \
    va_start(rest, flags);                                                                                             \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                            \
    va_end(rest)

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        REAL(name);                                                                                                    \
        MODE;                                                                                                          \
        int how = flags & O_CREAT ? meet_path(MAKE, #name, AT_FDCWD, path) : PASS;                                     \
        WHOLE(how, real(path, flags, mode));                                                                           \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                                   \
    int name(int folder, const char *path, int flags, ...) {                                                           \
        REAL(name);                                                                                                    \
        MODE;                                                                                                          \
        int how = flags & O_CREAT ? meet_path(MAKE, #name, folder, path) : PASS;                                       \
        WHOLE(how, real(folder, path, flags, mode));                                                                   \
    }
OPENAT(openat)
OPENAT(openat64)

int flock(int file, int how) {
    REAL(flock);
    if (lock_error > 0) {
        errno = lock_error;
        return -1;
    }
    return lock_error ? 0 : real(file, how);
}

/* The clock on the wall. */

int clock_gettime(clockid_t clock, struct timespec *time) {
    REAL(clock_gettime);
    int result = real(clock, time);
    if (step_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec -= step_s * ++readings;
    return result;
}
