"""The report of checkpoints: a sentence, tables and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from emulator.analysis.answer import Answer
from emulator.record.result import Checkpoint, RunResult
from emulator.report.charts import Axis, Dot, Figure, Series, colour
from emulator.report.table import Cell, Column, Table, one_place, three_digits, two_digits
from emulator.report.view import marks_line
from emulator.units import counted, show_bytes, show_rate, show_seconds


def _by_direction(result: RunResult) -> dict[str, list[Checkpoint]]:
    checkpoints: dict[str, list[Checkpoint]] = {}
    for made in sorted(result.checkpoints, key=lambda made: made.direction, reverse=True):  # writes first
        checkpoints.setdefault(made.direction, []).append(made)
    return checkpoints


def answer(result: RunResult) -> Answer:
    """Return the times to write and to restore a checkpoint; the number is that of the first, in bytes/s."""
    question, number = "How long does a checkpoint take?", None
    parts: list[str] = []
    for direction, checkpoints in _by_direction(result).items():
        seconds = fmean(made.seconds for made in checkpoints)
        rate = fmean(made.bytes_per_second for made in checkpoints)
        number = rate if number is None else number
        verb = "write" if direction == "write" else "restore"
        what = "it" if parts else f"a checkpoint of {show_bytes(checkpoints[0].bytes)}"
        parts.append(f"{verb} {what} in {show_seconds(seconds)} ({show_rate(rate)})")
    if not parts:
        return Answer(question=question, sentence="No checkpoint was completed.")
    ranks = counted(result.checkpoints[0].ranks, "rank")
    sentence = f"{ranks} {' and '.join(parts)}. Reads are compared by checksum."
    return Answer(question=question, sentence=sentence, number=number, unit="B/s")


def setting(result: RunResult) -> str:
    """Return the place and settings of the checkpoints, in one line."""
    scale = str(result.workload.get("scale", "1"))
    parts = [
        str(result.dataset.get("path", "")),
        "O_DIRECT" if result.storage.get("direct") else "through the page cache",
        f"read back {result.storage.get('cache', 'cold')}",
        *([f"scaled to {scale}"] if scale != "1" else []),
        *(["subset"] if result.workload.get("subset") else []),
    ]
    return " · ".join(parts)


def tables(result: RunResult) -> tuple[Table, ...]:
    """Return tables of the means over all writes and all reads, and of each write and read."""
    if not result.checkpoints:
        return ()
    columns = (
        Column("", align="left"),
        Column("GB"),
        Column("duration,\nslowest\nrank", show_seconds, unit="s"),
        Column("fastest\nrank", show_seconds, unit="s", room=64),
        Column("until\ncomplete", show_seconds, unit="s", room=40),
        Column("GB/s", three_digits),
        Column("CPU-s\nper GB", two_digits, room=58),
        Column("in\nmemory %", one_place, room=30),
    )
    means = [
        _row(f"{len(checkpoints)} {direction}{'s' if len(checkpoints) > 1 else ''}", checkpoints)
        for direction, checkpoints in _by_direction(result).items()
    ]
    singly = [_row(f"{made.direction} {made.number}", [made]) for made in result.checkpoints]
    return (
        Table(caption="Mean of the checkpoints", columns=columns, rows=tuple(means)),
        Table(caption="Each checkpoint", columns=columns, rows=tuple(singly)),
    )


def _row(name: str, checkpoints: Sequence[Checkpoint]) -> tuple[Cell, ...]:
    """Return a row of arithmetic means, also of rates, as MLPerf Storage does."""
    shares = [made.resident_share for made in checkpoints if made.resident_share is not None]
    writes = checkpoints[0].direction == "write"
    return (
        name,
        fmean(made.bytes for made in checkpoints) / 1e9,
        fmean(made.seconds for made in checkpoints),
        fmean(made.fastest_seconds for made in checkpoints),
        fmean(made.seconds + made.commit_seconds for made in checkpoints) if writes else None,
        fmean(made.bytes_per_second for made in checkpoints) / 1e9,
        fmean(made.cpu_seconds / (made.bytes / 1e9) if made.bytes else 0.0 for made in checkpoints),
        fmean(shares) * 100 if shares else None,
    )


def figures(result: RunResult) -> tuple[Figure, ...]:
    """Return a figure with the bytes/s of each checkpoint; none if there are fewer than two."""
    if len(result.checkpoints) < 2:
        return ()
    series = [
        Series(
            name=direction,
            colour=colour(place),
            dots=[
                Dot(
                    number, made.bytes_per_second, f"{direction} {number}: {show_rate(made.bytes_per_second)}"
                )
                for number, made in enumerate(result.checkpoints, start=1)
                if made.direction == direction
            ],
        )
        for place, direction in enumerate(_by_direction(result))
    ]
    figure = Figure(
        name="checkpoints",
        title="Checkpoints written and read",
        caption="Rate of all ranks, set by the slowest one. Left to right in chronological order.",
        x=Axis(title="checkpoint", whole=True),
        y=Axis(unit="B/s"),
        series=series,
        qualified=marks_line(result),
    )
    return (figure,)


def beside(main: RunResult, result: RunResult) -> tuple[tuple[Table, ...], tuple[Figure, ...]]:
    return tables(result), figures(result)
