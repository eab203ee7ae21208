/* Faults on purpose: loaded with LD_PRELOAD, it makes calls on chosen files fail, be short, hang, or kill.
 *
 * FEEDRATE_FAULTS holds one rule: words of the form key=value, separated by spaces.
 *
 *   path=TEXT    files whose path contains TEXT (default: none)
 *   calls=LIST   of open,read,write,fsync,close,rename,unlink,mkdir (default: all); unlink is rmdir, too
 *   mode=MODE    errno:NAME as EIO or ENOSPC; short (at most one byte of a read or write); hang;
 *                kill (before the call takes effect); killed (after it); count (nothing happens, calls are counted)
 *   first=N      the N-th such call is the first that is struck, from 1 (default 1)
 *   times=N      how many are struck, 0 for all from then on (default 1)
 *
 * FEEDRATE_FAULTS_COUNT names a file of 8 bytes that all processes map: the number of matching calls so far.
 *
 * A process that has the library may give itself another rule: feedrate_faults("..."), "" for none.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, READ = 2, WRITE = 4, FSYNC = 8, CLOSE = 16, RENAME = 32, UNLINK = 64, MKDIR = 128 };
static const char *const NAMES[] = {"open", "read", "write", "fsync", "close", "rename", "unlink", "mkdir"};

#define MOST_FILES 65536
static atomic_char watched[MOST_FILES]; /* by file descriptor */
static char wanted[512], mode[64];
static int calls = ~0, ready;
static long first = 1, times = 1;
static atomic_long own_count;
static atomic_long *count = &own_count;

static int number_of(const char *name) {
    static const struct { const char *name; int number; } KNOWN[] = {
        {"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EACCES", EACCES}, {"EPERM", EPERM}, {"ENOENT", ENOENT},
        {"EROFS", EROFS}, {"ESTALE", ESTALE}, {"EINTR", EINTR}, {"EMFILE", EMFILE}, {"EINVAL", EINVAL},
        {"ENOTCONN", ENOTCONN}, {"ETIMEDOUT", ETIMEDOUT}, {"ENOMEM", ENOMEM},
    };
    for (size_t k = 0; k < sizeof KNOWN / sizeof *KNOWN; k++)
        if (!strcmp(KNOWN[k].name, name)) return KNOWN[k].number;
    return EIO;
}

void feedrate_faults(const char *text) {
    char rule[1024];
    ready = 0, *wanted = 0, *mode = 0, calls = ~0, first = 1, times = 1;
    atomic_store(count, 0);
    snprintf(rule, sizeof rule, "%s", text);
    char *rest = rule;
    for (char *word; (word = strtok_r(rest, " ", &rest));) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value++ = 0;
        if (!strcmp(word, "path")) snprintf(wanted, sizeof wanted, "%s", value);
        else if (!strcmp(word, "mode")) snprintf(mode, sizeof mode, "%s", value);
        else if (!strcmp(word, "first")) first = atol(value);
        else if (!strcmp(word, "times")) times = atol(value);
        else if (!strcmp(word, "calls")) {
            calls = 0;
            char *left = value;
            for (char *name; (name = strtok_r(left, ",", &left));)
                for (size_t k = 0; k < sizeof NAMES / sizeof *NAMES; k++)
                    if (!strcmp(name, NAMES[k])) calls |= 1 << k;
        }
    }
    ready = *wanted != 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("FEEDRATE_FAULTS"), *shared = getenv("FEEDRATE_FAULTS_COUNT");
    if (shared) {
        int (*real_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
        int file = real_open(shared, O_RDWR | O_CLOEXEC);
        void *(*real_mmap)(void *, size_t, int, int, int, off_t) = dlsym(RTLD_NEXT, "mmap");
        void *page = file < 0 ? MAP_FAILED : real_mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (page != MAP_FAILED) count = page;
    }
    if (text) feedrate_faults(text);
}

/* The kernel blocks in a read of a file whose path contains TEXT, as in a dead mount: feedrate asks it for that. */
static void hang(void) {
    char fifo[4200], byte;
    snprintf(fifo, sizeof fifo, "%s%s.hang", *wanted == '/' ? "" : "/tmp/feedrate", wanted);
    syscall(SYS_mknodat, AT_FDCWD, fifo, S_IFIFO | 0600, 0);
    long file = syscall(SYS_openat, AT_FDCWD, fifo, O_RDWR);
    for (;;) syscall(SYS_read, file, &byte, 1);
}

/* What happens to this call: 0 nothing, -1 failed with errno set, 1 short, 2 die after it. */
static int strike(int call) {
    if (!(calls & call)) return 0;
    long number = atomic_fetch_add(count, 1) + 1;
    if (!*mode || !strcmp(mode, "count") || number < first || (times && number >= first + times)) return 0;
    if (!strncmp(mode, "errno:", 6)) { errno = number_of(mode + 6); return -1; }
    if (!strcmp(mode, "hang")) hang();
    if (!strcmp(mode, "kill")) raise(SIGKILL);
    if (!strcmp(mode, "killed")) return 2;
    if (!strcmp(mode, "short")) return 1;
    return 0;
}

static int is_wanted(const char *path) { return ready && path && strstr(path, wanted); }
static int is_watched(int file) { return ready && file >= 0 && file < MOST_FILES && watched[file]; }
static void watch(int file, int yes) { if (file >= 0 && file < MOST_FILES) watched[file] = (char)yes; }

#define REAL(result, name, ...) static result (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, name)
#define AFTER(fate) do { if ((fate) == 2) raise(SIGKILL); } while (0)

#define DEFINE_OPEN(symbol) \
int symbol(const char *path, int flags, ...) { \
    REAL(int, #symbol, const char *, int, ...); \
    va_list rest; va_start(rest, flags); mode_t bits = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; va_end(rest); \
    int ours = is_wanted(path), fate = ours ? strike(OPEN) : 0; \
    if (fate < 0) return -1; \
    int file = real(path, flags, bits); \
    watch(file, ours); AFTER(fate); \
    return file; \
}
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

#define DEFINE_OPENAT(symbol) \
int symbol(int folder, const char *path, int flags, ...) { \
    REAL(int, #symbol, int, const char *, int, ...); \
    va_list rest; va_start(rest, flags); mode_t bits = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; va_end(rest); \
    int ours = is_wanted(path), fate = ours ? strike(OPEN) : 0; \
    if (fate < 0) return -1; \
    int file = real(folder, path, flags, bits); \
    watch(file, ours); AFTER(fate); \
    return file; \
}
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

#define DEFINE_MOVE(symbol, call, buffer, offset_type) \
ssize_t symbol(int file, buffer data, size_t size, offset_type offset) { \
    REAL(ssize_t, #symbol, int, buffer, size_t, offset_type); \
    int fate = is_watched(file) ? strike(call) : 0; \
    if (fate < 0) return -1; \
    ssize_t moved = real(file, data, fate == 1 && size > 1 ? 1 : size, offset); \
    AFTER(fate); return moved; \
}
DEFINE_MOVE(pread, READ, void *, off_t)
DEFINE_MOVE(pread64, READ, void *, off64_t)
DEFINE_MOVE(pwrite, WRITE, const void *, off_t)
DEFINE_MOVE(pwrite64, WRITE, const void *, off64_t)

#define DEFINE_PLAIN(symbol, call, buffer) \
ssize_t symbol(int file, buffer data, size_t size) { \
    REAL(ssize_t, #symbol, int, buffer, size_t); \
    int fate = is_watched(file) ? strike(call) : 0; \
    if (fate < 0) return -1; \
    ssize_t moved = real(file, data, fate == 1 && size > 1 ? 1 : size); \
    AFTER(fate); return moved; \
}
DEFINE_PLAIN(read, READ, void *)
DEFINE_PLAIN(write, WRITE, const void *)

#define DEFINE_VECTOR(symbol, call, offset_type) \
ssize_t symbol(int file, const struct iovec *parts, int number, offset_type offset) { \
    REAL(ssize_t, #symbol, int, const struct iovec *, int, offset_type); \
    int fate = is_watched(file) ? strike(call) : 0; \
    if (fate < 0) return -1; \
    struct iovec part = {parts[0].iov_base, number && parts[0].iov_len ? 1 : 0}; \
    ssize_t moved = fate == 1 ? real(file, &part, 1, offset) : real(file, parts, number, offset); \
    AFTER(fate); return moved; \
}
DEFINE_VECTOR(preadv, READ, off_t)
DEFINE_VECTOR(preadv64, READ, off64_t)
DEFINE_VECTOR(pwritev, WRITE, off_t)
DEFINE_VECTOR(pwritev64, WRITE, off64_t)

#define DEFINE_VECTOR2(symbol, call) \
ssize_t symbol(int file, const struct iovec *parts, int number, off64_t offset, int flags) { \
    REAL(ssize_t, #symbol, int, const struct iovec *, int, off64_t, int); \
    int fate = is_watched(file) ? strike(call) : 0; \
    if (fate < 0) return -1; \
    struct iovec part = {parts[0].iov_base, number && parts[0].iov_len ? 1 : 0}; \
    ssize_t moved = fate == 1 ? real(file, &part, 1, offset, flags) : real(file, parts, number, offset, flags); \
    AFTER(fate); return moved; \
}
DEFINE_VECTOR2(preadv64v2, READ)
DEFINE_VECTOR2(pwritev64v2, WRITE)

#define DEFINE_SYNC(symbol) \
int symbol(int file) { \
    REAL(int, #symbol, int); \
    int fate = is_watched(file) ? strike(FSYNC) : 0; \
    if (fate < 0) return -1; \
    int done = real(file); AFTER(fate); return done; \
}
DEFINE_SYNC(fsync)
DEFINE_SYNC(fdatasync)

int close(int file) {
    REAL(int, "close", int);
    int fate = is_watched(file) ? strike(CLOSE) : 0;
    watch(file, 0);
    int error = errno, done = real(file); /* Linux closes it even when it reports an error */
    if (fate < 0) { errno = error; return -1; }
    AFTER(fate);
    return done;
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    int fate = is_wanted(from) || is_wanted(to) ? strike(RENAME) : 0;
    if (fate < 0) return -1;
    int done = real(from, to);
    AFTER(fate);
    return done;
}

#define DEFINE_REMOVE(symbol) \
int symbol(const char *path) { \
    REAL(int, #symbol, const char *); \
    int fate = is_wanted(path) ? strike(UNLINK) : 0; \
    if (fate < 0) return -1; \
    int done = real(path); AFTER(fate); return done; \
}
DEFINE_REMOVE(unlink)
DEFINE_REMOVE(rmdir)

int mkdir(const char *path, mode_t bits) {
    REAL(int, "mkdir", const char *, mode_t);
    int fate = is_wanted(path) ? strike(MKDIR) : 0;
    if (fate < 0) return -1;
    int done = real(path, bits);
    AFTER(fate);
    return done;
}
