"""`feedrate run` and `feedrate sweep`: from options to a measurement of one process count, or of many."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import psutil
import typer

from emulator import live
from emulator.analysis.knee import INCONCLUSIVE
from emulator.analysis.search import KneeSearch
from emulator.cli import options
from emulator.cli.entry import rank_server
from emulator.config.storage import parse_place, parse_storage
from emulator.config.workload import Workload, load_workload
from emulator.dataset.manifest import Manifest, read_manifest
from emulator.errors import FeedrateError, Inconclusive, LaunchError, MissingError, SpecError
from emulator.launch.forkserver import Preload
from emulator.launch.launched import started_by_mpi
from emulator.launch.mpirun import feedrate, find_launcher, launch
from emulator.launch.watch import briefly
from emulator.record.machine import memory_bytes
from emulator.record.out import RESULT, check_out, read_result, require_apart
from emulator.record.steps import step_blocks
from emulator.registry import LOADERS
from emulator.run.accelerator import MonotonicClock
from emulator.run.point import TrainingJob, mismatch
from emulator.run.selftest import self_test as measure_overhead
from emulator.run.world import world
from emulator.sweep import ranks as sweep_ranks
from emulator.sweep.leader import Leader, require_samples
from emulator.sweep.noise import noise_named
from emulator.sweep.outlook import Pace, start_seconds
from emulator.sweep.ranks import measure
from emulator.sweep.schedule import Adaptive, FixedCounts, ForFit, Schedule, parse_counts, require_ranks
from emulator.units import parse_seconds, show_bytes, show_rate, show_seconds

LoaderName = Annotated[
    str,
    typer.Option(
        "--loader",
        parser=options.one_of("--loader", *LOADERS),
        metavar="|".join(LOADERS),
        help=". ".join(f"{name}: {kind.summary}" for name, kind in LOADERS.working()) + ".",
    ),
]
DEFAULT_RANKS = 16
"""Largest count of a sweep that was started without -n on one machine."""


def run(
    workload: options.WorkloadName,
    dataset: options.OptionalDataset = None,
    ranks: options.Ranks = None,
    out: options.Out = None,
    label: options.Label = "",
    loader: LoaderName = "torch",
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    placement: options.PlacementName = "spread",
    cache: options.CacheName = "cold",
    storage: options.StorageText = "posix",
    settings: options.Settings = None,
    verify_reads: options.VerifyReads = False,
    mismatched: options.Mismatched = False,
    require: options.Require = None,
    threshold: options.Threshold = None,
    junit: options.Junit = None,
    dry_run: options.DryRun = False,
    force: options.Force = False,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Measure only what the emulator costs.")
    ] = False,
) -> None:
    """Emulate training with one rank per accelerator, once.

    \b
    Examples:
      feedrate run /mnt/ai/kits19 -w unet3d-a100 -n 4
      feedrate run /mnt/ai/kits19 -w unet3d-a100 -n 16 --loader direct --require 16
    """
    gate = options.Gate(require, threshold, junit)
    spec = load_workload(workload, gate.settings(settings))
    if self_test:
        _self_test(spec, loader)
        return
    if dataset is None:
        raise SpecError("run needs the folder of a dataset", "feedrate generate DIR makes one")
    job = TrainingJob(
        kind="run",
        dataset=parse_place(dataset),
        workload=spec,
        loader=loader,
        storage=parse_storage(storage, cache),
        epochs=epochs,
        steps=steps,
        placement=placement,
        verify_reads=verify_reads,
        out=out or options.default_out(spec.name),
        force=force,
        command=options.command_line(),
        label=label,
    )
    _start(job, ranks, 1, lambda size: FixedCounts((size,)), dry_run, mismatched, gate)


def sweep(
    dataset: options.OptionalDataset = None,
    workload: options.OptionalWorkload = None,
    counts: Annotated[
        str | None,
        typer.Option(
            metavar="COUNTS", help="Fixed process counts: 1,2,4,8 or 1-8. Default: look for the knee."
        ),
    ] = None,
    ranks: options.Ranks = None,
    out: options.Out = None,
    label: options.Label = "",
    loader: LoaderName = "torch",
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    placement: options.PlacementName = "spread",
    cache: options.CacheName = "cold",
    storage: options.StorageText = "posix",
    settings: options.Settings = None,
    precision: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=1.0,
            metavar="SHARE",
            help="Stop when the 95 % interval is narrower than this share.",
        ),
    ] = 0.05,
    max_runs: Annotated[int, typer.Option(min=1, help="At most this many runs.")] = 20,
    purpose: Annotated[
        Literal["knee", "fit"],
        typer.Option(
            "--for",
            metavar="knee|fit",
            help="What the runs are chosen for: the knee, or few runs for feedrate fit.",
        ),
    ] = "knee",
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each count.")] = 1,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="At most this much time, for example 2h.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Continue the sweep in this folder; it knows DIR and the options."),
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC", help="Other work meanwhile: writers, read:2x1MiB,rate=50MB/s, checkpoint."
        ),
    ] = None,
    verify_reads: options.VerifyReads = False,
    mismatched: options.Mismatched = False,
    require: options.Require = None,
    threshold: options.Threshold = None,
    junit: options.Junit = None,
    dry_run: options.DryRun = False,
    force: options.Force = False,
) -> None:
    """Scale the number of ranks and find the knee.

    \b
    Examples:
      feedrate sweep /mnt/ai/kits19 -w unet3d-a100 -n 16 --loader direct --out sweep
      feedrate sweep --resume sweep
    """
    if purpose == "fit" and counts is not None:
        raise SpecError("--for fit chooses the counts itself", "leave out --counts, or --for fit")
    if resume and out:
        raise SpecError("--resume and --out exclude each other", "a resumed sweep stays in its folder")
    if dataset is None or workload is None:
        missing = "DIR" if dataset is None else "--workload"
        raise SpecError(
            f"sweep needs {missing}", "feedrate sweep DIR --workload NAME; feedrate workloads lists names"
        )
    gate = options.Gate(require, threshold, junit)
    place, spec = parse_place(dataset), load_workload(workload, gate.settings(settings))
    if noise is not None:
        if not isinstance(place, Path):
            raise SpecError("--noise needs a dataset in a folder", "leave it out for objects")
        noise_named(noise).require(noise)
    job = TrainingJob(
        kind="sweep",
        dataset=place,
        workload=spec,
        loader=loader,
        storage=replace(parse_storage(storage, cache), noise=noise or ""),
        epochs=epochs,
        steps=steps,
        precision=precision,
        placement=placement,
        verify_reads=verify_reads,
        out=resume or out or options.default_out(spec.name),
        force=force,
        resume=resume is not None,
        command=options.command_line(),
        label=label,
    )
    if counts is not None:
        fixed = FixedCounts(tuple(count for count in parse_counts(counts) for _ in range(repeats)))

        def listed(size: int) -> Schedule:
            require_ranks(fixed.counts, size)
            return fixed

        _start(job, ranks, max(fixed.counts), listed, dry_run, mismatched, gate)
        return
    if purpose == "fit":
        _start(job, ranks, DEFAULT_RANKS, ForFit, dry_run, mismatched, gate)
        return
    seconds = None if budget is None else parse_seconds(budget)

    def adaptive(size: int) -> Schedule:
        search = KneeSearch(
            maximum=size, threshold=spec.training.au_threshold, precision=precision, max_runs=max_runs
        )
        return Adaptive(search, MonotonicClock(), repeats=repeats, budget=seconds)

    _start(job, ranks, DEFAULT_RANKS, adaptive, dry_run, mismatched, gate)


def _start(
    job: TrainingJob,
    ranks: int | None,
    usual: int,
    schedule: Callable[[int], Schedule],
    dry_run: bool,
    mismatched: bool,
    gate: options.Gate,
) -> None:
    """Measure under the mpirun that started this process, or start one here.

    `ranks` is what -n gives, `usual` how many there are without it; `schedule(ranks)` makes the schedule.
    """
    manifest = read_manifest(job.dataset)
    if (difference := mismatch(job.workload, manifest)) and not mismatched:
        raise SpecError(
            f"the dataset {job.dataset} is not the workload's: {difference}",
            "generate one with the workload's recipe, choose another workload, or add --mismatched-dataset",
        )
    if dry_run:
        planned = schedule(ranks or usual)
        require_samples(job, manifest, planned.largest)
        _show_plan(job, manifest, planned, ranks or usual)
        return
    if not started_by_mpi():
        _launch(job, manifest, ranks or usual, schedule, gate)
    comm = world(expected=ranks)
    asked = schedule(comm.size)
    leader = Leader(job, asked)
    with live.telling(leader.now):
        result = measure(comm.bcast(job), comm, leader)  # to the ranks in sweep.session.follow
    if result is not None:
        leader.say_verdict()
        options.show_result(result, job.out)
        gate.leave(result)
        wants_knee = job.kind == "sweep" and not isinstance(asked, ForFit)
        if wants_knee and result.knee is not None and result.knee.kind in INCONCLUSIVE:
            raise typer.Exit(Inconclusive.exit_code)


def _launch(
    job: TrainingJob, manifest: Manifest, ranks: int, schedule: Callable[[int], Schedule], gate: options.Gate
) -> NoReturn:
    """Look at what can be seen from here, then start the same command under mpirun, and end as it does."""
    require_samples(job, manifest, schedule(ranks).largest)
    _require_memory(job, manifest, ranks)
    require_apart(job.out, job.dataset)
    if not job.resume:
        check_out(job.out, job.force)
    if LOADERS.load(job.loader).tensors and find_spec("torch") is None:
        raise MissingError(
            f"--loader {job.loader} needs PyTorch", "pip install 'feedrate[torch]', or use --loader direct"
        )
    words = sys.argv[1:] if job.resume else options.words_with(job.out)
    status = launch(ranks, words, job.out, Preload(rank_server, [sweep_ranks], job.loader))
    if status in (0, Inconclusive.exit_code):
        result = read_result(job.out)
        options.show_result(result, job.out)
        gate.leave(result)
        raise typer.Exit(status)
    kept: list[bool] = []

    def look() -> None:
        with suppress(FeedrateError, OSError):
            kept.append((job.out / RESULT).is_file() and any(map(len, step_blocks(job.out))))

    if briefly(look) and any(kept):  # OUT may be what hangs
        hint = shlex.join(["feedrate", "report", str(job.out)])
        if job.kind == "sweep":
            hint += "; " + shlex.join(["feedrate", "sweep", "--resume", str(job.out)]) + " goes on"
        print(f"feedrate: kept what was measured until then: {hint}", file=sys.stderr)
    raise typer.Exit(status)


# What a dry run says.

TORCH_BYTES = 350e6
"""Resident bytes of a rank with PyTorch imported, before it reads anything (measured, torch 2.13 CPU)."""

WORKER_BYTES = 60e6
"""Bytes of a DataLoader worker that it shares with no other, before it reads anything (measured)."""

OWN_BYTES = 20e6
"""Bytes of a rank that it shares with no other, before it reads anything (measured: 17 to 22 MB)."""

DIRECT_BYTES = 60e6
"""Resident bytes of a rank with the direct loader, before it reads anything."""


def _show_plan(job: TrainingJob, manifest: Manifest, schedule: Schedule, ranks: int) -> None:
    """Print what would be done, and the command that starts it. Raises DatasetError."""
    pace = Pace(job, manifest)
    runs = _runs(job, pace, schedule)
    seconds = start_seconds(ranks) + sum(pace.between() + run.seconds for run in runs)
    seconds = min(seconds, schedule.seconds_left)
    words = [word for word in sys.argv[1:] if word not in ("--dry-run", "--json")]
    try:
        command = shlex.join(find_launcher().command(ranks, feedrate(words)))
    except LaunchError as error:
        command = str(error)
    if live.for_programs():
        live.answer(
            {
                "dataset": str(job.dataset),
                "workload": job.workload.name,
                "ranks": ranks,
                "assumption": schedule.assumption,
                "runs": [asdict(run) for run in runs],
                "bytes": sum(run.bytes for run in runs),
                "seconds": seconds,
                "command": command,
            }
        )
        return
    for line in _plan_lines(job, manifest, pace.sample_bytes, runs, schedule, seconds):
        typer.echo(line)
    typer.echo(f"command:        {command}")


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
    job: TrainingJob,
    manifest: Manifest,
    mean: float,
    runs: Sequence[PlannedRun],
    schedule: Schedule,
    seconds: float,
) -> list[str]:
    """Return the plan for people. `mean` are the bytes of a sample, `seconds` those expected in all."""
    workload = job.workload
    memory = DIRECT_BYTES + _buffers(job, mean)
    if LOADERS.load(job.loader).tensors:
        memory += TORCH_BYTES - DIRECT_BYTES
        memory += WORKER_BYTES * workload.loader.workers
    lines = [
        f"workload:       {workload.name}: {workload.title}",
        f"dataset:        {job.dataset}: {len(manifest.names)} files, {show_bytes(manifest.total)}",
        f"storage:        {job.storage}",
        f"loader:         {job.loader}; one rank asks {show_rate(workload.ideal_samples_per_second * mean)}",
        f"memory a rank:  about {show_bytes(memory)}",
        "",
        "ranks  steps  bytes read  seconds at least",
    ]
    lines += [
        f"{run.ranks:5d}  {run.steps:5d}  {show_bytes(run.bytes):>10}  {show_seconds(run.seconds):>16}"
        for run in runs
    ]
    read = show_bytes(sum(run.bytes for run in runs))
    if not schedule.assumption:
        return [*lines, "", f"expected time:  about {show_seconds(seconds)} if the storage keeps up"]
    return [
        *lines,
        "",
        f"expected:       about {len(runs)} runs, {read}, {show_seconds(seconds)} if the storage keeps up",
        f"                counts and their number follow what is measured: {schedule.assumption}",
    ]


def _buffers(job: TrainingJob, mean: float) -> float:
    """Return the bytes that a rank's loader holds samples of `mean` bytes in."""
    loader = job.workload.loader
    if not LOADERS.load(job.loader).tensors:
        return loader.workers * loader.block_bytes
    voxel_bytes = 5  # float32 image and uint8 label
    kept = math.prod(loader.crop) * voxel_bytes if loader.crop else mean
    return loader.workers * mean + (loader.prefetch + 1) * loader.batch_size * kept


def _require_memory(job: TrainingJob, manifest: Manifest, ranks: int) -> None:
    """Raises LaunchError when what ranks share with no other does not fit into the memory of this host."""
    each, free = (
        OWN_BYTES + _buffers(job, Pace(job, manifest).sample_bytes),
        min(psutil.virtual_memory().available, memory_bytes()),
    )
    if ranks * each > free:
        raise LaunchError(
            f"{ranks} ranks need {show_bytes(ranks * each)} of memory or more, {show_bytes(free)} are free",
            f"at most -n {int(free // each)} here, or smaller batches and blocks, or more hosts",
        )


def _self_test(workload: Workload, loader: str) -> None:
    cost = measure_overhead(loader, workload)
    if live.for_programs():
        live.answer({"loader": loader, "workload": workload.name, **asdict(cost)})
        return
    typer.echo(f"loader {loader}, {workload.loader.workers} workers, one rank, files in RAM, no compute")
    typer.echo(f"loop of a step      {show_seconds(cost.step_seconds)}, without reading")
    typer.echo(f"CPU                 {cost.cpu_seconds_per_gb:.3f} s per GB, reading")
    typer.echo(
        f"at most             {cost.samples_per_second:.0f} samples/s of {show_bytes(cost.sample_bytes)}"
    )
