"""The random crop: inside of the sample, everywhere in it, with labels often enough."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import DatasetError
from emulator.loader.arrays import crop_of


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
