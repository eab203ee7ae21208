"""The order of an epoch and how ranks share it.

The order depends on (seed, epoch) and never on the number of ranks: rank r takes batch number
s x ranks + r of the order in its step s, so whatever the number of ranks, the samples of an epoch
are the head of the same order, none twice. Only the tail that does not fill a step of all ranks is
left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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


def batches(
    plan: EpochPlan, rank: int, seed: int, epoch: int, steps: int | None = None
) -> Iterator[tuple[int, ...]]:
    """The batches of `rank` in `epoch`, as tuples of `batch_size` sample indices.

    At most `steps` of them when given.
    """
    order = epoch_order(plan.samples, seed, epoch)
    last = plan.steps if steps is None else min(steps, plan.steps)
    for step in range(last):
        start = (step * plan.ranks + rank) * plan.batch_size
        yield tuple(order[start : start + plan.batch_size].tolist())


def epoch_lengths(plan: EpochPlan, epochs: int | None, steps: int | None) -> Iterator[int]:
    """Steps of each epoch of a run of at most `epochs` epochs and `steps` steps in all.

    With `steps` alone, as many epochs as it takes; with neither, an error of the caller.
    """
    remaining = steps if steps is not None else plan.steps * (epochs or 0)
    epoch = 0
    while remaining > 0 and (epochs is None or epoch < epochs):
        yield min(plan.steps, remaining)
        remaining -= plan.steps
        epoch += 1
