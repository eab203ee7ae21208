"""The torch loader: PyTorch's DataLoader and its worker processes."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from command import until
from contracts.loader_contract import SPEC, Files, LoaderContract, MakeLoader, files, pipe, whole_files

pytest.importorskip("torch")

import torch

from emulator.dataset.formats import format_named
from emulator.errors import DatasetError, RankError
from emulator.loader import make_loader
from emulator.loader import torch as torch_loader
from emulator.loader.reading import Reader
from emulator.loader.torch import Forkserver
from emulator.loader.worker import SampleReader
from emulator.storage.shaped import NodeLimiter, ShapedStorage

__all__ = ["files", "pipe"]


def look(event: Any, pipe: Connection) -> None:
    """In a process: look whether `event` is set, all the time."""
    pipe.send("looking")
    while not event.is_set():
        pass


class TestTorch(LoaderContract):
    stall = 10.0
    formats = ("npz", "npy")

    @pytest.fixture
    def loader(self, maker) -> MakeLoader:  # type: ignore[no-untyped-def]
        return maker("torch")

    @pytest.mark.long  # its stall has to outlast the start of worker processes
    def test_hung_storage_is_given_up(self, loader: MakeLoader, pipe: Files) -> None:
        super().test_hung_storage_is_given_up(loader, pipe)

    def test_workers_of_an_epoch_that_was_left_early_end_while_the_next_one_is_slow(
        self, loader: MakeLoader, files: Files, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch_loader, "_CHECK_SECONDS", 0.01)  # the start of workers takes longer
        made = loader(files)
        next(iter(made.read(files.batches())))
        assert len(list(made.read(files.batches()))) == len(files.batches())

    @pytest.mark.parametrize("counted", [True, False], ids=["", "that died before it was counted"])
    def test_a_dead_worker_is_reported_in_one_line(
        self, loader: MakeLoader, files: Files, monkeypatch: pytest.MonkeyPatch, counted: bool
    ) -> None:
        before = multiprocessing.active_children()
        made = loader(files, replace(SPEC, prefetch=1, workers=1))
        arriving = made.read(files.batches(1) * 50)
        with monkeypatch.context() as patched:
            if not counted:
                patched.setattr(multiprocessing, "active_children", list)
            next(arriving)
        (worker,) = (child for child in multiprocessing.active_children() if child not in before)
        worker.kill()
        with pytest.raises(RankError, match="a DataLoader worker died"):
            list(arriving)

    def test_workers_killed_while_they_look_whether_to_end_hold_nothing_up(self) -> None:
        context = Forkserver()
        context.set_forkserver_preload(["emulator.loader.worker"])
        for _ in range(10):  # with multiprocessing's own Event about every second one takes its lock along
            event, (mine, theirs) = context.Event(), context.Pipe()
            worker = context.Process(target=look, args=(event, theirs))
            worker.start()
            mine.recv()
            worker.kill()
            worker.join()
            event.set()
            assert event.is_set()

    def test_np_load_compares_the_checksums_of_the_zip(self, loader: MakeLoader, files: Files) -> None:
        path = files.folder / files.names[5]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(DatasetError, match=r"sample5\.npz cannot be used: BadZipFile: Bad CRC-32"):
            list(loader(files).read(files.batches()))

    def test_cpu_and_latencies_of_workers_are_brought_home(self, loader: MakeLoader, files: Files) -> None:
        storage = files.storage()
        made = loader(files, storage=storage)
        assert made.helper_cpu_seconds() == 0
        list(made.read(files.batches()))
        assert made.helper_cpu_seconds() > 0
        assert storage.stats.snapshot().reads > 0


@pytest.mark.parametrize(("refill", "groups"), [("persistent", 1), ("epoch", 3)])
def test_workers_stay_or_are_started_anew(files: Files, refill: str, groups: int) -> None:
    spec = replace(SPEC, refill=refill)  # type: ignore[arg-type]
    made = make_loader("torch", spec, files.storage(), files)
    seen = set()
    for _ in range(3):
        before = {child.pid for child in multiprocessing.active_children()}
        arriving = made.read(files.batches())
        next(arriving)
        seen.add(frozenset(child.pid for child in multiprocessing.active_children()))
        list(arriving)
        assert refill == "persistent" or len(multiprocessing.active_children()) <= len(before)
    made.close()
    assert len(seen) == groups


def test_workers_share_the_bandwidth_of_their_rank(maker, files: Files) -> None:  # type: ignore[no-untyped-def]
    rate = 5e6
    limiter = NodeLimiter.create(rate, 0.0, 0)
    limiter.unlink()
    storage = ShapedStorage(files.storage(), limiter)
    made = maker("torch")(files, SPEC, storage)
    list(made.read([whole_files((0,))]))
    begin = time.monotonic()
    size = sum(batch.bytes for batch in made.read(files.batches()))
    assert time.monotonic() - begin > size / rate - 0.02
    assert storage.stats.snapshot().bytes >= size + files.sizes[0]
    made.close()
    limiter.close()


def test_an_uncaught_crop_is_one_clear_line(maker, files: Files) -> None:  # type: ignore[no-untyped-def]
    spec = replace(SPEC, crop=(8, 9, 11))
    with pytest.raises(DatasetError, match=r"sample1\.npz has \[9, 9, 10\] voxels.*loader\.crop"):
        list(maker("torch")(files, spec).read(files.batches()))
    spec = replace(SPEC, crop=())
    with pytest.raises(DatasetError, match=r"different shapes.*loader\.crop"):
        list(maker("torch")(files, spec).read(files.batches()))


def reader(files: Files, crop: tuple[int, ...] = (8, 9, 10), seed: int = 5) -> SampleReader:
    whole = Reader(files.storage(), files, format_named(files.format), 2**16)
    return SampleReader(whole, crop, seed)


def test_samples_are_crops_of_their_files(files: Files) -> None:
    arrays = np.load(files.folder / files.names[0])
    sample = reader(files)(0, 0)
    assert (sample[0].dtype, tuple(sample[0].shape)) == (torch.float32, (1, 8, 9, 10))
    assert (sample[1].dtype, tuple(sample[1].shape)) == (torch.uint8, (1, 8, 9, 10))
    windows = np.lib.stride_tricks.sliding_window_view(arrays["x"][0], (8, 9, 10))
    corners = np.argwhere(windows[..., 0, 0, 0] == float(sample[0][0, 0, 0, 0]))
    assert any(np.array_equal(windows[tuple(corner)], sample[0].numpy()[0]) for corner in corners)


def test_crops_depend_on_seed_epoch_and_sample_alone(files: Files) -> None:
    first, second = reader(files), reader(files)
    second(0, 4)  # what was read before plays no part
    assert torch.equal(first(0, 0)[0], second(0, 0)[0])
    assert not torch.equal(first(0, 0)[0], first(1, 0)[0])
    assert not torch.equal(first(0, 0)[0], reader(files, seed=6)(0, 0)[0])


def test_whole_samples_when_there_is_no_crop(files: Files) -> None:
    assert tuple(reader(files, crop=())(0, 0)[0].shape) == (1, 1, 20, 30, 40)


@pytest.mark.long
def test_memory_stays_where_it_was(maker, files: Files) -> None:  # type: ignore[no-untyped-def]
    from pathlib import Path

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    made = maker("torch")(files)
    order = [whole_files((step % 12, (step + 1) % 12)) for step in range(1000)]
    list(made.read(order))
    before = resident()
    for _ in range(2):
        assert sum(batch.samples for batch in made.read(order)) == 2000
    assert until(lambda: abs(resident() - before) < 0.02 * before)
