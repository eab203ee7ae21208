"""A complete dataset: its manifest, and the table of its files.

`manifest.json` is small and for people; the table with one row per file (bytes, checksum, shape) is an .npy
file beside it whose name carries its checksum, so that the two can never be from different datasets. Behind
the rows the table repeats the manifest: when manifest.json is damaged, it still says whose the files are.
That of adopted files, which nobody else can make again, has their names there instead.

Both are checked before anything in them is used: types, ranges, sizes, checksums. No name may lead out of
the folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from emulator.config.reader import at_least, build, to_plain
from emulator.config.recipe import Recipe
from emulator.config.storage import Place
from emulator.dataset.names import HIDDEN, MOST_DEPTH, TRAINING, Listed, Names, require_names
from emulator.dataset.table import ROWS_AT_ONCE, Column, StoredRows, Table, packed_table, range_of, read_table
from emulator.errors import DatasetError, SpecError, storage_errors
from emulator.registry import FORMATS
from emulator.storage import open_store
from emulator.storage.base import Store
from emulator.storage.folder import FolderStore

MANIFEST = "manifest.json"
TABLE = re.compile(r"samples-[0-9a-f]{8}\.npy")
"""Name of the table, in full."""
ADOPTED = "adopted"
"""The recipe of files that feedrate did not make."""
SCHEMA = 1
"""The version of manifest.json's layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """How the files of a dataset were made, and how they lie."""

    format: str
    """File format: an entry point of `feedrate.formats`."""
    recipe: str
    """Name of the recipe."""
    seed: int
    payload: str = ""
    """Payload profile; empty when feedrate did not make the files."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Measurements on the files: zstd_ratio, unique_blocks, bytes."""
    seeds: Sequence[Mapping[str, str]] = ()
    """name, sha256 of each seed volume."""
    identity: str = ""
    """SHA-256 over everything that determines the bytes."""
    samples_per_file: int = 1
    """More than 1: a file holds so many samples."""
    subfolders: int = 0
    made: Recipe | None = None
    """The recipe that the files were made by; None: they were adopted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Facts):
    """A dataset: its facts, and names and sizes of its files."""

    names: Sequence[str]
    """Relative to the dataset folder, in index order; of a sample in several files, the first."""
    sizes: Column | NDArray[np.int64]
    """Bytes of each file; of a sample in several files, all of them together."""

    @property
    def samples(self) -> int:
        """Samples of the dataset, in all its files."""
        return len(self.names) * self.samples_per_file

    @property
    def spread(self) -> float:
        """Standard deviation of the bytes of a file."""
        squares, mean = 0.0, self.total / len(self.sizes)
        for begin in range(0, len(self.sizes), ROWS_AT_ONCE):
            squares += float(np.square(self.sizes[begin : begin + ROWS_AT_ONCE] - mean).sum())
        return math.sqrt(squares / len(self.sizes))

    @property
    def total(self) -> int:
        """Bytes of the dataset."""
        return range_of(self.sizes)[2]

    def bytes_of(self, indices: NDArray[np.int64]) -> int:
        """Return the bytes of the files `indices`, which ascend."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Head(Facts):
    """manifest.json, checked by type and range."""

    feedrate: Literal["dataset"]
    schema: int
    files: int
    bytes: int
    seeds: tuple[Mapping[str, str], ...] = ()
    folder: str = ""
    depth: int = 1
    suffix: str = ""
    names_bytes: int = 0
    """Bytes of the names behind the rows of the table; 0: names are computed."""
    table: str
    table_crc32: int
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
    """Return the SHA-256 over the content of a manifest, whatever its order and layout."""
    content = {key: value for key, value in table.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def open_dataset(place: Place | Store) -> Dataset:
    """Return the dataset at `place`; every row of its table is checked. Raises DatasetError, StorageError."""
    store = open_store(place)
    text = store.get(MANIFEST)
    if text is None:
        raise _absent(store)
    return _dataset(store, _parsed(store, text))


def _dataset(store: Store, content: Mapping[str, Any]) -> Dataset:
    """Return the dataset that a manifest of this content describes. Raises DatasetError, StorageError."""
    try:
        head = _head(content)
        rows = read_table(store, head.table, head.table_crc32)
        sizes, names = rows["bytes"], _names(head, rows)
        if not len(sizes):
            raise DatasetError(f"the dataset in {store} is empty", "run feedrate generate")
        smallest, largest, total = range_of(sizes)
        if not 0 < smallest <= largest <= _MOST_BYTES or total >= 2**62:
            raise SpecError(f"files of {smallest} to {largest} bytes, {total} in all")
        if (head.files, head.bytes) != (len(sizes), total):
            raise SpecError(f"it counts {head.files} files and {head.bytes} bytes, its table others")
        if head.checksum != checksum_of(content):
            raise SpecError("it was changed after it was written: its own checksum is wrong")
    except SpecError as error:
        raise _corrupt(store, str(error)) from None
    facts = {one.name: getattr(head, one.name) for one in dataclasses.fields(Facts)}
    return Dataset(store, Manifest(**facts, names=names, sizes=sizes), rows, head.table)


def _names(head: Head, rows: StoredRows) -> Sequence[str]:
    """Return computed names, or those behind the rows. Raises SpecError, StorageError."""
    if not head.adopted:
        return Names(len(rows), head.suffix, head.subfolders, head.folder, head.depth)
    text = len(rows.stored) - rows.end - (len(rows) + 1) * 8
    listed = Listed(rows.stored, rows.end, len(rows))
    if text != head.names_bytes or not listed.in_order(text):
        raise SpecError(f"its table {head.table} has the wrong layout")
    require_names(listed)
    return listed


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
    """Return the manifest of the dataset at `place`. Raises DatasetError, StorageError."""
    return open_dataset(place).manifest


def recovered(store: Store) -> list[Dataset]:
    """Return the datasets that intact tables of ours describe, whatever became of manifest.json.

    Raises StorageError.
    """
    found: list[Dataset] = []
    for name in filter(TABLE.fullmatch, store.names("samples-")):
        crc = int(name[8:16], 16)
        try:
            rows = read_table(store, name, crc)
            stated = json.loads(rows.stored[rows.end : len(rows.stored)])
            content = {**stated, "table": name, "table_crc32": crc}
            found.append(_dataset(store, {**content, "checksum": checksum_of(content)}))
        except (DatasetError, SpecError, ValueError, RecursionError, TypeError):
            continue
    return found


def _parsed(store: Store, text: bytes) -> dict[str, Any]:
    """Return manifest.json as plain values. Raises DatasetError."""
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
    """Return the error that says why there is no manifest. Raises StorageError."""
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


def write_manifest(store: Store, manifest: Manifest, rows: Table) -> None:
    """Write the table, then manifest.json, each whole or not at all; then older tables of the dataset go.

    Raises DatasetError when a file of somebody else has the table's name, StorageError.
    """
    old = {other.table for other in recovered(store) if other.manifest.identity == manifest.identity}
    with suppress(DatasetError):
        old.add(open_dataset(store).table)
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
    data = packed_table(rows, packed or json.dumps(content).encode())
    crc = zlib.crc32(data)
    name = f"samples-{crc:08x}.npy"
    if store.get(name) not in (None, data):
        raise DatasetError(f"{store}/{name} is not feedrate's", "move it away")
    store.put(name, data)
    content |= {"table": name, "table_crc32": crc}
    content["checksum"] = checksum_of(content)
    store.put(MANIFEST, json.dumps(content, indent=1).encode() + b"\n")
    store.delete(sorted(old - {name}))
