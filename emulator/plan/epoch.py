"""The order of an epoch and how ranks share it.

The order depends on (seed, epoch) and never on the number of ranks: rank r takes batch number
s x ranks + r of the order in its step s, so whatever the number of ranks, the samples of an epoch
are the head of the same order, none twice. Only the tail that does not fill a step of all ranks is
left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from emulator.errors import DatasetError


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """How one epoch over `samples` samples is cut for `ranks` ranks."""

    samples: int
    """Samples in the dataset."""
    ranks: int
    """Ranks that share the epoch."""
    batch_size: int
    """Samples per step of one rank."""

    @property
    def steps(self) -> int:
        """Steps of every rank in an epoch."""
        return self.samples // (self.batch_size * self.ranks)

    @property
    def left_out(self) -> int:
        """Samples of an epoch that nobody reads: the tail that does not fill a step of all ranks."""
        return self.samples - self.steps * self.batch_size * self.ranks

    def require_a_step(self) -> None:
        """Raises DatasetError when the dataset is too small for one step of all ranks."""
        if self.steps < 1:
            raise DatasetError(
                f"{self.samples} samples are too few for {self.ranks} ranks at batch size {self.batch_size}",
                f"generate at least {self.batch_size * self.ranks} files, or use fewer ranks",
            )


def epoch_order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of 0 ... samples - 1, the same for the same (seed, epoch) on every machine."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)))
    return generator.permutation(samples)


def batches(plan: EpochPlan, rank: int, seed: int, epoch: int) -> Iterator[tuple[int, ...]]:
    """The batches of `rank` in `epoch`, as tuples of `batch_size` sample indices."""
    order = epoch_order(plan.samples, seed, epoch)
    for step in range(plan.steps):
        start = (step * plan.ranks + rank) * plan.batch_size
        yield tuple(order[start : start + plan.batch_size].tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How long a rank trains, and in which order it reads: at least one of the two bounds is given."""

    plan: EpochPlan
    seed: int
    """Seed of the epoch orders."""
    epochs: int | None = None
    """At most this many epochs; None: as many as the steps take."""
    steps: int | None = None
    """At most this many steps in all; None: whole epochs."""

    @property
    def length(self) -> int:
        """Steps of every rank, all epochs together."""
        whole = None if self.epochs is None else self.plan.steps * self.epochs
        return min(bound for bound in (whole, self.steps) if bound is not None)

    def batches(self, rank: int) -> Iterator[tuple[int, ...]]:
        """The batches of `rank`, epoch after epoch without a gap."""
        endless = (batch for epoch in count() for batch in batches(self.plan, rank, self.seed, epoch))
        return islice(endless, self.length)

    def place(self, number: int) -> tuple[int, int]:
        """Epoch and step within it of a rank's step `number`, counted from 0 over all epochs."""
        return divmod(number, self.plan.steps)

    def ends_epoch(self, number: int) -> bool:
        """True when step `number` is the last one of its epoch, or of the course."""
        return (number + 1) % self.plan.steps == 0 or number + 1 == self.length
