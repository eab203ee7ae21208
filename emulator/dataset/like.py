"""Make a recipe like an existing folder: its number of files, their sizes, its tree. No name is kept.

A folder may hold millions of files, so sizes and content are judged by random samples of fixed size.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from emulator.config.recipe import Recipe, SizeSpec
from emulator.dataset.names import MOST_DEPTH, Tree
from emulator.dataset.owned import files_below
from emulator.dataset.payload import measure_payload
from emulator.errors import DatasetError, storage_errors
from emulator.storage.folder import FolderStore

T = TypeVar("T")
MEASURED = "ratio=measured"
"""The payload that compresses as the files do."""
SAMPLED = 200_000
"""Files whose sizes are kept; of more files, a random sample."""
LOOKED_AT = 48
"""Files whose content is looked at where it is to be measured."""
LARGEST = 1000
"""Files whose sizes are kept exactly: the largest, which hold most bytes where sizes differ by orders."""
_GOLDEN = 0.6180339887498949
_SHARES = np.linspace(0, 1, 257)
MOST_FOLDERS = 4096
"""Folders whose levels and files are kept; of more folders, a random sample."""


def recipe_like(folder: Path, payload: str) -> tuple[Recipe, Tree | None, int]:
    """Return a recipe for files of bytes like those in `folder`, their folders, and how many are empty.

    No dataset of feedrate has empty files: they are left out. The folders are None where all files lie in
    `folder` itself. The payload MEASURED becomes that of a sample of the files. Links to folders are not
    followed. Raises SpecError where files are too large, DatasetError, StorageError.
    """
    if not folder.is_dir():
        raise DatasetError(f"there is no folder {folder}", "give the folder that the new one shall be like")
    draw = random.Random(0)  # noqa: S311  a sample of sizes, the same each time
    sizes: list[int] = []
    names: list[str] = []
    files = total = empty = 0
    smallest, largest = 2**63, list[int]()
    folders = 0
    held: list[list[int]] = []  # of the sampled folders: levels, files
    before, current = None, [0, 0]
    with storage_errors("cannot list the folder", folder):
        for name, size in files_below(folder):
            if not size:
                empty += 1
                continue
            files, total = files + 1, total + size
            if (inside := name.rpartition("/")[0]) != before:
                before, folders, current = inside, folders + 1, [min(name.count("/"), MOST_DEPTH), 0]
                _keep(held, MOST_FOLDERS, current, folders, draw)
            current[1] += 1
            smallest = min(smallest, size)
            (heapq.heappush if len(largest) < LARGEST else heapq.heappushpop)(largest, size)
            _keep(sizes, SAMPLED, size, files, draw)
            if payload == MEASURED:
                _keep(names, LOOKED_AT, name, files, draw)
    if not files:
        raise DatasetError(f"{folder} holds no files with anything in them", "give the folder of the data")
    if payload == MEASURED:
        ratio = measure_payload(FolderStore(folder), names)["zstd_ratio"]
        payload = "incompressible" if ratio < 1.02 else f"ratio={min(64.0, ratio):.2f}"
    quantiles = _quantiles(np.sort(sizes), files, total, largest, smallest)
    recipe = _recipe(files, total, quantiles, spread([max(1, size) for size in largest]), payload)
    return recipe, _tree(held) if any(depth for depth, _ in held) else None, empty


def recipe_of_sizes(name: str, sizes: Sequence[int], files: int) -> Recipe:
    """Return a recipe of `files` files like some of these sizes, ascending. Raises SpecError."""
    known = np.asarray(sizes, np.int64)
    largest = [max(1, int(size)) for size in known[-LARGEST:]] if files == len(known) else [int(known[-1])]
    total = round(float(known.mean()) * files)
    quantiles = _quantiles(known, files, total, largest, max(1, int(known[0])))
    made = _recipe(files, total, quantiles, spread(largest), "incompressible")
    return replace(made, name=name, title=f"{files} files, as recorded")


def _keep(kept: list[T], most: int, one: T, number: int, draw: random.Random) -> None:
    """Keep number `number` of what passes by, from 1 on, if it is drawn for a sample of at most `most`."""
    if len(kept) < most:
        kept.append(one)
    elif (place := draw.randrange(number)) < most:
        kept[place] = one


def _recipe(
    files: int, total: int, quantiles: tuple[int, ...], largest: tuple[int, ...], payload: str
) -> Recipe:
    """Return the recipe of `files` files of `total` bytes. Raises SpecError.

    `largest` are the bytes of the LARGEST largest, `quantiles` those of the others, or of all if there are no
    others.
    """
    one, most = quantiles[0] == max(largest), max(largest)
    size = SizeSpec(
        distribution="fixed" if one else "quantiles",
        quantiles=() if one else quantiles,
        listed=() if one else largest,
        listed_among=0 if one else files,
        bytes_mean=most if one else min(max(round(total / files), quantiles[0]), most),
        bytes_max=max(2**32 - 2**20, most) if most < 2**32 else most,
        shape="bytes",
    )
    title = f"like a folder of {files} files"
    return Recipe(name="like", title=title, format="bytes", payload=payload, files=files, size=size)


def _tree(held: list[list[int]]) -> Tree:
    """Return folders of these levels and files, in an order in which any part of them is like all."""
    held.sort()
    places = np.argsort(np.arange(len(held)) * _GOLDEN % 1)
    depths, files = np.array(held)[places].T
    return Tree(tuple(depths.tolist()), tuple(np.cumsum(files).tolist()))


def spread(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return `sizes` ordered by the golden ratio: the first half of them, too, has half of the largest."""
    places = np.argsort(np.arange(len(sizes)) * _GOLDEN % 1)
    return tuple(np.sort(sizes)[::-1][places].tolist())


def _quantiles(
    sizes: NDArray[np.int64], files: int, total: int, largest: Sequence[int], smallest: int
) -> tuple[int, ...]:
    """Quantiles of the files that are not among the `largest`; interpolated, they have these files' mean.

    `sizes` is a sample of all, ascending.
    """
    others = files - len(largest)
    if not others:
        return tuple(max(1, int(size)) for size in np.quantile(sorted(largest), _SHARES))
    cut = min(largest)
    rest = sizes[:others] if len(sizes) == files else sizes[sizes < cut]
    found = np.quantile(rest if len(rest) else [cut], _SHARES)
    found[0] = smallest
    mean = (total - sum(largest)) / others
    for _ in range(8):  # those at an end move no further
        found = np.clip(found * mean * (len(found) - 1) / np.sum((found[1:] + found[:-1]) / 2), smallest, cut)
    return tuple(max(1, int(size)) for size in np.rint(found))
