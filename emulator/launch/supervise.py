"""Run a command, or a rank, with a second process that watches it and can end without it.

A call into a dead mount may never return, and the kernel may be unable to end the process that made it. So
the watcher calls no storage: it reads the notes of the other processes (`emulator.notes`), reports the first
failure, and ends the rest.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from emulator import notes
from emulator.errors import RankError, StorageError
from emulator.launch.launched import shared_segments
from emulator.launch.process import (
    TREE_SECONDS,
    die_with_parent,
    end_all,
    kill_family,
    left_behind,
    set_name,
    set_title,
    short_of_memory,
    write_stderr,
)
from emulator.launch.scratch import remove_dead
from emulator.launch.watch import Alarm, briefly
from emulator.notes import Page
from emulator.units import show_seconds

_SI_KERNEL = 0x80
"""si_code of a signal from the terminal, which sends it to all processes of the foreground group."""
_EXIT_SECONDS = 1.0
"""Seconds to wait for a child that was killed or whose storage hangs: it may be unable to end."""


FOR_PROGRAMS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
"""Signals that a command passes on to the user's program that it runs."""


def supervised(*, runs_a_program: bool = False) -> None:
    """Fork, and return in the child, which does the work. The parent ends when the child ends or hangs.

    The parent passes signals on to the child. When it ends, even by SIGKILL, so does the child.
    `runs_a_program`: signals are for a program that the child runs, so they do not start a deadline.
    """
    handled = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    if runs_a_program:
        handled |= {signal.Signals[name] for name in FOR_PROGRAMS}
    handled -= {number for number in handled if signal.getsignal(number) == signal.SIG_IGN}
    page = notes.share(Page.new())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        # By SIGTERM, so that a command with ranks ends them and removes their files.
        die_with_parent(parent, signal.SIGTERM)
        set_name("feedrate")
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        notes.mine()
        return
    _Supervisor(child, handled, page, ends=not runs_a_program).run()


def tell_status(status: int) -> None:
    """Tell the watcher, if there is one, that the command has finished.

    This process may still hang while it closes files of a storage that does not answer.
    """
    if page := notes.page():
        page.head.status = status & 0xFF


@contextmanager
def interruptible() -> Iterator[None]:
    """Have SIGINT raise KeyboardInterrupt during the body. Outside of it, SIGINT ends the process at once.

    If SIGINT is ignored, or handled by a program that calls feedrate, that stays so.
    """
    ours = signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGINT, _interrupted_once())
    try:
        yield
    finally:
        if ours and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # see launch.forked
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _interrupted_once() -> Callable[[int, FrameType | None], None]:
    """Return a SIGINT handler that ignores a repetition within 1 s, as passed on by the supervisor."""
    last = -1.0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 1.0:
            last = now
            raise KeyboardInterrupt

    return handler


def report(line: str, status: int, *, out: str = "", aloud: bool = False) -> None:
    """Record why everything ends, in memory and in `out`, and print it; the watcher then ends the rest.

    Only the first of all processes prints, or one that is to be `aloud`. Any thread may call this.
    """
    page = notes.page()
    if page is not None and not page.fail(line, status):
        return
    first: list[bool] = []
    if out := out or (os.fsdecode(page.head.out) if page else ""):
        from emulator.record.out import claim_failure  # here: it is needed only now

        briefly(lambda: first.append(claim_failure(Path(out), line)), 1.0)  # OUT may be what hangs
    if aloud or all(first):
        write_stderr(f"feedrate: error: {line}")


class _Supervisor:
    """The parent of a command."""

    def __init__(self, child: int, handled: set[signal.Signals], page: Page, *, ends: bool) -> None:
        """`ends`: a signal asks the child to end."""
        self._child, self._handled, self._page, self._ends = child, handled, page, ends
        self._alarm = Alarm(page)
        self._deadline, self._late = float("inf"), ""
        """When the child must have ended, and what to say if it has not."""

    def run(self) -> NoReturn:
        """Wait for the child, or until it cannot be ended; end this process as the child did."""
        ended, look = os.pidfd_open(self._child), 0.0
        while time.monotonic() < self._deadline:
            # Not in sigtimedwait: Python's returns a signal that was not sent after stop and continue.
            select.select([ended], [], [], 0.25)
            done, status = os.waitpid(self._child, os.WNOHANG)
            if done:
                self._exit_as(status)
            self._pass_on()
            now = time.monotonic()
            if now >= look:
                look = now + self._alarm.pause
                self._raise_alarm(now)
            if self._page.failure() is not None:
                self._end_by(now + 3 * TREE_SECONDS)  # it ends its ranks
            elif self._page.head.status >= 0:
                hangs = self._page.head.status == StorageError.exit_code
                self._end_by(now + (_EXIT_SECONDS if hangs else self._page.head.timeout))
        self._give_up()

    def _pass_on(self) -> None:
        received = signal.sigtimedwait(self._handled, 0)
        if received is None:
            return
        if received.si_code != _SI_KERNEL:  # the terminal has sent it to the child, too
            with suppress(ProcessLookupError):
                os.kill(self._child, received.si_signo)
        if self._ends:
            seconds = self._page.head.timeout
            late = f"the command has not ended after a signal for {show_seconds(seconds)}"
            self._end_by(time.monotonic() + seconds + 3.0, f"{late}: does the storage hang?")

    def _raise_alarm(self, now: float) -> None:
        if self._page.failure() is None and (found := self._alarm.look()):
            process, error = found
            report(str(error), error.exit_code)
            if process == self._child:  # it will not end by itself
                self._deadline = now

    def _end_by(self, deadline: float, late: str = "") -> None:
        if deadline < self._deadline:
            self._deadline, self._late = deadline, late

    def _give_up(self) -> NoReturn:
        """Kill the child and its descendants, report those that do not end, and end this process."""
        failure, status = self._page.failure(), self._page.head.status
        if self._late and not failure:
            write_stderr(f"feedrate: error: {self._late}")
        family = kill_family(self._child)
        deadline = time.monotonic() + _EXIT_SECONDS
        while family and time.monotonic() < deadline:
            with suppress(ChildProcessError):
                os.waitpid(self._child, os.WNOHANG)
            family = left_behind(family)
            time.sleep(0.02)
        report_left(family)
        briefly(partial(remove_dead, wait=True), _EXIT_SECONDS)
        os._exit(failure[1] if failure else StorageError.exit_code if status < 0 else status)

    def _exit_as(self, status: int) -> NoReturn:
        """End this process with the child's status or signal."""
        if not os.WIFSIGNALED(status):
            os._exit(os.waitstatus_to_exitcode(status))
        briefly(partial(remove_dead, wait=True), _EXIT_SECONDS)
        number = os.WTERMSIG(status)
        asked = number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
        if asked or self._page.head.status >= 0:
            end_by(number)
        name = signal.Signals(number).name
        write_stderr(f"feedrate: error: the command was killed by {name}{short_of_memory(number)}")
        os._exit(128 + number)


def report_left(processes: list[int]) -> None:
    """Name processes that the kernel cannot end yet."""
    if processes:
        are = "are" if len(processes) > 1 else "is"
        names = ", ".join(f"process {process}" for process in processes)
        write_stderr(f"feedrate: {names} {are} left behind until the storage answers")


def end_by(number: int) -> None:
    """End this process with signal `number`, without a core file; return if that does not end it."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)


def watched(rank: int) -> None:
    """Fork a process that watches this one, rank `rank` of the user's own launcher, and return.

    The launcher waits for the process that it started, so that one does the work. It ends with the launcher.
    """
    die_with_parent(os.getppid())
    page = notes.share(Page.new(), rank)
    notes.mine()
    process, end_launcher = os.getpid(), _launcher()
    if os.fork():
        return
    try:
        os.setsid()  # launchers kill process groups
        set_title("feedrate-watch")
        ended = _watch_rank(process, Alarm(page), page)
        if page.head.status < 0 and page.failure() is None and page.head.out:
            line = f"rank {rank} on {socket.gethostname()} was killed or crashed (process {process})"
            report(f"{line}: see the lines of its launcher, or the system log", RankError.exit_code)
        if page.failure() is not None:
            end_launcher(ended)
    finally:
        os._exit(0)


def _watch_rank(rank: int, alarm: Alarm, page: Page) -> bool:
    """Return True when the rank has ended, False if it cannot be ended after a failure."""
    ended, look = os.pidfd_open(rank), 0.0
    segments: set[Path] = set()

    def runs(wait: float = 0.0) -> bool:
        with suppress(OSError):  # a rank that is ending has none any more
            segments.update(shared_segments(rank))
        return not select.select([ended], [], [], wait)[0]

    def send(number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(ended, number)

    while page.failure() is None and runs(0.25):
        now = time.monotonic()
        if now >= look:
            look = now + alarm.pause
            if found := alarm.look():
                report(str(found[1]), found[1].exit_code)
    end_all(send, runs)
    if runs():
        return False
    if page.head.status < 0:
        for segment in segments:
            segment.unlink(missing_ok=True)
    return True


def _ancestor(names: Collection[str]) -> tuple[str, int]:
    """Return name and ID of the nearest ancestor with one of these names; ("", 0) if there is none."""
    process = os.getppid()
    while process > 1:
        name, _, fields = Path(f"/proc/{process}/stat").read_text().partition(" (")[2].rpartition(") ")
        if name in names:
            return name, process
        process = int(fields.split()[1])
    return "", 0


def _launcher() -> Callable[[bool], None]:
    """Return a function that has the launcher of this rank end all others: mpirun, or srun by scancel.

    Open MPI's mpirun waits 15 minutes for a host that is lost, and forever for a rank that the kernel cannot
    end. Then the watcher of a host's first rank kills it. Daemons come last: mpirun ends with status 0 when
    it loses one of them.
    """
    patience = {"prterun": 2.0, "mpirun": 2.0, "orterun": 2.0, "prted": 5.0, "orted": 5.0}
    one_host = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == os.environ.get("OMPI_COMM_WORLD_SIZE")
    first = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") == "0"
    name, process = _ancestor((*patience, "slurmstepd"))
    launcher = os.pidfd_open(process) if name in patience and first else -1

    def end(rank_has_ended: bool) -> None:
        if name == "slurmstepd":
            step = ".".join(os.environ.get(f"SLURM_{part}_ID", "") for part in ("JOB", "STEP"))
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run([shutil.which("scancel") or "scancel", step], timeout=10.0, check=False)
            return
        needed = launcher >= 0 and not (one_host and rank_has_ended)
        if needed and not select.select([launcher], [], [], patience[name])[0]:
            signal.pidfd_send_signal(launcher, signal.SIGKILL)

    return end
