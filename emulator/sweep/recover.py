"""What a run that was killed has measured: read from its spools, without writing anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from emulator.record.codec import from_plain
from emulator.record.result import Point, RunResult
from emulator.record.step import Steps
from emulator.record.store import read_failure, read_result, read_steps
from emulator.spec.workload import Workload
from emulator.sweep.summary import point_of


def recovered(out: Path) -> tuple[RunResult, Steps]:
    """The result and the steps of OUT; of an incomplete one also the point that it died in.

    Raises StorageError, SpecError.
    """
    result, steps = read_result(out), read_steps(out)
    if result.status == "complete":
        return result, steps
    reason = read_failure(out) or result.reason
    if result.kind not in ("run", "sweep"):
        return replace(result, reason=reason), steps
    torn = steps[steps["point"] >= len(result.points)]
    points = result.points + ((_partial(result, torn),) if len(torn) else ())
    return replace(result, points=points, reason=reason), steps


def _partial(result: RunResult, rows: Steps) -> Point:
    workload: Workload = from_plain(Workload, result.workload)
    ranks = len(np.unique(rows["rank"]))
    return point_of(workload, int(result.dataset.get("samples", result.dataset["files"])), ranks, rows)
