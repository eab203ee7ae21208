"""The base class of object stores: bounded and counted retries, a lock, drafts and journals."""

from __future__ import annotations

import random
import socket
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Self, TypeVar

from emulator import notes
from emulator.config.storage import Cache, ObjectURL
from emulator.errors import DatasetError, SpecError, StorageError
from emulator.files import Owner
from emulator.storage.base import HEAD, Appender, Blob, Draft, Store, WriteOptions, missing, wrong_size
from emulator.storage.counts import ReadCounts, ReadStats, RetryKind
from emulator.units import show_bytes, show_seconds

Value = TypeVar("Value")

_FLUSH_SECONDS = 1.0
"""Seconds after which records are written as an object; a kill loses no more than those."""
_LOCK_RENEWED, _LOCK_STALE = 5.0, 20.0
"""Seconds after which the owner of a lock renews it, and after which one that is not renewed is stale."""


class TransientError(Exception):
    """A failure of a request that may succeed when it is retried."""

    def __init__(self, kind: RetryKind, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class ObjectStore(Store):
    """Objects below a prefix: names, retries, drafts and records. Safe to use from many threads."""

    request = 8 << 20
    failures: ClassVar[type[Exception]]
    """Exceptions of the client's calls."""
    absent: ClassVar[type[Exception]]
    """Exceptions of the client's calls for an object that does not exist."""

    def __init__(self, place: ObjectURL) -> None:
        self.place = place
        self.stats = ReadStats()
        self.deadline = notes.timeout()
        """Seconds after which a request that keeps failing is an error."""
        self.timeout = min(place.timeout, self.deadline)
        """Seconds without an answer after which an attempt fails."""
        self._prefix = f"{place.prefix}/" if place.prefix else ""
        self._url = f"{place.kind}://{place.bucket}/{self._prefix}".rstrip("/")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.place,))

    def __str__(self) -> str:
        return self._url

    def for_ranks(self, *, direct: bool, cache: Cache) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, stats=ReadStats())
        return other

    def describe(self) -> dict[str, str]:
        """Return the facts of a mount for a result, without credentials."""
        mount = f"{self.place.kind}://{self.place.bucket}"
        return {"mount": mount, "source": self.source(), "type": self.place.kind}

    @abstractmethod
    def source(self) -> str:
        """Return the endpoint or cluster."""

    def key(self, name: str) -> str:
        """Return the object's name within its bucket or pool."""
        return self._prefix + name

    def url(self, name: str) -> str:
        return f"{self._url}/{name}"

    def ask(self, doing: str, action: Callable[[], Value]) -> Value:
        """Return `action()`; retry after a TransientError, at most `retries` times, and count each retry.

        A retry that could not end within --storage-timeout of the first attempt is not made. Raises `absent`,
        the result of `meaning` for other failures, and StorageError when the last attempt failed.
        """
        pause, began, tries = 0.1, time.monotonic(), 0
        while True:
            tries += 1
            try:
                try:
                    return action()
                except self.absent:
                    raise
                except self.failures as error:
                    raise self.meaning(error, doing) from None
            except TransientError as trouble:
                took = time.monotonic() - began
                next_end = took + pause + (self.timeout if trouble.kind == "timeout" else 0.0)
                if tries > self.place.retries or next_end > self.deadline:
                    often = f", {tries} times in {show_seconds(took)}" if tries > 1 else ""
                    raise StorageError(
                        f"{doing}: {trouble}{often}",
                        "see the log of the object store; --storage-timeout 2min and the URL's "
                        "?retries=10&timeout=60s wait for longer",
                    ) from None
                self.stats.absorb(ReadCounts(retries={trouble.kind: 1}))
                # Random pauses, so that ranks that failed together do not retry together.
                time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  jitter, not a secret
                pause = min(pause * 3.0, 10.0)

    @abstractmethod
    def meaning(self, error: Any, doing: str) -> Exception:
        """Translate a failure of the client into a TransientError, a StorageError or a DatasetError."""

    def blob(self, name: str, size: int | None) -> ObjectBlob:
        length = self.size(name) if size is None else size
        if length is None:
            raise missing(self.url(name))
        return ObjectBlob(self, name, length)

    def size(self, name: str) -> int | None:
        try:
            return self.ask(f"cannot stat {self.url(name)}", lambda: self.length(self.key(name)))
        except self.absent:
            return None

    @abstractmethod
    def length(self, key: str) -> int:
        """Return the bytes of an object. Raises `absent` and `failures`."""

    def require_document(self, name: str, size: int, most: int) -> None:
        """Raise SpecError if an object of `size` bytes is no document of at most `most` bytes."""
        if size > most:
            raise SpecError(f"{self.url(name)} has more than {show_bytes(most)}", "remove the object")

    def put_new(self, name: str, data: bytes) -> None:
        """Write a small object unless it exists. Raises StorageError.

        Without conditional requests two processes may both write, and the later object stays.
        """
        if self.size(name) is None:
            self.put(name, data)

    @contextmanager
    def exclusive(self, name: str) -> Iterator[Owner | None]:
        """Hold a lock: an object that its owner renews every few seconds.

        A lock is taken over if its owner has ended, or has not renewed it for a while.
        """
        before = self._await_lock(name)
        me = Owner.me()
        ended = threading.Event()
        if before is not None:
            self.delete([name])
        self.put_new(name, me.line())
        time.sleep(0.5)  # if put_new is not atomic, the later writer has the lock
        self._require_lock(name, me)

        def renew() -> None:
            beats = 0
            while not ended.wait(_LOCK_RENEWED):
                beats += 1
                with suppress(StorageError, DatasetError):
                    if self._owner(name) == me:
                        self.put(name, me.line() + b"%d\n" % beats)

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield before
            self._require_lock(name, me)
        finally:
            ended.set()
            thread.join()
            with suppress(StorageError, DatasetError):  # the next process takes over a lock that stays
                if self._owner(name) == me:
                    self.delete([name])

    def _owner(self, name: str) -> Owner | None:
        """Return the owner that a lock names; None without a lock of feedrate's."""
        return Owner.read((self.get(name) or b"").partition(b"\n")[0])

    def _await_lock(self, name: str) -> Owner | None:
        """Return the owner of a stale lock; None without a lock. Raises DatasetError while it is held."""
        content = self.get(name)
        if content is None:
            return None
        owner = Owner.read(content.partition(b"\n")[0])
        if owner is None:
            raise DatasetError(f"{self.url(name)} is no lock of feedrate", "remove it")
        if owner.gone:
            return owner
        in_use = DatasetError(f"{self} is in use: {owner} is at work", "wait for it")
        if owner.host == socket.gethostname():  # it is alive
            raise in_use
        end = time.monotonic() + _LOCK_STALE
        while time.monotonic() < end:
            if self.get(name) not in (content, None):  # it was renewed
                raise in_use
            time.sleep(1.0)
        return owner

    def _require_lock(self, name: str, me: Owner) -> None:
        """Raise DatasetError if another process took the lock."""
        owner = self._owner(name)
        if owner != me:
            raise DatasetError(f"{self} is in use: {owner or 'another process'} is at work", "wait for it")

    @abstractmethod
    def chunks(self, blob: ObjectBlob, begin: int, end: int) -> Iterator[memoryview | bytes]:
        """Yield the bytes `begin` to `end` of an object, in order.

        Raises `failures`, TransientError; DatasetError if it does not exist, or has another size.
        """

    def draft(self, name: str, options: WriteOptions) -> ObjectDraft:
        return ObjectDraft(self, name)

    def appender(self, name: str, unit: int) -> ObjectAppender:
        return ObjectAppender(self, name)


class ObjectBlob(Blob):
    """One object, read in ranges. A range that is cut off is continued where it ended."""

    __slots__ = ("_store", "key", "tag")

    def __init__(self, store: ObjectStore, name: str, size: int) -> None:
        super().__init__(store.url(name), size, store.stats)
        self.key = store.key(name)
        self.tag: str | None = None
        """ETag of the first read, if the store has them; later reads must have the same."""
        self._store = store

    def fill(self, offset: int, buffer: memoryview, length: int) -> int:
        """See Blob.read_into. Makes one request unless it fails."""
        room = buffer if length <= len(buffer) else buffer[:HEAD]
        wanted = min(length, self.size - offset)
        done = 0

        def take() -> None:
            nonlocal done
            for chunk in self._store.chunks(self, offset + done, offset + wanted):
                if len(chunk) > wanted - done:
                    raise TransientError("cut", "more bytes than requested")
                if done < len(room):
                    kept = chunk[: len(room) - done]
                    room[done : done + len(kept)] = kept
                done += len(chunk)
            if done < wanted:
                raise TransientError("cut", "the body was cut off")

        if wanted > 0:
            self._store.ask(f"cannot read {self.name}", take)
        return max(wanted, 0)

    def require_size(self, found: int) -> None:
        """Raise DatasetError unless the object has `found` bytes."""
        if found != self.size:
            raise wrong_size(self.name, found, self.size)


class ObjectDraft(Draft):
    """A new object, composed in memory; `publish` puts it at once."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name
        self._data = bytearray()

    def put(self, memory: memoryview, at: int) -> None:
        if at > len(self._data):
            self._data.extend(bytes(at - len(self._data)))
        self._data[at : at + len(memory)] = memory

    def end(self, size: int) -> None:
        del self._data[size:]

    def publish(self) -> None:
        self._store.put(self._name, memoryview(self._data))


class ObjectAppender(Appender):
    """Records in objects `NAME.000000`, `NAME.000001`, ..., each with those of about a second."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        """Continue after the existing objects. Raises StorageError."""
        numbers = [entry.name.rpartition(".")[2] for entry in store.entries(name)]
        self._number = max((int(number) for number in numbers if number.isdigit()), default=-1) + 1
        self._store = store
        self._name = name
        self._records: list[bytes] = []
        self._lock = threading.Lock()
        self._next = time.monotonic() + _FLUSH_SECONDS

    def append(self, record: bytes) -> None:
        with self._lock:
            self._records.append(record)
            if time.monotonic() >= self._next:
                self._flush()

    def _flush(self) -> None:
        if self._records:
            self._store.put(f"{self._name}.{self._number:06d}", b"".join(self._records))
            self._records.clear()
            self._number += 1
        self._next = time.monotonic() + _FLUSH_SECONDS

    def close(self) -> None:
        with self._lock:
            self._flush()
