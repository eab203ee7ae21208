"""A deadline for calls that keep the GIL, such as MPI_Init: no thread of this process could enforce it.

A forked child enforces it. The child writes to few of the shared pages, and ends with this process.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from emulator.launch.process import die_with_parent


@contextmanager
def ended_after(seconds: float, late: Callable[[], object]) -> Iterator[None]:
    """Kill this process if the body takes longer than `seconds`, after `late()` in a child process."""
    ended, end = os.pipe()
    parent, child = os.getpid(), os.fork()
    if not child:
        try:
            die_with_parent(parent)
            os.close(end)
            # Count single seconds: time in which both processes are stopped (SIGSTOP) must not count.
            while seconds > 0 and not select.select([ended], [], [], min(1.0, seconds))[0]:
                seconds -= 1.0
            if seconds <= 0:
                late()
                os.kill(parent, signal.SIGKILL)
        finally:
            os._exit(0)
    os.close(ended)
    try:
        yield
    finally:
        os.close(end)
        os.waitpid(child, 0)
