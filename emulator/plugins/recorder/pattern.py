"""Infer the layout of a job's samples in files, and its reads of a sample, by six rules.

The rules rely on the reads: the name of a sampler decides only if the reads do not.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, pstdev
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from emulator.config.workload import AccessSpec, Refill, SampleSpec
from emulator.dataset.formats.bytes import chunk_of
from emulator.errors import SpecError
from emulator.plugins.recorder.observation import Loader, Settings
from emulator.plugins.recorder.reads import Pieces, Reads, is_large
from emulator.storage.posix import padded
from emulator.units import BLOCK_BYTES, show_bytes

WHOLE = 0.95
"""Share of a file's bytes from which it counts as read whole."""
OWN_BYTES = 20e6
"""Most bytes that a worker process reads from PyTorch's libraries."""
_OWN_INDEX = 0.02
"""Share of the bytes that are indexes, from which it is reported."""
_MOST_PLACES = 2048
"""Most places of samples in a workload."""
_MOST_LAYOUTS = 64
"""Most samples whose places are in a workload."""
_MOST_BLOCK = 16 * 2**20
"""Largest request of a replay, in bytes."""
_MOST_OVERLAPS = 16
"""Most samples of a replay that share a byte. More, such as windows at each token, would read the same."""
_SIGMAS = 3.0
"""Standard deviations by which the backward moves of a random order may be fewer than expected."""
_IN_ORDER = 0.2
"""Most backward moves of sequential reads, as a share of those expected in random order."""
_FILLED = 1.05
"""Bytes of a batch at first, relative to later ones, above which the job filled a buffer."""
_SEVERAL = 1.5
"""Samples per file, or per run, from which it counts as having several."""
PAGE = 4096
"""Bytes of a page, the least of a mapped file that is read."""
_LATE = 1.2
"""Most bytes of mapped files in memory, per byte from storage, that the job itself has read."""
_TOUCHED = 0.8
"""Fewest bytes from storage, per byte of the samples, if a job reads mapped samples whole."""
_SIDE = 0.02
"""Side files, such as an index, are smaller than this share of the file that holds the median byte. Together
they hold at most this share of all bytes."""
_FEW_RUNS = 6
"""Fewest moves between runs of samples that show their order."""
_FEW_NEIGHBOURS = 6
"""Fewest expected neighbours among the samples read that show whether they lie side by side."""
_FEW_MOVES = 12
"""Fewest moves between samples of a file that show their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """The layout of samples in files, and the part of them that is read."""

    files: int
    samples_per_file: int
    files_per_sample: int
    sample_bytes: int
    """Mean bytes of a sample, which is a file or its share of one."""
    sample_sd: int
    sizes: tuple[int, ...]
    """Bytes of a sample in each file, or quantiles of them, as in Reads."""
    listed: bool
    """True if `sizes` has each recorded file."""
    access: AccessSpec
    block_bytes: int
    guessed: bool
    """True if files are mapped, and `sample_bytes` are the most that one can have."""
    told: tuple[str, ...]
    """Sentences on the job's reads, and on differences of the replay."""

    def sample(self) -> SampleSpec:
        """Return the workload's [sample]."""
        return SampleSpec(
            format="bytes",
            bytes_mean=self.sample_bytes,
            bytes_sd=self.sample_sd,
            samples_per_file=self.samples_per_file,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """The bytes that were read, in runs and requests."""

    total: float
    run: float
    """Typical bytes read without a gap."""
    request: float
    """Typical bytes of one request."""
    mapped: bool = False
    """True if files are mapped, so that reads are page faults."""
    guessed: bool = False
    """True if `run` is a guess, which replays can improve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The samples that the job requested."""

    samples: float
    """Approximate number of samples behind the reads."""
    different: float
    """Approximate number of distinct samples among them."""
    length: int
    """Samples of the dataset; 0 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The numbers of samples and files."""

    files: int
    samples_per_file: int
    files_per_sample: int
    whole: bool
    """True if each file is one sample and is read whole."""
    own: bool
    """True if each sample has its own files, however often it is drawn."""
    opens: int = 1
    """Times that a file of one sample is opened for it."""


def pattern_of(loader: Loader, alike: Sequence[Loader], of_map: int | None = None) -> Pattern:
    """Return the pattern of `loader`, which merges the ranks in `alike`.

    `of_map` are the bytes of a sample in mapped files, if replays have found them. Raises SpecError if the
    evidence is too thin.
    """
    loader, *alike = (without_side_files(one) for one in (loader, *alike))
    reads, amount = loader.reads, amount_of(loader, alike)
    demand = demand_of(loader, alike)
    order = order_of(loader, amount, demand)
    if of_map is not None:
        amount = replace(amount, run=of_map, request=of_map)
    of_sample = sample_bytes_read(loader, amount, demand)
    layout = layout_of(loader, alike, demand, amount, order, of_sample)
    each = of_sample / layout.files_per_sample
    mean_file = reads.files_bytes / reads.files
    times = each * layout.samples_per_file / mean_file
    per_file, several = layout.samples_per_file, layout.samples_per_file > 1
    again = times > 1 / WHOLE and not reads.sizes_only
    shared = again and several and order == "random"
    overlap = shared and not amount.mapped and mean_file > _SEVERAL * each
    dense = several and order == "random" and times < WHOLE and _side_by_side(loader, len(alike), demand)
    if overlap:
        per_file = min(per_file, round(_MOST_OVERLAPS * mean_file / each))
    elif shared or dense or (several and (of_map is not None or amount.guessed)):
        # Samples that lie side by side do so in the replay, too: the kernel reads ahead after a cached page.
        # Of others keep the bytes of a read, not the number of samples: a step reads as many as the job's.
        per_file = max(1, round(mean_file / each))
    run = run_samples(loader, amount, each) if several else 0
    if run:
        per_file = run * max(1, round(mean_file / amount.run))
    sample_bytes = max(1, round(mean_file / per_file))
    places: tuple[tuple[int, ...], ...] = ()
    if amount.mapped:
        places = () if several else kept_places(faults_of(reads))
    elif not layout.whole:
        places = places_of(reads, demand.samples, per_file)
    if places and (overlap or not several):
        each = fmean(sum(one[1::2]) for one in places)
    read = each if overlap else min(each, sample_bytes)
    access, block = access_of(loader, amount, layout, read, sample_bytes, places, order, run)
    sizes = tuple(max(1, round(size / per_file)) for size in reads.sizes)
    held = dataset_files(loader, alike, layout, demand)
    facts = _access_words(loader, access, layout, per_file, sample_bytes)
    if not amount.mapped:
        facts += _order_words(loader, demand, order, per_file)
    if layout.files_per_sample > 1:
        facts.append(
            f"a sample is read from {layout.files_per_sample} files, each of which is one of the replay; "
            "results say the job's samples/s"
        )
    if shared:
        facts.append(
            f"samples share bytes: the job reads {show_bytes(each)} for one, {times:.3g} times its share "
            f"of the file, and so does the replay, which has {per_file} samples in a file, not "
            f"{layout.samples_per_file}"
            if per_file != layout.samples_per_file
            else f"samples share bytes, {times:.3g} times the share of the file that each has"
        )
    elif dense:
        facts.append(
            f"the job reads {times:.0%} of its files, whose samples lie side by side: the replay reads all "
            f"of them, and has {per_file} samples in a file, not {layout.samples_per_file}"
        )
    elif layout.opens > 1 and not (layout.whole or amount.mapped):
        facts.append(
            f"the job opens a file {layout.opens} times for a sample, the replay once: where storage answers "
            "late, the replay waits for fewer requests"
        )
    facts += _dataset_words(loader, layout, demand, held, len(alike))
    facts += _left_out(loader, amount, access, each, of_map is not None)
    return Pattern(
        files=held,
        samples_per_file=per_file,
        files_per_sample=layout.files_per_sample,
        sample_bytes=sample_bytes,
        sample_sd=round(pstdev(sizes)),
        sizes=sizes,
        listed=len(sizes) == reads.files,
        access=access,
        block_bytes=block,
        guessed=amount.guessed and of_map is None and not places,
        told=tuple(facts),
    )


def _side_by_side(loader: Loader, ranks: int, demand: Demand) -> bool:
    """Return True if the samples of a file that is not read whole lie side by side, without gaps.

    Then the next one has also been read as often as any other: that many neighbours are expected.
    """
    runs = _large(loader.reads.runs)
    expected = runs * runs / ranks / max(1, demand.length)
    return expected >= _FEW_NEIGHBOURS and loader.reads.adjacent > expected / 2


def _left_out(loader: Loader, amount: Amount, access: AccessSpec, each: float, found: bool) -> list[str]:
    """Return sentences on reads of the job that the replay changes or leaves out."""
    reads, facts, filled = loader.reads, [], _fill(loader)
    if amount.mapped and access.places:
        before = f"reads {show_bytes(access.head_bytes)} of each, " if access.head_bytes else ""
        facts.append(
            f"files are mapped into memory: {reads.faults} page faults brought {show_bytes(amount.total)}; "
            f"the replay {before}maps them, too, and touches the pages that faulted"
        )
    elif amount.mapped:
        if found:
            why = "for which storage delivers as much"
        else:
            why = "the most that it can have" if amount.guessed else "its share of them"
        facts.append(
            f"files are mapped into memory: {reads.faults} page faults brought {show_bytes(amount.total)}; "
            f"the replay maps them, too, and reads {show_bytes(each)} for a sample, {why}"
        )
    if filled > 1:
        facts.append(
            f"at first the job read {filled:.3g} times the bytes of a batch, into a buffer; the replay does "
            "not"
        )
    if reads.index_bytes > _OWN_INDEX * reads.bytes:
        facts.append(
            f"{reads.index_bytes / reads.bytes:.0%} of the bytes are indexes or footers, read again and "
            "again: the page cache has them, and the replay leaves them out"
        )
    return facts


def without_side_files(loader: Loader) -> Loader:
    """Return `loader` without small files that have no samples, such as an index, beside files of many."""
    reads = loader.reads
    if not reads.files or len(reads.sizes) != reads.files:
        return loader
    if min(loader.asked_samples, loader.settings.length or math.inf) < _SEVERAL * reads.files:
        return loader
    sizes = reads.sizes[side_files(reads.sizes) :]
    return replace(loader, reads=replace(reads, files=len(sizes), files_bytes=sum(sizes), sizes=sizes))


def side_files(sizes: Sequence[int]) -> int:
    """Return how many of these ascending sizes are those of side files, without samples."""
    so_far = np.cumsum(sizes)
    typical = sizes[int(np.searchsorted(so_far, so_far[-1] / 2))]
    return int(np.count_nonzero((np.array(sizes) < _SIDE * typical) & (so_far <= _SIDE * so_far[-1])))


def amount_of(loader: Loader, alike: Sequence[Loader]) -> Amount:
    """Rule 1: the bytes read, in runs and requests.

    Needs traced reads, opened files that are read whole, or page faults that waited for storage; otherwise
    raises SpecError.
    """
    reads, settings = loader.reads, loader.settings
    if not loader.share_read:
        raise SpecError(
            "tracing had ended when the DataLoader that reads most began",
            "raise --traced-steps above the number of steps before it",
        )
    if not reads.files and reads.sizes_only and (reads.call_bytes or 0) > OWN_BYTES * settings.workers:
        raise SpecError(
            f"a library that opens files itself, as HDF5 does, read {show_bytes(reads.call_bytes or 0)}",
            "apt install strace, which sees such reads",
        )
    if not reads.files or not (reads.bytes or reads.mapped):
        raise SpecError(
            "the DataLoader read no data file",
            "it may make its samples, or read them from memory or a network",
        )
    mapped = _mapped(reads)
    unseen = not mapped and reads.bytes < 0.1 * reads.mapped
    if reads.mapped and (unseen or _resident(loader) > 0.5):
        raise SpecError(
            f"files of {show_bytes(reads.files_bytes)} are mapped into memory and were in the page cache: "
            "reads of them cannot be seen",
            "record while their pages are not in the page cache",
        )
    if mapped:
        shares = [_share_of_a_map(one) for one in alike]  # each rank maps the same files
        guessed = None in shares
        each = _most_of_a_map(loader) if guessed else fmean(filter(None, shares))
        return Amount(total=reads.storage_bytes or 0, run=each, request=each, mapped=True, guessed=guessed)
    if reads.sizes_only:
        visit = max(1.0, reads.visit_size / max(1, reads.visits))
        return Amount(total=reads.visit_size, run=visit, request=visit)
    run, request = reads.runs.typical(), reads.requests.typical()
    if _read_at_first(loader, request):
        raise SpecError(
            f"the job read {show_bytes(reads.bytes)} into memory at first, and nothing in its later steps",
            "record it with more data",
        )
    return Amount(total=reads.bytes - reads.index_bytes, run=run, request=request)


def _mapped(reads: Reads) -> bool:
    """Return True if most bytes came by page faults in mapped files."""
    return reads.mapped > 0 and (reads.storage_bytes or 0) > 2 * reads.bytes


def _resident(loader: Loader) -> float:
    """Return the share of mapped files that was in memory before the job read them.

    A file that is mapped for one sample has been read when its pages are examined: what storage delivered
    was not in memory before.
    """
    reads = loader.reads
    for_one = reads.files > loader.asked_samples / 2
    late = reads.resident * reads.files_bytes <= _LATE * (reads.storage_bytes or 0)
    return 0.0 if for_one and late else reads.resident


def _share_of_a_map(loader: Loader) -> float | None:
    """Return the bytes of a sample in mapped files: its share of them; None if it may have less or more.

    Page faults do not show which bytes were wanted, because the kernel reads around them.
    """
    reads, length = loader.reads, loader.settings.length
    share = reads.files_bytes / reads.files * min(1.0, _files_held(loader) / max(1, length))
    wanted = min(reads.files_bytes, share * loader.asked_samples) * (1 - _resident(loader))
    if not length or share < PAGE or (reads.storage_bytes or 0) < _TOUCHED * wanted:
        return None
    return share


def _most_of_a_map(loader: Loader) -> float:
    """Return the most bytes that a sample in mapped files has: those that storage delivered for one."""
    return max(PAGE, (loader.reads.storage_bytes or 0) / max(1.0, loader.asked_samples))


def _files_held(loader: Loader) -> float:
    """Return the approximate number of files of the dataset, from the recorded files and the drawn share."""
    files, length = loader.reads.files, max(1, loader.settings.length)
    drawn = min(1.0, max(1.0, loader.asked_samples) / length)
    if loader.settings.sampler == "SequentialSampler":
        return max(files, (files - 1) / drawn)  # the last file may have been read in part
    least, most = float(files), float(max(files, length))
    for _ in range(50):  # of `held` files, those with a drawn sample are recorded
        held = (least + most) / 2
        if held * (1 - (1 - drawn) ** (length / held)) < files:
            least = held
        else:
            most = held
    return least


def demand_of(loader: Loader, alike: Sequence[Loader]) -> Demand:
    """Rule 2: the samples behind the reads.

    Needs batches with a first dimension, or a batch size. Each rank draws its own samples, so different ones
    are summed over ranks.
    """
    length = loader.settings.length
    different = max(1.0, sum(min(one.asked_samples, length or math.inf) for one in alike))
    filled = _fill(loader)
    return Demand(samples=filled * loader.asked_samples, different=filled * different, length=length)


def sample_bytes_read(loader: Loader, amount: Amount, demand: Demand) -> float:
    """Rule 3: the bytes read for one sample.

    Needs the amount and the samples. It is unknown how much of the unfinished batches at the end was read, so
    the result is between two bounds; a whole number of runs is preferred.
    """
    if amount.mapped:
        return amount.run
    least = amount.total / max(1.0, demand.samples)
    most = amount.total / max(1.0, demand.samples / loader.ahead)
    if _fill(loader) > 1:
        return least  # as in later batches, of which each was delivered
    # Other runs are nodes of an index; a run of them per sample would cause read-ahead in the replay.
    runs = math.ceil(WHOLE * least / amount.run) if amount.run else 0
    fits = runs and runs * amount.run <= 1.02 * most
    return runs * amount.run if fits else (least + most) / 2


def _fill(loader: Loader) -> float:
    """Return the samples read per delivered sample, above 1 while a buffer of samples filled."""
    reads, later = loader.reads, loader.batch_call_bytes
    if not (_reads_ahead(loader) and later and loader.asked_batches):
        return 1.0
    filled = (reads.bytes - reads.index_bytes) / loader.asked_batches / later
    return filled if filled > _FILLED else 1.0


def _read_at_first(loader: Loader, request: float) -> bool:
    """Return True if less than a `request` was read after tracing, not ten times as much or more."""
    later, steps = loader.batch_call_bytes, loader.steps - loader.seen_steps
    if not (_reads_ahead(loader) and later is not None and loader.asked_batches):
        return False
    return steps * later < request < steps * loader.reads.bytes / loader.asked_batches / 10


def _reads_ahead(loader: Loader) -> bool:
    """Return True if it is visible in bytes of calls, but not in batches, how far the job reads ahead."""
    reads, settings = loader.reads, loader.settings
    ahead = settings.iterable or (settings.marked and settings.workers)
    return bool(ahead) and not (reads.sizes_only or _mapped(reads))


Order = Literal["sequential", "random", "partly"]


def order_of(loader: Loader, amount: Amount, demand: Demand) -> Order:
    """Rule 4: the order in which samples of a file are read.

    Needs the offsets of large reads in files of several samples. In random order every second move from one
    sample to the next in the same file goes backward; in order, only those at the end of an epoch. With too
    few moves the sampler's class decides.
    """
    reads, moves = loader.reads, loader.moves(demand.samples)
    expected = moves / 2
    named: Order = "sequential" if loader.settings.sampler in ("SequentialSampler", "iterable") else "random"
    if amount.mapped:
        # In order, the kernel reads only wanted bytes; at random, also as many around each page fault.
        return named if amount.total < 2 * amount.run * demand.different else "random"
    if reads.sizes_only or moves < _FEW_MOVES:
        return named
    if reads.backward > expected - _SIGMAS * math.sqrt(moves) / 2:
        return "random"
    return "sequential" if reads.backward <= _IN_ORDER * expected else "partly"


def layout_of(
    loader: Loader, alike: Sequence[Loader], demand: Demand, amount: Amount, order: Order, of_sample: float
) -> Layout:
    """Rule 5: samples per file, or files per sample.

    Needs the numbers of files and of different samples, and the bytes read for a sample. Some samplers draw
    the same sample again; then visits that read a whole file distinguish files of one sample from files of
    many.
    """
    reads, settings, different = loader.reads, loader.settings, demand.different
    files = reads.files
    whole = _read_whole(reads)
    own = whole and not reads.sizes_only and reads.visits > 0.9 * demand.samples / loader.ahead
    own &= settings.sampler in ("iterable", "custom", "WeightedRandomSampler") or files > 0.5 * different
    one = different / files < _SEVERAL
    if one or own:
        together = max(1, round(files / different if one else reads.visits / demand.samples))
        opens = max(1, round(_opens_of(loader, together)))
        whole = whole or _read_whole(reads, opens)
        return Layout(
            files=files, samples_per_file=1, files_per_sample=together, whole=whole, own=own, opens=opens
        )
    if not settings.iterable:  # ranks draw samples from the same files
        files = max(one.reads.files for one in alike)
    per_file = max(2, round((demand.length or demand.samples) / files))
    if (
        order != "random" and not amount.mapped and different < 0.99 * (demand.length or math.inf)
    ):  # further files were not seen
        per_file = max(2, round(reads.files_bytes / reads.files / of_sample))
        files = round(demand.length / per_file) or files
    return Layout(files=files, samples_per_file=per_file, files_per_sample=1, whole=False, own=own)


def _read_whole(reads: Reads, opens: int = 1) -> bool:
    """Return True if the last of `opens` visits of a file reads all of it, and the others its head."""
    if _mapped(reads):
        return False
    of_heads = (1 - 1 / opens) * reads.visits * fmean(heads) if (heads := _heads(reads)) else 0.0
    return reads.visit_bytes - of_heads >= WHOLE * reads.visit_size / opens


def _heads(reads: Reads) -> list[int]:
    """Return the bytes of reads from the start of a file that another open of it read further."""
    parts = _parts(np.array(reads.trail, np.int64).reshape(-1, 3))
    return [size for part in parts for size in sorted(part[part[:, 0] == 0, 1].tolist())[:-1]]


def _parts(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Divide rows of (first byte, bytes, 1 if it begins a part) into parts, of (first byte, bytes)."""
    return np.split(rows[:, :2], np.flatnonzero(rows[1:, 2]) + 1)


def run_samples(loader: Loader, amount: Amount, each: float) -> int:
    """Return the samples of a run, if samples are read together in runs at random places; otherwise 0."""
    moves = _large(loader.reads.runs) - loader.reads.followed_files
    random = moves >= _FEW_RUNS and loader.reads.backward > _IN_ORDER * moves / 2
    return round(amount.run / each) if random and _long_runs(loader, amount, each) else 0


def _long_runs(loader: Loader, amount: Amount, each: float) -> bool:
    """Return True if several samples are read together without a gap."""
    return amount.run > _SEVERAL * each and not amount.mapped and not loader.reads.sizes_only


def places_of(reads: Reads, samples: float, per_file: int) -> tuple[tuple[int, ...], ...]:
    """Return where some samples are read, as in AccessSpec.places; empty if a sample is read in one place.

    A file of one sample is one part of the trail. In files of many, moves from one place to the next of a
    sample are shorter than those to another sample; their headers are in the page cache.
    """
    if not reads.trail:
        return ()
    trail = np.array(reads.trail)
    large = is_large(trail[:, 1], reads.runs.typical())
    followed = _of_samples(trail, large)
    share = reads.large_runs / max(1, int(large.sum())) * reads.bytes / max(1, reads.followed_bytes)
    runs = share * len(followed)
    if runs < _SEVERAL * samples:
        return ()
    if per_file == 1 and reads.visits < _SEVERAL * reads.files:
        parts = [_once(part) for part in _parts(trail)]
    else:
        begin, size, first = followed.T
        moves = np.where(first[1:] == 1, math.inf, abs(begin[1:] - begin[:-1] - size[:-1]))
        inside = round((1 - samples / runs) * len(begin))
        longest = np.sort(np.append(moves, math.inf))[max(0, inside - 1)]
        parts = np.split(np.column_stack([begin, size]), np.flatnonzero(moves > longest) + 1)
        parts = [part - (part[:, 0].min(), 0) for part in parts]
    return kept_places(parts)


def _of_samples(trail: NDArray[np.int64], large: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the large runs of the trail, and small ones that touch the large one before or after them.

    SQLite reads the last page of a row first.
    """
    begin, size, first = trail.T
    end, together = begin + size, first[1:] == 0
    touch = together & ((begin[1:] == end[:-1]) | (begin[:-1] == end[1:]))
    beside = np.append(touch & large[1:], False) | np.append(False, touch & large[:-1])
    of_samples: NDArray[np.int64] = trail[large | beside]
    return of_samples


def kept_places(parts: Sequence[NDArray[np.int64]]) -> tuple[tuple[int, ...], ...]:
    """Return some of these parts, with their sizes, as in AccessSpec.places. A row is (first byte, bytes)."""
    if not parts:
        return ()
    by_bytes = sorted(parts, key=lambda part: int(part[:, 1].sum()))
    kept = max(1, min(_MOST_LAYOUTS, len(parts), _MOST_PLACES * len(parts) // sum(map(len, parts))))
    chosen = [by_bytes[int((number + 0.5) * len(parts) / kept)] for number in range(kept)]
    found = tuple(tuple(part.ravel().tolist()) for part in chosen)
    return found if len(set(found)) > 1 else found[:1]


def faults_of(reads: Reads) -> list[NDArray[np.int64]]:
    """Return the pages of the faults in each map that was made for a sample, in order."""
    if not reads.faulted:
        return []
    begin, first = np.array(reads.faulted).T
    return _parts(np.column_stack([begin, np.full(len(begin), PAGE), first]))


def _once(runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the runs without small ones in pages where one began before: the page cache has those."""
    _, first = np.unique(runs[:, 0] // PAGE, return_index=True)
    return runs[np.sort(np.union1d(first, np.flatnonzero(runs[:, 1] > PAGE)))]


def access_of(
    loader: Loader,
    amount: Amount,
    layout: Layout,
    each: float,
    sample_bytes: int,
    places: tuple[tuple[int, ...], ...],
    order: Order,
    run: int,
) -> tuple[AccessSpec, int]:
    """Rule 6: the part of a sample that is read, the order, and the size of requests (the block).

    Needs the bytes read for a sample, their places and requests, `run_samples`, and the kernel's read-ahead.
    """
    reads = loader.reads
    several = layout.samples_per_file > 1
    sequential = several and (order != "random" or _long_runs(loader, amount, each))
    direct = reads.direct > reads.bytes / 2
    request, bytes_read = amount.request, 0
    if not (layout.whole or sequential or reads.sizes_only):
        if places or not WHOLE <= each / sample_bytes <= 1:
            bytes_read = round(each)
        if places and WHOLE <= chunk_of(places) / request <= 1 / WHOLE:
            request = chunk_of(places)  # without a header that lies before it
        elif _several_requests(reads):
            request = min(request, (each - _small(reads.requests)) // BLOCK_BYTES * BLOCK_BYTES)
        elif request / each >= WHOLE:
            request = max(request, bytes_read or sample_bytes)  # a share of a header is no second request
    head = opens = 0
    if layout.whole and not reads.sizes_only:
        first = padded(math.ceil(reads.heads.typical()))
        if _large(reads.requests) < _SEVERAL * reads.visits:  # one for each file, besides its header
            request = max(reads.sizes)
        headed = reads.requests.count >= _SEVERAL * reads.visits
        head = first if headed and first < request else 0
        if layout.opens > 1 and (heads := _heads(reads)):
            opens, head = layout.opens, padded(round(median(heads)))
    if several and not (sequential or amount.mapped) and _opens_of(loader, 1) > WHOLE:
        opens = 1
    if amount.mapped and places and reads.visits >= WHOLE * loader.asked_samples / loader.ahead:
        head = padded(math.ceil(reads.heads.typical()))  # before the file is mapped
    wanted = max(request, reads.readahead if reads.sizes_only else 0)
    tailed = head and reads.tails > WHOLE * reads.visits
    access = AccessSpec(
        pattern="sequential" if sequential else "random",
        replacement=not sequential and _replaced(loader.settings, amount),
        streams=max(1, loader.settings.workers) if sequential else 1,
        run_samples=run,
        bytes_read=bytes_read,
        places=places if bytes_read else (),
        head_bytes=head,
        tail_bytes=round(reads.tail_bytes / reads.tails) if tailed else 0,
        buffered=not (amount.mapped or direct or reads.sizes_only),
        mapped=amount.mapped,
        map_random=amount.mapped and reads.map_random,
        advised=not (amount.mapped or direct) and reads.advised > reads.bytes / 2,
        opens=opens,
        refill=_refill(loader.settings),
    )
    return access, min(_MOST_BLOCK, max(1, math.ceil(wanted / BLOCK_BYTES)) * BLOCK_BYTES)


def _replaced(settings: Settings, amount: Amount) -> bool:
    """Return True if each sample is drawn from all of them, by a sampler or as a window anywhere in a map."""
    return settings.replacement or (amount.mapped and not settings.length)


def _refill(settings: Settings) -> Refill:
    """Return how reading ahead begins anew at an epoch's border. Without a DataLoader it goes on."""
    if settings.marked:
        return "never"
    return "persistent" if settings.persistent_workers else "epoch"


def _several_requests(reads: Reads) -> bool:
    """Return True if a part is read in several requests, one after the other: Python's buffer does that."""
    parts = _large(reads.runs)
    return reads.requests.count - (reads.runs.count - parts) >= _SEVERAL * parts


def _headers(pieces: Pieces) -> int:
    """Return the number of bins with headers: pieces less than half as long as the typical one."""
    return bisect_left(pieces.upper, pieces.typical() / 2)


def _large(pieces: Pieces) -> int:
    """Return the number of pieces that are no headers."""
    return sum(pieces.counts[_headers(pieces) :])


def _small(pieces: Pieces) -> float:
    """Return the mean bytes of the headers; a block without them."""
    bins = _headers(pieces)
    return sum(pieces.bytes[:bins]) / sum(pieces.counts[:bins]) if bins else BLOCK_BYTES


def dataset_files(loader: Loader, alike: Sequence[Loader], layout: Layout, demand: Demand) -> int:
    """Return the files of the whole dataset: the recorded ones, or more because of the dataset's length."""
    if not demand.length or layout.samples_per_file > 1:
        return layout.files
    # It is unknown how many files of the unfinished batches at the end were opened.
    least = sum(min(one.asked_samples / one.ahead, demand.length) for one in alike)
    files = loader.reads.files
    if layout.own or least <= files / layout.files_per_sample <= demand.different:
        return demand.length * layout.files_per_sample
    return round(demand.length * files / demand.different)


def _opens_of(loader: Loader, files_per_sample: float) -> float:
    """Return how often each file of a sample is opened and read for that sample."""
    return loader.reads.visits / max(1.0, files_per_sample * _fill(loader) * loader.asked_samples)


def _access_words(
    loader: Loader, access: AccessSpec, layout: Layout, per_file: int, sample_bytes: int
) -> list[str]:
    reads, facts = loader.reads, []
    if layout.whole:
        end = ", their ends before the rest" if access.tail_bytes else ""
        if access.opens > 1:
            end += f", after {access.opens - 1} opens that read {show_bytes(access.head_bytes)}"
        facts.append(f"files are read whole, one a sample{end}")
    elif access.run_samples:
        run = show_bytes(access.run_samples * sample_bytes)
        facts.append(f"runs of {access.run_samples} samples, {run}, are read at random places of their file")
    elif access.pattern == "sequential":
        facts.append(f"files of about {per_file} samples are read from start to end")
    elif not reads.sizes_only:
        part = "all of a sample is read"
        if access.bytes_read > sample_bytes:
            part = f"{show_bytes(access.bytes_read)} is read for a sample"
        elif 0 < access.bytes_read < WHOLE * sample_bytes:
            part = f"{show_bytes(access.bytes_read)} of a sample's {show_bytes(sample_bytes)} is read"
        where = f"file of {per_file} samples, at random" if per_file > 1 else "file"
        where += ", which is opened for it" if access.opens else ""
        within = "1 place"
        if access.places:
            reach = fmean(max(map(sum, zip(one[::2], one[1::2], strict=True))) for one in access.places)
            count = fmean(len(one) / 2 for one in access.places)
            within = f"{count:.3g} {'pages' if access.mapped else 'places'} within {show_bytes(reach)}"
        part = "page faults of a sample are" if access.mapped and access.places else f"{part},"
        facts.append(f"{part} in {within} of its {where}")
    if reads.sizes_only and not layout.whole:
        facts.append("only opened files were seen, not which bytes of them: the replay reads all of them")
    if access.map_random:
        facts.append("the job tells the kernel that it reads its maps at random (MADV_RANDOM)")
    if access.advised:
        facts.append("the job tells the kernel what it reads (posix_fadvise)")
    if reads.direct > reads.bytes / 2:
        facts.append(
            "the job reads with O_DIRECT, as --loader direct does; --loader torch uses the page cache"
        )
    return facts


def _order_words(loader: Loader, demand: Demand, order: Order, per_file: int) -> list[str]:
    """Return sentences on a recorded order that differs from that of the sampler's class."""
    moves = loader.moves(demand.samples)
    if per_file == 1 or loader.reads.sizes_only or moves < _FEW_MOVES:
        return []
    went = f"{loader.reads.backward} of about {moves:.0f} moves within a file go back"
    if order == "partly":
        return [f"samples are read neither in order nor at random ({went}); the replay reads them in order"]
    named = {"SequentialSampler": "sequential", "RandomSampler": "random"}
    if named.get(loader.settings.sampler, order) != order:
        said = "at random" if order == "random" else "in order"
        return [f"sampler {loader.settings.sampler}, but samples are read {said} ({went})"]
    return []


def _dataset_words(loader: Loader, layout: Layout, demand: Demand, held: int, ranks: int) -> list[str]:
    if loader.settings.iterable:
        return [
            f"the dataset has no length: the recipe has the {layout.files} files that were read; generate "
            "--files N makes more"
        ]
    missing = demand.length and demand.different < 0.99 * demand.length * ranks
    if missing and layout.samples_per_file == 1:
        return [
            f"{loader.reads.files} files were seen; the recipe has {held}, for all samples of the dataset"
        ]
    return []
