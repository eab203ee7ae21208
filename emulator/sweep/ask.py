"""Answers "how many accelerators does this storage feed?" from an empty folder, within a given time.

Rank 0 decides, says what it decided, and measures: data for the smallest counts, a probe of a few seconds
that bounds where the knee can be, data for the counts around it, a sweep with the direct loader for the
storage's knee, and some counts with the torch loader for what trainings on these clients get.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from emulator import live
from emulator.analysis.knee import whole_accelerators
from emulator.analysis.search import KneeSearch
from emulator.config.recipe import load_recipe
from emulator.config.storage import ObjectURL, Place, StorageSpec
from emulator.config.workload import Workload
from emulator.dataset.manifest import Dataset, Manifest, open_dataset
from emulator.dataset.names import HIDDEN
from emulator.dataset.owned import LOCK, look, removable, remove
from emulator.dataset.plan import DatasetPlan
from emulator.dataset.writer import exclusive, folders_of
from emulator.errors import DatasetError, FeedrateError, SpecError
from emulator.record.out import RESULT, read_result
from emulator.record.result import Point, RunResult
from emulator.run.accelerator import MonotonicClock
from emulator.run.comm import Comm
from emulator.run.generate import Filling, generate
from emulator.run.job import TrainingJob, mismatch
from emulator.storage import open_store
from emulator.storage.base import Store
from emulator.storage.posix import aligned_buffer
from emulator.sweep.leader import Leader
from emulator.sweep.ranks import measure
from emulator.sweep.schedule import Adaptive, Schedule
from emulator.units import counted, show_bytes, show_rate, show_seconds

STORAGE, PYTORCH = "storage", "pytorch"
"""Folders of the results in OUT: with the direct loader, and with the torch loader."""
FOLDER = "feedrate-ask"
"""Folder of the dataset in the place that was asked about."""
POINT_SECONDS = 4.0
"""Seconds of compute in a point: short, so that some fit into minutes."""
PROBE_SECONDS = 2.0
_PROBE_THREADS = 16
_PROBE_BYTES = 4 << 20
_FIRST_RANKS = 2
"""Counts that the first data are for."""
_ROOM = 1.5
"""Counts are tried up to this many times what the probe's rate would feed."""
_GENERATING = 0.5
"""Share of the time left that writing more data may take."""
_SWEEPING = 0.6
"""Share of the time left, after that, for the storage's knee; the rest is for PyTorch's counts."""
_FREE = 0.9
"""Share of the free space that the data may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question of `feedrate ask`."""

    place: Place
    workload: Workload
    up_to: int
    """Accelerators that are of interest."""
    seconds: float
    """Time for all of it, start-up of the ranks not included."""
    storage: StorageSpec
    out: Path
    """Folder of the results `storage` and `pytorch`."""
    keep: bool
    """Keep the data that were made."""
    force: bool
    command: tuple[str, ...]
    """The command line that repeats it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of `feedrate ask`."""

    storage: RunResult
    """Sweep with the direct loader."""
    pytorch: RunResult | None
    """Counts with the torch loader; None: no PyTorch, or no time."""


def answer_in(out: Path) -> Answer:
    """The answer whose results are in the folder `out`. Raises StorageError, SpecError."""
    there = (out / PYTORCH / RESULT).is_file()
    return Answer(storage=read_result(out / STORAGE), pytorch=read_result(out / PYTORCH) if there else None)


def ask(question: Question, comm: Comm) -> None:
    """Make the results of the answer on rank 0, with the other ranks of `comm` in `sweep.ranks.follow`.

    Interrupted, the same call goes on with the data and the points that are there. Raises SpecError,
    DatasetError, StorageError; Quiet where a rank has said the error.
    """
    end = time.monotonic() + question.seconds
    where, recipe = _dataset_place(question), ""
    if where is question.place:
        dataset = open_dataset(where)
        if difference := mismatch(question.workload, dataset.manifest):
            raise SpecError(
                f"the dataset {where} is not the workload's: {difference}", "ask about an empty folder"
            )
        live.say(f"data: {_of(dataset.manifest)}, which is there")
    else:
        recipe = _recipe_of(question.workload)
        dataset = _grown(question, where, recipe, end)
    fits = dataset.manifest.samples // question.workload.loader.batch_size
    largest = min(comm.size, question.up_to, fits)
    if largest < 1:
        raise DatasetError(
            f"{where} has {dataset.manifest.samples} samples, fewer than a batch",
            "ask about an empty folder, or one with more samples",
        )
    if largest < question.up_to:
        why = "more ranks were not started" if largest == comm.size else "the data suffice for no more"
        live.say(f"counts: up to {largest}, since {why}")
    left = end - time.monotonic()
    storage = _storage_knee(question, where, largest, left * _SWEEPING, comm)
    if find_spec("torch") is None:
        live.say("PyTorch is not installed here: what trainings get is not measured")
    else:
        left = end - time.monotonic()
        _pytorch_counts(question, where, _fed(storage), left, comm)
    # After an error the data stay: the same command with the same --out goes on with them.
    if recipe and not question.keep:
        _removed(where)


# The data.


def _dataset_place(question: Question) -> Place:
    """The place itself where it is a dataset; else a folder of ours in it."""
    place = question.place
    try:
        open_dataset(place)
    except DatasetError:
        if isinstance(place, ObjectURL):
            return replace(place, prefix="/".join(filter(None, (place.prefix, FOLDER))))
        return place / FOLDER
    return place


def _recipe_of(workload: Workload) -> str:
    if not workload.sample.recipe:
        raise SpecError(
            f"the workload {workload.name} names no recipe for its data",
            "generate a dataset, and ask about its folder",
        )
    return workload.sample.recipe


def _grown(question: Question, where: Place, recipe: str, end: float) -> Dataset:
    """Data for few counts; then, by what writing and reading them showed, for as many as make sense."""
    workload, store = question.workload, open_store(where)
    batch, demand = workload.loader.batch_size, workload.demand
    files = max(_files(workload, min(_FIRST_RANKS, question.up_to)), _files_of_before(store))
    plan = DatasetPlan(recipe=load_recipe(recipe), seed=0, files=files)
    free = store.free()
    live.say(f"data: {counted(plan.files, 'file')} like {recipe}'s to begin with, in {where}")
    filled = generate(store, plan, Comm(), Filling())
    assert filled is not None
    dataset = open_dataset(store)
    read = probed(store, dataset.manifest)
    knee = read / demand
    live.say(f"probe: {show_rate(read)}, enough for {knee:.3g} at {show_rate(demand)} each")
    if question.storage.shaped_rate:
        knee = question.storage.shaped_rate / demand
    largest = min(question.up_to, max(_FIRST_RANKS, math.ceil(_ROOM * knee) + 1))
    files = _files(workload, largest)
    size = dataset.manifest.total / len(dataset.manifest.names)
    if filled.made.files:
        seconds = max(0.0, end - time.monotonic()) * _GENERATING
        in_time = len(dataset.manifest.names) + int(seconds * filled.made.bytes_per_second / size)
        if in_time < files:
            live.say(f"data: time allows for {in_time} files, {files} would be needed for {largest} ranks")
            files = in_time
    if free is not None and files * size > _FREE * free:
        files = int(_FREE * free / size)
        live.say(f"data: the free space allows for {files} files")
    if files > len(dataset.manifest.names):
        each = workload.sample.samples_per_file
        live.say(f"data: {files} files, {show_bytes(files * size)}, for up to {files * each // batch} ranks")
        generate(store, replace(plan, files=files), Comm(), Filling())
        dataset = open_dataset(store)
    return dataset


def _files_of_before(store: Store) -> int:
    """Files of the dataset that an interrupted call made, or was making; 0: there is none."""
    holding = look(store)
    made = len(holding.dataset.manifest.names) if holding.dataset else 0
    return max(made, holding.begun.files if holding.begun else 0)


def _files(workload: Workload, ranks: int) -> int:
    """Files that make a step of so many ranks."""
    samples = ranks * workload.loader.batch_size
    return max(2, math.ceil(samples / workload.sample.samples_per_file))


def _of(manifest: Manifest) -> str:
    return f"{counted(len(manifest.names), 'file')}, {show_bytes(manifest.total)}"


def probed(store: Store, manifest: Manifest) -> float:
    """Bytes/s of threads that read the dataset's files in large requests, past the page cache where possible.

    Raises StorageError.
    """
    storage = store.for_ranks(direct=store.takes_direct(), cache="cold")
    names = manifest.names
    done = [0] * _PROBE_THREADS
    failed: list[FeedrateError] = []
    end = time.monotonic() + PROBE_SECONDS

    def read(number: int) -> None:
        buffer, at = aligned_buffer(_PROBE_BYTES), number
        try:
            while time.monotonic() < end:
                with storage.open(names[at % len(names)]) as blob:
                    for offset in range(0, blob.size, _PROBE_BYTES):
                        done[number] += blob.read_into(offset, buffer)
                        if time.monotonic() > end:
                            return
                at += _PROBE_THREADS
        except FeedrateError as error:
            failed.append(error)

    begin = time.monotonic()
    threads = [threading.Thread(target=read, args=(number,)) for number in range(_PROBE_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return sum(done) / (time.monotonic() - begin)


def _removed(where: Place) -> None:
    """Remove the dataset that was made; what is not of it stays."""
    store = open_store(where)
    try:
        with exclusive(store):
            holding = look(store)
            found = removable(holding)
            for names, form in holding.claims():
                remove(holding, found, folders_of(names, form))
            store.delete([LOCK])
        store.clear([HIDDEN])
        if isinstance(where, Path):
            where.rmdir()
    except (FeedrateError, OSError) as error:
        live.say(f"note: data stay in {where}: {error}")
        return
    live.say(f"data: removed from {where}; --keep leaves them")


# The runs.


def _job(question: Question, where: Place, name: str, loader: str) -> TrainingJob:
    workload = question.workload
    # Points are shorter than an epoch's border takes: reading goes on over it.
    workload = replace(workload, access=replace(workload.access, refill="never"))
    # By the time for all of it, not by what is left: a call that goes on needs points of the same length.
    seconds = min(POINT_SECONDS, question.seconds / 12)
    step = max(1e-3, workload.accelerator.step_seconds)
    # As many batches may be read ahead; then AU says nothing, and the answer rests on throughput.
    steps = max(math.ceil(seconds / step), 4)
    return TrainingJob(
        kind="sweep", dataset=where, workload=workload, loader=loader, storage=question.storage,
        epochs=None, steps=steps, out=question.out / name, force=question.force, command=question.command,
        resume=not question.force and (question.out / name / RESULT).is_file(),
    )  # fmt: skip


def _storage_knee(question: Question, where: Place, largest: int, seconds: float, comm: Comm) -> RunResult:
    job = _job(question, where, STORAGE, "direct")
    search = KneeSearch(
        maximum=largest, threshold=job.workload.training.au_threshold, precision=0.05, max_runs=20
    )
    live.say(f"storage: up to {counted(largest, 'rank')} of the direct loader, {show_seconds(seconds)}")
    return _measured(job, Adaptive(search, MonotonicClock(), repeats=1, budget=seconds), comm)


def _pytorch_counts(question: Question, where: Place, most: int, seconds: float, comm: Comm) -> None:
    """Measure which count trainings on these clients are fed at, by halving, as far as time goes."""
    if seconds < POINT_SECONDS:
        live.say("PyTorch: no time is left to measure what trainings get")
        return
    job = _job(question, where, PYTORCH, "torch")
    live.say(f"PyTorch: up to {counted(most, 'rank')} of the torch loader, {show_seconds(seconds)}")
    _measured(job, Halving(most, job.workload.training.au_threshold, seconds), comm)


def _measured(job: TrainingJob, schedule: Schedule, comm: Comm) -> RunResult:
    leader = Leader(job, schedule)
    with live.telling(leader.now):
        result = measure(comm.bcast(job), comm, leader)
    assert result is not None  # this is rank 0
    leader.say_verdict()
    return result


class Halving:
    """A Schedule that looks for the largest count that is fed, between 0 and a count, within a time."""

    certain = False
    assumption = ""

    def __init__(self, most: int, threshold: float, seconds: float) -> None:
        self.largest, self._threshold, self._seconds = most, threshold, seconds
        self._begin = time.monotonic()

    def next_count(self, points: Sequence[Point]) -> int | None:
        """The largest count first, since that may be all; then the middle of what is open."""
        if not points:
            return self.largest
        fed, starved = fed_between(points, self._threshold)
        each = (self._seconds - self.seconds_left) / len(points)
        if starved - fed <= 1 or each > self.seconds_left:
            return None
        return (fed + starved) // 2

    def expected(self, points: Sequence[Point], limit: float) -> Sequence[int]:
        """The halvings that are left."""
        if not points:
            return (self.largest,)
        fed, starved = fed_between(points, self._threshold)
        return ((fed + starved) // 2,) * max(1, math.ceil(math.log2(max(2, starved - fed))))

    @property
    def seconds_left(self) -> float:
        return self._seconds - (time.monotonic() - self._begin)

    def outlook(self, points: Sequence[Point]) -> str:
        if not points:
            return "looking for the largest count that PyTorch feeds"
        fed, starved = fed_between(points, self._threshold)
        return f"PyTorch feeds {fed} or more, fewer than {starved}"

    def verdict(self, points: Sequence[Point]) -> str:
        return ""


def fed_between(points: Sequence[Point], threshold: float) -> tuple[int, int]:
    """The largest count that was fed, 0: none, and the smallest one above that was not."""
    fed = max((point.ranks for point in points if point.x_ideal >= threshold), default=0)
    above = [point.ranks for point in points if point.x_ideal < threshold and point.ranks > fed]
    return fed, min(above, default=fed + 1)


def _fed(result: RunResult) -> int:
    """The count that trainings are tried at first: as many as the storage feeds, or was seen to feed."""
    knee = result.knee
    if knee is not None and knee.kind == "knee" and knee.n_au:
        return max(1, whole_accelerators(knee.n_au))
    threshold = float(result.workload["training"]["au_threshold"])
    return max(1, fed_between(result.points, threshold)[0])
