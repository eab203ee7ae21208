"""A complete dataset: its manifest, and the table of its files.

`manifest.json` is small and for people; the table with one row per file (bytes, checksum, shape) is an .npy
file beside it whose name carries its checksum, so that the two can never be from different datasets. Behind
the rows the table repeats the manifest: when manifest.json is damaged, it still says whose the files are.
That of adopted files, which nobody else can make again, has their names there instead.

Both are checked before anything in them is used: types, ranges, sizes, checksums. No name leaves the folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import math
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from emulator.config.reader import at_least, build, to_plain
from emulator.config.recipe import Recipe
from emulator.config.storage import Place
from emulator.dataset.table import (
    AT_ONCE,
    ROW,
    ROWS_AT_ONCE,
    Column,
    Listed,
    NamesByIndex,
    StoredFile,
    StoredRows,
    Table,
)
from emulator.errors import DatasetError, SpecError, storage_errors
from emulator.registry import FORMATS
from emulator.storage import open_store
from emulator.storage.base import Store
from emulator.storage.folder import FolderStore

MANIFEST = "manifest.json"
TABLE = re.compile(r"samples-[0-9a-f]{8}\.npy")
"""Name of the table, in full."""
HIDDEN = ".feedrate"
"""Folder for the state of an unfinished dataset, below its place."""
TRAINING = "train"
"""Folder that DLIO wants the files in."""
VALIDATION = "valid"
"""Folder that DLIO wants to find beside it; it may be empty."""
ADOPTED = "adopted"
"""The recipe of files that feedrate did not make."""
SCHEMA = 1
"""The version of manifest.json's layout."""
MOST_DEPTH = 16
"""Levels of folders, at most."""


@dataclass(frozen=True, slots=True)
class Names(NamesByIndex):
    """File names by index, computed: a million of them take no memory."""

    files: int
    suffix: str
    subfolders: int = 0
    """Sub-folders that the files are dealt to in turn; 0: none."""
    folder: str = ""
    """Folder that all of them lie in, below the dataset's; empty: none."""
    depth: int = 1
    """Levels of folders: the sub-folders lie in folders of their own, at depth - 1 levels."""

    def __len__(self) -> int:
        return self.files

    def name(self, number: int) -> str:
        plain = f"sample_{number:07d}{self.suffix}"
        dealt = f"{self.leaf(number % self.subfolders)}/{plain}" if self.subfolders else plain
        return f"{self.folder}/{dealt}" if self.folder else dealt

    def leaf(self, number: int) -> str:
        """The sub-folder of that number, below `folder`; at each level lie about as many."""
        wide, parts = _wide(self.subfolders, self.depth), []
        for _ in range(self.depth):
            number, digit = divmod(number, wide)
            parts.append(f"{digit:04d}")
        return "/".join(reversed(parts))


@cache
def _wide(leaves: int, depth: int) -> int:
    """The least number of folders within a folder with which `depth` levels have so many leaves."""
    wide = max(1, int(float(leaves) ** (1 / depth)) - 1)
    while math.pow(wide, depth) < leaves:
        wide += 1
    return wide


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of manifest.json, and the sizes of the files."""

    format: str
    """File format: an entry point of `feedrate.formats`."""
    recipe: str
    """Name of the recipe."""
    seed: int
    names: Sequence[str]
    """Relative to the dataset folder, in index order; of a sample in several files, the first."""
    sizes: Column | NDArray[np.int64]
    """Bytes of each file; of a sample in several files, all of them together."""
    subfolders: int = 0
    samples_per_file: int = 1
    """More than 1: a file holds so many samples."""
    payload: str = ""
    """Payload profile; empty when feedrate did not make the files."""
    identity: str = ""
    """SHA-256 over everything that determines the bytes."""
    seeds: Sequence[Mapping[str, str]] = ()
    """name, sha256 of each seed volume."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Measurements on the files: zstd_ratio, unique_blocks, bytes."""
    made: Recipe | None = None
    """The recipe that the files were made by; None: they were adopted."""

    @property
    def samples(self) -> int:
        """Samples of the dataset, in all its files."""
        return len(self.names) * self.samples_per_file

    @property
    def spread(self) -> float:
        """Standard deviation of the bytes of a file."""
        return _spread_of(self.sizes, self.total / len(self.sizes))

    @property
    def total(self) -> int:
        """Bytes of the dataset."""
        return _range_of(self.sizes)[2]

    def bytes_of(self, indices: NDArray[np.int64]) -> int:
        """Bytes of the files `indices`, which are in order."""
        total = 0
        for begin in range(0, len(self.sizes), ROWS_AT_ONCE):
            first, last = np.searchsorted(indices, (begin, begin + ROWS_AT_ONCE))
            total += int(self.sizes[begin : begin + ROWS_AT_ONCE][indices[first:last] - begin].sum())
        return total


@dataclass(frozen=True, slots=True)
class Dataset:
    """A complete dataset where it lies."""

    store: Store
    manifest: Manifest
    rows: StoredRows
    """Bytes and checksum of each file."""
    table: str
    """Name of the file that has them."""


_MOST_BYTES = 2**50
"""Bytes of a file: more are a mistake."""
_MOST_NAME = 4096
"""Bytes of a name, as Linux has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """manifest.json, checked by type and range."""

    feedrate: Literal["dataset"]
    schema: int
    format: str
    recipe: str
    seed: int
    files: int
    bytes: int
    payload: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)
    seeds: tuple[Mapping[str, str], ...] = ()
    identity: str = ""
    samples_per_file: int = 1
    subfolders: int = 0
    folder: str = ""
    depth: int = 1
    suffix: str = ""
    names_bytes: int = 0
    """Bytes of the names behind the rows of the table; 0: names are computed."""
    table: str
    table_crc32: int
    made: Recipe | None = None
    checksum: str
    """SHA-256 over everything else."""

    def __post_init__(self) -> None:
        at_least(0, self, "seed", "bytes", "subfolders", "table_crc32", "files", "names_bytes")
        at_least(1, self, "samples_per_file")
        if self.schema != SCHEMA:
            raise SpecError("schema is another one")
        if self.format not in FORMATS:
            raise SpecError(f"format {self.format!r} is not known")
        if not 1 <= self.depth <= MOST_DEPTH:
            raise SpecError("depth is not that of a tree")
        if not TABLE.fullmatch(self.table):
            raise SpecError("it names no table")
        if self.folder not in ("", TRAINING):
            raise SpecError("its files lie in a folder of an unknown name")
        if not self.adopted and self.suffix != FORMATS.load(self.format).suffix:
            raise SpecError(f"suffix {self.suffix[:40]!r} is not that of the format {self.format}")
        if self.files * self.samples_per_file >= 2**63:
            raise SpecError("samples_per_file is too large")
        if not all(math.isfinite(value) and value >= 0 for value in self.measured.values()):
            raise SpecError("measured must be numbers of at least 0")
        if self.measured and not {"files", "bytes", "zstd_ratio", "unique_blocks"} <= self.measured.keys():
            raise SpecError("measured lacks a figure")

    @property
    def adopted(self) -> bool:
        """True when feedrate did not make the files."""
        return self.names_bytes > 0


def checksum_of(table: Mapping[str, Any]) -> str:
    """SHA-256 over what a manifest says, in whatever order and layout."""
    content = {key: value for key, value in table.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def open_dataset(place: Place | Store) -> Dataset:
    """The dataset at `place`, every row of its table looked at. Raises DatasetError, StorageError."""
    store = open_store(place)
    text = store.get(MANIFEST)
    if text is None:
        raise _absent(store)
    return _dataset(store, _parsed(store, text))


def _dataset(store: Store, table: Mapping[str, Any]) -> Dataset:
    """The dataset that the plain value `table` of a manifest describes. Raises DatasetError, StorageError."""
    try:
        head = _head(table)
    except SpecError as error:
        raise _corrupt(store, str(error)) from None
    rows, behind = _read_table(store, head.table, head.table_crc32)
    sizes = rows["bytes"]
    names = _names(store, head, len(sizes), behind)
    if not len(sizes):
        raise DatasetError(f"the dataset in {store} is empty", "run feedrate generate")
    smallest, largest, total = _range_of(sizes)
    if smallest <= 0:
        raise _corrupt(store, "a file without bytes")
    if largest > _MOST_BYTES:
        raise _corrupt(store, f"a file of {largest} bytes")
    if total >= 2**62:
        raise _corrupt(store, "more bytes than there can be")
    if (head.files, head.bytes) != (len(sizes), total):
        raise _corrupt(store, f"it counts {head.files} files and {head.bytes} bytes, its table others")
    if head.checksum != checksum_of(table):
        raise _corrupt(store, "it was changed after it was written: its own checksum is wrong")
    manifest = Manifest(
        format=head.format,
        recipe=head.recipe,
        seed=head.seed,
        names=names,
        sizes=sizes,
        subfolders=head.subfolders,
        samples_per_file=head.samples_per_file,
        payload=head.payload,
        identity=head.identity,
        seeds=head.seeds,
        measured=head.measured,
        made=head.made,
    )
    return Dataset(store, manifest, rows, head.table)


_KEYS = frozenset(field.name for field in dataclasses.fields(Head))


def _head(table: Mapping[str, Any]) -> Head:
    """Check the plain values of a manifest. Raises SpecError."""
    return build(Head, {key: value for key, value in table.items() if key in _KEYS})  # a later one has more


def intact_head(store: Store) -> Head | None:
    """Return manifest.json when its own checksum is right, whatever became of its table."""
    try:
        table = _parsed(store, store.get(MANIFEST) or b"")
        head = _head(table)
    except (DatasetError, SpecError):
        return None
    return head if head.checksum == checksum_of(table) else None


def read_manifest(place: Place | Store) -> Manifest:
    """The manifest of the dataset at `place`. Raises DatasetError, StorageError."""
    return open_dataset(place).manifest


def recovered(store: Store) -> Dataset | None:
    """The dataset that an intact table of ours names, whatever became of manifest.json; the largest.

    Raises StorageError.
    """
    found: list[Dataset] = []
    for name in filter(TABLE.fullmatch, store.names("samples-")):
        try:
            stored, begin, end = _read_table(store, name, int(name[8:16], 16))[1]
            head = {**json.loads(stored[begin:end]), "table": name, "table_crc32": int(name[8:16], 16)}
            found.append(_dataset(store, {**head, "checksum": checksum_of(head)}))
        except (DatasetError, ValueError, RecursionError, TypeError):
            continue
    return max(found, key=lambda dataset: len(dataset.manifest.names), default=None)


def _parsed(store: Store, text: bytes) -> dict[str, Any]:
    """manifest.json as plain values. Raises DatasetError."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _corrupt(store, str(error)) from None
    if not isinstance(table, dict) or table.get("feedrate") != "dataset":
        raise _corrupt(store, "it is not a manifest of feedrate")
    if table.get("schema") != SCHEMA:
        raise DatasetError(
            f"{store}/{MANIFEST} has schema {str(table.get('schema'))[:40]}, this feedrate reads {SCHEMA}",
            "use the feedrate that made it, or generate again",
        )
    return table


def _absent(store: Store) -> DatasetError:
    """Say why there is no manifest. Raises StorageError."""
    if isinstance(store, FolderStore):
        with storage_errors(f"cannot look at {store}"):
            there, begun = store.root.is_dir(), (store.root / HIDDEN).is_dir()
        if not there:
            return DatasetError(
                f"there is no dataset folder {store}", "run feedrate generate, or check the path"
            )
    else:
        begun = next(store.names(f"{HIDDEN}/"), None) is not None
    if begun:
        return DatasetError(
            f"the dataset in {store} is not finished", "run the same feedrate generate again, it resumes"
        )
    return DatasetError(
        f"{store} has no {MANIFEST}", "run feedrate generate, or feedrate adopt where files are there"
    )


def _corrupt(store: Store, why: str) -> DatasetError:
    return DatasetError(f"{store}/{MANIFEST} is corrupt: {why[:120]}", "run the same feedrate generate again")


_MOST_HEADER = 256
"""Bytes of what numpy writes in front of a table, at most."""


def _npy_header(files: int) -> bytes:
    """Return the header that numpy writes in front of a table of so many rows."""
    buffer = io.BytesIO()
    described = np.lib.format.dtype_to_descr(ROW)
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": described, "fortran_order": False, "shape": (files,)}
    )
    return buffer.getvalue()


def _spread_of(sizes: Column | NDArray[np.int64], mean: float) -> float:
    """The standard deviation."""
    squares = 0.0
    for begin in range(0, len(sizes), ROWS_AT_ONCE):
        squares += float(np.square(sizes[begin : begin + ROWS_AT_ONCE] - mean).sum())
    return math.sqrt(squares / len(sizes))


def _range_of(sizes: Column | NDArray[np.int64]) -> tuple[int, int, int]:
    """The smallest, the largest and the sum."""
    smallest, largest, total = 2**63, -(2**63), 0
    for begin in range(0, len(sizes), ROWS_AT_ONCE):
        part = sizes[begin : begin + ROWS_AT_ONCE]
        smallest, largest = min(smallest, int(part.min())), max(largest, int(part.max()))
        # In halves: what a damaged table says may be more than 64 bits hold.
        total += (int((part >> 32).sum()) << 32) + int((part & 0xFFFFFFFF).sum())
    return smallest, largest, total


def _stored(store: Store, name: str) -> StoredFile | None:
    """Return a record; None: it is not there. Raises StorageError."""
    if not isinstance(store, FolderStore):
        data = store.get(name)
        with storage_errors("cannot hold a file in memory"):
            return None if data is None else StoredFile.holding(data)
    path = store.root / name
    with storage_errors("cannot read a file"), suppress(FileNotFoundError, NotADirectoryError):
        return StoredFile(path)
    return None


def _read_table(store: Store, name: str, crc: int) -> tuple[StoredRows, tuple[StoredFile, int, int]]:
    """The rows of the table, checked against its checksum, and where what is behind them begins and ends.

    Its header is compared with the only one that it can have: a parser could be made to allocate anything.
    Raises DatasetError, StorageError.
    """
    stored = _stored(store, name)
    if stored is None:
        raise _corrupt(store, f"its table {name} is missing")
    size = len(stored)
    found = 0
    for at in range(0, size, AT_ONCE):
        found = zlib.crc32(stored[at : min(size, at + AT_ONCE)], found)
    if found != crc:
        raise _corrupt(store, f"the checksum of its table {name} is wrong")
    head = stored[0 : min(size, _MOST_HEADER)]
    shape = re.search(rb"'shape': \((\d{1,12}),\)", head)
    header = _npy_header(int(shape[1])) if shape else b""
    begin, files = len(header), int(shape[1]) if shape else 0
    end = begin + files * ROW.itemsize
    if shape is None or head[:begin] != header or end > size:
        raise _corrupt(store, f"its table {name} has the wrong layout")
    return StoredRows(stored, begin, files), (stored, end, size)


def _names(store: Store, head: Head, files: int, behind: tuple[StoredFile, int, int]) -> Sequence[str]:
    """Return computed names, or those behind the rows. Raises DatasetError."""
    if not head.adopted:
        return Names(files, head.suffix, head.subfolders, head.folder, head.depth)
    stored, begin, end = behind
    text = end - begin - (files + 1) * 8
    listed = Listed(stored, begin, files)
    if text != head.names_bytes or not listed.in_order(text):
        raise _corrupt(store, f"its table {head.table} has the wrong layout")
    _require_names(store, listed)
    return listed


def _require_names(store: Store, names: Sequence[str]) -> None:
    """Raises DatasetError where a name is none of a file in the folder, or comes twice."""
    for name in names:
        if not _stays_inside(name):
            raise _corrupt(store, f"the name {name[:60]!r} leaves the folder, or is none")
    hashes = np.fromiter(map(hash, names), np.int64, len(names))  # a set of a million names takes 100 MB
    hashes.sort()
    again = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    alike = [name for name in names if hash(name) in again] if again else []
    if len(set(alike)) < len(alike):
        raise _corrupt(store, "a name appears twice")


def _stays_inside(name: str) -> bool:
    """True for the name of a file below the dataset's folder."""
    if not name or "\0" in name or name.startswith("/"):
        return False
    try:
        inside = ".." not in name or ".." not in PurePosixPath(name).parts
        return inside and len(os.fsencode(name)) < _MOST_NAME
    except UnicodeEncodeError:
        return False


def write_manifest(store: Store, manifest: Manifest, rows: Table, old: str = "") -> None:
    """Write the table, then manifest.json, each whole or not at all; then the table `old` goes.

    Raises DatasetError when a file of somebody else has the table's name, StorageError.
    """
    names = manifest.names
    packed = b"" if isinstance(names, Names) else Listed.of(names).packed()
    tree = names if isinstance(names, Names) else Names(len(names), suffix="")
    content = {
        "feedrate": "dataset",
        "schema": SCHEMA,
        "format": manifest.format,
        "recipe": manifest.recipe,
        "seed": manifest.seed,
        "files": len(names),
        "bytes": manifest.total,
        "payload": manifest.payload,
        "measured": dict(manifest.measured),
        "seeds": [dict(seed) for seed in manifest.seeds],
        "identity": manifest.identity,
        "samples_per_file": manifest.samples_per_file,
        "subfolders": manifest.subfolders,
        "folder": tree.folder,
        "depth": tree.depth,
        "suffix": tree.suffix,
        "names_bytes": len(packed) - (len(names) + 1) * 8 if packed else 0,
        **({"made": to_plain(manifest.made)} if manifest.made else {}),
    }
    behind = packed or json.dumps(content).encode()
    data = b"".join([_npy_header(len(rows)), np.ascontiguousarray(rows).view(np.uint8).data, behind])
    crc = zlib.crc32(data)
    name = f"samples-{crc:08x}.npy"
    if store.get(name) not in (None, data):
        raise DatasetError(f"{store}/{name} is not feedrate's", "move it away")
    store.put(name, data)
    content |= {"table": name, "table_crc32": crc}
    content["checksum"] = checksum_of(content)
    store.put(MANIFEST, json.dumps(content, indent=1).encode() + b"\n")
    if old and old != name:
        store.delete([old])
