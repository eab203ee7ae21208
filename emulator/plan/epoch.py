"""The order of an epoch and how ranks share it.

Random access: the order depends on (seed, epoch) and never on the number of ranks: rank r takes batch
number s x ranks + r of the order in its step s, so whatever the number of ranks, the samples of an epoch
are the head of the same order, none twice. Sequential access: each rank has a stretch of the files'
order (see emulator.plan.sequential). Either way only the tail that does not fill a step of all ranks is
left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from emulator.errors import DatasetError
from emulator.plan.order import epoch_order
from emulator.plan.reads import Portion, Read
from emulator.plan.sequential import Streams, drawn, samples_in_order, sequential_portions
from emulator.spec.workload import AccessSpec, Workload

RANDOM = AccessSpec()

MOST_SHUFFLED = 2**28
"""Samples whose order a rank can hold: 2 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """How one epoch over `samples` samples is cut for `ranks` ranks."""

    samples: int
    """Samples in the dataset."""
    ranks: int
    """Ranks that share the epoch."""
    batch_size: int
    """Samples per step of one rank."""
    samples_per_file: int = 1
    """Samples number f x samples_per_file and on lie in file f."""
    access: AccessSpec = RANDOM
    """The pattern in which samples are read."""

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
            needed = -(-self.batch_size * self.ranks // self.samples_per_file)
            raise DatasetError(
                f"{self.samples} samples are too few for {self.ranks} ranks at batch size {self.batch_size}",
                f"generate at least {needed} files, or use fewer ranks",
            )
        if self.access.pattern == "random" and self.samples > MOST_SHUFFLED:
            raise DatasetError(
                f"{self.samples} samples are more than a shuffle of single samples holds ({MOST_SHUFFLED})",
                "--set access.pattern=sequential",
            )


def batches(plan: EpochPlan, rank: int, seed: int, epoch: int) -> Iterator[tuple[int, ...]]:
    """The batches of `rank` in `epoch`, as tuples of `batch_size` sample indices: what training sees."""
    if plan.access.pattern == "sequential":
        streams, order = _streams(plan, rank, seed, epoch)
        draws = drawn(streams.length, plan.access.shuffle_buffer, seed, epoch, rank)
        mine = samples_in_order(streams, order, plan.samples_per_file, draws)
        yield from map(tuple, mine.reshape(plan.steps, plan.batch_size).tolist())
        return
    order = epoch_order(plan.samples, seed, epoch)
    for step in range(plan.steps):
        start = (step * plan.ranks + rank) * plan.batch_size
        yield tuple(order[start : start + plan.batch_size].tolist())


def portions(plan: EpochPlan, rank: int, seed: int, epoch: int) -> Iterator[Portion]:
    """The steps of `rank` in `epoch` as storage sees them."""
    each = plan.samples_per_file
    if plan.access.pattern == "sequential":
        streams, order = _streams(plan, rank, seed, epoch)
        yield from sequential_portions(streams, order, each, plan.batch_size, plan.access.shuffle_buffer)
        return
    for batch in batches(plan, rank, seed, epoch):
        yield Portion(len(batch), tuple([Read(*divmod(index, each)) for index in batch]))


def _streams(plan: EpochPlan, rank: int, seed: int, epoch: int) -> tuple[Streams, NDArray[np.int64]]:
    """The streams of `rank`, and the order of the files."""
    length = plan.steps * plan.batch_size
    streams = Streams(rank * length, length, max(1, min(plan.access.streams, length)))
    return streams, epoch_order(plan.samples // plan.samples_per_file, seed, epoch)


def plan_for(workload: Workload, samples: int, ranks: int, samples_per_file: int = 1) -> EpochPlan:
    """How `ranks` ranks share an epoch of `workload` over `samples` samples."""
    return EpochPlan(
        samples=samples, ranks=ranks, batch_size=workload.loader.batch_size,
        samples_per_file=samples_per_file, access=workload.access,
    )  # fmt: skip


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
        """The batches of `rank` as sample indices, epoch after epoch without a gap."""
        endless = (batch for epoch in count() for batch in batches(self.plan, rank, self.seed, epoch))
        return islice(endless, self.length)

    def portions(self, rank: int) -> Iterator[Portion]:
        """The same steps as storage sees them."""
        endless = (portion for epoch in count() for portion in portions(self.plan, rank, self.seed, epoch))
        return islice(endless, self.length)

    def place(self, number: int) -> tuple[int, int]:
        """Epoch and step within it of a rank's step `number`, counted from 0 over all epochs."""
        return divmod(number, self.plan.steps)

    def ends_epoch(self, number: int) -> bool:
        """True when step `number` is the last one of its epoch, or of the course."""
        return (number + 1) % self.plan.steps == 0 or number + 1 == self.length
