"""fio's job files as text. Pure."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.errors import MissingError, StorageError
from emulator.record.result import Side
from emulator.run.child import ChildProcess
from emulator.satellites.baseline.suites import MIB, Access, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all sections of a job file share."""

    folder: Path
    """Where the files of this client are."""
    file_bytes: int
    """Bytes of a job's file."""
    engine: str
    """fio's ioengine."""
    direct: bool
    """O_DIRECT."""
    seconds: float
    """Measured time."""
    ramp_seconds: float
    """Time before it that is not counted."""


FILE_NAME = "job{}.dat"


def job_file(setting: Setting, tasks: Sequence[Task], seed: int, *, unlink: bool = False) -> str:
    """The job file that runs `tasks` at the same time on files that are there; `unlink`: and removes them.

    Another `seed` gives other offsets: a run must not be served from what its predecessor left in caches.
    """
    timed = [
        "time_based=1",
        f"runtime={_milliseconds(setting.seconds)}",
        f"ramp_time={_milliseconds(setting.ramp_seconds)}",
        "norandommap=1",
        f"randseed={seed}",
        "allow_file_create=0",
        "lat_percentiles=1",
        "clat_percentiles=0",
        "percentile_list=50:90:99:99.9:99.99",
        *(["unlink=1"] if unlink else []),
    ]
    sections = [line for task in tasks for line in _section(task)]
    return "\n".join([*_shared(setting), *timed, *sections]) + "\n"


def layout_file(setting: Setting, files: int) -> str:
    """The job file that writes all files once from begin to end, with data that does not compress."""
    write = Task(access=Access(pattern="sequential", block_bytes=MIB, read_share=0.0), depth=4, jobs=files)
    return "\n".join([*_shared(setting), "refill_buffers=1", "end_fsync=1", *_section(write)]) + "\n"


def _shared(setting: Setting) -> list[str]:
    return [
        "[global]",
        f"ioengine={setting.engine}",
        f"direct={int(setting.direct)}",
        "thread=1",
        "iomem_align=2m",  # whole huge pages, where there are any
        # A colon separates folders for fio.
        "directory=" + str(setting.folder.resolve()).replace(":", "\\:"),
        f"size={setting.file_bytes}",
        "group_reporting=1",
    ]


def _section(task: Task) -> list[str]:
    access = task.access
    mixed = 0 < access.read_share < 1
    action = "rw" if mixed else ("read" if access.read_share else "write")
    kind = f"rand{action}" if access.pattern == "random" else action
    many = task.jobs > 1
    return [
        f"[{access.slug}-qd{task.depth}]",
        "new_group",  # a group of its own in the JSON, whatever else the file holds
        f"rw={kind}",
        *([f"rwmixread={access.read_share * 100:.0f}"] if mixed else []),
        f"bs={access.block_bytes}",
        f"iodepth={task.depth}",
        f"numjobs={task.jobs}",
        "filename_format=" + FILE_NAME.format("$jobnum") if many else
        "filename=" + FILE_NAME.format(task.first_file),
        *([f"rate={max(1, round(task.rate / task.jobs))}"] if task.rate else []),
    ]  # fmt: skip


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


# ---- fio itself: found, started, listened to, read.


GRACE_SECONDS = 120.0
"""How long fio may take beyond the time that it was asked to measure."""


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


def run_fio(text: str, seconds: float | None = None, words: Sequence[str] = ("-",)) -> str:
    """Run the job file `text`; fio's JSON (json+, with whole histograms), as fio wrote it.

    `seconds` is the time that it should measure; None: it ends when its work is done. Other `words` than
    `-` name other job files. Raises MissingError, StorageError.
    """
    command = [require_fio(), "--output-format=json+", *words]
    fio = ChildProcess("fio", command, env=fio_environment())
    out, err = fio.finish(text, None if seconds is None else seconds + GRACE_SECONDS)
    return checked(fio.returncode, out, err)


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
