"""Answer "how many accelerators does this storage feed?" from an empty folder, within a given time.

Rank 0 decides, prints its decisions, and measures: a sweep with the direct loader for the storage's knee, and
some counts with the torch loader for trainings on these clients.
"""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from emulator import live
from emulator.analysis.gate import knee_of, threshold_of
from emulator.analysis.knee import whole_accelerators
from emulator.analysis.search import KneeSearch
from emulator.config.storage import Place
from emulator.config.workload import Workload
from emulator.dataset.manifest import Dataset, open_dataset
from emulator.errors import DatasetError, SpecError, storage_errors
from emulator.launch.comm import Comm
from emulator.loader import buffer_bytes, shared_bytes
from emulator.record.machine import free_memory_bytes
from emulator.record.out import RESULT, read_result, write_result
from emulator.record.result import RunResult
from emulator.run.accelerator import MonotonicClock
from emulator.run.job import TrainingJob, mismatch
from emulator.sweep.adaptive import Adaptive
from emulator.sweep.asked_data import (
    LEAST_STEPS,
    Data,
    Probed,
    Question,
    place_of_data,
    probe,
    recipe_of,
    remove_data,
)
from emulator.sweep.leader import Leader
from emulator.sweep.ranks import measure
from emulator.sweep.schedule import Halving, Schedule, fed_between
from emulator.units import counted, show_bytes, show_rate, show_seconds

STORAGE, PYTORCH = "storage", "pytorch"
"""Folders of the results in OUT: with the direct loader, and with the torch loader."""
POINT_SECONDS = 4.0
"""Seconds of compute in a point: short, so that several fit into minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What `feedrate ask` measured."""

    storage: RunResult
    """Sweep with the direct loader."""
    pytorch: RunResult | None
    """Counts with the torch loader; None without PyTorch, or without time for it."""


def storage_is_known(out: Path) -> bool:
    """Return True if the storage's knee was measured in the folder `out`. Raises StorageError, SpecError."""
    return (out / STORAGE / RESULT).is_file() and read_result(out / STORAGE).status == "complete"


def measured_in(out: Path) -> Measured:
    """Return what was measured in the folder `out`. Raises StorageError, SpecError."""
    pytorch = read_result(out / PYTORCH) if (out / PYTORCH / RESULT).is_file() else None
    return Measured(
        storage=read_result(out / STORAGE), pytorch=pytorch if pytorch and pytorch.points else None
    )


def ask(question: Question, comm: Comm, begin: float) -> None:
    """Measure the answer on rank 0, with the other ranks of `comm` in `sweep.ranks.follow`.

    The time of the question runs from `begin`, in seconds of time.monotonic: the start of the ranks is in it.
    After an interruption, the same call continues with the existing data and points. Raises SpecError,
    DatasetError, StorageError; Quiet if a rank has reported the error.
    """
    end = begin + question.seconds
    with storage_errors(f"cannot create the folder {question.out}"):  # before gigabytes are generated
        question.out.mkdir(parents=True, exist_ok=True)
    where = place_of_data(question.place)
    data = None if where is question.place else Data(where, recipe_of(question.workload), question)
    probed = probe(data.dataset if data else _existing_dataset(where, question), question)
    trains = find_spec("torch") is not None
    share = 0.6 if trains else 1.0  # of the time; the rest is for PyTorch
    question, storage = _storage_with_enough_data(question, where, data, probed, end, share, comm)
    write_result(question.out / STORAGE, as_asked(storage, question, None))
    if trains:
        trained = _pytorch_counts(question, where, storage, probed, end - time.monotonic(), comm)
        write_result(question.out / STORAGE, as_asked(storage, question, trained))
    else:
        live.say("PyTorch is not installed here: trainings are not measured")
    # After an error the data stay: the same command with the same --out continues with them.
    if data and not question.keep:
        remove_data(where)


def as_asked(storage: RunResult, question: Question, trained: RunResult | None) -> RunResult:
    """Return the storage's result with what `ask` knows beyond it, so that its page gives the same answer.

    That is what was asked about, and what trainings were fed: the storage feeds it, too.
    """
    asked = {"place": str(question.place), "up_to": question.up_to}
    result = replace(storage, environment={**storage.environment, "asked": asked})
    knee = knee_of(storage)
    fed, _ = fed_between(trained.points if trained else (), threshold_of(storage))
    if knee.kind == "knee" or fed <= (knee.fed or 0):
        return result
    starved = knee.starved if knee.starved and knee.starved > fed else None
    kind = "not-identifiable" if knee.kind == "below" else knee.kind
    return replace(result, knee=replace(knee, kind=kind, fed=fed, starved=starved))


def _storage_with_enough_data(
    question: Question, where: Place, data: Data | None, probed: Probed, end: float, share: float, comm: Comm
) -> tuple[Question, RunResult]:
    """Search for the storage's knee, with more data as long as all counts are fed. `data` is None if given.

    A search takes at most `share` of the time left until `end`. Returns the question with `force` set if the
    results of earlier, fewer data have to be replaced.
    """
    ranks = probed.ranks
    if data and (question.force or not (question.out / STORAGE / RESULT).is_file()):
        data.grow(ranks, end)
    while True:
        question = replace(question, force=question.force or _of_other_data(question.out, where))
        largest = _largest(question, where, comm)
        left = max(0.0, end - time.monotonic())  # making the data may have taken longer than it should
        seconds = left * share
        storage = _storage_knee(question, where, largest, probed, seconds, comm)
        fed, _ = fed_between(storage.points, question.workload.training.au_threshold)
        known = fed < largest or largest == min(comm.size, question.up_to)
        ranks *= 2  # one process, the probe, got less than the storage can deliver
        if known or data is None or not data.grow(ranks, end):
            return question, storage


def _existing_dataset(where: Place, question: Question) -> Dataset:
    """Return the dataset of the question. Raises SpecError if it does not fit the workload."""
    dataset = open_dataset(where)
    if difference := mismatch(question.workload, dataset.manifest):
        raise SpecError(
            f"the dataset {where} does not fit the workload: {difference}", "ask about an empty folder"
        )
    size = f"{counted(len(dataset.manifest.names), 'file')}, {show_bytes(dataset.manifest.total)}"
    live.say(f"data: the existing dataset, {size}")
    return dataset


def _of_other_data(out: Path, where: Place) -> bool:
    """Return True if an interrupted call left results of fewer data."""
    result = out / STORAGE
    files = len(open_dataset(where).manifest.names)
    return (result / RESULT).is_file() and read_result(result).dataset["files"] != files


def _largest(question: Question, where: Place, comm: Comm) -> int:
    """Return the largest count that there are ranks and data for. Raises DatasetError."""
    samples = open_dataset(where).manifest.samples
    largest = min(comm.size, question.up_to, samples // question.workload.loader.batch_size)
    if largest < 1:
        raise DatasetError(
            f"{where} has {samples} samples, fewer than a batch",
            "ask about an empty folder, or one with more samples",
        )
    if largest < question.up_to:
        why = "no more ranks were started" if largest == comm.size else "the data suffice for no more"
        live.say(f"counts: up to {largest}, because {why}")
    return largest


def _job(question: Question, where: Place, name: str, loader: str, rate: float) -> TrainingJob:
    """Return the job of a sweep whose slowest rank reads at `rate` bytes/s."""
    workload = question.workload
    # Points are too short for a pause between epochs: read across the end of an epoch.
    workload = replace(workload, loader=replace(workload.loader, refill="never"))
    out = question.out / name
    resume = not question.force and (out / RESULT).is_file()
    before = read_result(out).points if resume else ()
    seconds = min(POINT_SECONDS, question.seconds / 12)
    # On slow storage such a point would take all of the time. With few steps AU means nothing, and the answer
    # rests on throughput.
    in_time = int(question.seconds / 6 * rate / workload.batch_bytes)
    steps = max(LEAST_STEPS, min(math.ceil(seconds / workload.accelerator.step_seconds), in_time))
    steps = max((point.steps for point in before), default=steps)  # a run that was stopped has fewer
    return TrainingJob(
        kind="sweep", dataset=where, workload=workload, loader=loader, storage=question.storage,
        epochs=None, steps=steps, out=out, force=question.force,
        command=question.command, resume=resume,
    )  # fmt: skip


def _storage_knee(
    question: Question, where: Place, largest: int, probed: Probed, seconds: float, comm: Comm
) -> RunResult:
    """Search for the storage's knee with as many requests in flight per rank as the probe advises."""
    job, depth = _job(question, where, STORAGE, "direct", probed.rate), probed.depth
    if job.resume:
        depth = read_result(job.out).workload["loader"]["workers"]
    loader = replace(job.workload.loader, workers=depth)
    job = replace(job, workload=replace(job.workload, loader=loader))
    search = KneeSearch(maximum=largest, threshold=job.workload.training.au_threshold)
    live.say(
        f"storage: up to {counted(largest, 'rank')} of the direct loader with {counted(depth, 'request')} in "
        f"flight each, {show_seconds(seconds)}"
    )
    return _measured(job, Adaptive(search, MonotonicClock(), seconds), comm)


def _pytorch_counts(
    question: Question, where: Place, storage: RunResult, probed: Probed, seconds: float, comm: Comm
) -> RunResult | None:
    """Search by halving for the largest fed count of trainings on these clients; None if there is no time."""
    job = _job(question, where, PYTORCH, "torch", probed.buffered)
    workload, steps = job.workload, job.steps or LEAST_STEPS
    if seconds < steps * max(workload.accelerator.step_seconds, workload.batch_bytes / probed.buffered):
        live.say(f"PyTorch: no time is left for its reads, at {show_rate(probed.buffered)} a rank")
        return None
    most = _first_count(storage)
    fit = len(storage.environment["hosts"]) * _trainings_in_memory(workload)
    if fit < most:
        live.say(f"PyTorch: the memory suffices for {counted(fit, 'rank')}")
        most = max(1, fit)
    live.say(f"PyTorch: up to {counted(most, 'rank')} of the torch loader, {show_seconds(seconds)}")
    return _measured(job, Halving(most, workload.training.au_threshold, MonotonicClock(), seconds), comm)


def _trainings_in_memory(workload: Workload) -> int:
    """Return the ranks that this host's memory holds: two copies of a sample per worker, and batches.

    Workers hand batches over in /dev/shm, which containers limit to 64 MB by default.
    """
    loader, sample = workload.loader, workload.sample_read.bytes_mean
    buffers = buffer_bytes("torch", loader, sample) + loader.workers * sample
    shared = shared_bytes(loader, sample)
    return int(min(free_memory_bytes() / buffers, shutil.disk_usage("/dev/shm").free / shared))


def _measured(job: TrainingJob, schedule: Schedule, comm: Comm) -> RunResult:
    leader = Leader(job, schedule)
    with live.telling(leader.now):
        result = measure(comm.bcast(job), comm, leader)
    assert result is not None  # this is rank 0
    leader.say_verdict()
    return result


def _first_count(result: RunResult) -> int:
    """Return the first count for trainings: as many as the storage feeds, or fed in a run."""
    knee = result.knee
    if knee is not None and knee.kind == "knee" and knee.n_au:
        return max(1, whole_accelerators(knee.n_au))
    return max(1, fed_between(result.points, threshold_of(result))[0])
