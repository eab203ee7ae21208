"""The base class of object stores: retries that are bounded and counted, a lock, drafts and journals."""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Self, TypeVar

from emulator.config.storage import Cache, ObjectURL
from emulator.errors import DatasetError, StorageError
from emulator.files import Owner
from emulator.launch.watch import storage_timeout
from emulator.storage.base import HEAD, Appender, Blob, Draft, Store, WriteOptions, missing, wrong_size
from emulator.storage.counts import ReadCounts, ReadStats, RetryKind
from emulator.units import show_seconds

Value = TypeVar("Value")

_BACKOFF, _GROWTH, _LONGEST = 0.1, 3.0, 10.0
"""Seconds before the first repetition, how much longer each further one waits, and seconds at most."""
_FLUSH_SECONDS = 1.0
"""Records become an object at least this often: what a kill may lose is made again."""
_LOCK_RENEWED, _LOCK_STALE = 5.0, 20.0
"""Seconds after which the owner of a lock writes it again, and after which one that stays is stale."""
_LOCK_SETTLES = 0.5
"""Seconds after which a lock that was written is looked at again."""


class TransientError(Exception):
    """A request failed in a way that may pass."""

    def __init__(self, kind: RetryKind, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class ObjectStore(Store):
    """Objects below a prefix: names, retries, drafts and records. Safe to use from many threads."""

    request = 8 << 20
    failures: ClassVar[type[Exception]]
    """Exceptions that the client's calls raise."""
    absent: ClassVar[type[Exception]]
    """Exceptions that they raise for an object that is not there."""

    def __init__(self, place: ObjectURL) -> None:
        self.place = place
        self.stats = ReadStats()
        self.deadline = storage_timeout(sys.argv[1:])
        """Seconds after which a request that keeps failing is an error."""
        self.timeout = min(place.timeout, self.deadline)
        """Seconds without an answer after which one attempt has failed."""
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
        """Describe the place for a result, as a mount is described: no keys."""
        mount = f"{self.place.kind}://{self.place.bucket}"
        return {"mount": mount, "source": self.source(), "type": self.place.kind}

    @abstractmethod
    def source(self) -> str:
        """Endpoint or cluster that is asked."""

    def key(self, name: str) -> str:
        """The object's name within its bucket or pool."""
        return self._prefix + name

    def url(self, name: str) -> str:
        """The object's name for people."""
        return f"{self._url}/{name}"

    def ask(self, doing: str, action: Callable[[], Value]) -> Value:
        """Return `action()`; repeat it while its failure may pass, at most `retries` times, each counted.

        Does not repeat what could not end within --storage-timeout of the first attempt. Raises `absent`,
        what `meaning` makes of other failures, and StorageError when the last attempt failed.
        """
        pause, began, tries = _BACKOFF, time.monotonic(), 0
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
                # At random, so that the ranks that failed together do not come back together.
                time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  a pause's jitter, no secret
                pause = min(pause * _GROWTH, _LONGEST)

    @abstractmethod
    def meaning(self, error: Any, doing: str) -> Exception:
        """Translate a failure of the client: a TransientError, a StorageError, a DatasetError."""

    def open(self, name: str, size: int | None = None) -> ObjectBlob:
        length = self.size(name) if size is None else size
        if length is None:
            raise missing(self.url(name))
        return ObjectBlob(self, name, length)

    def size(self, name: str) -> int | None:
        try:
            return self.ask(f"cannot look at {self.url(name)}", lambda: self.length(self.key(name)))
        except self.absent:
            return None

    @abstractmethod
    def length(self, key: str) -> int:
        """Bytes of an object. Raises `absent` and `failures`."""

    def put_new(self, name: str, data: bytes) -> bool:
        """Write something small unless it exists; False if it does. Raises StorageError.

        Without conditional requests two may both write, and the later one stays.
        """
        if self.size(name) is not None:
            return False
        self.put(name, data)
        return True

    @contextmanager
    def exclusive(self, name: str) -> Iterator[Owner | None]:
        """Hold a lock: an object that is written again every few seconds, so that others see its owner alive.

        One whose owner has ended, or has not written it for a while, is taken over.
        """
        before = self._await_lock(name)
        me = Owner.me()
        ended = threading.Event()
        if before is not None:
            self.delete([name])
        self.put_new(name, me.line())
        time.sleep(_LOCK_SETTLES)  # where put_new is not atomic, the later one has the lock
        self._require_lock(name, me)

        def renew() -> None:
            beats = 0
            while not ended.wait(_LOCK_RENEWED):
                beats += 1
                with suppress(StorageError, DatasetError):
                    if Owner.read((self.get(name) or b"").partition(b"\n")[0]) == me:
                        self.put(name, me.line() + b"%d\n" % beats)

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield before
            self._require_lock(name, me)
        finally:
            ended.set()
            thread.join()
            with suppress(StorageError, DatasetError):  # a lock that stays is taken over by the next
                if Owner.read((self.get(name) or b"").partition(b"\n")[0]) == me:
                    self.delete([name])

    def _await_lock(self, name: str) -> Owner | None:
        """Return who left the lock behind; None: no lock. Raises DatasetError while its owner is at work."""
        found = self.get(name)
        if found is None:
            return None
        owner = Owner.read(found.partition(b"\n")[0])
        if owner is None:
            raise DatasetError(f"{self.url(name)} is no lock of feedrate", "remove it")
        if not owner.gone:
            end = time.monotonic() + _LOCK_STALE
            while owner.host == socket.gethostname() or time.monotonic() < end:
                if owner.host == socket.gethostname() or self.get(name) not in (found, None):
                    raise DatasetError(f"{self} is in use: {owner} is at work", "wait for it")
                time.sleep(1.0)
        return owner

    def _require_lock(self, name: str, me: Owner) -> None:
        """Raises DatasetError when another process took the lock."""
        owner = Owner.read((self.get(name) or b"").partition(b"\n")[0])
        if owner != me:
            raise DatasetError(f"{self} is in use: {owner or 'another process'} is at work", "wait for it")

    @abstractmethod
    def chunks(self, blob: ObjectBlob, begin: int, end: int) -> Iterator[memoryview | bytes]:
        """The bytes `begin` to `end` of an object, in order.

        Raises `failures`, TransientError; DatasetError when it is not there, or has another size.
        """

    def draft(self, name: str, options: WriteOptions) -> ObjectDraft:
        return ObjectDraft(self, name)

    def appender(self, name: str, unit: int) -> ObjectAppender:
        return ObjectAppender(self, name)


class ObjectBlob(Blob):
    """One object, read in ranges. A range that breaks off is taken up where it did."""

    __slots__ = ("_store", "key", "tag")

    def __init__(self, store: ObjectStore, name: str, size: int) -> None:
        self.name = store.url(name)
        self.size = size
        self.alignment = 1
        self.key = store.key(name)
        self.tag: str | None = None
        """The ETag of the first read, where the store has them: it must stay the same."""
        self._store = store

    def read_into(self, offset: int, buffer: memoryview, length: int | None = None) -> int:
        """One request unless it fails."""
        asked = len(buffer) if length is None else length
        room = buffer if asked <= len(buffer) else buffer[:HEAD]
        wanted = min(asked, self.size - offset)
        done = 0

        def take() -> None:
            nonlocal done
            for chunk in self._store.chunks(self, offset + done, offset + wanted):
                if len(chunk) > wanted - done:
                    raise TransientError("cut", "more bytes than were asked for")
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
        """Raises DatasetError unless the object has `found` bytes."""
        if found != self.size:
            raise wrong_size(self.name, found, self.size)


class ObjectDraft(Draft):
    """An object to be, composed in memory: it is put whole when it gets its name."""

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

    def close(self) -> None:
        self._data = bytearray()


class ObjectAppender(Appender):
    """Records in objects `NAME.000000`, `NAME.000001`, ...: those of a second or so in each."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        """Goes on behind the objects that are there. Raises StorageError."""
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
