"""A deadline of calls that keep Python's lock, as MPI_Init does: no thread of this process could hold it.

A child process waits beside the call. It touches few pages of what it shares with this process, and ends with
it.
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
    """Unless the body ends within `seconds`, call `late()` in a child process and kill this process."""
    ended, end = os.pipe()
    parent, child = os.getpid(), os.fork()
    if not child:
        try:
            die_with_parent(parent)
            os.close(end)
            # By the second: who is stopped together with this process and continued has not been waiting.
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
