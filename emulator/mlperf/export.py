"""A result as a folder in MLPerf Storage's layout, marked as feedrate's, with the self-check beside it.

FOLDER/NOT_A_SUBMISSION.txt, FOLDER/self-check.json
FOLDER/results/training/NAME/run/YYYYMMDD_HHmmss/     one folder a run; imported ones in their layout
FOLDER/results/checkpointing/MODEL/YYYYMMDD_HHmmss/   of a checkpoint run
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from emulator.errors import SpecError, storage_error
from emulator.mlperf.checkpoints import checkpoint_check, checkpoint_run
from emulator.mlperf.documents import LEAST, run_of
from emulator.mlperf.folder import MARK, RunFolder, write_json, write_run, write_text
from emulator.mlperf.originals import read_originals
from emulator.mlperf.rules import Check, check_lines, self_check
from emulator.record.codec import from_plain
from emulator.record.result import RunResult
from emulator.record.step import Steps
from emulator.record.store import check_out, read_result, read_steps
from emulator.spec.workload import Workload

NOTICE = "NOT_A_SUBMISSION.txt"
CHECK = "self-check.json"


def export(out: Path, folder: Path) -> list[Check]:
    """Write the result in `out` to the new folder `folder`. Raises SpecError, StorageError."""
    result = read_result(out)
    if result.status != "complete" or not (result.points or result.checkpoints):
        raise SpecError(f"{out} is incomplete", "only whole results are exported")
    check_out(folder, force=False)
    runs, checks = _documents(out, result)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, "cannot make the folder") from None
    workload = str(result.workload["name"]).replace("-", "_")
    place = folder / "results" / "training" / _plain(workload) / "run"
    if result.kind == "checkpoint":
        place = folder / "results" / "checkpointing" / _plain(str(result.workload["name"]))
    taken: set[str] = set()
    for number, run in enumerate(runs):
        name = _plain(run.name.rpartition("/")[2])
        while name in taken:
            name = f"{name}_{number}"
        taken.add(name)
        write_run(run, place / name)
        write_json(place / name / MARK, mark(result))
    write_json(folder / CHECK, [_plain_check(check) for check in checks])
    write_text(folder / NOTICE, _notice(result, checks))
    return checks


def _documents(out: Path, result: RunResult) -> tuple[Sequence[RunFolder], list[Check]]:
    """The runs of a result, and what the rules say of them. Raises SpecError, StorageError."""
    if result.kind == "checkpoint":
        return [checkpoint_run(result)], [checkpoint_check(result)]
    runs = _imported(out, result) if result.kind == "imported" else _measured(out, result)
    return runs, self_check(result)


def _imported(out: Path, result: RunResult) -> list[RunFolder]:
    about = result.environment.get("imported")
    if not isinstance(about, list) or len(about) != len(result.points):
        raise SpecError(f"{out} does not say what it was imported from", "import it again")
    return read_originals(out, [str(one.get("run", number)) for number, one in enumerate(about)])


def _measured(out: Path, result: RunResult) -> list[RunFolder]:
    """Points of a run or a sweep as documents, in the order they were run."""
    if result.kind not in ("run", "sweep"):
        raise SpecError(
            f"{out} is of the kind {result.kind}", "only runs, sweeps, checkpoints and imports are exported"
        )
    workload: Workload = from_plain(Workload, result.workload)
    if not workload.accelerator.step_seconds:
        raise SpecError(f"{out}: the workload does not compute", "MLPerf Storage's figures need a step time")
    steps = read_steps(out)
    ends = datetime.fromisoformat(result.created.replace("Z", "+00:00")).replace(tzinfo=None)
    start = ends - timedelta(seconds=math.ceil(sum(point.seconds for point in result.points)))
    runs = []
    for number, point in enumerate(result.points):
        rows = steps[steps["point"] == number]
        _require_whole(out, rows, point.ranks)
        runs.append(run_of(result, workload, number, rows, start))
        start += timedelta(seconds=math.ceil(point.seconds))
    return runs


def _require_whole(out: Path, rows: Steps, ranks: int) -> None:
    """Every rank has the same steps, and some epoch is long enough. Raises SpecError."""
    counts = np.unique(rows["rank"], return_counts=True)[1]
    if len(counts) != ranks or len(set(counts.tolist())) != 1:
        raise SpecError(f"{out} has not the same steps of all {ranks} ranks", "run it again")
    first = rows[rows["rank"] == rows["rank"][0]]
    longest = int(np.unique(first["epoch"], return_counts=True)[1].max())
    if longest < LEAST:
        raise SpecError(f"{out} has epochs of {longest} steps", f"MLPerf's formulas need {LEAST} at least")


def mark(result: RunResult) -> dict[str, Any]:
    """What every exported run carries beside its documents."""
    return {
        "made_by": f"feedrate {result.version}",
        "official_submission": False,
        "kind": result.kind,
        "emulated_storage": result.storage.get("shaped_rate") is not None,
        "units": "as DLIO writes them: MB is 2^20 bytes, GB is 2^30 bytes",
    }


def _plain_check(check: Check) -> dict[str, Any]:
    return {**asdict(check), "open": check.open, "closed": check.closed}


def _notice(result: RunResult, checks: Sequence[Check]) -> str:
    lines = [
        f"Made by feedrate {result.version}, from a result of the kind {result.kind}.",
        "This is not an official MLPerf Storage submission: that needs MLPerf's own code, rules and review.",
        "Fields and units are those of MLPerf Storage: its MB is 2^20 bytes, its GB 2^30.",
        "",
    ]
    for check in checks:
        lines += [*check_lines(check), ""]
    return "\n".join(lines)


def _plain(name: str) -> str:
    """A name that is one part of a path, whatever a result says."""
    kept = "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in name)[:80]
    return kept or "run"
