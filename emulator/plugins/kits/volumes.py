"""Seed volumes, and how a CT becomes one: resampled, clipped, normalised, padded.

All as in the reference training of 3D U-Net. Arrays have the shape (depth, height, width).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.float32]
Label = NDArray[np.uint8]
Shape3 = tuple[int, int, int]
"""Depth, height, width in voxels."""

KIDNEY, TUMOUR = 1, 2
"""Labels; 0 is everything else."""


@dataclass(frozen=True, slots=True)
class SeedVolume:
    """A preprocessed case or a phantom."""

    x: Image
    """Normalised intensities."""
    y: Label


class Weights(NamedTuple):
    """How the points of a new axis are interpolated between those of an old one."""

    first: NDArray[np.int64]
    """Index of the neighbour before each point."""
    second: NDArray[np.int64]
    """Index of the neighbour behind it."""
    share: Image
    """Weight of the second neighbour, 0 to 1."""


def weights(source: int, target: int) -> Weights:
    """Place `target` points evenly between `source` points, corners on corners."""
    place = np.arange(target) * ((source - 1) / max(target - 1, 1))
    first = np.minimum(place.astype(np.int64), source - 1)
    second = np.minimum(first + 1, source - 1)
    return Weights(first, second, (place - first).astype(np.float32))


def resample_plane(plane: Image, rows: Weights, columns: Weights) -> Image:
    """Resample a plane bilinearly."""
    first, second, share = rows
    plane = plane[first] * (1 - share)[:, None] + plane[second] * share[:, None]
    first, second, share = columns
    return plane[:, first] * (1 - share) + plane[:, second] * share


def resample_image(data: NDArray[Any], shape: Shape3) -> Image:
    """Resample trilinearly, with corners aligned."""
    depth, rows, columns = (weights(old, new) for old, new in zip(data.shape, shape, strict=True))
    result = np.empty(shape, np.float32)
    planes: dict[int, Image] = {}
    for z in range(shape[0]):
        share = depth.share[z]
        before, behind = int(depth.first[z]), int(depth.second[z])
        # Neighbouring planes of the result lie between the same two: only these are kept.
        planes = {number: plane for number, plane in planes.items() if number in (before, behind)}
        for number in (before, behind):
            if number not in planes:
                planes[number] = resample_plane(data[number].astype(np.float32), rows, columns)
        result[z] = planes[before] * (1 - share) + planes[behind] * share
    return result


def resample_label(data: NDArray[Any], shape: Shape3) -> Label:
    """Resample to the nearest voxel: floor(i x source / target) along each axis; labels are whole numbers."""
    z, y, x = (np.arange(new) * old // new for old, new in zip(data.shape, shape, strict=True))
    # Scaled labels are 0.9999 where 1 was meant.
    return np.ascontiguousarray(np.rint(data[z][:, y][:, :, x]), np.uint8)


def normalised(planes: Iterable[Image], shape: Shape3) -> Image:
    """Clip planes of Hounsfield units to [-79, 304], and scale them by KiTS19's mean and SD."""
    result = np.empty(shape, np.float32)
    for z, plane in enumerate(planes):
        result[z] = (np.clip(plane, -79.0, 304.0) - np.float32(101.0)) / np.float32(76.9)
    return result


def padded(volume: NDArray[Any], min_edge: int) -> NDArray[Any]:
    """Pad `volume` to `min_edge` voxels along each axis by repeating its border voxels on both sides."""
    missing = [max(0, min_edge - edge) for edge in volume.shape]
    return np.pad(volume, [(m // 2, m - m // 2) for m in missing], mode="edge")
