/* Reads a batch of pieces of files without Python's lock: with preadv(2), or with io_uring, many at a time.

A piece is a row (fd, offset, length, size): bytes of an open file, or, with fd -1, a whole file by its path, which is
opened and must have `size` bytes. Each is read in requests of at most `block` bytes, one after the other; the bytes
are discarded. storage/batches.py says what the arguments mean, and does the same in Python. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define IOVECS 1024 /* the most that Linux takes */
enum { DIRECT = 1, EVICT = 2, WRONG_SIZE = -1, CUT_SHORT = -2, CANCELLED = -3 };

typedef struct { int64_t fd, offset, length, size; } Row;
/* `end`: WRONG_SIZE: bytes that the file has; CUT_SHORT: where it ended. `opened` is false if the open failed. */
typedef struct { int error; Py_ssize_t row; int64_t end; int opened; } Failure;

typedef struct {
    Py_buffer names, table, heads, cancelled, buffer, text;
    int64_t block, skim; /* bytes of a request; of the area into which bytes of the page cache are discarded */
    int flags;
    Py_ssize_t rows, requests;
    const char *path;    /* of the next row */
    int64_t delivered;
    double opening, *times; /* seconds of all opens; of each request */
    Failure failure;     /* the first one */
} Batch;

typedef struct { int64_t low, needed, asked; int last; } Request; /* from where, at least, and at most */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void note(Batch *batch, const char *path){
    snprintf(batch->text.buf, batch->text.len, "read of %s", path);
}

static void fail(Batch *batch, Py_ssize_t row, int error, int64_t end, int opened) {
    if (!batch->failure.error)
        batch->failure = (Failure){error, row, end, opened};
}

static const Row *row_at(const Batch *batch, Py_ssize_t number) { return (const Row *)batch->table.buf + number; }

/* Return the request of a row that follows its first `done` bytes. The last one of a whole file asks for more than
   the file should have. */
static Request request_at(const Batch *batch, const Row *row, int64_t done) {
    int64_t at = row->offset + done, left = row->length - done, length = left < batch->block ? left : batch->block;
    int direct = batch->flags & DIRECT;
    Request request = {.low = direct ? at / PAGE * PAGE : at, .last = length == left};
    request.needed = at + length - request.low;
    request.asked = request.needed + (row->fd < 0 && request.last);
    if (direct)
        request.asked = (request.asked + PAGE - 1) / PAGE * PAGE;
    return request;
}

static int is_wrong(const Row *row, const Request *request, int64_t got) {
    return got < request->needed || (row->fd < 0 && request->last && got > request->needed);
}

/* Count a request, and keep the first bytes of a file, as many as a row of `heads` holds. */
static void add(Batch *batch, Py_ssize_t number, const Request *request, double seconds, int64_t got, char *bytes) {
    int64_t room = batch->heads.len / batch->rows, head = got < room ? got : room;
    if (room && request->low == 0)
        memcpy((char *)batch->heads.buf + number * room, bytes, head < request->needed ? head : request->needed);
    batch->times[batch->requests++] = seconds;
    batch->delivered += got;
}

/* Where a request is read to, without its first `got` bytes: behind the head of the file. In the page cache,
   discarded bytes overwrite each other; not with O_DIRECT, where a device may write in any order. */
static int places(const Batch *batch, const Request *request, int64_t got, char *buffer, struct iovec *parts) {
    int64_t head = request->low == 0 && got < PAGE ? PAGE - got : 0, rest = request->asked - got;
    int count = 0;
    if (batch->flags & DIRECT)
        head = rest;
    if (head)
        parts[count++] = (struct iovec){buffer + got, head < rest ? head : rest};
    for (rest -= head; rest > 0 && count < IOVECS; rest -= batch->skim)
        parts[count++] = (struct iovec){buffer + PAGE, rest < batch->skim ? rest : batch->skim};
    return count;
}

/* Read a request, which a signal or a server may shorten; return the bytes, fewer only at the end of the file. */
static int64_t read_request(Batch *batch, Py_ssize_t number, const Request *request, int fd, char *buffer) {
    struct iovec parts[IOVECS];
    int64_t got = 0;
    ssize_t size;
    do {
        size = preadv(fd, parts, places(batch, request, got, buffer, parts), request->low + got);
        got += size > 0 ? size : 0;
    } while ((size < 0 && errno == EINTR)
             || (size > 0 && got < request->needed && !(batch->flags & DIRECT && got % PAGE)));
    if (size < 0)
        fail(batch, number, errno, 0, 1);
    return got;
}

/* Read the requests of a row from its open file. */
static void read_requests(Batch *batch, Py_ssize_t number, int fd, char *buffer) {
    const Row *row = row_at(batch, number);
    struct stat status;
    for (int64_t done = 0; !batch->failure.error && (done < row->length || (!done && row->fd < 0));) {
        if (*(volatile char *)batch->cancelled.buf)
            return fail(batch, number, CANCELLED, 0, 1);
        Request request = request_at(batch, row, done);
        double before = now();
        int64_t got = read_request(batch, number, &request, fd, buffer);
        if (batch->failure.error)
            return;
        add(batch, number, &request, now() - before, got, buffer);
        if (is_wrong(row, &request, got) && row->fd < 0 && !fstat(fd, &status) && status.st_size != row->size)
            fail(batch, number, WRONG_SIZE, status.st_size, 1);
        if (got < request.needed)
            fail(batch, number, CUT_SHORT, request.low + got, 1);
        done = request.low + request.needed - row->offset;
        if (request.last)
            return;
    }
}

static void read_row(Batch *batch, Py_ssize_t number, const char *path, char *buffer) {
    int fd = row_at(batch, number)->fd;
    note(batch, path);
    if (fd >= 0)
        return read_requests(batch, number, fd, buffer);
    double before = now();
    fd = open(path, O_RDONLY | O_CLOEXEC | (batch->flags & DIRECT ? O_DIRECT : 0));
    if (fd < 0)
        return fail(batch, number, errno, 0, 0);
    if (batch->flags & EVICT)
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    batch->opening += now() - before;
    read_requests(batch, number, fd, buffer);
    if (batch->flags & EVICT)
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

/* ---- io_uring. */

enum { OPEN, READ, CLOSE, KINDS };

typedef struct {
    Py_ssize_t number;
    const char *path; /* NULL if the slot is free */
    int waiting, bad; /* completions to come; something unexpected happened */
    double begin;
} Slot;

typedef struct {
    int fd, depth;
    unsigned *tail, *mask, *array, *done_head, *done_tail, *done_mask, filled;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *completions;
    char *shared;
    size_t shared_size, entries_size;
    Slot slots[];
} Ring;

static struct io_uring_sqe *entry(Ring *ring, int slot, int kind, int opcode, int fd, const void *address) {
    unsigned place = (*ring->tail + ring->filled++) & *ring->mask;
    ring->array[place] = place;
    ring->entries[place] = (struct io_uring_sqe){.opcode = opcode, .fd = fd, .addr = (uintptr_t)address};
    ring->entries[place].user_data = slot * KINDS + kind;
    ring->slots[slot].waiting++;
    return ring->entries + place;
}

/* Begin a row: its open, request and close are linked. The links are hard: what fails leaves no file open. */
static void begin(Ring *ring, int at, Batch *batch, Py_ssize_t number, const char *path, char *buffer) {
    const Row *row = row_at(batch, number);
    Request request = request_at(batch, row, 0);
    struct io_uring_sqe *next;
    ring->slots[at] = (Slot){.number = number, .path = path, .begin = now(), .bad = !request.last};
    if (!request.last || (row->fd >= 0 && !row->length))
        return;
    if (row->fd < 0) {
        next = entry(ring, at, OPEN, IORING_OP_OPENAT, AT_FDCWD, path);
        next->open_flags = O_RDONLY | O_DIRECT;
        next->file_index = at + 1;
        next->flags = IOSQE_IO_HARDLINK;
    }
    next = entry(ring, at, READ, IORING_OP_READ, row->fd < 0 ? at : (int)row->fd, buffer);
    next->len = request.asked;
    next->off = request.low;
    next->flags = row->fd < 0 ? IOSQE_FIXED_FILE | IOSQE_IO_HARDLINK : 0;
    if (row->fd < 0)
        entry(ring, at, CLOSE, IORING_OP_CLOSE, 0, NULL)->file_index = at + 1;
}

static void completed(Ring *ring, Batch *batch, int at, int kind, int result, char *buffer) {
    Slot *slot = ring->slots + at;
    const Row *row = row_at(batch, slot->number);
    Request request = request_at(batch, row, 0);
    double seconds = now() - slot->begin;
    slot->waiting--;
    if (kind == OPEN) {
        batch->opening += seconds;
        slot->begin += seconds;
    } else if (kind == READ) {
        slot->bad = result < 0 || is_wrong(row, &request, result);
        if (!slot->bad)
            add(batch, slot->number, &request, seconds, result, buffer);
    }
}

static int enter(Ring *ring) {
    struct __kernel_timespec time = {.tv_nsec = 250000000};
    struct io_uring_getevents_arg waits = {.ts = (uintptr_t)&time};
    unsigned filled = ring->filled, flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    __atomic_store_n(ring->tail, *ring->tail + filled, __ATOMIC_RELEASE);
    ring->filled = 0;
    return syscall(__NR_io_uring_enter, ring->fd, filled, 1, flags, &waits, sizeof waits) < 0 ? errno : 0;
}

/* Read all rows, `depth` of them at a time. A row of several requests, or where anything unexpected happens, is read
   with preadv(2), which finds out what is wrong. */
static void read_in_ring(Batch *batch, Ring *ring) {
    Py_ssize_t started = 0, ended = 0;
    size_t room = batch->buffer.len / ring->depth / PAGE * PAGE;
    char *buffers = batch->buffer.buf;
    while (ended < started || (started < batch->rows && !batch->failure.error)) {
        Slot *oldest = NULL;
        for (int at = 0; at < ring->depth; at++) {
            Slot *slot = ring->slots + at;
            while (!slot->waiting) { /* it is free, or its row has ended */
                if (slot->path) {
                    if (slot->bad && !batch->failure.error)
                        read_row(batch, slot->number, slot->path, buffers + at * room);
                    slot->path = NULL;
                    ended++;
                }
                if (started == batch->rows || batch->failure.error)
                    break;
                if (*(volatile char *)batch->cancelled.buf)
                    fail(batch, started, CANCELLED, 0, 1);
                begin(ring, at, batch, started++, batch->path, buffers + at * room);
                batch->path += strlen(batch->path) + 1;
            }
            if (slot->waiting && (!oldest || slot->begin < oldest->begin))
                oldest = slot;
        }
        if (!oldest)
            continue;
        int error = enter(ring);
        if (error == ETIME) {
            note(batch, oldest->path);
        } else if (error && error != EINTR && error != EBUSY && error != EAGAIN) {
            close(ring->fd); /* nothing more comes from it; the kernel holds the pages of what is under way */
            ring->fd = -1;
            return fail(batch, oldest->number, error, 0, 1);
        }
        unsigned head = *ring->done_head;
        for (; head != __atomic_load_n(ring->done_tail, __ATOMIC_ACQUIRE); head++) {
            struct io_uring_cqe *found = ring->completions + (head & *ring->done_mask);
            int at = found->user_data / KINDS;
            completed(ring, batch, at, found->user_data % KINDS, found->res, buffers + at * room);
        }
        __atomic_store_n(ring->done_head, head, __ATOMIC_RELEASE);
    }
}

static void ring_free(PyObject *capsule) {
    Ring *ring = PyCapsule_GetPointer(capsule, "ring");
    munmap(ring->entries, ring->entries_size); /* of no bytes, where it could not be set up */
    munmap(ring->shared, ring->shared_size);
    if (ring->fd >= 0)
        close(ring->fd);
    free(ring);
}

static int set_up(Ring *ring) {
    struct io_uring_params with = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    struct io_uring_rsrc_register files = {.nr = ring->depth, .flags = IORING_RSRC_REGISTER_SPARSE};
    unsigned workers[2] = {ring->depth, ring->depth}; /* of file systems that cannot read without a thread */
    ring->fd = syscall(__NR_io_uring_setup, ring->depth * KINDS, &with);
    if (ring->fd < 0 || syscall(__NR_io_uring_register, ring->fd, IORING_REGISTER_FILES2, &files, sizeof files) < 0)
        return 0;
    syscall(__NR_io_uring_register, ring->fd, IORING_REGISTER_IOWQ_MAX_WORKERS, workers, 2);
    size_t sent = with.sq_off.array + with.sq_entries * sizeof(unsigned);
    size_t done = with.cq_off.cqes + with.cq_entries * sizeof(struct io_uring_cqe);
    ring->shared_size = sent > done ? sent : done;
    ring->entries_size = with.sq_entries * sizeof(struct io_uring_sqe);
    int protection = PROT_READ | PROT_WRITE, shared = MAP_SHARED | MAP_POPULATE;
    ring->shared = mmap(NULL, ring->shared_size, protection, shared, ring->fd, IORING_OFF_SQ_RING);
    ring->entries = mmap(NULL, ring->entries_size, protection, shared, ring->fd, IORING_OFF_SQES);
    if (ring->shared == MAP_FAILED || ring->entries == MAP_FAILED)
        return 0;
    ring->tail = (unsigned *)(ring->shared + with.sq_off.tail);
    ring->mask = (unsigned *)(ring->shared + with.sq_off.ring_mask);
    ring->array = (unsigned *)(ring->shared + with.sq_off.array);
    ring->done_head = (unsigned *)(ring->shared + with.cq_off.head);
    ring->done_tail = (unsigned *)(ring->shared + with.cq_off.tail);
    ring->done_mask = (unsigned *)(ring->shared + with.cq_off.ring_mask);
    ring->completions = (struct io_uring_cqe *)(ring->shared + with.cq_off.cqes);
    return 1;
}

static PyObject *ring_new(PyObject *self, PyObject *argument) {
    long depth = PyLong_AsLong(argument);
    if (depth < 1 || depth > 1024)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "a ring has 1 to 1024 slots");
    Ring *ring = calloc(1, sizeof(Ring) + depth * sizeof(Slot));
    if (!ring)
        return PyErr_NoMemory();
    ring->depth = depth;
    int good = set_up(ring), error = errno;
    PyObject *capsule = PyCapsule_New(ring, "ring", ring_free);
    if (good || !capsule)
        return capsule;
    Py_DECREF(capsule);
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* ---- Python. */

/* Check the rows, and make room for the seconds of their requests, which a ring may read twice. */
static int prepare(Batch *batch, Ring *ring) {
    const char *name = batch->names.buf, *end = name + batch->names.len;
    int64_t room = batch->flags & DIRECT ? batch->block + 2 * PAGE : PAGE + batch->skim, requests = 0;
    const int64_t most = INT64_MAX / 4, most_requests = 1 << 26;
    batch->rows = batch->table.len / sizeof(Row);
    batch->path = name;
    int good = batch->block > 0 && batch->block <= 1 << 30 && batch->skim > 0 && batch->skim <= 1 << 30
        && (!ring || batch->flags == DIRECT) && batch->cancelled.len > 0 && batch->text.len > 0
        && (batch->flags & DIRECT || batch->heads.len <= batch->rows * PAGE)
        && batch->buffer.len / (ring ? ring->depth : 1) / PAGE * PAGE >= room;
    for (const Row *row = row_at(batch, 0); good && row < row_at(batch, batch->rows); row++) {
        const char *stop = memchr(name, 0, end - name);
        good = stop && row->offset >= 0 && row->offset < most && row->length >= 0 && row->length < most
            && (row->fd >= 0 || row->offset == 0) && row->fd <= INT32_MAX && requests < most_requests
            && row->length / batch->block < most_requests;
        requests += good ? row->length / batch->block + 1 : 0;
        name = stop ? stop + 1 : name;
    }
    batch->times = good ? malloc((2 * requests + 1) * sizeof(double)) : NULL;
    if (!batch->times)
        PyErr_SetString(PyExc_ValueError, "the buffers do not fit the rows");
    return batch->times != NULL;
}

/* Return (bytes delivered, seconds of opens, seconds of each request, failure). */
static PyObject *scan(PyObject *self, PyObject *arguments) {
    Batch batch = {0};
    PyObject *capsule, *result = NULL;
    Ring *ring = NULL;
    if (!PyArg_ParseTuple(arguments, "Oy*y*w*w*w*LLiw*", &capsule, &batch.names, &batch.table, &batch.heads,
                          &batch.cancelled, &batch.buffer, &batch.block, &batch.skim, &batch.flags, &batch.text))
        return NULL;
    if ((capsule == Py_None || (ring = PyCapsule_GetPointer(capsule, "ring"))) && prepare(&batch, ring)) {
        Py_BEGIN_ALLOW_THREADS
        if (ring)
            read_in_ring(&batch, ring);
        for (Py_ssize_t row = 0; !ring && row < batch.rows && !batch.failure.error; row++) {
            read_row(&batch, row, batch.path, batch.buffer.buf);
            batch.path += strlen(batch.path) + 1;
        }
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("Ldy#(niLi)", (long long)batch.delivered, batch.opening, (char *)batch.times,
                               batch.requests * sizeof(double), batch.failure.row, batch.failure.error,
                               (long long)batch.failure.end, batch.failure.opened);
    }
    Py_buffer *all[] = {&batch.names, &batch.table, &batch.heads, &batch.cancelled, &batch.buffer, &batch.text};
    for (int i = 0; i < 6; i++)
        PyBuffer_Release(all[i]);
    free(batch.times);
    return result;
}

static PyMethodDef METHODS[] = {
    {"scan", scan, METH_VARARGS, "Read a batch, with preadv(2) or in a ring."},
    {"ring", ring_new, METH_O, "Make a ring for this thread. Raises OSError where the kernel has or allows none."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_reads", NULL, -1, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__reads(void) {
    return PyModule_Create(&MODULE);
}
