"""The report model: what a result or a comparison shows, as data. Terminal, Markdown, page, CSV render it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.analysis.answer import Answer
from emulator.errors import SpecError
from emulator.record.out import write_output
from emulator.record.result import RunResult
from emulator.report.charts import Figure, write_picture
from emulator.report.table import NONE, Table, number, to_csv
from emulator.report.terminal import Text, answer_blocks, as_markdown
from emulator.report.training_figures import by_ranks, mean_demand
from emulator.report.view import (
    Limit,
    Mark,
    Note,
    again,
    answer_of,
    kind_of,
    limits,
    marks,
    measured_on,
    notes,
    title,
)
from emulator.text import shown
from emulator.units import show_bytes, show_rate, show_seconds

MOST_ITEMS = 12
"""Most items of a list that are shown."""


@dataclass(frozen=True, slots=True)
class Card:
    """One figure beside the answer."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """A setting or a fact in words, and the source of its value."""

    name: str
    value: str
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Document:
    """What is shown of one result, or of several beside each other."""

    title: str
    setting: tuple[str, ...]
    """Where and how it was measured, a line each."""
    marks: tuple[Mark, ...] = ()
    answer: Answer
    """Of a comparison the verdict."""
    of_each: tuple[tuple[str, Answer], ...] = ()
    """Name and answer of each result of a comparison."""
    complete: bool = True
    cards: tuple[Card, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    """The first one stands beside the answer."""
    limits: tuple[Limit, ...] = ()
    notes: tuple[Note, ...] = ()
    cautions: tuple[str, ...] = ()
    facts: tuple[tuple[str, tuple[Fact, ...]], ...] = ()
    """Sections that a page folds."""
    command: str = ""
    points: Table | None = None
    """The table of --csv; None: the first one."""
    openmetrics: str = ""

    @property
    def blocks(self) -> list[Text | Table]:
        """The paragraphs and tables of a terminal, the answer last."""
        return [*self._body, Text(""), *answer_blocks(self.answer, self.complete)]

    @property
    def _body(self) -> list[Text | Table]:
        blocks: list[Text | Table] = [Text(self.title, "bold"), *(Text(line, "dim") for line in self.setting)]
        blocks += [Text(f"!! {m.sentence}" if m.serious else m.sentence, "bold red") for m in self.marks]
        for name, answer in self.of_each:
            blocks += [Text(name, "bold"), Text(f"  {answer.sentence}")]
        blocks += [table for table in self.tables if not table.detail]
        for limit in self.limits[-1:]:
            blocks.append(Text(f"\n{limit.name} limits {limit.where}: {'; '.join(limit.evidence)}."))
        for place, note in enumerate(self.notes):
            line = f"{note.letter}  {note.name} ({note.where}): {note.sentence}"
            blocks.append(Text(line if place else f"\n{line}", "yellow"))
        if self.cautions:
            blocks.append(Text("\nCompare with caution", "bold yellow"))
        return [*blocks, *(Text(f"- {caution}") for caution in self.cautions)]

    def text(self, form: str) -> str:
        """Return the document as `html`, `csv`, `md` or `prom`. Raises MissingError, SpecError."""
        if form == "html":
            from emulator.report.html import page  # here: it imports the package jinja2

            return page(self)
        if form == "csv":
            return to_csv(self.points or self.tables[0])
        if form == "md":
            return as_markdown([*answer_blocks(self.answer), *self._body])
        if form == "prom" and self.openmetrics:
            return self.openmetrics
        if form == "prom":
            raise SpecError("a comparison has no OpenMetrics", "feedrate report writes those of one result")
        raise SpecError(f"a file cannot be written as {form!r}", "write .html, .png, .svg, .csv or .md")

    def write(self, path: str | os.PathLike[str], form: str = "") -> None:
        """Write a file atomically, as `form`, which defaults to the extension of its name.

        Raises MissingError, SpecError, StorageError.
        """
        file = Path(path)
        form = form or file.suffix.removeprefix(".")
        if form in ("png", "svg"):
            write_picture(self.figures[:4], file, form, self.title)
        else:
            write_output(file, self.text(form))


def document_of(result: RunResult, required: int | None = None, **more: Any) -> Document:
    """The document of one result; `more` are fields in place of its own. Raises MissingError."""
    kind, answer = kind_of(result), answer_of(result, required)
    storage = measured_on(result)
    own: dict[str, Any] = {
        "title": title(result),
        "setting": (*([f"storage: {storage}"] if storage else []), kind.setting(result)),
        "marks": marks(result),
        "answer": answer,
        "complete": result.status == "complete",
        "cards": cards(result, answer),
        "tables": kind.tables(result),
        "figures": kind.figures(result),
        "limits": limits(result),
        "notes": notes(result),
        "facts": facts_of(result),
        "command": again(result),
    }
    return Document(**{**own, **more})


def cards(result: RunResult, answer: Answer) -> tuple[Card, ...]:
    """The figures of the answer, and what one process asks for."""
    found: list[Card] = []
    if answer.number is not None and answer.threshold is not None:
        low, high = answer.interval or (answer.number, None)
        ends = f"{number(low, 3)} or more" if high is None else f"{number(low, 3)} to {number(high, 3)}"
        name = f"{answer.unit} fed, at {answer.threshold * 100:g} % of demand"
        found.append(Card(name, number(answer.number, 3), "" if high == low else ends))
    if answer.limit:
        name, _, value = answer.limit.partition(", ")
        found.append(Card("Limit", value or name, name if value else ""))
    demand = mean_demand(by_ranks(result))
    if demand is not None:
        job = float(result.workload.get("job", {}).get("samples", 1.0))
        batch = result.workload.get("loader", {}).get("batch_size")
        seconds = result.workload.get("accelerator", {}).get("step_seconds")
        detail = ""
        if batch is not None and seconds is not None:
            whose = "" if job == 1 else "of the job's "
            detail = f"{batch * job:g} {whose}samples every {show_seconds(float(seconds))}"
        found.append(Card("One process asks for", show_rate(demand), detail))
    return tuple(found)


def facts_of(result: RunResult) -> tuple[tuple[str, tuple[Fact, ...]], ...]:
    """The settings and facts of a result, in sections."""
    environment = {key: value for key, value in result.environment.items() if key != "imported"}
    workload = {key: value for key, value in result.workload.items() if key != "sources"}
    origin = {"made": result.created, "kind": result.kind, "feedrate": result.version, "label": result.label}
    own = (*facts(origin), *facts(environment))
    return (
        ("Dataset and storage", (*facts(result.dataset), *facts(result.storage))),
        ("Workload", facts(workload, result.workload.get("sources"))),
        ("Environment", own),
    )


def facts(table: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> tuple[Fact, ...]:
    """Return all values of a nested table in words, in its order, with their `sources` by dotted key."""
    known = sources if isinstance(sources, Mapping) else {}  # run.json may hold anything there
    return tuple(
        Fact(in_words(key), show(key, value), known.get(key, ""))
        for key, value in _flat(table, "")
        if value not in (None, "", [], ())
    )


def in_words(key: str) -> str:
    """A dotted key in words: `dataset_mount.type` is `dataset mount: type`."""
    *above, name = key.split(".")
    for unit in ("_bytes", "_seconds"):
        name = name.removesuffix(unit)
    return shown(": ".join(part.replace("_", " ") for part in (*above, name)))


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{key}.")
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            for place, item in enumerate(value[:MOST_ITEMS]):
                yield from _flat(item, f"{key}.{place}.") if isinstance(item, Mapping) else ((key, item),)
            if len(value) > MOST_ITEMS:
                yield key, f"and {len(value) - MOST_ITEMS:,} more"
        else:
            yield key, value


def show(key: str, value: Any) -> str:
    """Return a value as text with its unit, which the name of its key tells."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        more = f" and {len(value) - MOST_ITEMS:,} more" if len(value) > MOST_ITEMS else ""
        return (", ".join(map(str, value[:MOST_ITEMS])) or NONE) + more
    if not isinstance(value, int | float):
        return str(value)
    name = key.rpartition(".")[2]
    if not math.isfinite(value):
        return NONE
    if "bytes" in name or name == "memory" or key.startswith("memory_of_hosts"):
        return show_bytes(value)
    if name.endswith("rate"):
        return show_rate(value)
    if name.endswith(("seconds", "timeout", "latency")):
        return show_seconds(value)
    if name == "seed":
        return f"{value}"
    return number(value) if isinstance(value, float) else f"{value:,}"
