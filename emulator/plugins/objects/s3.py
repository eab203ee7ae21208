"""Samples as objects of an S3 endpoint, through obstore, with one request per range.

Keys and endpoint come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_ENDPOINT_URL, AWS_REGION) and are not stored. obstore's own retries are off, because they cannot be
counted.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from emulator.config.storage import ObjectURL
from emulator.errors import DatasetError, MissingError, SpecError, StorageError
from emulator.files import DOCUMENT_BYTES
from emulator.plugins.objects.objects import ObjectBlob, ObjectStore, TransientError
from emulator.storage.base import Entry, ForeignName, missing
from emulator.units import show_seconds

try:
    import obstore
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        InvalidPathError,
        PermissionDeniedError,
        UnauthenticatedError,
    )
except ModuleNotFoundError as error:
    if error.name != "obstore":
        raise
    raise MissingError("s3:// needs obstore", "pip install 'feedrate[s3]'") from None

# Two threads move the bytes of a rank. The default is one per core of the host, for each rank.
os.environ.setdefault("TOKIO_WORKER_THREADS", "2")

_CHUNK = 256 << 10
"""Bytes of a chunk of a streamed body."""
_AT_ONCE = 512 << 10
"""Bytes up to which a body is not streamed. A stream takes 60 us more CPU at 256 KiB, 50 us more at 512 KiB,
and 60 us less at 1 MiB (obstore alone, 4 threads, nginx)."""
_PART = 16 << 20
"""Bytes of a part of a multipart upload; smaller objects are put in one request."""
_PAGE = 1000
"""Most objects of a list or delete request."""


class S3Store(ObjectStore):
    """Objects below `s3://BUCKET/PREFIX`."""

    options = ("endpoint", "region")
    failures = BaseError
    absent = FileNotFoundError

    def __init__(self, place: ObjectURL) -> None:
        """Make a client. Raises SpecError if there are no keys, or the options are invalid."""
        super().__init__(place)
        endpoint = endpoint_of(place)
        _require_keys(endpoint)
        wait = timedelta(seconds=self.timeout)
        regions = (place.option("region"), os.environ.get("AWS_REGION"), os.environ.get("AWS_DEFAULT_REGION"))
        try:
            self._client = obstore.store.S3Store(
                place.bucket,
                config={"endpoint": endpoint} if endpoint else {},
                region=next(filter(None, regions), "us-east-1"),
                client_options={
                    "allow_http": endpoint.startswith("http://"),
                    "connect_timeout": wait,
                    "timeout": wait,  # of the whole attempt: a body may come a byte at a time
                },
                retry_config={"max_retries": 0, "retry_timeout": wait},
            )
        except (BaseError, ValueError) as error:
            raise SpecError(f"{self}: {str(error).splitlines()[0]}", "check the AWS_ variables") from None

    def source(self) -> str:
        return endpoint_of(self.place) or "AWS"

    def meaning(self, error: BaseError, doing: str) -> Exception:
        """See ObjectStore.meaning. Messages omit obstore's text, which may contain an access key."""
        text = str(error)
        match = re.search(r"status code: (\d{3})", text)
        status = int(match[1]) if match else 0
        code = re.search(r"<Code>(\w+)</Code>", text)
        answer = f"{status} {code[1]}" if code else str(status)
        if "NoSuchBucket" in text:
            return self._no_bucket()
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in (401, 403):
            return StorageError(
                f"{doing}: access denied{f' ({answer})' if status else ''}",
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, the policy of the bucket, and whether the "
                "endpoint redirects to another",
            )
        if status:
            return self._answered(status, answer, doing)
        if isinstance(error, InvalidPathError):
            return ForeignName(self, _name_in(text))
        return self._unanswered(text, doing)

    def _answered(self, status: int, answer: str, doing: str) -> Exception:
        """Return the meaning of an HTTP status."""
        if status == 416:
            return DatasetError(f"{doing}: the object is too short", "run feedrate verify on the dataset")
        if status == 501:
            return Unsupported(f"{doing}: the endpoint does not support it ({answer})")
        if status == 429 or status >= 500:
            return TransientError("busy", f"the endpoint answered {answer}")
        return StorageError(f"{doing}: the endpoint answered {answer}", "check the endpoint and the bucket")

    def _unanswered(self, text: str, doing: str) -> Exception:
        """Return the meaning of obstore's text where no HTTP status came."""
        if "BareRedirect" in text:
            return StorageError(f"{doing}: the endpoint redirects to no address", "check AWS_REGION")
        if "Timeout" in text or "TimedOut" in text:
            return TransientError("timeout", f"no answer for {show_seconds(self.timeout)}")
        if any(kind in text for kind in ("UnexpectedRange", "IncompleteBody", "Interrupted")):
            return TransientError("cut", "the body was cut off")
        why = text.splitlines()[0].removeprefix("Generic S3 error: ").rpartition("HTTP error: ")[2]
        if "TooManyRedirects" in text:
            why = "too many redirects"
        elif "error sending request" in why and "Parse(" not in text:  # a parser's error is an answer
            return TransientError("connection", f"no connection to {self.source()}")
        return StorageError(
            f"{doing}: {self.source()} does not answer like S3 ({why[:160]})", "check AWS_ENDPOINT_URL"
        )

    def _no_bucket(self) -> StorageError:
        return StorageError(f"there is no bucket {self.place.bucket}", "create it, or check its name")

    def chunks(self, blob: ObjectBlob, begin: int, end: int) -> Iterator[memoryview | bytes]:
        try:
            result = obstore.get(self._client, blob.key, options={"range": (begin, end)})
            meta = result.meta  # a property that makes a new dict
            blob.require_size(int(meta["size"]))
            tag = meta["e_tag"]
            if blob.tag not in (None, tag):
                raise DatasetError(
                    f"{blob.name} was replaced while it was read", "run feedrate verify on the dataset"
                )
            blob.tag = tag
            if end - begin <= _AT_ONCE:
                yield memoryview(result.bytes())
            else:
                yield from result.stream(min_chunk_size=_CHUNK)
        except FileNotFoundError:
            raise missing(blob.name) from None

    def length(self, key: str) -> int:
        return int(obstore.head(self._client, key)["size"])

    def get(self, name: str, most: int = DOCUMENT_BYTES) -> bytes | None:
        def take() -> bytes:
            result = obstore.get(self._client, self.key(name))
            self.require_document(name, int(result.meta["size"]), most)
            return bytes(result.bytes())

        try:
            return self.ask(f"cannot read {self.url(name)}", take)
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._no_bucket() from None
            return None

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Put an object of any size; the parts of a large one are uploaded concurrently."""
        action = partial(
            obstore.put,
            self._client,
            self.key(name),
            data,
            use_multipart=len(data) > _PART,
            chunk_size=_PART,
            max_concurrency=4,
        )
        try:
            self.ask(f"cannot write {self.url(name)}", action)
        except FileNotFoundError:
            raise self._no_bucket() from None

    def put_new(self, name: str, data: bytes) -> None:
        """See ObjectStore.put_new. Atomic if the endpoint supports conditional requests."""

        def create() -> None:
            with suppress(AlreadyExistsError):
                obstore.put(self._client, self.key(name), data, mode="create", use_multipart=False)

        try:
            self.ask(f"cannot write {self.url(name)}", create)
        except FileNotFoundError:
            raise self._no_bucket() from None
        except StorageError:  # perhaps the endpoint refuses the condition
            super().put_new(name, data)

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        beginning = self.key(prefix)
        # obstore lists folders. To list the names that begin with more, begin just before the first of them.
        folder, _, more = beginning.rpartition("/")
        after = beginning[:-1] if more else None
        while page := self.ask(f"cannot list {self}", partial(self._page, folder, after)):
            for key, size in page:
                if after is not None and key <= after:
                    raise StorageError(
                        f"cannot list {self}: {self.source()} repeats itself", "check the endpoint"
                    )
                after = key
                if key.startswith(beginning):
                    yield Entry(key.removeprefix(self._prefix), size)
                elif key > beginning:
                    return
            if len(page) < _PAGE:
                return

    def _page(self, folder: str, after: str | None) -> list[tuple[str, int]]:
        """Return the names after `after`, at most _PAGE."""
        stream = obstore.list(self._client, folder or None, offset=after, chunk_size=_PAGE)

        async def first() -> Any:
            async with asyncio.timeout(self.timeout):
                async for page in stream:
                    return page
            return ()

        # obstore follows tokens until a page is full: only asyncio can end it. In a thread of its own, since
        # the caller may be in an event loop.
        with ThreadPoolExecutor(1) as pool:
            try:
                found = pool.submit(asyncio.run, first()).result()
            except TimeoutError:
                raise TransientError("timeout", f"no page for {show_seconds(self.timeout)}") from None
        return [(str(meta["path"]), int(meta["size"])) for meta in found]

    def delete(self, names: Iterable[str]) -> None:
        keys = [self.key(name) for name in names]
        doing = f"cannot remove objects of {self}"
        for start in range(0, len(keys), _PAGE):
            page = keys[start : start + _PAGE]
            try:
                self.ask(doing, partial(obstore.delete, self._client, page))
            except Unsupported:
                for key in page:
                    self.ask(doing, partial(self._delete_one, key))

    def _delete_one(self, key: str) -> None:
        """Remove one object by a request of its own, which obstore does not make."""
        url = obstore.sign(self._client, "DELETE", key, timedelta(hours=1))
        try:
            with urlopen(Request(url, method="DELETE"), timeout=self.timeout):  # noqa: S310  the endpoint's
                return
        except HTTPError as error:
            if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise TransientError("busy", f"the endpoint answered {error.code}") from None
            if error.code != HTTPStatus.NOT_FOUND:
                raise StorageError(f"cannot remove {key}: the endpoint answered {error.code}") from None
        except OSError:
            raise TransientError("connection", f"no connection to {self.source()}") from None


class Unsupported(StorageError):
    """The endpoint does not have this kind of request."""


def _name_in(text: str) -> str:
    """Return the name in obstore's error of a name that it does not take."""
    found = re.search(r'path: ("(?:[^"\\]|\\.)*")', text)
    return str(ast.literal_eval(found[1])) if found else "?"


def endpoint_of(place: ObjectURL) -> str:
    """Return the URL of the endpoint, without a password; empty for AWS. Raises SpecError."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    url = place.option("endpoint") or next((os.environ[name] for name in names if os.environ.get(name)), "")
    scheme, mark, rest = url.partition("://")
    if url and not mark:
        raise SpecError("the endpoint of S3 is not a URL", "write it like http://HOST:PORT")
    return f"{scheme}://{rest.rpartition('@')[2]}" if url else ""


def _require_keys(endpoint: str) -> None:
    """Raise SpecError if AWS_ variables are malformed, or have no keys for an endpoint other than AWS's."""
    for name, value in os.environ.items():
        if name.startswith("AWS_") and re.search(r"[^\x20-\x7e]|^ | $", value):  # obstore would abort
            raise SpecError(
                f"{name} has a line break, a space at an end, or a character that is not ASCII",
                "a secret read from a file often ends in a line break: remove it",
            )
    known = ("AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE")
    containers = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if endpoint and not any(os.environ.get(name) for name in (*known, *containers)):
        raise SpecError(
            f"no keys for {endpoint}",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for none",
        )
