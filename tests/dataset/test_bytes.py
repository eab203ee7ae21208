"""Files of bytes: which parts of a file a sample is."""

from __future__ import annotations

import json
import os
from itertools import pairwise

from command import feedrate
from hypothesis import example, given
from hypothesis import strategies as st

from emulator.config.workload import AccessSpec
from emulator.dataset.formats.bytes import Bytes, Stretches
from emulator.order import Read

SIZES = st.integers(1, 10**12)


@given(size=SIZES, samples=st.integers(1, 1000))
def test_samples_cover_a_file_once(size, samples):
    index = Stretches("f", size, samples)
    at = 0
    for number in range(samples):
        for extent in index.extents(Read(0, number), 4096):
            assert extent.offset == at and extent.size > 0
            at += extent.size
    assert at == size


@example(size=513, samples=4, wanted=128)
@given(size=SIZES, samples=st.integers(1, 50), wanted=st.integers(1, 10**7))
def test_a_part_lies_in_its_sample_or_overlaps_the_next_if_it_is_longer(size, samples, wanted):
    index = Stretches("f", size, samples, wanted)
    for number in range(samples):
        begin, end = size * number // samples, size * (number + 1) // samples
        (found,) = index.extents(Read(0, number), 4096)
        assert [found] == index.extents(Read(0, number), 8192)
        assert found.size == min(wanted, size)
        assert found.offset >= begin or found.size > end - begin
        assert found.offset + found.size <= (end if found.size <= end - begin else size)


LAYOUT = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**5)), min_size=1, max_size=9)


@given(size=SIZES, samples=st.integers(1, 50), layouts=st.lists(LAYOUT, min_size=1, max_size=5))
def test_a_sample_is_read_in_the_places_of_one_of_the_recorded_ones(size, samples, layouts):
    places = tuple(tuple(number for place in layout for number in place) for layout in layouts)
    index = Stretches("f", size, samples, 1, places)
    for number in range(samples):
        found = index.extents(Read(0, number), 4096)
        assert all(one.offset >= 0 and one.offset + one.size <= size for one in found)
        if max(at + length for layout in layouts for at, length in layout) <= size:
            assert [one.size for one in found] in [[length for _, length in layout] for layout in layouts]


def test_files_of_one_sample_are_read_as_different_ones():
    """Where places are recorded, they are those of a whole file, with its header at its start."""
    places = tuple((0, 100 * number) for number in range(1, 9))
    found = {Stretches(f"file {n}", 10**6, 1, 450, places).extents(Read(0), 4096)[0] for n in range(100)}
    assert found == {(0, size) for size in range(100, 900, 100)}
    parts = {Stretches(f"file {n}", 10**6, 1, 450).extents(Read(0), 4096)[0] for n in range(100)}
    assert len({one.offset for one in parts}) > 90


def test_samples_that_overlap_share_whole_chunks():
    places = ((0, 4096, 40_000, 8192), (100, 4096, 9000, 8192), (0, 17, 50_000, 4096))
    access = AccessSpec(bytes_read=10_000, places=5 * places[:2] + places)
    index = Bytes(access).index(lambda offset, length: memoryview(b""), 10**6, "f", 100, ())
    extents = [one for number in range(100) for one in index.extents(Read(0, number), 4096)]
    assert {extent.offset % 4096 for extent in extents} == {0}
    assert len({extent.offset for extent in extents}) > 50


@given(size=SIZES, samples=st.integers(1, 300), cuts=st.sets(st.integers(1, 299)))
def test_a_stream_reads_every_block_once(size, samples, cuts):
    index, block, at = Stretches("f", size, samples), 4096, 0
    borders = [0, *sorted(cut for cut in cuts if cut < samples), samples]
    for first, last in pairwise(borders):
        for extent in index.extents(Read(0, first, last - first, "on" if first else "start"), block):
            assert extent.offset == at
            at += extent.size
    assert at == size


def test_any_files_are_adopted_as_bytes_and_their_pieces_read(tmp_path):
    (tmp_path / "data" / "sub").mkdir(parents=True)
    for number in range(12):
        (tmp_path / "data" / "sub" / f"{number}.anything").write_bytes(os.urandom(50_000 + number))
    assert feedrate("adopt", tmp_path / "data").status == 3
    done = feedrate("adopt", tmp_path / "data", "--format", "bytes")
    assert done.status == 0, done.err
    workload = tmp_path / "w.toml"
    workload.write_text(
        'name = "w"\ntitle = "pieces"\n[sample]\nformat = "bytes"\nbytes_mean = 50005\n'
        "[access]\nbytes_read = 5000\nplaces = [[0, 1250, 9000, 1250, 20000, 1250, 30000, 1250]]\n"
        "[loader]\nbatch_size = 2\nworkers = 2\nprefetch = 2\nblock_bytes = 4096\ncrop = []\n"
        '[accelerator]\nname = "a"\nstep_seconds = 0.001\nstep_batch_size = 2\nprovenance = "chosen"\n'
    )
    out = tmp_path / "out"
    words = ("run", tmp_path / "data", "-w", workload, "--loader", "direct", "--steps", "5", "--out", out)
    done = feedrate(*words)
    assert done.status == 0, done.err
    (point,) = json.loads((out / "run.json").read_text())["points"]
    assert (point["samples"], point["bytes"]) == (10, 50_000)
