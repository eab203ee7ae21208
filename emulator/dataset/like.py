"""Make a recipe like an existing folder: its number of files, their sizes, its tree. No name is kept."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator.config.recipe import Recipe, SizeSpec
from emulator.dataset.names import MOST_DEPTH, Tree
from emulator.dataset.owned import files_below
from emulator.dataset.payload import measure_payload
from emulator.errors import DatasetError, storage_errors
from emulator.storage.folder import FolderStore

MEASURED = "ratio=measured"
"""The payload that compresses as the files do."""
MEASURED_FILES = 48
"""Files whose compression is measured for it; of more files, a random sample."""
LARGEST = 1000
"""Files whose sizes are kept exactly: the largest, which hold most bytes where sizes differ by orders."""
MOST_FOLDERS = 4096
"""Folders in a plan; of more folders, as many that are evenly spread over levels and files."""
_SHARES = np.linspace(0, 1, 257)


def recipe_like(folder: Path, payload: str) -> tuple[Recipe, Tree | None, int]:
    """Return a recipe for files of bytes like those in `folder`, their folders, and how many are empty.

    No dataset of feedrate has empty files: they are left out. The folders are None where all files lie in
    `folder` itself. The payload MEASURED becomes that of a sample of the files. Links to folders are not
    followed. Raises SpecError where files are too large, DatasetError, StorageError.
    """
    if not folder.is_dir():
        raise DatasetError(f"there is no folder {folder}", "give the folder that the new one shall be like")
    draw = random.Random(0)  # noqa: S311  a sample of names, the same each time
    sample: list[str] = []
    empty = 0
    # Arrays, because a folder may hold millions of files: 8 bytes each.
    sizes, depths, counts = array("q"), array("q"), array("q")
    parent = None
    with storage_errors("cannot list the folder", folder):
        for name, size in files_below(folder):
            if not size:
                empty += 1
                continue
            sizes.append(size)
            if name.rpartition("/")[0] != parent:  # files of a folder come together
                parent = name.rpartition("/")[0]
                depths.append(min(name.count("/"), MOST_DEPTH))
                counts.append(0)
            counts[-1] += 1
            if len(sample) < MEASURED_FILES:
                sample.append(name)
            elif (place := draw.randrange(len(sizes))) < MEASURED_FILES:
                sample[place] = name
    if not sizes:
        raise DatasetError(f"{folder} holds no files with anything in them", "give the folder of the data")
    if payload == MEASURED:
        ratio = measure_payload(FolderStore(folder), sample)["zstd_ratio"]
        payload = "incompressible" if ratio < 1.02 else f"ratio={min(64.0, ratio):.2f}"
    tree = _tree(np.asarray(depths), np.asarray(counts)) if any(depths) else None
    return _recipe(np.sort(np.asarray(sizes)), len(sizes), payload), tree, empty


def recipe_of_sizes(name: str, sizes: Sequence[int], files: int) -> Recipe:
    """Return a recipe of `files` files like some of these sizes, ascending. Raises SpecError."""
    recipe = _recipe(np.maximum(np.asarray(sizes, np.int64), 1), files, "incompressible")
    return replace(recipe, name=name, title=f"{files} files, as recorded")


def _recipe(sizes: NDArray[np.int64], files: int, payload: str) -> Recipe:
    """Return the recipe of `files` files. Raises SpecError.

    `sizes` are theirs, ascending, or those of some of them: then only the largest is kept exactly.
    """
    if len(sizes) == files:
        others, largest = np.split(sizes, [max(0, files - LARGEST)])
        total = int(sizes.sum())
    else:
        others, largest = sizes[sizes < sizes[-1]], sizes[-1:]
        total = round(float(sizes.mean()) * files)
    most = int(largest[-1])
    limit = max(2**32 - 2**20, most)  # the default, unless it must be more: the recipe refuses 4 GiB
    quantiles = _quantiles(others, largest, total - int(largest.sum()), files - len(largest))
    if quantiles[0] == most:
        size = SizeSpec(distribution="fixed", bytes_mean=most, bytes_max=limit, shape="bytes")
    else:
        size = SizeSpec(
            distribution="quantiles",
            quantiles=quantiles,
            listed=_spread(largest),
            listed_among=files,
            bytes_mean=min(max(round(total / files), quantiles[0]), most),
            bytes_max=limit,
            shape="bytes",
        )
    title = f"like a folder of {files} files"
    return Recipe(name="like", title=title, format="bytes", payload=payload, files=files, size=size)


def _quantiles(
    others: NDArray[np.int64], largest: NDArray[np.int64], total: int, files: int
) -> tuple[int, ...]:
    """Return quantiles that, interpolated, have the mean of `files` files of `total` bytes.

    `others` are sizes of these files, ascending; none of the `largest` is among them. Without any such file,
    the quantiles are those of the largest.
    """
    if not files:
        return tuple(int(size) for size in np.quantile(largest, _SHARES))
    known = others if len(others) else largest[:1]
    table = np.quantile(known, _SHARES)
    mean = total / files
    for _ in range(8):  # those that reach an end move no further, so one step is not enough
        interpolated_total = np.sum((table[1:] + table[:-1]) / 2)
        table = np.clip(table * mean * (len(table) - 1) / interpolated_total, known[0], largest[0])
    return tuple(max(1, int(size)) for size in np.rint(table))


def _tree(depths: NDArray[np.int64], counts: NDArray[np.int64]) -> Tree:
    """Return folders of these levels and files, in an order in which any part of them is like all."""
    order = np.lexsort((counts, depths))
    if len(order) > MOST_FOLDERS:
        order = order[np.linspace(0, len(order) - 1, MOST_FOLDERS).round().astype(int)]
    order = order[_golden(len(order))]
    return Tree(tuple(depths[order].tolist()), tuple(np.cumsum(counts[order]).tolist()))


def _spread(sizes: NDArray[np.int64]) -> tuple[int, ...]:
    """Return `sizes` in an order whose first half, too, has half of the largest."""
    return tuple(sizes[::-1][_golden(len(sizes))].tolist())


def _golden(count: int) -> NDArray[np.int64]:
    """Return an order of `count` indices, by multiples of the golden ratio, of which any part is spread."""
    return np.argsort(np.arange(count) * 0.6180339887498949 % 1)
