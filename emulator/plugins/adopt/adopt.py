"""Write a manifest for files that feedrate did not make, such as DLIO's.

The folder is scanned, each file's head is checked, and all files are checksummed. Only the manifest and its
table are written; the files do not change.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.formats import format_named
from emulator.dataset.formats.base import Format
from emulator.dataset.manifest import MANIFEST, Manifest, write_manifest
from emulator.dataset.names import TRAINING, Listed
from emulator.dataset.owned import LOCK, PLAN, files_below, look
from emulator.dataset.progress import Done, by_threads
from emulator.dataset.table import ROW
from emulator.dataset.verify import looks_right, sums
from emulator.errors import DatasetError, storage_errors
from emulator.registry import FORMATS
from emulator.storage.folder import FolderStore

ANY = "bytes"
"""The format of any file, which must be requested."""
SECOND = "second"
"""What stands for the format of a sample's second file."""


@cache
def _ends() -> list[tuple[str, str]]:
    """Return pairs of suffix and format, longest suffix first; that of second files is SECOND."""
    formats = {}
    for name, form in FORMATS.working():
        formats[form.suffix] = name
        if form.other_suffix:
            formats[form.other_suffix] = name
        if "_x." in form.suffix:
            formats[form.suffix.replace("_x.", "_y.", 1)] = SECOND
    return sorted(formats.items(), key=lambda end: -len(end[0]))


@dataclass(frozen=True, slots=True)
class Found:
    """Samples in a folder that has no manifest."""

    folder: Path
    format: str
    names: Listed
    """Names relative to the folder, in numerical order; of a sample with several files, the first."""
    sizes: NDArray[np.int64]
    """Bytes of each sample, in all its files."""
    left: int
    """Number of files in the folder that belong to no sample."""

    @property
    def bytes(self) -> int:
        return int(self.sizes.sum())


@contextmanager
def adopting(folder: Path, wanted: str = "", force: bool = False) -> Iterator[Found]:
    """Keep other writers out of `folder`, and yield its samples. Raises as `find_samples` does."""
    if not folder.is_dir():
        raise DatasetError(f"there is no folder {folder}", "give the folder of the files")
    store = FolderStore(folder)
    with store.exclusive(LOCK):
        if store.get(PLAN) is not None:
            raise DatasetError(f"the dataset in {folder} is not finished", "run the same generate again")
        yield find_samples(folder, wanted, force)


def find_samples(folder: Path, wanted: str = "", force: bool = False) -> Found:
    """Return the samples in `folder` of the format `wanted`, or of the only existing format.

    If it has a folder train/, like DLIO's, only that one counts. Raises DatasetError, StorageError.
    """
    if (folder / MANIFEST).exists():
        if not force:
            raise DatasetError(f"{folder} has a {MANIFEST} already", "add --force to replace it")
        look(FolderStore(folder))  # raises if it is not feedrate's
    inside = f"{TRAINING}/" if (folder / TRAINING).is_dir() else ""
    kinds: dict[str, list[tuple[str, int]]] = {}  # names and sizes by format
    with storage_errors("cannot list the folder"):
        for name, size in files_below(folder, inside):
            kind = ANY if wanted == ANY else _format_of(name)
            kinds.setdefault(kind, []).append((name, size))
    counts = {kind: len(files) for kind, files in kinds.items()}
    chosen = _the_format(folder, counts, wanted)
    form, seconds = format_named(chosen), dict(kinds.get(SECOND, ()))
    files = sorted(kinds[chosen], key=_by_number)
    sizes = [_sample_bytes(folder, form, name, size, seconds) for name, size in files]
    used = len(files) * len(form.parts("a" + form.suffix))
    names = Listed.of(name for name, _ in files)
    return Found(folder, chosen, names, np.array(sizes, np.int64), sum(counts.values()) - used)


def _format_of(name: str) -> str:
    """Return the format of a file by its end; empty if it is none."""
    return next((form for end, form in _ends() if name.endswith(end)), "")


def _sample_bytes(folder: Path, form: Format, name: str, size: int, seconds: Mapping[str, int]) -> int:
    """Return the bytes of a sample in all its files. Raises DatasetError if one is missing or empty."""
    total = 0
    for part in form.parts(name):
        part_bytes = size if part == name else seconds.get(part) or FolderStore(folder).size(part)
        if not part_bytes:
            what = "is missing" if part_bytes is None else "is empty"
            raise DatasetError(f"{folder / part} {what}", "repair the sample, or move it away")
        total += part_bytes
    return total


def _by_number(file: tuple[str, int]) -> list[tuple[int, str]]:
    """Return the key by which files are sorted: img_2 comes before img_10, and numbers come before text."""
    behind_numbers = 10**100
    parts = re.split(r"(\d+)", file[0])
    return [(int(part), "") if part.isdecimal() else (behind_numbers, part) for part in parts if part]


def _the_format(folder: Path, counts: Mapping[str, int], wanted: str) -> str:
    """Return `wanted`, or the only existing format. Raises DatasetError."""
    if wanted:
        format_named(wanted)
        if wanted not in counts:
            raise DatasetError(f"{folder} has no files of the format {wanted}", "check --format")
        return wanted
    known = {form: count for form, count in counts.items() if form not in ("", SECOND)}
    if len(known) == 1:
        return next(iter(known))
    if not known:
        ends = ", ".join(sorted(end for end, form in _ends() if form != SECOND))
        raise DatasetError(
            f"{folder} has no samples", f"files must end in {ends}, or use --format bytes for any"
        )
    formats = ", ".join(f"{count} {form}" for form, count in sorted(known.items()))
    raise DatasetError(f"{folder} has {formats} files", "choose one with --format")


def adopt_samples(found: Found, samples_per_file: int, threads: int, done: Done) -> Manifest:
    """Check the head and the index of each file, checksum it, and then write the manifest.

    Raises DatasetError for the first file that cannot be a sample, StorageError.
    """
    form, store, local = format_named(found.format), FolderStore(found.folder), threading.local()
    rows = np.zeros(len(found.names), ROW)
    rows["bytes"] = found.sizes

    def check(index: int) -> int:
        name, size = found.names[index], int(found.sizes[index])
        parts = form.parts(name)
        wrong = looks_right(store, form, parts, size)
        if wrong:
            raise DatasetError(f"{found.folder}: {wrong}", "repair it, move it away, or adopt --format bytes")
        if samples_per_file > 1:
            _require_samples(form, found.folder / name, size, samples_per_file)
        if not hasattr(local, "buffer"):
            local.buffer = bytearray(store.request)
        crc = sums(store, parts, memoryview(local.buffer))
        done(1, size)
        return crc

    indices = np.arange(len(found.names))
    rows["crc"] = np.fromiter(by_threads(check, indices, threads), np.uint32, len(indices))
    manifest = Manifest(
        format=found.format,
        names=found.names,
        sizes=np.ascontiguousarray(rows["bytes"]),
        samples_per_file=samples_per_file,
    )
    write_manifest(store, manifest, rows)
    return manifest


def _require_samples(form: Format, path: Path, size: int, samples: int) -> None:
    """Check that the file has this number of samples. Raises DatasetError, StorageError."""
    with storage_errors("cannot read a sample"), path.open("rb", buffering=0) as file:

        def peek(offset: int, length: int) -> memoryview:
            return memoryview(os.pread(file.fileno(), length, offset))

        form.index(peek, size, str(path), samples, ())
