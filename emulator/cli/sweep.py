"""`feedrate sweep`: many process counts in one MPI world, and the knee."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.cli import options
from emulator.cli.run import make_job, start
from emulator.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.run.point import Job
    from emulator.sweep.schedule import Schedule

NoiseText = Annotated[
    str | None, typer.Option(metavar="SPEC", help="Beside it: writers, read:2x1MiB,rate=50MB/s, checkpoint.")
]
Precision = Annotated[
    float, typer.Option(min=0.001, max=1.0, help="Stop when the 95 % interval is narrower than this share.")
]
DEFAULT_RANKS = 16
"""Largest count of a sweep that was started without -n on one machine."""


def sweep(
    dataset: options.Dataset,
    workload: options.WorkloadName,
    counts: Annotated[
        str | None, typer.Option(help="Fixed process counts: 1,2,4,8 or 1-8. Default: look for the knee.")
    ] = None,
    ranks: options.Ranks = None,
    out: options.Out = None,
    loader: options.LoaderName = "torch",
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    cache: options.CacheName = "cold",
    storage: options.StorageText = "posix",
    settings: options.Settings = None,
    precision: Precision = 0.05,
    max_runs: Annotated[int, typer.Option(min=1, help="Runs at most.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each count.")] = 1,
    budget: Annotated[str | None, typer.Option(help="Time at most, for example 2h.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="OUT", help="Go on with this sweep.")] = None,
    noise: NoiseText = None,
    verify_reads: options.VerifyReads = False,
    dry_run: options.DryRun = False,
    force: options.Force = False,
) -> None:
    """Scale the number of ranks and find the knee."""
    if resume and out:
        raise SpecError("--resume and --out exclude each other", "a resumed sweep goes on in its own folder")
    job = make_job(
        dataset, workload, settings or [], loader, cache, storage, epochs, steps, resume or out, verify_reads
    )
    fixed = _counts(counts, repeats)
    if fixed is not None:
        schedule, needed = _fixed(fixed), max(fixed)
    else:
        schedule, needed = _adaptive(precision, max_runs, repeats, budget, job.workload.training.au_threshold)
    start(
        _with_noise(job, noise), "sweep", ranks, needed=needed, schedule=schedule, force=force,
        dry_run=dry_run, resume=bool(resume),
    )  # fmt: skip


def _with_noise(job: Job, noise: str | None) -> Job:
    """`job` beside noise, if any. Raises SpecError, MissingError."""
    if noise is None:
        return job
    from dataclasses import replace

    from emulator.cli.noise import noise_named

    if not isinstance(job.dataset, Path):
        raise SpecError("--noise is beside a folder", "leave it out where the dataset is objects")
    noise_named(noise).require(noise)
    return replace(job, storage=replace(job.storage, noise=noise))


def _counts(text: str | None, repeats: int) -> tuple[int, ...] | None:
    from emulator.sweep.schedule import parse_counts

    return None if text is None else tuple(n for n in parse_counts(text) for _ in range(repeats))


def _fixed(counts: tuple[int, ...]) -> Callable[[int], Schedule]:
    from emulator.sweep.schedule import FixedCounts, require_ranks

    def schedule(world: int) -> Schedule:
        require_ranks(counts, world)
        return FixedCounts(counts)

    return schedule


def _adaptive(
    precision: float, max_runs: int, repeats: int, budget: str | None, threshold: float
) -> tuple[Callable[[int], Schedule], int]:
    from emulator.analysis.search import Search
    from emulator.run.accelerator import MonotonicClock
    from emulator.sweep.schedule import Adaptive, Limits
    from emulator.units import parse_seconds

    limits = Limits(repeats=repeats, budget=None if budget is None else parse_seconds(budget))

    def schedule(world: int) -> Schedule:
        search = Search(maximum=world, threshold=threshold, precision=precision, max_runs=max_runs)
        return Adaptive(search, limits, MonotonicClock())

    return schedule, DEFAULT_RANKS
