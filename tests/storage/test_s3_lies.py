"""An endpoint that lies: every answer ends within its time, and the error says what came."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from itertools import count

import pytest
from s3_server import BUCKET, Endpoint, s3_server

from emulator.config.storage import parse_place
from emulator.errors import FeedrateError, StorageError
from emulator.storage import open_store
from emulator.storage.base import ForeignName

Lie = Callable[[BaseHTTPRequestHandler], bool]
HEAD = b"Content-Length: 10\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
FACTS = b'ETag: "a"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n'
PARTIAL = b"HTTP/1.1 206 P\r\n" + FACTS + b"Content-Range: bytes 0-9/10\r\n"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setattr(sys, "argv", ["feedrate", "verify", "--storage-timeout", "2s"])
    with s3_server() as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        yield running


def store(options: str = "timeout=500ms&retries=2"):
    return open_store(parse_place(f"s3://{BUCKET}/p/ds?{options}"))


def answers(
    *parts: bytes, pause: float = 0.0, again: bool = False
) -> Callable[[BaseHTTPRequestHandler], bool]:
    """A lie that sends these bytes, again and again if so, with pauses in between."""

    def lie(request: BaseHTTPRequestHandler) -> bool:
        request.close_connection = True
        with suppress(OSError):
            request.wfile.write(parts[0])
            while True:
                for part in parts[1:]:
                    request.wfile.write(part)
                    request.wfile.flush()
                    time.sleep(pause)
                if not again:
                    return True
        return True

    return lie


def redirects(request: BaseHTTPRequestHandler) -> bool:
    request.send_response(302)
    request.send_header("Location", request.path)
    request.send_header("Content-Length", "0")
    request.end_headers()
    return True


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (answers(b"HTTP/1.1 400 B\r\nContent-Length: 3\r\n\r\n\xff\xfe\x80"), "utf-8"),
        (answers(b"HTTP/1.1 200 OK\r\n" + FACTS + b"Content-Length: 10\r\n\r\n0123456789"), "non-partial"),
        (answers(b"HTTP/1.1 206 P\r\n" + FACTS + b"Content-Range: x\r\nContent-Length: 1\r\n\r\nx"), "RANGE"),
        (answers(b"SSH-2.0-OpenSSH\r\n"), "does not answer like S3"),
        (answers(b"HTTP/1.1 206 P\r\nX: " + b"x" * 2_000_000), "does not answer like S3"),
        (redirects, "redirect"),
        (answers(PARTIAL + HEAD, b"x", pause=0.3, again=True), "no answer for 500 ms"),
        (answers(PARTIAL + CHUNKED, b"1\r\nx\r\n", again=True), "Content-Length"),
    ],
)
def test_a_read_ends_in_time_and_says_what_came(endpoint: Endpoint, lie: Lie, said: str) -> None:
    endpoint.lie = lie
    began = time.monotonic()
    with pytest.raises(FeedrateError) as caught, store().open("x", 10) as blob:
        blob.read_into(0, memoryview(bytearray(10)))
    assert said in str(caught.value) and "no connection" not in str(caught.value)
    assert time.monotonic() - began < 20, "2 s of --storage-timeout, on a machine that may be busy"


def listing(*keys: str, after: str = "") -> bytes:
    rows = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        "<ETag>0</ETag></Contents>" for key in keys
    )  # fmt: skip
    more = f"<NextContinuationToken>{after}</NextContinuationToken>" if after else ""
    cut = str(bool(after)).lower()
    body = f"<ListBucketResult><IsTruncated>{cut}</IsTruncated>{more}{rows}</ListBucketResult>"
    head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: "
    return f"{head}{len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize("keys", [(), ("p/ds/a", "p/ds/b"), tuple(f"p/ds/{n:04d}" for n in range(1000))])
def test_a_listing_that_repeats_its_token_ends(endpoint: Endpoint, keys: tuple[str, ...]) -> None:
    endpoint.lie = answers(listing(*keys, after="same"))
    with pytest.raises(StorageError, match="no page|repeats itself"):
        for _ in store().names():
            pass


def test_a_listing_keeps_to_the_order_of_names(endpoint: Endpoint) -> None:
    pages = count(10, -1)

    def lie(request: BaseHTTPRequestHandler) -> bool:
        first = next(pages)
        return answers(listing(*(f"p/ds/{first:04d}{n:04d}" for n in range(1000)), after="x"))(request)

    endpoint.lie = lie
    with pytest.raises(StorageError, match="repeats itself"):
        list(store().names())


@pytest.mark.parametrize("key", ["p/ds//x", "p/ds/./x", "p/ds/../x", "p/ds/a&#10;b"])
def test_an_object_that_no_file_could_be_is_named(endpoint: Endpoint, key: str) -> None:
    endpoint.lie = answers(listing("p/ds/a", key))
    with pytest.raises(ForeignName) as caught:
        list(store().names())
    assert caught.value.name == key.replace("&#10;", "\n")


def test_objects_are_removed_one_by_one_where_the_endpoint_cannot_remove_many(endpoint: Endpoint) -> None:
    def lie(request: BaseHTTPRequestHandler) -> bool:
        if request.command != "POST":
            return False
        return answers(b"HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\n\r\n")(request)

    endpoint.objects.update({f"p/ds/{name}": b"x" for name in ("a", "b c", "d")})
    endpoint.lie = lie
    store().delete(["a", "b c", "missing"])
    assert list(endpoint.objects) == ["p/ds/d"]
