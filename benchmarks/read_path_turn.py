"""One turn of a contestant: its files, its process tree, and what it measured."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Turn:
    """What one contestant did in one turn."""

    bytes: int
    seconds: float
    """Seconds of reading."""
    cpu_seconds: float
    """User + system seconds of the process tree while reading."""
    peak_pss: int
    """Bytes: peak proportional set size of the process tree."""
    first_batch: float | None
    """Seconds from the start of the process to its first batch."""

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.bytes / self.seconds

    @property
    def cpu_per_gb(self) -> float:
        """CPU-seconds per 10^9 bytes."""
        return self.cpu_seconds / self.bytes * 1e9


@dataclass(frozen=True, slots=True)
class Files:
    """The files that everybody reads."""

    folder: Path
    paths: tuple[Path, ...]
    sizes: tuple[int, ...]

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes)

    def evict(self) -> None:
        """Push the files out of the page cache."""
        for path in self.paths:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def warm(self) -> None:
        """Read the files into the page cache."""
        buffer = bytearray(2**20)
        for path in self.paths:
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended well."""

    out: str
    cpu_seconds: float
    """User + system seconds of the command and of all descendants that were waited for."""
    peak_pss: int


def watched(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    period: float = 0.25,
) -> Done:
    """Run `command` to its end, looking at its memory every `period` seconds.

    Exits with its last lines when it fails.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=env, cwd=cwd)
        ended = threading.Event()
        peak = [0]

        def watch() -> None:
            while not ended.wait(period):
                peak[0] = max(peak[0], sum(_pss(pid) for pid in _tree(process.pid)))

        watcher = threading.Thread(target=watch)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        ended.set()
        watcher.join()
        out.seek(0)
        err.seek(0)
        if process.returncode:
            sys.exit(
                f"{command[0]} ended with {process.returncode}:\n{err.read()[-2000:]}{out.read()[-2000:]}"
            )
        return Done(out.read(), usage.ru_utime + usage.ru_stime, peak[0])


def _tree(root: int) -> list[int]:
    """`root` and its descendants."""
    found = [root]
    for pid in found:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def _pss(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
