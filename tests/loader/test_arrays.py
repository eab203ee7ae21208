"""A sample that a training's library loads has the arrays that were written, whatever its format."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from contracts.format_contract import Sample, parts_of
from contracts.loader_contract import Files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.dataset.checksum import crc32
from emulator.dataset.formats import format_named
from emulator.loader.arrays import load_sample
from emulator.loader.reading import WholeReader
from emulator.registry import FORMATS
from emulator.storage.shaped import NodeLimiter, ShapedStorage

RECORDS = ("bytes", "jpeg", "tfrecord", "parquet")
"""Formats whose samples are no arrays."""


def labels(shape: tuple[int, ...], count: int, random: np.random.Generator) -> np.ndarray:
    """`count` labelled voxels close to each other: most planes are empty."""
    label = np.zeros(shape, np.uint8)
    if count:
        label[:, random.integers(shape[1])].reshape(-1)[random.integers(0, shape[2] * shape[3], count)] = 2
    return label


def as_files(folder: Path, form: str, parts: list[bytes]) -> Files:
    names = format_named(form).parts("sample" + format_named(form).suffix)
    for name, data in zip(names, parts, strict=True):
        (folder / name).write_bytes(data)
    whole = b"".join(parts)
    return Files(folder, form, ("sample" + format_named(form).suffix,), (len(whole),), (crc32(whole),))


def check(files: Files, arrays: dict[str, np.ndarray], block: int) -> None:
    """A sample has the arrays that were written: by path, as an open file, and with checksums."""
    form, named = format_named(files.format), files.storage()
    shaped = ShapedStorage(files.storage(), limiter := NodeLimiter.create(1e12, 0.0, 0))
    limiter.unlink()
    for storage, checksums in ((named, None), (shaped, None), (named, files.checksums)):
        found = load_sample(WholeReader(storage, files, form, block, checksums), 0)
        assert np.array_equal(np.squeeze(found["x"]), np.squeeze(arrays["x"]))
        assert np.array_equal(np.squeeze(found["y"]), np.squeeze(arrays["y"]))
    assert named.stats.snapshot().bytes == 2 * files.sizes[0]
    limiter.close()


@pytest.mark.parametrize(
    "form", [name for name, form in FORMATS.working() if form.written and name not in RECORDS]
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(st.just(1), st.integers(3, 40), st.integers(5, 60), st.integers(5, 60)),
    voxels=st.integers(0, 30),
    pages=st.integers(1, 30),
    seed=st.integers(0, 2**31),
)
def test_every_format_gives_the_arrays(tmp_path, form, shape, voxels, pages, seed):  # type: ignore[no-untyped-def]
    random = np.random.default_rng(seed)
    sample = Sample(random.random(shape, np.float32), labels(shape, voxels, random))
    files = as_files(tmp_path, form, list(parts_of(format_named(form), sample).values()))
    check(files, {"x": sample.x, "y": sample.y}, 4096 * pages)


@pytest.mark.parametrize("kind", ["stored", "deflated", "other types", "fortran", "y first"])
@pytest.mark.parametrize("pages", [1, 7])
def test_whatever_numpy_writes_is_read(tmp_path: Path, kind: str, pages: int) -> None:
    random = np.random.default_rng(3)
    image, label = random.random((30, 31, 32), np.float32), labels((1, 30, 31, 32), 9, random)[0]
    if kind == "other types":
        image, label = image.astype(">f8"), label.astype(np.int16)
    if kind == "fortran":
        image = np.asfortranarray(image)
    file = io.BytesIO()
    arrays = {"y": label, "x": image} if kind == "y first" else {"x": image, "y": label}
    (np.savez_compressed if kind == "deflated" else np.savez)(file, **arrays)
    files = as_files(tmp_path, "npz", [file.getvalue()])
    check(files, {"x": image, "y": label}, 4096 * pages)
