"""Shared by the benchmarks: commands, files, processes and their memory, and pages of results."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from emulator.dataset.manifest import Manifest
from emulator.storage import posix

AS_ROOT = {f"{who}_ALLOW_RUN_AS_ROOT{more}": "1" for who in ("OMPI", "PRTE") for more in ("", "_CONFIRM")}
"""Environment in which mpirun starts ranks as root."""


def feedrate(*words: object) -> list[str]:
    """The command `feedrate` of this checkout."""
    return [sys.executable, "-m", "emulator", *map(str, words)]


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a dataset."""

    folder: Path
    paths: tuple[Path, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, manifest: Manifest, folder: Path) -> Files:
        return cls(folder, tuple(folder / name for name in manifest.names), tuple(manifest.sizes[:].tolist()))

    def warm(self) -> None:
        """Read the files into the page cache."""
        read_in(self.paths)


def evict(paths: Iterable[Path]) -> None:
    """Push these files out of the page cache."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())  # the kernel drops no page that is still to be written
            posix.evict(file.fileno())


def read_in(paths: Iterable[Path]) -> None:
    """Read these files into the page cache."""
    buffer = bytearray(2**20)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def peak_pss(command: Sequence[str], env: Mapping[str, str], period: float) -> int:
    """Run `command`; return the largest PSS of its process tree in bytes, sampled every `period` seconds."""
    process, peak = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env), 0
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(period)
        peak = max(peak, _pss(process.pid))
    if process.returncode:
        sys.exit(f"{command[0]} ended with {process.returncode}")
    return peak


def _pss(root: int) -> int:
    """PSS of a process and its descendants, bytes."""
    total = 0
    with suppress(psutil.Error):
        for process in (own := psutil.Process(root), *own.children(recursive=True)):
            with suppress(psutil.Error):  # it has ended
                total += process.memory_full_info().pss
    return total


def machine() -> str:
    """Processor, cores, memory and kernel of this machine."""
    info = Path("/proc/cpuinfo").read_text()
    model = next((line.split(": ")[1] for line in info.splitlines() if line.startswith("model name")), "?")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, Linux {os.uname().release}."


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Their median and, in brackets, the range of several; empty for none."""
    if len(values) < 2:
        return "".join(f"{value:.{digits}f}" for value in values)
    middle, low, high = (f"{f(values):.{digits}f}" for f in (statistics.median, min, max))
    return f"{middle} [{low}-{high}]"


def table_line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def publish(title: str, head: str, lines: Iterable[str], out: Path | None) -> None:
    """Print a page with its command line by line as it is measured, and write it to `out` if there is one."""
    page = [f"# {title}, {time.strftime('%Y-%m-%d')}", "", f"`python {' '.join(sys.argv)}`", "", head, ""]
    print("\n".join(page), flush=True)
    for line in lines:
        print(line, flush=True)
        page.append(line)
        if out:  # a page that is cut short keeps what was measured
            out.write_text("\n".join(page) + "\n")
