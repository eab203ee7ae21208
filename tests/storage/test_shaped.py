"""One bandwidth for all ranks of a node: never more, shared equally, nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from contracts.storage_contract import StorageContract, folder

from emulator.storage.posix import PosixStorage
from emulator.storage.shaped import NodeLimiter, ShapedStorage

__all__ = ["folder"]

RATE = 200e6
SECONDS = 1.5


class TestShaped(StorageContract):
    @pytest.fixture
    def storage(self, folder: Path):  # type: ignore[no-untyped-def]
        limiter = NodeLimiter.create(2e9, 0.0001, 0)
        limiter.unlink()
        yield ShapedStorage(PosixStorage(folder, direct=False, cache="warm"), limiter)
        limiter.close()


def book(limiter: NodeLimiter, threads: int, start: float) -> int:
    """Chunks that one rank gets through between `start` and `start` + SECONDS."""
    chunks = [0] * threads

    def work(thread: int) -> None:
        while time.monotonic() < start + SECONDS:
            with limiter.booked(limiter.chunk):
                pass
            chunks[thread] += time.monotonic() < start + SECONDS

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    time.sleep(max(0.0, start - time.monotonic()))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(chunks)


def rank(path: str, number: int, threads: int, pipe: Connection) -> None:
    limiter = NodeLimiter.join(path, RATE, 0.0, number)
    pipe.send("ready")
    pipe.send(book(limiter, threads, pipe.recv()) * limiter.chunk)
    limiter.close()


def bytes_by_rank(threads: list[int]) -> list[int]:
    """Bytes that ranks with so many reader threads each get through in SECONDS."""
    # A forkserver would stay, for the loaders of later tests too, without what they have it import.
    context = multiprocessing.get_context("spawn")
    limiter = NodeLimiter.create(RATE, 0.0, 0)
    pipes, processes = [], []
    for number, count in enumerate(threads):
        mine, theirs = context.Pipe()
        process = context.Process(target=rank, args=(limiter.path, number, count, theirs))
        process.start()
        pipes.append(mine)
        processes.append(process)
    assert [pipe.recv() for pipe in pipes] == ["ready"] * len(pipes)
    start = time.monotonic() + 0.1
    for pipe in pipes:
        pipe.send(start)
    got = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    limiter.unlink()
    limiter.close()
    return got


@pytest.mark.alone
def test_ranks_share_one_bandwidth_equally() -> None:
    """However many threads they have: shares of threads would be 1, 4 and 2."""
    got = bytes_by_rank([1, 4, 2])
    # Never more than a burst above the rate; a busy machine may keep ranks from asking for all of it.
    assert 0.5 * RATE * SECONDS < sum(got) < 1.03 * RATE * SECONDS
    assert min(got) > 0.5 * max(got)


def test_latency_is_added_to_every_request(folder: Path) -> None:
    limiter = NodeLimiter.create(1e12, 0.02, 0)
    limiter.unlink()
    storage = ShapedStorage(PosixStorage(folder, direct=False, cache="warm"), limiter)
    begin = time.monotonic()
    with storage.open("page") as blob:
        for _ in range(5):
            blob.read_into(0, memoryview(bytearray(1024)))
    assert time.monotonic() - begin >= 0.1
    limiter.close()


def test_an_idle_device_saves_no_more_than_its_burst() -> None:
    limiter = NodeLimiter.create(RATE, 0.0, 0)
    limiter.unlink()
    time.sleep(0.2)
    begin = time.monotonic()
    for _ in range(100):
        with limiter.booked(400_000):
            pass
    assert time.monotonic() - begin >= 0.2 - 0.011
    limiter.close()


def test_worker_processes_join_through_the_ranks_open_file() -> None:
    limiter = NodeLimiter.create(RATE, 0.001, 3)
    limiter.unlink()
    copy = pickle.loads(pickle.dumps(limiter))
    assert (copy.rate, copy.latency, copy.rank) == (RATE, 0.001, 3)
    with copy.booked(int(RATE)):
        pass
    begin = time.monotonic()
    with limiter.booked(int(RATE / 10)):  # behind what the copy booked
        pass
    assert time.monotonic() - begin > 0.08
    copy.close()
    limiter.close()


def test_nothing_is_left_in_shared_memory() -> None:
    def ours() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if name.startswith("feedrate-")}  # noqa: PTH208

    before, fds = ours(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    limiter = NodeLimiter.create(RATE, 0.0, 0)
    joined = NodeLimiter.join(limiter.path, RATE, 0.0, 1)
    limiter.unlink()
    assert ours() == before
    joined.close()
    limiter.close()
    limiter.close()
    assert len(os.listdir("/proc/self/fd")) == fds  # noqa: PTH208
