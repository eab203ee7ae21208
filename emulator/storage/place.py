"""From a place to what reads and writes it; the packages of object stores are imported by those alone."""

from __future__ import annotations

from pathlib import Path

from emulator.errors import SpecError
from emulator.spec.place import ObjectPlace, Place
from emulator.storage.base import Store
from emulator.storage.folder import FolderStore


def store_at(place: Place | Store) -> Store:
    """The store at `place`. Raises MissingError, SpecError, StorageError."""
    if isinstance(place, Path):
        return FolderStore(place)
    if isinstance(place, ObjectPlace):
        raise SpecError(f"{place.kind}:// is not known yet")
    return place
