"""From a place to what reads and writes it; the package of an object store is imported for it alone."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from emulator.config.storage import ObjectURL, Place
from emulator.errors import MissingError
from emulator.storage.base import ReadStats, Store
from emulator.storage.folder import FolderStore


def store_at(place: Place | Store, stats: ReadStats | None = None) -> Store:
    """The store at `place`; what reading objects costs goes into `stats`.

    Raises MissingError, SpecError, StorageError.
    """
    if isinstance(place, Path):
        return FolderStore(place)
    if isinstance(place, ObjectURL):
        return _objects(place, stats)
    return place


def _objects(place: ObjectURL, stats: ReadStats | None) -> Store:
    if place.kind == "rados":
        try:
            from emulator.storage.rados import RadosStore
        except ImportError:
            raise MissingError("rados:// needs Ceph's Python binding", rados_hint()) from None
        return RadosStore(place, stats)
    try:
        from emulator.storage.s3 import S3Store
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise MissingError("s3:// needs obstore", "pip install 'feedrate[s3]'") from None
    return S3Store(place, stats)


def describe_objects(place: ObjectURL) -> dict[str, str]:
    """What a result says of the place, as of a mount: no keys."""
    if place.kind == "rados":
        from emulator.storage.rados import conf_of

        source = conf_of(place)
    else:
        from emulator.storage.s3 import endpoint_of

        source = endpoint_of(place) or "AWS"
    return {"mount": f"{place.kind}://{place.bucket}", "source": source, "type": place.kind}


def rados_hint() -> str:
    """How this Python comes to see the binding, which Debian installs for its own."""
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return (
        "apt install python3-rados, and where the system's Python is also "
        f"{ours}: ln -s /usr/lib/python3/dist-packages/rados.*.so {sysconfig.get_path('platlib')}/"
    )
