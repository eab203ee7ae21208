"""From a place to what reads and writes it; the package of an object store is imported for it alone."""

from __future__ import annotations

from pathlib import Path

from emulator.errors import MissingError
from emulator.spec.place import ObjectPlace, Place
from emulator.storage.base import Store
from emulator.storage.folder import FolderStore
from emulator.storage.stats import ReadStats


def store_at(place: Place | Store, stats: ReadStats | None = None) -> Store:
    """The store at `place`; what reading objects costs goes into `stats`.

    Raises MissingError, SpecError, StorageError.
    """
    if isinstance(place, Path):
        return FolderStore(place)
    if isinstance(place, ObjectPlace):
        return _objects(place, stats)
    return place


def _objects(place: ObjectPlace, stats: ReadStats | None) -> Store:
    try:
        from emulator.storage.s3 import S3Store
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise MissingError("s3:// needs obstore", "pip install 'feedrate[s3]'") from None
    return S3Store(place, stats)


def describe_objects(place: ObjectPlace) -> dict[str, str]:
    """What a result says of the place, as of a mount: no keys."""
    from emulator.storage.s3 import endpoint_of

    source = endpoint_of(place) or "AWS"
    return {"mount": f"{place.kind}://{place.bucket}", "source": source, "type": place.kind}
