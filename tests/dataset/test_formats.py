"""The formats, each against the contract and against the library that others read it with."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path

import h5py
import nibabel as nib
import numpy as np
import pytest
from contracts.format_contract import FormatContract, Sample, make_sample, parts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.dataset.formats import format_named
from emulator.dataset.formats.numpy_files import npy_header, parse_npy
from emulator.errors import DatasetError

NPZ = format_named("npz")


class TestNpz(FormatContract):
    name = "npz"

    def open_elsewhere(self, files: list[Path], sample: Sample) -> None:
        with np.load(files[0], allow_pickle=True) as stored:  # as DLIO reads it: sums are checked
            assert np.array_equal(stored["x"], sample.x) and np.array_equal(stored["y"], sample.y)
        assert zipfile.ZipFile(files[0]).testzip() is None

    def test_arrays_lie_at_multiples_of_64_bytes(self) -> None:
        (data,) = parts_of(NPZ, make_sample((1, 3, 5, 7))).values()
        memory = np.frombuffer(data, np.uint8)
        for array in NPZ.arrays(memoryview(data), "a.npz").values():
            assert (array.ctypes.data - memory.ctypes.data) % 64 == 0


class TestNpyPair(FormatContract):
    name = "npy"

    def open_elsewhere(self, files: list[Path], sample: Sample) -> None:
        assert [file.name[-6:] for file in files] == ["_x.npy", "_y.npy"]
        assert np.array_equal(np.load(files[0]), sample.x) and np.array_equal(np.load(files[1]), sample.y)
        file = io.BytesIO()
        np.save(file, sample.x)
        assert file.getvalue() == files[0].read_bytes(), "byte for byte as numpy.save"


class _NiftiElsewhere:
    def open_elsewhere(self, files: list[Path], sample: Sample) -> None:
        for file, array in zip(files, (sample.x, sample.y), strict=True):
            image = nib.load(file)
            assert image.header.get_zooms() == pytest.approx((1.2, 1.2, 1.6))
            assert np.allclose(image.affine, np.diag([1.2, 1.2, 1.6, 1]))
            assert image.header.get_xyzt_units()[0] == "mm"
            assert image.shape == array.shape[:0:-1]
            assert image.get_data_dtype() == array.dtype
            assert np.array_equal(np.asanyarray(image.dataobj).T, array[0])


class TestNifti(_NiftiElsewhere, FormatContract):
    name = "nii"


class TestNiftiGz(_NiftiElsewhere, FormatContract):
    name = "nii.gz"
    exact = False
    zero_copy = False
    head_knows_the_size = False


class TestHdf5(FormatContract):
    name = "hdf5"
    exact = False

    def open_elsewhere(self, files: list[Path], sample: Sample) -> None:
        with h5py.File(files[0]) as stored:
            assert stored["x"].chunks is None, "contiguous"
            assert np.array_equal(stored["x"][...], sample.x) and np.array_equal(stored["y"][...], sample.y)

    def test_many_samples_a_file(self) -> None:
        sample = make_sample((4, 9, 8, 7))
        form = format_named("hdf5")
        (data,) = parts_of(form, sample).values()
        assert np.array_equal(form.arrays(memoryview(data), "a.h5")["x"], sample.x)

    def test_chunked_files_of_others_are_read(self) -> None:
        sample = make_sample((1, 9, 8, 7))
        file = io.BytesIO()
        with h5py.File(file, "w") as store:
            for key, array in (("x", sample.x), ("y", sample.y)):
                store.create_dataset(key, data=array, chunks=True, compression="gzip")
        found = format_named("hdf5").arrays(memoryview(file.getvalue()), "a.h5")
        assert np.array_equal(found["x"], sample.x)


class TestRaw(FormatContract):
    name = "raw"

    def open_elsewhere(self, files: list[Path], sample: Sample) -> None:
        stored = np.fromfile(files[0], "<f4", sample.x.size, offset=4096)
        assert np.array_equal(stored, sample.x.reshape(-1))
        assert files[0].stat().st_size % 4096 == 0


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("swapped", [False, True])
def test_npz_files_of_numpy_and_dlio_are_read(save, swapped):
    x, y = np.arange(6000, dtype=np.uint8).reshape(60, 100), [7]
    file = io.BytesIO()
    save(file, **({"y": y, "x": x} if swapped else {"x": x, "y": y}))
    data = memoryview(file.getvalue())
    NPZ.check_head(data[:4096], len(data), "dlio.npz")
    found = NPZ.arrays(data, "dlio.npz")
    assert np.array_equal(found["x"], x) and found["y"].tolist() == y


def test_a_pickle_is_refused_and_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "boom",))

    file = io.BytesIO()
    np.savez(file, x=np.array([Bomb()], dtype=object), y=np.array([1]))
    data = memoryview(file.getvalue())
    with pytest.raises(DatasetError, match="no pickled objects"):
        NPZ.arrays(data, "bomb.npz")
    with pytest.raises(DatasetError):
        NPZ.check_head(data[:4096], len(data), "bomb.npz")
    assert not (tmp_path / "boom").exists()


def _lying_npz(shape: str, compressed: bool) -> bytes:
    """An npz whose header claims the shape."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    npy = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(64)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as store:
        store.writestr("x.npy", npy)
        store.writestr("y.npy", npy)
    return file.getvalue()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "shape", ["(1000000000000,)", "(9,9,9,9,9,9,9,9,9)", "(99999999999999999999,)", "(-1,)"]
)
def test_a_header_that_promises_too_much_allocates_nothing(shape, compressed):
    data = _lying_npz(shape, compressed)
    tracemalloc.start()
    with pytest.raises(DatasetError):
        NPZ.arrays(memoryview(data), "lie.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_a_zip_bomb_is_refused():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as store:
        store.writestr("x.npy", npy_header((1 << 26,), "|u1") + bytes(1 << 26))
        store.writestr("y.npy", npy_header((1,), "|u1") + bytes(1))
    data = bytearray(file.getvalue())
    at = data.index(b"PK\1\2")
    data[at + 24 : at + 28] = (4096).to_bytes(4, "little")  # claims 4 KiB, holds 64 MiB
    tracemalloc.start()
    with pytest.raises(DatasetError):
        NPZ.arrays(memoryview(data), "bomb.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


@given(st.binary(max_size=400))
def test_fuzzed_npy_headers_are_dataset_errors(data):
    for head in (data, b"\x93NUMPY\x01\x00\x76\x00" + data, b"\x93NUMPY\x03\x00\x10\x00\x00\x00" + data):
        try:
            header = parse_npy(memoryview(head), "f.npy")
        except DatasetError:
            continue
        assert header.size >= 0 and header.offset <= len(head)


_ZIP = next(iter(parts_of(NPZ, make_sample((1, 4, 5, 6))).values()))


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(_ZIP) - 1), st.integers(0, 255)), min_size=1, max_size=12))
def test_fuzzed_npz_files_are_dataset_errors(changes):
    data = bytearray(_ZIP)
    for at, value in changes:
        data[at] = value
    for call in (
        lambda: NPZ.arrays(memoryview(data), "f.npz"),
        lambda: NPZ.check_head(memoryview(data)[:4096], len(data), "f.npz"),
    ):
        try:
            call()
        except DatasetError as error:
            assert str(error).startswith("f.npz")


@given(st.binary(max_size=300), st.integers(0, 2**63))
def test_any_bytes_are_a_dataset_error_for_every_format(data, size):
    for name in ("npz", "npy", "nii", "nii.gz", "hdf5", "raw"):
        form = format_named(name)
        with pytest.raises(DatasetError):
            form.check_head(memoryview(data), max(size, len(data)), "a" + form.suffix)
