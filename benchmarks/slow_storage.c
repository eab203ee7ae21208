/* A storage of known behaviour under any program, loaded with LD_PRELOAD: opening a file of the dataset takes as long
 * as such a storage takes to give the whole of it. Programs that read in requests of their own kinds are treated alike.
 *
 * SLOW_STORAGE holds words of the form key=value, separated by spaces:
 *
 *   path=TEXT       files whose path contains TEXT
 *   rate=BYTES      bytes/s that all processes share, first come, first served
 *   stall=SECONDS   nothing is given for so long, again and again ...
 *   period=SECONDS  ... in every period, at its end
 *   late=SECONDS    single files are late by so much ...
 *   share=PERMILLE  ... so many of a thousand, drawn by the number of the opening
 *   book=FILE       16 bytes that all processes map: the time until which the storage is booked, files opened so far
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

static char wanted[512];
static double rate, stall, period, late;
static long share;
static struct { atomic_long booked, opened; } *book; /* nanoseconds of CLOCK_MONOTONIC */

__attribute__((constructor)) static void read_words(void) {
    const char *text = getenv("SLOW_STORAGE");
    if (!text) return;
    char words[1024], *rest = words, file[512] = "";
    snprintf(words, sizeof words, "%s", text);
    for (char *word; (word = strtok_r(rest, " ", &rest));) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value++ = 0;
        if (!strcmp(word, "path")) snprintf(wanted, sizeof wanted, "%s", value);
        else if (!strcmp(word, "book")) snprintf(file, sizeof file, "%s", value);
        else if (!strcmp(word, "rate")) rate = atof(value);
        else if (!strcmp(word, "stall")) stall = atof(value);
        else if (!strcmp(word, "period")) period = atof(value);
        else if (!strcmp(word, "late")) late = atof(value);
        else if (!strcmp(word, "share")) share = atol(value);
    }
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int opened = real(file, O_RDWR | O_CLOEXEC);
    void *page = opened < 0 ? MAP_FAILED : mmap(NULL, sizeof *book, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    if (page == MAP_FAILED) { fprintf(stderr, "slow_storage: cannot map %s\n", file); abort(); }
    book = page;
}

static long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void sleep_until(long end) {
    struct timespec t = {end / 1000000000L, end % 1000000000L};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {}
}

static void serve(const char *path) {
    struct stat found;
    if (!book || stat(path, &found) || !S_ISREG(found.st_mode)) return;
    long end = now_ns();
    if (rate > 0) {
        long size = (long)(found.st_size / rate * 1e9), before = atomic_load(&book->booked), begin;
        do begin = before > end ? before : end;
        while (!atomic_compare_exchange_weak(&book->booked, &before, begin + size));
        end = begin + size;
    }
    if (stall > 0) {
        double seconds = end / 1e9, within = seconds - (long)(seconds / period) * period;
        if (within > period - stall) end += (long)((period - within) * 1e9);
    }
    uint64_t x = (uint64_t)atomic_fetch_add(&book->opened, 1) * 0x9E3779B97F4A7C15u + 1;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    if ((long)((x ^ (x >> 31)) % 1000) < share) end += (long)(late * 1e9);
    sleep_until(end);
}

#define OPEN(symbol) \
int symbol(const char *path, int flags, ...) { \
    static int (*real)(const char *, int, ...); \
    if (!real) real = dlsym(RTLD_NEXT, #symbol); \
    va_list rest; va_start(rest, flags); mode_t bits = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; va_end(rest); \
    if (*wanted && strstr(path, wanted)) serve(path); \
    return real(path, flags, bits); \
}
OPEN(open)
OPEN(open64)

#define OPENAT(symbol) \
int symbol(int folder, const char *path, int flags, ...) { \
    static int (*real)(int, const char *, int, ...); \
    if (!real) real = dlsym(RTLD_NEXT, #symbol); \
    va_list rest; va_start(rest, flags); mode_t bits = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; va_end(rest); \
    if (*wanted && strstr(path, wanted)) serve(path); \
    return real(folder, path, flags, bits); \
}
OPENAT(openat)
OPENAT(openat64)
