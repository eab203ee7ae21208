"""Processes as the kernel sees them: their state, how they die, and whether memory was short."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def let_go_of_output() -> None:
    """Close stdin, stdout and stderr for whoever reads them: this process may never quite end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send signal `number` to this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def write_stderr(line: str) -> None:
    """Write a line to stderr, as a process can that is about to end."""
    with suppress(OSError):
        os.write(2, (line + "\n").encode(errors="replace"))


def process_state(pid: int) -> str:
    """The state of process `pid` as a letter of /proc/PID/stat; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def oom_kills() -> int:
    """The OOM killer's count of this cgroup, else of the machine."""
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
    """Words to put after "killed by SIGKILL" when memory was the reason, or may have been."""
    if number != signal.SIGKILL:
        return ""
    if oom_kills() > _OOM_BEFORE:
        return ": the kernel had no memory left (oom_kill): use fewer ranks or workers, or allow more memory"
    return ": by somebody, or for want of memory: see the system log"
