"""The formats, each against the contract and against the library that others read it with."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import h5py
import nibabel as nib
import numpy as np
import pytest
from contracts.format_contract import FormatContract, Sample, make_sample, parts_of

from emulator.dataset.formats import format_named
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
        arrays = [data.index(b"\x93NUMPY"), data.rindex(b"\x93NUMPY")]  # their headers are of 128 bytes
        assert [at % 64 for at in arrays] == [0, 0]


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
        assert np.array_equal(form.load(io.BytesIO(data), "a.h5")["x"], sample.x)


class TestRaw(FormatContract):
    name = "raw"

    def open_elsewhere(self, files: list[Path], sample: Sample) -> None:
        stored = np.fromfile(files[0], "<f4", sample.x.size, offset=4096)
        assert np.array_equal(stored, sample.x.reshape(-1))
        assert files[0].stat().st_size % 4096 == 0


def test_a_pickle_is_refused_and_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "boom",))

    file = io.BytesIO()
    np.savez(file, x=np.array([Bomb()], dtype=object), y=np.array([1]))
    data = memoryview(file.getvalue())
    with pytest.raises(DatasetError, match="no pickled objects"):
        NPZ.check_head(data[:4096], len(data), "bomb.npz")
    with pytest.raises(ValueError, match="allow_pickle"):
        NPZ.load(io.BytesIO(data), "bomb.npz")
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(9,9,9,9,9,9,9,9,9)", "(9999999999999999,)", "(-1,)"])
def test_a_header_that_promises_too_much_is_refused(shape):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    npy = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(64)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as store:
        store.writestr("x.npy", npy)
        store.writestr("y.npy", npy)
    for name, data in (("npz", file.getvalue()), ("npy", npy)):
        with pytest.raises(DatasetError):
            format_named(name).check_head(memoryview(data)[:4096], len(data), "lie")
