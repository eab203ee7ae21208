"""Replay a recording on the files of its job.

The replay reads them through links from a folder in memory: it writes nothing to the user's storage, and
keeps no names of files. It reads them from memory or from storage, as the job did.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emulator import live
from emulator.analysis.throughput import durations
from emulator.calls import CALL
from emulator.config.workload import Workload
from emulator.dataset.manifest import Manifest, write_manifest
from emulator.dataset.names import Listed
from emulator.dataset.table import ROW
from emulator.errors import SpecError
from emulator.files import write_whole
from emulator.launch.child import feedrate
from emulator.launch.scratch import scratch
from emulator.plugins.recorder.describe import Described
from emulator.plugins.recorder.job import CALLS, WORKLOAD, toml
from emulator.plugins.recorder.steps import Pace, settled
from emulator.record.device import counters_of
from emulator.record.out import read_result
from emulator.record.result import Point
from emulator.record.rows import write_rows
from emulator.record.steps import Steps, read_steps
from emulator.storage.folder import FolderStore

_FEW_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay, and its pace."""

    point: Point
    rows: Steps
    pace: Pace
    request_bytes: float | None
    """As of Observation."""
    in_flight: float | None
    """As of Observation."""

    @property
    def storage_bytes(self) -> float:
        """Bytes from storage per batch; 0 if unknown."""
        return (self.point.read_amplification or 0.0) * float(self.rows["bytes"].mean())


def replay(described: Described, ranks: int, paths: Sequence[bytes], steps: int, cold: bool) -> Replay:
    """Replay `steps` steps on the files `paths`, at least ten after the prefetched ones.

    `cold`: from storage, not from memory. Raises SpecError for too few steps, FeedrateError if it fails.
    """
    workload = described.workload
    ahead = workload.batches_ahead
    device = counters_of(Path(os.fsdecode(paths[0])).parent)
    with scratch() as (folder, _), live.silent():
        data, out, spec = folder / "data", folder / "out", folder / WORKLOAD
        write_whole(spec, toml(workload))
        write_rows(folder / CALLS, CALL, [described.recorded.rows])
        files = _link(paths, data, workload)
        steps = _steps_of(files, ranks, steps, workload)
        before = device()
        feedrate(
            "run", str(data), "--workload", str(spec), "--ranks", str(ranks), "--steps", str(steps),
            "--cache", "cold" if cold else "warm", "--out", str(out), "--mismatched-dataset",
        )  # fmt: skip
        after = device()
        (point,) = read_result(out).points
        rows = read_steps(out)
    pace = _pace(rows, ahead)
    if pace is None:
        raise SpecError("too few steps of the replay came after its prefetched ones", "record more steps")
    own = (point.read_amplification or 0.0) * float(rows["bytes"].sum())
    reads = after.since(before).requests_of(own) if before and after else (None, None)
    return Replay(point=point, rows=rows, pace=pace, request_bytes=reads[0], in_flight=reads[1])


def _steps_of(files: int, ranks: int, steps: int, workload: Workload) -> int:
    """Return the steps of the replay: those of an epoch, unless these are too few. Raises SpecError."""
    epoch = files * workload.sample.samples_per_file // (ranks * workload.loader.batch_size)
    if epoch < 2:
        raise SpecError("the recorded files are too few for two steps", "raise --traced-steps")
    fewest = workload.batches_ahead + _FEW_STEPS
    steps = workload.batches_ahead + max(_FEW_STEPS, steps)
    return min(steps, epoch) if epoch >= fewest else steps


def _link(paths: Sequence[bytes], data: Path, workload: Workload) -> int:
    """Make a dataset of links to the files, and return their number. Raises FeedrateError."""
    data.mkdir()
    sizes: list[int] = []
    for path in paths:
        with suppress(OSError):  # the job may have removed it
            size = os.stat(path).st_size  # noqa: PTH116  bytes
            if size:
                (data / str(len(sizes))).symlink_to(os.fsdecode(path))
                sizes.append(size)
    if not sizes:
        raise SpecError("the files that the job read are gone")
    rows = np.zeros(len(sizes), ROW)
    rows["bytes"] = sizes
    manifest = Manifest(
        format=workload.sample.format,
        names=Listed.of(map(str, range(len(sizes)))),
        sizes=np.array(sizes),
        samples_per_file=workload.sample.samples_per_file,
    )
    write_manifest(FolderStore(data), manifest, rows)
    return len(sizes)


def _pace(rows: Steps, ahead: int) -> Pace | None:
    """Return the replay's pace, from a step's end to the next one's; None for too few steps.

    It is not taken from batch to batch, because a host that runs ahead takes the first ones at once.
    """
    epoch = rows["rank"].astype(np.int64) << 32 | rows["epoch"]
    order = np.lexsort((rows["step"], epoch))
    order = order[settled(epoch[order], rows["step"][order], ahead)]
    rows, epoch = rows[order], epoch[order]
    ends = rows["begin"] + durations(rows) - rows["barrier"]
    following = np.flatnonzero(np.diff(epoch) == 0) + 1
    seconds = float((ends[following] - ends[following - 1]).sum())
    if not seconds:
        return None
    waited = float(rows["wait"][following].sum())
    return Pace(seconds=seconds / len(following), waited=min(1.0, waited / seconds))
