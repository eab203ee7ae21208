"""What a rank asks storage for: consecutive samples of a file, and the reads of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.config.workload import AccessSpec, Workload
from emulator.errors import DatasetError

How = Literal["alone", "start", "on"]
"""alone: these samples and no byte more. start, on: whole blocks (row groups) of a stream that goes through
the file: those that begin within the samples, and for `start` the one that the first of them lies in too."""


class Read(NamedTuple):
    """Consecutive samples of one file."""

    file: int
    """Index of the file."""
    first: int = 0
    """Number of the first sample, within the file."""
    samples: int = 1
    how: How = "alone"


class Portion(NamedTuple):
    """What a step of one rank takes."""

    samples: int
    """Samples that the accelerator gets."""
    reads: tuple[Read, ...]
    """What has to be read for them and has not been read for an earlier step."""


def whole_files(files: tuple[int, ...]) -> Portion:
    """A step over these files, one sample each."""
    return Portion(len(files), tuple(Read(file) for file in files))


# ---- The order of an epoch, which depends on its seed and number alone.


def epoch_order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of 0 ... samples - 1, the same for the same (seed, epoch) on every machine."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)))
    return generator.permutation(samples)


# ---- Files one after the other, through streams and a shuffle buffer, as tf.data reads them.
#
# The files of an epoch are put into an order; their samples, in file order, are one long sequence. Each
# rank has a stretch of it, of the same length, and each stream of the rank a part of that stretch. The rank
# takes a sample of each stream in turn into a buffer of B samples and draws the next one out of the buffer:
# storage sees the streams, the accelerator the draws. When the k-th sample is drawn (from 0), k + B samples
# have been read, or all of them. Ranks and streams begin within a file where there are fewer files
# than streams.


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of one rank in one epoch."""

    begin: int
    """Position of the rank's first sample in the epoch's sequence."""
    length: int
    """Samples of the rank."""
    count: int
    """Streams."""

    def taken(self, stream: int, samples: int) -> int:
        """Samples of the first `samples` that come from stream `stream`: it has every `count`-th."""
        return max(0, -(-(samples - stream) // self.count))

    def start(self, stream: int) -> int:
        """Position in the sequence where the stream begins."""
        return self.begin + sum(self.taken(before, self.length) for before in range(stream))


def sequential_portions(
    streams: Streams, order: NDArray[np.int64], samples_per_file: int, batch_size: int, buffer: int
) -> Iterator[Portion]:
    """The steps of a rank over files in `order`, with a shuffle buffer of `buffer` samples."""
    starts = [streams.start(stream) for stream in range(streams.count)]
    had = [0] * streams.count
    for step in range(streams.length // batch_size):
        needed = min((step + 1) * batch_size + max(buffer - 1, 0), streams.length)
        reads: list[Read] = []
        for stream, start in enumerate(starts):
            taken = streams.taken(stream, needed)
            if taken > had[stream]:
                begin, end = start + had[stream], start + taken
                reads += _reads(begin, end, order, samples_per_file, "on" if had[stream] else "start")
                had[stream] = taken
        yield Portion(batch_size, tuple(reads))


def _reads(begin: int, end: int, order: NDArray[np.int64], samples_per_file: int, how: How) -> Iterator[Read]:
    """The positions `begin` to `end` of the sequence, file by file."""
    while begin < end:
        place, first = divmod(begin, samples_per_file)
        count = min(samples_per_file - first, end - begin)
        yield Read(int(order[place]), first, count, how)
        begin, how = begin + count, "on"


def drawn(length: int, buffer: int, seed: int, epoch: int, rank: int) -> NDArray[np.int64]:
    """The order in which `length` samples, read in order, leave a shuffle buffer of `buffer` samples.

    Entry k is the number of the k-th sample that is drawn: below k + buffer, for no other has been read.
    It stays in the buffer for a geometrically distributed time, so that there is no bound to the other side.
    """
    if buffer < 2:
        return np.arange(length)
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64), counter=rank))
    buffer = min(buffer, length)
    slots = generator.integers(buffer, size=length - buffer)
    by_slot = np.argsort(slots, kind="stable")
    filled = np.full(len(slots), -1)  # the draw before it from the same slot: what was put there then, comes
    same = slots[by_slot][1:] == slots[by_slot][:-1]
    filled[by_slot[1:][same]] = by_slot[:-1][same]
    steady = np.where(filled >= 0, filled + buffer, slots)
    rest = np.setdiff1d(np.arange(length), steady, assume_unique=True)
    order: NDArray[np.int64] = np.concatenate([steady, generator.permutation(rest)])
    return order


def samples_in_order(
    streams: Streams, order: NDArray[np.int64], samples_per_file: int, draws: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Indices of the rank's samples as the accelerator gets them: file x samples_per_file + number in it."""
    starts = np.array([streams.start(stream) for stream in range(streams.count)])
    turn, stream = np.divmod(draws, streams.count)
    place, first = np.divmod(starts[stream] + turn, samples_per_file)
    indices: NDArray[np.int64] = order[place] * samples_per_file + first
    return indices


# ---- The order of an epoch and how ranks share it.
#
# Random access: the order depends on (seed, epoch) and never on the number of ranks: rank r takes batch
# number s x ranks + r of the order in its step s, so whatever the number of ranks, the samples of an epoch
# are the head of the same order, none twice. Sequential access: each rank has a stretch of the files'
# order (see emulator.plan.sequential). Either way only the tail that does not fill a step of all ranks is
# left out.


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
class RankPlan:
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
