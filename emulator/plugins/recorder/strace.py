"""Trace a job's system calls with strace(1): command line, end, and parser of the output."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from emulator.launch.process import die_with_parent
from emulator.plugins.recorder.hook.feedrate_probe import MARK, let_trace, tracer_of, usage
from emulator.plugins.recorder.log import BATCH_BEGINS, BATCH_ENDS, CallLog

CALLS = (
    *("?open", "openat", "?openat2", "read", "pread64", "readv", "preadv", "preadv2", "?lseek", "mmap"),
    *("?fadvise64", "getpriority", "clone", "?clone3", "?fork", "?vfork", "io_setup", "io_uring_setup"),
    *("?sendfile", "?sendfile64", "?copy_file_range"),
)
"""The system calls that strace traces."""

_MOST_DEPTH = 64
"""Most ancestors of a thread: where the kernel reuses process IDs, they may form a circle."""
_PROBE_SECONDS = 5.0
"""Seconds for strace to attach to a process that sleeps."""


def attach(process: int) -> subprocess.Popen[bytes]:
    """Start strace on `process` and what it starts, with its calls and errors in `stdout`.

    Each call of a traced process stops it twice, so only processes that read samples are traced. A filter
    (--seccomp-bpf) cannot be used: it would stay after the tracer has ended and make the traced calls fail.

    A SIGKILL ends it, or the end of the calling thread: the kernel then lets the traced processes go on. When
    strace detaches by itself, it waits for a process in vfork, which waits for its child, which strace has
    stopped. Raises OSError.
    """
    options = ["-f", "-qqq", "-y", "-ttt", "-s", "0", "-T", "-e", "signal=none", "-o", "/dev/stdout"]
    command = ["strace", *options, "-e", "trace=" + ",".join(CALLS), "-p", str(process)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True, preexec_fn=partial(die_with_parent, os.getpid()),
    )  # fmt: skip


def usable() -> str:
    """Return why strace cannot be used here, or an empty string if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    with subprocess.Popen(["/bin/sleep", "60"], preexec_fn=partial(let_trace, os.getpid())) as job:
        try:
            with attach(job.pid) as tracer:
                deadline = time.monotonic() + _PROBE_SECONDS
                while not tracer_of(job.pid) and tracer.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.001)
                traced = tracer_of(job.pid) != 0
                tracer.kill()
                errors = tracer.communicate()[0].decode(errors="replace").strip().splitlines()
        except OSError:
            return "strace does not run here"
        finally:
            job.kill()
    return "" if traced else f"strace is not permitted here ({(errors or ['it failed'])[-1][:100]})"


_RESULT = re.compile(rb"\) += (-?\d+)")
_AT = re.compile(rb"(\d+)<(/.*?)>, ")
_OPENED = re.compile(rb"= (\d+)<(/.*)> <[\d.]+>$")
_FLAGS = re.compile(rb"\bO_[A-Z]+\b(?=[|),])")
_SECONDS = re.compile(rb"<(\d+\.\d+)>$")
_OFFSET = re.compile(rb", \d+, (\d+)(?:, \w+)?\) += ")
"""Offset of pread64, preadv and preadv2, after the number of bytes or buffers."""
_ADVISED = re.compile(rb", (\d+), (\d+), POSIX_FADV_WILLNEED\) += 0")
_SENT = re.compile(rb"\d+<.*?>, (\d+)<(/.*?)>, (\[\d+|NULL)")
"""sendfile: its output, its input, and the offset, or NULL."""
_COPIED = re.compile(rb"(\d+)<(/.*?)>, (\[\d+|NULL)")
_MAPPED = re.compile(rb"\w+, (\d+), (\S+), (\S+), (\d+)<(/.*)>, (\w+)\)")
_MARK = re.compile(rb"PRIO_USER, (-?\d+)\)")
_ASTRAY = re.compile(rb"pid (\d+): (?:entering|exiting), ")
"""strace confuses the beginnings and ends of a thread's calls. This happens where it attaches to a thread
that waits, on a busy machine. Other threads are traced correctly."""


def plain(path: bytes) -> bytes:
    """Return a path without strace's escapes, which are C's."""
    if b"\\" not in path:
        return path
    return path.decode("unicode_escape", "replace").encode("latin-1", "replace")


class Tracer:
    """Parses the output of straces, in pieces of any size, into a CallLog."""

    def __init__(self, log: CallLog) -> None:
        self.log = log
        self.asynchronous = False
        """True if a process set up io_uring or libaio, whose reads are not among the traced calls."""
        self.errors: list[str] = []
        """Errors of strace, but for threads that had ended before it could attach to them, or never read."""
        self._starters: dict[int, int] = {}  # thread or process -> the thread that started it
        self._children: set[int] = set()  # those that are processes
        self._astray: set[int] = set()  # threads whose calls strace confuses
        self._pending: dict[int, tuple[float, bytes]] = {}  # thread -> start of its call, and the first part
        self._rest: dict[int, bytes] = {}  # traced process -> its unfinished line
        self._traced = 0  # the process that strace was attached to, whose line is parsed
        self._calls: dict[bytes, Callable[[int, bytes], None]] = {
            **dict.fromkeys((b"read", b"readv"), self._read),
            **dict.fromkeys((b"pread64", b"preadv", b"preadv2"), self._pread),
            **dict.fromkeys((b"sendfile", b"sendfile64"), partial(self._copied, _SENT)),
            b"copy_file_range": partial(self._copied, _COPIED),
            b"lseek": self._lseek,
            **dict.fromkeys((b"open", b"openat", b"openat2"), self._opened),
            b"mmap": self._mmap,
            b"fadvise64": self._advised,
            b"getpriority": self._mark,
            **dict.fromkeys((b"clone", b"clone3", b"fork", b"vfork"), self._clone),
            **dict.fromkeys((b"io_setup", b"io_uring_setup"), self._setup),
        }

    def ancestors(self, thread: int) -> list[int]:
        """Return a thread, the one that started it, the one that started that, and so on."""
        chain = [thread]
        while chain[-1] in self._starters and len(chain) < _MOST_DEPTH:
            chain.append(self._starters[chain[-1]])
        return chain

    def caller(self, thread: int) -> int:
        """Return the thread for which a thread of a child process reads; for other threads, the thread."""
        chain = self.ancestors(thread)
        for child, starter in pairwise(chain):
            if child in self._children:
                thread = starter
        return thread

    def feed(self, data: bytes, process: int = 0) -> None:
        """Parse the next bytes of the output of the strace of `process`."""
        lines = (self._rest.get(process, b"") + data).split(b"\n")
        self._rest[process] = lines.pop()
        self._traced = process
        for line in lines:
            self._line(line)

    def _line(self, line: bytes) -> None:
        number, _, rest = line.partition(b" ")
        if number == b"strace:":
            self._message(rest)
        stamp, _, rest = rest.lstrip().partition(b" ")
        if not number.isdigit() or not stamp.replace(b".", b"", 1).isdigit():
            return
        thread, begin, rest = int(number), float(stamp), rest.lstrip()
        if thread in self._astray:
            return
        if rest.endswith(b"<unfinished ...>"):
            self._pending[thread] = begin, rest[: -len(b" <unfinished ...>")]
            return
        if rest.startswith(b"<... "):
            begin, first = self._pending.pop(thread, (begin, b""))
            rest = first + rest.partition(b"resumed>")[2]
        name, _, arguments = rest.partition(b"(")
        call = self._calls.get(name)
        if call is not None:
            seconds = _SECONDS.search(arguments)
            self.log.when = begin, begin + (float(seconds[1]) if seconds else 0.0)
            call(thread, arguments)

    def _message(self, message: bytes) -> None:
        """Keep a message of strace, unless it concerns a thread that has ended, or that never read."""
        astray = _ASTRAY.match(message)
        if astray is not None:
            thread = int(astray[1])
            self._astray.add(thread)
            if usage(f"/proc/{thread}/task/{thread}").get("calls") == 0:
                return
        if os.strerror(errno.ESRCH).encode() not in message:
            self.errors.append(message.decode(errors="replace")[:100])

    def _read(self, thread: int, text: bytes, offset: int | None = None) -> None:
        file, result = _AT.match(text), _RESULT.search(text)
        if file is not None and result is not None:
            path, size = plain(file[2]), int(result[1])
            self.log.read(self._traced, thread, int(file[1]), path, offset, size)

    def _pread(self, thread: int, text: bytes) -> None:
        if offset := _OFFSET.search(text):
            self._read(thread, text, int(offset[1]))

    def _copied(self, parts: re.Pattern[bytes], thread: int, text: bytes) -> None:
        file, result = parts.match(text), _RESULT.search(text)
        if file is not None and result is not None:
            offset = None if file[3] == b"NULL" else int(file[3][1:])
            self.log.read(self._traced, thread, int(file[1]), plain(file[2]), offset, int(result[1]))

    def _lseek(self, thread: int, text: bytes) -> None:
        file, result = _AT.match(text), _RESULT.search(text)
        if file is not None and result is not None and int(result[1]) >= 0:
            self.log.sought(self._traced, int(file[1]), plain(file[2]), int(result[1]))

    def _opened(self, thread: int, text: bytes) -> None:
        file, flags = _OPENED.search(text), _FLAGS.findall(text)
        if file and b"O_WRONLY" not in flags and b"O_DIRECTORY" not in flags:
            self.log.opened(self._traced, thread, int(file[1]), plain(file[2]))

    def _mmap(self, thread: int, text: bytes) -> None:
        file = _MAPPED.match(text)
        if file and b"PROT_READ" in file[2] and b"PROT_EXEC" not in file[2]:
            self.log.mapped(self._traced, thread, plain(file[5]), int(file[1]))

    def _advised(self, thread: int, text: bytes) -> None:
        file, advice = _AT.match(text), _ADVISED.search(text)
        if file is not None and advice is not None:
            self.log.advised(self._traced, thread, plain(file[2]), int(advice[1]), int(advice[2]))

    def _mark(self, thread: int, text: bytes) -> None:
        argument = _MARK.search(text)
        number = int(argument[1]) % 2**32 - MARK if argument else -1
        if 0 <= number < 2**17:
            op = BATCH_ENDS if number % 2 else BATCH_BEGINS
            self.log.border(self._traced, thread, op, number // 2)

    def _clone(self, thread: int, text: bytes) -> None:
        result = _RESULT.search(text)
        child = int(result[1]) if result else -1
        if child <= 0:
            return
        self._astray.discard(child)  # the kernel reuses process IDs
        self._starters[child] = thread
        (self._children.discard if b"CLONE_THREAD" in text else self._children.add)(child)

    def _setup(self, thread: int, text: bytes) -> None:
        self.asynchronous = True
