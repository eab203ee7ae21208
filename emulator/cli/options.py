"""Options that several verbs take, and what verbs do with them: where a result goes, how it is shown."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from emulator import live
from emulator.analysis.answer import Answer, at_threshold
from emulator.config.catalog import names
from emulator.config.reader import to_plain
from emulator.config.storage import Cache
from emulator.errors import SpecError
from emulator.record.out import require_output
from emulator.record.result import RunResult
from emulator.registry import RULES
from emulator.report.document import document_of
from emulator.report.junit import write_junit
from emulator.report.terminal import print_blocks
from emulator.report.view import answer_of
from emulator.text import masked


def completing(kind: str) -> Callable[[str], list[str]]:
    """Return what TAB completes a name of `kind` with: workloads, datasets, results/systems, accelerators."""

    def named(incomplete: str) -> list[str]:
        if kind == "accelerators":
            known = sorted({name.rpartition("-")[2] for name in names("workloads")})
        else:
            known = names(kind)  # type: ignore[arg-type]  # a folder of the catalogue
        return [name for name in known if name.startswith(incomplete)]

    return named


WORKLOADS = completing("workloads")
WorkloadName = Annotated[
    str | None,
    typer.Option(
        "--workload",
        "-w",
        metavar="NAME",
        help="Name or path; see feedrate workloads.",
        autocompletion=WORKLOADS,
    ),
]
Out = Annotated[
    Path | None, typer.Option(metavar="OUT", help="Folder for the result; default feedrate-results/...")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the result in OUT.")]
Epochs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="At most this many epochs a point, as MLPerf has them. Default: as long as the precision takes, "
        "half a minute or more.",
    ),
]
Steps = Annotated[int | None, typer.Option(min=1, help="At most this many steps of each rank a point.")]
CacheName = Annotated[
    Cache,
    typer.Option("--cache", metavar="cold|warm", help="Whether this host's page cache may serve reads."),
]
StorageText = Annotated[str, typer.Option("--storage", metavar="HOW", help="posix or shaped:RATE[,LATENCY].")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the workload; repeatable.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and touch nothing.")]
Ranks = Annotated[
    int | None,
    typer.Option("--ranks", "-n", min=1, help="Ranks to start on this machine; not needed under mpirun."),
]
RulesName = Annotated[
    str,
    typer.Option(
        "--rules",
        metavar="|".join(RULES),
        help="Refuse what MLPerf Storage's rules of this version would not count.",
    ),
]
Closed = Annotated[bool, typer.Option("--closed", help="With --rules: those of CLOSED, too.")]
Label = Annotated[str, typer.Option("--label", metavar="TEXT", help="A name for the result, for people.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The options that turn a result into an exit status."""

    require: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Exit with 10 if fewer than N are fed, 9 if the runs cannot tell."
        ),
    ] = None
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=0.999,
            metavar="SHARE",
            help="Share of ideal throughput from which an accelerator is fed; default: the workload's.",
        ),
    ] = None
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what --require found as JUnit XML.")
    ] = None

    def __post_init__(self) -> None:
        if self.junit is not None:
            if self.require is None:
                raise SpecError("--junit was given without --require", "add --require N")
            require_output(self.junit)  # before minutes of measuring

    def settings(self, given: Sequence[str] | None) -> list[str]:
        """The settings of the workload: `given`, and the threshold."""
        settings = list(given or ())
        if self.threshold:
            settings.append(f"training.au_threshold={self.threshold}")
        return settings

    def leave(self, answer: Answer, subject: str) -> None:
        """End with the exit status of the answer's verdict; does nothing without --require.

        `subject` names the storage in JUnit.
        """
        if answer.gate is None:
            return
        if self.junit is not None:
            write_junit(self.junit, subject, [answer.gate], answer.lines)
        raise typer.Exit(answer.gate.status)


def default_out(name: str) -> Path:
    """The folder of a result for which no --out was given."""
    return Path("feedrate-results") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def command_line() -> tuple[str, ...]:
    """The command line that repeats this measurement, as results keep it: without keys."""
    return ("feedrate", *map(masked, sys.argv[1:]))


def show_result(result: RunResult, out: Path, gate: Gate | None = None) -> None:
    """Print the result and where it is, and leave with the gate's status; for programs the whole result."""
    gate = gate or Gate()
    result = at_threshold(result, gate.threshold)
    answer = answer_of(result, gate.require)
    if live.for_programs():
        live.answer(plain_result(result, out, answer))
    elif live.quiet():
        print(answer.line)
    if not live.quiet():  # beside JSON this goes to stderr
        print_blocks(document_of(result, gate.require).blocks)
        page = shlex.join(["feedrate", "report", str(out), "--html", "page.html"])
        typer.echo(f"\nresult: {out}   ({page})")
    gate.leave(answer, str(result.dataset.get("path", "")))


def plain_result(result: RunResult, out: Path, answer: Answer) -> dict[str, Any]:
    """A result for programs: run.json's fields, where it is, and its answer."""
    plain: dict[str, Any] = to_plain(result)
    return {"out": str(out), "answer": answer.as_plain(), **plain}
