"""Contestants that read the same bytes in turns, and the table of what they did."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Turn(NamedTuple):
    """What one contestant did in one turn."""

    rate: float
    """GB/s; of objects, of which the size is known, how many a second."""
    cpu: float
    """CPU-seconds per GB."""


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What each of these benchmarks takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the table there as Markdown")
    return parser


def in_turns(contestants: Mapping[str, Callable[[], Turn]], turns: int) -> dict[str, list[Turn]]:
    """What each contestant did, turn by turn, one after the other in each."""
    taken: dict[str, list[Turn]] = {name: [] for name in contestants}
    for _ in range(turns):
        for name, read in contestants.items():
            taken[name].append(read())
    return taken


def rows(
    title: str, taken: Mapping[str, Sequence[Turn]], rivals: Sequence[str], rate: int = 2, cpu: int = 2
) -> Iterable[str]:
    """A line of the table for each contestant; in the last columns CPU of a rival / its own, turn by turn.

    `rate` and `cpu` are the decimal places of these columns. A rival that did not read is each one itself.
    """
    for name, turns in taken.items():
        ratios = (
            spread(
                [theirs.cpu / mine.cpu for theirs, mine in zip(taken.get(rival, turns), turns, strict=True)]
            )
            for rival in rivals
        )
        cells = (
            spread([turn.rate for turn in turns], rate),
            spread([turn.cpu for turn in turns], cpu),
            *ratios,
        )
        yield f"| {title} | {name} | {' | '.join(cells)} |"


def publish(lines: Sequence[str], out: Path | None) -> None:
    """Show the page, and write it to `out` if there is one."""
    text = "\n".join(lines) + "\n"
    print(text)
    if out:
        out.write_text(text)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Their median and, in brackets, their range."""
    middle, low, high = (f"{f(values):.{digits}f}" for f in (statistics.median, min, max))
    return f"{middle} [{low}-{high}]"
