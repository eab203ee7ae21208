/* A storage whose metadata is slow, under any program: opening a file takes longer. Loaded with LD_PRELOAD.
 *
 * SLOW_STORAGE=SECONDS:TEXT   opening a regular file whose path contains TEXT takes SECONDS more
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static void wait_for(const char *path) {
    char *wanted = getenv("SLOW_STORAGE");
    double seconds = wanted ? strtod(wanted, &wanted) : 0;
    struct stat found;
    if (!seconds || !strstr(path, wanted + 1) || stat(path, &found) || !S_ISREG(found.st_mode)) return;
    struct timespec left = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) && errno == EINTR) {}
}

#define REAL(symbol, ...) \
    static int (*real)(__VA_ARGS__, ...); \
    if (!real) real = dlsym(RTLD_NEXT, #symbol); \
    va_list rest; va_start(rest, flags); \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    wait_for(path);
#define OPEN(symbol) int symbol(const char *path, int flags, ...) { \
    REAL(symbol, const char *, int) return real(path, flags, mode); }
#define OPENAT(symbol) int symbol(int folder, const char *path, int flags, ...) { \
    REAL(symbol, int, const char *, int) return real(folder, path, flags, mode); }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
