"""Crops out of a stream of blocks are those of the arrays in memory, and every byte is read once."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from contracts.format_contract import Sample, parts_of
from contracts.loader_contract import Files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.dataset.checksum import crc32
from emulator.dataset.formats import format_named
from emulator.loader.crop import CropReader, copy_box, crop_of
from emulator.loader.reading import WholeReader
from emulator.registry import FORMATS


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


def check(files: Files, arrays: dict[str, np.ndarray], edges: tuple[int, ...], pages: int, seed: int) -> None:
    storage = files.storage()
    whole = WholeReader(storage, files, format_named(files.format), 4096 * pages, files.checksums)
    made: list[np.ndarray] = []

    def allocate(shape: tuple[int, ...]) -> list[np.ndarray]:
        made[:] = [np.full(shape, 77, np.float32), np.full(shape, 77, np.uint8)]
        return made

    reader = CropReader(whole, edges)
    for turn in range(2):  # the second one in used buffers
        reader.read(0, np.random.default_rng(seed + turn), allocate, lambda: False)
        expected = crop_of(arrays, edges, np.random.default_rng(seed + turn), "s")
        assert np.array_equal(made[0], expected[0]) and np.array_equal(made[1], expected[1])
    assert storage.stats.snapshot().bytes == 2 * files.sizes[0]


@pytest.mark.parametrize(
    "form", [name for name, form in FORMATS.working() if form.written and name != "bytes"]
)  # it has no arrays
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(st.just(1), st.integers(3, 40), st.integers(5, 60), st.integers(5, 60)),
    voxels=st.integers(0, 30),
    pages=st.integers(1, 30),
    seed=st.integers(0, 2**31),
    crop=st.booleans(),
)
def test_streamed_crops_are_those_of_the_arrays(tmp_path, form, shape, voxels, pages, seed, crop):  # type: ignore[no-untyped-def]
    random = np.random.default_rng(seed)
    sample = Sample(random.random(shape, np.float32), labels(shape, voxels, random))
    files = as_files(tmp_path, form, list(parts_of(format_named(form), sample).values()))
    edges = tuple(int(random.integers(1, edge + 1)) for edge in shape[1:]) if crop else ()
    check(files, {"x": sample.x, "y": sample.y}, edges, pages, seed)


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
    for seed in range(8):
        check(files, {"x": image.astype(np.float32), "y": label}, (8, 9, 10), pages, seed)


@given(st.data())
def test_a_box_is_put_together_from_pieces_in_any_order(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    array = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    corner = [data.draw(st.integers(0, edge - 1)) for edge in shape]
    edges = [data.draw(st.integers(1, edge - at)) for edge, at in zip(shape, corner, strict=True)]
    cuts = sorted({0, array.size, *data.draw(st.lists(st.integers(0, array.size), max_size=6))})
    pieces = data.draw(st.permutations(list(pairwise(cuts))))
    target = np.zeros(edges, np.uint8)
    for begin, end in pieces:
        copy_box(target, corner, shape, begin, array.reshape(-1)[begin:end])
    box = tuple(slice(at, at + edge) for at, edge in zip(corner, edges, strict=True))
    assert np.array_equal(target, array[box])
