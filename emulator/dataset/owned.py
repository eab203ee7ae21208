"""Which files at a place are feedrate's own: only those are removed or replaced.

feedrate removes and replaces only files that an intact manifest, table, plan or journal of its own names,
with the size that it says. A plan claims the names of its files when nothing else has them. Adopted files are
never removed; neither is anything that somebody else may have made: then the command refuses and lists it.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import PurePosixPath
from typing import Literal

import numpy as np

from emulator.config.reader import at_least, build
from emulator.dataset.formats import format_named
from emulator.dataset.journal import JOURNALS, journalled, read_writers
from emulator.dataset.manifest import (
    MANIFEST,
    TABLE,
    Dataset,
    Head,
    checksum_of,
    intact_head,
    open_dataset,
    recovered,
)
from emulator.dataset.names import HIDDEN, MOST_DEPTH, TRAINING, VALIDATION, Names
from emulator.errors import DatasetError, SpecError
from emulator.files import Owner, written_by
from emulator.registry import FORMATS
from emulator.storage.base import Entry, Store

PLAN = f"{HIDDEN}/plan.json"
"""The plan of the dataset that is being made, until it is finished."""
LOCK = f"{HIDDEN}/lock"
"""Names the process that is making it."""
_SEEDS = re.compile(rf"{HIDDEN}/seeds/[0-9a-f]{{16}}/(seeds\.json|\d{{4}}_[xy]\.npy)")
_JOURNAL = re.compile(rf"{JOURNALS}\d{{6}}(\.\d{{6}})?")
_SAMPLE = re.compile(rf"(?:{TRAINING}/)?(?:\d{{4,}}/)*sample_(\d{{7,}}).*", re.DOTALL)
"""The file of a sample, or a file in the folder of a sample."""
_LISTED = 5


def is_record(name: str) -> bool:
    """Return True for a manifest, a table, or a file of .feedrate/: they are not samples."""
    return name == MANIFEST or TABLE.fullmatch(name) is not None or name.startswith(f"{HIDDEN}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """plan.json: a dataset that is being made. It owns the names of its files."""

    identity: str
    files: int
    recipe: str
    format: str
    payload: str
    seed: int
    subfolders: int
    folder: str = ""
    depth: int = 1
    feedrate: Literal["plan"] = "plan"

    def __post_init__(self) -> None:
        at_least(0, self, "seed", "subfolders")
        at_least(1, self, "files")
        if self.format not in FORMATS or not re.fullmatch("[0-9a-f]{64}", self.identity):
            raise SpecError("it is no plan")
        if not 1 <= self.depth <= MOST_DEPTH or self.folder not in ("", TRAINING):
            raise SpecError("it is no plan")

    @classmethod
    def read(cls, data: bytes) -> Begun:
        """Parse what `text` returned. Raises ValueError, RecursionError, SpecError."""
        plan = json.loads(data)
        if not isinstance(plan, dict) or plan.pop("checksum", None) != checksum_of(plan):
            raise SpecError("its own checksum is wrong")
        return build(cls, plan)

    @classmethod
    def of(cls, head: Head) -> Begun | None:
        """Treat the dataset of `head`, whose table is lost, as being made; None: its files were adopted."""
        if head.adopted:
            return None
        return cls(**{one.name: getattr(head, one.name) for one in fields(cls) if one.name != "feedrate"})

    @property
    def names(self) -> Names:
        """The names of its files, by index."""
        return Names(self.files, format_named(self.format).suffix, self.subfolders, self.folder, self.depth)

    def text(self) -> bytes:
        """Return the plan as it is written: with a SHA-256 over everything else."""
        content = asdict(self)
        return json.dumps({**content, "checksum": checksum_of(content)}).encode()


def index_of(names: Names, form: str, name: str) -> int | None:
    """Return the index of the sample that the file `name` belongs to; None: it belongs to none."""
    match = _SAMPLE.fullmatch(name)
    if match is None or int(match[1]) >= len(names):
        return None
    return int(match[1]) if name in format_named(form).parts(names[int(match[1])]) else None


@dataclass(frozen=True, slots=True)
class Holding:
    """What of feedrate's is at a place."""

    store: Store
    dataset: Dataset | None = None
    damaged: bool = False
    """The manifest of `dataset` is damaged or gone: its table says the same."""
    begun: Begun | None = None

    @property
    def adopted(self) -> bool:
        """True when the files are somebody else's."""
        return self.dataset is not None and not isinstance(self.dataset.manifest.names, Names)

    def claims(self) -> list[tuple[Names, str]]:
        """Names and format of the files that are ours."""
        found = []
        if self.dataset is not None and isinstance(self.dataset.manifest.names, Names):
            found.append((self.dataset.manifest.names, self.dataset.manifest.format))
        if self.begun is not None:
            found.append((self.begun.names, self.begun.format))
        return found

    def journals(self) -> Iterator[Entry]:
        """List the journals of the plan."""
        if self.begun is not None:
            yield from (entry for entry in self.store.entries(JOURNALS) if _JOURNAL.fullmatch(entry.name))


def look(store: Store) -> Holding:
    """Find the files of ours at the place.

    Raises DatasetError when it holds files and nothing says that they are ours; StorageError.
    """
    begun = None
    data = store.get(PLAN)
    if data is not None:
        try:
            begun = Begun.read(data)
        except (ValueError, RecursionError, SpecError):
            raise DatasetError(
                f"{store}/{PLAN} is damaged, or not feedrate's", "choose a new folder, or move it away"
            ) from None
    dataset, damaged = None, False
    try:
        dataset = open_dataset(store)
    except DatasetError as error:
        dataset = max(recovered(store), key=lambda one: len(one.manifest.names), default=None)
        damaged = dataset is not None
        if dataset is None and begun is None:
            head = intact_head(store)
            begun = Begun.of(head) if head is not None else None
        if not damaged and store.get(MANIFEST) is not None and (begun is None or intact_head(store) is None):
            raise DatasetError(
                error.what, "nothing was changed: choose a new folder, or move it away"
            ) from None
    if dataset is not None or begun is not None:
        return Holding(store, dataset, damaged, begun)
    others = (name for name in store.names() if name != LOCK)
    killed = Owner.read(store.get(LOCK) or b"")
    writers = {_writer(killed)} if killed is not None else set()  # it may not have come as far as a plan
    foreign = next((n for n in others if not _SEEDS.fullmatch(n) and not _left_by(writers, n, [])), None)
    if foreign is not None:
        raise DatasetError(
            f"{store} is not empty and holds no dataset of feedrate (it has {foreign.split('/')[0]})",
            "choose a new folder",
        )
    return Holding(store)


def listed(names: list[str]) -> str:
    """Return the first few of `names`, and how many more there are."""
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


def require_free(holding: Holding, names: Names, form: str, folders: list[str]) -> None:
    """Raises DatasetError when files of others have names that a plan needs, StorageError."""
    store, claims, inner = holding.store, holding.claims(), frozenset(folders)
    taken = []
    for found in store.names():
        path = PurePosixPath(found)
        if found in inner or (holding.begun is None and found.startswith(JOURNALS)):
            taken.append(found)
        for part in (path, *path.parents):  # a folder may have a sample's name, too
            name = str(part)
            if index_of(names, form, name) is not None and (
                part != path or all(index_of(*claim, name) is None for claim in claims)
            ):
                taken.append(found)
                break
    if taken:
        raise DatasetError(
            f"{store}: {len(taken)} files are in the way that feedrate did not make: {listed(taken)}",
            "move them away, or choose a new folder",
        )


@dataclass(frozen=True, slots=True)
class Removable:
    """Samples that may be removed: all have the size that was recorded."""

    samples: list[str]
    bytes: int


def removable(holding: Holding) -> Removable:
    """Find the samples at the place. Raises DatasetError if one has not the recorded size, StorageError."""
    store = holding.store
    if holding.adopted:
        raise DatasetError(
            f"the files in {store} were adopted: feedrate did not make them and never removes them",
            "choose a new folder",
        )
    claims = holding.claims()
    if not claims:
        return Removable([], 0)
    names, form = max(claims, key=lambda claim: len(claim[0]))
    expected = np.zeros(len(names), np.int64)
    if holding.dataset is not None:
        expected[: len(holding.dataset.manifest.sizes)] = holding.dataset.manifest.sizes[:]
    if holding.begun is not None:
        for records in journalled(store):
            records = records[records["index"] < len(names)]
            expected[records["index"]] = records["bytes"]
    found, samples = np.zeros(len(names), np.int64), []
    for entry in store.entries():
        index = index_of(names, form, entry.name)
        if index is not None:
            samples.append(entry.name)
            found[index] += entry.size
    present = {index for name in samples if (index := index_of(names, form, name)) is not None}
    doubtful = [names[index] for index in sorted(present) if found[index] != expected[index]]
    if doubtful:
        raise DatasetError(
            f"{store}: {len(doubtful)} files are not as large as feedrate recorded, and may be somebody "
            f"else's: {listed(doubtful)}",
            "run the command that made the dataset again, or move them away",
        )
    return Removable(samples, int(found.sum()))


def remove(holding: Holding, found: Removable, folders: list[str]) -> None:
    """Remove `found` and what we wrote beside it. The table, which says what is ours, goes last.

    Raises StorageError.
    """
    store = holding.store
    tidy(holding, None)
    if holding.dataset is not None and not holding.damaged and recovered(store):
        store.delete([MANIFEST])
    store.delete(found.samples)
    store.delete([entry.name for entry in holding.journals()])
    if holding.begun is not None:
        store.delete([PLAN])
    if holding.dataset is not None:
        if not holding.damaged:
            store.delete([MANIFEST])
        store.delete([holding.dataset.table])
    inside = {name.rpartition("/")[0] for name in found.samples if "/" in name} | set(folders)
    if any(name.split("/")[0] == TRAINING for name in inside):
        inside |= {TRAINING, VALIDATION}
    store.clear(sorted(inside, reverse=True))


def tidy(holding: Holding, before: Owner | None) -> None:
    """Remove the temporary files that killed processes of ours left: journals and locks name those.

    `before` is who left the lock behind. Raises StorageError.
    """
    store, claims = holding.store, holding.claims()
    writers = read_writers(store) if holding.begun is not None else set()
    if before is not None:
        writers.add(_writer(before))
    if writers:
        store.delete([name for name in store.names() if _left_by(writers, name, claims)])


def _writer(owner: Owner) -> tuple[int, int]:
    """Return process and host as journals record them."""
    return owner.pid, zlib.crc32(owner.host[:32].encode())


def _left_by(writers: set[tuple[int, int]], name: str, claims: list[tuple[Names, str]]) -> bool:
    """Return True for the temporary file of a record or a claimed sample that one of `writers` made."""
    inside, _, last = name.rpartition("/")
    writer = written_by(last)
    if writer is None or (writer[2], zlib.crc32(writer[1].encode())) not in writers:
        return False
    name = f"{inside}/{writer[0]}" if inside else writer[0]
    return is_record(name) or any(index_of(*claim, name) is not None for claim in claims)


def set_aside(store: Store) -> None:
    """Copy a damaged manifest to .feedrate/ before it is replaced: it may be somebody's."""
    data = store.get(MANIFEST)
    if data:
        store.put(f"{HIDDEN}/damaged-{zlib.crc32(data):08x}.json", data)
