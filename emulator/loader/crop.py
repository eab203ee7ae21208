"""The random crop of the reference 3D U-Net training: where it lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import DatasetError

OVERSAMPLING = 0.4
"""Share of the crops that are sure to hold a labelled voxel (MLPerf Training, 3D U-Net reference)."""


def crop_of(
    arrays: Mapping[str, NDArray[Any]], edges: Sequence[int], random: np.random.Generator, name: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Views of image `x` and label `y` of one sample, cut to `edges` voxels; whole when there are none.

    Raises DatasetError when the sample has other axes or is smaller.
    """
    image, label = _without_channel(arrays["x"], edges), _without_channel(arrays["y"], edges)
    if not edges:
        return image, label
    if image.ndim != len(edges) or image.shape != label.shape:
        raise DatasetError(
            f"the sample {name} has an image of shape {list(image.shape)} and a label of shape "
            f"{list(label.shape)}, which a crop of {list(edges)} voxels does not fit",
            "set loader.crop to [] to use samples whole",
        )
    room = [have - want for have, want in zip(image.shape, edges, strict=True)]
    if min(room) < 0:
        raise DatasetError(
            f"the sample {name} has {list(image.shape)} voxels, fewer than the crop of {list(edges)}",
            "set loader.crop to a smaller one",
        )
    corner = random.integers(0, room, endpoint=True)
    if random.random() < OVERSAMPLING:
        voxel = _labelled_voxel(label, random)
        if voxel is not None:
            low = np.maximum(0, voxel - np.asarray(edges) + 1)
            corner = random.integers(low, np.minimum(room, voxel), endpoint=True)
    place = tuple(slice(start, start + edge) for start, edge in zip(corner.tolist(), edges, strict=True))
    return image[place], label[place]


def _without_channel(array: NDArray[Any], edges: Sequence[int]) -> NDArray[Any]:
    """Without the leading axis of length 1 that the reference's preprocessing puts first."""
    return array[0] if edges and array.ndim == len(edges) + 1 and array.shape[0] == 1 else array


def _labelled_voxel(label: NDArray[Any], random: np.random.Generator) -> NDArray[np.int64] | None:
    """Some voxel that is not background, None when there is none.

    Looks from a random plane on for one with labels, and takes a random voxel there: a few planes
    instead of a pass over all of the label, which would cost as much as reading it.
    """
    start = int(random.integers(label.shape[0]))
    for step in range(label.shape[0]):
        depth = (start + step) % label.shape[0]
        plane = label[depth]
        if plane.any():
            found = np.flatnonzero(plane)
            inside = np.unravel_index(found[random.integers(len(found))], plane.shape)
            return np.array([depth, *inside], dtype=np.int64)
    return None
