"""A sample that a training's library loads has the arrays that were written, and crops of it are inside."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from contracts.format_contract import Sample, parts_of
from contracts.loader_contract import Files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.dataset.formats import format_named
from emulator.errors import DatasetError
from emulator.loader.arrays import crop_of, load_sample
from emulator.loader.reading import Reader
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
    return Files(folder, form, ("sample" + format_named(form).suffix,), (sum(map(len, parts)),))


def check(files: Files, arrays: dict[str, np.ndarray], block: int) -> None:
    """A sample has the arrays that were written: by path, and as an open file."""
    form, named = format_named(files.format), files.storage()
    shaped = ShapedStorage(files.storage(), limiter := NodeLimiter.create(1e12, 0.0, 0))
    limiter.unlink()
    for storage in (named, shaped):
        found = load_sample(Reader(storage, files, form, block), 0)
        assert np.array_equal(np.squeeze(found["x"]), np.squeeze(arrays["x"]))
        assert np.array_equal(np.squeeze(found["y"]), np.squeeze(arrays["y"]))
    assert named.stats.snapshot().bytes == files.sizes[0]
    limiter.close()


@pytest.mark.parametrize(
    "form", [name for name, form in FORMATS.working() if form.written and name not in RECORDS]
)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def sample(shape: tuple[int, ...], labelled: tuple[int, ...] | None = None) -> dict[str, np.ndarray]:
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    label = np.zeros(shape, np.uint8)
    if labelled is not None:
        label[labelled] = 1
    return {"x": image, "y": label}


@given(st.data())
def test_crops_are_inside_and_image_and_label_agree(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(*[st.integers(1, 9)] * 3))
    edges = [data.draw(st.integers(1, edge)) for edge in shape]
    voxel = tuple(data.draw(st.integers(0, edge - 1)) for edge in shape)
    arrays = sample(shape, voxel)
    image, label = crop_of(arrays, edges, np.random.default_rng(data.draw(st.integers(0, 99))), "s")
    assert list(image.shape) == list(label.shape) == edges
    assert np.array_equal(arrays["y"].ravel()[image.astype(int)], label)


def test_labelled_voxels_are_oversampled() -> None:
    arrays = sample((1, 64, 64, 64), (0, 10, 20, 60))
    hits = sum(crop_of(arrays, (8, 8, 8), np.random.default_rng(seed), "s")[1].any() for seed in range(1000))
    assert 340 < hits < 470  # 0.4 forced, and a few that hit it by chance


def test_without_labels_crops_are_plain_random_ones() -> None:
    arrays = sample((16, 16, 16))
    randoms = [np.random.default_rng(seed) for seed in range(200)]
    corners = {crop_of(arrays, (15, 15, 15), random, "s")[0][0, 0, 0] for random in randoms}
    assert len(corners) == 8


def test_other_axes_and_small_samples_are_refused() -> None:
    random = np.random.default_rng(0)
    with pytest.raises(DatasetError, match=r"s has \[4, 4, 4\] voxels, fewer than the crop of \[5, 4, 4\]"):
        crop_of(sample((4, 4, 4)), (5, 4, 4), random, "s")
    with pytest.raises(DatasetError, match=r"shape \[4, 4\].*set loader.crop to \[\]"):
        crop_of(sample((4, 4)), (2, 2, 2), random, "s")


@pytest.mark.parametrize("edge", [20, 60])
def test_np_load_of_a_shaped_file_takes_its_bytes_once(tmp_path: Path, edge: int) -> None:
    shape = (1, edge, edge, edge)
    arrays = {"x": np.random.default_rng(1).random(shape, np.float32), "y": np.zeros(shape, np.uint8)}
    np.savez(tmp_path / "made.npz", **arrays)
    files = as_files(tmp_path, "npz", [(tmp_path / "made.npz").read_bytes()])
    storage = ShapedStorage(files.storage(), limiter := NodeLimiter.create(1e12, 0.0, 0))
    limiter.unlink()
    with closing(limiter):
        load_sample(Reader(storage, files, format_named("npz"), 2**20), 0)
    assert storage.stats.snapshot().bytes < 1.05 * files.sizes[0]
