"""Which storage, and how its cache is treated: the `--storage` and `--cache` options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emulator.errors import SpecError
from emulator.units import parse_rate, parse_seconds, show_rate, show_seconds

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
    noise: str = ""
    """What ran on every host at the same time, as `--noise` says it; empty: nothing."""

    @property
    def emulated(self) -> bool:
        """True when a result shows the shape and not the storage."""
        return self.shaped_rate is not None

    def __str__(self) -> str:
        if self.shaped_rate is None:
            return f"as it is, {self.cache}"
        return f"shaped to {show_rate(self.shaped_rate)} a node, {show_seconds(self.shaped_latency)} latency"


def parse_storage(text: str, cache: Cache = "cold") -> StorageSpec:
    """`posix` or `shaped:RATE[,LATENCY]` as a StorageSpec. Raises SpecError."""
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
        cache=cache,
        shaped_rate=parse_rate(rate),
        shaped_latency=parse_seconds(latency) if latency else 0.0,
    )
