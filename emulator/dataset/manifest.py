"""A complete dataset: its manifest, and the table of its files.

`manifest.json` is small and for people; the table with one row per file (bytes, checksum, shape) is an .npy
file beside it whose name carries its checksum, so that the two can never be from different datasets. The
table of adopted files has their names behind its rows.

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
from emulator.config.storage import Place
from emulator.dataset.names import HIDDEN, Listed, require_names
from emulator.dataset.plan import DatasetPlan
from emulator.dataset.table import ROWS_AT_ONCE, Column, StoredRows, Table, packed_table, range_of, read_table
from emulator.errors import DatasetError, SpecError, storage_errors
from emulator.registry import FORMATS
from emulator.storage import open_store
from emulator.storage.base import Store
from emulator.storage.folder import FolderStore

MANIFEST = "manifest.json"
TABLE = re.compile(r"samples-[0-9a-f]{8}\.npy")
ADOPTED = "adopted"
"""The recipe of files that feedrate did not make."""
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The properties by which the files of a dataset were made."""

    format: str
    """File format: an entry point of `feedrate.formats`."""
    samples_per_file: int = 1
    plan: DatasetPlan | None = None
    """None: the files were adopted."""
    identity: str = ""
    """SHA-256 over everything that determines the bytes, as the feedrate computed it that made them."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Measurements on the files: zstd_ratio, unique_blocks, bytes."""

    @property
    def recipe(self) -> str:
        """Name of the recipe."""
        return self.plan.recipe.name if self.plan else ADOPTED

    @property
    def seed(self) -> int:
        """Seed of the bytes; 0 for adopted files."""
        return self.plan.seed if self.plan else 0


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
    table: str
    table_crc32: int
    checksum: str
    """SHA-256 over everything else."""

    def __post_init__(self) -> None:
        at_least(0, self, "bytes", "table_crc32", "files")
        at_least(1, self, "samples_per_file")
        if self.schema != SCHEMA:
            raise SpecError("schema is another one")
        if self.format not in FORMATS:
            raise SpecError(f"format {self.format!r} is not known")
        if not TABLE.fullmatch(self.table):
            raise SpecError("it names no table")
        if self.files * self.samples_per_file >= 2**63:
            raise SpecError("samples_per_file is too large")
        self._check_measured()
        if self.plan is not None:
            recipe = self.plan.recipe
            planned = (self.plan.files, recipe.format, recipe.samples_per_file)
            if planned != (self.files, self.format, self.samples_per_file):
                raise SpecError("its plan is that of another dataset")

    def _check_measured(self) -> None:
        if not all(math.isfinite(value) and value >= 0 for value in self.measured.values()):
            raise SpecError("measured must be numbers of at least 0")
        if self.measured and not {"files", "bytes", "zstd_ratio", "unique_blocks"} <= self.measured.keys():
            raise SpecError("measured lacks a figure")


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
    content = _parsed(store, text)
    try:
        head = build(Head, content)
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
    facts = {field.name: getattr(head, field.name) for field in dataclasses.fields(Facts)}
    return Dataset(store, Manifest(**facts, names=names, sizes=sizes), rows, head.table)


def _names(head: Head, rows: StoredRows) -> Sequence[str]:
    """Return computed names, or those behind the rows. Raises SpecError, StorageError."""
    if head.plan is not None:
        return head.plan.names
    text = len(rows.stored) - rows.end - (len(rows) + 1) * 8
    listed = Listed(rows.stored, rows.end, len(rows))
    if text < 0 or not listed.in_order(text):
        raise SpecError(f"its table {head.table} has the wrong layout")
    require_names(listed)
    return listed


def tables(store: Store) -> list[str]:
    """Return the names of feedrate's tables, which have the checksum that the name says.

    Raises StorageError.
    """
    intact = []
    for name in filter(TABLE.fullmatch, store.names("samples-")):
        with suppress(SpecError):  # damaged, or somebody else's
            read_table(store, name, int(name[8:16], 16))
            intact.append(name)
    return intact


def read_manifest(place: Place | Store) -> Manifest:
    """Return the manifest of the dataset at `place`. Raises DatasetError, StorageError."""
    return open_dataset(place).manifest


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
    """Write the table, then manifest.json, each atomically; then remove older tables.

    Raises DatasetError when another file has the table's name, StorageError.
    """
    facts = {field.name: to_plain(getattr(manifest, field.name)) for field in dataclasses.fields(Facts)}
    content = {
        "feedrate": "dataset",
        "schema": SCHEMA,
        "files": len(manifest.names),
        "bytes": manifest.total,
        **facts,
    }
    data = packed_table(rows, b"" if manifest.plan else Listed.of(manifest.names).packed())
    crc = zlib.crc32(data)
    name = f"samples-{crc:08x}.npy"
    if store.size(name) not in (None, len(data)) or store.get(name, len(data)) not in (None, data):
        raise DatasetError(f"{store}/{name} is not feedrate's", "move it away")
    store.put(name, data)
    content |= {"table": name, "table_crc32": crc}
    content["checksum"] = checksum_of(content)
    store.put(MANIFEST, json.dumps(content, indent=1).encode() + b"\n")
    store.delete([table for table in tables(store) if table != name])
