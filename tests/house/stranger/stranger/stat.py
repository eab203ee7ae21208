"""A command with its own kind of result: how long it takes to look at a file that is there."""

import time
from pathlib import Path
from typing import Annotated

import typer

from emulator.analysis.answer import Answer
from emulator.cli import options
from emulator.record.out import ResultFolder
from emulator.record.result import new_result
from emulator.report.charts import Axis, Dot, Figure, Series, colour
from emulator.report.table import Column, Table


def stat(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with files.")],
    out: options.Out = None,
    force: options.Force = False,
) -> None:
    """Measure how long each file of a folder takes to look at."""
    result = new_result(
        "stat", command=options.command_line(), workload={"name": "stat"}, dataset={"path": str(folder)},
        storage={}, loader="stat", environment={},
    )  # fmt: skip
    place = out or options.default_out("stat")
    held, micros = ResultFolder.create(place, result, force=force), []
    for path in sorted(folder.iterdir()):
        begin = time.perf_counter()
        path.stat()
        micros.append(1e6 * (time.perf_counter() - begin))
    held.update(details={"microseconds": micros})
    options.show_result(held.complete(), place)


def _times(result):
    return result.details.get("microseconds", ())


def answer(result):
    times = _times(result)
    said = f"A stat takes {sum(times) / len(times):.1f} us." if times else "No file was looked at."
    return Answer(question="How long does a stat take?", sentence=said)


def setting(result):
    return f"{result.dataset.get('path', '')} · {len(_times(result))} files"


def tables(result):
    rows = tuple(enumerate(_times(result)))
    return (Table(caption="Each file", columns=(Column("file"), Column("us")), rows=rows),)


def figures(result):
    dots = [Dot(number, micros) for number, micros in enumerate(_times(result))]
    if not dots:
        return ()
    return (
        Figure(
            name="stats", title="Time of each stat", caption="In the order of the names.",
            x=Axis(title="file", whole=True), y=Axis(title="us"),
            series=[Series(name="stat", dots=dots, colour=colour(0))],
        ),
    )  # fmt: skip


def beside(main, result):
    return tables(result), figures(result)
