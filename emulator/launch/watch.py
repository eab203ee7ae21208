"""Storage that does not answer: noticed beside the thread that hangs, and left by the process that does not.

A call into a dead mount may never return, and the kernel may refuse to end the process that made it. So every
process has a thread that watches the others, and every command but a rank is two processes: `supervised`
works in a child, and leaves it behind when it cannot end. The launcher does the same for ranks (run.mpirun).

A thread hangs in storage when it has used no CPU for `storage_timeout` seconds, within one call of a kind
that goes to a file system. Nothing has to be announced: what is called, and with which path, is read off
its stack, or for a library in C off the kernel's entry. A call may take longer, up to ten times, while the
counters of its mount show that the storage moves data: the fsync of gigabytes is slow, and no hang.
"""

from __future__ import annotations

import ctypes
import dis
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import FrameType

from emulator.errors import FeedrateError, RankError, SpecError, StorageError
from emulator.files import SCRATCH_VARIABLE
from emulator.launch.launched import end_launcher
from emulator.units import parse_seconds, show_seconds

OPTION = "--storage-timeout"
DEFAULT_TIMEOUT = 30.0

PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_SI_KERNEL = 0x80
"""si_code of a signal that the terminal sent, to all processes in its foreground."""
_EXIT_SECONDS = 2.0
"""How long a process that gives up is waited for: one in a dead mount stays for as long as that is dead."""
_GIVE_UP = b"!"
_STATUS = b"="
"""Before a byte with the status of a command that is over."""

_CALLS = frozenset(
    """
    open read readinto readline readlines read_bytes read_text write write_bytes write_text writelines pread
    preadv pwrite pwritev fsync fdatasync sync close flush stat lstat fstat statvfs fstatvfs mkdir makedirs
    mkfifo listdir scandir iterdir rename replace unlink remove rmdir link symlink readlink access truncate
    ftruncate posix_fadvise posix_fallocate exists is_file is_dir glob rglob utime chmod mmap mincore munmap
    copy_file_range sendfile disk_usage getxattr listxattr fromfile memmap resolve samefile rmtree madvise
    """.split()  # noqa: SIM905
)
"""Calls that go to a file system."""
_STREAMS = frozenset("read readinto readline readlines write writelines flush close".split())  # noqa: SIM905
"""Of these, calls that wait for a process or a terminal in the files that _WAITERS names."""
_WAITERS = (
    "emulator/run/",
    "/click/",
    "/typer/",
    "/_click/",
    "/rich/",
    "/subprocess.py",
    "/socket.py",
    "/multiprocessing/",
)
"""Parts of the names of files whose streams are no files of a storage."""
_MOST_PATIENCE = 10.0
"""A call on a storage that moves data may take so many times the timeout."""
_UNWATCHED = "briefly"
"""Name of threads that nobody waits for."""
_LONG_CALLS = frozenset(
    "fsync fdatasync sync close munmap unlink truncate ftruncate posix_fallocate".split()  # noqa: SIM905
)
_MOVING = 1e6
"""Bytes/s that a mount moves at least while it works such a call off."""
_STALL = re.compile(r"(loader|io)\.stall_timeout=(.+)")


def storage_timeout(words: Sequence[str] = ()) -> float:
    """Seconds that storage may take for one call, from the command line `words`. Raises SpecError.

    Whoever sets a longer stall_timeout, of a loader or of checkpoints, means calls, too.
    """
    given, stall = "", ""
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if word == "--":
            break
        if word == OPTION:
            given = following
        elif word.startswith(OPTION + "="):
            given = word.partition("=")[2]
        elif match := _STALL.fullmatch(word.removeprefix("--set=")):
            stall = match[2]
    if stall and not given:
        return max(DEFAULT_TIMEOUT, parse_seconds(stall))
    seconds = parse_seconds(given) if given else DEFAULT_TIMEOUT
    if not seconds > 0:
        raise SpecError(f"{OPTION} {given!r} is not a time above zero", "write it like 30s or 2min")
    return seconds


class Watch:
    """A thread that looks at all others, says when one hangs in storage, and shows that the process runs."""

    def __init__(
        self,
        timeout: float,
        hung: Callable[[StorageError], object],
        beat: Callable[[], object] = lambda: None,
    ) -> None:
        """`hung(error)` is called once, at most; `beat()` several times in `timeout` seconds."""
        self._timeout = timeout
        self._hung = hung
        self._beat = beat
        self._seen: dict[int, tuple[int, float]] = {}
        self._moved: dict[str, tuple[int, float, float]] = {}
        """By mount: what its counters said, when, and when they last rose as those of a busy storage do."""
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def _run(self) -> None:
        pause = max(0.1, min(2.0, self._timeout / 6))
        before = time.monotonic()
        while True:
            self._beat()
            time.sleep(pause)
            now = time.monotonic()
            if now - before > pause + self._timeout / 2:
                self._seen.clear()  # this process was stopped itself
            before = now
            error = self._look(now)
            if error is not None:
                self._hung(error)
                return

    def _look(self, now: float) -> StorageError | None:
        frames = None
        seen, self._seen = self._seen, {}
        for thread in threading.enumerate():
            # After a fork, threading still has the parent's number for the main thread (until Python 3.12).
            number = os.getpid() if thread is threading.main_thread() else thread.native_id
            if number is None or thread.name == _UNWATCHED or thread is threading.current_thread():
                continue
            try:
                used = time.clock_gettime_ns(
                    (~number << 3) | 6
                )  # the CPU time of that thread: Linux's clockid
            except OSError:
                continue  # it has ended
            last, since = seen.get(number, (-1, now))
            self._seen[number] = (used, since if used == last else now)
            if used == last and now - since >= self._timeout / 2:
                frames = frames or sys._current_frames()
                frame = frames.get(thread.ident or 0)
                call = storage_call(frame, number) if frame is not None else None
                moves = call is not None and self._moves(call, now, since)
                if call is not None and not moves and now - since >= self._timeout:
                    return StorageError(
                        f"{call} has not answered for {show_seconds(now - since)}",
                        f"the storage hangs; see the system log, or give it longer with {OPTION}",
                    )
        return None

    def _moves(self, call: Call, now: float, since: float) -> bool:
        """Whether the storage that `call` waits for has moved data within the timeout."""
        if call.name not in _LONG_CALLS or now - since > _MOST_PATIENCE * self._timeout:
            return False
        mount, size = bytes_moved(call.path)
        before, then, alive = self._moved.get(mount, (size, now, 0.0))
        if size - before >= _MOVING * (now - then) > 0:
            alive = now
        self._moved[mount] = (size, now, alive)
        return now - alive < self._timeout


@dataclass(frozen=True, slots=True)
class Call:
    """A call into a file system."""

    name: str
    path: str = ""
    """Of the file; empty: not known."""

    def __str__(self) -> str:
        return f"{self.name} of {self.path}" if self.path else self.name


def storage_call(frame: FrameType, thread: int) -> Call | None:
    """The call into a file system that a blocked thread is in: its frame, its number. None: in none."""
    name = _called(frame)
    if name in _STREAMS and any(part in frame.f_code.co_filename for part in _WAITERS):
        return None
    call = Call(name) if name in _CALLS else _kernel_call(thread)
    if call is None or call.path:
        return call
    path, outer = "", frame
    for _ in range(6):
        path = _path_in(outer)
        if path or outer.f_back is None:
            break
        outer = outer.f_back
    return Call(call.name, path)


_SYSTEM_CALLS = {
    "x86_64": {
        **{0: "read", 1: "write", 17: "pread", 18: "pwrite", 19: "readv", 20: "writev", 295: "preadv"},
        **{296: "pwritev", 3: "close", 74: "fsync", 75: "fdatasync", 217: "listdir", 2: "open", 257: "open"},
        **{4: "stat", 6: "stat", 262: "stat", 332: "stat", 21: "access", 269: "access", 439: "access"},
        **{82: "rename", 264: "rename", 87: "unlink", 263: "unlink", 83: "mkdir", 258: "mkdir"},
    },
    "aarch64": {
        **{63: "read", 64: "write", 67: "pread", 68: "pwrite", 65: "readv", 66: "writev", 69: "preadv"},
        **{70: "pwritev", 57: "close", 82: "fsync", 83: "fdatasync", 61: "listdir", 56: "open"},
        **{79: "stat", 291: "stat", 48: "access", 439: "access", 38: "rename", 35: "unlink", 34: "mkdir"},
    },
}
"""The kernel's numbers of calls that go to a file system, by machine."""
_OF_PATHS = frozenset(("open", "stat", "access", "rename", "unlink", "mkdir"))


def _kernel_call(thread: int) -> Call | None:
    """The call into a file system that a thread of this process is in, as the kernel tells it; None: in none.

    For what a library in C calls. A descriptor counts when it is a file's: pipes, sockets and terminals wait
    for other things.
    """
    try:
        number, *values = Path(f"/proc/self/task/{thread}/syscall").read_text().split()
        name = _SYSTEM_CALLS.get(os.uname().machine, {}).get(int(number), "")
        if not name or name in _OF_PATHS:
            return Call(name) if name else None
        path = str(Path(f"/proc/self/fd/{int(values[0], 16)}").readlink())
    except (OSError, ValueError, IndexError):  # it runs, or the kernel does not tell
        return None
    if not path.startswith("/") or path.startswith(("/dev/", "/proc/")) or path.endswith(" (deleted)"):
        return None  # the last are pipes of the step barrier
    return Call(name, path)


def bytes_moved(path: str) -> tuple[str, int]:
    """Where `path` is mounted, and how many bytes the kernel has seen moved there; 0: it does not count.

    It counts for local disks and NFS. Nothing of the storage itself is touched.
    """
    place, device, kind, source = "", "", "", ""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            left, _, right = line.partition(" - ")
            here = left.split()[4].replace("\\040", " ")
            if len(here) >= len(place) and (path + "/").startswith(here.rstrip("/") + "/"):
                place, device, (kind, source) = here, left.split()[2], right.split()[:2]
        if kind.startswith("nfs"):
            told = Path("/proc/self/mountstats").read_text().partition(f" mounted on {place} ")[2]
            return place, sum(map(int, told.partition("bytes:")[2].split()[4:6]))  # from and to the server
        if not Path(f"/sys/dev/block/{device}").exists() and source.startswith("/dev/"):  # as btrfs has it
            number = Path(source).stat().st_rdev
            device = f"{os.major(number)}:{os.minor(number)}"
        counters = Path(f"/sys/dev/block/{device}/stat").read_text().split()
        return place, 512 * (int(counters[2]) + int(counters[6]))
    return place, 0


def _called(frame: FrameType) -> str:
    """The name of the function in C that `frame` is calling."""
    instructions = list(dis.get_instructions(frame.f_code))
    here = next((at for at, found in enumerate(instructions) if found.offset == frame.f_lasti), None)
    if here is None:
        return ""
    call = instructions[here]
    if call.opname == "FOR_ITER":
        return (
            "scandir" if "entries" in frame.f_code.co_varnames or "scandir" in frame.f_code.co_names else ""
        )
    if call.positions is None:
        return ""
    start = (call.positions.lineno, call.positions.col_offset)
    name = ""
    for found in instructions[:here]:
        where = found.positions
        if where is None or (where.lineno, where.col_offset) != start:
            continue
        if found.opname.startswith(("LOAD_METHOD", "LOAD_ATTR", "LOAD_GLOBAL", "LOAD_NAME")):
            name = str(found.argval)
    if not name and any(found.opname == "BEFORE_WITH" for found in instructions[:here]):
        return "close"  # the end of a `with`
    return name


def _path_in(frame: FrameType) -> str:
    """What looks like the path of a file among the variables of `frame`."""
    values = dict(frame.f_locals)
    for key in ("path", "file", "name", "src", "folder", "filename"):  # the likeliest first
        if key in values:
            values = {key: values[key], **values}
            break
    for value in values.values():
        if isinstance(value, os.PathLike):
            return str(value)
        if isinstance(value, str) and "/" in value and len(value) < 4096:
            return value
        if isinstance(name := getattr(value, "name", None), str) and "/" in name:
            return name
        for descriptor in (getattr(value, "_fd", None), getattr(value, "_descriptor", None)):
            if isinstance(descriptor, int) and descriptor > 2:
                with suppress(OSError):
                    return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    for key in ("fd", "descriptor", "_descriptor"):
        if isinstance(values.get(key), int):
            with suppress(OSError):
                return str(Path(f"/proc/self/fd/{values[key]}").readlink())
    return ""


def briefly(action: Callable[[], object], seconds: float = 3.0) -> bool:
    """`action()` in a thread that nobody waits for longer than this; True when it ended in time."""
    thread = threading.Thread(target=action, name=_UNWATCHED, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def let_go_of_output() -> None:
    """Close stdin, stdout and stderr for whoever reads them: this process may never quite end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send signal `number` to this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


REASON = "reason"
"""Its file with what the first rank said that ended the run. `rank-N` has the process and host of rank N."""


def watch_rank(rank: int, timeout: float) -> None:
    """Watch this process, a rank, and show its launcher, if that is ours, that it runs.

    When the process that started it ends, so does the rank.
    """
    die_with_parent()
    host, scratch = socket.gethostname(), os.environ.get(SCRATCH_VARIABLE, "")
    beat: Callable[[], object] = lambda: None  # noqa: E731
    if scratch:
        with suppress(OSError):
            file = os.open(Path(scratch) / f"rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.write(file, f"{os.getpid()} {host}".encode())
            beat = partial(os.utime, file)

    Watch(timeout, partial(end_rank, rank), beat)


def watch_worker(hung: Callable[[StorageError], object]) -> None:
    """Watch this process, a worker of a rank's loader, whose command line it has; `hung` as in Watch.

    It ends when its rank does, whose child it is only by multiprocessing's books: for the kernel it is the
    forkserver's, which lives as long as one of its workers.
    """
    rank = multiprocessing.parent_process()

    def end_with_rank() -> None:
        if rank is not None and not rank.is_alive():
            os._exit(RankError.exit_code)

    Watch(storage_timeout(sys.argv[1:]), hung, end_with_rank)


def end_rank(rank: int, error: FeedrateError) -> None:
    """End this process, rank `rank`, from whatever thread, and all others through MPI, and say why."""
    say_why(rank, error)
    end_launcher()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None:
        briefly(partial(mpi.COMM_WORLD.Abort, error.exit_code))
    let_go_of_output()
    os._exit(error.exit_code)


def say_why(rank: int, error: FeedrateError) -> None:
    """Say why this process, rank `rank`, is about to end, unless another rank has ended the run before."""
    line = f"rank {rank} on {socket.gethostname()}: {error}"
    if end_with(line):
        _say(f"feedrate: error: {line}")
    for action in _before_end:
        briefly(partial(action, line), 1.0)


_before_end: list[Callable[[str], object]] = []
"""What a rank that hangs still tries, with the reason."""


def before_end(action: Callable[[str], object]) -> None:
    """Call `action(reason)` before this rank ends because it hangs, if that takes less than a second."""
    _before_end.append(action)


def end_with(line: str) -> bool:
    """Tell the launcher why the run ends; False when another rank has."""
    scratch = os.environ.get(SCRATCH_VARIABLE, "")
    try:
        if scratch:
            with (Path(scratch) / REASON).open("x", encoding="utf-8") as file:
                file.write(line)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def supervised(timeout: float) -> None:
    """Return in a child process, which does the work; this one ends as the child does, or when that hangs.

    Signals go on to the child. When this process ends, even by SIGKILL, so does the child.
    """
    handled = {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    handled -= {number for number in handled if signal.getsignal(number) == signal.SIG_IGN}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    handled.add(signal.SIGCHLD)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    beats, beat = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(beats)
        die_with_parent()
        if os.getppid() != parent:  # it ended before the kernel was asked
            os._exit(1)
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"feedrate")
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupted_once())
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _to_supervisor.append(beat)
        Watch(timeout, lambda error: _give_up(beat, error), lambda: _tell(beat, b"."))
        return
    os.close(beat)
    _exit_as(_supervise(child, beats, handled, timeout), child)


def tell_status(status: int) -> None:
    """Tell the supervisor, if there is one, that the command is over: its process may yet hang as it closes
    files of a storage that does not answer."""
    for pipe in _to_supervisor:
        _tell(pipe, _STATUS + bytes([status & 0xFF]))


_to_supervisor: list[int] = []


def _tell(pipe: int, word: bytes) -> None:
    with suppress(OSError):
        os.write(pipe, word)


def _interrupted_once() -> Callable[[int, FrameType | None], None]:
    """A handler of SIGINT: a second one within a second is the same keystroke, sent on by the supervisor."""
    last = -1.0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 1.0:
            last = now
            raise KeyboardInterrupt

    return handler


def _give_up(pipe: int, error: StorageError) -> None:
    """End this process, which may not end: say why, and let the supervisor go."""
    with suppress(OSError, ValueError):
        os.write(2, f"feedrate: error: {error}\n".encode(errors="replace"))
    let_go_of_output()
    _tell(pipe, _GIVE_UP)
    os._exit(error.exit_code)


def _supervise(child: int, beats: int, handled: set[signal.Signals], timeout: float) -> int:
    """Wait for the `child`; its wait status, or -1 less the exit status to use when it is left behind."""
    last = time.monotonic()
    told_to_end = heard = False
    over: int | None = None  # the command's status, once it has told
    while True:
        found = signal.sigtimedwait(handled, 0.25)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        now = time.monotonic()
        if found is not None and found.si_signo != signal.SIGCHLD:
            if found.si_code != _SI_KERNEL:
                os.kill(child, found.si_signo)
            if not told_to_end:
                told_to_end, last = True, now
        word = b""
        with suppress(BlockingIOError):
            word = os.read(beats, 4096)
        before, _, status_byte = word.partition(_STATUS)
        if status_byte:
            over, last = status_byte[0], now
        if _GIVE_UP in before:
            _leave(child)
            return -1 - StorageError.exit_code
        if word:
            heard = True
            if not told_to_end and over is None:
                last = now
        if over is not None and now - last > timeout:
            _leave(child)
            return -1 - over
        if now - last > timeout + 3.0 and (told_to_end or heard):
            state = process_state(child)
            if state in "Tt":  # somebody stopped it on purpose
                last = now
                continue
            why = "did not end when it was told to" if told_to_end else "does not run any more"
            _say(f"feedrate: error: the command {why}, for {show_seconds(timeout)}: the storage hangs?")
            _leave(child)
            return -1 - StorageError.exit_code


def _leave(child: int) -> None:
    """Kill the child and what it started, and say so when it stays."""
    import psutil  # only now: every command starts here

    family = []
    with suppress(psutil.Error):
        family = psutil.Process(child).children(recursive=True)
    for process in family:
        with suppress(psutil.Error):
            process.kill()
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + _EXIT_SECONDS
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.02)
    _say(f"feedrate: process {child} is left behind: it ends when the storage answers")


def _say(line: str) -> None:
    with suppress(OSError):
        os.write(2, (line + "\n").encode(errors="replace"))


def _exit_as(status: int, child: int) -> None:
    """End this process as the child ended."""
    if status < 0:
        os._exit(-1 - status)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
            os.kill(os.getpid(), number)
        name = signal.Signals(number).name
        _say(f"feedrate: error: the command was killed by {name}{short_of_memory(number)}")
        os._exit(128 + number)
    os._exit(os.waitstatus_to_exitcode(status))


def process_state(pid: int) -> str:
    """The letter that the kernel gives the state of process `pid`; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory: of this cgroup, else of the machine."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            files = {"": ("", "memory.events"), "memory": ("memory", "memory.oom_control")}
            if controllers in files:
                folder, name = files[controllers]
                with suppress(OSError):
                    return _counter(Path("/sys/fs/cgroup") / folder / place.strip("/") / name)
    with suppress(OSError):
        return _counter(Path("/proc/vmstat"))
    return 0


def _counter(file: Path) -> int:
    pairs = (line.split() for line in file.read_text().splitlines())
    return next((int(pair[1]) for pair in pairs if pair[0] == "oom_kill"), 0)


_OOM_BEFORE = oom_kills()


def short_of_memory(number: int) -> str:
    """What to add to "killed by SIGKILL" when memory was the reason, or may have been."""
    if number != signal.SIGKILL:
        return ""
    if oom_kills() > _OOM_BEFORE:
        return ": the kernel had no memory left (oom_kill): use fewer ranks or workers, or allow more memory"
    return ": by somebody, or for want of memory: see the system log"
