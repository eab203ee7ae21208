"""A deadline for calls that keep the GIL, such as MPI_Init: no thread of this process could enforce it.

A forked child enforces it, and removes MPICH's shared memory if this process is killed meanwhile. The child
writes to few of the shared pages, and ends with this process.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from emulator.launch.launched import shared_segments


@contextmanager
def ended_after(seconds: float, late: Callable[[], object]) -> Iterator[None]:
    """Kill this process if the body takes longer than `seconds`, after `late()` in a child process."""
    ended, end = os.pipe()
    parent, child = os.getpid(), os.fork()
    if not child:
        try:
            os.close(end)
            os.setsid()  # launchers kill process groups
            _watch(parent, ended, seconds, late)
        finally:
            os._exit(0)
    os.close(ended)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):
            os.write(end, b".")
        os.close(end)
        os.waitpid(child, 0)


def _watch(parent: int, ended: int, seconds: float, late: Callable[[], object]) -> None:
    segments = []
    # Count single seconds: time in which both processes are stopped (SIGSTOP) must not count.
    while seconds > 0 and not select.select([ended], [], [], min(1.0, seconds))[0]:
        seconds -= 1.0
        with suppress(OSError):
            segments = shared_segments(parent)
    if seconds <= 0:
        late()
        os.kill(parent, signal.SIGKILL)
    if not os.read(ended, 1):  # it was killed
        for segment in segments:
            segment.unlink(missing_ok=True)
