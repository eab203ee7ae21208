"""feedrate in Python: results as tables and figures, the knee of points, and sweeps in virtual time.

>>> import emulator
>>> made = emulator.simulate("unet3d-a100", "weka-performance", [8, 64, 256, 512], steps=40)
>>> made.table["ranks"].tolist()
[8, 64, 256, 512]
>>> emulator.find_knee(made.points).sentence.startswith("This storage feeds")
True
>>> [picture.name for picture in emulator.figures(made)][:3]
['answer', 'throughput', 'per-process']
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.analysis.knee import find_knee
from emulator.config.workload import load_workload
from emulator.errors import MissingError
from emulator.record.result import Knee, Point, RunResult
from emulator.record.steps import STEP, Steps, read_steps
from emulator.report import training
from emulator.report.drawing import svg, write_picture
from emulator.report.figure import Figure
from emulator.report.table import markdown
from emulator.report.training_figures import hero
from emulator.report.view import kind_of, title
from emulator.sweep.summary import recovered

__all__ = ["Picture", "Result", "figures", "find_knee", "read", "simulate"]

COLUMNS = (
    ("ranks", "<i8"),
    ("samples_per_second", "<f8"),
    ("bytes_per_second", "<f8"),
    ("ideal_samples_per_second", "<f8"),
    ("au", "<f8"),
    ("x_ideal", "<f8"),
    ("wait_share", "<f8"),
    ("seconds", "<f8"),
    ("samples", "<i8"),
    ("bytes", "<i8"),
)
"""Columns of `Result.table`: fields of Point, in its units."""


@dataclass(frozen=True)
class Result:
    """What one OUT folder holds."""

    run: RunResult
    """Everything about it, as run.json has it; results/README.md explains each field."""
    log: Callable[[], Steps] = field(default=lambda: np.zeros(0, dtype=STEP), repr=False)
    """Gives `steps`."""

    @cached_property
    def steps(self) -> Steps:
        """Every step of every rank, as a structured array, read when first asked for; may be empty.

        Raises StorageError, SpecError.
        """
        return self.log()

    @property
    def points(self) -> tuple[Point, ...]:
        """The process counts that were run, in the order in which they were."""
        return self.run.points

    @property
    def knee(self) -> Knee | None:
        """None: there are no two counts."""
        return self.run.knee

    @property
    def answer(self) -> str:
        """The answer in one sentence."""
        return kind_of(self.run).answer(self.run)

    @property
    def table(self) -> NDArray[np.void]:
        """One row a point, shape (points,), with the fields COLUMNS."""
        rows = [tuple(getattr(point, name) for name, _ in COLUMNS) for point in self.points]
        return np.array(rows, dtype=list(COLUMNS))

    def frame(self) -> Any:
        """`table` as a pandas DataFrame with what limits each point. Raises MissingError without pandas."""
        try:
            import pandas
        except ImportError:
            raise MissingError("the package pandas is not installed", "pip install pandas") from None
        frame = pandas.DataFrame(self.table)
        frame["bound"] = [point.bound.kind if point.bound else None for point in self.points]
        frame["flags"] = [", ".join(flag.name for flag in point.flags) for point in self.points]
        return frame

    def _repr_markdown_(self) -> str:
        """What a notebook shows: title, answer, tables."""
        tables = [markdown(table) for table in kind_of(self.run).tables(self.run) if not table.detail]
        return "\n\n".join([f"**{title(self.run)}**", self.answer, *tables])


@dataclass(frozen=True)
class Picture:
    """A figure that a notebook shows."""

    figure: Figure

    @property
    def name(self) -> str:
        """For example `throughput`."""
        return self.figure.name

    @property
    def svg(self) -> str:
        """The drawing. Raises MissingError without feedrate[report]."""
        return svg(self.figure)

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as a file that ends in .svg or .png. Raises StorageError, MissingError."""
        file = Path(path)
        write_picture([self.figure], file, file.suffix.removeprefix("."), heading="")


def read(out: str | os.PathLike[str]) -> Result:
    """The result in the folder OUT, also of a run that was cut off. Raises StorageError, SpecError."""
    return Result(recovered(Path(out)), partial(read_steps, Path(out)))


def figures(result: Result | RunResult) -> list[Picture]:
    """The figures of a result, the one that answers the question first."""
    made = result if isinstance(result, Result) else Result(result)
    first = hero(made.run) if kind_of(made.run) is training else None
    found = [*([first] if first else []), *kind_of(made.run).figures(made.run)]
    return [Picture(figure) for figure in found]


def simulate(
    workload: str,
    system: str,
    counts: Sequence[int],
    *,
    steps: int | None = None,
    hosts: int | None = None,
    settings: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
) -> Result:
    """A sweep in virtual time, as `feedrate simulate` runs it: no byte is read.

    `workload` and `system` are names or files, `settings` words like those of --set. With `out` the result is
    kept in that folder. Raises SpecError, StorageError, MissingError without feedrate[sim].
    """
    # Here: a plug-in is imported by what uses it.
    from emulator.plugins.systems.simulate import simulate as sweep_in_virtual_time
    from emulator.plugins.systems.system import load_system, on_hosts

    spec, on = load_workload(workload, list(settings)), on_hosts(load_system(system), hosts)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "out" if out is None else Path(out)
        made, rows = sweep_in_virtual_time(spec, on, tuple(counts), place, steps=steps)
    return Result(made, lambda: rows)
