"""Trace a job's system calls with strace(1): command line, end, and parser of the output."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from emulator.launch.process import has_ended, started_with
from emulator.launch.scratch import scratch
from emulator.plugins.recorder.hook.feedrate_probe import MARK
from emulator.plugins.recorder.reads import Reduction

CALLS = (
    *("?open", "openat", "?openat2", "read", "pread64", "readv", "preadv", "preadv2", "?lseek", "mmap"),
    *("?fadvise64", "getpriority", "clone", "?clone3", "?fork", "?vfork", "io_setup", "io_uring_setup"),
)
"""The system calls that strace traces."""

_MOST_PROCESSES = 100_000
"""Most processes and threads to distinguish."""
_MOST_LINE = 1 << 16
"""Most bytes of an unfinished line that are kept."""


def command(pipe: Path, job: Sequence[str]) -> list[str]:
    """Return the command that runs `job` and writes its calls into `pipe`. The job is the started process.

    The tracer is a grandchild in its own process group, so signals and the exit status are the job's. `end`
    stops the tracer, and the job goes on untraced. --seccomp-bpf is left out because its filter would stay
    after the tracer has ended and make the traced calls fail.
    """
    options = ["-f", "-DD", "-I", "waiting", "-qqq", "-y", "-s", "0", "-T", "-e", "signal=none"]
    return ["strace", *options, "-e", "trace=" + ",".join(CALLS), "-o", str(pipe), "--", *job]


def usable() -> str:
    """Return why strace cannot be used here, or an empty string if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    with scratch() as (folder, _):
        output = folder / "probe"
        try:
            done = subprocess.run(
                command(output, ["true"]), capture_output=True, timeout=10, check=False, text=True
            )
        except (OSError, subprocess.TimeoutExpired):
            return "strace does not run here"
        finally:
            end(output)
    if done.returncode or done.stderr.strip():
        said = done.stderr.strip().splitlines() or ["it failed"]
        return f"strace is not permitted here ({said[-1][:100]})"
    return ""


def end(output: Path) -> None:
    """Kill each strace that was started to write into `output`: the kernel detaches it from all processes.

    When strace detaches by itself, it waits for a process in vfork, which waits for its child, which strace
    has stopped. When a signal ends the job before strace has attached, the process between the two waits
    for ever.
    """
    for process in started_with(output):
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)


_RESULT = re.compile(rb"\) += (-?\d+)")
_AT = re.compile(rb"(\d+)<(/.*?)>, ")
_OPENED = re.compile(rb"= (\d+)<(/.*)> <[\d.]+>$")
_FLAGS = re.compile(rb"\bO_[A-Z]+\b(?=[|),])")
_SECONDS = re.compile(rb"<(\d+\.\d+)>$")
_PLACE = re.compile(rb", \d+, (\d+)(?:, \w+)?\) += ")
"""Offset of pread64, preadv and preadv2, after the number of bytes or buffers."""
_ADVISED = re.compile(rb", (\d+), POSIX_FADV_WILLNEED\) += 0")
_MAPPED = re.compile(rb"\w+, (\d+), (\S+), (\S+), (\d+)<(/.*)>, (\w+)\)")


def plain(path: bytes) -> bytes:
    """Return a path without strace's escapes, which are C's."""
    if b"\\" not in path:
        return path
    return path.decode("unicode_escape", "replace").encode("latin-1", "replace")


class Tracer:
    """Parses strace's output, in pieces of any size, and passes its calls to a Reduction.

    `group(process)` returns the key of the group of a process.
    """

    def __init__(self, reduction: Reduction, group: Callable[[int], object]) -> None:
        self.reduction = reduction
        self.parents: dict[int, int] = {}
        """Parents of processes."""
        self.asynchronous: set[int] = set()
        """Processes that set up io_uring or libaio, whose reads are not among the traced calls."""
        self.strace = 0
        """Process ID of strace; 0 until /proc of a traced process shows it."""
        self._group = group
        self._process: dict[int, int] = {}  # thread -> process
        self._reading: dict[int, int] = {}  # process -> number of the loader that is reading in it
        self._pending: dict[int, bytes] = {}
        self._rest = b""
        self._calls: dict[bytes, Callable[[int, bytes], None]] = {
            **dict.fromkeys((b"read", b"readv"), self._reads),
            **dict.fromkeys((b"pread64", b"preadv", b"preadv2"), self._pread),
            b"lseek": self._lseek,
            **dict.fromkeys((b"open", b"openat", b"openat2"), self._opened),
            b"mmap": self._mmap,
            b"fadvise64": self._advised,
            b"getpriority": self._mark,
            **dict.fromkeys((b"clone", b"clone3", b"fork", b"vfork"), self._clone),
            **dict.fromkeys((b"io_setup", b"io_uring_setup"), self._setup),
        }

    def gone(self) -> bool:
        """Return True if strace was seen and has ended."""
        return bool(self.strace) and has_ended(self.strace)

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of strace's output."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-_MOST_LINE:]
        for line in lines:
            self._line(line)

    def _line(self, line: bytes) -> None:
        number, _, rest = line.partition(b" ")
        if not number.isdigit():
            return
        thread, rest = int(number), rest.lstrip()
        if rest.endswith(b"<unfinished ...>"):
            if len(self._pending) < _MOST_PROCESSES:
                self._pending[thread] = rest[: -len(b" <unfinished ...>")]
            return
        if rest.startswith(b"<... "):
            rest = self._pending.pop(thread, b"") + rest.partition(b"resumed>")[2]
        name, _, arguments = rest.partition(b"(")
        call = self._calls.get(name)
        if call is not None:
            call(thread, arguments)

    def process(self, thread: int) -> int:
        """Return the process of a thread, or the thread's own ID if it is unknown."""
        found = self._process.get(thread)
        if found is None:
            found = thread
            with suppress(OSError, ValueError, KeyError):
                status = Path(f"/proc/{thread}/status").read_text(encoding="utf-8", errors="replace")
                facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
                found = int(facts["Tgid"])
                self.strace = self.strace or int(facts["TracerPid"])
                if len(self.parents) < _MOST_PROCESSES:
                    self.parents.setdefault(found, int(facts["PPid"]))
            if len(self._process) < _MOST_PROCESSES:
                self._process[thread] = found
        return found

    def _key(self, process: int) -> object:
        return self._group(process) if process not in self._reading else (process, self._reading[process])

    def _pread(self, thread: int, text: bytes) -> None:
        found = _PLACE.search(text)
        if found:
            self._reads(thread, text, int(found[1]))

    def _reads(self, thread: int, text: bytes, at: int | None = None) -> None:
        where, result = _AT.match(text), _RESULT.search(text)
        if where is None or result is None:
            return
        process, seconds = self.process(thread), _SECONDS.search(text)
        took = float(seconds[1]) if seconds else 0.0
        self.reduction.read(
            self._key(process), process, int(where[1]), plain(where[2]), at, int(result[1]), took, thread
        )

    def _lseek(self, thread: int, text: bytes) -> None:
        where, result = _AT.match(text), _RESULT.search(text)
        if where is not None and result is not None and int(result[1]) >= 0:
            process = self.process(thread)
            self.reduction.sought(self._key(process), process, int(where[1]), plain(where[2]), int(result[1]))

    def _opened(self, thread: int, text: bytes) -> None:
        found, flags = _OPENED.search(text), _FLAGS.findall(text)
        if found and b"O_WRONLY" not in flags and b"O_DIRECTORY" not in flags:
            process = self.process(thread)
            direct = b"O_DIRECT" in flags
            self.reduction.opened(self._key(process), process, int(found[1]), plain(found[2]), direct)

    def _mmap(self, thread: int, text: bytes) -> None:
        found = _MAPPED.match(text)
        if found and b"PROT_READ" in found[2] and b"PROT_EXEC" not in found[2]:
            self.reduction.mapped(self._key(self.process(thread)), plain(found[5]), int(found[1]))

    def _advised(self, thread: int, text: bytes) -> None:
        where, found = _AT.match(text), _ADVISED.search(text)
        if where is not None and found is not None:
            self.reduction.advised(self._key(self.process(thread)), plain(where[2]), int(found[1]))

    def _mark(self, thread: int, text: bytes) -> None:
        found = re.search(rb"PRIO_USER, (-?\d+)\)", text)
        number = int(found[1]) % 2**32 - MARK if found else -1
        if not 0 <= number < 2**17:
            return
        process = self.process(thread)
        if number % 2:
            self._reading.pop(process, None)
        else:
            self._reading[process] = number // 2

    def _clone(self, thread: int, text: bytes) -> None:
        result = _RESULT.search(text)
        if result is None or int(result[1]) <= 0:
            return
        child, process = int(result[1]), self.process(thread)
        if b"CLONE_THREAD" in text:
            if self._process.get(child, child) != process:
                self.reduction.move(self._key(child), self._key(process))
            if len(self._process) < _MOST_PROCESSES:
                self._process[child] = process
        else:
            self._process[child] = child  # the kernel reuses process IDs
            if len(self.parents) < _MOST_PROCESSES:
                self.parents[child] = process
            self._reading.pop(child, None)

    def _setup(self, thread: int, text: bytes) -> None:
        if len(self.asynchronous) < _MOST_PROCESSES:
            self.asynchronous.add(self.process(thread))
