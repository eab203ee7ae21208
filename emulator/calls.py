"""Recorded calls of a job, and which file and place each of them gets in a dataset that is replayed.

A recording is a list of batches, and a batch a list of calls. Calls form visits: those to a file from its
open to its last read, or to one sample in a file of many. A replay plays the batches in their order, again
and again, and gives each visit a file, and in a file of many samples a place, of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.errors import SpecError
from emulator.order import EpochOrder, Portion
from emulator.record.rows import read_rows
from emulator.units import BLOCK_BYTES

CALL = np.dtype(
    [
        ("batch", "<i4"),
        ("visit", "<i4"),  # number over all batches; -1 at a batch's end
        ("file", "<i4"),  # number by first use
        ("file_bytes", "<i8"),
        ("thread", "<i2"),  # 0, or of threads that read at the same time 0, 1, ...
        ("op", "<i1"),  # OPEN ...
        ("place", "<i1"),  # NEXT ...
        ("offset", "<i8"),
        ("bytes", "<i8"),
        ("cpu_gap_us", "<f4"),  # CPU time of its thread since its previous call, or since the batch began
    ]
)
"""A row of calls.parquet."""

OPEN, READ, ADVISE, MAP, END = range(5)
"""What is called. MAP reads pages of a map; END: the batch is made."""
NEXT, ANY, MOVED, DRAWN, FIXED = range(5)
"""Where a visit goes. NEXT: the next file of the epoch's order; ANY: any file. In a file of many samples,
MOVED: a sample that no other visit of the epoch gets; DRAWN: any place; FIXED: the same place (an index)."""


class Placed(NamedTuple):
    """The file and place that a visit gets."""

    visit: int
    file: int
    """Number in the dataset."""
    shift: int
    """Bytes to add to the offsets of its calls that are not FIXED."""
    anew: bool
    """True for the first use of the file in an epoch: a cold cache has nothing of it."""


class Drawn(NamedTuple):
    """A recorded batch to play."""

    batch: int
    visits: tuple[Placed, ...]


@dataclass(frozen=True)
class Calls:
    """The recorded batches of a job."""

    rows: NDArray[np.void]
    """Rows of dtype CALL, batch by batch, in the order of their start."""
    path: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        rows = self.rows
        steps = np.diff(rows["batch"])
        if not len(rows) or rows["batch"][0] or ((steps != 0) & (steps != 1)).any():
            raise SpecError(f"{self.path or 'the calls'}: batches must be numbered 0, 1, ... in order")
        if (rows["offset"] < 0).any() or (rows["bytes"] < 0).any() or not (rows["cpu_gap_us"] >= 0).all():
            raise SpecError(f"{self.path or 'the calls'}: negative offsets, bytes or gaps")
        if (rows["op"] > END).any() or (rows["place"] > FIXED).any() or (rows["op"] < 0).any():
            raise SpecError(f"{self.path or 'the calls'}: op or place is out of range")

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """The first row of each batch, and the number of all rows."""
        first: NDArray[np.intp] = np.flatnonzero(np.diff(self.rows["batch"], prepend=-1))
        return np.append(first, len(self.rows))

    @property
    def batches(self) -> int:
        """Number of recorded batches."""
        return len(self.starts) - 1

    @property
    def threads(self) -> int:
        """Number of threads that read at the same time for a batch."""
        return int(self.rows["thread"].max()) + 1

    def bytes_of(self) -> NDArray[np.int64]:
        """Return the bytes that each batch reads."""
        reads = self.rows[np.isin(self.rows["op"], (READ, MAP))]
        return np.bincount(reads["batch"], reads["bytes"], self.batches).astype(np.int64)

    def batch(self, number: int) -> NDArray[np.void]:
        """Return the calls of a batch."""
        return self.rows[self.starts[number] : self.starts[number + 1]]


def read_calls(path: Path) -> Calls:
    """Read calls.parquet. Raises SpecError, StorageError."""
    return Calls(read_rows(path, CALL), str(path))


def size_class(sizes: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Return the size classes of files: four for each power of two."""
    classes: NDArray[np.int64] = np.floor(4 * np.log2(np.maximum(sizes, 1))).astype(np.int64)
    return classes


class _Files:
    """The files of a dataset that take the place of the recorded files of one size class."""

    def __init__(self, members: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        self.members = members
        self.sizes = sizes[members]
        self.ends = np.cumsum(self.sizes)


class Cast:
    """The recorded visits on a dataset: what does not change from epoch to epoch."""

    def __init__(self, calls: Calls, sizes: NDArray[np.int64], batches: int, lanes: int) -> None:
        """`sizes` are those of the dataset's files, `batches` the batches of an epoch, of all ranks.

        `lanes` are the workers that take turns: each of them goes on with the files that it has open.
        """
        self.calls, self.lanes, self.dataset_files = calls, lanes, len(sizes)
        rows = calls.rows[calls.rows["visit"] >= 0]
        order = np.argsort(rows["visit"], kind="stable")
        rows = rows[order]
        numbers, first = np.unique(rows["visit"], return_index=True)
        ends = np.append(first, len(rows))[1:]
        self.visits = dict(zip(numbers.tolist(), range(len(numbers)), strict=True))
        self.kind = np.minimum.reduceat(
            rows["place"], first
        )  # of a visit that also reads an index: not FIXED
        self.last = rows["batch"][ends - 1]
        self.begun = rows["batch"][first]
        self.recorded_file = rows["file"][first]
        self.classes = size_class(rows["file_bytes"][first])
        have = size_class(sizes)
        known = np.unique(have)
        self.files: dict[int, _Files] = {}
        for wanted in np.unique(self.classes).tolist():
            nearest = known[np.argmin(abs(known - wanted))]
            self.files[wanted] = _Files(np.flatnonzero(have == nearest), sizes)
        self.laps = max(1, round(batches / calls.batches))
        """Laps over the recording in an epoch, each of which reads other samples of a file."""
        self.low, self.span = _extents(rows, first)
        self.bucket, self.slot = np.zeros(len(numbers)), np.zeros(len(numbers))
        for wanted, files in self.files.items():
            self._divide((self.classes == wanted) & np.isin(self.kind, (MOVED, DRAWN)), files)
        self.of_batch: list[list[int]] = [[] for _ in range(calls.batches)]
        for number, batch in np.unique(np.column_stack([rows["visit"], rows["batch"]]), axis=0).tolist():
            self.of_batch[batch].append(number)

    def _divide(self, mine: NDArray[np.bool_], files: _Files) -> None:
        """Divide files of many samples among their visits, each as long as what it reads, in file order.

        A visit's part has a slot for each lap.
        """
        which = np.flatnonzero(mine)
        if not len(which):
            return
        which = which[np.lexsort((self.low[which], self.recorded_file[which]))]
        widths = np.maximum(self.span[which], 1) / np.maximum(self.span[which], 1).sum() * files.ends[-1]
        self.bucket[which] = np.cumsum(widths) - widths
        self.slot[which] = widths / self.laps

    def moved(self, at: int, slot: float) -> tuple[int, int]:
        """Return the file of visit `at` and the shift of its offsets, in that slot of its part."""
        files = self.files[int(self.classes[at])]
        place = self.bucket[at] + slot * self.slot[at]
        number = min(int(np.searchsorted(files.ends, place, "right")), len(files.members) - 1)
        size = int(files.sizes[number])
        begin = int(place - (files.ends[number] - size))
        low, span = int(self.low[at]), int(self.span[at])
        begin = max(0, min(begin, size - span))
        # By whole pages, so that as many are read: libraries align what they write.
        half = BLOCK_BYTES // 2
        begin += (low - begin + half) % BLOCK_BYTES - half
        if begin + span > size:
            begin -= BLOCK_BYTES
        if begin < 0:
            begin += BLOCK_BYTES
        return int(files.members[number]), begin - low

    def portions(self, samples: int, rank: int, ranks: int, seed: int, epoch: int) -> Iterator[Portion]:
        """Yield the steps of `rank` in an epoch, without end: recorded batches, each of so many `samples`.

        Ranks begin at different batches, at multiples of the workers that take turns.
        """
        batches = self.calls.batches
        begin = rank * batches // ranks // self.lanes * self.lanes
        order = _Order(self, rank, ranks, seed, epoch)
        for number in count(begin):
            lap, batch = divmod(number, batches)
            if batch == 0:
                order.begin_lap()
            visits = tuple(order.place(visit, lap * ranks + rank) for visit in self.of_batch[batch])
            yield Portion(samples, (), epoch, Drawn(batch, visits))


def _extents(rows: NDArray[np.void], first: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first byte that each visit reads, without its index, and the bytes to its last."""
    free = (rows["place"] != FIXED) & (rows["op"] != OPEN)
    low = np.where(free, rows["offset"], np.iinfo(np.int64).max)
    high = np.where(free, rows["offset"] + rows["bytes"], 0)
    lows, highs = np.minimum.reduceat(low, first), np.maximum.reduceat(high, first)
    known = highs > 0
    return np.where(known, lows, 0), np.where(known, highs - lows, 0)


class _Order:
    """Gives visits their files, in the order of one rank's epoch."""

    def __init__(self, cast: Cast, rank: int, ranks: int, seed: int, epoch: int) -> None:
        self._cast = cast
        self._seed, self._epoch, self._rank, self._ranks = seed, epoch, rank, ranks
        philox = np.random.Philox(key=np.array([seed, epoch], np.uint64), counter=[0, 0, 0, rank + 1])
        self._random = np.random.Generator(philox)
        self._next = {number: self._files_in_order(files) for number, files in cast.files.items()}
        self._placed: dict[int, Placed] = {}  # visits that go on in later batches
        self._used = np.zeros(cast.dataset_files, np.bool_)

    def begin_lap(self) -> None:
        """Forget the files of the lap before."""
        self._placed.clear()

    def place(self, visit: int, lap: int) -> Placed:
        """Return the file and place of a visit."""
        if (known := self._placed.get(visit)) is not None:
            return known
        cast = self._cast
        at = cast.visits[visit]
        kind, files = cast.kind[at], cast.files[int(cast.classes[at])]
        shift = 0
        if kind == NEXT:
            file = next(self._next[int(cast.classes[at])])
        elif kind == ANY:
            file = int(files.members[self._random.integers(len(files.members))])
        elif kind == MOVED:
            file, shift = cast.moved(at, (lap + at) % cast.laps)
        elif kind == DRAWN:
            file, shift = cast.moved(at, cast.laps * self._random.random())
        else:
            file = int(files.members[cast.recorded_file[at] % len(files.members)])
        placed = Placed(visit, file, shift, anew=not self._used[file])
        self._used[file] = True
        if cast.last[at] > cast.begun[at]:
            self._placed[visit] = placed._replace(anew=False)
        return placed

    def _files_in_order(self, files: _Files) -> Iterator[int]:
        """Yield the files of this rank: every so many of a permutation, and then of another one."""
        total = len(files.members)
        for lap in count():
            order = EpochOrder(total, self._seed, self._epoch + (lap << 32))
            first = (self._rank - lap * total) % self._ranks
            for begin in range(first, total, 256 * self._ranks):
                places = np.arange(begin, min(total, begin + 256 * self._ranks), self._ranks)
                yield from files.members[order.at(places)].tolist()
