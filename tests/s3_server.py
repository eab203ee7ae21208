"""A small S3 endpoint over HTTP whose faults are chosen: what a test reads through is a real socket."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

KEY, SECRET = "AKTEST", "a-secret-that-nobody-may-see"
BUCKET = "bucket"

FaultKind = Literal["503", "403", "301", "garbage", "hang", "cut", "short", "wrong-range", "reset"]
"""503, 403, 301: that status. garbage: a body that is no XML. hang: no answer. cut: the connection ends
within the body. short: fewer bytes than were asked for. wrong-range: the bytes of another range. reset: no
answer, connection closed."""


@dataclass
class Fault:
    """A fault of the next `times` requests of a method whose key contains `key`."""

    kind: FaultKind
    times: int = 1
    method: str = "GET"
    key: str = ""


@dataclass
class Endpoint:
    """A running server: its objects, its faults, and what it was asked."""

    url: str
    objects: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """(method, key, range) of every request."""
    lie: Callable[[BaseHTTPRequestHandler], bool] | None = None
    """Answers a request in its own way and returns True, or leaves it to the server."""
    page: int = 1000
    """Keys on a page of a listing."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    closing: threading.Event = field(default_factory=threading.Event)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    upload_numbers: Iterator[int] = field(default_factory=itertools.count)
    tags: dict[int, tuple[bytes, str]] = field(default_factory=dict)
    """ETags, by the identity of the bytes: a sum over an object for each of its ranges would take long."""

    def environment(self) -> dict[str, str]:
        """Address and keys for a client."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}

    def fault(self, method: str, key: str) -> FaultKind | None:
        """The fault that this request meets, if any; it is used up."""
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.method == method and fault.key in key:
                    fault.times -= 1
                    return fault.kind
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    endpoint: Endpoint

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _begin(self) -> tuple[str, dict[str, str], bytes] | None:
        """(key, query, body), or None when a fault or a wrong key has been answered already."""
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.endpoint.lock:
            self.endpoint.asked.append((self.command, key, self.headers.get("Range", "")))
        claimed = self.headers.get("Authorization", query.get("X-Amz-Credential", ""))
        if f"{KEY}/" not in claimed:
            self._error(403, "InvalidAccessKeyId", f"<AWSAccessKeyId>{KEY}</AWSAccessKeyId>")
            return None
        if self.endpoint.lie is not None and self.endpoint.lie(self):
            return None
        self._fault = self.endpoint.fault(self.command, key)
        if bucket != BUCKET:
            self._error(404, "NoSuchBucket")
        elif self._fault in ("503", "403", "301"):
            codes = {"503": "SlowDown", "403": "AccessDenied", "301": "PermanentRedirect"}
            self._error(int(self._fault), codes[self._fault])
        elif self._fault == "garbage":
            self._answer(200, b"<<<no answer of S3>")
        elif self._fault in ("hang", "reset"):
            if self._fault == "hang":
                self.endpoint.closing.wait(30)
            self.close_connection = True
        else:
            return key, query, body
        return None

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.get("length", str(len(body))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _error(self, status: int, code: str, more: str = "") -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message>{more}</Error>".encode())

    def do_HEAD(self) -> None:
        if (begun := self._begin()) is not None:
            data = self.endpoint.objects.get(begun[0])
            if data is None:
                self._answer(404)
                return
            self.send_response(200)
            self._facts(data)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()

    def _facts(self, data: bytes) -> None:
        known = self.endpoint.tags.get(id(data))
        if known is None or known[0] is not data:
            known = self.endpoint.tags[id(data)] = (data, md5(data, usedforsecurity=False).hexdigest())
        self.send_header("ETag", f'"{known[1]}"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")

    def do_GET(self) -> None:
        if (begun := self._begin()) is None:
            return
        key, query, _ = begun
        if not key:
            self._list(query)
        elif key not in self.endpoint.objects:
            self._error(404, "NoSuchKey")
        else:
            self._send(self.endpoint.objects[key])

    def _send(self, data: bytes) -> None:
        begin, end, status = 0, len(data), 200
        wanted = self.headers.get("Range")
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end, status = int(first), min(int(last) + 1 if last else end, end), 206
            if begin >= len(data):
                self._error(416, "InvalidRange")
                return
        body = data[begin:end]
        if self._fault == "short":
            body = body[: len(body) // 2]
            end = begin + len(body)
        if self._fault == "wrong-range":
            begin, end = begin + 1, end + 1
        self.send_response(status)
        self._facts(data)
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self._fault == "cut":
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        else:
            self.wfile.write(body)

    def _list(self, query: dict[str, str]) -> None:
        prefix = query.get("prefix", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        with self.endpoint.lock:
            names = sorted(key for key in self.endpoint.objects if key.startswith(prefix) and key > after)
            sizes = {name: len(self.endpoint.objects[name]) for name in names}
        page = names[: self.endpoint.page]
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{sizes[name]}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;0&quot;</ETag></Contents>"
            for name in page
        )
        more = len(names) > len(page)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        self._answer(
            200,
            f"<ListBucketResult><Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(page)}</KeyCount><MaxKeys>1000</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>".encode(),
        )

    def do_PUT(self) -> None:
        if (begun := self._begin()) is None:
            return
        key, query, body = begun
        with self.endpoint.lock:
            if "uploadId" in query:
                self.endpoint.uploads[query["uploadId"]][int(query["partNumber"])] = body
            else:
                self.endpoint.objects[key] = body
        self._answer(200, ETag=f'"{md5(body, usedforsecurity=False).hexdigest()}"')

    def do_POST(self) -> None:
        if (begun := self._begin()) is None:
            return
        key, query, body = begun
        with self.endpoint.lock:
            if "delete" in query:
                for element in ElementTree.fromstring(body).iter():
                    if element.tag.endswith("Key"):
                        self.endpoint.objects.pop(element.text or "", None)
                answer = "<DeleteResult><Deleted><Key>x</Key></Deleted></DeleteResult>"
            elif "uploads" in query:
                name = f"upload{next(self.endpoint.upload_numbers)}"
                self.endpoint.uploads[name] = {}
                answer = (
                    f"<InitiateMultipartUploadResult><Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key>"
                    f"<UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
                )
            else:
                parts = self.endpoint.uploads.pop(query["uploadId"])
                self.endpoint.objects[key] = b"".join(parts[number] for number in sorted(parts))
                done = "CompleteMultipartUploadResult"
                answer = f"<{done}><ETag>&quot;0&quot;</ETag></{done}>"
        self._answer(200, answer.encode())

    def do_DELETE(self) -> None:
        if (begun := self._begin()) is not None:
            with self.endpoint.lock:
                self.endpoint.objects.pop(begun[0], None)
                self.endpoint.uploads.pop(begun[1].get("uploadId", ""), None)
            self._answer(204)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up in time is what some faults are for."""


@contextmanager
def s3_server(host: str = "127.0.0.1") -> Iterator[Endpoint]:
    """A running endpoint with an empty bucket, on an address of this machine."""
    handler = type("Handler", (_Handler,), {})
    server = _Server((host, 0), handler)
    endpoint = handler.endpoint = Endpoint(f"http://{host}:{server.server_address[1]}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":  # a benchmark's server on another host: its variables on stdout, until stdin ends
    with s3_server(sys.argv[1]) as running:
        print(json.dumps(running.environment()), flush=True)
        sys.stdin.read()
