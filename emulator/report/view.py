"""Percentiles from a histogram of read requests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.record.result import Flag, Point, RunResult
from emulator.units import show_bytes, show_rate, show_seconds

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)


def percentiles(histogram: Mapping[str, int], wanted: tuple[float, ...] = PERCENTILES) -> tuple[float, ...]:
    """Seconds at or below which each percentage of the requests ended; () without requests.

    `histogram` maps the upper edge of a bucket in microseconds to requests. The answer is the upper edge
    of the bucket that the percentile falls into, so it never flatters.
    """
    edges = np.array([_edge(name) for name in histogram])
    counts = np.array(list(histogram.values()), dtype=np.int64)
    if not len(edges) or counts.sum() <= 0:
        return ()
    order = np.argsort(edges)
    total = np.cumsum(counts[order])
    places = np.searchsorted(total, np.ceil(total[-1] * np.array(wanted) / 100 - 1e-9))
    return tuple((edges[order][np.minimum(places, len(edges) - 1)] * 1e-6).tolist())


def _edge(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return math.inf  # a bucket without an upper edge, whatever it is called


def measured(points: tuple[Point, ...]) -> list[tuple[Point, tuple[float, ...]]]:
    """The points that have a histogram, by rank count, with their percentiles in seconds."""
    ordered = sorted(points, key=lambda point: point.ranks)
    found = [(point, percentiles(point.read_latency)) for point in ordered]
    return [(point, values) for point, values in found if values]


# ---- A result as people read it: the marks that qualify it, the rows of its table, the notes under it.


QUESTION = "How many accelerators can this storage feed?"
NONE = "–"
"""Shown where there is no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table: heads and rows of text; the first column is words, the others are figures."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that qualifies every number of a result."""

    label: str
    """Two or three words, for a plot's subtitle."""
    sentence: str
    """What it means."""
    serious: bool
    """True when the figures must not be read as those of a real storage, or not as the whole run."""


def marks(result: RunResult) -> tuple[Mark, ...]:
    """What has to be said wherever a number of `result` is shown."""
    found = []
    if result.status == "incomplete":
        reason = result.reason or "no reason was recorded"
        found.append(Mark(label="incomplete", sentence=f"Incomplete: {reason}", serious=True))
    if result.storage.get("shaped_rate") is not None:
        shape = _shape(result.storage)
        sentence = f"Emulated storage: {shape}. The figures show that shape, not a real storage."
        found.append(Mark(label=f"emulated storage, {shape}", sentence=sentence, serious=True))
    if result.storage.get("noise"):
        noise = str(result.storage["noise"])
        what = "a checkpointing job" if noise.startswith("checkpoint") else "fio"
        sentence = f"Beside noise: {what} ran on every host at the same time ({noise})."
        found.append(Mark(label="beside noise", sentence=sentence, serious=True))
    if result.kind == "simulated":
        sentence = "Simulated: computed in virtual time; nothing was read."
        found.append(Mark(label="simulated", sentence=sentence, serious=True))
    if result.kind == "imported":
        found.append(Mark(label="imported", sentence="Imported: measured by another tool.", serious=False))
    return tuple(found)


def _shape(storage: Any) -> str:
    latency = storage.get("shaped_latency") or 0.0
    added = f", {show_seconds(latency)} latency" if latency else ""
    return f"shaped to {show_rate(storage['shaped_rate'])} a node{added}"


def marks_line(result: RunResult) -> str:
    """The labels of all marks in one line; empty when there is none."""
    return " · ".join(mark.label for mark in marks(result))


def number(value: float | None, digits: int = 4) -> str:
    """`value` to `digits` significant digits, with thousands separated; never in powers of ten."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 9)}f}"


def percent(share: float | None) -> str:
    """A share (0 to 1) as a percentage with one decimal, without the sign."""
    return NONE if share is None or not math.isfinite(share) else f"{share * 100:.1f}"


def title(result: RunResult) -> str:
    """The workload's title, or its name."""
    return str(result.workload.get("title") or result.workload.get("name") or "feedrate")


def setting(result: RunResult) -> str:
    """Where and how it was measured, in one line: dataset, storage, loader."""
    parts = []
    if result.dataset.get("path"):
        size = f" ({show_bytes(result.dataset['bytes'])})" if result.dataset.get("bytes") else ""
        parts.append(f"{result.dataset['path']}{size}")
    shaped = result.storage.get("shaped_rate") is not None
    parts.append(_shape(result.storage) if shaped else f"{result.storage.get('cache', 'unknown')} cache")
    parts.append(f"{result.loader} loader")
    return " · ".join(parts)


def computes(point: Point) -> bool:
    """False when the workload does not compute: then there is no ideal rate, no AU and no X/X_ideal."""
    return math.isfinite(point.ideal_samples_per_second) and point.ideal_samples_per_second > 0


def sample_bytes(point: Point) -> float:
    """Mean bytes of a sample of the point."""
    return point.bytes / point.samples if point.samples else 0.0


def demand(point: Point) -> float | None:
    """Bytes/s that one process asks for when it never waits; None when it does not compute."""
    if not computes(point) or not point.ranks:
        return None
    return point.ideal_samples_per_second / point.ranks * sample_bytes(point)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One kind of flag and where it was raised."""

    letter: str
    """Footnote: a, b, c ..."""
    name: str
    places: tuple[int, ...]
    """Ranks of the points that carry it; empty: the whole result."""
    sentence: str
    """The sentence of the worst of them."""
    value: float
    threshold: float

    @property
    def where(self) -> str:
        """`ranks 16, 20` or `all points`."""
        return places(set(self.places)) if self.places else "all points"


def places(counts: set[int]) -> str:
    """`rank count 4` or `rank counts 16, 20`; of many, the first eight."""
    shown = ", ".join(f"{ranks:,}" for ranks in sorted(counts)[:8])
    more = f" and {len(counts) - 8} more" if len(counts) > 8 else ""
    return ("rank count " if len(counts) == 1 else "rank counts ") + shown + more


def notes(result: RunResult) -> tuple[Note, ...]:
    """The flags of a result and of its points, one note per name, lettered in order of appearance."""
    seen: dict[str, list[tuple[int | None, Flag]]] = {}
    for flag in result.flags:
        seen.setdefault(flag.name, []).append((None, flag))
    for point in result.points:
        for flag in point.flags:
            seen.setdefault(flag.name, []).append((point.ranks, flag))
    return tuple(_note(letter(number), name, raised) for number, (name, raised) in enumerate(seen.items()))


def letter(number: int) -> str:
    """a ... z, then a2, b2 ..."""
    turn, place = divmod(number, 26)
    return chr(ord("a") + place) + (str(turn + 1) if turn else "")


def _note(mark: str, name: str, raised: list[tuple[int | None, Flag]]) -> Note:
    places = {ranks for ranks, _ in raised if ranks is not None}
    whole = any(ranks is None for ranks, _ in raised)
    worst = max((flag for _, flag in raised), key=_severity)
    return Note(
        letter=mark, name=name, places=() if whole else tuple(sorted(places)), sentence=worst.sentence,
        value=worst.value, threshold=worst.threshold,
    )  # fmt: skip


def _severity(flag: Flag) -> float:
    """How far the value is from its threshold, as a ratio: some flags are raised above it, some below."""
    low, high = sorted((abs(flag.value), abs(flag.threshold)))
    return high / low if low else math.inf


BOUNDS = {
    "compute": "compute",
    "client-cpu": "client CPU",
    "client-link": "client link",
    "storage": "storage",
    "emulator": "emulator",
}
"""Bound class -> its name for people. A client's link is its network or its device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One thing that limits points, where, and why we think so."""

    name: str
    """For example `storage`, or `client link of node005`."""
    where: str
    """The process counts that it limits."""
    evidence: tuple[str, ...]
    """Measurements at the largest of them, one sentence each."""


def limits(result: RunResult) -> tuple[Limit, ...]:
    """What limits the points, the one of the largest count last."""
    found: dict[tuple[str, str], list[Point]] = {}
    for point in sorted(result.points, key=lambda point: point.ranks):
        if point.bound is not None:
            found.setdefault((point.bound.kind, point.bound.host), []).append(point)
    ordered = sorted(found.items(), key=lambda item: item[1][-1].ranks)
    return tuple(
        Limit(
            name=BOUNDS[kind] + (f" of {host}" if host else ""),
            where=places({point.ranks for point in points}),
            evidence=points[-1].bound.evidence if points[-1].bound else (),
        )
        for (kind, host), points in ordered
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One point as text, in the order of COLUMNS."""

    ranks: str
    samples: str
    gigabytes: str
    per_rank: str
    au: str
    x_ideal: str
    notes: str
    """Letters of the notes, for example `a b`."""
    bound: str
    """What limits the point, in a word or two; empty where it was not asked."""


def rows(result: RunResult) -> tuple[Row, ...]:
    """The table: one row a point, in the order of the rank counts, repeats in the order they were run."""
    letters = {note.name: note.letter for note in notes(result)}
    ordered = sorted(result.points, key=lambda point: point.ranks)
    return tuple(_row(point, (letters[flag.name] for flag in point.flags)) for point in ordered)


def _row(point: Point, marked: Iterable[str]) -> Row:
    known = computes(point)
    return Row(
        ranks=f"{point.ranks:,}",
        samples=number(point.samples_per_second),
        gigabytes=number(point.bytes_per_second / 1e9, 3),
        per_rank=number(point.bytes_per_second / point.ranks / 1e6, 4),
        au=percent(point.au) if known else NONE,
        x_ideal=f"{point.x_ideal:.3f}" if known else NONE,
        notes=" ".join(sorted(set(marked))),
        bound=BOUNDS[point.bound.kind] if point.bound else "",
    )


def answer(result: RunResult) -> str:
    """The knee in one sentence, or why there is none."""
    if result.knee is not None:
        return result.knee.sentence
    if not result.points:
        return "Nothing was measured."
    if len({point.ranks for point in result.points}) == 1:
        return _single(result.points[0])
    return "No knee was computed for this result."


def _single(point: Point) -> str:
    ranks = "1 process" if point.ranks == 1 else f"{point.ranks:,} processes"
    rate = f"{ranks} read {show_rate(point.bytes_per_second)}"
    if not computes(point):
        return f"{rate}; the workload does not compute, so there is no ideal to compare with."
    return (
        f"{rate} ({number(point.samples_per_second)} samples/s) at {percent(point.au)} % accelerator "
        f"utilisation, {percent(point.x_ideal)} % of the ideal throughput."
    )


def grids(result: RunResult) -> tuple[Grid, ...]:
    """Tables beside that of the points: a training has none."""
    return ()
