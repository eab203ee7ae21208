"""What a checkpoint run measured, as rows of text and as one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from emulator.record.result import Checkpoint, RunResult
from emulator.report.view import NONE, Grid, number, percent
from emulator.units import show_bytes, show_rate, show_seconds

_HEADS = (
    "", "GB", "duration,\nslowest rank", "fastest\nrank", "until\ncomplete", "GB/s", "CPU-s\nper GB",
    "in memory\n%",
)  # fmt: skip
_VERBS = {"write": "write", "read": "restore"}


QUESTION = "How long does a checkpoint take?"


def grids(result: RunResult) -> tuple[Grid, ...]:
    """The tables of a checkpoint run: means over all writes and all reads, and each of them."""
    if not result.checkpoints:
        return ()
    means = tuple(_mean(found) for found in _by_direction(result).values() if found)
    each = tuple((f"{one.direction} {one.number}", *_figures(one)) for one in result.checkpoints)
    return (
        Grid(caption="Mean of the checkpoints", heads=_HEADS, rows=means),
        Grid(caption="Each checkpoint", heads=_HEADS, rows=each),
    )


def _by_direction(result: RunResult) -> dict[str, list[Checkpoint]]:
    return {
        direction: [one for one in result.checkpoints if one.direction == direction]
        for direction in ("write", "read")
    }


def _figures(one: Checkpoint) -> tuple[str, ...]:
    return (
        number(one.bytes / 1e9, 4),
        show_seconds(one.seconds),
        show_seconds(one.fastest_seconds),
        show_seconds(one.seconds + one.commit_seconds) if one.direction == "write" else NONE,
        number(one.bytes_per_second / 1e9, 3),
        number(_cost(one), 2),
        percent(one.resident_share),
    )


def _cost(one: Checkpoint) -> float:
    """CPU seconds per 10^9 bytes."""
    return one.cpu_seconds / (one.bytes / 1e9) if one.bytes else 0.0


def _mean(found: Sequence[Checkpoint]) -> tuple[str, ...]:
    """Arithmetic means, of the rates too, as MLPerf Storage takes them."""
    writes = found[0].direction == "write"
    shares = [one.resident_share for one in found if one.resident_share is not None]
    return (
        f"{len(found)} {found[0].direction}{'s' if len(found) > 1 else ''}",
        number(fmean(one.bytes for one in found) / 1e9, 4),
        show_seconds(fmean(one.seconds for one in found)),
        show_seconds(fmean(one.fastest_seconds for one in found)),
        show_seconds(fmean(one.seconds + one.commit_seconds for one in found)) if writes else NONE,
        number(fmean(one.bytes_per_second for one in found) / 1e9, 3),
        number(fmean(map(_cost, found)), 2),
        percent(fmean(shares)) if shares else NONE,
    )


def answer(result: RunResult) -> str:
    """How long a checkpoint takes and how long the way back, in one sentence."""
    parts: list[str] = []
    for direction, found in _by_direction(result).items():
        if found:
            seconds, rate = (
                fmean(getattr(one, name) for one in found) for name in ("seconds", "bytes_per_second")
            )
            what = "it" if parts else f"a checkpoint of {show_bytes(found[0].bytes)}"
            parts.append(f"{_VERBS[direction]} {what} in {show_seconds(seconds)} ({show_rate(rate)})")
    if not parts:
        return "No checkpoint was completed."
    first = result.checkpoints[0]
    ranks = "1 rank" if first.ranks == 1 else f"{first.ranks:,} ranks"
    return f"{ranks} {' and '.join(parts)}. What is read is compared by checksum."


def setting(result: RunResult) -> str:
    """Where and how it was written and read, in one line."""
    scale = str(result.workload.get("scale", "1"))
    parts = [
        str(result.dataset.get("path", "")),
        "O_DIRECT" if result.storage.get("direct") else "through the page cache",
        f"read back {result.storage.get('cache', 'cold')}",
        *([f"scaled to {scale}"] if scale != "1" else []),
        *(["subset"] if result.workload.get("subset") else []),
    ]
    return " · ".join(parts)
