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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.errors import MissingError, SpecError, StorageError, storage_errors
from emulator.files import Closing, Lock
from emulator.launch.child import ChildProcess
from emulator.plugins.baseline.suites import Suite, load_suite
from emulator.record.result import Side

GRACE_SECONDS = 120.0
"""Seconds that fio may take in addition to the measured time."""
TOO_OLD = "fio 3.33 or newer is needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The files of a client, and the time of a run."""

    folders: tuple[Path, ...]
    """Folders over which the files are spread in turn."""
    file_bytes: int
    """Bytes of a file."""
    direct: bool = True
    seconds: float
    """Measured time in seconds."""
    ramp_seconds: float = 0.0
    """Seconds of ramp-up, before measurement."""

    def __post_init__(self) -> None:
        """Raise SpecError for a folder that fio would misread."""
        for folder in self.folders:
            _escaped(folder)

    def job_file(self, suite: Suite, names: Sequence[str], *, depth: int = 1, seed: int = 1) -> str:
        """Return a job file with the sections `names` of a suite.

        Another `seed` gives other offsets, so that caches do not serve a run from the data of an earlier one.
        """
        folders = [_escaped(folder) for folder in self.folders]
        places = {f"DIRECTORY{file}": folders[file % len(folders)] for file in range(suite.files)}
        values = {
            **places,
            "DIRECTORY": ":".join(folders),
            "SIZE": self.file_bytes,
            "DIRECT": int(self.direct),
            "RUNTIME": f"{round(self.seconds * 1000)}ms",
            "RAMP": f"{round(self.ramp_seconds * 1000)}ms",
            "JOBS": suite.clones,
            "DEPTH": depth,
            "SEED": seed,
        }
        return suite.text(names, values)

    def lay_out(self, files: int) -> None:
        """Write all files once. Raises MissingError, StorageError."""
        parse(run_fio(self.job_file(load_suite("layout", clones=files), ["layout"])))


def _escaped(folder: Path) -> str:
    """Return the folder as the value of an option in a job file. Raises SpecError.

    fio cuts a value at ";" and "#", a line break begins another option (exec_prerun runs a command), and "$"
    expands variables and keywords; none of them can be escaped. A colon separates folders and can be escaped.
    """
    text = str(folder.resolve())
    try:
        text.encode()
        wrong = re.search(r"[\x00-\x1f\x7f;#$]|\s$", text)
        problem = ascii(wrong[0]) if wrong else ""
    except UnicodeEncodeError:
        problem = "bytes that are not UTF-8"
    if problem:
        raise SpecError(f"fio cannot use the folder {text!r}: its name has {problem}", "rename it")
    return text.replace(":", "\\:")


class FioFolder(Closing):
    """A folder for files of fio, which is locked until it is closed.

    The files of a killed run, and those of --keep, are removed when the folder is taken again. Its lock file
    names who made them; without one they are refused.
    """

    def __init__(self, folder: Path) -> None:
        """Take the folder, and make it in its parent. Raises SpecError, StorageError."""
        self.keep = False
        self._folder = folder
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
            theirs = [path.name for path in folder.iterdir() if path != self._lock.path]
        if theirs:
            self._leave()
            names = ", ".join(sorted(theirs)[:5])
            raise SpecError(f"{folder} has files that feedrate did not make: {names}", "move them away")

    def _remove(self) -> None:
        for path in self._folder.glob("job*.dat"):
            if re.fullmatch(r"job\d+\.dat", path.name) and path.is_file() and not path.is_symlink():
                path.unlink()

    def close(self) -> None:
        """Remove the files, unless they are to be kept, and unlock the folder. Never raises."""
        if self.keep:
            del self._lock  # without a release it goes on naming this process, as if it had been killed
            return
        with suppress(OSError):  # the storage has failed, which has been reported
            self._remove()
        self._leave()

    def _leave(self) -> None:
        """Release the lock, and remove the folder and its parent if they are empty."""
        with suppress(OSError):
            self._lock.release(remove=True)
            for path in (self._folder, self._folder.parent):
                path.rmdir()  # OSError if it is not empty


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


def run_fio(text: str, seconds: float | None = None) -> str:
    """Run the job file `text` and return fio's JSON, with full histograms.

    `seconds` is the measured time; None if fio ends when its work is done. Raises MissingError, StorageError.
    """
    command = [require_fio(), "--output-format=json+", "-"]
    fio = ChildProcess("fio", command, env=fio_environment())
    out, err = fio.finish(text, None if seconds is None else seconds + GRACE_SECONDS)
    return checked(fio.returncode, out, err)


def checked(status: int, out: str, err: str) -> str:
    """Return the JSON in fio's output. Raises StorageError with fio's message if it failed."""
    if status or "{" not in out:
        lines = [line.strip() for line in (err + "\n" + out.partition("{")[0]).splitlines() if line.strip()]
        reasons = [line for line in lines if "rror" in line or "fail" in line]
        reason = (reasons or lines or ["no output"])[0].removeprefix("fio: ")
        raise StorageError(f"fio failed (exit status {status}): {reason}")
    return out[out.index("{") :]


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
        if not active:
            return None
        count = sum(part["lat_ns"]["N"] for part in active)
        merged: Counter[int] = Counter()
        for part in active:
            merged.update({int(edge): number for edge, number in part["lat_ns"]["bins"].items()})
        return Side(
            requests=sum(part["total_ios"] for part in active),
            iops=sum(part["iops"] for part in active),
            bytes_per_second=float(sum(part["bw_bytes"] for part in active)),
            latency_mean=sum(part["lat_ns"]["N"] * part["lat_ns"]["mean"] for part in active) / count / 1e9,
            latency_p50=percentile(merged, 0.5) / 1e9,
            latency_p90=percentile(merged, 0.9) / 1e9,
            latency_p99=percentile(merged, 0.99) / 1e9,
            latency_p999=percentile(merged, 0.999) / 1e9,
            latency_p9999=percentile(merged, 0.9999) / 1e9,
        )
    except (KeyError, TypeError) as error:
        raise StorageError(f"fio's JSON lacks {error}", TOO_OLD) from None


def percentile(histogram: Mapping[int, int], share: float) -> int:
    """Return the upper edge of the bin in which `share` of all counts is reached, as fio does."""
    wanted, reached = share * sum(histogram.values()), 0
    for edge in sorted(histogram):
        reached += histogram[edge]
        if reached >= wanted:
            return edge
    return 0
