"""The communicator of ranks, and how all ranks end when one fails.

Data of all ranks are sent as arrays; objects are only for data of one rank, or of each host's first rank.

Before measuring, ranks agree on an error and report it once (`agreed`). Later, the first rank that fails
reports why and ends all others (`guarded`); the measurement so far is kept.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from emulator import notes
from emulator.analysis.parts import Whole, least
from emulator.errors import FeedrateError, RankError, unexpected
from emulator.launch.child import signals_to
from emulator.launch.supervise import report
from emulator.record.out import claim_failure

if TYPE_CHECKING:
    from emulator.launch.links import HostLinks

STEP_POLL = 0.001
"""Longest sleep between two polls of a barrier within a step, seconds."""

IDLE_POLL = 0.025
"""Longest sleep between two polls of a rank that has nothing to do, seconds."""


class Comm(Whole):
    """A group of ranks. This class is a group of one; `launch.forked` and `launch.mpi` have others.

    Every method but `abort` is collective. As a Whole it reduces the rows of all ranks of a point.
    """

    rank: int = 0
    size: int = 1
    keeps_failure = True
    """True if a rank writes OUT/failure.txt; False if the command that forked the ranks does."""
    raises = False  # True for a process alone whose caller gets errors as exceptions
    library: str = ""
    """The MPI library that joins the ranks; empty without MPI."""
    links: HostLinks | None = None
    """This host's connections to others of the world, on its first rank."""

    def barrier(self, poll: float = IDLE_POLL) -> None:
        """Wait for all ranks; poll at least every `poll` seconds, with sleep in between."""

    def bcast(self, value: Any) -> Any:
        """Return rank 0's `value` on every rank."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value on rank 0, in rank order; an empty list elsewhere."""
        return [value]

    def allgather(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order."""
        return [value]

    def split(self, color: int) -> Comm:
        """Return the group of the ranks that gave the same `color`, in rank order."""
        return self

    def hosts(self) -> list[str]:
        """Return the host of every rank, in rank order."""
        return [socket.gethostname()]

    def node(self) -> Comm:
        """Return the group of the ranks on this rank's host."""
        return self

    def abort(self, code: int) -> None:
        """End every rank of the world at once, with exit status `code`."""
        raise SystemExit(code)


LAST_WORDS_SECONDS = 1.5
"""Seconds for the first rank that fails to report why, before a later one ends all ranks."""
Value = TypeVar("Value")
_CODES = 256


class Quiet(SystemExit):
    """End of a rank after an error that has been reported already."""


class Stopped(BaseException):
    """SIGTERM or SIGINT: mpirun or the user ends the run."""


def agreed(comm: Comm, action: Callable[[], Value], out: Path | None = None) -> Value:
    """Return `action()` on every rank; if any rank's raises a FeedrateError, every rank ends.

    The first rank that failed reports why, with `out` also in OUT/failure.txt. All end with its exit status.
    Collective over `comm`.
    """
    failed: FeedrateError | None = None
    value: Value | None = None
    try:
        value = action()
    except FeedrateError as error:
        failed = error
    comm.barrier()
    (first,) = least(comm, np.array([comm.rank + failed.exit_code / _CODES if failed else math.inf]))
    if first == math.inf:
        return value  # type: ignore[return-value]
    if failed is not None and comm.raises:
        raise failed
    if failed is not None and comm.rank == int(first):
        if out is not None:
            claim_failure(out, str(failed))
        print(f"feedrate: error: {failed}", file=sys.stderr, flush=True)
    raise Quiet(int(first % 1 * _CODES))


@contextmanager
def entered(comm: Comm, enter: Callable[[], AbstractContextManager[Value]] | None) -> Iterator[Value | None]:
    """Enter the context of `enter()` on the ranks that have one; yield its value, None on others.

    If a rank cannot enter, every rank ends, as with `agreed`. Collective over `comm`.
    """
    with ExitStack() as stack:
        yield agreed(comm, lambda: stack.enter_context(enter()) if enter else None)


@contextmanager
def guarded(comm: Comm, out: Path) -> Iterator[None]:
    """End all ranks if the body raises; the first rank to fail reports why.

    The line goes to stderr and OUT/failure.txt; `feedrate report` shows it as the reason of an incomplete
    result.
    """
    page = notes.page()
    if page is not None and comm.keeps_failure:
        page.head.out = os.fsencode(out)
    with _stopped_by_signals():
        try:
            yield
        except Quiet:
            raise
        except FeedrateError as error:
            _fail(comm, out, str(error), error.exit_code)
        except Stopped as stopped:
            _stop(comm, out, stopped)
        except Exception as error:  # noqa: BLE001  a bug: no rank may hang
            _fail(comm, out, unexpected(error), RankError.exit_code)


def _stop(comm: Comm, out: Path, stopped: Stopped) -> NoReturn:
    """End this rank after a signal. The watcher may know why; else a user or another rank sent it."""
    page = notes.page()
    line, code = f"{stopped}, by a user or because another rank was killed", RankError.exit_code
    if page and (failure := page.failure()):
        line, code = failure
    if comm.keeps_failure:
        if page:
            page.fail(line, code)  # so that the watcher does not call it killed
        claim_failure(out, line)
    _end(comm, code)


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Raise `Stopped` in the body on SIGTERM, SIGINT or SIGHUP, to unwind the stack and flush spools."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the flush
        raise Stopped(f"ended by {signal.Signals(number).name}")

    with signals_to(stop):
        yield


def _fail(comm: Comm, out: Path, line: str, code: int) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # from mpirun: this rank is ending already
    where = f"rank {comm.rank}: " if comm.size > 1 else ""
    report(where + line, code, out=str(out) if comm.keeps_failure else "")
    if comm.size > 1:
        time.sleep(LAST_WORDS_SECONDS)  # let the first one speak before this one ends all ranks
    _end(comm, code)


def _end(comm: Comm, code: int) -> NoReturn:
    sys.stdout.flush()
    comm.abort(code)
    os._exit(code)  # a thread blocked in a hung mount would keep the interpreter from ending
