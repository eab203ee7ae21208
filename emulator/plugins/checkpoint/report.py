"""The report of checkpoints: a sentence, tables and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from emulator.analysis.answer import Answer
from emulator.record.result import Checkpoint, RunResult
from emulator.report.charts import Figure
from emulator.report.table import Cell, Column, Table, one_place, three_digits, two_digits
from emulator.units import counted, show_bytes, show_rate, show_seconds


def _by_direction(result: RunResult) -> dict[str, list[Checkpoint]]:
    """Return the writes and the reads, if there are any, in this order."""
    by_direction = {
        direction: [checkpoint for checkpoint in result.checkpoints if checkpoint.direction == direction]
        for direction in ("write", "read")
    }
    return {direction: checkpoints for direction, checkpoints in by_direction.items() if checkpoints}


def answer(result: RunResult) -> Answer:
    """Return the times to write and to restore a checkpoint; the number is that of the first, in bytes/s."""
    question = "How long does a checkpoint take?"
    if not result.checkpoints:
        return Answer(question=question, sentence="No checkpoint was completed.")
    rates: list[float] = []
    parts: list[str] = []
    for direction, checkpoints in _by_direction(result).items():
        seconds = fmean(checkpoint.seconds for checkpoint in checkpoints)
        rates.append(fmean(checkpoint.bytes_per_second for checkpoint in checkpoints))
        verb = "write" if direction == "write" else "restore"
        what = "it" if parts else f"a checkpoint of {show_bytes(checkpoints[0].bytes)}"
        parts.append(f"{verb} {what} in {show_seconds(seconds)} ({show_rate(rates[-1])})")
    ranks = counted(result.checkpoints[0].ranks, "rank")
    sentence = f"{ranks} {' and '.join(parts)}. Reads are compared by checksum."
    return Answer(question=question, sentence=sentence, number=rates[0], unit="B/s")


def setting(result: RunResult) -> str:
    """Return the place and settings of the checkpoints, in one line."""
    scale = str(result.workload.get("scale", "1"))
    parts = [
        str(result.dataset.get("path", "")),
        "O_DIRECT" if result.storage.get("direct") else "through the page cache",
        f"read back {result.storage.get('cache', 'cold')}",
    ]
    if scale != "1":
        parts.append(f"scaled to {scale}")
    if result.workload.get("subset"):
        parts.append("subset")
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
        _row(counted(len(checkpoints), direction), checkpoints)
        for direction, checkpoints in _by_direction(result).items()
    ]
    singly = [
        _row(f"{checkpoint.direction} {checkpoint.number}", [checkpoint]) for checkpoint in result.checkpoints
    ]
    return (
        Table(caption="Mean of the checkpoints", columns=columns, rows=tuple(means)),
        Table(caption="Each checkpoint", columns=columns, rows=tuple(singly)),
    )


def _row(name: str, checkpoints: Sequence[Checkpoint]) -> tuple[Cell, ...]:
    """Return a row of arithmetic means, also of rates, as MLPerf Storage does."""
    # A write is complete when its marker is on disk; a read, when its slowest rank has ended.
    complete = fmean(checkpoint.seconds + checkpoint.commit_seconds for checkpoint in checkpoints)
    size = fmean(checkpoint.bytes for checkpoint in checkpoints)
    cpu_seconds = fmean(checkpoint.cpu_seconds for checkpoint in checkpoints)
    return (
        name,
        size / 1e9,
        fmean(checkpoint.seconds for checkpoint in checkpoints),
        fmean(checkpoint.fastest_seconds for checkpoint in checkpoints),
        complete if checkpoints[0].direction == "write" else None,
        fmean(checkpoint.bytes_per_second for checkpoint in checkpoints) / 1e9,
        cpu_seconds / (size / 1e9) if size else 0.0,
        _percent_in_memory(checkpoints),
    )


def _percent_in_memory(checkpoints: Sequence[Checkpoint]) -> float | None:
    shares = [checkpoint.resident_share for checkpoint in checkpoints]
    sampled = [share for share in shares if share is not None]
    return fmean(sampled) * 100 if sampled else None


def figures(result: RunResult) -> tuple[Figure, ...]:
    """Return none: the tables have every write and read."""
    return ()


def beside(main: RunResult, result: RunResult) -> tuple[tuple[Table, ...], tuple[Figure, ...]]:
    return tables(result), ()
