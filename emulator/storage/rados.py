"""Samples as objects of a Ceph pool, through librados: pieces of 4 MiB, as Ceph's own gateways cut them.

RADOS takes no objects above 128 MiB, and no write above 90 MB. The first piece bears the sample's name and
knows its size; it is written last, in one operation, so that a sample is there whole or not at all. The
binding is Ceph's (Debian: python3-rados), for the system's Python; it is on no package index.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import rados

from emulator.config.storage import ObjectURL
from emulator.errors import StorageError
from emulator.storage.base import Entry, ReadStats, WriteOptions
from emulator.storage.objects import (
    ObjectAppender,
    ObjectBlob,
    ObjectDraft,
    ObjectStore,
    TransientError,
    check_size,
    missing,
)
from emulator.units import show_seconds

Value = TypeVar("Value")

PIECE = 4 << 20
"""Bytes of a piece of a sample; the last one has fewer."""
_MARK = "#"
"""Between the name of a sample and the number of a piece behind the first."""
_SIZE = "feedrate.size"
"""Attribute of the first of several pieces: bytes of the whole."""
_DEFAULT_CONF = "/etc/ceph/ceph.conf"


class RadosStore(ObjectStore):
    """Objects below `rados://POOL/PREFIX`. Safe to use from many threads."""

    def __init__(self, place: ObjectURL, stats: ReadStats | None = None) -> None:
        """Connects. Raises StorageError when the cluster does not answer, or has no such pool."""
        super().__init__(place, stats)
        conf = conf_of(place)
        seconds = f"{max(1, round(place.timeout))}"
        limits = dict.fromkeys(
            ("client_mount_timeout", "rados_osd_op_timeout", "rados_mon_op_timeout"), seconds
        )
        try:
            self._cluster = rados.Rados(
                conffile=conf, conf=limits, **({"name": user} if (user := place.option("user")) else {})
            )
            self._cluster.connect()
        except rados.Error as error:
            raise StorageError(
                f"the Ceph cluster of {conf} cannot be reached: {_words(error)}",
                "check ?conf=FILE&user=client.NAME, its keyring and ceph status",
            ) from None
        try:
            self._pool = self._cluster.open_ioctx(place.bucket)
        except rados.ObjectNotFound:
            raise StorageError(
                f"the cluster has no pool {place.bucket}", "ceph osd pool create makes one"
            ) from None

    def __reduce__(self) -> tuple[object, ...]:
        return (RadosStore, (self.place,))

    def _ask(self, doing: str, action: Callable[[], Value]) -> Value:
        """`action()`, repeated within bounds. Raises rados.ObjectNotFound, StorageError."""

        def one() -> Value:
            try:
                return action()
            except rados.ObjectNotFound:
                raise
            except rados.Error as error:
                raise self._meaning(error, doing) from None

        return self.attempt(doing, one)

    def _meaning(self, error: Exception, doing: str) -> Exception:
        """What librados's error comes to."""
        if isinstance(error, rados.PermissionError | rados.PermissionDeniedError):
            return StorageError(
                f"{doing}: access denied", "the user needs osd 'allow rwx'; see ceph auth get"
            )
        if isinstance(error, rados.NoSpace):
            return StorageError(f"{doing}: the pool is full", "free some space, or raise its quota")
        if isinstance(error, rados.TimedOut):
            return TransientError("timeout", f"no answer for {show_seconds(self.place.timeout)}")
        return TransientError("connection", _words(error))

    def _piece(self, name: str, number: int) -> str:
        return self.key(name) + (f"{_MARK}{number:06d}" if number else "")

    def open(self, name: str, size: int | None = None) -> ObjectBlob:
        """As Storage.open; asks for the size only where it is not given."""
        length = self.size(name) if size is None else size
        if length is None:
            raise missing(self.url(name))

        def chunks(begin: int, end: int) -> Iterator[bytes]:
            return self._chunks(name, length, begin, end)

        return ObjectBlob(self, name, length, chunks)

    def _chunks(self, name: str, size: int, begin: int, end: int) -> Iterator[bytes]:
        """As Chunks: an operation for each piece; one byte more at the end shows an object that is longer."""
        while begin < end:
            number, offset = divmod(begin, PIECE)
            stop = min(end, (number + 1) * PIECE)
            more = int(stop == size and size % PIECE > 0)
            try:
                data: bytes = self._pool.read(self._piece(name, number), stop - begin + more, offset)
            except rados.ObjectNotFound:
                self._require(name, size)
                raise missing(f"{self.url(name)}{_MARK}{number:06d}") from None
            except rados.Error as error:
                raise self._meaning(error, f"cannot read {self.url(name)}") from None
            if len(data) != stop - begin:
                self._require(name, size)
                raise TransientError("cut", "fewer bytes than were asked for")
            yield data
            begin = stop

    def _require(self, name: str, size: int) -> None:
        """Raises DatasetError when the sample is not there, or not of this size."""
        found = self.size(name)
        if found is None:
            raise missing(self.url(name))
        check_size(self.url(name), found, size)

    def size(self, name: str) -> int | None:
        """As Store.size. Raises StorageError."""
        try:
            return self._ask(f"cannot look at {self.url(name)}", lambda: self._size(self.key(name)))
        except rados.ObjectNotFound:
            return None

    def _size(self, key: str) -> int:
        size, _ = self._pool.stat(key)
        if size < PIECE:
            return int(size)
        try:
            return int(self._pool.get_xattr(key, _SIZE))
        except rados.NoData:
            return int(size)

    def get(self, name: str) -> bytes | None:
        """As Store.get. Raises StorageError."""
        size = self.size(name)
        if size is None:
            return None
        data = bytearray(size)
        with self.open(name, size) as blob:
            blob.read_into(0, memoryview(data))
        return bytes(data)

    def put(self, name: str, data: bytes | memoryview) -> None:
        """As Store.put, of any size: the pieces behind the first one come first. Raises StorageError."""
        before, count = self._pieces(name), max(1, -(-len(data) // PIECE))
        doing = f"cannot write {self.url(name)}"
        for number in range(1, count):
            piece = bytes(data[number * PIECE : (number + 1) * PIECE])
            self._ask(doing, lambda n=number, p=piece: self._pool.write_full(self._piece(name, n), p))  # type: ignore[misc]
        self._ask(doing, lambda: self._first(self.key(name), bytes(data[:PIECE]), len(data)))
        self._remove(self._piece(name, number) for number in range(count, before))

    def _first(self, key: str, data: bytes, size: int) -> None:
        with rados.WriteOpCtx() as operation:
            operation.write_full(data)
            if size > PIECE:
                operation.set_xattr(_SIZE, str(size).encode())
            elif size == PIECE:  # it may be shorter than what it replaces
                operation.set_xattr(_SIZE, str(PIECE).encode())
            self._pool.operate_write_op(operation, key)

    def _pieces(self, name: str) -> int:
        """Pieces of the sample that is there; 0: none is."""
        size = self.size(name)
        return 0 if size is None else max(1, -(-size // PIECE))

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """As Store.entries; RADOS lists whole pools only. Raises StorageError."""
        start = self.key(prefix)
        keys = self._ask(f"cannot list {self}", lambda: [found.key for found in self._pool.list_objects()])
        for key in sorted(keys):
            if key.startswith(start) and _MARK not in key:
                name = key.removeprefix(self._prefix)
                size = self.size(name)
                if size is not None:
                    yield Entry(name, size)

    def delete(self, names: Iterable[str]) -> None:
        """As Store.delete. Raises StorageError."""
        for name in names:
            self._remove(self._piece(name, number) for number in range(self._pieces(name)))

    def _remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                self._ask(f"cannot remove {key}", lambda k=key: self._pool.remove_object(k))  # type: ignore[misc]
            except rados.ObjectNotFound:
                continue

    def target(self, name: str, options: WriteOptions) -> ObjectDraft:
        """As Store.target."""
        return ObjectDraft(self.put, name, options)

    def appender(self, name: str, unit: int) -> ObjectAppender:
        """As Store.appender. Raises StorageError."""
        return ObjectAppender.behind(self, name)


def conf_of(place: ObjectURL) -> str:
    """The cluster's ceph.conf: of the URL, of the environment, or the usual one."""
    return place.option("conf") or os.environ.get("CEPH_CONF") or _DEFAULT_CONF


def _words(error: Any) -> str:
    text = str(error).strip()
    return text or type(error).__name__
