"""Where samples lie. `open_store` makes a store of a place; a client for objects is imported for it alone."""

from __future__ import annotations

from pathlib import Path

from emulator.config.storage import Place
from emulator.registry import STORES
from emulator.storage.base import Store
from emulator.storage.folder import FolderStore


def open_store(place: Place | Store) -> Store:
    """The store at `place`; one that is open is returned as it is.

    A command opens its store once and hands it on: object stores need a connection. Raises MissingError,
    SpecError, StorageError.
    """
    if isinstance(place, Store):
        return place
    if isinstance(place, Path):
        return FolderStore(place)
    store: Store = STORES.load(place.kind)(place)
    return store
