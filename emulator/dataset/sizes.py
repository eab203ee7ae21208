"""Sizes of samples by number: pure functions of (recipe, seed, i).

Index i takes the quantile frac(offset + i x golden ratio) of the distribution, an evenly spread
sequence: any number of files, from any index on, has the recipe's mean and spread, a dataset can be
extended, and no worker needs to know the others. The offset comes from the seed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from emulator.config.recipe import VOXEL_BYTES, SizeSpec
from emulator.errors import SpecError

Index = NDArray[np.int64]
Floats = NDArray[np.float64]

HEADER_BYTES = 256
"""Bytes of a sample that are not voxels: two .npy headers, as KiTS19's figures count."""

SPACING = (1.6, 1.2, 1.2)
"""Millimetres per voxel along depth, height, width, of samples."""

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio
_SILVER = 0x6A09E667F3BCC909  # 2^64 x (sqrt(2) - 1)
_STEPS = 1024
_NORMAL = NormalDist()


def quantiles(indices: Index, seed: int, stream: str, stride: int = _GOLDEN) -> Floats:
    """Return a quantile in [0, 1) per index, evenly spread: a function of (seed, stream, index)."""
    digest = hashlib.sha256(f"feedrate sizes {stream} {seed}".encode()).digest()
    offset = np.uint64(int.from_bytes(digest[:8], "little"))
    # 64-bit overflow keeps the fraction of the product; a double holds its upper 53 bits.
    fractions: NDArray[np.uint64] = indices.astype(np.uint64) * np.uint64(stride) + offset
    spread: Floats = (fractions >> np.uint64(11)).astype(np.float64) / 2.0**53
    return spread


def _normal(u: float) -> float:
    return _NORMAL.inv_cdf(min(max(u, 1e-12), 1 - 1e-12))


def table_moments(table: Floats) -> tuple[float, float]:
    """Mean and standard deviation of the distribution whose quantiles `table` interpolates."""
    left, right = table[:-1], table[1:]
    mean = float((left + right).mean() / 2)
    square = float((left * left + left * right + right * right).mean() / 3)
    return mean, math.sqrt(max(square - mean * mean, 0.0))


def size_table(spec: SizeSpec) -> Floats:
    """Quantiles 0, 1/1024 ... 1 of the bytes of a sample.

    Draws outside [bytes_min, bytes_max] are drawn again, which shifts mean and standard deviation; so those
    of the parent, a normal or lognormal, are solved for what the recipe states. Raises SpecError.
    """
    if spec.distribution == "quantiles":
        known = np.asarray(spec.quantiles, np.float64)
        return np.interp(np.linspace(0, 1, _STEPS + 1), np.linspace(0, 1, len(known)), known)
    if spec.bytes_sd == 0 or spec.distribution == "fixed":
        return np.full(_STEPS + 1, float(spec.bytes_mean))
    log = spec.distribution == "lognormal"
    if log:  # the parent is the normal of the logarithms
        low, high = math.log(spec.bytes_min), math.log(spec.bytes_max)
        width = math.sqrt(math.log1p((spec.bytes_sd / spec.bytes_mean) ** 2))
        middle = math.log(spec.bytes_mean) - width**2 / 2
    else:
        low, high = float(spec.bytes_min), float(spec.bytes_max)
        width, middle = float(spec.bytes_sd), float(spec.bytes_mean)

    def table(point: Floats) -> Floats:
        """Return the table for a parent whose mean and log standard deviation are moved by `point`."""
        mean = middle + width * point[0]
        sd = width * math.exp(point[1])
        # A truncated normal: quantiles are spread over the part of the parent between low and high.
        first, last = _NORMAL.cdf((low - mean) / sd), _NORMAL.cdf((high - mean) / sd)
        values = [mean + sd * _normal(first + (last - first) * k / _STEPS) for k in range(_STEPS + 1)]
        clipped: Floats = np.clip(np.array(values), low, high)
        return np.exp(clipped) if log else clipped

    def miss(point: Floats) -> Floats:
        """Return the relative errors of mean and standard deviation."""
        mean, sd = table_moments(table(point))
        return np.array([mean / spec.bytes_mean - 1, sd / spec.bytes_sd - 1])

    point = _solve(miss)
    if point is None:
        raise SpecError(
            f"size.bytes_sd of {spec.bytes_sd} cannot be reached between {spec.bytes_min} and "
            f"{spec.bytes_max} bytes",
            "lower it, or widen size.bytes_min and size.bytes_max",
        )
    return table(point)


def _solve(miss: Callable[[Floats], Floats]) -> Floats | None:
    """The point where both components of `miss` vanish, by Newton's method, if it finds one."""
    point = np.zeros(2)
    for _ in range(30):
        here = miss(point)
        if np.abs(here).max() < 1e-6:
            return point
        columns = [(miss(point + step) - here) / 1e-4 for step in np.eye(2) * 1e-4]
        try:
            change = np.linalg.solve(np.stack(columns, axis=1), -here)
        except np.linalg.LinAlgError:
            break
        point = np.clip(point + np.clip(change, -0.5, 0.5), -4, 3)
    return None


def shapes_from_bytes(size: Floats, aspect: Floats, min_edge: int) -> Index:
    """(depth, height, width) of about `size` bytes with height = width = aspect x depth: shape (n, 3)."""
    voxels = np.maximum(np.rint((size - HEADER_BYTES) / VOXEL_BYTES), float(min_edge) ** 3)
    depth = np.cbrt(voxels / aspect**2)
    depth = np.maximum(np.rint(np.clip(depth, min_edge, voxels / min_edge**2)), min_edge)
    height = np.maximum(np.rint(np.sqrt(voxels / depth)), min_edge)
    width = np.maximum(np.rint(voxels / (depth * height)), min_edge)
    return np.stack([depth, height, width], axis=1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Shapes of samples by index."""

    spec: SizeSpec
    seed: int
    bytes_table: Floats
    aspect_table: Floats

    def shapes(self, indices: Index) -> Index:
        """Voxels per axis (depth, height, width) of the samples `indices`: shape (n, 3)."""
        quantile = quantiles(indices, self.seed, "size")
        grid = np.linspace(0, 1, _STEPS + 1)
        size = np.interp(quantile, grid, self.bytes_table)
        if self.spec.listed:
            size = self._with_listed(indices, size)
        if self.spec.shape != "volume":
            voxels = np.maximum(size // self.spec.voxel_bytes, 1).astype(np.int64)
            return np.stack([np.ones_like(voxels), np.ones_like(voxels), voxels], axis=1)
        aspect = np.interp(quantiles(indices, self.seed, "aspect", _SILVER), grid, self.aspect_table)
        return shapes_from_bytes(size, aspect, self.spec.min_edge)

    def _with_listed(self, indices: Index, size: Floats) -> Floats:
        """Return the sizes, with those that the recipe lists at their places, which are evenly spread."""
        listed, among = self.spec.listed, self.spec.listed_among
        place = indices % among
        # Listed size k lies at place floor(k x among / len(listed)); most places have none.
        number = np.minimum(-(-place * len(listed) // among), len(listed) - 1)
        is_listed = number * among // len(listed) == place
        return np.where(is_listed, np.asarray(listed, np.float64)[number], size)


def sizes_of(spec: SizeSpec, seed: int) -> Sizes:
    """The shapes that the recipe's `spec` gives with `seed`. Raises SpecError, StorageError."""
    sigma = 0.0 if spec.distribution == "fixed" else spec.aspect_sigma
    bends = np.array([_normal((k + 0.5) / (_STEPS + 1)) for k in range(_STEPS + 1)])
    return Sizes(spec, seed, size_table(spec), spec.aspect * np.exp(sigma * bends))
