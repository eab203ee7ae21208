"""The plan of a dataset: everything that determines its files, and nothing that does not.

The number of workers, threads, ranks and the time are not in it. The number of files is not part of the
identity: a dataset can be extended. plan.json holds the plan while the files are made, manifest.json after.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from emulator.config.recipe import Recipe
from emulator.dataset.formats import format_named
from emulator.dataset.formats.base import Format
from emulator.dataset.names import TRAINING, VALIDATION, Names, Tree
from emulator.dataset.sizes import Index, Sizes, sizes_of
from emulator.errors import SpecError
from emulator.units import show_bytes

BYTES_VERSION = 1
"""Grows when the same plan would give other bytes than before."""

MAX_FILES = 100_000_000
"""More than that is a mistake; a plan keeps a few bytes per file in memory."""

SUMMED_FILES = 2**20
"""Most files whose sizes are computed to sum them: half a second."""

_SAMPLE = re.compile(rf"(?:{TRAINING}/)?(?:\d{{4,}}/)*sample_(\d{{7,}}).*", re.DOTALL)
"""The file of a sample, or a file in the folder of a sample."""


@dataclass(frozen=True, kw_only=True)
class DatasetPlan:
    """A dataset that feedrate makes, or has made."""

    recipe: Recipe
    seed: int
    files: int
    subfolders: int = 0
    folder: str = ""
    """Folder that all files lie in, below the dataset's: `train` for DLIO."""
    tree: Tree | None = None
    """Unlike sub-folders, in place of `subfolders`."""
    seeds: tuple[Mapping[str, str], ...] = ()
    """name and sha256 of the seed volumes that samples are grown from; none for synthetic payloads."""

    def __post_init__(self) -> None:
        if self.files < 1 or not all(0 <= number < 2**63 for number in (self.seed, self.subfolders)):
            raise SpecError("files must be at least 1, seed and subfolders 0 to 2**63 - 1")
        if self.files > MAX_FILES:
            raise SpecError(f"{self.files} files are more than {MAX_FILES}", "take larger samples")
        if self.folder not in ("", TRAINING):
            raise SpecError("folder is not that of a dataset")

    @cached_property
    def form(self) -> Format:
        """The format in which samples are written."""
        return format_named(self.recipe.format).of(self.recipe)

    @cached_property
    def names(self) -> Names:
        """File names by index."""
        return Names(self.files, self.form.suffix, self.subfolders, self.folder, self.tree)

    @cached_property
    def sizes(self) -> Sizes:
        """Shapes by index."""
        return sizes_of(self.recipe.size, self.seed)

    @property
    def facts(self) -> dict[str, Any]:
        """What determines the bytes."""
        return {
            "version": BYTES_VERSION,
            "size": dataclasses.asdict(self.recipe.size),
            "format": self.recipe.format,
            "payload": self.recipe.payload,
            "samples_per_file": self.recipe.samples_per_file,
            "columns": [dataclasses.asdict(column) for column in self.recipe.columns],
            "row_group": self.recipe.row_group,
            "seed": self.seed,
            "subfolders": self.subfolders,
            "folder": self.folder,
            "tree": self.tree and dataclasses.asdict(self.tree),
            "seeds": [dict(seed) for seed in self.seeds],
        }

    @cached_property
    def identity(self) -> str:
        """SHA-256 over the facts."""
        return hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()

    def index_of(self, name: str) -> int | None:
        """Return the index of the sample that the file `name` belongs to; None: it belongs to none."""
        match = _SAMPLE.fullmatch(name)
        if match is None or int(match[1]) >= self.files:
            return None
        return int(match[1]) if name in self.form.parts(self.names[int(match[1])]) else None

    @property
    def folders(self) -> list[str]:
        """The folders of the dataset, outer ones first, and the empty one that DLIO wants beside them."""
        leaves = [PurePosixPath(leaf) for leaf in self.names.leaves()]
        folders = _outer_first({str(path) for leaf in leaves for path in (leaf, *leaf.parents[:-1])})
        if self.folder:
            folders = [self.folder, VALIDATION, *(f"{self.folder}/{name}" for name in folders)]
        return [*folders, *_outer_first(self._folders_of_samples())]

    def _folders_of_samples(self) -> set[str]:
        """Return the folders that samples bring along: the suffix of their format has a slash."""
        levels = self.form.suffix.count("/")
        folders: set[str] = set()
        if not levels:
            return folders
        for name in self.names:
            outermost = name.rsplit("/", levels)[0]
            parts = self.form.parts(name)
            parents = [str(folder) for part in parts for folder in PurePosixPath(part).parents]
            folders.update(folder for folder in parents if folder.startswith(outermost))
        return folders

    def planned_bytes(self, indices: Index) -> Index:
        """Bytes of the files `indices`; an upper estimate for compressed formats."""
        voxels = self.sizes.shapes(indices).prod(axis=1)
        planned = self.form.planned_bytes(voxels, self.recipe.samples_per_file)
        return np.broadcast_to(planned, voxels.shape)


def _outer_first(folders: set[str]) -> list[str]:
    return sorted(folders, key=lambda path: (path.count("/"), path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The size of a planned dataset. Bytes."""

    files: int
    total: int
    mean: float
    sd: float
    smallest: int
    largest: int


def outlook(plan: DatasetPlan) -> Outlook:
    """Sums over all files of `plan`; over more than SUMMED_FILES, from as many that are evenly spread."""
    sizes = plan.planned_bytes(_spread(np.arange(plan.files)))
    mean = float(sizes.mean())
    total = int(sizes.sum()) if len(sizes) == plan.files else round(mean * plan.files)
    return Outlook(
        files=plan.files,
        total=total,
        mean=total / plan.files,
        sd=float(sizes.std()),
        smallest=int(sizes.min()),
        largest=int(sizes.max()),
    )


def planned_sum(plan: DatasetPlan, indices: Index) -> int:
    """Bytes of the files `indices` together; of more than SUMMED_FILES an estimate."""
    chosen = _spread(indices)
    return int(plan.planned_bytes(chosen).sum()) * len(indices) // max(1, len(chosen))


def _spread(indices: Index) -> Index:
    """Return at most SUMMED_FILES of `indices`, evenly spread."""
    return indices[:: -(-len(indices) // SUMMED_FILES) or 1]


def files_for(plan: DatasetPlan, size: int) -> int:
    """Files that come to at least `size` bytes. Raises SpecError."""
    sample = plan.recipe.size.bytes_mean * plan.recipe.samples_per_file
    if size > MAX_FILES * sample:
        raise SpecError(f"{show_bytes(size)} need more than {MAX_FILES} files", "take larger samples")
    files = min(SUMMED_FILES, 1024 + 2 * int(size / sample))
    sums = np.cumsum(plan.planned_bytes(np.arange(files)))
    if sums[-1] >= size:
        return int(np.searchsorted(sums, size)) + 1
    # Sizes are evenly spread, so the mean of these files is that of all, but for one file in so many.
    mean = float(sums[-1] / files)
    return math.ceil(size / mean * (1 + 1 / SUMMED_FILES))
