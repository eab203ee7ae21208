"""`feedrate run` and `feedrate sweep`: from options to a measurement of one process count, or of many."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from emulator import live
from emulator.analysis.knee import INCONCLUSIVE
from emulator.analysis.search import MAX_RUNS, WIDTH, KneeSearch
from emulator.cli import options
from emulator.cli.plan import require_memory, show_plan
from emulator.config.storage import parse_place, parse_storage
from emulator.config.workload import Placement, Workload, load_workload
from emulator.dataset.formats import format_named
from emulator.dataset.manifest import Manifest, read_manifest
from emulator.errors import FeedrateError, Inconclusive, MissingError, SpecError
from emulator.launch.comm import Comm, agreed
from emulator.launch.forked import apart
from emulator.launch.launched import rank_hint, started_by_mpi
from emulator.launch.watch import briefly
from emulator.launch.world import on_ranks
from emulator.record.out import check_out, read_result
from emulator.record.steps import parts_of, spools_of
from emulator.registry import LOADERS
from emulator.run.accelerator import MonotonicClock
from emulator.run.job import TrainingJob, mismatch
from emulator.run.preflight import Rules
from emulator.sweep.adaptive import Adaptive
from emulator.sweep.leader import Leader, require_samples
from emulator.sweep.ranks import measure
from emulator.sweep.schedule import FixedCounts, Schedule, parse_counts, require_ranks
from emulator.units import parse_seconds

DEFAULT_RANKS = 16
"""Largest count of a sweep that was started without -n on one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The options of `run` and of `sweep`."""

    dataset: Annotated[
        str | None, typer.Argument(metavar="DIR", help="Folder of the dataset, or s3://BUCKET/PREFIX.")
    ] = None
    workload: options.WorkloadName = None
    ranks: options.Ranks = None
    out: options.Out = None
    label: options.Label = ""
    loader: Annotated[
        str,
        typer.Option(
            metavar="|".join(LOADERS),
            help=". ".join(f"{name}: {kind.summary}" for name, kind in LOADERS.working()) + ".",
        ),
    ] = "torch"
    epochs: options.Epochs = None
    steps: options.Steps = None
    placement: Annotated[
        Placement,
        typer.Option(
            metavar="spread|pack", help="Active ranks on all hosts evenly, or on one host after the other."
        ),
    ] = "spread"
    cache: options.CacheName = "cold"
    storage: options.StorageText = "posix"
    settings: options.Settings = None
    mismatched: Annotated[
        bool,
        typer.Option("--mismatched-dataset", help="Run on a dataset unlike the workload's; results say so."),
    ] = False
    rules: options.RulesName = ""
    closed: options.Closed = False
    dry_run: options.DryRun = False
    force: options.Force = False

    def spec(self, gate: options.Gate) -> Workload:
        """Return the workload with its settings. Raises SpecError."""
        if self.workload is None:
            raise SpecError(f"{sys.argv[1]} needs --workload", "feedrate workloads lists names")
        return load_workload(self.workload, gate.settings(self.settings))

    def job(self, kind: Literal["run", "sweep"], spec: Workload) -> TrainingJob:
        """Return what the ranks are told. Raises SpecError."""
        if self.dataset is None:
            raise SpecError(f"{kind} needs DIR, the folder of a dataset", "feedrate generate DIR makes one")
        if self.loader not in LOADERS:
            raise SpecError(f"--loader {self.loader!r} is not known", f"use one of {LOADERS}")
        return TrainingJob(
            kind=kind,
            dataset=parse_place(self.dataset),
            workload=spec,
            loader=self.loader,
            storage=parse_storage(self.storage, self.cache),
            epochs=self.epochs,
            steps=self.steps,
            placement=self.placement,
            out=self.out or options.default_out(spec.name),
            force=self.force,
            command=options.command_line(),
            label=self.label,
            rules=Rules(self.rules, self.closed),
        )

    def start(
        self, job: TrainingJob, schedule: Callable[[int], Schedule], gate: options.Gate, usual: int
    ) -> None:
        """Measure with the ranks of the mpirun that started this process, or with ranks that are forked here.

        `schedule(ranks)` makes the schedule; `usual` ranks start without -n.
        """
        ranks = self.ranks or usual
        if self.dry_run:
            if rank_hint() == 0:
                manifest = self.checked(job)
                _check(job, manifest, schedule(ranks), ranks)
                show_plan(job, manifest, schedule(ranks), ranks)
            return
        if not started_by_mpi():
            apart(lambda: _check(job, self.checked(job), schedule(ranks), ranks))
            LOADERS.load(job.loader).get()  # ranks share what is imported before they are forked
            for name in format_named(job.workload.sample.format).imports:
                with suppress(ImportError):
                    import_module(name)
        status = on_ranks(partial(self._work, job, schedule), self.ranks, usual, job.out)
        if status not in (0, Inconclusive.exit_code):
            _say_what_is_kept(job)
        elif rank_hint() == 0:
            result = read_result(job.out)
            options.show_result(result, job.out, gate)
        if status:
            raise typer.Exit(status)

    def checked(self, job: TrainingJob) -> Manifest:
        """Read the dataset's manifest. Raises SpecError if the dataset is not the workload's."""
        manifest = read_manifest(job.dataset)
        if (difference := mismatch(job.workload, manifest)) and not self.mismatched:
            raise SpecError(
                f"the dataset {job.dataset} is not the workload's: {difference}",
                "generate one with the workload's recipe, choose another workload, or add "
                "--mismatched-dataset",
            )
        return manifest

    def _work(self, job: TrainingJob, schedule: Callable[[int], Schedule], comm: Comm) -> int:
        """Measure on the ranks of `comm`; return the exit status."""
        LOADERS.load(job.loader).begin()
        if started_by_mpi():  # else the command has done so before it forked the ranks
            job = comm.bcast(job)  # the default of --out has the time of rank 0
            agreed(comm, lambda: self.checked(job) if comm.rank == 0 else None)
            agreed(comm, lambda: schedule(comm.size))
        if comm.rank:
            measure(job, comm, None)
            return 0
        leader = Leader(job, schedule(comm.size))
        with live.telling(leader.now):
            result = measure(job, comm, leader)
        leader.say_verdict()
        # Scripts have to see that a sweep has found no knee, whose result is written all the same.
        unanswered = job.kind == "sweep" and result and result.knee and result.knee.kind in INCONCLUSIVE
        return Inconclusive.exit_code if unanswered else 0


def run(
    training: Training,
    gate: options.Gate,
    loops: Annotated[
        int, typer.Option(min=1, metavar="N", help="Run it N times, as sets of MLPerf Storage: 6.")
    ] = 1,
) -> None:
    """Emulate training with one rank per accelerator, once.

    \b
    Examples:
      feedrate run /mnt/ai/kits19 -w unet3d-a100 -n 4
      feedrate run /mnt/ai/kits19 -w unet3d-a100 -n 16 --loader direct --require 16
    """
    job = training.job("run", training.spec(gate))
    training.start(job, lambda size: FixedCounts((size,) * loops), gate, usual=1)


def sweep(
    training: Training,
    gate: options.Gate,
    counts: Annotated[
        str | None,
        typer.Option(
            metavar="COUNTS", help="Fixed process counts: 1,2,4,8 or 1-8. Default: look for the knee."
        ),
    ] = None,
    precision: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=1.0,
            metavar="SHARE",
            help="Stop when the 95 % interval is narrower than this share.",
        ),
    ] = WIDTH,
    max_runs: Annotated[int, typer.Option(min=1, help="At most this many runs.")] = MAX_RUNS,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="At most this much time, for example 2h.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Continue the sweep in this folder; it knows DIR and the options."),
    ] = None,
) -> None:
    """Scale the number of ranks and find the knee.

    \b
    Examples:
      feedrate sweep /mnt/ai/kits19 -w unet3d-a100 -n 16 --loader direct --out sweep
      feedrate sweep --resume sweep
    """
    if resume and training.out:
        raise SpecError("--resume and --out exclude each other", "a resumed sweep stays in its folder")
    spec = training.spec(gate)
    job = replace(training.job("sweep", spec), precision=precision, resume=resume is not None)
    if resume is not None:
        job = replace(job, out=resume)
    fixed = None if counts is None else parse_counts(counts)
    seconds = math.inf if budget is None else parse_seconds(budget)

    def schedule(size: int) -> Schedule:
        if fixed is not None:
            require_ranks(fixed, size)
            return FixedCounts(fixed)
        search = KneeSearch(
            maximum=size, threshold=spec.training.au_threshold, precision=precision, max_runs=max_runs
        )
        return Adaptive(search, MonotonicClock(), seconds)

    training.start(job, schedule, gate, usual=max(fixed) if fixed else DEFAULT_RANKS)


def _check(job: TrainingJob, manifest: Manifest, planned: Schedule, ranks: int) -> None:
    """Refuse what cannot work, before ranks start. Raises FeedrateError."""
    require_samples(job, manifest, planned.largest)
    require_memory(job, manifest, ranks)
    if not job.resume:
        check_out(job.out, job.force)
    if LOADERS.load(job.loader).tensors and find_spec("torch") is None:
        raise MissingError(
            f"--loader {job.loader} needs PyTorch", "pip install 'feedrate[torch]', or use --loader direct"
        )


def _say_what_is_kept(job: TrainingJob) -> None:
    """Say how to go on after a failure, if there are measurements."""
    kept: list[bool] = []

    def look() -> None:
        with suppress(FeedrateError, OSError):
            # By size: pyarrow's import may outlast the second, and would crash the end of this process.
            rows = any(file.stat().st_size for file in (*parts_of(job.out), *spools_of(job.out)))
            # A complete result is that of an earlier run, which this one did not come to replace.
            kept.append(rows and read_result(job.out).status == "incomplete")

    # A second at most: OUT may be what hangs.
    if briefly(look, 1.0) and any(kept):
        hint = shlex.join(["feedrate", "report", str(job.out)])
        if job.kind == "sweep":
            hint += "; " + shlex.join(["feedrate", "sweep", "--resume", str(job.out)]) + " goes on"
        print(f"feedrate: kept what was measured until then: {hint}", file=sys.stderr)
