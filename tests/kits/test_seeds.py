"""Seed volumes: KiTS19 as published, and the phantom."""

from __future__ import annotations

import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from command import feedrate
from hypothesis import given
from hypothesis import strategies as st

from emulator.config.recipe import load_recipe
from emulator.dataset.manifest import read_manifest
from emulator.errors import DatasetError
from emulator.plugins.kits.cases import Case, find_cases, preprocess
from emulator.plugins.kits.payload import load, prepare
from emulator.plugins.kits.phantom import phantom
from emulator.plugins.kits.volumes import padded, resample_image, resample_label

SPACING = (3.0, 0.8, 0.7)
SHAPE = (20, 60, 70)
KITS19 = np.array([[0, 0, -SPACING[2], 0], [0, -SPACING[1], 0, 0], [-SPACING[0], 0, 0, 0], [0, 0, 0, 1]])
"""KiTS19's affine: the file's first axis is the table's direction."""


def write_case(folder: Path, image: bool = True, suffix: str = ".nii.gz", turned: bool = False) -> np.ndarray:
    """A case with a gradient along z; `turned`: as most other programs store it, z last."""
    folder.mkdir(parents=True)
    z = np.arange(SHAPE[0], dtype=np.int16)[:, None, None] * 10
    data = np.broadcast_to(z, SHAPE).copy()
    label = np.zeros(SHAPE, np.uint8)
    label[5:9, 10:40, 20:50] = 1
    label[7:8, 20:25, 30:35] = 2
    affine = np.diag([*SPACING[::-1], 1]) if turned else KITS19
    for name, array in (("imaging", data), ("segmentation", label)):
        if image or name == "segmentation":
            nib.save(nib.Nifti1Image(array.T if turned else array, affine), folder / (name + suffix))
    return label


@pytest.mark.parametrize("suffix", [".nii.gz", ".nii"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_case_is_preprocessed_as_the_reference_does(tmp_path, suffix, turned):
    label = write_case(tmp_path / "case_00000", suffix=suffix, turned=turned)
    (case,) = find_cases(tmp_path)
    assert case.name == "case_00000"
    volume = preprocess(case, 0, 32)
    resampled = (int(20 * 3.0 / 1.6), int(60 * 0.8 / 1.2), int(70 * 0.7 / 1.2))
    assert volume.x.shape == volume.y.shape == tuple(max(edge, 32) for edge in resampled)
    assert volume.x.dtype == np.float32 and volume.y.dtype == np.uint8
    hu = volume.x * 76.9 + 101
    assert hu.min() == pytest.approx(0, abs=1e-3) and hu.max() == pytest.approx(190, abs=1e-3)
    assert np.all(np.diff(hu[:, 16, 16]) > 0), "depth is the first axis"
    assert (volume.y == 1).mean() == pytest.approx((label == 1).mean(), rel=0.25)


def test_intensities_are_clipped_and_scaled(tmp_path):
    folder = tmp_path / "case_00001"
    folder.mkdir()
    data = np.full((8, 40, 40), -2000.0)
    data[4:] = 3000.0
    image = nib.Nifti1Image(data, KITS19)
    image.header.set_data_dtype(np.int16)
    image.header.set_slope_inter(0.5, -24)
    nib.save(image, folder / "imaging.nii")
    nib.save(nib.Nifti1Image(np.zeros(data.shape, np.uint8), KITS19), folder / "segmentation.nii")
    volume = preprocess(find_cases(tmp_path)[0], 0, 1)
    assert volume.x.min() == pytest.approx((-79 - 101) / 76.9) and volume.x.max() == pytest.approx(
        (304 - 101) / 76.9
    )


def test_labels_without_an_image_get_phantom_intensities(tmp_path):
    write_case(tmp_path / "deep" / "case_00007", image=False)
    (case,) = find_cases(tmp_path)
    assert case.image is None
    volume = preprocess(case, 0, 32)
    assert volume.x[volume.y == 1].mean() > volume.x[volume.y == 0].mean() + 0.5
    assert volume.x.min() >= -2.35 and volume.x.max() <= 2.65


def test_labels_stay_whole_and_lengths_are_in_the_files_unit(tmp_path):
    label = write_case(tmp_path / "mm")
    for unit, per_mm in (("mm", 1.0), ("meter", 0.001), ("micron", 1000.0)):
        (tmp_path / unit).mkdir(exist_ok=True)
        scaled = nib.Nifti1Image(label.astype(np.float64), np.diag([per_mm] * 3 + [1]) @ KITS19)
        scaled.set_data_dtype(np.uint8)  # with a slope of 2 / 255
        scaled.header.set_xyzt_units(unit)
        nib.save(scaled, tmp_path / unit / "segmentation.nii.gz")
        (tmp_path / "links").mkdir(exist_ok=True)
        (tmp_path / "links" / unit).symlink_to(tmp_path / unit)
    volumes = [preprocess(case, 0, 1).y for case in find_cases(tmp_path / "links")]
    assert len(volumes) == 3
    for volume in volumes:
        assert np.allclose(volume.shape, volumes[-1].shape, atol=1)  # a length may be rounded down
        assert (volume == 1).mean() == pytest.approx((label == 1).mean(), rel=0.25)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0, 256.0])
def test_voxels_that_no_sample_can_hold_are_refused(tmp_path, wrong):
    label = np.zeros(SHAPE, np.float32)
    label[3, 3, 3] = wrong
    nib.save(nib.Nifti1Image(label, KITS19), tmp_path / "segmentation.nii")
    (case,) = find_cases(tmp_path)
    with pytest.raises(DatasetError, match="segmentation.nii has"):
        preprocess(case, 0, 1)
    (tmp_path / "imaging.nii").symlink_to(tmp_path / "not-fetched")
    assert find_cases(tmp_path)[0].image is not None, "no phantom in its place"


def test_mistakes_are_one_line(tmp_path):
    with pytest.raises(DatasetError, match="there is no folder"):
        find_cases(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match="no case with a segmentation"):
        find_cases(tmp_path)
    bad = tmp_path / "case_00000" / "segmentation.nii"
    bad.parent.mkdir()
    bad.write_bytes(b"hello")
    with pytest.raises(DatasetError, match="no readable NIfTI"):
        preprocess(Case("case_00000", None, bad), 0, 1)
    nib.save(nib.Nifti1Image(np.zeros(SHAPE, np.uint8), np.diag([1, 1, 1e20, 1])), bad)
    with pytest.raises(DatasetError, match="is no CT"):
        preprocess(Case("case_00000", None, bad), 0, 1)


def test_seeds_are_made_once_and_known_by_their_checksums(tmp_path):
    write_case(tmp_path / "kits" / "case_00000")
    write_case(tmp_path / "kits" / "case_00001")
    size = load_recipe("tiny").size
    cache = tmp_path / "cache"
    seeds = prepare(cache, tmp_path / "kits", size)
    assert [seed["name"] for seed in seeds] == ["case_00000", "case_00001"]
    stamps = {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")}
    assert prepare(cache, tmp_path / "kits", size) == seeds
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")} == stamps
    assert [volume.x.shape for volume in load(cache, seeds)] == [(37, 40, 40)] * 2
    phantoms = prepare(cache, None, size)
    assert {seed["sha256"] for seed in phantoms}.isdisjoint(seed["sha256"] for seed in seeds)
    assert len(load(cache, phantoms)) == len(phantoms)


def test_the_phantom_has_kits19s_share_of_organs():
    volume = phantom(load_recipe("tiny").size, 0)
    assert (volume.y == 1).mean() == pytest.approx(0.00684, rel=0.3)
    assert (volume.y == 2).mean() == pytest.approx(0.00168, rel=0.4)
    assert min(volume.y.shape) >= 32


@given(st.tuples(*[st.integers(1, 12)] * 3), st.integers(1, 9))
def test_padding_reaches_the_crop_and_keeps_the_inside(shape, edge):
    data = np.arange(np.prod(shape)).reshape(shape)
    result = padded(data, edge)
    assert all(new == max(old, edge) for new, old in zip(result.shape, shape, strict=True))
    inside = tuple(
        slice(m // 2, m // 2 + old) for m, old in zip(np.subtract(result.shape, shape), shape, strict=True)
    )
    assert np.array_equal(result[inside], data)


def test_resampling_is_torchs():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    data = rng.standard_normal((9, 14, 11)).astype(np.float32)
    label = rng.integers(0, 3, data.shape).astype(np.uint8)
    for target in ((5, 20, 11), (18, 7, 30), (1, 14, 3)):
        tensor = torch.from_numpy(data)[None, None]
        linear = torch.nn.functional.interpolate(tensor, target, mode="trilinear", align_corners=True)[
            0, 0
        ].numpy()
        assert np.allclose(resample_image(data, target), linear, atol=1e-5)
        nearest = torch.nn.functional.interpolate(
            torch.from_numpy(label)[None, None].float(), target, mode="nearest"
        )[0, 0].numpy()
        assert np.array_equal(resample_label(label, target), nearest)


def test_the_command_grows_from_real_cases(tmp_path):
    write_case(tmp_path / "kits" / "case_00000")
    write_case(tmp_path / "kits" / "case_00001", image=False)
    words = ("generate", tmp_path / "data", "--seeds", tmp_path / "kits", "--recipe", "tiny", "--files", 3)
    done = feedrate(*words)
    assert done.status == 0, done.err
    manifest = read_manifest(tmp_path / "data")
    assert [seed["name"] for seed in manifest.plan.seeds] == ["case_00000", "case_00001"]
    assert manifest.plan.recipe.payload == "ct-realistic"
    with np.load(tmp_path / "data" / "sample_0000000.npz", allow_pickle=True) as stored:
        assert stored["x"].dtype == np.float32 and set(np.unique(stored["y"])) <= {0, 1, 2}
    other = feedrate(
        "generate", tmp_path / "data", "--payload", "ct-realistic", "--recipe", "tiny", "--files", 3
    )
    assert "holds another dataset" in other.one_line() and "different: seeds)" in other.one_line()
    assert "complete already" in feedrate(*words).out
    for stored in (tmp_path / "data/.feedrate/seeds").glob("*/0000_x.npy"):
        stored.write_bytes(stored.read_bytes()[:999])
    (tmp_path / "data/sample_0000001.npz").unlink()
    assert "repeat the generate" in feedrate("verify", tmp_path / "data", "--repair").one_line()
    shutil.rmtree(tmp_path / "data/.feedrate/seeds")
    assert feedrate(*words).status == 0 and feedrate("verify", tmp_path / "data").status == 0
