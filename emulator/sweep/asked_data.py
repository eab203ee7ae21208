"""The data of `feedrate ask`: generated for few ranks, extended as measurements require, and removed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from emulator import live
from emulator.config.recipe import load_recipe
from emulator.config.storage import ObjectURL, Place, StorageSpec
from emulator.config.workload import Workload
from emulator.dataset.generate import Filling, generate
from emulator.dataset.manifest import Dataset, open_dataset
from emulator.dataset.owned import look, removable, remove
from emulator.dataset.plan import DatasetPlan
from emulator.dataset.writer import exclusive
from emulator.errors import DatasetError, FeedrateError, SpecError
from emulator.files import require_folder
from emulator.launch.comm import Comm
from emulator.run.probe import how_read, read_rate
from emulator.storage import open_store
from emulator.units import counted, show_bytes, show_rate, show_seconds

FOLDER = "feedrate-ask"
"""Folder of the dataset in the place of the question."""
PROBE_SECONDS = 2.0
PROBE_THREADS = 16
ROOM = 1.5
"""Largest count to try, as a multiple of the count that the probe's rate would feed."""
LEAST_STEPS = 4
"""Fewest steps of a point."""
FREE = 0.9
"""Largest share of the free space for data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question of `feedrate ask`."""

    place: Place
    workload: Workload
    up_to: int
    """Largest number of accelerators of interest."""
    seconds: float
    """Total time."""
    storage: StorageSpec
    out: Path
    """Folder of the results `storage` and `pytorch`."""
    keep: bool
    force: bool
    command: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise SpecError if no answer is possible, StorageError if the place is not there."""
        if isinstance(self.place, Path):
            require_folder(self.place)
        step = self.workload.accelerator.step_seconds
        if not step:
            raise SpecError(
                "the workload does not compute: no storage is fast enough", "ask about another one"
            )
        # Five points at least have to fit into the time.
        least = max(20.0, 5 * LEAST_STEPS * step)
        if self.seconds < least:
            raise SpecError(
                f"--within {show_seconds(self.seconds)} is too short for steps of {show_seconds(step)}",
                f"give it {show_seconds(least)} or more",
            )


def place_of_data(place: Place) -> Place:
    """Return `place` if it is a dataset; otherwise a folder in it for feedrate's dataset."""
    try:
        open_dataset(place)
    except DatasetError:
        if isinstance(place, ObjectURL):
            return replace(place, prefix="/".join(filter(None, (place.prefix, FOLDER))))
        return place / FOLDER
    return place


def recipe_of(workload: Workload) -> str:
    """Return the name of the recipe for the workload's data. Raises SpecError if it names none."""
    if not workload.sample.recipe:
        raise SpecError(
            f"the workload {workload.name} names no recipe for its data",
            "generate a dataset, and ask about its folder",
        )
    return workload.sample.recipe


class Data:
    """The data for a question whose place is no dataset yet.

    Its methods raise DatasetError, StorageError.
    """

    def __init__(self, where: Place, recipe: str, question: Question) -> None:
        self._question = question
        self._store = open_store(where)
        # An interrupted call may have made, or begun to make, more files than one rank needs.
        holding = look(self._store)
        files = _files(question.workload, 1)
        if holding.dataset:
            files = max(files, len(holding.dataset.manifest.names))
        if holding.begun:
            files = max(files, holding.begun.plan.files)
        self._plan = DatasetPlan(recipe=load_recipe(recipe), seed=0, files=files)
        self._rate = math.inf
        self._free = self._store.free()
        live.say(f"data: {counted(files, 'file')} of {recipe} to begin with, in {where}")
        self._write(files)

    def _write(self, files: int) -> None:
        self._plan = replace(self._plan, files=files)
        filled = generate(self._store, self._plan, Comm(), Filling())
        assert filled is not None  # there is one rank
        if filled.made.files:
            self._rate = filled.made.bytes_per_second
        self.dataset = open_dataset(self._store)

    def grow(self, ranks: int, end: float) -> bool:
        """Extend the data for `ranks`, within time and space; return True if there are more than before.

        `end` is the deadline of the answer, in seconds of time.monotonic.
        """
        manifest, workload = self.dataset.manifest, self._question.workload
        existing = len(manifest.names)
        size = manifest.total / existing
        files = _files(workload, min(ranks, self._question.up_to))
        if math.isfinite(self._rate):
            # The other half of the time is for reading.
            seconds = max(0.0, end - time.monotonic()) * 0.5
            in_time = existing + int(seconds * self._rate / size)
            if in_time < files:
                live.say(f"data: time allows for {in_time} files; {files} would be needed")
                files = in_time
        if self._free is not None and files * size > FREE * self._free:
            files = int(FREE * self._free / size)
            live.say(f"data: the free space allows for {files} files")
        if files <= existing:
            return False
        fit = files * workload.sample.samples_per_file // workload.loader.batch_size
        live.say(f"data: {files} files, {show_bytes(files * size)}, for up to {counted(fit, 'rank')}")
        self._write(files)
        return True


class Probed(NamedTuple):
    """The readings of the probe, made by one process."""

    rate: float
    """Bytes/s of large requests."""
    buffered: float
    """Bytes/s that the workers of a DataLoader get, with the requests that its library makes."""
    ranks: int
    """Ranks that data are needed for: ROOM times those that `rate` would feed."""
    depth: int
    """Requests in flight per rank for the direct loader."""


def probe(dataset: Dataset, question: Question) -> Probed:
    """Read the dataset for a few seconds. Raises StorageError, DatasetError."""
    store, manifest, workload = dataset.store, dataset.manifest, question.workload
    demand, workers = workload.demand, workload.loader.workers
    shaped_rate = question.storage.shaped_rate or math.inf
    direct = store.for_ranks(direct=store.takes_direct(), cache="cold")
    rate = min(shaped_rate, read_rate(direct, manifest, 4 << 20, PROBE_THREADS, PROBE_SECONDS))
    live.say(f"probe: {show_rate(rate)}, enough for {rate / demand:.3g} at {show_rate(demand)} each")
    rate_of_one_thread = read_rate(direct, manifest, workload.loader.block_bytes, 1, PROBE_SECONDS / 4)
    size = how_read("torch", workload, dataset, direct=False)["request_bytes"]
    buffered = store.for_ranks(direct=False, cache="cold")
    buffered_rate = read_rate(buffered, manifest, size, max(1, workers), PROBE_SECONDS / 4)
    return Probed(
        rate=rate,
        buffered=min(shaped_rate, buffered_rate),
        # Where less than one rank would be fed, one more would tell nothing that a run of one does not.
        ranks=math.ceil(ROOM * rate / demand) + (ROOM * rate > demand),
        depth=max(workers, min(PROBE_THREADS, math.ceil(ROOM * demand / rate_of_one_thread))),
    )


def _files(workload: Workload, ranks: int) -> int:
    """Return the number of files for one step of `ranks` ranks."""
    samples = ranks * workload.loader.batch_size
    return max(2, math.ceil(samples / workload.sample.samples_per_file))


def remove_data(where: Place) -> None:
    """Remove the generated dataset, and nothing else."""
    store = open_store(where)
    try:
        with exclusive(store):
            holding = look(store)
            remove(holding, removable(holding))
        if isinstance(where, Path):
            where.rmdir()
    except (FeedrateError, OSError) as error:
        live.say(f"note: data stay in {where}: {error}")
        return
    live.say(f"data: removed from {where}; --keep leaves them")
