"""Write fio's job files, run fio, and read its JSON."""

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

import numpy as np

from emulator.errors import MissingError, SpecError, StorageError, storage_errors
from emulator.files import Lock, write_whole
from emulator.launch.child import ChildProcess
from emulator.plugins.baseline.suites import MIB, Access, Task
from emulator.record.result import Side

ENGINE = "libaio"
FILE_NAME = "job{}.dat"
_FILE = re.compile(r"job(0|[1-9]\d{0,8})\.dat")
_JOURNAL = "feedrate-files.json"
"""Journal with the files of the folder that are fio's."""
_LOCK = ".feedrate-lock"
GRACE_SECONDS = 120.0
"""Seconds that fio may take in addition to the measured time."""
TOO_OLD = "fio 3.33 or newer is needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The global section of a job file."""

    folder: Path
    """Folder with the files of this client."""
    file_bytes: int
    """Bytes of a job's file."""
    direct: bool = True
    seconds: float
    """Measured time in seconds."""
    ramp_seconds: float = 0.0
    """Seconds of ramp-up, before measurement."""

    def __post_init__(self) -> None:
        """Raise SpecError for a folder that fio would misread."""
        _directory(self)


def _directory(setting: Setting) -> str:
    """Return the folder as the value of an option in a job file. Raises SpecError.

    fio cuts a value at ";" and "#", a line break begins another option (exec_prerun runs a command), and "$"
    expands variables and keywords; none of them can be escaped. A colon separates folders and can be escaped.
    """
    text = str(setting.folder.resolve())
    try:
        text.encode()
        wrong = re.search(r"[\x00-\x1f\x7f;#$]|\s$", text)
        problem = ascii(wrong[0]) if wrong else ""
    except UnicodeEncodeError:
        problem = "bytes that are not UTF-8"
    if problem:
        raise SpecError(f"fio cannot use the folder {text!r}: its name has {problem}", "rename it")
    return text.replace(":", "\\:")


def job_file(setting: Setting, tasks: Sequence[Task], seed: int, *, unlink: bool = False) -> str:
    """Return a job file that runs `tasks` at once on existing files, and removes them with `unlink`.

    Another `seed` gives other offsets, so that caches do not serve a run from the data of an earlier one.
    """
    timed = [
        "time_based=1",
        f"runtime={round(setting.seconds * 1000)}ms",
        f"ramp_time={round(setting.ramp_seconds * 1000)}ms",
        "norandommap=1",
        f"randseed={seed}",
        "allow_file_create=0",
        "lat_percentiles=1",
        "clat_percentiles=0",
        "percentile_list=50:90:99:99.9:99.99",
        *(["unlink=1"] if unlink else []),
    ]
    sections = [line for task in tasks for line in _section(task)]
    return "\n".join([*_global(setting), *timed, *sections]) + "\n"


def layout_file(setting: Setting, files: int) -> str:
    """Return a job file that writes all files once, sequentially, with incompressible data."""
    write = Task(access=Access(pattern="sequential", block_bytes=MIB, read_share=0.0), depth=4, jobs=files)
    return "\n".join([*_global(setting), "refill_buffers=1", "end_fsync=1", *_section(write)]) + "\n"


def _global(setting: Setting) -> list[str]:
    return [
        "[global]",
        f"ioengine={ENGINE}",
        f"direct={int(setting.direct)}",
        "thread=1",
        "iomem_align=2m",  # for huge pages
        f"directory={_directory(setting)}",
        f"size={setting.file_bytes}",
        "group_reporting=1",
    ]


def _section(task: Task) -> list[str]:
    access = task.access
    mixed = 0 < access.read_share < 1
    action = "rw" if mixed else ("read" if access.read_share else "write")
    name = FILE_NAME.format(task.first_file)
    return [
        f"[{access.slug}-qd{task.depth}]",
        "new_group",  # report this section as a separate group
        f"rw={'rand' if access.pattern == 'random' else ''}{action}",
        *([f"rwmixread={access.read_share * 100:.0f}"] if mixed else []),
        f"bs={access.block_bytes}",
        f"iodepth={task.depth}",
        f"numjobs={task.jobs}",
        f"filename_format={FILE_NAME.format('$jobnum')}" if task.jobs > 1 else f"filename={name}",
        *([f"rate={max(1, round(task.rate / task.jobs))}"] if task.rate else []),
    ]


class FioFiles:
    """The files that fio reads and writes in a client's folder, which stays locked meanwhile.

    A journal in the folder lists the files that fio was given, and their largest size. Those that a killed
    run left are removed; any other file with such a name is refused.
    """

    def __init__(self, folder: Path, number: int, file_bytes: int) -> None:
        """Prepare the folder for job0.dat and so on, each of at most `file_bytes`.

        Raises SpecError if it is in use or has such files already, StorageError.
        """
        self._folder = folder
        with storage_errors("cannot create the folder"):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock = Lock(folder / _LOCK)
            except BlockingIOError as error:
                raise SpecError(f"{folder} is in use: {error.strerror}", "wait for it") from None
        try:
            with storage_errors("cannot remove the files of an earlier run"):
                self._remove()
            taken = [name for name in map(FILE_NAME.format, range(number)) if os.path.lexists(folder / name)]
            if taken or os.path.lexists(folder / _JOURNAL):
                raise SpecError(
                    f"{folder} has files that feedrate did not make: {', '.join(taken[:5]) or _JOURNAL}",
                    "move them away",
                )
            journal = {"feedrate": "files of fio", "files": number, "bytes": file_bytes}
            write_whole(folder / _JOURNAL, json.dumps(journal) + "\n")
        except BaseException:
            self._leave()
            raise

    def _remove(self) -> None:
        """Remove the files of the journal, and then the journal. Raises OSError."""
        journal = self._folder / _JOURNAL
        try:
            table: Any = json.loads(journal.read_bytes()) if not journal.is_symlink() else None
            files, most = table["files"], table["bytes"]
            if table["feedrate"] != "files of fio" or type(files) is not int or type(most) is not int:
                return
        except (FileNotFoundError, IsADirectoryError, ValueError, RecursionError, KeyError, TypeError):
            return
        for path in list(self._folder.iterdir()):
            match = _FILE.fullmatch(path.name)
            plain = path.is_file() and not path.is_symlink()
            if match and int(match[1]) < files and plain and path.stat().st_size <= most:
                path.unlink(missing_ok=True)
        journal.unlink(missing_ok=True)

    def close(self, *, keep: bool = False) -> None:
        """Remove the files, unless `keep`, and unlock the folder. Never raises."""
        with suppress(OSError):  # the storage has failed, which has been reported
            if not keep:
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


def start_fio(name: str, **options: Any) -> ChildProcess:
    """Start fio on a job file from stdin, with output as JSON with full histograms. Raises MissingError.

    `name` is its name in error messages; `options` are those of ChildProcess.
    """
    command = [require_fio(), "--output-format=json+", "-"]
    return ChildProcess(name, command, env=fio_environment(), **options)


def run_fio(text: str, seconds: float | None = None) -> str:
    """Run the job file `text` and return fio's JSON.

    `seconds` is the measured time; None if fio ends when its work is done. Raises MissingError, StorageError.
    """
    fio = start_fio("fio")
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

    Rates are summed; the mean latency is over all requests; the percentile is that of the merged histograms.
    Raises StorageError.
    """
    try:
        active = [part for part in parts if part["total_ios"]]
        if not active:
            return None
        count = sum(part["lat_ns"]["N"] for part in active)
        return Side(
            requests=sum(part["total_ios"] for part in active),
            iops=sum(part["iops"] for part in active),
            bytes_per_second=float(sum(part["bw_bytes"] for part in active)),
            latency_mean=sum(part["lat_ns"]["N"] * part["lat_ns"]["mean"] for part in active) / count / 1e9,
            latency_p9999=percentile([part["lat_ns"]["bins"] for part in active], 0.9999) / 1e9,
        )
    except (KeyError, TypeError) as error:
        raise StorageError(f"fio's JSON lacks {error}", TOO_OLD) from None


def percentile(histograms: Sequence[Mapping[str, int]], share: float) -> float:
    """Return the upper edge of the bin in which `share` of all counts is reached, as fio does."""
    merged: Counter[int] = Counter()
    for histogram in histograms:
        merged.update({int(edge): count for edge, count in histogram.items()})
    edges = sorted(merged)
    reached = np.cumsum([merged[edge] for edge in edges])
    return float(edges[np.searchsorted(reached, share * reached[-1])]) if edges else 0.0
