"""The contract of a storage, and of a wrapper of one. Inherit the class and provide `storage`."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from emulator.errors import DatasetError, StorageError
from emulator.storage.base import HEAD, Blob, Storage
from emulator.storage.posix import aligned_buffer, padded

SIZES = {"empty": 0, "one": 1, "page": 4096, "odd": 10_001, "large": 3 * 2**20 + 17}


def content(name: str) -> bytes:
    """Random bytes for the file `name`, the same every time."""
    return np.random.default_rng(len(name)).bytes(SIZES[name])


def read_whole(blob: Blob, block: int = 2**16) -> bytes:
    """Read all of `blob` in aligned requests of `block` bytes."""
    buffer = aligned_buffer(block)
    pieces = []
    for offset in range(0, blob.size, block):
        got = blob.read_into(offset, buffer[: padded(min(block, blob.size - offset), blob.alignment)])
        pieces.append(bytes(buffer[:got]))
    return b"".join(pieces)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file for each of SIZES, and a folder `inside`."""
    for name in SIZES:
        with (tmp_path / name).open("wb") as file:
            file.write(content(name))
            file.flush()
            os.fsync(file.fileno())
    (tmp_path / "inside").mkdir()
    return tmp_path


class StorageContract:
    """Tests of a storage. The subclass has a fixture `storage` over the fixture `folder`."""

    block = 4096 * 5
    """Bytes of the requests of threads."""
    idle_files = 0
    """Files that the storage may keep open between requests."""

    @pytest.mark.parametrize("name", SIZES)
    def test_reads_every_byte(self, storage: Storage, name: str) -> None:
        with storage.open(name) as blob:
            assert blob.size == SIZES[name]
            assert name in blob.name
            assert read_whole(blob) == content(name)

    def test_a_request_reads_its_bytes_and_is_short_beyond_the_end(self, storage: Storage) -> None:
        buffer = aligned_buffer(16384)
        with storage.open("odd") as blob:
            assert blob.read_into(0, buffer) == 10_001
            assert blob.read_into(8192, buffer) == 10_001 - 8192
            assert bytes(buffer[: 10_001 - 8192]) == content("odd")[8192:]
            assert blob.read_into(8192, buffer[: 3 * HEAD], 16384) == 10_001 - 8192
            assert blob.read_into(4096, buffer[:4096]) == 4096
            assert bytes(buffer[:4096]) == content("odd")[4096:8192]

    @pytest.mark.parametrize("name", SIZES)
    @pytest.mark.parametrize("room", [3 * HEAD, 2**17, 2**23])
    def test_a_small_buffer_keeps_the_head_of_a_request(self, storage: Storage, name: str, room: int) -> None:
        buffer = aligned_buffer(room)
        block = 2**20
        with storage.open(name) as blob:
            for offset in range(0, blob.size, block):
                length = min(block, blob.size - offset)
                buffer[:HEAD] = bytes(HEAD)
                assert blob.read_into(offset, buffer, padded(length, blob.alignment)) == length
                head = content(name)[offset : offset + length][:HEAD]
                assert buffer[: len(head)] == head

    def test_what_is_not_there_is_the_datasets_fault(self, storage: Storage) -> None:
        with pytest.raises(DatasetError, match="missing.npz"):
            storage.open("missing.npz")

    def test_what_cannot_be_read_is_the_storages_fault(self, storage: Storage) -> None:
        buffer = aligned_buffer(4096)
        with pytest.raises(StorageError, match="inside"), storage.open("inside") as blob:
            blob.read_into(0, buffer)

    def test_leaves_no_file_open(self, storage: Storage) -> None:
        with storage.open("one"):
            pass
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counts what iterdir would add to
        for _ in range(20):
            with storage.open("odd") as blob:
                read_whole(blob)
        assert abs(len(os.listdir("/proc/self/fd")) - before) <= self.idle_files  # noqa: PTH208

    def test_threads_do_not_disturb_each_other(self, storage: Storage) -> None:
        def read(name: str) -> bool:
            with storage.open(name) as blob:
                return read_whole(blob, self.block) == content(name)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, [name for name in SIZES if name != "empty"] * 8))

    def test_a_pickled_copy_reads_the_same(self, storage: Storage) -> None:
        copy = pickle.loads(pickle.dumps(storage))
        with copy.open("odd") as blob:
            assert read_whole(blob) == content("odd")
        assert copy.stats is not storage.stats
