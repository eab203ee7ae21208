"""Ranks of this host without MPI: the command, which has imported what they need, forks them.

Rank 0 has a pipe to each other rank. A collective is a message from each rank to rank 0 and one back, and
ranks sleep in read(2) until it comes. So a group without rank 0 has no collectives; feedrate uses none.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from emulator import live, notes
from emulator.analysis.parts import Floats
from emulator.errors import FeedrateError, LaunchError, RankError, unexpected
from emulator.launch.child import signals_to
from emulator.launch.comm import IDLE_POLL, Comm
from emulator.launch.process import (
    TREE_SECONDS,
    descendants,
    die_with_parent,
    end_all,
    end_process,
    left_behind,
    set_name,
    short_of_memory,
    write_stderr,
)
from emulator.launch.scratch import scratch
from emulator.launch.supervise import report, report_left
from emulator.launch.watch import briefly
from emulator.live import Follower
from emulator.notes import Page
from emulator.record.machine import cores
from emulator.record.out import replace_failure
from emulator.units import counted

Work = Callable[[Comm], int | None]
"""What a rank does, collective over its communicator; it returns the exit status, None for 0."""
Link: TypeAlias = "Connection[Any, Any]"

RANKS_A_CORE = 128
"""Most ranks per core: more would not keep the pace of an accelerator."""
_LAST_WORDS_SECONDS = 1.0
"""Seconds for other ranks to end by themselves after one has ended with an error."""
_ENDED_BY: dict[int, str] = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "ended by SIGTERM",
    signal.SIGHUP: "ended by SIGHUP",
}


class ForkedComm(Comm):
    """Ranks of this host. `links` are rank 0's pipes to the others, or the one to rank 0."""

    keeps_failure = False

    def __init__(self, rank: int, size: int, links: Sequence[Link]) -> None:
        self.rank, self.size, self._links = rank, size, links

    def _up(self, value: Any) -> list[Any]:
        """Return the values of all ranks on rank 0; an empty list elsewhere."""
        with _other_ranks_run():
            if self.rank:
                self._links[0].send(value)
                return []
            return [value, *(link.recv() for link in self._links)]

    def _down(self, value: Any) -> Any:
        """Return rank 0's value on all ranks."""
        with _other_ranks_run():
            if self.rank:
                return self._links[0].recv()
            data = pickle.dumps(value)
            for link in self._links:
                link.send_bytes(data)
            return value

    def barrier(self, poll: float = IDLE_POLL) -> None:
        self._up(None)
        self._down(None)

    def bcast(self, value: Any) -> Any:
        return self._down(value)

    def gather(self, value: Any) -> list[Any]:
        return self._up(value)

    def allgather(self, value: Any) -> list[Any]:
        values: list[Any] = self._down(self._up(value))
        return values

    def sum(self, values: Floats) -> Floats:
        return self._reduced(np.sum, np.asarray(values, np.float64))

    def max(self, values: Floats) -> Floats:
        return self._reduced(np.max, np.asarray(values, np.float64))

    def all(self, values: NDArray[Any]) -> NDArray[Any]:
        return self._reduced(np.concatenate, np.asarray(values))

    def _reduced(self, reduce: Callable[..., Any], values: NDArray[Any]) -> NDArray[Any]:
        parts = self._up(values)
        return np.asarray(self._down(reduce(parts, axis=0) if parts else None))

    def split(self, color: int) -> Comm:
        colors = self.allgather(color)
        members = [rank for rank in range(self.size) if colors[rank] == color]
        links = [self._links[member - 1] for member in members[1:]] if self.rank == 0 else self._links
        return ForkedComm(members.index(self.rank), len(members), links if members[0] == 0 else [])

    def hosts(self) -> list[str]:
        return [socket.gethostname()] * self.size

    def abort(self, code: int) -> NoReturn:
        os._exit(code)  # the parent ends the other ranks


@contextmanager
def _other_ranks_run() -> Iterator[None]:
    """If another rank has ended, let the parent say why and end this one."""
    try:
        yield
    except (EOFError, OSError):
        time.sleep(2 * TREE_SECONDS)
        raise RankError("another rank ended", "what was measured is kept") from None


def fork_ranks(ranks: int, work: Work, out: Path | None = None) -> int:
    """Run `work` on `ranks` ranks, and return the exit status.

    If a signal, a dead rank or a hang ends the run, the reason is on stderr and in OUT/failure.txt. SIGINT,
    SIGTERM and SIGHUP end the ranks. Call it in a process with one thread. Raises LaunchError if limits are
    too low.
    """
    _require_limits(ranks)
    live.detail(f"forks {counted(ranks, 'rank')}")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with scratch() as (_, variables), _frozen():
        tree = _Tree(ranks)
        with signals_to(tree.stop):
            tree.fork(work, variables)
            status = tree.wait()
        live.current().close()
        if tree.signal:  # it may come twice: from the terminal, and passed on by the supervisor
            for number in _ENDED_BY:
                signal.signal(number, signal.SIG_IGN)
        if tree.reason and out is not None:
            briefly(partial(replace_failure, out, tree.reason), 1.0)
        return status


def apart(action: Callable[[], object]) -> None:
    """Run `action` in a process of its own, which is forked, and raise its FeedrateError.

    For checks before `fork_ranks` that may start threads, as a library for objects does.
    """
    ours, theirs = Pipe()
    process = os.fork()
    if not process:
        die_with_parent(os.getppid())
        _work(partial(_reported, action, theirs), Comm())
    theirs.close()
    with ours, suppress(EOFError):
        raise ours.recv()
    _, status = os.waitpid(process, 0)
    if status:
        raise RankError("a check before the start failed", "see the lines above")


def _reported(action: Callable[[], object], link: Link, comm: Comm) -> int:
    try:
        action()
    except FeedrateError as error:
        link.send(error)
    return 0


@contextmanager
def _frozen() -> Iterator[None]:
    """Keep a rank's first garbage collection from writing to, and so copying, all shared pages."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _Tree:
    """The ranks of this host, in the process that forks them."""

    def __init__(self, ranks: int) -> None:
        self.reason = ""
        """Why the run ended, if it did not end by itself."""
        self._ranks = ranks
        self._progress, self._said = Pipe(duplex=False)
        self._page = notes.page() or notes.share(Page.new())
        self._running: dict[int, tuple[int, int]] = {}
        """Number of a rank and a pidfd, which is readable when it has ended, by its process."""
        self._group = 0
        self._ends = select.poll()
        self.signal = self._status = 0
        self._ending = float("inf")
        """When ranks that still run are asked to end."""

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal that ends the run."""
        self.signal = self.signal or number

    def fork(self, work: Work, variables: dict[str, str]) -> None:
        """Fork all ranks: rank 0 last, which gets a socket to each other one."""
        parent = os.getpid()
        links: list[Link] = []
        for rank in (*range(1, self._ranks), 0):
            theirs = links
            if rank:
                ours, link = Pipe()
                theirs = [link]
            try:
                process = os.fork()
            except OSError as error:
                self._send(signal.SIGKILL)
                raise LaunchError(
                    f"this host allows no more processes than {len(self._running)} of {self._ranks} ranks: "
                    f"{error.strerror}",
                    "raise ulimit -u, or the cgroup's pids.max",
                ) from None
            if not process:
                for other in (*links, ours) if rank else ():
                    other.close()
                self._become(rank, parent, variables)
                _work(work, ForkedComm(rank, self._ranks, theirs))
            if rank:
                link.close()
                links.append(ours)
            self._group = self._group or process
            with suppress(OSError):  # the rank may have done it, and begun or ended
                os.setpgid(process, self._group)
            self._running[process] = rank, os.pidfd_open(process)
            self._ends.register(self._running[process][1], select.POLLIN)
        for link in links:
            link.close()

    def _become(self, rank: int, parent: int, variables: dict[str, str]) -> None:
        """Make this process, which was just forked, a rank."""
        die_with_parent(parent)
        set_name(f"feedrate-{rank}")
        os.setpgid(0, self._group)  # Ctrl-C in a terminal reaches ranks only through the parent
        for number in _ENDED_BY:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        os.environ.update(variables)
        tempfile.tempdir = None
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        notes.share(self._page, rank)
        notes.mine()
        live.in_rank(rank, self._said)

    def wait(self) -> int:
        """Wait until all ranks have ended, or cannot be ended; return the exit status."""
        self._said.close()
        follower = Follower(self._progress)
        while self._runs() and not (self.signal or self._page.failure() or time.monotonic() > self._ending):
            follower.follow()
            self._ends.poll(250)
        family = descendants(os.getpid())[1:] if self._running else []
        end_all(self._send, self._runs)
        for process in left_behind(family):  # such as a DataLoader worker that waits for the storage
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        follower.follow()
        status = self._conclude()
        if self._running:
            report_left(left_behind(family))
        return status

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._group, number)

    def _runs(self) -> bool:
        """Notice which ranks have ended, and how; return True while some run."""
        with suppress(ChildProcessError):
            while True:
                process, how = os.waitpid(-self._group, os.WNOHANG)
                if not process:
                    break
                rank, ended = self._running.pop(process)
                self._ends.unregister(ended)
                os.close(ended)
                self._ended(rank, os.waitstatus_to_exitcode(how))
        return bool(self._running)

    def _ended(self, rank: int, status: int) -> None:
        if status < 0 and self._ending == float("inf") and not self.signal:
            name = signal.Signals(-status).name
            line = f"rank {rank} on {socket.gethostname()} was killed by {name}{short_of_memory(-status)}"
            report(line, RankError.exit_code)
        elif status > 0 and self._ending == float("inf"):
            self._status = self._status or status
            self._ending = time.monotonic() + _LAST_WORDS_SECONDS

    def _conclude(self) -> int:
        if failure := self._page.failure():
            self.reason, status = failure
            return status
        if self.signal:
            self.reason = _ENDED_BY[self.signal]
            write_stderr(f"feedrate: {self.reason}")
            return 128 + self.signal
        return self._status


def _work(work: Work, comm: Comm) -> NoReturn:
    """Do the work of a rank, and end this process with its status."""
    status = FeedrateError.exit_code
    try:
        status = work(comm) or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except FeedrateError as error:
        status = error.exit_code
        report(str(error), status)
    except BaseException as error:  # noqa: BLE001  a bug: the parent's frames must not be unwound here
        status = RankError.exit_code
        report(unexpected(error), status)
    finally:
        end_process(status)


_FILES, _FILES_A_RANK = 64, 3
"""Open files of the command, and in addition for each rank: of the command, or of rank 0."""


def _require_limits(ranks: int) -> None:
    """Raise the soft limit of open files to the number that `ranks` ranks need.

    Raises LaunchError if this host does not allow as many files.
    """
    files, most = _FILES + _FILES_A_RANK * ranks, RANKS_A_CORE * cores()
    if ranks > most:
        raise LaunchError(
            f"{ranks} ranks are too many for the {cores()} cores of this host",
            f"use at most -n {most} here, or more hosts (launch/README.md)",
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files:
        if hard != resource.RLIM_INFINITY and hard < files:
            raise LaunchError(
                f"{ranks} ranks need {files} open files, and {hard} are allowed", f"ulimit -n {files}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
