"""The random crop of the reference 3D U-Net training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import DatasetError

OVERSAMPLING = 0.4
"""Share of the crops that are sure to hold a labelled voxel (MLPerf Training, 3D U-Net reference)."""

Array = NDArray[Any]

Search = Callable[[int], tuple[int, Array] | None]
"""First plane -> number and voxels of the first one from there on, around the end, with a label."""


def crop_of(
    arrays: Mapping[str, Array], edges: Sequence[int], random: np.random.Generator, name: str
) -> tuple[Array, Array]:
    """Views of image `x` and label `y` of one sample, cut to `edges` voxels; whole when there are none.

    Raises DatasetError when the sample has other axes or is smaller.
    """
    image, label = arrays["x"], arrays["y"]
    if not edges:
        return image, label
    shape = _cropped_shape(image.shape, label.shape, edges, name)
    image, label = image.reshape(shape), label.reshape(shape)

    def search(start: int) -> tuple[int, Array] | None:
        numbers = (*range(start, shape[0]), *range(start))
        return next(((number, label[number]) for number in numbers if label[number].any()), None)

    corner = _choose_corner(shape, edges, random, search)
    box = tuple(slice(start, start + edge) for start, edge in zip(corner, edges, strict=True))
    return image[box], label[box]


def _cropped_shape(
    image: tuple[int, ...], label: tuple[int, ...], edges: Sequence[int], name: str
) -> tuple[int, ...]:
    """The shape that is cropped: less the leading axis of length 1 that the reference puts first.

    Raises DatasetError when image and label differ in it, or `edges` do not fit into it.
    """
    image, label = (
        shape[1:] if len(shape) == len(edges) + 1 and shape[0] == 1 else shape for shape in (image, label)
    )
    if len(image) != len(edges) or image != label:
        raise DatasetError(
            f"the sample {name} has an image of shape {list(image)} and a label of shape {list(label)}, "
            f"which a crop of {list(edges)} voxels does not fit",
            "set loader.crop to [] to use samples whole",
        )
    if any(have < want for have, want in zip(image, edges, strict=True)):
        raise DatasetError(
            f"the sample {name} has {list(image)} voxels, fewer than the crop of {list(edges)}",
            "set loader.crop to a smaller one",
        )
    return image


def _choose_corner(
    shape: Sequence[int], edges: Sequence[int], random: np.random.Generator, search: Search
) -> tuple[int, ...]:
    """Lowest corner of the crop: anywhere in `shape`, or so that some labelled voxel lies inside.

    `search` is asked in the latter case only, with a random plane: a few planes instead of a pass over
    all of the label, which would cost as much as reading it.
    """
    room = [have - want for have, want in zip(shape, edges, strict=True)]
    corner = random.integers(0, room, endpoint=True)
    if random.random() < OVERSAMPLING:
        found = search(int(random.integers(shape[0])))
        if found is not None:
            depth, plane = found
            voxels = np.flatnonzero(plane)
            inside = np.unravel_index(voxels[random.integers(len(voxels))], plane.shape)
            voxel = np.array([depth, *inside], dtype=np.int64)
            low = np.maximum(0, voxel - np.asarray(edges) + 1)
            corner = random.integers(low, np.minimum(room, voxel), endpoint=True)
    return tuple(corner.tolist())
