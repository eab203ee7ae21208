"""Going on with a sweep that was interrupted: what it has is kept, if it measured the same thing."""

from __future__ import annotations

from dataclasses import asdict

from emulator.dataset.manifest import Manifest
from emulator.errors import SpecError
from emulator.record.result import Point
from emulator.record.step import Steps
from emulator.record.store import continue_out, read_result, read_steps
from emulator.run.job import Job
from emulator.sweep.summary import dataset_facts


def reopen(job: Job, manifest: Manifest) -> tuple[tuple[Point, ...], Steps]:
    """The complete points of OUT and their steps; what a point that was cut off left is dropped.

    Raises SpecError when OUT is no sweep, or not of this job.
    """
    result = read_result(job.out)
    if result.kind != "sweep":
        raise SpecError(
            f"{job.out} holds a {result.kind}, not a sweep", "give the OUT of a sweep to --resume"
        )
    now = {
        "workload": _plain(asdict(job.workload)),
        "dataset": _plain(dataset_facts(job, manifest)),
        "storage": _plain(asdict(job.storage)),
        "loader": job.loader,
    }
    for name, value in now.items():
        if _plain(getattr(result, name)) != value:
            raise SpecError(
                f"the sweep in {job.out} was of another {name}", "resume with the options it was started with"
            )
    steps = read_steps(job.out)
    kept = steps[steps["point"] < len(result.points)]
    continue_out(job.out, kept)
    return result.points, kept


def _plain(value: object) -> object:
    """`value` as JSON gives it back: lists for tuples."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
