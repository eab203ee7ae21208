"""The report model: what a result or a comparison shows, as data. Terminal, Markdown, page, CSV render it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    """Name and answer of each result of a comparison, or of those beside the result."""
    complete: bool = True
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
        # Last, since a terminal shows the end of what was printed.
        return [*self._body(), Text(""), *answer_blocks(self.answer, self.complete)]

    def _body(self) -> Iterator[Text | Table]:
        yield from self._head()
        yield from (table for table in self.tables if not table.detail)
        if self.limits:
            # Of the largest count: the others are on the page.
            limit = self.limits[-1]
            yield Text(f"\n{limit.name} limits {limit.where}: {'; '.join(limit.evidence)}.")
        if self.notes:
            yield Text("")
        for note in self.notes:
            yield Text(f"{note.letter}  {note.name} ({note.where}): {note.sentence}", "yellow")
        if self.cautions:
            yield Text("\nCompare with caution", "bold yellow")
        yield from (Text(f"- {caution}") for caution in self.cautions)

    def _head(self) -> Iterator[Text]:
        """What has to be known before the figures."""
        yield Text(self.title, "bold")
        yield from (Text(line, "dim") for line in self.setting)
        for mark in self.marks:
            yield Text(f"!! {mark.sentence}" if mark.serious else mark.sentence, "bold red")
        for name, answer in self.of_each:
            yield Text(name, "bold")
            yield Text(f"  {answer.sentence}")

    def text(self, form: str) -> str:
        """Return the document as `html`, `csv`, `md` or `prom`. Raises MissingError, SpecError."""
        if form == "html":
            from emulator.report.html import page  # here: it imports the package jinja2

            return page(self)
        if form == "csv":
            return to_csv(self.points or self.tables[0])
        if form == "md":
            # First, since a CI system shows the begin of a summary.
            return as_markdown([*answer_blocks(self.answer), *self._body()])
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
            write_picture(self.figures, file, form, self.title)
        else:
            write_output(file, self.text(form))


def document_of(result: RunResult, required: int | None = None, **more: Any) -> Document:
    """The document of one result; `more` are fields in place of its own. Raises MissingError."""
    kind = kind_of(result)
    setting = [kind.setting(result)]
    if storage := measured_on(result):
        setting.insert(0, f"storage: {storage}")
    own: dict[str, Any] = {
        "title": title(result),
        "setting": tuple(setting),
        "marks": marks(result),
        "answer": answer_of(result, required),
        "complete": result.status == "complete",
        "tables": kind.tables(result),
        "figures": kind.figures(result),
        "limits": limits(result),
        "notes": notes(result),
        "facts": facts_of(result),
        "command": again(result),
    }
    return Document(**{**own, **more})


def facts_of(result: RunResult) -> tuple[tuple[str, tuple[Fact, ...]], ...]:
    """The settings and facts of a result, in sections."""
    # Each source stands beside its value.
    workload = {key: value for key, value in result.workload.items() if key != "sources"}
    origin = {"made": result.created, "kind": result.kind, "feedrate": result.version, "label": result.label}
    return (
        ("Dataset and storage", (*facts(result.dataset), *facts(result.storage))),
        ("Workload", facts(workload, result.workload.get("sources"))),
        ("Environment", facts({**origin, **result.environment})),
    )


def facts(table: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> tuple[Fact, ...]:
    """Return all values of a nested table in words, in its order, with their `sources` by dotted key."""
    known = sources if isinstance(sources, Mapping) else {}  # run.json may hold anything there
    facts = []
    for key, value in _flat(table, ""):
        if value not in (None, "", [], ()):
            facts.append(Fact(in_words(key), show(key, value), known.get(key, "")))
    return tuple(facts)


def in_words(key: str) -> str:
    """A dotted key in words: `dataset_mount.type` is `dataset mount: type`."""
    name = key.removesuffix("_bytes").removesuffix("_seconds")
    return shown(name.replace("_", " ").replace(".", ": "))


def _flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """The values in a tree of tables, with dotted keys; of long lists the first."""
    items: Iterable[tuple[object, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        items = enumerate(value[:MOST_ITEMS])
    else:
        yield key, value
    for name, item in items:
        yield from _flat(item, f"{key}.{name}" if key else str(name))


UNITS: dict[str, Callable[[float], str]] = {
    "bytes": show_bytes,
    "memory": show_bytes,
    "rate": show_rate,
    "seconds": show_seconds,
    "timeout": show_seconds,
    "latency": show_seconds,
    "seed": str,
}
"""Word in a key -> how its value is shown."""


def show(key: str, value: Any) -> str:
    """Return a value as text with its unit, which the words of its key tell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        items = list(map(str, value[:MOST_ITEMS]))
        if len(value) > MOST_ITEMS:
            items[-1] += f" and {len(value) - MOST_ITEMS:,} more"
        return ", ".join(items)
    if not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return NONE
    for word in re.split(r"[._]", key):
        if word in UNITS:
            return UNITS[word](value)
    return number(value) if isinstance(value, float) else f"{value:,}"
