"""feedrate in Python: datasets, runs and sweeps by MPI ranks, plans, tables and figures.

>>> import emulator
>>> emulator.plan(["unet3d-a100"], "weka-performance").feeds[0].accelerators
156
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from emulator.analysis.answer import Answer
from emulator.analysis.knee import find_knee
from emulator.config.recipe import load_recipe
from emulator.config.storage import parse_place
from emulator.dataset.checking import Checked, Checking
from emulator.dataset.checking import verify as check
from emulator.dataset.generate import Filled, Filling
from emulator.dataset.generate import generate as fill
from emulator.dataset.plan import DatasetPlan
from emulator.errors import MissingError
from emulator.launch.child import feedrate
from emulator.launch.comm import Comm
from emulator.record.result import Knee, Point, RunResult
from emulator.record.steps import STEP, Steps, read_steps
from emulator.report.charts import Chart, altair_chart, svg
from emulator.report.view import answer_of, kind_of, title
from emulator.storage import open_store
from emulator.sweep.summary import recovered

if TYPE_CHECKING:
    from emulator.plugins.page.compare import Comparison
    from emulator.plugins.page.report import Report
    from emulator.plugins.recorder.job import Written
    from emulator.plugins.systems.efficiency import Efficiency
    from emulator.plugins.systems.plan import Plan

__all__ = [
    "Asked", "Result", "ask", "baseline", "checkpoint", "compare", "efficiency", "figures",
    "find_knee", "generate", "plan", "read", "record", "report", "run", "sweep", "verify",
]  # fmt: skip


COLUMNS = (
    *((name, "<i8") for name in ("ranks", "samples", "bytes")),
    *((name, "<f8") for name in ("samples_per_second", "bytes_per_second", "ideal_samples_per_second")),
    *((name, "<f8") for name in ("au", "x_ideal", "wait_share", "seconds")),
)
"""Columns of `Result.table`: fields of Point, in its units."""
Place = str | os.PathLike[str]
"""A folder or a file; for datasets also an s3:// URL."""


@dataclass(frozen=True, repr=False)
class Result:
    """The content of one OUT folder."""

    run: RunResult
    """The content of run.json, whose fields results/README.md explains."""
    log: Callable[[], Steps] = lambda: np.zeros(0, dtype=STEP)
    required: int | None = None
    """The accelerators that have to be fed (`require`): the answer has the verdict in `gate`."""

    @cached_property
    def steps(self) -> Steps:
        """Every step of every rank, as a structured array, which is read on first use; may be empty.

        Raises StorageError, SpecError.
        """
        return self.log()

    @property
    def points(self) -> tuple[Point, ...]:
        """The points of the process counts that were run, in that order."""
        return self.run.points

    @property
    def knee(self) -> Knee | None:
        """The knee; None if there are no two counts."""
        return self.run.knee

    @property
    def answer(self) -> Answer:
        """The answer: `sentence`, `number` with `interval`, `limit`, `advice`."""
        return answer_of(self.run, self.required)

    @property
    def table(self) -> NDArray[np.void]:
        """One row per point, shape (points,), with the fields COLUMNS."""
        rows = [tuple(getattr(point, name) for name, _ in COLUMNS) for point in self.points]
        return np.array(rows, dtype=list(COLUMNS))

    def __repr__(self) -> str:
        return f"<{self.run.kind} of {title(self.run)}: {self.answer.sentence}>"

    def _repr_html_(self) -> str:
        """Return title, answer and chart for a notebook: one screen."""
        lines = "<br>".join(map(escape, self.answer.lines))
        drawn = ""
        with suppress(MissingError):  # without Altair the answer stands alone
            drawn = "".join(map(svg, kind_of(self.run).figures(self.run)[:1]))
        return f"<p><b>{escape(title(self.run))}</b></p><p>{lines}</p>{drawn}"


class _ThisProcess(Comm):
    raises = True


@dataclass(frozen=True)
class Asked:
    """What `ask` found."""

    answer: Answer
    """What the storage feeds."""
    pytorch_answer: Answer | None
    """What PyTorch on this client feeds; None if it was not measured."""
    storage: Result
    """The sweep with the direct loader."""
    pytorch: Result | None
    """The counts with the torch loader."""


def read(out: Place) -> Result:
    """Return the result in the folder OUT, also of a run that was cut off. Raises StorageError, SpecError."""
    return Result(recovered(Path(out)), partial(read_steps, Path(out)))


def figures(result: Result) -> list[Chart]:
    """Return the figures of a result as Altair charts, with the one that answers the question first.

    Notebooks show them; `save` writes .svg, .png and .html. Raises MissingError without feedrate[report].
    """
    return [altair_chart(figure) for figure in kind_of(result.run).figures(result.run)]


def generate(
    place: Place,
    recipe: str,
    *,
    files: int | None = None,
    seed: int = 0,
    settings: Sequence[str] = (),
    how: Filling | None = None,
) -> Filled:
    """Make a dataset, or its missing files, in a folder or at an s3:// URL, from this process.

    `recipe` is a name or a file; `files` defaults to the recipe's number; `settings` are values of --set.
    Raises SpecError, DatasetError, StorageError.
    """
    spec = load_recipe(recipe, list(settings))
    plan = DatasetPlan(recipe=spec, seed=seed, files=files or spec.files)
    filled = fill(open_store(parse_place(os.fspath(place))), plan, _ThisProcess(), how)
    assert filled is not None  # this process is rank 0 of its own world
    return filled


def verify(place: Place, how: Checking | None = None) -> Checked:
    """Compare a dataset with its manifest. Raises DatasetError if there is none, StorageError."""
    checked = check(parse_place(os.fspath(place)), _ThisProcess(), how)
    assert checked is not None
    return checked


def run(dataset: Place, workload: str, ranks: int, *, out: Place, **options: Any) -> Result:
    """Emulate training with `ranks` ranks, which are forked on this machine.

    `options` are those of `feedrate run` with underscores: loader="direct", steps=100,
    storage="shaped:1GB/s", set=["loader.workers=8"], force=True. Call it in the main thread. Raises
    FeedrateError.
    """
    return _measured("run", dataset, out, {"workload": workload, "ranks": ranks, **options})


def sweep(dataset: Place, workload: str, *, ranks: int = 16, out: Place, **options: Any) -> Result:
    """Search for the knee up to `ranks` ranks, which are forked on this machine.

    `options` are those of `feedrate sweep`, as in `run`: counts="1,2,4", budget="10min", precision=0.1. A
    sweep whose knee is not identifiable is also a result: see `Result.knee`. Raises FeedrateError.
    """
    return _measured("sweep", dataset, out, {"workload": workload, "ranks": ranks, **options})


def ask(
    place: Place,
    accelerator: str | None = None,
    *,
    workload: str = "unet3d",
    up_to: int = 16,
    within: str = "5min",
    out: Place,
    **options: Any,
) -> Asked:
    """Find how many accelerators the storage at `place` feeds, from an empty folder on, within a time.

    `options` are those of `feedrate ask` with underscores. Call it in the main thread. Raises FeedrateError.
    """
    from emulator.cli.ask import answers
    from emulator.sweep.ask import measured_in

    asked = {"accelerator": accelerator, "workload": workload, "up_to": up_to, "within": within}
    feedrate("ask", os.fspath(place), *_words({**asked, "out": out, **options}))
    measured = measured_in(Path(out))
    required = options.get("require")
    answer, trained = answers(measured, required)
    pytorch = Result(measured.pytorch) if measured.pytorch else None
    return Asked(answer, trained, Result(measured.storage, required=required), pytorch)


def _measured(verb: str, place: Place, out: Place, options: Mapping[str, Any]) -> Result:
    """Run `feedrate VERB PLACE` with options, and read its result."""
    feedrate(verb, os.fspath(place), *_words({"out": out, **options}))
    return replace(read(out), required=options.get("require"))


def _words(options: Mapping[str, Any]) -> list[str]:
    """Return options with underscores as words of a command line."""
    words = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        items = value if isinstance(value, (list, tuple)) else [value]
        for item in items:
            if item is True:
                words.append(option)
            elif item is not None and item is not False and item != "":  # else it is the default
                words += [option, str(item)]
    return words


def baseline(folder: Place, *, out: Place, **options: Any) -> Result:
    """Measure the storage's own limits below `folder` with fio, on this host.

    `options` are those of `feedrate baseline` with underscores: suite="sequential", quick=True,
    depths="1,8", runtime="10s". Call it in the main thread. Raises FeedrateError.
    """
    return _measured("baseline", folder, out, options)


def checkpoint(folder: Place, model: str = "llama3-8b", *, out: Place, **options: Any) -> Result:
    """Write and restore checkpoints of a large model with ranks that start here.

    `options` are those of `feedrate checkpoint` with underscores: ranks=4, scale="1/100", set=[...]. Call it
    in the main thread. Raises FeedrateError.
    """
    return _measured("checkpoint", folder, out, {"model": model, **options})


def record(command: Sequence[str], *, out: Place, check: bool = True, **options: Any) -> Written:
    """Run a PyTorch job unchanged, and record its reads and the time of its steps.

    `options` are those of `feedrate record` with underscores: steps=200, warmup=5, traced_steps=100; with
    `check` a replay follows the job. The job's exit status is `observation.status`. Call it in the main
    thread. Raises MissingError, SpecError, DatasetError, StorageError, LaunchError.
    """
    from emulator.plugins.recorder.record import record_job

    return record_job(command, Path(out), checked=check, **options)


def report(out: Place, *beside: Place, rules: str = "", threshold: float | None = None) -> Report:
    """Return a result with others beside it, such as a baseline of the same storage.

    A table shows which of the runs are a valid set by `rules`. `Report.write` writes the page, pictures and
    files of `feedrate report`. Raises StorageError, SpecError.
    """
    from emulator.plugins.page.report import report as reported

    return reported(Path(out), [Path(folder) for folder in beside], rules=rules, threshold=threshold)


def compare(outs: Sequence[Place], *, references: Sequence[str] = ()) -> Comparison:
    """Compare results with each other and with published ones: tables by name or CSV file, or `all`.

    Raises StorageError, SpecError.
    """
    from emulator.plugins.page import compare as comparing

    return comparing.compare_folders([Path(out) for out in outs], references)


def plan(
    workloads: Sequence[str], system: Place | None = None, accelerators: int | None = None, **options: Any
) -> Plan:
    """Return how many accelerators a storage feeds, and what `accelerators` of each workload need.

    `system` is a result's folder, a system file, or a name. See `plugins.systems.plan.plan`.
    """
    from emulator.plugins.systems.plan import plan as planned

    return planned(workloads, None if system is None else os.fspath(system), accelerators, **options)


def efficiency(systems: Sequence[Place], *, workload: str | None = None, **options: Any) -> Efficiency:
    """Return figures per TB, watt and price of systems or results side by side.

    See `plugins.systems.efficiency.efficiency`.
    """
    from emulator.plugins.systems.efficiency import efficiency as efficiency_of

    return efficiency_of([os.fspath(system) for system in systems], workload, **options)
