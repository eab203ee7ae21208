"""The plan of `feedrate run` and `sweep`: runs, bytes, time, and the memory that ranks take."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from emulator import live
from emulator.dataset.manifest import Manifest
from emulator.errors import LaunchError
from emulator.loader import buffer_bytes
from emulator.record.machine import describe_mount, free_memory_bytes, memory_bytes
from emulator.report.view import shape_of
from emulator.run.environment import describe_run
from emulator.run.job import TrainingJob
from emulator.sweep.outlook import Pace, start_seconds
from emulator.sweep.schedule import Schedule
from emulator.sweep.summary import first_result, require_rules
from emulator.units import counted, show_bytes, show_rate, show_seconds

OWN_BYTES = 20e6
"""Private bytes of a rank before it reads anything (measured: 17 to 22 MB)."""


def show_plan(job: TrainingJob, manifest: Manifest, schedule: Schedule, ranks: int) -> None:
    """Print what would be done.

    Raises DatasetError, and SpecError if the plan breaks the rules that it has to meet.
    """
    pace = Pace(job, manifest)
    runs = _runs(job, pace, schedule)
    _require_rules(job, manifest, ranks, runs)
    seconds = start_seconds(ranks) + sum(pace.between(run.ranks) + run.seconds for run in runs)
    seconds = min(seconds, schedule.seconds_left)  # --budget ends a sweep
    read = sum(run.bytes for run in runs)
    if live.for_programs():
        live.answer(
            {
                "dataset": str(job.dataset),
                "workload": job.workload.name,
                "ranks": ranks,
                "assumption": schedule.assumption,
                "runs": [asdict(run) for run in runs],
                "bytes": read,
                "seconds": seconds,
            }
        )
        return
    for line in _plan_lines(job, manifest, pace.sample_bytes, runs):
        typer.echo(line)
    expected = f"{counted(len(runs), 'run')}, {show_bytes(read)}, {show_seconds(seconds)}"
    typer.echo(f"\nexpected: about {expected} if the storage keeps up")
    if schedule.assumption:
        typer.echo(f"counts and their number follow what is measured: {schedule.assumption}")


def _require_rules(job: TrainingJob, manifest: Manifest, ranks: int, runs: Sequence[PlannedRun]) -> None:
    """Raise SpecError if the result of these runs on this host would break the rules that it has to meet."""
    # The hosts of an mpirun are not known before it starts.
    hosts = [socket.gethostname()] * ranks
    environment = describe_run(hosts, {hosts[0]: memory_bytes()}, job.out)
    if isinstance(job.dataset, Path):
        environment["dataset_mount"] = describe_mount(job.dataset)
    result = first_result(job, manifest, environment)
    require_rules(job, manifest, result, hosts, [run.ranks for run in runs])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run of a process count that is not yet measured."""

    ranks: int
    steps: int
    bytes: float
    seconds: float
    """Seconds of its steps, on storage that is fast enough but for its shaping."""


def _runs(job: TrainingJob, pace: Pace, schedule: Schedule) -> list[PlannedRun]:
    """Return what the schedule is expected to run. Raises DatasetError."""
    found = []
    for ranks in schedule.expected((), pace.limit):
        steps = pace.steps(ranks)
        read = ranks * steps * job.workload.loader.batch_size * pace.sample_bytes
        found.append(PlannedRun(ranks=ranks, steps=steps, bytes=read, seconds=steps * pace.step(ranks, ())))
    return found


def _plan_lines(
    job: TrainingJob, manifest: Manifest, mean: float, runs: Sequence[PlannedRun]
) -> Iterator[str]:
    """Yield the plan for people. `mean` are the bytes of a sample."""
    workload, storage = job.workload, job.storage
    yield f"workload: {workload.name}: {workload.title}"
    yield f"dataset:  {job.dataset}: {len(manifest.names)} files, {show_bytes(manifest.total)}"
    yield f"storage:  {shape_of(asdict(storage)) if storage.emulated else f'as it is, {storage.cache}'}"
    yield f"loader:   {job.loader}; one rank asks {show_rate(workload.ideal_samples_per_second * mean)}"
    yield ""
    yield "ranks  steps  bytes read  seconds at least"
    for run in dict.fromkeys(runs):  # a search stays at the knee
        read, seconds = show_bytes(run.bytes), show_seconds(run.seconds)
        yield f"{run.ranks:5d}  {run.steps:5d}  {read:>10}  {seconds:>16}"


def require_memory(job: TrainingJob, manifest: Manifest, ranks: int) -> None:
    """Raise LaunchError when the private memory of the ranks does not fit into this host."""
    mean = Pace(job, manifest).sample_bytes
    per_rank = OWN_BYTES + buffer_bytes(job.loader, job.workload.loader, mean)
    free = free_memory_bytes()
    if ranks * per_rank > free:
        raise LaunchError(
            f"{counted(ranks, 'rank')} would need {show_bytes(ranks * per_rank)} of memory or more, "
            f"{show_bytes(free)} are free",
            f"at most -n {int(free // per_rank)} here, or smaller batches and blocks, or more hosts",
        )
