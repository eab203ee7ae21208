"""Samples as objects of a Ceph pool, through librados, in pieces of 4 MiB like those of Ceph's gateways.

RADOS accepts no objects above 128 MiB and no writes above 90 MB. The first piece has the sample's name, and
its size as an attribute; it is written last, in one operation, so that a sample is either complete or absent.
The binding is Ceph's (Debian: python3-rados), for the system's Python; it is not on PyPI.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import weakref
from collections.abc import Iterable, Iterator
from functools import partial

from emulator.config.storage import ObjectURL
from emulator.errors import MissingError, StorageError
from emulator.files import DOCUMENT_BYTES
from emulator.plugins.objects.objects import ObjectBlob, ObjectStore, TransientError
from emulator.storage.base import Entry, missing
from emulator.units import show_seconds

try:
    import rados
except ImportError:  # also if it was built for another Python
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    raise MissingError(
        "rados:// needs Ceph's Python binding",
        "apt install python3-rados, and where the system's Python is also "
        f"{ours}: ln -s /usr/lib/python3/dist-packages/rados.*.so {sysconfig.get_path('platlib')}/",
    ) from None

PIECE = 4 << 20
"""Bytes of a piece of a sample; the last one has fewer."""
_MARK = "#"
"""Separator of a sample's name and the number of a piece after the first."""
_SIZE = "feedrate.size"
"""Attribute of the first of several pieces: bytes of the sample."""


class RadosStore(ObjectStore):
    """Objects below `rados://POOL/PREFIX`."""

    options = ("conf", "user")
    failures = rados.Error
    absent = rados.ObjectNotFound

    def __init__(self, place: ObjectURL) -> None:
        """Connect. Raises StorageError if the cluster does not answer, or has no such pool."""
        super().__init__(place)
        limits = ("client_mount_timeout", "rados_osd_op_timeout", "rados_mon_op_timeout")
        seconds = f"{max(1, round(self.timeout))}"
        user = {"name": place.option("user")} if place.option("user") else {}
        try:
            self._cluster = rados.Rados(conffile=self.source(), conf=dict.fromkeys(limits, seconds), **user)
            self._cluster.connect()
        except rados.Error as error:
            raise StorageError(
                f"the Ceph cluster of {self.source()} cannot be reached: {_words(error)}",
                "check ?conf=FILE&user=client.NAME, its keyring and ceph status",
            ) from None
        # A librados that is still connected when its process ends may abort it.
        weakref.finalize(self, _shut_down, self._cluster, os.getpid())
        try:
            self._pool = self._cluster.open_ioctx(place.bucket)
        except rados.ObjectNotFound:
            raise StorageError(
                f"the cluster has no pool {place.bucket}", "ceph osd pool create makes one"
            ) from None

    def source(self) -> str:
        """Return the cluster's ceph.conf: that of the URL, of the environment, or the default."""
        return self.place.option("conf") or os.environ.get("CEPH_CONF") or "/etc/ceph/ceph.conf"

    def meaning(self, error: Exception, doing: str) -> Exception:
        if isinstance(error, rados.PermissionError | rados.PermissionDeniedError):
            return StorageError(
                f"{doing}: access denied", "the user needs osd 'allow rwx'; see ceph auth get"
            )
        if isinstance(error, rados.NoSpace):
            return StorageError(f"{doing}: the pool is full", "free some space, or raise its quota")
        if isinstance(error, rados.TimedOut):
            return TransientError("timeout", f"no answer for {show_seconds(self.timeout)}")
        return TransientError("connection", _words(error))

    def chunks(self, blob: ObjectBlob, begin: int, end: int) -> Iterator[bytes]:
        """Read each piece in one operation; a byte more at the end detects an object that is too long."""
        while begin < end:
            number, offset = divmod(begin, PIECE)
            stop = min(end, (number + 1) * PIECE)
            more = int(stop == blob.size and blob.size % PIECE > 0)
            try:
                data: bytes = self._pool.read(_piece(blob.key, number), stop - begin + more, offset)
            except rados.ObjectNotFound:
                self._require_size(blob)
                raise missing(f"{blob.name}{_MARK}{number:06d}") from None
            if len(data) != stop - begin:
                self._require_size(blob)
                raise TransientError("cut", "fewer bytes than requested")
            yield data
            begin = stop

    def _require_size(self, blob: ObjectBlob) -> None:
        """Raise DatasetError if the sample does not exist, or has another size."""
        size = self.size(blob.key.removeprefix(self._prefix))
        if size is None:
            raise missing(blob.name)
        blob.require_size(size)

    def length(self, key: str) -> int:
        size = int(self._pool.stat(key)[0])
        if size < PIECE:
            return size
        try:
            return int(self._pool.get_xattr(key, _SIZE))
        except rados.NoData:
            return size

    def get(self, name: str, most: int = DOCUMENT_BYTES) -> bytes | None:
        size = self.size(name)
        if size is None:
            return None
        self.require_document(name, size, most)
        data = bytearray(size)
        with self.blob(name, size) as blob:
            blob.fill(0, memoryview(data), size)
        return bytes(data)

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Put an object of any size; its first piece is written last."""
        key, doing = self.key(name), f"cannot write {self.url(name)}"
        before, count = self._pieces(name), max(1, -(-len(data) // PIECE))
        for number in range(1, count):
            piece = bytes(data[number * PIECE : (number + 1) * PIECE])
            self.ask(doing, partial(self._pool.write_full, _piece(key, number), piece))

        def write_first() -> None:
            with rados.WriteOpCtx() as operation:
                operation.write_full(bytes(data[:PIECE]))
                if len(data) >= PIECE:  # also a single piece, which may replace a longer object
                    operation.set_xattr(_SIZE, str(len(data)).encode())
                self._pool.operate_write_op(operation, key)

        self.ask(doing, write_first)
        self._remove(_piece(key, number) for number in range(count, before))

    def _pieces(self, name: str) -> int:
        """Return the number of pieces of the existing sample; 0 if there is none."""
        size = self.size(name)
        return 0 if size is None else max(1, -(-size // PIECE))

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """See Store.entries. RADOS can only list whole pools."""
        start = self.key(prefix)
        keys = self.ask(f"cannot list {self}", lambda: [found.key for found in self._pool.list_objects()])
        for key in sorted(keys):
            if key.startswith(start) and _MARK not in key:
                name = key.removeprefix(self._prefix)
                size = self.size(name)
                if size is not None:
                    yield Entry(name, size)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._remove(_piece(self.key(name), number) for number in range(self._pieces(name)))

    def _remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                self.ask(f"cannot remove {key}", partial(self._pool.remove_object, key))
            except rados.ObjectNotFound:
                continue


def _shut_down(cluster: rados.Rados, process: int) -> None:
    if os.getpid() == process:  # a forked child does not own the connections
        cluster.shutdown()


def _piece(key: str, number: int) -> str:
    return key + (f"{_MARK}{number:06d}" if number else "")


def _words(error: Exception) -> str:
    return str(error).strip() or type(error).__name__
