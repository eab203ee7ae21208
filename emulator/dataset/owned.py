"""Which files at a place are feedrate's, and which of them may be removed."""

from __future__ import annotations

import json
import re

from emulator.dataset.manifest import HIDDEN, MANIFEST, TABLE, TRAINING, VALIDATION
from emulator.errors import DatasetError
from emulator.files import TEMPORARY
from emulator.registry import FORMATS, WRITTEN_FORMATS
from emulator.storage.base import Store

PLAN = f"{HIDDEN}/plan.json"
"""What is being made, until it is finished."""
JOURNALS = f"{HIDDEN}/journal-"
"""What the names of all journals begin with."""


def is_record(name: str) -> bool:
    """True for the manifest, its table and what belongs to an unfinished dataset: they are no samples."""
    return name == MANIFEST or TABLE.fullmatch(name) is not None or name.startswith(f"{HIDDEN}/")


def require_own(store: Store) -> None:
    """Raises DatasetError unless the place is empty or holds a dataset of feedrate, StorageError.

    A manifest that nobody can read is taken for ours: making the dataset again repairs it.
    """
    data = store.get(MANIFEST)
    if data is not None:
        try:
            head = json.loads(data)
        except ValueError:
            return
        if not isinstance(head, dict) or head.get("feedrate") != "dataset":
            raise DatasetError(f"{store}/{MANIFEST} is not feedrate's", "choose another folder")
    elif next(iter(store.entries(f"{HIDDEN}/")), None) is None:
        for entry in store.entries():
            raise DatasetError(
                f"{store} is not empty and holds no dataset of feedrate (it has {entry.name.split('/')[0]})",
                "choose a new folder",
            )


def remove_dataset(store: Store) -> None:
    """Remove what feedrate made there, and nothing else. Raises DatasetError, StorageError."""
    require_own(store)
    store.delete([MANIFEST])
    suffixes = "|".join(re.escape(FORMATS[name].suffix).replace("_x", "_.") for name in WRITTEN_FORMATS)
    written = rf"sample_\d[^/]*({suffixes})|[^/]*{re.escape(TEMPORARY)}"
    sample = re.compile(rf"({TRAINING}/)?(\d{{4,}}/)?({written})")
    names = [entry.name for entry in store.entries()]
    samples = [name for name in names if sample.fullmatch(name)]
    records = [name for name in names if TABLE.fullmatch(name) or name.startswith(JOURNALS)]
    store.delete([*samples, *records, PLAN])
    folders = {name.rpartition("/")[0] for name in samples if "/" in name}
    if any(name.split("/")[0] == TRAINING for name in folders):
        folders |= {TRAINING, VALIDATION}
    store.clear(sorted(folders, reverse=True))
