"""Turn a job's calls into the batches of calls.parquet, and estimate how many files its dataset has."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.calls import ANY, CALL, DRAWN, END, FIXED, MAP, MOVED, NEXT, OPEN, READ, Calls
from emulator.errors import SpecError
from emulator.plugins.recorder.log import BATCH_BEGINS, BATCH_ENDS, Event, File
from emulator.units import BLOCK_BYTES

MOST_ROWS = 50_000
"""Most rows of calls.parquet, unless a batch of each worker has more."""
MOST_SIZES = 200_000
"""Most sizes of files that are kept."""
_SEVERAL = 3
"""Visits of a file in an epoch, from which it has many samples, if each visit reads less than half of it."""


@dataclass(slots=True)
class TracedBatch:
    """One batch that a worker made."""

    begin: float
    end: float
    events: list[Event]

    @property
    def maps(self) -> list[Event]:
        return [event for event in self.events if event.op == MAP]


Batches = Sequence[tuple[int, TracedBatch]]
"""Batches with the workers that made them, numbered over all ranks."""


def batches_in(events: Sequence[Event], loader: int) -> list[TracedBatch]:
    """Divide the events of a worker into its batches. What lies between two belongs to the later one.

    A process without workers may have other loaders than the one with that number: theirs are left out.
    """
    batches, waiting, begin = list[TracedBatch](), list[Event](), None
    for event in sorted(events, key=lambda event: event.start):
        if event.op == BATCH_BEGINS:
            begin = event.start
        elif event.op == BATCH_ENDS:
            if begin is not None and event.bytes == loader:
                batches.append(TracedBatch(begin, event.start, waiting))
            waiting, begin = [], None
        else:
            waiting.append(event)
    return batches


class _Call(NamedTuple):
    """A call of a batch."""

    batch: int
    worker: int
    event: Event
    fixed: bool = False
    """True if it reads an index."""


@dataclass(slots=True)
class _Visit:
    """The calls to a file from its open on, or to a sample of it."""

    file: int
    calls: list[_Call] = field(default_factory=list)
    place: int = NEXT

    @property
    def reads(self) -> list[_Call]:
        return [call for call in self.calls if call.event.op == READ]


@dataclass(slots=True)
class Group:
    """The files of one kind: those whose names end alike."""

    visits: list[_Visit] = field(default_factory=list)
    files: float = 0
    """Estimated number of files."""
    visits_per_epoch: float = 0
    """0: unknown."""
    shared: bool = False
    """True for files of many samples."""

    @property
    def seen(self) -> set[int]:
        return {visit.file for visit in self.visits}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The batches of calls.parquet, and the files of the dataset."""

    rows: NDArray[np.void]
    sizes: tuple[int, ...]
    """Sizes of all files, ascending; of more than MOST_SIZES, evenly spread ones."""
    files: int
    """Number of files of the dataset."""
    seen: int
    """Files that were read."""
    guessed: bool
    """True if it is unknown how many files there are beyond those that were read."""
    mapped: bool
    """True if files are mapped, so that reads are page faults, and their places a guess."""

    @property
    def batch_bytes(self) -> float:
        """Bytes that a batch reads, mean."""
        return float(Calls(self.rows).bytes_of().mean())


def recorded(
    ranks: Sequence[Sequence[Sequence[TracedBatch]]],
    files: Sequence[File],
    *,
    batch_size: int,
    length: int,
    replacement: bool,
    cpu_seconds: float,
) -> Recorded:
    """Return the recording of the batches that each worker of each rank has made.

    `batch_size` are the samples of a batch, `length` those of the dataset (0: unknown), `cpu_seconds` what a
    batch costs. Raises SpecError if the reads are unknown.
    """
    batches, skipped = _delivered(ranks)
    if not batches:
        raise SpecError("no batch was made while its reads were traced", "raise --traced-steps")
    mapped = {event.file for made in chain(*ranks) for batch in made for event in batch.maps}
    maps = _mapped(batches, [files[number] for number in sorted(mapped)], batch_size, length)
    groups = grouped(visits_of(batches), files)
    if not groups and not maps:
        raise SpecError(
            "the DataLoader read no data file: it may make its samples, or read them from memory or a network"
        )
    per_epoch = length / batch_size
    first = 0.0 if replacement else max(0.0, per_epoch - skipped)
    size_up(groups, files, len(batches), per_epoch, min(first, len(batches)))
    place(groups, replacement)
    groups += maps
    counts = [max(1, round(group.files)) for group in groups]
    return Recorded(
        rows=rows_of(groups, files, batches, cpu_seconds),
        sizes=_sizes(groups, files, counts),
        files=sum(counts),
        seen=sum(len(group.seen) for group in groups),
        guessed=not length,
        mapped=bool(mapped),
    )


def shared_files(ranks: Sequence[Sequence[Sequence[TracedBatch]]]) -> bool:
    """Return True if a rank read a file that another one read."""
    files = [{event.file for batch in chain(*workers) for event in batch.events} for workers in ranks]
    return len(set[int]().union(*files)) < sum(map(len, files))


def _delivered(ranks: Sequence[Sequence[Sequence[TracedBatch]]]) -> tuple[Batches, int]:
    """Return the batches to keep, rank by rank, in the order of their delivery, and how many are left out."""
    batches, skipped = list[tuple[int, TracedBatch]](), 0
    for rank, workers in enumerate(ranks):
        turns = min(map(len, workers), default=0)
        first = 1 if turns >= 5 else 0  # the first batches also fill shuffle buffers
        skipped += first * len(workers)
        for turn in range(first, turns):
            batches += [(rank * len(workers) + worker, made[turn]) for worker, made in enumerate(workers)]
    calls = sum(len(batch.events) for _, batch in batches)
    if calls <= MOST_ROWS:
        return batches, skipped
    workers_of_rank = len(ranks[0])
    turns = len(batches) * MOST_ROWS // calls // workers_of_rank
    return batches[: max(1, turns) * workers_of_rank], skipped


def _sizes(groups: Sequence[Group], files: Sequence[File], counts: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of all files, `counts` of each group: of those not read, like those that were."""
    every = max(1, -(-sum(counts) // MOST_SIZES))
    sizes = []
    for group, count in zip(groups, counts, strict=True):
        known = np.sort([files[number].bytes for number in group.seen])
        places = (np.arange(0, count, every) + 0.5) / count * len(known)
        sizes += known[np.minimum(places.astype(np.int64), len(known) - 1)].tolist()
    return tuple(sorted(sizes))


def _mapped(batches: Batches, mapped: Sequence[File], batch_size: int, length: int) -> list[Group]:
    """Return the reads of files that stay `mapped`: each sample its share of their bytes, in random order.

    A file that is mapped for a sample stays among the events, as read whole. Raises SpecError where the share
    is unknown.
    """
    if 2 * sum(len(batch.maps) for _, batch in batches) >= batch_size * len(batches):
        return []
    read = 0
    for _, batch in batches:
        batch.events = [event for event in batch.events if event.op != MAP]
        read += sum(event.bytes for event in batch.events if event.op == READ)
    if 5 * read >= sum(file.bytes for file in mapped):
        return []  # an index
    if not length:
        raise SpecError(
            "the job maps its files, and no length of a dataset tells how many of their bytes a sample has",
            "give the dataset a __len__, or read with read(2): numpy.fromfile instead of numpy.memmap",
        )
    visits = list(_shares(batches, mapped, batch_size, length))
    return [Group(visits=visits, files=len(mapped), visits_per_epoch=length, shared=True)]


def _shares(batches: Batches, mapped: Sequence[File], batch_size: int, length: int) -> Iterator[_Visit]:
    """Yield the visits of the samples of each batch, as far apart in time as the batch is long."""
    ends = np.cumsum([file.bytes for file in mapped])
    share = max(1, int(ends[-1]) // length)
    order = np.random.default_rng(0).permutation(length)
    for number, (worker, batch) in enumerate(batches):
        for sample in range(batch_size):
            begin = int(order[(number * batch_size + sample) % length]) * share
            which = int(np.searchsorted(ends, begin, "right"))
            file = mapped[which]
            offset = max(0, min(begin - int(ends[which]) + file.bytes, file.bytes - share))
            when = batch.begin + (batch.end - batch.begin) * (sample + 1) / (batch_size + 1)
            event = Event(MAP, 0, file.number, offset, share, when, when)
            yield _Visit(file.number, [_Call(number, worker, event)], MOVED)


def visits_of(batches: Batches) -> list[_Visit]:
    """Divide the calls of all batches into visits.

    A visit goes on in later batches of its worker, until the file is opened again.
    """
    visits: list[_Visit] = []
    current: dict[tuple[int, int], _Visit] = {}
    for number, (worker, batch) in enumerate(batches):
        for event in batch.events:
            visit = current.get((worker, event.file))
            if visit is None or (event.op == OPEN and visit.calls[-1].batch != number):
                visit = current[worker, event.file] = _Visit(event.file)
                visits.append(visit)
            visit.calls.append(_Call(number, worker, event))
    return visits


def grouped(visits: Sequence[_Visit], files: Sequence[File]) -> list[Group]:
    """Return the groups of files whose names end alike, without those that were opened and not read."""
    groups: dict[bytes, Group] = defaultdict(Group)
    for visit in visits:
        if any(call.event.op in (READ, MAP) for call in visit.calls):
            _, _, ending = files[visit.file].path.rpartition(b"/")[2].rpartition(b".")
            groups[ending].visits.append(visit)
    return list(groups.values())


def estimated_files(visits: int, distinct: int, per_epoch: float, first: float) -> float:
    """Return how many files a dataset has, of which `visits` found `distinct`.

    The `first` of them, at most `per_epoch` (0: unknown), are to another file each, the others to any file.
    Not more than `per_epoch`; `distinct` if all found another file and `per_epoch` is not known.
    """
    if distinct == visits:
        return per_epoch or distinct
    share = first / per_epoch if per_epoch else 0.0

    def expected(files: float) -> float:
        others = max(0.0, visits / files - share)
        return files * (1 - (1 - share) * math.exp(-others))

    low, high = float(distinct), per_epoch or 1e12
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if expected(middle) < distinct else (low, middle)
    return low


def size_up(
    groups: Sequence[Group], files: Sequence[File], batches: int, per_epoch: float, first: float
) -> None:
    """Estimate the files of each group, find those with many samples, and divide their visits by sample.

    `per_epoch`: batches of an epoch; 0: unknown. `first`: those of the `batches` in which no sample repeats.
    """
    for group in groups:
        _count(group, batches, per_epoch, first)
        if _streamed(group.visits):  # its samples lie one behind the other, and no index leads to them
            continue
        index = _Index(group.visits, files)
        samples = Group([sample for visit in group.visits for sample in _by_sample(visit, index)])
        _count(samples, batches, per_epoch, first)
        shares = []
        for sample in samples.visits:
            read = sum(call.event.bytes for call in sample.reads)
            shares.append(read / files[sample.file].bytes)
        visits_of_file = len(samples.visits) / len(group.seen)
        if per_epoch:
            visits_of_file = samples.visits_per_epoch / samples.files
        if median(shares) < 0.5 and visits_of_file >= _SEVERAL:
            group.visits, group.files, group.shared = samples.visits, samples.files, True


def _count(group: Group, batches: int, per_epoch: float, first: float) -> None:
    """Set the numbers of a group's visits in an epoch, and of its files."""
    of_batch = len(group.visits) / batches
    group.visits_per_epoch = of_batch * per_epoch
    group.files = estimated_files(
        len(group.visits), len(group.seen), group.visits_per_epoch, of_batch * first
    )


def _streamed(visits: Sequence[_Visit]) -> bool:
    """Return True if most calls are of visits that go on in later batches and read their file in order."""
    total = sum(len(visit.calls) for visit in visits)
    return 2 * sum(len(visit.calls) for visit in visits if _in_order(visit)) > total


def _in_order(visit: _Visit) -> bool:
    """Return True if a visit goes on in later batches, and hardly ever goes back in its file."""
    offsets = [call.event.offset for call in visit.reads]
    onward = sum(later >= before for before, later in pairwise(offsets))
    goes_on = visit.calls[0].batch != visit.calls[-1].batch
    return goes_on and onward >= 0.9 * (len(offsets) - 1)


class _Index:
    """Where visits read again and again: headers, footers, nodes of an index."""

    def __init__(self, visits: Sequence[_Visit], files: Sequence[File]) -> None:
        self._files = files
        self._pages: Counter[tuple[int, int]] = Counter()
        self._ends: Counter[tuple[bool, int]] = Counter()
        for visit in visits:
            once_a_batch = {(call.batch, call.event.offset) for call in visit.reads}
            offsets = [offset for _, offset in once_a_batch]
            self._pages.update((visit.file, offset // BLOCK_BYTES) for offset in offsets)
            self._ends.update({end for offset in offsets for end in self._from_ends(visit.file, offset)})
        # Pages of samples are read about equally often. A page that is read far more often has an index.
        self._often = max(4.0, 3 * median([*self._pages.values(), 0]))
        # A short read at a place that was read before is of a node, not of a sample.
        self._small = median([*(call.event.bytes for visit in visits for call in visit.reads), 0]) / 4
        # Headers and footers lie equally far from the starts, or the ends, of many files.
        several = len({visit.file for visit in visits}) > _SEVERAL
        self._most = len(visits) / 5 if several else math.inf

    def _from_ends(self, file: int, offset: int) -> tuple[tuple[bool, int], tuple[bool, int]]:
        return (True, offset // BLOCK_BYTES), (False, (self._files[file].bytes - offset) // BLOCK_BYTES)

    def has(self, event: Event) -> bool:
        """Return True if the call is to an index, or to the whole file."""
        if event.bytes >= self._files[event.file].bytes:
            return True
        times = self._pages[event.file, event.offset // BLOCK_BYTES]
        if times >= self._often or (times > 1 and event.bytes <= self._small):
            return True
        return any(self._ends[end] > self._most for end in self._from_ends(event.file, event.offset))


def _by_sample(visit: _Visit, index: _Index) -> Iterator[_Visit]:
    """Divide a visit where it reads another sample, or in another batch. An index belongs to what follows."""
    sample, of_index, low, high = _Visit(visit.file), list[_Call](), 0, 0
    for call in visit.calls:
        event = call.event
        if event.op == OPEN or index.has(event):
            of_index.append(call._replace(fixed=True))
            continue
        near = low - 2**16 <= event.offset <= high + 2**16
        if sample.calls and not (near and sample.calls[-1].batch == call.batch):
            yield sample
            sample = _Visit(visit.file)
        if not sample.calls:
            low = high = event.offset
        sample.calls += [*of_index, call]
        of_index.clear()
        low, high = min(low, event.offset), max(high, event.offset + event.bytes)
    sample.calls += of_index
    if sample.calls:
        yield sample


def place(groups: Sequence[Group], replacement: bool) -> None:
    """Decide where each visit goes. `replacement`: the sampler draws each sample from all of them."""
    draw = np.random.default_rng(0)
    for group in groups:
        # An epoch visits each file once. Further visits are to any file, as mosaics and mixup draw them.
        again = group.visits_per_epoch > 1.25 * group.files
        first = group.files / group.visits_per_epoch if again else 1.0
        for visit in group.visits:
            if group.shared:
                visit.place = DRAWN if replacement else MOVED
            elif replacement or draw.random() >= first:
                visit.place = ANY


def rows_of(
    groups: Sequence[Group], files: Sequence[File], batches: Batches, cpu_seconds: float
) -> NDArray[np.void]:
    """Return the rows of calls.parquet, with `cpu_seconds` of CPU time in the mean batch."""
    calls: list[tuple[_Call, _Visit | None]] = []
    for group in groups:
        calls += [(call, visit) for visit in group.visits for call in visit.calls]
    for number, (worker, batch) in enumerate(batches):
        end = Event(END, 0, -1, 0, 0, batch.end, batch.end)
        calls.append((_Call(number, worker, end), None))
    # Batch by batch, each in the order of its calls' starts. Its end comes last.
    calls.sort(key=lambda item: (item[0].batch, item[1] is None, item[0].event.start))
    threads = _threads([call for call, _ in calls])
    several = any(len(of_batch) > 1 for of_batch in threads.values())
    gaps = _gaps([call for call, _ in calls], batches, cpu_seconds, several)
    visits: dict[int, int] = {}
    names: dict[int, int] = {}
    rows = []
    for ((of_batch, _, event, fixed), visit), gap in zip(calls, gaps, strict=True):
        if visit is None:
            rows.append((of_batch, -1, -1, 0, 0, END, NEXT, 0, 0, gap))
            continue
        number = visits.setdefault(id(visit), len(visits))
        name = names.setdefault(event.file, len(names))
        thread, where = threads[of_batch].get(event.thread, 0), FIXED if fixed else visit.place
        size = files[event.file].bytes
        rows.append((of_batch, number, name, size, thread, event.op, where, event.offset, event.bytes, gap))
    return np.array(rows, CALL)


def _threads(calls: Sequence[_Call]) -> dict[int, dict[int, int]]:
    """Return numbers for the threads of each batch; those of a worker that seldom read have none."""
    reads: dict[int, Counter[int]] = defaultdict(Counter)
    for call in calls:
        reads[call.worker][call.event.thread] += call.event.op == READ
    most = {worker: max(of_worker.values()) for worker, of_worker in reads.items()}
    numbers: dict[int, dict[int, int]] = defaultdict(dict)
    for batch, worker, event, _ in calls:
        if 4 * reads[worker][event.thread] > most[worker]:
            numbers[batch].setdefault(event.thread, len(numbers[batch]))
    return numbers


def _gaps(calls: Sequence[_Call], batches: Batches, cpu_seconds: float, several: bool) -> NDArray[np.float64]:
    """Return the CPU time before each call, in microseconds: `cpu_seconds` a batch, as the clock divides it.

    Tracing adds about as much to each gap, which the shortest tenth of them show. With `several` threads,
    the first call of each counts as made at once.
    """
    latest: dict[int, float] = {}  # thread -> end of its latest call for the batch
    seconds, batch = [], -1
    for number, _, event, _ in calls:
        if number != batch:
            latest, batch = {}, number
        begin = batches[number][1].begin
        if event.op == END:
            since = max([begin, *latest.values()])
        else:
            since = latest.get(event.thread, event.start if several else begin)
        seconds.append(max(0.0, event.start - since))
        latest[event.thread] = event.end
    gaps = np.array(seconds)
    gaps = np.maximum(0, gaps - np.quantile(gaps, 0.1))
    scaled: NDArray[np.float64] = gaps * (1e6 * cpu_seconds * len(batches) / max(gaps.sum(), 1e-9))
    return scaled
