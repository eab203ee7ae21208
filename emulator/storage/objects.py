"""What object stores have in common: bounded, counted retries, and writing what cannot be appended to."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Protocol, Self, TypeVar

from emulator.config.storage import ObjectURL
from emulator.errors import DatasetError, StorageError
from emulator.storage.base import HEAD, Entry, ReadStats, RetryKind, WriteOptions

Value = TypeVar("Value")

REQUEST = 8 << 20
"""Bytes of a request that reads a whole object in order."""
_BACKOFF, _GROWTH, _LONGEST = 0.1, 3.0, 10.0
"""Seconds before the first repetition, how much longer each further one waits, and seconds at most."""
_FLUSH_SECONDS = 1.0
"""Records become an object at least this often: what a kill may lose is made again."""


class TransientError(Exception):
    """A request failed in a way that may pass."""

    def __init__(self, kind: RetryKind, said: str) -> None:
        super().__init__(said)
        self.kind = kind


class ObjectStore:
    """Objects below the prefix of a place: retries, names, and what objects need not do."""

    request = REQUEST

    def __init__(self, place: ObjectURL, stats: ReadStats | None = None) -> None:
        self.place = place
        self.stats = stats or ReadStats()
        self._prefix = f"{place.prefix}/" if place.prefix else ""
        self._url = f"{place.kind}://{place.bucket}/{self._prefix}".rstrip("/")

    def __str__(self) -> str:
        return self._url

    def key(self, name: str) -> str:
        """The object's name within its bucket or pool."""
        return self._prefix + name

    def url(self, name: str) -> str:
        """The object's name for people."""
        return f"{self._url}/{name}"

    def attempt(self, doing: str, action: Callable[[], Value]) -> Value:
        """`action()`, again while it raises TransientError: at most `retries` times, each of them counted.

        Raises StorageError when the last one failed too.
        """
        pause = _BACKOFF
        for left in range(self.place.retries, -1, -1):
            try:
                return action()
            except TransientError as trouble:
                if left == 0:
                    raise StorageError(
                        f"{doing}: {trouble}, {self.place.retries + 1} times",
                        "see the log of the object store; the URL takes ?retries=10&timeout=60s",
                    ) from None
                self.stats.add_retry(trouble.kind)
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * _GROWTH, _LONGEST)
        raise AssertionError("the last attempt returns or raises")

    def exclusive(self, name: str) -> AbstractContextManager[None]:
        """As Store.exclusive: nobody can know. Two that make the same dataset write the same bytes."""
        return nullcontext()

    def arrange(self, folders: Iterable[str]) -> None:
        """As Store.arrange: there are no folders, and nothing half-written."""

    def settle(self, folders: Iterable[str]) -> None:
        """As Store.settle: what was put is safe."""

    def clear(self, folders: Iterable[str]) -> None:
        """As Store.clear: there are no folders."""

    def free(self) -> int | None:
        """As Store.free: nobody knows."""
        return None


class Chunks(Protocol):
    """What reads a range of one object."""

    def __call__(self, begin: int, end: int) -> Iterator[memoryview | bytes]:
        """The bytes `begin` to `end`, in order. Raises TransientError, DatasetError, StorageError."""
        ...


class ObjectBlob:
    """One object, read in ranges. A range that breaks off is taken up where it did."""

    alignment = 1

    def __init__(self, store: ObjectStore, name: str, size: int, chunks: Chunks) -> None:
        self.name = store.url(name)
        self.size = size
        self._store = store
        self._chunks = chunks

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """As Blob.read_into: one request unless it fails. Raises DatasetError, StorageError."""

        def keep(at: int, chunk: memoryview | bytes) -> None:
            buffer[at : at + len(chunk)] = chunk

        return self._read(offset, len(buffer), keep)

    def skim(self, offset: int, length: int, buffer: memoryview) -> int:
        """As Blob.skim. Raises DatasetError, StorageError."""

        def keep(at: int, chunk: memoryview | bytes) -> None:
            if at < HEAD:
                end = min(HEAD, at + len(chunk))
                buffer[at:end] = chunk[: end - at]

        return self._read(offset, length, keep)

    def _read(self, offset: int, length: int, keep: Callable[[int, memoryview | bytes], None]) -> int:
        wanted = min(length, self.size - offset)
        done = 0

        def take() -> None:
            nonlocal done
            for chunk in self._chunks(offset + done, offset + wanted):
                if len(chunk) > wanted - done:
                    raise TransientError("cut", "more bytes than were asked for")
                keep(done, chunk)
                done += len(chunk)
            if done < wanted:
                raise TransientError("cut", "the body was cut off")

        if wanted > 0:
            self._store.attempt(f"cannot read {self.name}", take)
        return max(wanted, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def missing(url: str) -> DatasetError:
    """The error of an object that is not there."""
    return DatasetError(f"the sample {url} is not there", "regenerate the dataset or check its path")


def check_size(url: str, found: int, size: int) -> None:
    """Raises DatasetError when an object of `found` bytes should have `size`."""
    if found != size:
        raise DatasetError(
            f"the sample {url} has {found} bytes, but the manifest says {size}",
            "run feedrate verify on the dataset",
        )


Upload = Callable[[str, memoryview], None]
"""Puts an object of any size: (name, bytes). Raises StorageError."""


class ObjectDraft:
    """An object to be, composed in memory: it is put whole when it gets its name."""

    def __init__(self, upload: Upload, name: str, options: WriteOptions) -> None:
        self._upload = upload
        self._name = name
        self._data = bytearray()

    def put(self, memory: memoryview, at: int) -> None:
        """As Draft.put."""
        if at > len(self._data):
            self._data.extend(bytes(at - len(self._data)))
        self._data[at : at + len(memory)] = memory

    def end(self, size: int) -> None:
        """As Draft.end."""
        del self._data[size:]

    def publish(self) -> None:
        """As Draft.publish. Raises StorageError."""
        self._upload(self._name, memoryview(self._data))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._data = bytearray()


class Listed(Protocol):
    """What an appender needs of a store."""

    def put(self, name: str, data: bytes | memoryview) -> None: ...

    def entries(self, prefix: str = "") -> Iterator[Entry]: ...


class ObjectAppender:
    """Records in objects `NAME.000000`, `NAME.000001`, ...: those of a second or so in each."""

    def __init__(self, upload: Upload, name: str, first: int) -> None:
        """`first` is a number behind those of the objects that are there."""
        self._upload = upload
        self._name = name
        self._number = first
        self._records: list[bytes] = []
        self._lock = threading.Lock()
        self._next = time.monotonic() + _FLUSH_SECONDS

    @classmethod
    def behind(cls, store: Listed, name: str) -> ObjectAppender:
        """Goes on behind the objects that are there. Raises StorageError."""
        numbers = [entry.name.rpartition(".")[2] for entry in store.entries(name)]
        return cls(store.put, name, max((int(n) for n in numbers if n.isdigit()), default=-1) + 1)

    def append(self, record: bytes) -> None:
        """As Appender.append. Raises StorageError."""
        with self._lock:
            self._records.append(record)
            if time.monotonic() >= self._next:
                self._flush()

    def _flush(self) -> None:
        if self._records:
            self._upload(f"{self._name}.{self._number:06d}", memoryview(b"".join(self._records)))
            self._records.clear()
            self._number += 1
        self._next = time.monotonic() + _FLUSH_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._flush()
