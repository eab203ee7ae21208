"""Files one after the other, through streams and a shuffle buffer, as tf.data reads them.

The files of an epoch are put into an order; their samples, in file order, are one long sequence. Each
rank has a stretch of it, of the same length, and each stream of the rank a part of that stretch. The rank
takes a sample of each stream in turn into a buffer of B samples and draws the next one out of the buffer:
storage sees the streams, the accelerator the draws. When the k-th sample is drawn (from 0), k + B samples
have been read, or all of them. Ranks and streams begin within a file where there are fewer files
than streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.plan.reads import How, Portion, Read


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
