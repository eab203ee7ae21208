"""Samples out of files that hold many: both loaders read what the plan asks for, and nothing else."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from contracts.format_contract import make_sample, parts_of, written
from contracts.loader_contract import SPEC, Files, whole_files

from emulator.config.recipe import load_recipe
from emulator.config.workload import AccessSpec
from emulator.dataset.formats import format_named
from emulator.dataset.grow import random_sources
from emulator.errors import DatasetError
from emulator.loader import make_loader
from emulator.loader.reading import Reader
from emulator.order import EpochPlan, Portion, Read, portions
from emulator.storage.posix import PosixStorage, evict, probe_direct, resident_pages
from emulator.storage.shaped import NodeLimiter, ShapedStorage

EACH = 20
RECORDS = replace(SPEC, crop=(), block_bytes=4096, prefetch=4)
SEQUENTIAL = AccessSpec(pattern="sequential", streams=3, shuffle_buffer=8)


def write_many(folder: Path, form: str, count: int = 5) -> Files:
    """`count` files of 20 samples of 1200 bytes."""
    names, sizes = [], []
    for number in range(count):
        (data,) = parts_of(format_named(form), make_sample((EACH, 4, 5, 12), seed=number)).values()
        names.append(f"many{number}{format_named(form).suffix}")
        (folder / names[-1]).write_bytes(data)
        sizes.append(len(data))
    return Files(folder, form, tuple(names), tuple(sizes), EACH)


def read_all(kind, files, access, *, ranks=1, direct=False, spec=RECORDS):
    """Batches of each rank over one epoch, and what the storage was asked for.

    Torch reads random samples without worker processes, which take seconds to start.
    """
    if kind == "torch" and access.pattern == "random":
        spec = replace(spec, prefetch=0)
    plan = EpochPlan(
        samples=len(files.names) * EACH, ranks=ranks, batch_size=5, samples_per_file=EACH, access=access
    )
    storage = PosixStorage(files.folder, direct=direct, cache="warm")
    found = []
    for rank in range(ranks):
        with closing(make_loader(kind, spec, storage, files, access=access)) as loader:
            found.append(list(loader.read(portions(plan, rank, 7, 0))))
    return found, storage.stats.snapshot()


@pytest.mark.parametrize("refill", ["epoch", "never"])
@pytest.mark.parametrize("kind", ["direct", "torch"])
def test_what_the_kernel_has_read_ahead_stays_for_an_epoch(kind, refill, tmp_path):
    """A file of many samples is evicted when an epoch begins, not with each sample."""
    files = write_many(tmp_path, "bytes", 1)
    path = tmp_path / files.names[0]

    def resident():
        with path.open("rb") as file:
            return resident_pages(file.fileno(), 0, files.sizes[0])[1]

    with path.open("rb") as file:
        os.fsync(file.fileno())
        evict(file.fileno())
    if resident():
        pytest.skip("this file system keeps its pages")
    loader = make_loader(
        kind, replace(RECORDS, refill=refill), PosixStorage(tmp_path, direct=False, cache="cold"), files
    )
    for epoch in range(2):
        path.read_bytes()
        batches = loader.read([Portion(1, (Read(0, 7),), epoch)])
        next(batches)
        assert 0 < resident() < 4, "of 6 pages, those that were read"
        list(batches)
    loader.close()


@pytest.mark.parametrize("kind", ["direct", "torch"])
@pytest.mark.parametrize("form", ["tfrecord", "hdf5"])
def test_single_samples_are_read_to_the_byte(kind, form, tmp_path):
    files = write_many(tmp_path, form)
    ((batches), counts) = read_all(kind, files, AccessSpec())
    each = sum(files.sizes) // 100 if form == "tfrecord" else 1200
    assert [(batch.samples, batch.bytes) for batch in batches[0]] == [(5, 5 * each)] * 20
    if form == "tfrecord":
        assert counts.bytes == sum(files.sizes) and counts.reads == 100


@pytest.mark.parametrize("kind", ["direct", "torch"])
def test_streams_read_every_block_once_and_ahead_of_the_buffer(kind, tmp_path):
    files = write_many(tmp_path, "tfrecord")
    (batches,), counts = read_all(kind, files, SEQUENTIAL)
    assert sum(batch.samples for batch in batches) == 100
    blocks = sum(-(-size // 4096) for size in files.sizes)
    assert blocks <= counts.reads <= blocks + SEQUENTIAL.streams, "a stream may begin within a block"
    assert sum(batch.bytes for batch in batches) == counts.bytes
    assert sum(batch.bytes for batch in batches[:1]) > 10 * 1200, "the buffer is filled first"
    assert batches[-1].bytes == 0, "the last are drawn from what is there"


@pytest.mark.parametrize("access", [AccessSpec(), SEQUENTIAL], ids=["random", "sequential"])
def test_o_direct_reads_the_same(access, tmp_path):
    if not probe_direct(tmp_path):
        pytest.skip("no O_DIRECT here")
    files = write_many(tmp_path, "tfrecord")
    with_direct, counts = read_all("direct", files, access, direct=True)
    without, _ = read_all("direct", files, access)
    assert with_direct == without
    assert counts.bytes >= sum(batch.bytes for batch in with_direct[0])


def test_columns_of_row_groups_are_read_once(tmp_path):
    columns = [f'{{name="c{number}", dtype="float32", size=50}}' for number in range(5)]
    recipe = load_recipe("dlrm", [f"columns=[{','.join(columns)}]", "row_group=5", "samples_per_file=20"])
    names, sizes = [], []
    for number in range(4):
        sources = random_sources("incompressible", 0, number)
        ((data,), _) = written(format_named(recipe.format).of(recipe), (EACH, 1, 1, 1), sources)
        names.append(f"rows{number}.parquet")
        (tmp_path / names[-1]).write_bytes(data)
        sizes.append((tmp_path / names[-1]).stat().st_size)
    files = Files(tmp_path, "parquet", tuple(names), tuple(sizes), EACH)
    access = AccessSpec(pattern="sequential", columns=("c1", "c3"))
    (batches,), counts = read_all("direct", files, access)
    assert [batch.samples for batch in batches] == [5] * 16
    assert len({batch.bytes for batch in batches}) == 1, "a row group a step"
    assert 2 * 5 * 200 <= batches[0].bytes < 2 * 5 * 200 + 2 * 100, "two columns, and their pages' heads"
    assert counts.reads == 4 * 2 + 16 * 2, "two requests for a footer, one for a column chunk"
    with pytest.raises(DatasetError, match="no column 'c9'"):
        read_all("direct", files, replace(access, columns=("c9",)))


def test_what_cannot_be_done_is_one_line(tmp_path):
    files = write_many(tmp_path, "hdf5")
    with pytest.raises(DatasetError, match=r"loader\.crop=\[\]"):
        read_all("torch", files, AccessSpec(), spec=SPEC)
    (tmp_path / files.names[1]).write_bytes(b"short")
    with pytest.raises(DatasetError, match=r"many1\.h5 has 5 bytes, but the manifest says"):
        read_all("direct", files, AccessSpec())


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize("form", ["tfrecord", "jpeg"])
def test_whole_files_of_records_become_tensors_of_their_bytes(form, shaped, tmp_path):
    from emulator.loader.worker import RecordReader

    (data,) = parts_of(format_named(form), make_sample((1, 9, 9, 9))).values()
    (tmp_path / "one").write_bytes(data)
    files = Files(tmp_path, form, ("one",), (len(data),))
    storage = files.storage()
    if shaped:
        storage = ShapedStorage(storage, NodeLimiter.create(1e12, 0.0, 0))
        storage.limiter.unlink()
    reader = RecordReader(Reader(storage, files, format_named(form), 4096))
    (tensor,), size, _ = reader.load(whole_files((0, 0)))
    assert np.array_equal(tensor.numpy(), np.frombuffer(data * 2, np.uint8)) and size == 2 * len(data)
