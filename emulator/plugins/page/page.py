"""Write a result and others beside it as an HTML page, or as one picture.

A page is self-contained: inline SVG and CSS, no network; it is complete without its script.
"""

from __future__ import annotations

import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from emulator import __version__
from emulator.analysis.answer import Answer
from emulator.errors import SpecError
from emulator.record.host import read_hosts
from emulator.record.out import RESULT, read_result, write_output
from emulator.record.result import RunResult
from emulator.registry import RULES, TABLES
from emulator.report import training
from emulator.report.drawing import DARK, HERO, NARROW, WIDE, draw_result, extra, svgs
from emulator.report.figure import Figure
from emulator.report.glossary import GLOSSARY, anchor, term_of
from emulator.report.metrics import as_openmetrics
from emulator.report.table import NONE, Cell, Column, Table, heading, shortened, to_csv
from emulator.report.terminal import Text, answer_blocks, as_markdown, result_blocks
from emulator.report.training import cards
from emulator.report.training_figures import StorageLimit, hosts_over_time, throughput
from emulator.report.view import again, answer_of, kind_of, limits, marks, notes, title
from emulator.run.preflight import Rules
from emulator.sweep.summary import recovered
from emulator.text import shown
from emulator.units import show_bytes, show_rate, show_seconds

LEADING = ("sweep", "run", "imported", "checkpoint")
"""Kinds of results that may lead a page, in order of priority; others are shown beside it."""


class Document(ABC):
    """A report or a comparison, for the terminal and for files."""

    @property
    @abstractmethod
    def blocks(self) -> list[Text | Table]:
        """Return the paragraphs and tables."""

    @property
    def summary(self) -> list[Text | Table]:
        """Return the paragraphs and tables with the answer first, for Markdown."""
        return self.blocks

    @property
    @abstractmethod
    def line(self) -> str:
        """Return the answer in one line."""

    @abstractmethod
    def html(self) -> str:
        """Return one self-contained page. Raises MissingError."""

    @abstractmethod
    def csv(self) -> Table:
        """Return the table for CSV."""

    @abstractmethod
    def draw(self, path: Path, form: str) -> None:
        """Write the plots as `png` or `svg`. Raises MissingError, StorageError."""

    def prom(self) -> str:
        """Return the figures as OpenMetrics. Raises SpecError if there are none."""
        raise SpecError("a comparison has no OpenMetrics", "feedrate report writes those of one result")

    def text(self, form: str) -> str:
        """Return the document as `html`, `csv`, `md` or `prom`. Raises MissingError, SpecError."""
        make = {
            "html": self.html,
            "csv": lambda: to_csv(self.csv()),
            "md": lambda: as_markdown(self.summary),
            "prom": self.prom,
        }.get(form)
        if make is None:
            raise SpecError(f"a file cannot be written as {form!r}", "write .html, .png, .svg, .csv or .md")
        return make()

    def write(self, path: str | os.PathLike[str], form: str = "") -> None:
        """Write a file atomically, as `form`, which defaults to the extension of its name.

        Raises MissingError, SpecError, StorageError.
        """
        file = Path(path)
        form = form or file.suffix.removeprefix(".")
        if form in ("png", "svg"):
            self.draw(file, form)
        else:
            write_output(file, self.text(form))


@dataclass(frozen=True, kw_only=True)
class Report(Document):
    """A result, with other results beside it."""

    folder: Path
    """OUT of the result."""
    result: RunResult
    others: tuple[tuple[str, RunResult], ...]
    """Name and result of each other result."""
    systems: tuple[str, ...]
    """Names or files of the systems that the result ran on."""
    listed: bool = False
    """True if a folder of results was given; a table then lists them."""
    rules: str = ""
    """Rules of a benchmark to check sets of runs with: an entry point of `feedrate.rules`."""
    required: int | None = None
    """Accelerators that --require asks for."""

    @property
    def answer(self) -> Answer:
        return answer_of(self.result, self.required)

    @property
    def line(self) -> str:
        return self.answer.gate.line if self.answer.gate else self.answer.sentence

    @property
    def named(self) -> list[tuple[str, RunResult]]:
        """Return name and result of each, the leading one first."""
        return [(self.folder.name, self.result), *self.others]

    @property
    def limit(self) -> StorageLimit | None:
        """Return the largest undisturbed read rate of a baseline; None without one."""
        limits = []
        for _, other in self.others:
            corner = other.read_limit
            if corner and corner.read:
                words = f"{other.loader}, {corner.pattern} reads of {show_bytes(corner.block_bytes)}"
                limits.append(StorageLimit(corner.read.bytes_per_second, words))
        return max(limits, key=lambda limit: limit.bytes_per_second, default=None)

    @cached_property
    def _beside(self) -> list[tuple[str, tuple[tuple[Table, ...], tuple[Figure, ...]]]]:
        return [(name, kind_of(other).beside(self.result, other)) for name, other in self.others]

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """Return the tables of the other results and systems, each with the name of its source."""
        tables = [_all_of(self)] if self.listed and self.others else []
        tables += [_sets(self)] if self.rules else []
        for name, (found, _) in self._beside:
            tables += [replace(table, caption=f"{table.caption} ({name})") for table in found]
        if self.systems:
            for name in TABLES:
                tables += TABLES.load(name)(self.result, self.systems)
        return tuple(table for table in tables if table.rows)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Return the figures of the hosts, and those of the other results."""
        hosts = hosts_over_time(self.result, read_hosts(self.folder))
        return hosts + tuple(
            replace(figure, title=f"{figure.title} ({name})")
            for name, (_, figures) in self._beside
            for figure in figures
        )

    @property
    def blocks(self) -> list[Text | Table]:
        return [*result_blocks(self.result, self.required), *self.tables]

    @property
    def summary(self) -> list[Text | Table]:
        return [*answer_blocks(self.answer), *result_blocks(self.result, None, answered=True), *self.tables]

    def html(self) -> str:
        return page(self.result, self.tables, self.figures, self.limit, self.required)

    def csv(self) -> Table:
        kind = kind_of(self.result)
        return (
            training.csv_table(self.result) if cast(object, kind) is training else kind.tables(self.result)[0]
        )

    def prom(self) -> str:
        return as_openmetrics(self.result, self.required)

    def draw(self, path: Path, form: str) -> None:
        draw_result(self.result, path, form)


def report(out: Path, baselines: Sequence[Path] = (), systems: Sequence[str] = (), rules: str = "") -> Report:
    """Return the report of `out`, which is a result or a folder of results.

    In a folder, the kind that is first in `LEADING` leads (of several results the latest), and the other
    results are shown beside it. Raises SpecError, StorageError.
    """
    shown: dict[str, Any] = {"systems": tuple(systems), "rules": Rules(rules).version}
    others = []
    for path in baselines:
        other = read_result(path)
        if other.kind != "baseline":
            raise SpecError(f"{path} is a {other.kind}, not a baseline", "feedrate baseline makes one")
        others.append((path.name, other))
    if not out.is_dir() or (out / RESULT).is_file():
        main = out.parent if out.name == RESULT else out
        return Report(folder=main, result=recovered(main), others=tuple(others), **shown)
    held = {path.parent: read_result(path) for path in sorted(out.glob(f"*/{RESULT}"))}
    if not held:
        read_result(out)  # raises the error
    kinds = sorted({result.kind for result in held.values()}, key=_turn)
    main = max((path for path in held if held[path].kind == kinds[0]), key=lambda path: held[path].created)
    for kind in reversed(kinds):
        others += [(path.name, made) for path, made in held.items() if made.kind == kind and path != main]
    return Report(folder=main, result=recovered(main), others=tuple(others), listed=True, **shown)


def _turn(kind: str) -> tuple[int, str]:
    """Return a sort key of kinds of results, of which the first leads."""
    return (LEADING.index(kind) if kind in LEADING else len(LEADING), kind)


def _all_of(found: Report) -> Table:
    """Return a table with a row for every result of a folder, the leading one first."""
    columns = (
        Column("result", align="fold"),
        Column("kind", align="left"),
        Column("made", align="left", room=90),
        Column("what it says", align="fold"),
    )
    rows = tuple(
        (made.label or name, made.kind, made.created, answer_of(made).sentence) for name, made in found.named
    )
    return Table(caption=f"All results in {found.folder.resolve().parent.name}", columns=columns, rows=rows)


def _sets(found: Report) -> Table:
    """Return a table with a row for each rule that a set of runs breaks.

    An imported result is a set; so are feedrate's runs of one workload on one dataset.
    """
    sets: dict[tuple[str, str, str], list[tuple[str, RunResult]]] = {}
    for name, made in sorted(found.named, key=lambda one: one[1].created):
        if made.points or made.checkpoints:
            kind = "checkpoint" if made.checkpoints else "training"
            source = name if made.environment.get("imported") else str(made.dataset.get("path"))
            sets.setdefault((str(made.workload.get("name")), kind, source), []).append((name, made))
    rows = []
    for (workload, *_), held in sets.items():
        lines = RULES.load(found.rules)([made for _, made in held], found.rules, True)
        names = ", ".join(name for name, _ in held)
        rows += [(workload, names, line) for line in lines or ["no rule is broken"]]
    columns = (
        Column("workload", align="left"),
        Column("results", align="fold"),
        Column("rule", align="fold"),
    )
    return Table(caption=f"Sets of runs by the rules of {found.rules}", columns=columns, rows=tuple(rows))


def page(
    result: RunResult,
    tables: Sequence[Table] = (),
    figures: Sequence[Figure] = (),
    limit: StorageLimit | None = None,
    required: int | None = None,
) -> str:
    """Return the page as text. Raises MissingError."""
    kind, answer = kind_of(result), answer_of(result, required)
    pictures = [*kind.figures(result), *figures]
    first = None
    if len({point.ranks for point in result.points}) > 1:
        most = max(point.bytes_per_second for point in result.points)
        near = [limit] if limit and limit.bytes_per_second <= 3 * most else []  # else it hides the curve
        pictures[0] = first = throughput(result, near) or pictures[0]
    drawn = plotted(pictures, first)
    return render(
        "page.html",
        result=result,
        title=title(result),
        setting=kind.setting(result),
        marks=marks(result),
        answer=answer,
        cards=cards(result, answer),
        tables=[laid_out(table) for table in (*kind.tables(result), *tables)],
        hero=drawn.pop(0) if first else None,
        figures=drawn,
        limits=limits(result),
        notes=notes(result),
        environment=facts({key: value for key, value in result.environment.items() if key != "imported"}),
        storage=facts(result.storage),
        dataset=facts(result.dataset),
        workload=facts(
            {key: value for key, value in result.workload.items() if key != "sources"},
            result.workload.get("sources"),
        ),
        command=again(result),
    )


def render(template: str, **values: Any) -> str:
    """Render a template of this folder with all values escaped. Raises MissingError."""
    jinja2 = extra("jinja2")
    folder = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    dark = "".join(
        f'  .plot [{what}="{light}"] {{ {what}: {twin}; }}\n'
        for light, twin in DARK.items()
        for what in ("fill", "stroke")
    )
    css, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    css += f"@media screen and (prefers-color-scheme: dark) {{\n{dark}}}\n"
    environment.globals["term"] = term_of
    markup = extra("markupsafe").Markup
    glossary = [(anchor(term), term, meaning) for term, meaning in GLOSSARY.items()]
    text: str = environment.get_template(template).render(
        css=markup(css), script=markup(script), glossary=glossary, version=__version__, **values
    )
    return shown(text)


MOST_ROWS = 24
"""Most rows shown of a table that may be shortened (`Table.items`)."""


def laid_out(table: Table) -> dict[str, Any]:
    """Return a table for the template: heads and cells with classes, and bars in percent."""
    classes = []
    for column in table.columns:
        words, more = column.align != "right", column.room >= 60
        classes.append(" ".join(["words"] * words + ["more"] * more + ["barred"] * column.bar))
    bars = [
        _bars([row[place] for row in table.rows] if c.bar else ()) for place, c in enumerate(table.columns)
    ]
    head, tail, between = shortened(range(len(table.rows)), MOST_ROWS if table.items else len(table.rows))
    texts = table.texts

    def row(number: int) -> dict[str, Any]:
        lengths = (column[number] if column else "" for column in bars)
        return {
            "flagged": number in table.flagged,
            "cells": list(zip(texts[number], classes, lengths, strict=True)),
        }

    return {
        "caption": table.caption or "Measurements",
        "heads": [(heading(c.head, "/\u200b"), name) for c, name in zip(table.columns, classes, strict=True)],
        "head": [row(number) for number in head],
        "between": f"{between:,} {table.items} between" if between else "",
        "tail": [row(number) for number in tail],
    }


def _bars(cells: Sequence[Cell]) -> list[str]:
    """Return the length of the bar behind each figure, in percent of the longest."""
    values = [0.0 if cell is None or isinstance(cell, str) else float(cell) for cell in cells]
    longest = max(values, default=0.0) or 1.0
    return [f"{value / longest * 100:.1f}" for value in values]


def plotted(figures: Sequence[Figure], first: Figure | None = None) -> list[dict[str, Any]]:
    """Draw every figure for a wide and for a narrow page, of which CSS shows one; draw `first` large."""
    plots: list[dict[str, Any]] = []
    sizes = [(figure, size) for figure in figures for size in (HERO if figure is first else WIDE, NARROW)]
    drawn = iter(svgs(sizes))
    for figure in figures:
        alike = sum(other.name == figure.name for other in figures[: len(plots)])
        name = f"{figure.name}-{alike + 1}" if alike else figure.name
        words = (figure.title or "The answer", figure.caption)
        wide, narrow = (inline(next(drawn), f"{name}-{width}", *words) for width in ("wide", "narrow"))
        plots.append({"name": name, "caption": figure.caption, "wide": wide, "narrow": narrow})
    return plots


def inline(svg: str, prefix: str, heading: str, description: str) -> Any:
    """Return an SVG for a page with several: with unique ids, title, description, and fluid width."""
    unique = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    head, tail = unique.split(">", 1)
    wide = re.search(r'viewBox="0 0 ([0-9.]+)', head)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    limit = f' style="max-width:{wide[1]}px"' if wide else ""
    markup = extra("markupsafe")
    named = f' role="img" aria-labelledby="{prefix}-title {prefix}-desc"'
    words = (
        f'<title id="{prefix}-title">{markup.escape(heading)}</title>'
        f'<desc id="{prefix}-desc">{markup.escape(description)}</desc>'
    )
    return markup.Markup(f"{head}{named}{limit}>{words}{tail}")


MOST_ITEMS = 12
"""Most list items shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A dotted key, its value, and the source of the value."""

    key: str
    value: str
    source: str = ""


def facts(table: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> list[Fact]:
    """Return all values of a nested table as rows, in its order, with their `sources` by dotted key."""
    known = sources if isinstance(sources, Mapping) else {}  # run.json may hold anything there
    return [
        Fact(key=key, value=show(key, value), source=known.get(key, "")) for key, value in _flat(table, "")
    ]


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
    """Return a value as text; sizes, rates and durations are recognised by the name of their key."""
    if value is None or value == "":
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        more = f" and {len(value) - MOST_ITEMS:,} more" if len(value) > MOST_ITEMS else ""
        return (", ".join(map(str, value[:MOST_ITEMS])) or NONE) + more
    if not isinstance(value, int | float):
        return str(value)
    name = key.rpartition(".")[2]
    if "bytes" in name or name == "memory":
        return f"{show_bytes(value)} ({value:,})" if abs(value) >= 1000 else f"{value} B"
    if name.endswith("rate"):
        return show_rate(value)
    if name.endswith(("seconds", "timeout", "latency")) and math.isfinite(value):
        return show_seconds(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if name != "seed" else f"{value}"
