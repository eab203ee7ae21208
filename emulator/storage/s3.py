"""Samples as objects of an S3 endpoint, through obstore: one request a range, its failures seen here.

Keys and endpoint come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_ENDPOINT_URL, AWS_REGION) and are kept nowhere. obstore's own retries are off: they could not be counted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from typing import TypeVar

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from emulator.config.storage import ObjectURL
from emulator.errors import DatasetError, SpecError, StorageError
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

# Two threads move the bytes of a rank: a pool as large as the host for each of its ranks would only wait.
os.environ.setdefault("TOKIO_WORKER_THREADS", "2")


Value = TypeVar("Value")

_CHUNK = 256 << 10
"""Bytes after which a body is handed on while the rest of it arrives."""
_PART = 16 << 20
"""Bytes of one part of an upload; what is smaller is put at once."""
_PAGE = 1000


class S3Store(ObjectStore):
    """Objects below `s3://BUCKET/PREFIX`. Safe to use from many threads."""

    def __init__(self, place: ObjectURL, stats: ReadStats | None = None) -> None:
        """Raises SpecError when there are no keys, or the options make no sense."""
        super().__init__(place, stats)
        endpoint = endpoint_of(place)
        _require_keys(endpoint)
        wait = timedelta(seconds=place.timeout)
        regions = (place.option("region"), os.environ.get("AWS_REGION"), os.environ.get("AWS_DEFAULT_REGION"))
        try:
            self._client = obstore.store.S3Store(
                place.bucket, endpoint=endpoint or None, region=next(filter(None, regions), "us-east-1"),
                client_options={
                    "allow_http": endpoint.startswith("http://"), "connect_timeout": wait,
                    "read_timeout": wait, "timeout": timedelta(days=1),
                },
                retry_config={"max_retries": 0, "retry_timeout": wait},
            )  # fmt: skip
        except (BaseError, ValueError) as error:
            raise SpecError(f"{self}: {str(error).splitlines()[0]}", "check the AWS_ variables") from None

    def __reduce__(self) -> tuple[object, ...]:
        return (S3Store, (self.place,))

    def _ask(self, doing: str, action: Callable[[], Value]) -> Value:
        """`action()`, repeated within bounds. Raises FileNotFoundError, StorageError, DatasetError."""

        def one() -> Value:
            try:
                return action()
            except BaseError as error:
                raise self._meaning(error, doing) from None

        return self.attempt(doing, one)

    def _meaning(self, error: BaseError, doing: str) -> Exception:
        """What obstore's error comes to. Its text is not repeated: it may hold an access key."""
        text = str(error)
        found = re.search(r"status code: (\d{3})", text)
        status = int(found[1]) if found else 0
        code = re.search(r"<Code>(\w+)</Code>", text)
        said = f"{status} {code[1]}" if code else str(status)
        if "NoSuchBucket" in text:
            return StorageError(f"there is no bucket {self.place.bucket}", "make it, or check the name")
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in (401, 403):
            return StorageError(
                f"{doing}: access denied{f' ({said})' if status else ''}",
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what the bucket allows",
            )
        if status == 416:
            return DatasetError(f"{doing}: it ends before", "run feedrate verify on the dataset")
        if status == 429 or status >= 500:
            return TransientError("busy", f"the endpoint answered {said}")
        if status:
            return StorageError(f"{doing}: the endpoint answered {said}", "check the endpoint and the bucket")
        if "Timeout" in text or "TimedOut" in text:
            return TransientError("timeout", f"no answer for {show_seconds(self.place.timeout)}")
        if "UnexpectedRange" in text or "IncompleteBody" in text or "Interrupted" in text:
            return TransientError("cut", "the body was cut off")
        return TransientError("connection", f"no connection to {endpoint_of(self.place) or 'AWS'}")

    def open(self, name: str, size: int | None = None) -> ObjectBlob:
        """As Storage.open; asks for the size only where it is not given."""
        length = self.size(name) if size is None else size
        if length is None:
            raise missing(self.url(name))
        return ObjectBlob(self, name, length, _Reader(self, name, length).chunks)

    def size(self, name: str) -> int | None:
        """As Store.size. Raises StorageError."""
        try:
            return int(self._ask(f"cannot look at {self.url(name)}", lambda: self._head(name)))
        except FileNotFoundError:
            return None

    def _head(self, name: str) -> int:
        return int(obstore.head(self._client, self.key(name))["size"])

    def get(self, name: str) -> bytes | None:
        """As Store.get. Raises StorageError."""
        try:
            return self._ask(
                f"cannot read {self.url(name)}",
                lambda: bytes(obstore.get(self._client, self.key(name)).bytes()),
            )
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise StorageError(
                    f"there is no bucket {self.place.bucket}", "make it, or check the name"
                ) from None
            return None

    def put(self, name: str, data: bytes | memoryview) -> None:
        """As Store.put, of any size: in parts at the same time where it is large. Raises StorageError."""
        action = partial(
            obstore.put, self._client, self.key(name), data,
            use_multipart=len(data) > _PART, chunk_size=_PART, max_concurrency=4,
        )  # fmt: skip
        try:
            self._ask(f"cannot write {self.url(name)}", action)
        except FileNotFoundError:
            raise StorageError(
                f"there is no bucket {self.place.bucket}", "make it, or check the name"
            ) from None

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """As Store.entries, page by page. Raises StorageError."""
        folder, _, start = self.key(prefix).rpartition("/")
        after = self.key(prefix)[:-1] if start else None  # S3 begins behind it, in the order of names
        while page := self._ask(f"cannot list {self}", partial(self._page, folder, after)):
            for key, size in page:
                if key.startswith(self.key(prefix)):
                    yield Entry(key.removeprefix(self._prefix), size)
                elif key > self.key(prefix):
                    return
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def _page(self, folder: str, after: str | None) -> list[tuple[str, int]]:
        stream = obstore.list(self._client, folder or None, offset=after, chunk_size=_PAGE)
        return [(str(meta["path"]), int(meta["size"])) for meta in next(iter(stream), ())]

    def delete(self, names: Iterable[str]) -> None:
        """As Store.delete. Raises StorageError."""
        keys = [self.key(name) for name in names]
        for start in range(0, len(keys), _PAGE):
            some = keys[start : start + _PAGE]
            self._ask(f"cannot remove objects of {self}", partial(obstore.delete, self._client, some))

    def target(self, name: str, options: WriteOptions) -> ObjectDraft:
        """As Store.target."""
        return ObjectDraft(self.put, name, options)

    def appender(self, name: str, unit: int) -> ObjectAppender:
        """As Store.appender. Raises StorageError."""
        return ObjectAppender.behind(self, name)


class _Reader:
    """Ranges of one object, which must stay the same object."""

    def __init__(self, store: S3Store, name: str, size: int) -> None:
        self._store = store
        self._name = name
        self._size = size
        self._tag: str | None = None

    def chunks(self, begin: int, end: int) -> Iterator[bytes]:
        """As Chunks."""
        store, url = self._store, self._store.url(self._name)
        try:
            found = obstore.get(store._client, store.key(self._name), options={"range": (begin, end)})
            check_size(url, int(found.meta["size"]), self._size)
            tag = found.meta["e_tag"]
            if self._tag not in (None, tag):
                raise DatasetError(
                    f"{url} was replaced while it was read", "run feedrate verify on the dataset"
                )
            self._tag = tag
            yield from found.stream(min_chunk_size=min(_CHUNK, end - begin))
        except FileNotFoundError:
            raise missing(url) from None
        except BaseError as error:
            raise store._meaning(error, f"cannot read {url}") from None


def endpoint_of(place: ObjectURL) -> str:
    """URL of the endpoint, without a password; empty: that of AWS."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    found = place.option("endpoint") or next((os.environ[name] for name in names if os.environ.get(name)), "")
    scheme, mark, rest = found.partition("://")
    if found and not mark:
        raise SpecError(f"the endpoint {found!r} is no URL", "write it like http://HOST:PORT")
    return f"{scheme}://{rest.rpartition('@')[2]}" if found else ""


def _require_keys(endpoint: str) -> None:
    """Raises SpecError when an endpoint that is not AWS's would be asked without keys."""
    known = ("AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE")
    containers = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if endpoint and not any(os.environ.get(name) for name in (*known, *containers)):
        raise SpecError(
            f"no keys for {endpoint}",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for none",
        )
