"""Make a recipe like an existing folder: its number of files, their sizes, its tree. No name is kept.

A folder may hold millions of files, so sizes and content are judged by random samples of fixed size.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator.config.recipe import Recipe, SizeSpec
from emulator.dataset.names import MOST_DEPTH, Tree
from emulator.dataset.owned import files_below
from emulator.dataset.payload import measure_payload
from emulator.errors import DatasetError, storage_errors
from emulator.storage.folder import FolderStore

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
_EVERY = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """Sizes, layout and compressibility of the files in a folder."""

    files: int
    """Files that hold anything."""
    bytes: int
    empty: int
    """Files without a byte, which no dataset of feedrate has."""
    largest: tuple[int, ...]
    """Bytes of the LARGEST largest files, in no order."""
    quantiles: tuple[int, ...]
    """Bytes of the others (of all, if there are no others): the smallest, evenly spaced ones, the largest."""
    tree: Tree | None
    """Its folders, or a random sample of MOST_FOLDERS; None: all files lie in the folder itself."""
    ratio: float | None
    """Factor by which zstd compresses the bytes that were read; None: none were."""

    def recipe(self, payload: str = "incompressible") -> Recipe:
        """Return a recipe for files of bytes like these. Raises SpecError."""
        sizes, most = self.quantiles, max(self.largest)
        one = sizes[0] == most
        mean = max(1, round(self.bytes / self.files))
        size = SizeSpec(
            distribution="fixed" if one else "quantiles",
            quantiles=() if one else sizes,
            listed=() if one else self.largest,
            listed_among=0 if one else self.files,
            bytes_mean=sizes[0] if one else min(max(mean, sizes[0]), most),
            bytes_max=max(2**32 - 2**20, most) if most < 2**32 else most,
            shape="bytes",
        )
        title = f"like a folder of {self.files} files"
        return Recipe(name="like", title=title, format="bytes", payload=payload, files=self.files, size=size)


def look_at(folder: Path, *, content: bool, progress: Callable[[int, int], None]) -> Likeness:
    """Describe the files in `folder`; with `content`, also how far they compress.

    `progress(files, bytes)` is called every 20,000 files. Links to folders are not followed. Raises
    DatasetError, StorageError.
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
    with storage_errors("cannot list the folder"):
        for name, size in files_below(folder):
            if not size:
                empty += 1
                continue
            files, total = files + 1, total + size
            if (inside := name.rpartition("/")[0]) != before:
                before, folders, current = inside, folders + 1, [min(name.count("/"), MOST_DEPTH), 0]
                if len(held) < MOST_FOLDERS:
                    held.append(current)
                elif (place := draw.randrange(folders)) < MOST_FOLDERS:
                    held[place] = current
            current[1] += 1
            smallest = min(smallest, size)
            (heapq.heappush if len(largest) < LARGEST else heapq.heappushpop)(largest, size)
            if len(sizes) < SAMPLED:
                sizes.append(size)
            elif (place := draw.randrange(files)) < SAMPLED:
                sizes[place] = size
            if content and (place := draw.randrange(files)) < LOOKED_AT:
                names[place : place + 1] = [name]
            if files % _EVERY == 0:
                progress(files, total)
    progress(files, total)
    if not files:
        raise DatasetError(f"{folder} holds no files with anything in them", "give the folder of the data")
    measured = measure_payload(FolderStore(folder), names) if content else None
    return Likeness(
        files=files,
        bytes=total,
        empty=empty,
        largest=spread([max(1, size) for size in largest]),
        quantiles=_quantiles(np.sort(sizes), files, total, largest, smallest),
        tree=_tree(held) if any(depth for depth, _ in held) else None,
        ratio=None if measured is None else float(measured["zstd_ratio"]),
    )


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
