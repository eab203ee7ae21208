"""Phantoms: synthetic bodies with two kidneys, tumours, a spine and noise.

KiTS19's own voxels may not be shipped. Kidneys and tumours take the share of voxels that they take there
(0.684 % and 0.168 %). Only sums, products and comparisons of normal random numbers are used, so that every
machine makes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.config.recipe import SizeSpec
from emulator.dataset.sizes import HEADER_BYTES, shapes_from_bytes
from emulator.plugins.kits.volumes import (
    KIDNEY,
    TUMOUR,
    Image,
    Label,
    SeedVolume,
    Shape3,
    normalised,
    resample_plane,
    weights,
)

_AIR, _FAT, _MUSCLE, _BONE = -1000.0, -100.0, 45.0, 380.0
_ORGANS = {KIDNEY: 160.0, TUMOUR: 80.0}
_NOISE_SD, _TEXTURE_SD = 18.0, 14.0
"""Hounsfield units, all of them. Noise differs from voxel to voxel, texture over a 24th of an axis."""
_TEXTURE_EDGE = 24


def phantom(spec: SizeSpec, number: int) -> SeedVolume:
    """Return phantom `number`, of the recipe's mean size."""
    size = np.array([max(spec.bytes_mean, HEADER_BYTES)], np.float64)
    depth, height, width = shapes_from_bytes(size, np.array([spec.aspect]), spec.min_edge)[0].tolist()
    shape = (depth, height, width)
    labels = phantom_labels(shape, number)
    return SeedVolume(normalised(hounsfield(labels, number), shape), labels)


def _random(stream: int, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.array([stream, number], np.uint64)))


def _grid(shape: Shape3) -> tuple[Image, Image, Image]:
    """Coordinates from -1 to 1 along each axis, shaped to be broadcast."""
    z, y, x = (np.linspace(-1, 1, edge, dtype=np.float32) for edge in shape)
    return z[:, None, None], y[None, :, None], x[None, None, :]


def _inside(grid: tuple[Image, Image, Image], centre: Any, radii: Any) -> NDArray[np.bool_]:
    """Mark the voxels of `grid` that lie in an ellipsoid."""
    z, y, x = (((axis - c) / r) ** 2 for axis, c, r in zip(grid, centre, radii, strict=True))
    inside: NDArray[np.bool_] = z + y + x <= 1
    return inside


def phantom_labels(shape: Shape3, number: int) -> Label:
    """Return the labels of phantom `number`: a kidney on each side, one or two tumours in or at them."""
    rng = _random(0x5EED, number)
    labels = np.zeros(shape, np.uint8)
    grid = _grid(shape)
    tumours = int(rng.integers(1, 3))
    for side in (-1, 1):
        centre = rng.uniform(-0.04, 0.04, 3) + np.array([0.0, 0.2, 0.42 * side])
        radii = np.array([0.29, 0.18, 0.145]) * rng.uniform(0.95, 1.05, 3)
        labels[_inside(grid, centre, radii)] = KIDNEY
    radius = (0.0032 / tumours) ** (1 / 3)
    for tumour in range(tumours):
        side = 1 if (tumour + number) % 2 else -1
        centre = rng.uniform(-0.1, 0.1, 3) + np.array([0.0, 0.2, 0.45 * side])
        labels[_inside(grid, centre, radius * rng.uniform(0.9, 1.1, 3))] = TUMOUR
    return labels


def hounsfield(labels: Label, number: int) -> Iterator[Image]:
    """Yield a CT of phantom `number`, plane by plane. Its organs are where `labels` says, real or not."""
    rng = _random(0xC7, number)
    depth, height, width = labels.shape
    zs, ys, xs = _grid((depth, height, width))
    coarse = rng.standard_normal((_TEXTURE_EDGE,) * 3, dtype=np.float32)
    planes, rows, columns = (weights(_TEXTURE_EDGE, edge) for edge in (depth, height, width))
    for z in range(depth):
        at = (zs[z : z + 1], ys, xs)
        plane = np.full((height, width), _AIR, np.float32)
        plane[_inside(at, (0, 0, 0), (2.2, 0.78, 0.92))[0]] = _FAT
        plane[_inside(at, (0, 0, 0), (2.0, 0.68, 0.82))[0]] = _MUSCLE
        plane[_inside(at, (0, 0.45, 0), (9.0, 0.13, 0.11))[0]] = _BONE
        for organ, units in _ORGANS.items():
            plane[labels[z] == organ] = units
        share = planes.share[z]
        smooth = coarse[planes.first[z]] * (1 - share) + coarse[planes.second[z]] * share
        texture = resample_plane(smooth, rows, columns) * _TEXTURE_SD
        noise = texture + rng.standard_normal((height, width), dtype=np.float32) * _NOISE_SD
        body = plane > _AIR
        plane[body] += noise[body]
        yield plane
