"""`feedrate run`: one process count."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.cli import options
from emulator.cli.entry import say
from emulator.errors import LaunchError, SpecError

if TYPE_CHECKING:
    from emulator.config.storage import Cache
    from emulator.record.result import Kind
    from emulator.run.comm import Comm
    from emulator.run.point import Job
    from emulator.sweep.schedule import Schedule

# ---- From options to a measurement: make the job, start mpirun where none did, run, show.


def make_job(
    dataset: str, workload: str, settings: Sequence[str], loader: str, cache: Cache, storage: str,
    epochs: int | None, steps: int | None, out: Path | None, verify_reads: bool,
) -> Job:  # fmt: skip
    """The job that the options ask for. Raises SpecError."""
    from emulator.config.storage import parse_place, parse_storage
    from emulator.config.workload import load_workload
    from emulator.run.point import Job

    spec = load_workload(workload, settings)
    return Job(
        dataset=parse_place(dataset),
        workload=spec,
        loader=loader,
        storage=parse_storage(storage, cache),
        epochs=epochs if epochs or steps else spec.training.epochs,
        steps=steps,
        verify_reads=verify_reads,
        out=out or options.default_out(spec.name),
        command=options.command_line(),
    )


def start(
    job: Job, kind: Kind, ranks: int | None, *, needed: int, schedule: Callable[[int], Schedule],
    force: bool, dry_run: bool, resume: bool = False,
) -> None:  # fmt: skip
    """Measure under the mpirun that started this process, or start one here.

    `needed` is the number of ranks that the options ask for; `schedule(ranks)` makes the schedule.
    """
    from emulator.run.comm import started_by_mpi, world

    if dry_run:
        _dry_run(job, ranks or needed, schedule)
    elif started_by_mpi():
        _measure(job, kind, world(), ranks, schedule, force, resume)
    else:
        _launch(job, ranks or needed, schedule, force, resume)


def _measure(
    job: Job, kind: Kind, world: Comm, ranks: int | None, schedule: Callable[[int], Schedule], force: bool,
    resume: bool,
) -> None:  # fmt: skip
    from emulator.cli.entry import Task, carry_out

    if ranks is not None and ranks != world.size:
        raise LaunchError(f"-n {ranks} was given, but mpirun started {world.size} ranks", "leave -n out")
    plan = schedule(world.size)
    task: Task = world.bcast(Task(job, kind, force, resume))  # one clock decides on the default name
    result = carry_out(task, plan, world)
    if result is not None:
        options.show_result(result, task.job.out)


def _launch(job: Job, ranks: int, schedule: Callable[[int], Schedule], force: bool, resume: bool) -> None:
    """Look at what can be seen from here, then start the same command under mpirun."""
    from emulator.dataset.manifest import read_manifest
    from emulator.plan import plan_for
    from emulator.record.folder import check_out
    from emulator.run.mpirun import launch

    schedule(ranks)
    manifest = read_manifest(job.dataset)
    plan_for(job.workload, manifest.samples, ranks, manifest.samples_per_file).require_a_step()
    if not resume:
        check_out(job.out, force)
    if job.loader == "torch":
        _require_torch()
    status = launch(ranks, [*sys.argv[1:], *([] if resume else ["--out", str(job.out)])])
    if status:
        _say_what_is_kept(job.out)
    raise typer.Exit(status)


def _require_torch() -> None:
    from importlib.util import find_spec

    from emulator.errors import MissingError

    if find_spec("torch") is None:
        raise MissingError(
            "--loader torch needs PyTorch", "pip install 'feedrate[torch]', or use --loader direct"
        )


def _say_what_is_kept(out: Path) -> None:
    from emulator.record.folder import RESULT
    from emulator.record.steps import read_steps

    if (out / RESULT).is_file() and len(read_steps(out)):
        print(f"feedrate: kept what was measured until then: feedrate report {out}", file=sys.stderr)


def _dry_run(job: Job, ranks: int, schedule: Callable[[int], Schedule]) -> None:
    from emulator.dataset.manifest import read_manifest
    from emulator.run.estimate import plan_lines
    from emulator.run.mpirun import find_launcher, show

    manifest = read_manifest(job.dataset)
    for line in plan_lines(job, manifest, schedule(ranks).planned()):
        say(line)
    try:
        words = [word for word in sys.argv[1:] if word != "--dry-run"]
        say("command:        " + show(find_launcher().command(ranks, words)))
    except LaunchError as error:
        say(f"command:        {error}")


# ---- `feedrate run`: one process count.


def run(
    workload: options.WorkloadName,
    dataset: options.OptionalDataset = None,
    ranks: options.Ranks = None,
    out: options.Out = None,
    loader: options.LoaderName = "torch",
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    cache: options.CacheName = "cold",
    storage: options.StorageText = "posix",
    settings: options.Settings = None,
    verify_reads: options.VerifyReads = False,
    dry_run: options.DryRun = False,
    force: options.Force = False,
    self_test: Annotated[bool, typer.Option("--self-test", help="What the emulator itself costs.")] = False,
) -> None:
    """Emulate training with one rank per accelerator, once."""
    from emulator.sweep.schedule import FixedCounts

    if self_test:
        _self_test(workload, settings or [], loader)
        return
    if dataset is None:
        raise SpecError("run needs the folder of a dataset", "feedrate generate DIR makes one")
    job = make_job(
        dataset, workload, settings or [], loader, cache, storage, epochs, steps, out, verify_reads
    )
    start(
        job, "run", ranks, needed=1, schedule=lambda size: FixedCounts((size,)), force=force, dry_run=dry_run
    )  # fmt: skip


def _self_test(workload: str, settings: Sequence[str], loader: str) -> None:
    from emulator.config.workload import load_workload
    from emulator.run.selftest import self_test
    from emulator.units import show_bytes, show_seconds

    spec = load_workload(workload, settings)
    cost = self_test(loader, spec)
    typer.echo(f"loader {loader}, {spec.loader.workers} workers, one rank, files in RAM, no compute")
    typer.echo(f"loop of a step      {show_seconds(cost.step_seconds)}, without reading")
    typer.echo(f"CPU                 {cost.cpu_seconds_per_gb:.3f} s per GB, reading")
    typer.echo(
        f"at most             {cost.samples_per_second:.0f} samples/s of {show_bytes(cost.sample_bytes)}"
    )
