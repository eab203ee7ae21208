"""Going on with a sweep that was interrupted: what it has is kept, if it measured the same thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulator.dataset.manifest import Manifest
from emulator.errors import SpecError
from emulator.record.codec import from_plain, to_plain
from emulator.record.result import Point
from emulator.record.step import Steps
from emulator.record.store import continue_out, read_result, read_steps
from emulator.run.job import Job
from emulator.spec.storage import StorageSpec
from emulator.spec.workload import Workload
from emulator.sweep.summary import dataset_facts


def reopen(job: Job, manifest: Manifest) -> tuple[tuple[Point, ...], Steps]:
    """The complete points of OUT and their steps; what a point that was cut off left is dropped.

    Fields that an older version did not write have their default values. Raises SpecError when OUT is no
    sweep, or not of this job.
    """
    result = read_result(job.out)
    if result.kind != "sweep":
        raise SpecError(
            f"{job.out} holds a {result.kind}, not a sweep", "give the OUT of a sweep to --resume"
        )
    facts = _plain(dataset_facts(job, manifest))
    same = {
        "workload": from_plain(Workload, result.workload, "workload") == job.workload,
        "dataset": all(name in facts and facts[name] == value for name, value in result.dataset.items()),
        "storage": from_plain(StorageSpec, result.storage, "storage") == job.storage,
        "loader": result.loader == job.loader,
    }
    for name, holds in same.items():
        if not holds:
            raise SpecError(
                f"the sweep in {job.out} was of another {name}", "resume with the options it was started with"
            )
    steps = read_steps(job.out)
    kept = steps[steps["point"] < len(result.points)]
    continue_out(job.out, kept)
    return result.points, kept


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` as JSON gives them back."""
    return {name: to_plain(value) for name, value in facts.items()}
