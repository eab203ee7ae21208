"""Files reach storage whole, under their name or not at all, however they are written."""

from __future__ import annotations

import mmap
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.dataset.fill import Target, WriteOptions, pour, stream, write_encoded
from emulator.dataset.formats import FORMATS, format_named
from emulator.dataset.formats.base import PAGE, Room
from emulator.dataset.grow import filled_from, random_sources
from emulator.dataset.site import Journal, JournalWatch, read_journals
from emulator.storage.folder import FolderStore

STREAMED = [name for name, form in FORMATS.items() if form.streams]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("writing")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(STREAMED),
    st.tuples(*[st.integers(1, 40)] * 3),
    st.integers(1, 5),
    st.sampled_from(["incompressible", "ratio=3"]),
    st.booleans(),
)
def test_streamed_through_any_buffer_it_is_what_is_composed(folder, name, edges, pages, payload, direct):
    form, shape = format_named(name), (1, *edges)
    composed = form.encode(shape, filled_from(random_sources(payload, 5, 7)), Room())
    sources = random_sources(payload, 5, 7)
    buffer = memoryview(mmap.mmap(-1, pages * PAGE))
    for part, layout in zip(composed, form.layouts(shape), strict=True):
        with Target(folder / "streamed", WriteOptions(direct=direct, sync=False)) as target:
            stream(target, layout, sources, buffer)
            target.publish()
        data = (folder / "streamed").read_bytes()
        assert data == bytes(part.memory[: part.size])
    sums = {key: source.crc for key, source in sources.items()}
    assert [layout.crc(sums) for layout in form.layouts(shape)] == [part.crc for part in composed]
    assert zlib.crc32(data) == composed[-1].crc


SERIAL = [name for name, form in FORMATS.items() if form.serial]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SERIAL), st.integers(1, 9), st.tuples(*[st.integers(1, 20)] * 3), st.integers(1, 5),
    st.booleans(),
)  # fmt: skip
def test_poured_through_any_buffer_it_is_what_is_composed(folder, name, samples, edges, pages, direct):
    form, shape = format_named(name), (samples, *edges)
    (composed,) = form.encode(shape, filled_from(random_sources("incompressible", 5, 7)), Room())
    buffer = memoryview(mmap.mmap(-1, pages * PAGE))
    with Target(folder / "poured", WriteOptions(direct=direct, sync=False)) as target:
        done = pour(target, form.blocks(shape, random_sources("incompressible", 5, 7)), buffer)
        target.publish()
    assert done == (composed.crc, composed.size)
    assert (folder / "poured").read_bytes() == bytes(composed.memory[: composed.size])


@pytest.mark.parametrize("options", [WriteOptions(), WriteOptions(direct=False, sync=False)], ids=str)
def test_a_composed_file_is_written_whole(tmp_path, options):
    form = format_named("nii.gz")
    for number, part in enumerate(
        form.encode((1, 30, 31, 32), filled_from(random_sources("ratio=2", 0, 0)), Room())
    ):
        with Target(tmp_path / f"{number}", options) as target:
            write_encoded(target, part)
            assert not (tmp_path / f"{number}").exists(), "not under its name before it is whole"
            target.publish()
        assert (tmp_path / f"{number}").read_bytes() == bytes(part.memory[: part.size])


def test_what_fails_leaves_nothing_behind(tmp_path):
    with pytest.raises(OSError, match="gone"), Target(tmp_path / "a", WriteOptions()) as target:
        target.put(memoryview(mmap.mmap(-1, PAGE)), 0)
        raise OSError("gone")
    assert list(tmp_path.iterdir()) == []


def test_journals_survive_torn_records(tmp_path):
    store, path = FolderStore(tmp_path), tmp_path / ".feedrate/journal-000000"
    path.parent.mkdir()
    with Journal(store, 0) as journal:
        for index in range(5):
            journal.add(index, 1000 + index, index)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    assert read_journals(store)["index"].tolist() == [0, 1, 2, 3]
    watch = JournalWatch(store, [0, 1])
    with Journal(store, 0) as journal:
        journal.add(4, 77, 9)
    with Journal(store, 1) as journal:
        journal.add(9, 100, 9)
    assert watch.now() == (2, 177)
    records = read_journals(store)
    assert records["index"].tolist() == [0, 1, 2, 3, 4, 9] and records["bytes"][4] == 77


@given(st.binary(max_size=200), st.integers(0, 119), st.integers(0, 255))
@settings(deadline=None)
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
    records = read_journals(store)
    known = records[records["index"] < 5]
    assert np.array_equal(known["bytes"], known["index"] + 1000)
