"""The contract of a loader. Inherit the class and provide `loader`, a function that makes one."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import psutil
import pytest
from command import held, until
from contracts.format_contract import Sample, parts_of

from emulator.config.workload import LoaderSpec
from emulator.dataset.formats import format_named
from emulator.errors import DatasetError, StorageError
from emulator.loader.base import Loader
from emulator.order import Portion, Read
from emulator.storage.base import Storage
from emulator.storage.posix import PosixStorage

SPEC = LoaderSpec(batch_size=3, workers=2, prefetch=3, block_bytes=2**16, crop=(8, 9, 10), stall_timeout=30)
SHAPES = [(20, 30, 40), (9, 9, 10), (33, 21, 17), (8, 64, 64)]


def whole_files(files: tuple[int, ...]) -> Portion:
    """A step over these files of one sample each."""
    return Portion(len(files), tuple(Read(file) for file in files))


@dataclass(frozen=True)
class Files:
    """A dataset of a few samples, as a manifest lists it."""

    folder: Path
    format: str
    names: Sequence[str]
    sizes: Sequence[int]
    samples_per_file: int = 1
    recipe: str = ""

    def storage(self) -> PosixStorage:
        return PosixStorage(self.folder, direct=False, cache="warm")

    def batches(self, size: int = 3) -> list[Portion]:
        starts = range(0, len(self.names) - size + 1, size)
        return [whole_files(tuple(range(i, i + size))) for i in starts]

    def bytes_of(self, portion: Portion) -> int:
        return sum(self.sizes[read.file] for read in portion.reads)


def write_files(folder: Path, form: str, count: int = 12) -> Files:
    """`count` samples of different sizes in the format `form`."""
    writer = format_named(form)
    random = np.random.default_rng(7)
    names, sizes = [], []
    for index in range(count):
        shape = (1, *SHAPES[index % len(SHAPES)])
        label = np.zeros(shape, np.uint8)
        label[0, 3, 4, 5] = 2
        name = f"sample{index}{writer.suffix}"
        parts = parts_of(writer, Sample(random.random(shape, np.float32), label)).values()
        for part, data in zip(writer.parts(name), parts, strict=True):
            (folder / part).write_bytes(data)
        names.append(name)
        sizes.append(sum(map(len, parts)))
    return Files(folder, form, tuple(names), tuple(sizes))


class MakeLoader(Protocol):
    """Makes the loader under test; the fixture closes it."""

    def __call__(self, files: Files, spec: LoaderSpec = ..., storage: Storage | None = ...) -> Loader: ...


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_files(tmp_path, "npz")


@pytest.fixture
def pipe(files: Files) -> Iterator[Files]:
    """Samples with a pipe in the place of the fifth: opening it blocks until somebody writes."""
    path = files.folder / files.names[4]
    path.unlink()
    os.mkfifo(path)
    yield files
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # readers that still block return
    time.sleep(0.05)
    os.close(fd)


class LoaderContract:
    """Tests of a loader. The subclass has a fixture `loader`: a MakeLoader."""

    def test_without_prefetch_a_batch_is_read_when_it_is_asked_for(
        self, loader: MakeLoader, files: Files
    ) -> None:
        storage = files.storage()
        made = loader(files, replace(SPEC, prefetch=0, workers=1), storage)
        before, read = set(multiprocessing.active_children()), 0
        portions = files.batches()
        asked = time.monotonic()
        for portion, batch in zip(portions, made.read(portions), strict=True):
            read += files.bytes_of(portion)
            assert batch.began >= asked and batch.bytes == files.bytes_of(portion)
            assert storage.stats.snapshot().bytes == read, "nothing is read ahead"
            assert set(multiprocessing.active_children()) == before
            asked = time.monotonic()
        assert made.helper_cpu_seconds() == 0

    def test_batches_come_in_order_with_their_bytes(self, loader: MakeLoader, files: Files) -> None:
        storage = files.storage()
        made = loader(files, storage=storage)
        for order in (files.batches(), files.batches()[::-1]):
            got = list(made.read(order))
            assert [(batch.samples, batch.bytes) for batch in got] == [(3, files.bytes_of(b)) for b in order]
            assert all(type(batch.bytes) is int for batch in got)
        assert storage.stats.snapshot().bytes == 2 * sum(files.sizes)

    formats: Sequence[str] = ("npz", "npy", "nii", "nii.gz", "hdf5", "raw")

    def test_every_format_is_read_whole(self, loader: MakeLoader, tmp_path: Path) -> None:
        for form in self.formats:
            files = write_files(tmp_path, form, 6)
            storage = files.storage()
            made = loader(files, storage=storage)
            assert sum(batch.bytes for batch in made.read(files.batches())) == sum(files.sizes), form
            assert storage.stats.snapshot().bytes == sum(files.sizes)

    def test_more_workers_than_batches(self, loader: MakeLoader, files: Files) -> None:
        made = loader(files, replace(SPEC, workers=4, prefetch=8))
        assert len(list(made.read([whole_files((0,)), whole_files((1, 2))]))) == 2
        assert list(made.read([])) == []

    def test_an_epoch_may_be_left_early(self, loader: MakeLoader, files: Files) -> None:
        made = loader(files)
        for _ in range(3):
            next(iter(made.read(files.batches())))
        assert [batch.bytes for batch in made.read(files.batches())] == [
            files.bytes_of(batch) for batch in files.batches()
        ]

    @pytest.mark.parametrize("how", ["truncated", "missing", "corrupt", "unreadable"])
    def test_a_bad_sample_is_one_line_with_its_name_at_its_batch(
        self, loader: MakeLoader, files: Files, how: str
    ) -> None:
        path, sizes, said = files.folder / files.names[4], list(files.sizes), "sample4"
        if how == "truncated":
            os.truncate(path, 5000)
            said = f"sample4.* 5000 bytes, but the manifest says {sizes[4]}"
        elif how == "corrupt":
            with path.open("r+b") as file:
                file.write(b"not a zip")
        else:
            path.unlink()
        if how == "unreadable":
            path.mkdir()
            sizes[4] = path.stat().st_size or pytest.skip("folders have no size on this file system")
        made = loader(replace(files, sizes=sizes))
        arriving = made.read(files.batches())
        next(arriving)
        with pytest.raises(StorageError if how == "unreadable" else DatasetError, match=said) as caught:
            list(arriving)
        assert "\n" not in str(caught.value)
        made.close()

    def test_hung_storage_is_given_up(self, loader: MakeLoader, pipe: Files) -> None:
        made = loader(pipe, replace(SPEC, stall_timeout=self.stall))
        arriving = made.read(pipe.batches())
        next(arriving)
        with pytest.raises(StorageError, match="no batch for .* the storage hangs"):
            list(arriving)
        made.close()  # which does not wait for the hung read

    stall = 1.0
    """Seconds of the stall timeout: workers have to start within it."""

    def test_closing_lets_go_of_everything(self, loader: MakeLoader, files: Files) -> None:
        made = loader(files)
        list(made.read(files.batches()))  # what is opened once per process is open now
        made.close()
        fds, threads, shared, seen = _fds(), threading.active_count(), _shared_memory(), set[str]()
        for leave_early in (False, True):
            made = loader(files)
            arriving = iter(made.read(files.batches()))
            next(arriving)
            seen |= _shared_memory()
            if not leave_early:
                list(arriving)
            made.close()
            made.close()
            del arriving, made
        assert until(lambda: _fds() <= fds and threading.active_count() <= threads)
        assert until(lambda: not any(map(os.path.exists, seen - shared)))


def _fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def _shared_memory() -> set[str]:
    """What this process and those below it have there."""
    me = psutil.Process()
    return set().union(*(held(one.pid) for one in (me, *me.children(recursive=True))))
