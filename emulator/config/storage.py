"""The place of a dataset, and how its storage is read: the options `--storage` and `--cache`.

A dataset lies in a folder, or it is objects below a prefix of an S3 bucket or a Ceph pool, named by a URL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, urlencode

from emulator.errors import SpecError
from emulator.registry import STORES
from emulator.units import parse_rate, parse_seconds

Cache = Literal["cold", "warm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpec:
    """The file system as it is, or shaped down to a known limit."""

    cache: Cache = "cold"
    """cold: no byte comes from this host's page cache; warm: the page cache may serve."""
    shaped_rate: float | None = None
    """Bytes per second that all ranks of a node share; None: not shaped."""
    shaped_latency: float = 0.0
    """Seconds added to every read request when shaped."""

    @property
    def emulated(self) -> bool:
        """True when a result shows the shape and not the storage."""
        return self.shaped_rate is not None


def parse_storage(text: str, cache: Cache = "cold") -> StorageSpec:
    """Parse `posix` or `shaped:RATE[,LATENCY]`. Raises SpecError."""
    kind, _, rest = text.partition(":")
    if kind == "posix" and not rest:
        return StorageSpec(cache=cache)
    if kind != "shaped" or not rest:
        raise SpecError(
            f"--storage {text!r} is not known",
            "use posix or shaped:RATE[,LATENCY], for example shaped:400MB/s,2ms",
        )
    rate, _, latency = rest.partition(",")
    return StorageSpec(
        cache=cache, shaped_rate=parse_rate(rate), shaped_latency=parse_seconds(latency) if latency else 0.0
    )


TIMEOUT = 30.0
"""Seconds without an answer after which a request is given up, unless the URL says otherwise."""
RETRIES = 5
"""Times that a failed request is repeated, unless the URL says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectURL:
    """Objects whose names begin with a prefix."""

    kind: str
    """The scheme: an entry point of `feedrate.stores`."""
    bucket: str
    """Bucket of an S3 endpoint, or pool of a Ceph cluster."""
    prefix: str = ""
    """The prefix, without a slash at either end."""
    options: tuple[tuple[str, str], ...] = ()
    """Options after the `?` of the URL. No secrets: results keep them."""

    def __str__(self) -> str:
        query = urlencode(self.options, safe="/:")
        path = f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket
        return f"{self.kind}://{path}" + (f"?{query}" if query else "")

    def option(self, name: str, default: str = "") -> str:
        """Return the option `name` of the URL."""
        return dict(self.options).get(name, default)

    @property
    def timeout(self) -> float:
        """Seconds without an answer after which a request is given up. Raises SpecError."""
        text = self.option("timeout")
        return parse_seconds(text) if text else TIMEOUT

    @property
    def retries(self) -> int:
        """Times that a failed request is repeated."""
        return int(self.option("retries", str(RETRIES)))


Place = Path | ObjectURL


def parse_place(text: str) -> Place:
    """Parse a folder, `s3://BUCKET/PREFIX` or `rados://POOL/PREFIX`, with ?option=value. Raises SpecError."""
    if not text:  # perhaps a shell variable that is not set: not the current folder
        raise SpecError("no dataset is named", "name its folder; the current one is .")
    kind, mark, rest = text.partition("://")
    if mark:
        return _parse_url(kind, rest)
    slip = re.match(r"([a-z0-9]+):/*(.*)", text)
    if slip and slip[1] in STORES and not Path(text).exists():
        hint = f"write {slip[1]}://{slip[2]}; a folder of that name is ./{text}"
        raise SpecError(f"{text} is no folder", hint)
    return Path(text)


def _parse_url(kind: str, rest: str) -> ObjectURL:
    """Parse `BUCKET/PREFIX?option=value`, what follows `kind://`. Raises SpecError."""
    if kind not in STORES:
        examples = " or ".join(f"{scheme}://BUCKET/PREFIX" for scheme in STORES)
        raise SpecError(f"{kind}:// is not known", f"use a folder, {examples}")
    path, _, query = rest.partition("?")
    if "@" in path.partition("/")[0]:
        raise SpecError(f"a {kind}:// URL must not hold keys", "keys go into the environment")
    bucket, _, prefix = path.partition("/")
    parts = prefix.strip("/").split("/")
    if not bucket or any(part in (".", "..") or (not part and len(parts) > 1) for part in parts):
        raise SpecError(f"{kind}://{path} names no objects", f"write it like {kind}://BUCKET/PREFIX")
    options = _options(kind, query)
    place = ObjectURL(kind=kind, bucket=bucket, prefix="/".join(parts), options=options)
    if place.timeout <= 0:
        raise SpecError("the option timeout of a URL must be above 0", "write it like timeout=30s")
    return place


def _options(kind: str, query: str) -> tuple[tuple[str, str], ...]:
    """Return the options after the `?` of a URL. Raises SpecError."""
    options = parse_qsl(query, keep_blank_values=True)
    known = (*STORES.load(kind).options, "timeout", "retries") if options else ()
    for name, value in options:
        if name not in known:
            # The value is not shown: it may be a secret key in the wrong place.
            raise SpecError(
                f"the option {name!r} of a {kind}:// URL is not known",
                "use " + ", ".join(known) + "; keys go into the environment",
            )
        if name == "retries" and not value.isdigit():
            raise SpecError(f"retries={value!r} is not a whole number", "write it like retries=5")
        if name == "endpoint" and "@" in value:
            raise SpecError("the endpoint of a URL must not hold a password", "keys go into the environment")
    return tuple(options)
