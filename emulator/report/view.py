"""Parts of a report that every kind of result has: title, marks that qualify it, flags, limits.

`kind_of` finds the plug-in that makes the others: the answer, the tables, the figures.
"""

from __future__ import annotations

import math
import shlex
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from emulator.analysis.answer import Answer, gated
from emulator.analysis.bound import LIMIT_NAMES
from emulator.record.result import Flag, Point, RunResult
from emulator.registry import KINDS
from emulator.report.charts import Figure
from emulator.report.table import Table
from emulator.units import show_rate, show_seconds


class Kind(Protocol):
    """A kind of result: a module, or an object, in the group `feedrate.kinds`."""

    def answer(self, result: RunResult) -> Answer:
        """Answer the question."""

    def setting(self, result: RunResult) -> str:
        """Say in one line where and how it was measured."""

    def tables(self, result: RunResult) -> tuple[Table, ...]:
        """Make its tables; the first answers the question."""

    def figures(self, result: RunResult) -> tuple[Figure, ...]:
        """Make its figures; none where there is nothing to draw."""

    def beside(self, main: RunResult, result: RunResult) -> tuple[tuple[Table, ...], tuple[Figure, ...]]:
        """Make the tables and figures of `result` for the page of another result, `main`."""


def kind_of(result: RunResult) -> Kind:
    """The plug-in that shows results of this kind. Raises MissingError when it is not installed."""
    return cast(Kind, KINDS.load(result.kind))


def answer_of(result: RunResult, required: int | None = None) -> Answer:
    """The answer of any kind of result, with the verdict of --require. Raises MissingError."""
    return gated(kind_of(result).answer(result), required, result)


def title(result: RunResult) -> str:
    return str(result.workload.get("title") or result.workload.get("name") or "feedrate")


def measured_on(result: RunResult) -> str:
    """Return the file system, device and mount point that were measured; empty if unknown."""
    # A checkpoint has no dataset: its result names the mount of its folder.
    mount = result.environment.get("dataset_mount") or result.environment.get("mount") or {}
    if not mount.get("mount"):
        return ""
    return f"{mount.get('type', '?')} on {mount.get('source', '?')}, mounted at {mount['mount']}"


@dataclass(frozen=True, slots=True)
class Mark:
    """A warning that applies to every number of a result."""

    label: str
    """Two or three words, for a figure's subtitle."""
    sentence: str
    """The sentence that explains it."""
    serious: bool = True
    """True when the figures are not those of a real storage, or not of the whole run."""


def marks(result: RunResult) -> tuple[Mark, ...]:
    """Return the marks that have to be said wherever a number of `result` is shown."""
    marks = []
    if result.status == "incomplete":
        reason = result.reason or "no reason was recorded"
        marks.append(Mark("incomplete", f"Incomplete: {reason}"))
    if result.storage.get("shaped_rate") is not None:
        shape = shape_of(result.storage)
        sentence = f"Emulated storage: {shape}. The figures show that shape, not a real storage."
        marks.append(Mark(f"emulated storage, {shape}", sentence))
    if short := _short_of_cpu(result):
        sentence = (
            f"At {rank_counts(short)} the recorded job itself would be short of CPU on these hosts: what is "
            "shown there is the storage as a faster client sees it, and the job gets at most that."
        )
        marks.append(Mark("faster than the job's CPU", sentence))
    if result.kind == "imported" or "imported" in result.environment:
        marks.append(Mark("imported", "Imported: measured by another tool.", serious=False))
    return tuple(marks)


def _short_of_cpu(result: RunResult) -> set[int]:
    """Return the rank counts at which a replay read faster than the recorded job's CPU allows."""
    return {point.ranks for point in result.points for flag in point.flags if flag.name == "job-cpu"}


def shape_of(storage: Any) -> str:
    """The rate and the latency of shaped storage, in words."""
    latency = storage.get("shaped_latency") or 0.0
    added = f", {show_seconds(latency)} latency" if latency else ""
    return f"shaped to {show_rate(storage['shaped_rate'])} a node{added}"


def marks_line(result: RunResult) -> str:
    """The labels of all marks in one line; empty when there is none."""
    return " · ".join(mark.label for mark in marks(result))


_ONCE = {"--force", "--dry-run", "--json", "--quiet", "-q", "--verbose", "-v"}
_ONCE_WITH_VALUE = {"--out", "--resume", "--junit", "--live"}
"""Options that are left out when a command is repeated."""


def words_again(result: RunResult) -> list[str]:
    """Return the words of the command after `feedrate`, without those that are for one time."""
    words = list(result.command)
    # Before it may stand mpirun with its own options.
    while words and Path(words[0]).name != "feedrate":
        words.pop(0)
    repeated: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        name, equals, _ = word.partition("=")
        if name in _ONCE_WITH_VALUE and not equals:
            next(rest, None)  # its value
        elif name not in _ONCE | _ONCE_WITH_VALUE:
            repeated.append(word)
    return repeated


def again(result: RunResult) -> str:
    """Return a shell command that repeats the measurement into a new folder; empty when not recorded."""
    words = words_again(result)
    if not words:
        return ""
    if words[0] == "import":  # which requires --out
        words[1:1] = ["--out", "again"]
    line = shlex.join([*_mpirun(result.environment), "feedrate", *words])
    folder = result.environment.get("folder")
    return f"cd {shlex.quote(folder)} && {line}" if isinstance(folder, str) else line


def _mpirun(environment: Mapping[str, Any]) -> list[str]:
    """Return the words that start as many ranks on the same hosts; none where mpirun did not start them."""
    ranks, hosts = environment.get("ranks_started"), environment.get("hosts") or ()
    if not environment.get("mpirun") or not isinstance(ranks, int):
        return []
    words = ["mpirun", "-n", str(ranks)]
    if len(hosts) > 1:
        per_host = -(-ranks // len(hosts))
        words += ["--host", ",".join(f"{host}:{per_host}" for host in hosts)]
    # Ranks sleep most of the time: bound to a core each, few would fit on a host.
    return [*words, "--bind-to", "none"]


def rank_counts(counts: set[int]) -> str:
    """`rank count 4` or `rank counts 16, 20`; of many, the first eight."""
    shown = ", ".join(f"{ranks:,}" for ranks in sorted(counts)[:8])
    more = f" and {len(counts) - 8} more" if len(counts) > 8 else ""
    return ("rank count " if len(counts) == 1 else "rank counts ") + shown + more


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One kind of flag and where it was raised."""

    letter: str
    """Footnote: a, b, c ..."""
    name: str
    where: str
    """`rank counts 16, 20` or `all points`."""
    sentence: str
    """The sentence of the worst of them."""


def notes(result: RunResult) -> tuple[Note, ...]:
    """The flags of a result and of its points, one note per name, lettered in order of appearance."""
    raised: dict[str, list[tuple[int | None, Flag]]] = {}
    for flag in result.flags:
        raised.setdefault(flag.name, []).append((None, flag))
    for point in result.points:
        for flag in point.flags:
            raised.setdefault(flag.name, []).append((point.ranks, flag))
    return tuple(
        Note(
            letter=string.ascii_letters[place % 52],
            name=name,
            where=_where([ranks for ranks, _ in flags]),
            sentence=max((flag for _, flag in flags), key=_severity).sentence,
        )
        for place, (name, flags) in enumerate(raised.items())
    )


def _where(counts: Sequence[int | None]) -> str:
    """The rank counts of a flag, None for one of the whole result."""
    known = {ranks for ranks in counts if ranks is not None}
    return "all points" if None in counts else rank_counts(known)


def _severity(flag: Flag) -> float:
    """Return the ratio of value and threshold: some flags are raised above it, some below."""
    low, high = sorted((abs(flag.value), abs(flag.threshold)))
    return high / low if low else math.inf


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit, the points that it limits, and the evidence."""

    name: str
    """A name such as `storage`, or `client link of node005`."""
    where: str
    """The process counts that it limits."""
    evidence: tuple[str, ...]
    """Measurements at the largest of them, one sentence each."""


def limits(result: RunResult) -> tuple[Limit, ...]:
    """Return the limits of the points, the one of the largest count last."""
    limited: dict[str, list[Point]] = {}
    evidence: dict[str, tuple[str, ...]] = {}
    for point in sorted(result.points, key=lambda point: point.ranks):
        # Compute is no limit of a storage: its accelerators are fed.
        if (bound := point.bound) and bound.kind != "compute":
            name = LIMIT_NAMES[bound.kind] + (f" of {bound.host}" if bound.host else "")
            limited.setdefault(name, []).append(point)
            evidence[name] = bound.evidence
    by_largest = sorted(limited, key=lambda name: limited[name][-1].ranks)
    return tuple(
        Limit(name, rank_counts({point.ranks for point in limited[name]}), evidence[name])
        for name in by_largest
    )
