"""The samples that each rank reads, their order and their steps, as pure arithmetic.

Random access: an epoch is a permutation of all samples that depends on (seed, epoch) and never on the number
of ranks. Rank r takes batch number s x ranks + r of it in its step s. So an epoch reads the same samples in
the same order for any number of ranks, each once, except for the tail.

Sequential access, as in tf.data: the files of an epoch are shuffled, and their samples, in file order, form
one sequence. It is divided evenly among the ranks, and each rank's stretch among its streams. The rank takes
one sample of each stream in turn into a shuffle buffer of B samples and draws the next sample from it. When
sample k is drawn (from 0), k + B samples have been read, or all of them: no read depends on the draws. With
fewer files than streams, ranks and streams begin within a file.

Both leave out only the tail that does not fill a step of all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.config.workload import AccessSpec, Refill, Workload
from emulator.errors import DatasetError
from emulator.units import counted

How = Literal["alone", "start", "on"]
"""The bytes that a read fetches.

alone: those of its samples. start and on: the whole blocks (or row groups) of a stream that begin within the
samples; at the start of the stream also the block that contains the first sample.
"""


class Read(NamedTuple):
    """Consecutive samples of one file."""

    file: int
    first: int = 0
    """Number of the first sample, within the file."""
    samples: int = 1
    how: How = "alone"


class Portion(NamedTuple):
    """The samples and reads of one rank's step."""

    samples: int
    """Samples for the accelerator."""
    reads: tuple[Read, ...]
    """Reads that these samples need in addition to those of earlier steps."""
    epoch: int = 0
    """The epoch that the step belongs to, from 0 on."""
    drawn: Any = None
    """Of a recorded job: the batch to play (`emulator.calls.Drawn`), instead of `reads`."""


class Recorded(Protocol):
    """Recorded batches on a dataset (`emulator.calls.Cast`)."""

    def portions(self, samples: int, rank: int, ranks: int, seed: int, epoch: int) -> Iterator[Portion]:
        """Yield the steps of `rank` in an epoch, without end, each of `samples` samples."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """The division of one epoch among ranks."""

    samples: int
    ranks: int
    batch_size: int
    """Samples per step of one rank."""
    samples_per_file: int = 1
    """File f has the samples from number f x samples_per_file on."""
    access: AccessSpec = field(default_factory=AccessSpec)
    refill: Refill = "epoch"
    """As of LoaderSpec."""
    recorded: Recorded | None = None
    """The recorded batches that are played, if the workload has any."""

    @property
    def steps(self) -> int:
        """Number of steps of every rank in an epoch."""
        return self.samples // (self.batch_size * self.ranks)

    @property
    def left_out(self) -> int:
        """Number of samples left over after the last full step of all ranks; no rank reads them."""
        return self.samples - self.steps * self.batch_size * self.ranks

    def require_a_step(self) -> None:
        """Raise DatasetError if the dataset is too small for a step."""
        if self.steps < 1:
            fits = self.samples // self.batch_size
            files = math.ceil(self.batch_size * self.ranks / self.samples_per_file)
            raise DatasetError(
                f"{counted(self.samples, 'sample')} {'is' if self.samples == 1 else 'are'} too few for "
                f"{counted(self.ranks, 'rank')} at batch size {self.batch_size}",
                f"feedrate generate --files {files} adds what is missing where feedrate made the files"
                + (f", or use at most {counted(fits, 'rank')}" if fits else ""),
            )


def plan_for(workload: Workload, samples: int, ranks: int, samples_per_file: int = 1) -> EpochPlan:
    """Return the plan of `ranks` ranks for an epoch of `workload` over `samples` samples."""
    return EpochPlan(
        samples=samples,
        ranks=ranks,
        batch_size=workload.loader.batch_size,
        samples_per_file=samples_per_file,
        access=workload.access,
        refill=workload.loader.refill,
    )


class EpochOrder:
    """A permutation of 0 ... samples - 1, of which any part can be computed alone.

    It is the same for the same (samples, seed, epoch) on every machine. A Feistel network permutes all
    numbers of as many bits; a result that is too large, at most every second one, is permuted again:
    cycle walking (Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002). The order of few samples
    is a table, because a network of few bits mixes badly.
    """

    def __init__(self, samples: int, seed: int, epoch: int) -> None:
        philox = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64))
        self._table = np.random.Generator(philox).permutation(samples) if samples <= MOST_IN_TABLE else None
        self._samples = np.uint64(samples)
        bits = samples.bit_length()
        self._widths = bits - bits // 2, bits // 2
        # NumPy guarantees the same raw words in all its versions.
        self._keys = philox.random_raw(_ROUNDS)

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers at these places of the order, in the same shape."""
        if self._table is not None:
            return self._table[places]
        numbers = self._permuted(places.astype(np.uint64).ravel())
        outside = np.flatnonzero(numbers >= self._samples)
        while len(outside):
            again = self._permuted(numbers[outside])
            numbers[outside] = again
            outside = outside[again >= self._samples]
        return numbers.astype(np.int64).reshape(places.shape)

    def _permuted(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        wide, narrow = self._widths
        left, right = numbers >> np.uint64(narrow), numbers & np.uint64((1 << narrow) - 1)
        for key in self._keys:
            # The replaced half has `wide` bits, because the halves swap in each round.
            left, right = right, left ^ (_mixed(right ^ key) >> np.uint64(64 - wide))
            wide, narrow = narrow, wide
        return (left << np.uint64(narrow)) | right


_ROUNDS = 8
"""Number of rounds; even, so that both halves end with their first width."""
MOST_IN_TABLE = 2**16
"""Most samples whose order is a table, which then has half a megabyte."""


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of 64-bit words: the finalizer of SplitMix64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


_AT_ONCE = 4096
"""Places of an order that are computed at once, in less than a millisecond and 100 kB."""


def batches(plan: EpochPlan, rank: int, seed: int, epoch: int) -> Iterator[tuple[int, ...]]:
    """Yield the batches of `rank` in an epoch of random access: tuples of `batch_size` sample indices."""
    size = plan.batch_size
    drawn = EpochOrder(plan.samples, seed, epoch)
    together = max(1, _AT_ONCE // size)
    for begin in range(0, plan.steps, together):
        steps = np.arange(begin, min(plan.steps, begin + together))
        places = (steps[:, None] * plan.ranks + rank) * size + np.arange(size)
        yield from map(tuple, drawn.at(places).tolist())


def portions(plan: EpochPlan, rank: int, seed: int, epoch: int) -> Iterator[Portion]:
    """Yield the steps of `rank` in `epoch` as reads of the storage."""
    if plan.recorded is not None:
        steps = plan.recorded.portions(plan.batch_size, rank, plan.ranks, seed, epoch)
        yield from islice(steps, plan.steps)
        return
    if plan.access.pattern == "random":
        for batch in batches(plan, rank, seed, epoch):
            reads = tuple([Read(*divmod(index, plan.samples_per_file)) for index in batch])
            yield Portion(len(batch), reads, epoch)
        return
    per_file = plan.samples_per_file
    order = EpochOrder(plan.samples // per_file, seed, epoch)
    streams = [
        _Stream(_in_order(order, start // per_file, plan.samples // per_file), start % per_file, per_file)
        for start in _stream_starts(plan, rank).tolist()
    ]
    for step in range(plan.steps):
        ahead = (step + 1) * plan.batch_size + max(plan.access.shuffle_buffer - 1, 0)
        needed = min(ahead, plan.steps * plan.batch_size)
        wanted: list[Read] = []
        for number, stream in enumerate(streams):  # every len(streams)-th sample belongs to it
            wanted += stream.read_to(max(0, -(-(needed - number) // len(streams))))
        yield Portion(plan.batch_size, tuple(wanted), epoch)


class _Stream:
    """A stream through `files` of `per_file` samples, from sample `first` of the first file on."""

    def __init__(self, files: Iterator[int], first: int, per_file: int) -> None:
        self._files = files
        self._file = next(files)
        self._first, self._per_file = first, per_file
        self._taken = 0

    def read_to(self, taken: int) -> Iterator[Read]:
        """Yield the reads until the stream has delivered `taken` samples."""
        how: How = "on" if self._taken else "start"
        left, self._taken = taken - self._taken, taken
        while left:
            if self._first == self._per_file:
                self._file, self._first = next(self._files), 0
            length = min(self._per_file - self._first, left)
            yield Read(self._file, self._first, length, how)
            self._first, left, how = self._first + length, left - length, "on"


def _in_order(order: EpochOrder, begin: int, end: int) -> Iterator[int]:
    """Yield the numbers at the places from `begin` to `end`."""
    for first in range(begin, end, _AHEAD):
        yield from order.at(np.arange(first, min(end, first + _AHEAD))).tolist()


_AHEAD = 64
"""Number of files of a stream whose places are computed at once."""


def _stream_starts(plan: EpochPlan, rank: int) -> NDArray[np.int64]:
    """Return the positions in the epoch's sequence at which the streams of `rank` begin."""
    stretch = plan.steps * plan.batch_size
    streams = max(1, min(plan.access.streams, stretch))
    lengths = -(-(stretch - np.arange(streams)) // streams)
    return rank * stretch + np.cumsum(lengths) - lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """The length of a training, given by epochs or steps, and the order in which each rank reads."""

    plan: EpochPlan
    seed: int
    epochs: int | None = None
    """Most epochs; None: as many as the steps need."""
    steps: int | None = None
    """Most steps over all epochs; None: whole epochs."""

    @property
    def length(self) -> int:
        """Number of steps of every rank over all epochs."""
        whole = None if self.epochs is None else self.plan.steps * self.epochs
        return min(bound for bound in (whole, self.steps) if bound is not None)

    def portions(self, rank: int) -> Iterator[Portion]:
        """Yield the steps of `rank` as reads of the storage, epoch after epoch without a gap."""
        endless = (portion for epoch in count() for portion in portions(self.plan, rank, self.seed, epoch))
        return islice(endless, self.length)

    def stretches(self, rank: int) -> Iterator[Iterator[Portion]]:
        """Yield the same steps, divided where the loader starts with nothing prefetched (`loader.refill`)."""
        steps = self.portions(rank)
        length = self.length if self.plan.refill == "never" else self.plan.steps
        for begin in range(0, self.length, length):
            yield islice(steps, min(length, self.length - begin))

    def place(self, number: int) -> tuple[int, int]:
        """Return the epoch, and the step within it, of a rank's step `number`, counted over all epochs."""
        return divmod(number, self.plan.steps)

    def ends_epoch(self, number: int) -> bool:
        """Return True if step `number` is the last one of its epoch, or of the training."""
        return (number + 1) % self.plan.steps == 0 or number + 1 == self.length
