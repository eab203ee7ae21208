"""An object store: `depot://BUCKET/PREFIX` is the folder $DEPOT/BUCKET, with a file for each object."""

import os
from pathlib import Path
from urllib.parse import quote, unquote

from emulator.errors import StorageError
from emulator.files import DOCUMENT_BYTES, write_whole
from emulator.plugins.objects.objects import ObjectStore
from emulator.storage.base import Entry, missing


class DepotStore(ObjectStore):
    """Objects are files without folders: a slash in a key is written %2F."""

    failures = OSError
    absent = FileNotFoundError

    def __init__(self, place):
        super().__init__(place)
        self._folder = Path(os.environ["DEPOT"]) / place.bucket
        self._folder.mkdir(exist_ok=True)

    def _path(self, key):
        return self._folder / quote(key, safe="")

    def source(self):
        return str(self._folder)

    def meaning(self, error, doing):
        return StorageError(f"{doing}: {error.strerror}")

    def length(self, key):
        return self._path(key).stat().st_size

    def chunks(self, blob, begin, end):
        try:
            with self._path(blob.key).open("rb") as file:
                blob.require_size(os.fstat(file.fileno()).st_size)
                file.seek(begin)
                yield file.read(end - begin)
        except FileNotFoundError:
            raise missing(blob.name) from None

    def entries(self, prefix=""):
        start = self.key(prefix)
        for path in sorted(self._folder.iterdir()):
            if unquote(path.name).startswith(start) and not path.name.startswith("."):
                yield Entry(unquote(path.name).removeprefix(self.key("")), path.stat().st_size)

    def get(self, name, most=DOCUMENT_BYTES):
        try:
            with self._path(self.key(name)).open("rb") as file:
                return file.read(most)
        except FileNotFoundError:
            return None

    def put(self, name, data):
        write_whole(self._path(self.key(name)), bytes(data))

    def delete(self, names):
        for name in names:
            self._path(self.key(name)).unlink(missing_ok=True)
