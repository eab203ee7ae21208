"""Which process count to run next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from emulator.errors import SpecError
from emulator.record.result import Point


class Schedule(Protocol):
    """Decides on rank 0, from what was measured so far."""

    def next_count(self, points: Sequence[Point]) -> int | None:
        """Process count of the next point; None: enough."""
        ...

    def outlook(self, points: Sequence[Point]) -> str:
        """What is believed and what is left, in a few words."""
        ...

    def verdict(self, points: Sequence[Point]) -> str:
        """Why it ended, for people; empty when there is nothing to say."""
        ...

    def planned(self) -> Sequence[int]:
        """The counts that are sure to be run, for a dry run."""
        ...


@dataclass(frozen=True, slots=True)
class FixedCounts:
    """A list of process counts, one point each, in the order given."""

    counts: tuple[int, ...]

    def next_count(self, points: Sequence[Point]) -> int | None:
        return self.counts[len(points)] if len(points) < len(self.counts) else None

    def outlook(self, points: Sequence[Point]) -> str:
        return f"point {min(len(points) + 1, len(self.counts))} of {len(self.counts)}"

    def verdict(self, points: Sequence[Point]) -> str:
        return ""

    def planned(self) -> Sequence[int]:
        return self.counts


def parse_counts(text: str) -> tuple[int, ...]:
    """Process counts from `1,2,4,8` or `1-4,8`. Raises SpecError."""
    counts: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise SpecError(
                f"--counts {text!r} is not a list of process counts", "write it like 1,2,4,8 or 1-8"
            )
        low, high = int(first), int(last or first)
        if not 1 <= low <= high:
            raise SpecError(f"--counts {text!r} has {part.strip()!r}", "counts begin at 1 and ranges ascend")
        counts.extend(range(low, high + 1))
    return tuple(counts)


def require_ranks(counts: Sequence[int], world: int) -> None:
    """Raises SpecError when a count asks for more ranks than were started."""
    if max(counts) > world:
        raise SpecError(
            f"--counts asks for {max(counts)} processes, but only {world} ranks were started",
            f"start {max(counts)} with mpirun -n {max(counts)}, or leave that count out",
        )
