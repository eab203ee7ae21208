"""Files of bytes: which parts of a file a sample is."""

from __future__ import annotations

import json
import os
from itertools import pairwise

from command import feedrate
from hypothesis import given
from hypothesis import strategies as st

from emulator.dataset.formats.bytes import Stretches
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
        "[loader]\nbatch_size = 2\nworkers = 2\nprefetch = 2\nblock_bytes = 4096\ncrop = []\n"
        '[accelerator]\nname = "a"\nstep_seconds = 0.001\nstep_batch_size = 2\nprovenance = "chosen"\n'
    )
    out = tmp_path / "out"
    words = ("run", tmp_path / "data", "-w", workload, "--loader", "direct", "--steps", "5", "--out", out)
    done = feedrate(*words)
    assert done.status == 0, done.err
    (point,) = json.loads((out / "run.json").read_text())["points"]
    assert point["samples"] == 10 and 500_000 <= point["bytes"] < 500_120
