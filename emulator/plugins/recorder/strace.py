"""Trace a job's system calls with strace(1): command line, end, and parser of the output."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from emulator.launch.process import die_with_parent
from emulator.plugins.recorder.hook.feedrate_probe import MARK, let_trace, tracer_of, usage
from emulator.plugins.recorder.log import BEGIN, END, CallLog

CALLS = (
    *("?open", "openat", "?openat2", "read", "pread64", "readv", "preadv", "preadv2", "?lseek", "mmap"),
    *("?fadvise64", "getpriority", "clone", "?clone3", "?fork", "?vfork", "io_setup", "io_uring_setup"),
    *("?sendfile", "?sendfile64", "?copy_file_range"),
)
"""The system calls that strace traces."""

_MOST_PROCESSES = 100_000
"""Most processes and threads to distinguish."""
_MOST_LINE = 1 << 16
"""Most bytes of an unfinished line that are kept."""
_PROBE_SECONDS = 5.0
"""Seconds for strace to attach to a process that sleeps."""


def command(processes: Sequence[int]) -> list[str]:
    """Return the command that traces `processes`, and what they start, and writes their calls to its stdout.

    Each call of a traced process stops it twice, so only processes that read samples are traced. A filter
    (--seccomp-bpf) cannot be used: it would stay after the tracer has ended and make the traced calls fail.
    """
    options = ["-f", "-qqq", "-y", "-ttt", "-s", "0", "-T", "-e", "signal=none", "-o", "/dev/stdout"]
    attached = [word for process in processes for word in ("-p", str(process))]
    return ["strace", *options, "-e", "trace=" + ",".join(CALLS), *attached]


def attach(processes: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start strace on `processes`, with its calls and errors in `stdout`.

    A SIGKILL ends it, or the end of the calling thread: the kernel then lets the traced processes go on. When
    strace detaches by itself, it waits for a process in vfork, which waits for its child, which strace has
    stopped. Raises OSError.
    """
    return subprocess.Popen(
        command(processes), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True, preexec_fn=partial(die_with_parent, os.getpid()),
    )  # fmt: skip


def usable() -> str:
    """Return why strace cannot be used here, or an empty string if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    with subprocess.Popen(["/bin/sleep", "60"], preexec_fn=partial(let_trace, os.getpid())) as job:
        try:
            with attach([job.pid]) as tracer:
                deadline = time.monotonic() + _PROBE_SECONDS
                while not tracer_of(job.pid) and tracer.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.001)
                traced = tracer_of(job.pid) != 0
                tracer.kill()
                said = tracer.communicate()[0].decode(errors="replace").strip().splitlines()
        except OSError:
            return "strace does not run here"
        finally:
            job.kill()
    return "" if traced else f"strace is not permitted here ({(said or ['it failed'])[-1][:100]})"


_RESULT = re.compile(rb"\) += (-?\d+)")
_AT = re.compile(rb"(\d+)<(/.*?)>, ")
_OPENED = re.compile(rb"= (\d+)<(/.*)> <[\d.]+>$")
_FLAGS = re.compile(rb"\bO_[A-Z]+\b(?=[|),])")
_SECONDS = re.compile(rb"<(\d+\.\d+)>$")
_PLACE = re.compile(rb", \d+, (\d+)(?:, \w+)?\) += ")
"""Offset of pread64, preadv and preadv2, after the number of bytes or buffers."""
_ADVISED = re.compile(rb", (\d+), (\d+), POSIX_FADV_WILLNEED\) += 0")
_SENT = re.compile(rb"\d+<.*?>, (\d+)<(/.*?)>, (\[\d+|NULL)")
"""sendfile: its output, its input, and the offset, or NULL."""
_COPIED = re.compile(rb"(\d+)<(/.*?)>, (\[\d+|NULL)")
_ASTRAY = re.compile(rb"pid (\d+): (?:entering|exiting), ")
"""strace confuses the beginnings and ends of a thread's calls. This happens where it attaches to a thread
that waits, on a busy machine. Other threads are traced correctly."""
_MAPPED = re.compile(rb"\w+, (\d+), (\S+), (\S+), (\d+)<(/.*)>, (\w+)\)")


def plain(path: bytes) -> bytes:
    """Return a path without strace's escapes, which are C's."""
    if b"\\" not in path:
        return path
    return path.decode("unicode_escape", "replace").encode("latin-1", "replace")


def _facts(file: str) -> dict[str, str]:
    """Return the lines "NAME:<tab>VALUE" of a file of /proc. Raises OSError."""
    lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _children(process: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (thread / "children").read_text(encoding="ascii").split())
    return found


class Tracer:
    """Parses the output of straces, in pieces of any size, into a CallLog."""

    def __init__(self, log: CallLog) -> None:
        self.log = log
        self.parents: dict[int, int] = {}
        """Parents of processes."""
        self.asynchronous: set[int] = set()
        """Processes that set up io_uring or libaio, whose reads are not among the traced calls."""
        self.errors: list[str] = []
        """Errors of strace, but for threads that had ended before it could attach to them, or never read."""
        self._astray: set[int] = set()  # threads whose calls strace confuses
        self._process: dict[int, int] = {}  # thread -> process
        self._pending: dict[int, tuple[float, bytes]] = {}  # thread -> start of its call, and the first part
        self._rest: dict[int, bytes] = {}  # source -> its unfinished line
        self._when = (0.0, 0.0)  # start and end of the present call
        self._calls: dict[bytes, Callable[[int, bytes], None]] = {
            **dict.fromkeys((b"read", b"readv"), self._reads),
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

    def adopt(self, process: int) -> list[int]:
        """Look at the threads and open files of `process` and its descendants before they are traced.

        Returns these processes, without those that are traced already.
        """
        family = [process]
        for one in family:
            children = _children(one)
            if len(self.parents) < _MOST_PROCESSES:
                self.parents.update(dict.fromkeys(children, one))
            family += children
        found = [one for one in family if not tracer_of(one)]
        for one in found:
            self._look_at(one)
        return found

    def _look_at(self, process: int) -> None:
        with suppress(OSError):
            for thread in Path(f"/proc/{process}/task").iterdir():
                if len(self._process) < _MOST_PROCESSES:
                    self._process[int(thread.name)] = process
            for link in Path(f"/proc/{process}/fd").iterdir():
                self._look_at_file(process, link)

    def _look_at_file(self, process: int, link: Path) -> None:
        with suppress(OSError, ValueError, KeyError):  # it may be closed meanwhile
            path, descriptor = os.fsencode(link.readlink()), int(link.name)
            if not path.startswith(b"/"):
                return
            facts = _facts(f"/proc/{process}/fdinfo/{descriptor}")
            direct = bool(int(facts["flags"], 8) & os.O_DIRECT)
            self.log.opened(process, process, descriptor, path, (0, 0), direct=direct, before=True)
            self.log.sought(process, descriptor, path, int(facts["pos"]))

    def feed(self, data: bytes, source: int = 0) -> None:
        """Parse the next bytes of the output of the strace with the number `source`."""
        lines = (self._rest.get(source, b"") + data).split(b"\n")
        self._rest[source] = lines.pop()[-_MOST_LINE:]
        for line in lines:
            self._line(line)

    def _line(self, line: bytes) -> None:
        number, _, rest = line.partition(b" ")
        if number == b"strace:":
            self._said(rest)
        stamp, _, rest = rest.lstrip().partition(b" ")
        if not number.isdigit() or not stamp.replace(b".", b"", 1).isdigit():
            return
        thread, begin, rest = int(number), float(stamp), rest.lstrip()
        if thread in self._astray:
            return
        if rest.endswith(b"<unfinished ...>"):
            if len(self._pending) < _MOST_PROCESSES:
                self._pending[thread] = begin, rest[: -len(b" <unfinished ...>")]
            return
        if rest.startswith(b"<... "):
            begin, first = self._pending.pop(thread, (begin, b""))
            rest = first + rest.partition(b"resumed>")[2]
        name, _, arguments = rest.partition(b"(")
        call = self._calls.get(name)
        if call is not None:
            seconds = _SECONDS.search(arguments)
            self._when = begin, begin + (float(seconds[1]) if seconds else 0.0)
            call(thread, arguments)

    def _said(self, message: bytes) -> None:
        """Keep a message of strace, unless it concerns a thread that has ended, or that never read."""
        astray = _ASTRAY.match(message)
        if astray is not None and len(self._astray) < _MOST_PROCESSES:
            thread = int(astray[1])
            self._astray.add(thread)
            if usage(f"/proc/{thread}/task/{thread}").get("calls") == 0:
                return
        if os.strerror(errno.ESRCH).encode() not in message:
            self.errors.append(message.decode(errors="replace")[:100])

    def process(self, thread: int) -> int:
        """Return the process of a thread, or the thread's own ID if it is unknown."""
        found = self._process.get(thread)
        if found is None:
            found = thread
            with suppress(OSError, ValueError, KeyError):
                facts = _facts(f"/proc/{thread}/status")
                found = int(facts["Tgid"])
                if len(self.parents) < _MOST_PROCESSES:
                    self.parents.setdefault(found, int(facts["PPid"]))
            if len(self._process) < _MOST_PROCESSES:
                self._process[thread] = found
        return found

    def _pread(self, thread: int, text: bytes) -> None:
        found = _PLACE.search(text)
        if found:
            self._reads(thread, text, int(found[1]))

    def _reads(self, thread: int, text: bytes, at: int | None = None) -> None:
        where, result = _AT.match(text), _RESULT.search(text)
        if where is not None and result is not None:
            process = self.process(thread)
            self.log.read(process, thread, int(where[1]), plain(where[2]), at, int(result[1]), self._when)

    def _copied(self, parts: re.Pattern[bytes], thread: int, text: bytes) -> None:
        found, result = parts.match(text), _RESULT.search(text)
        if found is not None and result is not None:
            at = None if found[3] == b"NULL" else int(found[3][1:])
            process = self.process(thread)
            self.log.read(process, thread, int(found[1]), plain(found[2]), at, int(result[1]), self._when)

    def _lseek(self, thread: int, text: bytes) -> None:
        where, result = _AT.match(text), _RESULT.search(text)
        if where is not None and result is not None and int(result[1]) >= 0:
            self.log.sought(self.process(thread), int(where[1]), plain(where[2]), int(result[1]))

    def _opened(self, thread: int, text: bytes) -> None:
        found, flags = _OPENED.search(text), _FLAGS.findall(text)
        if found and b"O_WRONLY" not in flags and b"O_DIRECTORY" not in flags:
            process, direct = self.process(thread), b"O_DIRECT" in flags
            self.log.opened(process, thread, int(found[1]), plain(found[2]), self._when, direct=direct)

    def _mmap(self, thread: int, text: bytes) -> None:
        found = _MAPPED.match(text)
        if found and b"PROT_READ" in found[2] and b"PROT_EXEC" not in found[2]:
            self.log.mapped(self.process(thread), thread, plain(found[5]), int(found[1]), self._when)

    def _advised(self, thread: int, text: bytes) -> None:
        where, found = _AT.match(text), _ADVISED.search(text)
        if where is not None and found is not None:
            process, (offset, size) = self.process(thread), map(int, found.groups())
            self.log.advised(process, thread, plain(where[2]), offset, size, self._when)

    def _mark(self, thread: int, text: bytes) -> None:
        found = re.search(rb"PRIO_USER, (-?\d+)\)", text)
        number = int(found[1]) % 2**32 - MARK if found else -1
        if 0 <= number < 2**17:
            op = END if number % 2 else BEGIN
            self.log.border(self.process(thread), thread, op, number // 2, self._when[0])

    def _clone(self, thread: int, text: bytes) -> None:
        result = _RESULT.search(text)
        if result is None or int(result[1]) <= 0:
            return
        child, process = int(result[1]), self.process(thread)
        self._astray.discard(child)
        if b"CLONE_THREAD" in text:
            if self._process.get(child, child) != process:
                self.log.move(child, process)
            if len(self._process) < _MOST_PROCESSES:
                self._process[child] = process
        else:
            self._process[child] = child  # the kernel reuses process IDs
            if len(self.parents) < _MOST_PROCESSES:
                self.parents[child] = process

    def _setup(self, thread: int, text: bytes) -> None:
        if len(self.asynchronous) < _MOST_PROCESSES:
            self.asynchronous.add(self.process(thread))
