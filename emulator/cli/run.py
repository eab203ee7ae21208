"""Options that `run` and `sweep` share."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from emulator.cli.entry import say
from emulator.errors import LaunchError, SpecError

if TYPE_CHECKING:
    from emulator.config.storage import Cache
    from emulator.record.result import Kind
    from emulator.run.comm import Comm
    from emulator.run.point import Job, LoaderKind
    from emulator.sweep.schedule import Schedule

Dataset = Annotated[str, typer.Argument(metavar="DIR", help="Folder of the dataset, or s3://BUCKET/PREFIX.")]
OptionalDataset = Annotated[
    str | None, typer.Argument(metavar="DIR", help="Folder of the dataset, or s3://BUCKET/PREFIX.")
]
WorkloadName = Annotated[str, typer.Option("--workload", "-w", help="Name or path; see feedrate workloads.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the result; default feedrate-results/...")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the result in OUT.")]
LoaderName = Annotated[str, typer.Option("--loader", help="torch or direct.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs of a point, at most.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Steps of a rank in a point, at most.")]
CacheName = Annotated[str, typer.Option("--cache", help="cold or warm.")]
StorageText = Annotated[str, typer.Option("--storage", help="posix or shaped:RATE[,LATENCY].")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the workload; repeatable.")
]
VerifyReads = Annotated[
    bool, typer.Option("--verify-reads", help="Compare every sample with its checksum while reading.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and touch nothing.")]
Ranks = Annotated[
    int | None, typer.Option("--ranks", "-n", min=1, help="Ranks to start here; under mpirun it has them.")
]


# ---- From options to a measurement: make the job, start mpirun where none did, run, show.


def make_job(
    dataset: str, workload: str, settings: Sequence[str], loader: str, cache: str, storage: str,
    epochs: int | None, steps: int | None, out: Path | None, verify_reads: bool,
) -> Job:  # fmt: skip
    """The job that the options ask for. Raises SpecError."""
    from emulator.config.catalog import load_workload
    from emulator.config.storage import parse_place, parse_storage
    from emulator.run.point import Job

    spec = load_workload(workload, settings)
    name = f"{spec.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return Job(
        dataset=parse_place(dataset),
        workload=spec,
        loader=loader_kind(loader),
        storage=parse_storage(storage, cache_kind(cache)),
        epochs=epochs if epochs or steps else spec.training.epochs,
        steps=steps,
        verify_reads=verify_reads,
        out=out or Path("feedrate-results") / name,
        command=("feedrate", *sys.argv[1:]),
    )


def loader_kind(name: str) -> LoaderKind:
    """`name` as a loader. Raises SpecError."""
    from emulator.run.point import LoaderKind

    _one_of("--loader", name, get_args(LoaderKind))
    return cast(LoaderKind, name)


def cache_kind(name: str) -> Cache:
    """`name` as what is done about caches. Raises SpecError."""
    from emulator.config.storage import Cache

    _one_of("--cache", name, get_args(Cache))
    return cast(Cache, name)


def _one_of(option: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise SpecError(f"{option} {value!r} is not known", "use " + " or ".join(choices))


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
        from emulator.report.tables import print_table

        print_table(result)
        say(f"\nresult: {task.job.out}   (feedrate report {task.job.out} --html page.html)")


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
    workload: WorkloadName,
    dataset: OptionalDataset = None,
    ranks: Ranks = None,
    out: Out = None,
    loader: LoaderName = "torch",
    epochs: Epochs = None,
    steps: Steps = None,
    cache: CacheName = "cold",
    storage: StorageText = "posix",
    settings: Settings = None,
    verify_reads: VerifyReads = False,
    dry_run: DryRun = False,
    force: Force = False,
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
    from emulator.config.catalog import load_workload
    from emulator.run.selftest import self_test
    from emulator.units import show_bytes, show_seconds

    spec = load_workload(workload, settings)
    cost = self_test(loader_kind(loader), spec)
    typer.echo(f"loader {loader}, {spec.loader.workers} workers, one rank, files in RAM, no compute")
    typer.echo(f"loop of a step      {show_seconds(cost.step_seconds)}, without reading")
    typer.echo(f"CPU                 {cost.cpu_seconds_per_gb:.3f} s per GB, reading")
    typer.echo(
        f"at most             {cost.samples_per_second:.0f} samples/s of {show_bytes(cost.sample_bytes)}"
    )
