"""What a benchmark runs in processes of its own, so that the kernel says what each took."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable


def feedrate(*words: object) -> None:
    os.execv(  # noqa: S606
        sys.executable, [sys.executable, "-m", "emulator", *map(str, words)]
    )


def in_a_process(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of `work` in a process of its own, and the most megabytes that it had resident."""
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            work()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001
            print(repr(error), file=sys.stderr)
            os._exit(1)
    _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit(f"it ended with {status}")
    return time.monotonic() - begin, used.ru_maxrss / 1000


def table_line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
