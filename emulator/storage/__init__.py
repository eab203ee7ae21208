"""Storage of samples. `open_store` imports an object store's client only for a place that needs it."""

from __future__ import annotations

from pathlib import Path

from emulator.config.storage import Place
from emulator.registry import STORES
from emulator.storage.base import Store
from emulator.storage.folder import FolderStore


def open_store(place: Place | Store) -> Store:
    """Open the store at `place`; a Store is returned as it is.

    Open it once a command and pass it on: an object store makes a connection. Raises MissingError, SpecError,
    StorageError.
    """
    if isinstance(place, Store):
        return place
    if isinstance(place, Path):
        return FolderStore(place)
    store: Store = STORES.load(place.kind)(place)
    return store
