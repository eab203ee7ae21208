"""fio itself: found, started, listened to, read."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from emulator.errors import MissingError, StorageError
from emulator.record.result import Side

GRACE_SECONDS = 120.0
"""How long fio may take beyond the time that it was asked to measure."""

_DIE_WITH_PARENT = 1  # prctl(2): PR_SET_PDEATHSIG


def require_fio() -> str:
    """Path of fio. Raises MissingError."""
    path = shutil.which("fio")
    if path is None:
        raise MissingError(
            "fio is not installed: the storage's own limits need it", "apt install fio, or dnf install fio"
        )
    return path


def fio_version() -> str:
    """`fio-3.33`. Raises MissingError."""
    done = subprocess.run([require_fio(), "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def fio_environment() -> dict[str, str]:
    """The environment of a fio whose buffers shall lie on huge pages, as a loader's do.

    A request into a thousand scattered pages is cut into many: with O_DIRECT and 4 MiB fio read 0.5 GB/s from
    a virtual machine's disk, and 1.4 GB/s into huge pages. What the storage delivers is the latter.
    """
    tunables = filter(None, (os.environ.get("GLIBC_TUNABLES"), "glibc.malloc.hugetlb=1"))
    return {**os.environ, "GLIBC_TUNABLES": ":".join(tunables)}


def dying_with_parent(number: int = signal.SIGKILL) -> Callable[[], None]:
    """For a child before exec: the kernel sends it this signal when its parent ends, however that happens."""
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(_DIE_WITH_PARENT, number)

    return prepare


def run_fio(text: str, seconds: float | None = None, words: Sequence[str] = ("-",)) -> str:
    """Run the job file `text`; fio's JSON (json+, with whole histograms), as fio wrote it.

    `seconds` is the time that it should measure; None: it ends when its work is done. Other `words` than
    `-` name other job files. Raises MissingError, StorageError.
    """
    command = [require_fio(), "--output-format=json+", *words]
    limit = None if seconds is None else seconds + GRACE_SECONDS
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=limit, check=False,
            preexec_fn=dying_with_parent(), env=fio_environment(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise StorageError(
            f"fio did not end within {limit:.0f} s", "the storage hangs; see the system log"
        ) from None
    return checked(done.returncode, done.stdout, done.stderr)


def checked(status: int, out: str, err: str) -> str:
    """The JSON in fio's output. Raises StorageError with fio's own words when it failed."""
    said = [line.strip() for line in (err + "\n" + out.partition("{")[0]).splitlines() if line.strip()]
    if status or "{" not in out:
        words = next((line for line in said if "rror" in line or "fail" in line), (said or ["no output"])[0])
        raise StorageError(f"fio failed (exit status {status}): {words.removeprefix('fio: ')}")
    return out[out.index("{") :]


def parse(text: str) -> list[Mapping[str, Any]]:
    """The groups of fio's JSON, one for each section of the job file. Raises StorageError."""
    try:
        groups: list[Mapping[str, Any]] = json.loads(text)["jobs"]
        failed = [group for group in groups if group["error"]]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"fio's JSON cannot be read ({error})", "fio 3.33 or newer is needed") from None
    if failed:
        raise StorageError(f"fio reports error {failed[0]['error']} for {failed[0].get('jobname', 'a job')}")
    return groups


def side(sides: Sequence[Mapping[str, Any]]) -> Side | None:
    """The `read` or the `write` parts of one group on several clients, together; None: no requests.

    Rates add up; the mean latency is over all requests; the percentile is that of the merged histograms.
    Raises StorageError.
    """
    try:
        active = [one for one in sides if one["total_ios"]]
        if not active:
            return None
        count = sum(one["lat_ns"]["N"] for one in active)
        return Side(
            requests=sum(one["total_ios"] for one in active),
            iops=sum(one["iops"] for one in active),
            bytes_per_second=float(sum(one["bw_bytes"] for one in active)),
            latency_mean=sum(one["lat_ns"]["N"] * one["lat_ns"]["mean"] for one in active) / count / 1e9,
            latency_p9999=percentile([one["lat_ns"]["bins"] for one in active], 0.9999) / 1e9,
        )
    except (KeyError, TypeError) as error:
        raise StorageError(f"fio's JSON lacks {error}", "fio 3.33 or newer is needed") from None


def percentile(histograms: Sequence[Mapping[str, int]], share: float) -> float:
    """The value of the bin in which `share` of all counts are reached, as fio counts it."""
    merged: Counter[int] = Counter()
    for histogram in histograms:
        for edge, count in histogram.items():
            merged[int(edge)] += count
    wanted, seen = share * sum(merged.values()), 0
    for upper, number in sorted(merged.items()):
        seen += number
        if seen >= wanted:
            return float(upper)
    return 0.0
