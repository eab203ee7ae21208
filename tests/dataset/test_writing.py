"""Files reach storage whole, under their name or not at all, however they are written."""

from __future__ import annotations

import errno
import mmap
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.config.recipe import load_recipe
from emulator.dataset.formats import format_named
from emulator.dataset.formats.base import ArrayBytes, Deferred, Format, Shape, Sources, write_file
from emulator.dataset.generate import Filling, generate
from emulator.dataset.grow import random_sources
from emulator.dataset.journal import Journal, journalled
from emulator.dataset.payload import measure_payload
from emulator.dataset.plan import DatasetPlan
from emulator.errors import StorageError
from emulator.launch.comm import Comm
from emulator.registry import FORMATS
from emulator.storage.base import WriteOptions
from emulator.storage.folder import FileDraft, FolderStore
from emulator.units import BLOCK_BYTES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("writing")


def joined(form: Format, shape: Shape, sources: Sources) -> list[bytes]:
    """The files of a sample, put together piece by piece."""
    files = []
    for pieces in form.files(shape, sources):
        parts: list[bytes | Deferred] = []
        for piece in pieces:
            if isinstance(piece, ArrayBytes):
                memory = memoryview(bytearray(piece.size))
                sources[piece.key].into(memory, piece.size)
                parts.append(bytes(memory))
            else:
                parts.append(piece if isinstance(piece, Deferred) else bytes(piece))
        files.append(b"".join(part.data if isinstance(part, Deferred) else part for part in parts))
    return files


@settings(max_examples=100)
@given(
    st.sampled_from([name for name, form in FORMATS.working() if form.written]),
    st.integers(1, 9),
    st.tuples(*[st.integers(1, 40)] * 3),
    st.integers(1, 5),
    st.sampled_from(["incompressible", "ratio=3"]),
    st.booleans(),
)
def test_written_through_any_buffer_a_file_is_its_pieces(
    folder, name, samples, edges, pages, payload, direct
):
    form = format_named(name)
    shape = (samples if form.many else 1, *edges)
    expected = joined(form, shape, random_sources(payload, 5, 7))
    sources = random_sources(payload, 5, 7)
    buffer = memoryview(mmap.mmap(-1, pages * BLOCK_BYTES))
    for data, pieces in zip(expected, form.files(shape, sources), strict=True):
        with FileDraft(folder / "written", WriteOptions(direct=direct, sync=False)) as target:
            done = write_file(target, pieces, sources, buffer)
            assert not (folder / "written").exists(), "not under its name before it is whole"
            target.publish()
        assert (folder / "written").read_bytes() == data
        assert done == (zlib.crc32(data), len(data))
        (folder / "written").unlink()


def test_what_fails_leaves_nothing_behind(tmp_path):
    with pytest.raises(OSError, match="gone"), FileDraft(tmp_path / "a", WriteOptions()) as target:
        target.put(memoryview(mmap.mmap(-1, BLOCK_BYTES)), 0)
        raise OSError("gone")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_counts_the_files_that_are_there(tmp_path, monkeypatch):
    room = [3_000_000]
    put = FileDraft.put

    def until_full(draft: FileDraft, memory: memoryview, at: int) -> None:
        room[0] -= len(memory)
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(draft, memory, at)

    monkeypatch.setattr(FileDraft, "put", until_full)
    plan = DatasetPlan(recipe=load_recipe("tiny"), seed=0, files=20)
    with pytest.raises(StorageError) as failed:
        generate(FolderStore(tmp_path), plan, Comm(), Filling(threads=1))
    there = len(list(tmp_path.glob("sample_*")))
    assert f"{there} of 20 files are done" in failed.value.what


def test_journals_survive_torn_records(tmp_path):
    store, path = FolderStore(tmp_path), tmp_path / ".feedrate/journal-000000"
    path.parent.mkdir()
    with Journal(store, 0) as journal:
        for index in range(5):
            journal.add(index, 1000 + index, index)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    assert np.concatenate(list(journalled(store)))["index"].tolist() == [0, 1, 2, 3]
    with Journal(store, 0) as journal:
        journal.add(4, 77, 9)
    with Journal(store, 1) as journal:
        journal.add(9, 100, 9)
    records = np.concatenate(list(journalled(store)))
    assert records["index"].tolist() == [0, 1, 2, 3, 4, 9] and records["bytes"][4] == 77


@given(st.binary(max_size=200), st.integers(0, 119), st.integers(0, 255))
def test_a_damaged_journal_gives_only_true_records(folder, tail, at, value):
    store, path = FolderStore(folder), folder / ".feedrate/journal-000000"
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    with Journal(store, 0) as journal:
        for index in range(5):
            journal.add(index, 1000 + index, index)
    data = bytearray(path.read_bytes())
    data[at] = value
    path.write_bytes(bytes(data) + tail)
    records = np.concatenate(list(journalled(store)))
    known = records[records["index"] < 5]
    assert np.array_equal(known["bytes"], known["index"] + 1000)


def test_repeated_blocks_and_compression_are_measured(tmp_path: Path) -> None:
    """Half of the blocks are zeros; zstd stores random bytes as they are."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(rng.bytes(16 * 4096) + bytes(16 * 4096))
    found = measure_payload(FolderStore(tmp_path), ["a", "b"])
    assert found["files"] == 2 and found["bytes"] == 2 * 32 * 4096
    assert found["unique_blocks"] == pytest.approx(33 / 64, abs=1e-6)
    assert found["zstd_ratio"] == pytest.approx(2.0, abs=0.01)
