"""fio's job files as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emulator.baseline.suites import MIB, Access, Task


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
