"""A manifest for files that feedrate did not make: DLIO's, or anyone's.

The folder is scanned, every file's head is looked at, and every byte is summed. The files stay as they are:
what is written is the manifest and its table.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emulator.dataset.formats import ADOPTED, FORMATS, Format, format_named
from emulator.dataset.manifest import ADOPTED as ADOPTED_RECIPE
from emulator.dataset.manifest import MANIFEST, ROW, Manifest, Table, manifest_files
from emulator.dataset.verify import looks_right, sums
from emulator.errors import DatasetError, storage_error
from emulator.files import write_whole
from emulator.storage.folder import FolderStore

MAX_FILES = 20_000_000
"""Names are listed in the manifest: more of them are a mistake."""

_OTHER_SUFFIXES = {".hdf5": "hdf5", ".jpg": "jpeg"}
"""Ends of names that DLIO gives to formats whose suffix is another one here."""
_ALL = {**FORMATS, **ADOPTED}
_SECOND = {form.suffix.replace("_x.", "_y.", 1): "" for form in FORMATS.values() if "_x." in form.suffix}
_ENDS = sorted(
    {**{_ALL[name].suffix: name for name in _ALL}, **_OTHER_SUFFIXES, **_SECOND}.items(),
    key=lambda end: -len(end[0]),
)
"""(end of a name, format), the longest first: .nii.gz before .gz, _x.npy before .npy."""
_TRAINING = "train"
"""DLIO's sub-folder for the files that are trained on, beside valid/."""
_IGNORED = ("lost+found", ".feedrate")

Done = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Found:
    """Samples in a folder that has no manifest."""

    folder: Path
    format: str
    names: Sequence[str]
    """Relative to the folder, in the order of their numbers; of a sample in several files, the first."""
    sizes: Sequence[int]
    """Bytes of each sample, all its files together."""
    left: int
    """Files in the folder that are none of them."""

    @property
    def bytes(self) -> int:
        """Of all samples together."""
        return sum(self.sizes)


def find_samples(folder: Path, wanted: str = "", force: bool = False) -> Found:
    """The samples in `folder`: of the format `wanted`, or of the only one that there is.

    Where it has a folder train/, as DLIO's have, only that one counts. Raises DatasetError, StorageError.
    """
    if not folder.is_dir():
        raise DatasetError(f"there is no folder {folder}", "give the folder that holds the files")
    if (folder / MANIFEST).exists() and not force:
        raise DatasetError(f"{folder} has a {MANIFEST} already", "add --force to make it anew")
    inside = _TRAINING if (folder / _TRAINING).is_dir() else ""
    try:
        files = dict(_files(folder / inside, f"{inside}/" if inside else ""))
    except OSError as error:
        raise storage_error(error, "cannot list the folder") from None
    form = _the_format(folder, Counter(map(_format_of, files)), wanted)
    names = sorted((name for name in files if _format_of(name) == form), key=_by_number)
    parts = [_sizes(format_named(form), name, files, folder) for name in names]
    used = sum(map(len, parts))
    return Found(folder, form, names, [sum(sizes) for sizes in parts], len(files) - used)


def _files(folder: Path, inside: str) -> Iterator[tuple[str, int]]:
    """(name, bytes) of every regular file below `folder`; links to folders are not followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _IGNORED:
                    yield from _files(Path(entry.path), f"{inside}{entry.name}/")
            elif entry.is_file() and not _own(inside, entry.name):
                yield inside + entry.name, entry.stat().st_size


def _own(inside: str, name: str) -> bool:
    """Manifests and their tables are no samples."""
    return not inside and (name == MANIFEST or re.fullmatch(r"samples-[0-9a-f]{8}\.npy", name) is not None)


def _format_of(name: str) -> str:
    """The format that the end of a name stands for; empty for none, and for the second file of a sample."""
    return next((form for suffix, form in _ENDS if name.endswith(suffix)), "")


def _the_format(folder: Path, counts: Counter[str], wanted: str) -> str:
    """`wanted`, or the only format that there is. Raises DatasetError."""
    if wanted:
        format_named(wanted)
        if not counts[wanted]:
            raise DatasetError(f"{folder} holds no files of the format {wanted}", "check --format")
        return wanted
    known = {form: count for form, count in counts.items() if form}
    if len(known) == 1 and sum(known.values()) <= MAX_FILES:
        return next(iter(known))
    if not known:
        ends = ", ".join(sorted(end for end, form in _ENDS if form))
        raise DatasetError(f"{folder} holds no samples", f"known are files that end in {ends}")
    held = ", ".join(f"{count} {form}" for form, count in sorted(known.items()))
    raise DatasetError(f"{folder} holds {held} files", "choose one with --format, 20 million files at most")


def _by_number(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sorts img_2 before img_10: numbers by value, text by its letters."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts if part)


def _sizes(form: Format, name: str, files: dict[str, int], folder: Path) -> list[int]:
    """Bytes of the files of the sample `name`. Raises DatasetError when one is missing or empty."""
    parts = form.parts(name)
    for part in parts:
        if not files.get(part):
            what = "is missing" if part not in files else "is empty"
            raise DatasetError(f"{folder / part} {what}", "repair the dataset, or take it away")
    return [files[part] for part in parts]


def look(found: Found, samples: int, threads: int, done: Done) -> Table:
    """A row for each file of `samples` samples: its head and its index looked at, its bytes summed.

    Raises DatasetError naming the first file that cannot be a sample, StorageError.
    """
    form, store = format_named(found.format), FolderStore(found.folder)
    rows = np.zeros(len(found.names), ROW)
    rows["bytes"] = found.sizes

    def check(index: int) -> int:
        name, size = found.names[index], found.sizes[index]
        parts = form.parts(name)
        wrong = looks_right(store, form, parts, size)
        if wrong:
            raise DatasetError(f"{found.folder}: {wrong}", "it is no sample; repair it or take it away")
        if samples > 1:
            _require_samples(form, found.folder / name, size, samples)
        crc = sums(store, parts, memoryview(bytearray(store.request)))
        done(1, size)
        return crc

    with ThreadPoolExecutor(threads) as pool:
        try:
            rows["crc"] = list(pool.map(check, range(len(found.names))))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return rows


def _require_samples(form: Format, path: Path, size: int, samples: int) -> None:
    """Raises DatasetError when the file has not so many samples, StorageError."""
    try:
        with path.open("rb", buffering=0) as file:
            descriptor = file.fileno()
            form.index(
                lambda offset, length: memoryview(os.pread(descriptor, length, offset)),
                size,
                str(path),
                samples,
                (),
            )
    except OSError as error:
        raise storage_error(error, "cannot read a sample") from None


def adopted(found: Found, rows: Table, samples_per_file: int) -> Manifest:
    """The manifest of what was found."""
    return Manifest(
        format=found.format,
        recipe=ADOPTED_RECIPE,
        seed=0,
        names=tuple(found.names),
        sizes=np.ascontiguousarray(rows["bytes"]),
        samples_per_file=samples_per_file,
    )


def write_manifest(folder: Path, manifest: Manifest, rows: Table) -> None:
    """Write the table and manifest.json, each whole or not at all; older tables go. Raises StorageError."""
    name, table, head = manifest_files(manifest, rows)
    old = [path for path in folder.glob("samples-*.npy") if _own("", path.name) and path.name != name]
    write_whole(folder / name, table)
    write_whole(folder / MANIFEST, head)
    for path in old:
        try:
            path.unlink()
        except OSError as error:
            raise storage_error(error, "cannot remove an old table") from None
