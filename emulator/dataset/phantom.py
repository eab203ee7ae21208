"""A body that is nobody's: an ellipsoid with two kidneys, tumours, a spine and noise, in Hounsfield units.

KiTS19's own voxels may not be shipped. Kidneys and tumours take the share of voxels that they take in
KiTS19 (0.684 % and 0.168 %). Only sums, products and comparisons of normal random numbers are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

KIDNEY, TUMOUR = 1, 2

_AIR, _FAT, _TISSUE, _KIDNEY, _TUMOUR, _BONE = -1000.0, -100.0, 45.0, 160.0, 80.0, 380.0
_NOISE = 18.0
_TEXTURE = 14.0
_COARSE = 24

Float = NDArray[np.float32]
Label = NDArray[np.uint8]


def _grid(shape: tuple[int, int, int]) -> tuple[Float, Float, Float]:
    """Coordinates from -1 to 1 along each axis, shaped to be broadcast."""
    axes = [np.linspace(-1, 1, edge, dtype=np.float32) for edge in shape]
    return axes[0][:, None, None], axes[1][None, :, None], axes[2][None, None, :]


def _inside(grid: tuple[Float, Float, Float], centre: Any, radii: Any) -> NDArray[np.bool_]:
    terms = [((axis - c) / r) ** 2 for axis, c, r in zip(grid, centre, radii, strict=True)]
    inside: NDArray[np.bool_] = terms[0] + terms[1] + terms[2] <= 1
    return inside


def phantom_labels(shape: tuple[int, int, int], number: int) -> Label:
    """Labels of phantom `number`: 0, KIDNEY, TUMOUR."""
    rng = np.random.Generator(np.random.Philox(key=np.array([0x5EED, number], np.uint64)))
    labels = np.zeros(shape, np.uint8)
    grid = _grid(shape)
    tumours = int(rng.integers(1, 3))
    for side in (-1, 1):
        centre = rng.uniform(-0.04, 0.04, 3) + np.array([0.0, 0.2, 0.42 * side])
        labels[_inside(grid, centre, np.array([0.29, 0.18, 0.145]) * rng.uniform(0.95, 1.05, 3))] = KIDNEY
    for tumour in range(tumours):
        side = 1 if (tumour + number) % 2 else -1
        centre = rng.uniform(-0.1, 0.1, 3) + np.array([0.0, 0.2, 0.45 * side])
        radius = (0.0032 / tumours) ** (1 / 3)
        labels[_inside(grid, centre, radius * rng.uniform(0.9, 1.1, 3))] = TUMOUR
    return labels


def _texture(rng: np.random.Generator, shape: tuple[int, int, int]) -> Iterator[Float]:
    """Smooth noise, plane by plane: coarse noise, interpolated along each axis."""
    coarse = rng.standard_normal((_COARSE, _COARSE, _COARSE), dtype=np.float32)
    weights = [linear(_COARSE, edge) for edge in shape]
    for z in range(shape[0]):
        plane = _blend(coarse, weights[0], z)
        plane = np.stack([_blend(plane, weights[1], y) for y in range(shape[1])])
        (first, second, share) = weights[2]
        yield plane[:, first] * (1 - share) + plane[:, second] * share


def linear(source: int, target: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Float]:
    """First neighbour, second neighbour and the second's weight of `target` points, corners on corners."""
    place = np.arange(target) * ((source - 1) / max(target - 1, 1))
    first = np.minimum(place.astype(np.int64), source - 1)
    return first, np.minimum(first + 1, source - 1), (place - first).astype(np.float32)


def _blend(data: Float, weights: tuple[NDArray[np.int64], NDArray[np.int64], Float], at: int) -> Float:
    first, second, share = weights
    blended: Float = data[first[at]] * (1 - share[at]) + data[second[at]] * share[at]
    return blended


def hounsfield(labels: Label, number: int) -> Iterator[Float]:
    """Plane by plane, a CT of phantom `number` whose organs are where `labels` says, real or not."""
    rng = np.random.Generator(np.random.Philox(key=np.array([0xC7, number], np.uint64)))
    depth, height, width = labels.shape
    zs, ys, xs = _grid((depth, height, width))
    texture = _texture(rng, (depth, height, width))
    for z in range(depth):
        at = (zs[z : z + 1], ys, xs)
        plane = np.full((height, width), _AIR, np.float32)
        plane[_inside(at, (0, 0, 0), (2.2, 0.78, 0.92))[0]] = _FAT
        plane[_inside(at, (0, 0, 0), (2.0, 0.68, 0.82))[0]] = _TISSUE
        plane[_inside(at, (0, 0.45, 0), (9.0, 0.13, 0.11))[0]] = _BONE
        plane[labels[z] == KIDNEY] = _KIDNEY
        plane[labels[z] == TUMOUR] = _TUMOUR
        body = plane > _AIR
        noise = next(texture) * _TEXTURE + rng.standard_normal((height, width), dtype=np.float32) * _NOISE
        plane[body] += noise[body]
        yield plane
