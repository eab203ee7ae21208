"""Run fio on job files, and read its JSON."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from emulator.errors import MissingError, SpecError, StorageError, storage_errors
from emulator.files import Closing, Lock
from emulator.launch.child import ChildProcess
from emulator.record.result import Side

GRACE_SECONDS = 120.0
"""Seconds that fio may take in addition to the measured time."""
TOO_OLD = "fio 3.33 or newer is needed"


class FioFolder(Closing):
    """A folder for files of fio, which is locked until it is closed.

    The files of a killed run, and those of --keep, are removed when the folder is taken again. Its lock file
    names who made them; without one they are refused.
    """

    def __init__(self, folder: Path, *, keep: bool = False) -> None:
        """Take the folder, and make it in its parent; `keep` its files. Raises SpecError, StorageError."""
        self._folder, self._keep = folder, keep
        with storage_errors("cannot create the folder"):
            # Not the parents: without its mount, the storage's folder would be made on another disk.
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)
            try:
                self._lock = Lock(folder / ".feedrate-lock")
            except BlockingIOError as error:
                raise SpecError(f"{folder} is in use: {error.strerror}", "wait for it") from None
            if self._lock.before is not None:
                self._remove()
            theirs = sorted(path.name for path in folder.iterdir() if path != self._lock.path)
        if theirs:
            self._leave()
            names = ", ".join(theirs[:5])
            raise SpecError(f"{folder} has files that feedrate did not make: {names}", "move them away")

    def _remove(self) -> None:
        for path in self._folder.glob("job*.dat"):
            if re.fullmatch(r"job\d+\.dat", path.name) and path.is_file() and not path.is_symlink():
                path.unlink()

    def close(self) -> None:
        """Remove the files, unless they are to be kept, and unlock the folder. Never raises."""
        if self._keep:
            # Without a release it goes on naming this process, as if it had been killed.
            del self._lock
            return
        with suppress(OSError):  # the storage has failed, which has been reported
            self._remove()
        self._leave()

    def _leave(self) -> None:
        """Release the lock, and remove the folder and its parent if they are empty."""
        self._lock.release(remove=True)
        with suppress(OSError):  # one is not empty
            self._folder.rmdir()
            self._folder.parent.rmdir()


def require_fio() -> str:
    """Return the path of fio. Raises MissingError."""
    path = shutil.which("fio")
    if path is None:
        raise MissingError(
            "fio, which measures the storage, is not installed", "apt install fio, or dnf install fio"
        )
    return path


def fio_version() -> str:
    """Return fio's version, such as `fio-3.33`. Raises MissingError."""
    done = subprocess.run([require_fio(), "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def fio_environment() -> dict[str, str]:
    """Return an environment in which fio's buffers are on huge pages, like a loader's.

    A request into a thousand scattered pages is split into many: with O_DIRECT and 4 MiB, fio read 0.5 GB/s
    from a virtual machine's disk, and 1.4 GB/s into huge pages.
    """
    tunables = filter(None, (os.environ.get("GLIBC_TUNABLES"), "glibc.malloc.hugetlb=1"))
    return {**os.environ, "GLIBC_TUNABLES": ":".join(tunables)}


def run_fio(job_file: str, seconds: float | None = None) -> str:
    """Run a job file, and return fio's JSON with full histograms.

    `seconds` is the measured time; None if fio ends when its work is done. Raises MissingError, StorageError.
    """
    # The job file comes from stdin.
    command = [require_fio(), "--output-format=json+", "-"]
    fio = ChildProcess("fio", command, env=fio_environment())
    out, err = fio.finish(job_file, None if seconds is None else seconds + GRACE_SECONDS)
    return checked(fio.returncode, out, err)


def checked(status: int, out: str, err: str) -> str:
    """Return the JSON in fio's output. Raises StorageError with fio's message if it failed."""
    notes, brace, rest = out.partition("{")
    if status or not brace:
        lines = [line.strip() for line in f"{err}\n{notes}".splitlines() if line.strip()]
        # Among its lines are advice and progress: the first one about an error says why.
        reasons = [line for line in lines if "rror" in line or "fail" in line]
        reason = (reasons or lines or ["no output"])[0].removeprefix("fio: ")
        raise StorageError(f"fio failed (exit status {status}): {reason}")
    return brace + rest


def parse(text: str) -> list[Mapping[str, Any]]:
    """Return the groups of fio's JSON, one for each section of the job file. Raises StorageError."""
    try:
        groups: list[Mapping[str, Any]] = json.loads(text)["jobs"]
        failed = [group for group in groups if group["error"]]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"fio's JSON cannot be read ({error})", TOO_OLD) from None
    if failed:
        raise StorageError(f"fio reports error {failed[0]['error']} for {failed[0].get('jobname', 'a job')}")
    return groups


def side(parts: Sequence[Mapping[str, Any]]) -> Side | None:
    """Combine the `read` or the `write` parts of one group on several clients; None without requests.

    Rates are summed; the mean latency is over all requests; percentiles are those of the merged histograms.
    Raises StorageError.
    """
    try:
        active = [part for part in parts if part["total_ios"]]
        return _combined(active) if active else None
    except (KeyError, TypeError) as error:
        raise StorageError(f"fio's JSON lacks {error}", TOO_OLD) from None


def _combined(active: Sequence[Mapping[str, Any]]) -> Side:
    # Percentiles of clients cannot be averaged, but their histograms have equal bins.
    histogram: Counter[int] = Counter()
    for part in active:
        histogram.update({int(edge): count for edge, count in part["lat_ns"]["bins"].items()})
    summed_latency = sum(part["lat_ns"]["N"] * part["lat_ns"]["mean"] for part in active)
    return Side(
        requests=sum(part["total_ios"] for part in active),
        iops=sum(part["iops"] for part in active),
        bytes_per_second=float(sum(part["bw_bytes"] for part in active)),
        latency_mean=summed_latency / sum(part["lat_ns"]["N"] for part in active) / 1e9,
        latency_p50=percentile(histogram, 0.5) / 1e9,
        latency_p90=percentile(histogram, 0.9) / 1e9,
        latency_p99=percentile(histogram, 0.99) / 1e9,
        latency_p999=percentile(histogram, 0.999) / 1e9,
        latency_p9999=percentile(histogram, 0.9999) / 1e9,
    )


def percentile(histogram: Mapping[int, int], share: float) -> int:
    """Return the upper edge of the bin in which `share` of all counts is reached, as fio does."""
    wanted, reached = share * sum(histogram.values()), 0
    for edge in sorted(histogram):
        reached += histogram[edge]
        if reached >= wanted:
            return edge
    return 0
