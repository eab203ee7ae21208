"""What happens when a rank fails: one line, every rank down, what was measured kept."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

from emulator.errors import FeedrateError, RankError
from emulator.record.store import claim_failure
from emulator.run.comm import Comm

Value = TypeVar("Value")


class Quiet(SystemExit):
    """The end of a rank after an error that has been reported already."""


class Stopped(BaseException):
    """SIGTERM or SIGINT arrived: mpirun takes the run down, or the user does."""


def agreed(comm: Comm, action: Callable[[], Value]) -> Value:
    """`action()` on every rank; when any rank's raises a FeedrateError, every rank ends.

    The first rank that failed says why, and all end with its exit status. Collective over `comm`.
    """
    failed: FeedrateError | None = None
    value: Value | None = None
    try:
        value = action()
    except FeedrateError as error:
        failed = error
    codes = comm.allgather(failed.exit_code if failed else 0)
    if not any(codes):
        return value  # type: ignore[return-value]
    first = next(rank for rank, code in enumerate(codes) if code)
    if failed is not None and comm.rank == first:
        print(f"feedrate: error: {failed}", file=sys.stderr, flush=True)
    raise Quiet(codes[first])


@contextmanager
def guarded(comm: Comm, out: Path) -> Iterator[None]:
    """Take the whole world down when this rank raises; the first rank to fail says why.

    The line goes to stderr and into OUT/failure.txt, which `feedrate report` shows as the reason of an
    incomplete result.
    """
    with _signals_raise():
        try:
            yield
        except Quiet:
            raise
        except FeedrateError as error:
            _down(comm, out, str(error), error.exit_code)
        except Stopped as stop:
            _down(comm, out, str(stop), RankError.exit_code, silent=True)
        except Exception:  # noqa: BLE001  a bug: its traceback is what we need, and no rank may hang
            traceback.print_exc()
            _down(comm, out, "an internal error ended a rank", RankError.exit_code)


def _down(comm: Comm, out: Path, line: str, code: int, silent: bool = False) -> NoReturn:
    where = f"rank {comm.rank}: " if comm.size > 1 else ""
    if claim_failure(out, where + line) and not silent:
        print(f"feedrate: error: {where}{line}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    comm.abort(code)
    os._exit(code)  # a thread blocked in a hung mount would keep the interpreter from ending


@contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGTERM and SIGINT raise Stopped, so that spools are flushed on the way out."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # once is enough; a second one must not break the flush
        raise Stopped(f"ended by {signal.Signals(number).name}")

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
