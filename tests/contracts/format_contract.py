"""The contract of a file format: a class that the tests of each format inherit."""

from __future__ import annotations

import io
import mmap
import os
import random
import subprocess
import sys
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from emulator.dataset.formats import format_named
from emulator.dataset.formats.base import Format, MemorySource, Peek, Shape, Sources, write_file
from emulator.errors import DatasetError
from emulator.units import BLOCK_BYTES

SHAPES = [(1, 5, 6, 7), (1, 33, 40, 37), (1, 128, 16, 16)]


class Sample(NamedTuple):
    """Image and label of a volume, or of several volumes of the same shape."""

    x: np.ndarray
    y: np.ndarray


def make_sample(shape: tuple[int, ...], seed: int = 0) -> Sample:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape, dtype=np.float32)
    return Sample(x, rng.integers(0, 3, shape, dtype=np.uint8))


class MemoryDraft:
    """A draft in memory that takes whole pages only, as O_DIRECT does."""

    def __init__(self) -> None:
        self.data = bytearray()

    def put(self, memory: memoryview, at: int) -> None:
        assert at % BLOCK_BYTES == 0 and len(memory) % BLOCK_BYTES == 0
        assert np.frombuffer(memory, np.uint8).ctypes.data % BLOCK_BYTES == 0
        self.data[at : at + len(memory)] = memory

    def end(self, size: int) -> None:
        assert len(self.data) - BLOCK_BYTES < size <= len(self.data), "whole pages, and no page too many"
        assert not any(self.data[size:]), "zeros behind the end"
        del self.data[size:]


def written(
    form: Format, shape: Shape, sources: Sources, buffer: memoryview | None = None
) -> tuple[list[bytes], list[int]]:
    """Write the files of a sample; returns their bytes and their checksums."""
    memory = buffer or memoryview(mmap.mmap(-1, 16 * BLOCK_BYTES))
    files, sums = [], []
    for pieces in form.files(shape, sources):
        draft = MemoryDraft()
        crc, size = write_file(draft, pieces, sources, memory)  # type: ignore[arg-type]
        assert size == len(draft.data)
        files.append(bytes(draft.data))
        sums.append(crc)
    return files, sums


def sources_from(sample: Sample) -> Sources:
    return {"x": MemorySource(sample.x.tobytes()), "y": MemorySource(sample.y.tobytes())}


def parts_of(form: Format, sample: Sample) -> dict[str, bytes]:
    """Write the files of a sample; returns their bytes by name."""
    files, _ = written(form, sample.x.shape, sources_from(sample))
    return dict(zip(form.parts("sample_0000000" + form.suffix), files, strict=True))


def peek_into(data: bytes | bytearray) -> Peek:
    """A Peek into bytes in memory, which fails outside of them."""

    def peek(offset: int, length: int) -> memoryview:
        assert min(offset, length) >= 0 and offset + length <= len(data)
        return memoryview(data)[offset : offset + length]

    return peek


class FormatContract:
    """Inherit and set `name`."""

    name: str

    @pytest.fixture
    def form(self) -> Format:
        return format_named(self.name)

    @pytest.fixture(params=SHAPES, ids=str)
    def sample(self, request: pytest.FixtureRequest) -> Sample:
        return make_sample(request.param)

    def test_what_is_written_is_loaded(self, form: Format, sample: Sample, tmp_path: Path) -> None:
        found: dict[str, np.ndarray] = {}
        for name, data in parts_of(form, sample).items():
            form.check_head(memoryview(data)[:4096], len(data), name)
            if form.records:
                continue
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(data)
            by_path = form.load(str(tmp_path / name), name)
            by_file = form.load(io.BytesIO(data), name)  # as objects are loaded
            assert all(np.array_equal(by_file[key], array) for key, array in by_path.items())
            found |= by_path
        if form.records:
            return
        assert set(found) == {"x", "y"}
        assert found["x"].dtype == np.float32 and found["y"].dtype == np.uint8
        for array, expected in ((found["x"], sample.x), (found["y"], sample.y)):
            assert array.shape in (expected.shape, expected.shape[1:])
            assert np.array_equal(array.reshape(expected.shape), expected)

    def test_a_load_imports_no_other_package(self, form: Format, tmp_path: Path) -> None:
        """Workers of the torch loader would pay for it after the first step, where no training does."""
        if form.records:
            return
        for name, data in parts_of(form, make_sample(SHAPES[0])).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(data)
            code = f"""
import importlib, sys
from emulator.dataset.formats import format_named
form = format_named({self.name!r})
for package in form.imports: importlib.import_module(package)
before = set(sys.modules)
form.load({str(tmp_path / name)!r}, {name!r})
files = {{name: getattr(sys.modules[name], "__file__", "") or "" for name in set(sys.modules) - before}}
print(*{{name.partition(".")[0] for name, file in files.items() if "site-packages" in file}})
"""
            there = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            done = subprocess.run(
                [sys.executable, "-c", code], env=there, capture_output=True, text=True, check=True
            )
            assert set(done.stdout.split()) <= {package.partition(".")[0] for package in form.imports}

    def test_checksum_and_plan_agree_with_the_bytes(self, form: Format, sample: Sample) -> None:
        files, sums = written(form, sample.x.shape, sources_from(sample))
        assert sums == [zlib.crc32(data) for data in files]
        planned = form.planned_bytes(sample.x.size)
        actual = sum(len(data) for data in files)
        assert actual == planned if self.exact else actual <= planned

    exact = True
    """True when planned_bytes is exact, False when it is an upper estimate."""

    def test_same_sample_same_bytes_through_a_small_used_buffer(self, form: Format, sample: Sample) -> None:
        buffer = memoryview(mmap.mmap(-1, BLOCK_BYTES))
        other = make_sample((1, 40, 41, 42), seed=9)
        written(form, other.x.shape, sources_from(other), buffer)
        files, sums = written(form, sample.x.shape, sources_from(sample), buffer)
        assert files == list(parts_of(form, sample).values())
        assert sums == [zlib.crc32(data) for data in files]

    head_knows_the_size = True
    """True when the first block tells the length of the file."""

    def test_the_head_of_a_cut_file_is_refused(self, form: Format) -> None:
        for name, data in parts_of(form, make_sample(SHAPES[1])).items():
            lengths = (0, 3, 100, *((4096, len(data) // 2) if self.head_knows_the_size else ()))
            for length in lengths:
                with pytest.raises(DatasetError) as error:
                    form.check_head(memoryview(data)[: min(length, 4096)], length, name)
                assert name in str(error.value)

    def test_garbage_is_a_dataset_error_and_nothing_else(self, form: Format) -> None:
        rng = random.Random(1)
        for name, data in parts_of(form, make_sample(SHAPES[0])).items():
            for _ in range(150):
                broken = bytearray(data)
                for _ in range(rng.randint(1, 8)):
                    broken[rng.randrange(min(len(broken), 600))] = rng.randrange(256)
                try:
                    form.check_head(memoryview(broken)[:4096], len(broken), name)
                except DatasetError as error:
                    assert name in str(error) and "\n" not in str(error)

    def test_other_programs_open_it(self, form: Format, tmp_path: Path) -> None:
        """Read the files with the library that users of the format have."""
        sample = make_sample(SHAPES[1])
        files = []
        for name, data in parts_of(form, sample).items():
            files.append(tmp_path / name)
            files[-1].parent.mkdir(exist_ok=True)
            files[-1].write_bytes(data)
        self.open_elsewhere(files, sample)

    def open_elsewhere(self, files: list[Path], sample: Sample) -> None:
        raise NotImplementedError
