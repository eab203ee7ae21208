"""Names of a dataset's files, and of the folders that they lie in."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import PurePosixPath
from typing import overload

import numpy as np

from emulator.dataset.table import ROWS_AT_ONCE, Column, Stored
from emulator.errors import SpecError

HIDDEN = ".feedrate"
"""Folder for the state of an unfinished dataset, below its place."""
TRAINING = "train"
"""Folder that DLIO wants the files in."""
VALIDATION = "valid"
"""Folder that DLIO wants to find beside it; it may be empty."""
MOST_DEPTH = 16
"""Levels of folders, at most."""


class NamesByIndex(Sequence[str]):
    """A sequence of file names that makes one at a time."""

    __slots__ = ()

    @abstractmethod
    def name(self, number: int) -> str:
        """The name at `number`, which is within the length. Raises StorageError."""

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        wanted = range(len(self))[index]
        return self.name(wanted) if isinstance(wanted, int) else [self.name(number) for number in wanted]


@dataclass(frozen=True, slots=True)
class Names(NamesByIndex):
    """File names that are computed from the index: a million of them take no memory."""

    files: int
    suffix: str
    subfolders: int = 0
    """Number of sub-folders, which the files fill in turn; 0: none."""
    folder: str = ""
    """Folder below the dataset's that holds all files; empty: the dataset's own."""
    tree: Tree | None = None
    """Unlike sub-folders, in place of `subfolders`."""

    def __len__(self) -> int:
        return self.files

    def name(self, number: int) -> str:
        subfolder = ""
        if self.tree is not None:
            subfolder = self.tree.path(*self.tree.place(number))
        elif self.subfolders:
            subfolder = f"{number % self.subfolders:04d}"
        parts = (self.folder, subfolder, f"sample_{number:07d}{self.suffix}")
        return "/".join(filter(None, parts))

    def leaves(self) -> Iterator[str]:
        """Yield the paths of the sub-folders below `folder` that hold files."""
        if self.tree is None:
            yield from (f"{number:04d}" for number in range(min(self.subfolders, self.files)))
            return
        last_round, last_folder = self.tree.place(self.files - 1)
        for again in range(last_round + 1):
            # The files may end within the last round.
            folders = last_folder + 1 if again == last_round else len(self.tree.depths)
            paths = (self.tree.path(again, folder) for folder in range(folders))
            yield from filter(None, paths)  # empty: the dataset's own folder


@dataclass(frozen=True, slots=True)
class Tree:
    """Folders of another dataset: levels and files of each. With more files there are more such folders."""

    depths: tuple[int, ...]
    """Levels of folders down to it; 0: the dataset's own folder."""
    ends: tuple[int, ...]
    """Files in it and in those before it."""

    def __post_init__(self) -> None:
        if not all(0 <= depth <= MOST_DEPTH for depth in self.depths) or len(self.depths) != len(self.ends):
            raise SpecError("depths are not those of folders")
        if not self.ends or any(after <= before for before, after in pairwise((0, *self.ends))):
            raise SpecError("ends of folders must ascend")

    def place(self, number: int) -> tuple[int, int]:
        """Return (how often all folders were filled before, the folder) of file `number`."""
        again, slot = divmod(number, self.ends[-1])
        return again, bisect_right(self.ends, slot)

    def path(self, again: int, entry: int) -> str:
        """Return the path of a folder: its number, a digit a level. Later rounds have other top folders."""
        depth = self.depths[entry]
        if not depth:
            return ""
        width = _width(len(self.depths), depth)
        digits = []
        for _ in range(depth):
            entry, digit = divmod(entry, width)
            digits.append(digit)
        digits[-1] += again * width
        return "/".join(f"{digit:04d}" for digit in reversed(digits))


@cache
def _width(leaves: int, depth: int) -> int:
    """Return the least number of folders in a folder with which `depth` levels have `leaves` leaves."""
    width = max(1, int(float(leaves) ** (1 / depth)) - 1)  # the root may be rounded up
    while math.pow(width, depth) < leaves:
        width += 1
    return width


_ENDS = np.dtype([("end", "<i8")])


class Listed(NamesByIndex):
    """File names of others, stored as the offset at which each ends and their bytes back to back."""

    def __init__(self, stored: Stored, begin: int, count: int) -> None:
        """`count` names, whose ends, a 0 before the first, begin at byte `begin`; as `packed` gives them."""
        self._given = (stored, begin, count)
        self._stored, self._text = stored, begin + (count + 1) * _ENDS.itemsize
        self._ends = Column(stored, begin, count + 1, _ENDS, "end")

    @classmethod
    def of(cls, names: Iterable[str]) -> Listed:
        """Pack `names` in memory. Raises UnicodeEncodeError for what cannot be the name of a file."""
        text, ends = bytearray(), array("q", [0])
        for name in names:
            text += os.fsencode(name)
            ends.append(len(text))
        return cls(ends.tobytes() + text, 0, len(ends) - 1)

    def packed(self) -> bytes:
        """Return ends and bytes as they are written behind a table's rows."""
        stored, begin, count = self._given
        return stored[begin : self._text + self._ends[count]]

    def __len__(self) -> int:
        return self._given[2]

    def name(self, number: int) -> str:
        begin, end = self._ends[number : number + 2].tolist()
        return os.fsdecode(self._stored[self._text + begin : self._text + end])

    def __iter__(self) -> Iterator[str]:
        """Yield all names, a block of them read at a time."""
        for first in range(0, len(self), ROWS_AT_ONCE):
            ends = self._ends[first : first + ROWS_AT_ONCE + 1]
            text = self._stored[self._text + int(ends[0]) : self._text + int(ends[-1])]
            for begin, end in pairwise((ends - ends[0]).tolist()):
                yield os.fsdecode(text[begin:end])

    def in_order(self, size: int) -> bool:
        """Return True if the ends divide `size` bytes into names, none of them empty."""
        last = 0
        for first in range(0, len(self), ROWS_AT_ONCE):
            ends = self._ends[first : first + ROWS_AT_ONCE + 1]
            # Checked first: the differences of other numbers may be more than 64 bits hold.
            if not 0 <= ends.min() <= ends.max() <= size:
                return False
            if ends[0] != last or (np.diff(ends) < 1).any():
                return False
            last = int(ends[-1])
        return last == size


def require_names(names: Sequence[str]) -> None:
    """Raises SpecError where a name is not that of a file in the folder, or comes twice."""
    for name in names:
        if not _stays_inside(name):
            raise SpecError(f"the name {name[:60]!r} leaves the folder, or is none")
    # Hashes first: a set of a million names takes 100 MB.
    hashes = np.fromiter(map(hash, names), np.int64, len(names))
    hashes.sort()
    repeated_hashes = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if repeated_hashes:
        suspects = [name for name in names if hash(name) in repeated_hashes]
        if len(set(suspects)) < len(suspects):
            raise SpecError("a name appears twice")


def _stays_inside(name: str) -> bool:
    """Return True for the name of a file below the dataset's folder."""
    if not name or "\0" in name or name.startswith("/"):
        return False
    # Most names have no "..": only the others are split, which takes longer.
    if ".." in name and ".." in PurePosixPath(name).parts:
        return False
    return len(os.fsencode(name)) < 4096  # as Linux has it
