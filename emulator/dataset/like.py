"""A recipe like a folder that somebody has: as many files, of such sizes, in such a tree. No name is kept.

A folder may hold millions of files. They are counted as they are met; a sample of fixed size stands for their
sizes, another for their content.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emulator.config.recipe import Recipe, SizeSpec
from emulator.dataset.manifest import MOST_DEPTH
from emulator.dataset.owned import is_record
from emulator.dataset.verify import measure_payload
from emulator.errors import DatasetError, storage_errors
from emulator.storage.folder import FolderStore

SAMPLED = 200_000
"""Files whose sizes are kept; of more, a random sample of so many."""
LOOKED_AT = 48
"""Files whose content is looked at where it is to be measured."""
QUANTILES = 257
_SMALLEST = 5
_EVERY = 20_000
_IGNORED = ("lost+found", ".feedrate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """Sizes, layout and compressibility of the files in a folder."""

    files: int
    """Files that hold anything."""
    bytes: int
    empty: int
    """Files without a byte, which no dataset of feedrate has."""
    quantiles: tuple[int, ...]
    """Their bytes: the smallest, evenly spaced ones between, the largest."""
    folders: int
    """Folders that hold files; 0: all lie in the folder itself."""
    depth: int
    """Levels of folders that most files lie below; 1 or more."""
    ratio: float | None
    """Factor by which zstd compresses the bytes that were read; None: none were."""

    def recipe(self, payload: str = "incompressible") -> Recipe:
        """Files of bytes like these. Raises SpecError."""
        sizes = self.quantiles
        one = min(sizes) == max(sizes)
        mean = max(_SMALLEST, round(self.bytes / self.files))
        size = SizeSpec(
            distribution="fixed" if one else "quantiles",
            quantiles=() if one else sizes,
            bytes_mean=sizes[0] if one else min(max(mean, sizes[0]), sizes[-1]),
            bytes_max=max(2**32 - 2**20, sizes[-1]) if sizes[-1] < 2**32 else sizes[-1],
            shape="flat",
        )
        title = f"like a folder of {self.files} files"
        return Recipe(name="like", title=title, format="bytes", payload=payload, files=self.files, size=size)


def look_at(folder: Path, *, content: bool, progress: Callable[[int, int], None]) -> Likeness:
    """Describe the files in `folder`; with `content`, also how far they compress.

    `progress(files, bytes)` is called now and then. Links to folders are not followed. Raises DatasetError,
    StorageError.
    """
    if not folder.is_dir():
        raise DatasetError(f"there is no folder {folder}", "give the folder that the new one shall be like")
    draw = random.Random(0)  # noqa: S311  a sample of sizes, the same each time
    sizes: list[int] = []
    names: list[str] = []
    files = total = empty = 0
    smallest, largest = 2**63, 0
    depths: Counter[int] = Counter()
    folders: Counter[int] = Counter()
    waiting: list[tuple[str, int]] = [("", 0)]
    with storage_errors("cannot list the folder"):
        while waiting:
            inside, depth = waiting.pop()
            held = 0
            with os.scandir(folder / inside) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in _IGNORED:
                            waiting.append((f"{inside}{entry.name}/", depth + 1))
                        continue
                    if not entry.is_file() or is_record(inside + entry.name):
                        continue
                    size = entry.stat().st_size
                    if not size:
                        empty += 1
                        continue
                    files, total, held = files + 1, total + size, held + 1
                    smallest, largest = min(smallest, size), max(largest, size)
                    if len(sizes) < SAMPLED:
                        sizes.append(size)
                    elif (place := draw.randrange(files)) < SAMPLED:
                        sizes[place] = size
                    if content and (place := draw.randrange(files)) < LOOKED_AT:
                        names[place : place + 1] = [inside + entry.name]
                    if files % _EVERY == 0:
                        progress(files, total)
            if held:
                depths[depth] += held
                folders[depth] += 1
    progress(files, total)
    if not files:
        raise DatasetError(f"{folder} holds no files with anything in them", "give the folder of the data")
    found = np.quantile(np.array(sizes), np.linspace(0, 1, QUANTILES))
    found[0], found[-1] = smallest, largest
    usual = depths.most_common(1)[0][0]
    measured = measure_payload(FolderStore(folder), names) if content else None
    return Likeness(
        files=files,
        bytes=total,
        empty=empty,
        quantiles=tuple(max(_SMALLEST, int(size)) for size in np.rint(found)),
        folders=folders[usual] if usual else 0,
        depth=min(max(usual, 1), MOST_DEPTH),
        ratio=None if measured is None else float(measured["zstd_ratio"]),
    )
