"""Files of the mounted file system, through the page cache and past it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from command import until
from contracts.storage_contract import StorageContract, content, folder, read_whole

from emulator.errors import DatasetError, StorageError
from emulator.storage.base import Blob
from emulator.storage.batches import BatchReader, Pieces
from emulator.storage.counts import ReadStats
from emulator.storage.posix import PosixStorage, aligned_buffer, evict, probe_direct, resident_pages

__all__ = ["folder"]


def needs_direct(path: Path) -> None:
    if not probe_direct(path):
        pytest.skip("this file system has no O_DIRECT")


def needs_eviction(path: Path) -> None:
    """Skips where the page cache cannot be emptied or looked at: files in RAM, foreign files."""
    probe = path / "probe"
    probe.write_bytes(bytes(4096))
    with probe.open("rb") as file:
        os.fsync(file.fileno())
        before = resident_pages(file.fileno(), 0, 4096)
        evict(file.fileno())
        after = resident_pages(file.fileno(), 0, 4096)
    probe.unlink()
    if (before, after) != ((1, 1), (1, 0)):
        pytest.skip("this file system keeps its files in RAM")


class TestBuffered(StorageContract):
    @pytest.fixture
    def storage(self, folder: Path) -> PosixStorage:
        return PosixStorage(folder, direct=False, cache="warm")


class TestCold(StorageContract):
    @pytest.fixture
    def storage(self, folder: Path) -> PosixStorage:
        return PosixStorage(folder, direct=False, cache="cold")


class TestDirect(StorageContract):
    @pytest.fixture
    def storage(self, folder: Path) -> PosixStorage:
        needs_direct(folder)
        return PosixStorage(folder, direct=True, cache="cold")


def resident(path: Path) -> int:
    with path.open("rb") as file:
        return resident_pages(file.fileno(), 0, path.stat().st_size)[1]


def test_cold_reads_find_nothing_in_the_page_cache_and_leave_nothing(folder: Path) -> None:
    needs_eviction(folder)
    (folder / "large").read_bytes()
    assert resident(folder / "large") > 700
    for direct in (False, *[True] * probe_direct(folder)):
        storage = PosixStorage(folder, direct=direct, cache="cold")
        with storage.open("large") as blob:
            assert read_whole(blob) == content("large")
        counts = storage.stats.snapshot()
        assert (counts.pages_sampled, counts.pages_resident) == (-(-(3 * 2**20 + 17) // mmap.PAGESIZE), 0)
        assert resident(folder / "large") == 0
        assert counts.stored >= 3 * 2**20
    (folder / "large").read_bytes()
    storage = PosixStorage(folder, direct=False, cache="warm")
    with storage.open("large") as blob:
        read_whole(blob)
    assert resident(folder / "large") > 700, "warm reads leave the page cache alone"
    assert storage.stats.snapshot().pages_sampled == storage.stats.snapshot().stored == 0


def test_in_tmpfs_memory_is_the_storage() -> None:
    """Its pages are always there: they are no sign of a cache in front of it."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm")
    path = Path(f"/dev/shm/feedrate-test-{os.getpid()}")
    try:
        path.write_bytes(bytes(8 * mmap.PAGESIZE))
        storage = PosixStorage(path.parent, direct=False, cache="cold")
        with storage.open(path.name):
            pass
        counts = storage.stats.snapshot()
        assert (counts.pages_sampled, counts.pages_resident) == (0, 0)
    finally:
        path.unlink()


def test_a_bounded_share_of_opens_is_looked_at(folder: Path) -> None:
    storage = PosixStorage(folder, direct=False, cache="cold")
    for _ in range(16):
        with storage.open("page"):
            pass
    assert storage.stats.snapshot().pages_sampled == 2


def test_a_file_that_shrinks_while_it_is_read_gives_a_short_read(folder: Path) -> None:
    storage = PosixStorage(folder, direct=False, cache="warm")
    with storage.open("large") as blob:
        os.truncate(folder / "large", 5000)
        assert blob.read_into(0, memoryview(bytearray(8192))) == 5000


def test_a_path_through_a_file_is_the_datasets_fault(folder: Path) -> None:
    with pytest.raises(DatasetError, match="not there"):
        PosixStorage(folder, direct=False, cache="warm").open("one/two")


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_a_folder_in_place_of_a_sample_is_one_error(place: str) -> None:
    """File systems differ in what they say of a folder's size."""
    with TemporaryDirectory(dir=place) as made:
        (Path(made) / "sample").mkdir()
        storage = PosixStorage(Path(made), direct=False, cache="warm")
        with pytest.raises(StorageError, match="sample"), storage.open("sample") as blob:
            blob.read_into(0, memoryview(bytearray(8)))


def test_probing_needs_no_file_and_leaves_none(tmp_path: Path) -> None:
    answer = probe_direct(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_bytes(bytes(5000))
    assert probe_direct(tmp_path) == answer


def test_ranks_that_probe_at_once_do_not_read_each_others_files(tmp_path):
    """Each makes a file in the empty folder and removes it."""
    with multiprocessing.get_context("fork").Pool(3) as pool:
        answers = pool.map(probe_direct, [tmp_path] * 600, chunksize=200)
    assert len(set(answers)) == 1


def test_a_file_system_without_nameless_files_may_have_direct_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FUSE and NFS refuse O_TMPFILE."""
    answer, opened = probe_direct(tmp_path), os.open

    def refused(path: str, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return opened(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refused)
    (tmp_path / "empty").mkdir()
    assert probe_direct(tmp_path / "empty") == answer


def huge_bytes(address: int) -> int:
    """Return the bytes of the mapping around `address` that are in huge pages."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        low, dash, high = name.partition("-")
        if dash:
            inside = int(low, 16) <= address < int(high, 16)
        elif inside and name == "AnonHugePages:":
            return 1024 * int(rest.split()[0])
    return 0


@pytest.mark.parametrize("size", [1, 4096, 65536, 300_000, 2**20 + 12288, 2**21, 5 * 2**20])
def test_buffers_of_any_size_are_aligned_and_lie_in_huge_pages(size: int) -> None:
    """Of 4 kB pages, an O_DIRECT request is split into as many."""
    buffers = [aligned_buffer(size) for _ in range(5)]
    addresses = [ctypes.addressof(ctypes.c_char.from_buffer(buffer)) for buffer in buffers]
    assert {len(buffer) for buffer in buffers} == {size}
    assert all(address % (2**21 if size >= 2**21 else mmap.PAGESIZE) == 0 for address in addresses)
    assert all(later - address >= size for address, later in pairwise(sorted(addresses)))
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not modes.exists() or "[never]" in modes.read_text():
        pytest.skip("no transparent huge pages")
    for buffer, address in zip(buffers, addresses, strict=True):
        buffer[0] = 1
        assert huge_bytes(address) >= 2**21


def test_stats_are_exact_and_add_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulator.storage.counts._fetched", lambda: 0)  # Python, too, may read from storage
    stats = ReadStats()
    storage = PosixStorage(folder, direct=False, cache="warm", stats=stats)
    with storage.open("large") as blob:
        read_whole(blob, 2**20)
    counts = stats.snapshot()
    assert (counts.reads, counts.bytes) == (4, 3 * 2**20 + 17)
    copy = ReadStats()
    copy.absorb(stats.drain())
    assert copy.snapshot() == counts
    assert stats.snapshot().reads == 0
    copy.absorb(counts)
    assert (copy.snapshot().reads, copy.snapshot().bytes) == (8, 2 * counts.bytes)


@pytest.mark.parametrize(
    ("microseconds", "edge"), [(0.2, 1), (10, 10), (10.001, 11), (999_000_000, 10**9), (10**12, 10**9)]
)
def test_latencies_are_filed_under_the_next_edge(microseconds: float, edge: int) -> None:
    stats = ReadStats()
    stats.mine().add(3, [microseconds / 1e6] * 3)
    assert stats.snapshot().latencies == {edge: 3}


class Held(Blob):
    """A blob whose reads take until `go`."""

    go = threading.Event()

    def fill(self, offset: int, buffer: memoryview, length: int) -> int:
        assert self.go.wait(60)
        return length


def test_each_thread_shows_its_requests_and_the_one_under_way() -> None:
    stats, go, before = ReadStats(), Held.go, time.monotonic()
    with ThreadPoolExecutor(1) as pool, Held("odd", 10_001, stats) as blob:
        done = pool.submit(blob.read_into, 0, memoryview(bytearray(10_001)))
        (shown,) = until(lambda: [thread for thread in stats.tallies() if thread.begin])
        assert before <= shown.begin <= time.monotonic() and shown.requests == 0
        go.set()
        assert done.result() == 10_001
        number = pool.submit(threading.get_native_id).result()
    (tally,) = stats.tallies()
    assert (tally.thread, tally.requests, tally.begin) == (number, 1, 0.0)
    assert 0.0 < tally.seconds < time.monotonic() - before


def test_opening_a_file_takes_as_long_as_it_takes() -> None:
    stats = ReadStats()
    before = time.monotonic()
    with stats.mine().opens("file"):
        time.sleep(0.02)
    assert 0.02 <= stats.snapshot().opening <= time.monotonic() - before


def test_pages_in_the_page_cache_are_counted(folder: Path) -> None:
    with (folder / "pages").open("w+b", buffering=0) as file:
        os.pwrite(file.fileno(), bytes(4096), 4096)
        file.truncate(4 * 4096)  # no page of the rest was ever written or read
        assert resident_pages(file.fileno(), 0, 4 * 4096) == (4, 1)


def test_a_cold_file_stays_in_memory_while_a_reader_has_it_open(folder: Path) -> None:
    """As in a job: what the kernel has read ahead is found, and other readers' pages are not pushed out."""
    needs_eviction(folder)
    assert (folder / "odd").read_bytes() == content("odd")
    storage = PosixStorage(folder, direct=False, cache="cold")
    pieces = Pieces(["odd"], np.array([(0, 4096, 10_001 - 4096, 10_001)], np.int64))

    with BatchReader(storage, "python", 1, 4096, 1) as reader:
        for _ in range(2):
            reader.read(pieces, lambda *_: None, bytearray(1))
            assert resident(folder / "odd")
        counts = storage.stats.snapshot()
        assert counts.pages_sampled and not counts.pages_resident
    assert not resident(folder / "odd")
