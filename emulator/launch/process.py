"""Process states, death signals and OOM kills, as the kernel reports them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from emulator.record.machine import cgroup_files, read_text

_prctl = ctypes.CDLL(None).prctl  # loaded here: a forked child should not load it
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send signal `number` to this process when its parent, process `parent`, ends."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent ended before the prctl
        os._exit(1)


def set_name(name: str) -> None:
    """Set the name of this process in ps, 15 bytes at most."""
    _prctl(_PR_SET_NAME, name.encode())


def set_title(name: str) -> None:
    """Set name and command line of this process in ps, where it would look like a copy of its parent."""
    set_name(name)
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[45]), int(fields[46])  # where the kernel reads the command line
        if 0 < begin < end:
            ctypes.memmove(begin, name.encode()[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)


def write_stderr(line: str) -> None:
    """Write a line to stderr without buffers: the process may be about to end."""
    with suppress(OSError):
        os.write(2, (line + "\n").encode(errors="replace"))


def end_process(status: int) -> NoReturn:
    """Flush stdout and stderr, and end this process: exit functions do not run, and no thread is awaited."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def process_state(pid: int) -> str:
    """Return the state of process `pid`, a letter of /proc/PID/stat; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def has_ended(pid: int) -> bool:
    """Return True if process `pid` is gone or a zombie."""
    return process_state(pid) in ("", "Z", "X")


def left_behind(processes: Iterable[int]) -> list[int]:
    """Return those of `processes` that have not ended, or have threads that the kernel cannot end."""
    left = []
    for process in processes:
        with suppress(OSError):
            if not has_ended(process) or len(list(Path(f"/proc/{process}/task").iterdir())) > 1:
                left.append(process)
    return left


def descendants(pid: int) -> list[int]:
    """Return the processes that `pid` and its children have started and that run, `pid` first."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(place.name))
    family = [pid]
    for process in family:  # grows
        family += children.get(process, [])
    return family


def kill_family(pid: int) -> list[int]:
    """Kill process `pid` and its descendants, and return them. Never raises."""
    family = descendants(pid)
    for process in family:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
    return family


TREE_SECONDS = 2.0
"""Seconds for ranks to flush their spools after SIGTERM."""
_KILL_SECONDS = 1.0
"""Seconds for the kernel to end a process; one that waits for a storage may be unable to end."""


def end_all(send: Callable[[int], None], run: Callable[[], bool]) -> None:
    """End processes by signals that `send` sends while they `run`: SIGTERM, and if need be SIGKILL."""
    begin = time.monotonic()
    while run() and (waited := time.monotonic() - begin) < TREE_SECONDS + _KILL_SECONDS:
        for number in (signal.SIGTERM, signal.SIGCONT) if waited < TREE_SECONDS else (signal.SIGKILL,):
            send(number)
        time.sleep(0.02)


def oom_kills() -> int:
    """Return the number of OOM kills in this cgroup, else on this host."""
    files = cgroup_files("memory", "memory.events") or cgroup_files("memory", "memory.oom_control")
    for line in read_text(files[0] if files else "/proc/vmstat").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


_OOM_BEFORE = oom_kills()


def short_of_memory(number: int) -> str:
    """Return text to append to "killed by SIGKILL" if memory was, or may have been, the reason."""
    if number != signal.SIGKILL:
        return ""
    if oom_kills() > _OOM_BEFORE:
        return ": the kernel had no memory left (oom_kill): use fewer ranks or workers, or allow more memory"
    return ": by a user, or because memory ran out: see the system log"
