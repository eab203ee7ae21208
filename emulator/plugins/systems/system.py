"""A system file: the storage, clients and hardware of an existing or planned system.

`plan` and `efficiency` read it. Only the part that a command needs is required; a value that is not stated
is no limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from emulator.config.catalog import find
from emulator.config.reader import Bytes, Rate, Seconds, build, positive, read_toml, share
from emulator.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSystem:
    """Limits of the storage."""

    bandwidth: Rate | None = None
    """Bytes/s that all clients together can read; None for no limit."""
    write_bandwidth: Rate | None = None
    """Bytes/s that all clients together can write."""
    read_iops: float | None = None
    """Small random reads per second."""
    write_iops: float | None = None
    """Small random writes per second."""
    latency: Seconds | None = None
    """Mean seconds of a read request."""
    write_latency: Seconds | None = None
    """Mean seconds of a write request."""
    depth: int | None = None
    """Requests that all clients together kept in flight when latency and IOPS were measured; None: one."""
    nodes: int | None = None
    node_bandwidth: Rate | None = None
    """Bytes/s that one node can send to clients, or take from them."""
    protection: str = "1x"
    """k+m erasure coding, or Rx for R copies."""
    read_efficiency: tuple[tuple[Bytes, float], ...] = ()
    """[read size, share of the bandwidth] pairs, sizes ascending; interpolated along ln size. Empty: 1."""

    def __post_init__(self) -> None:
        positive(self, "bandwidth", "write_bandwidth", "read_iops", "write_iops", "nodes", "node_bandwidth")
        positive(self, "latency", "write_latency", "depth")
        protection_overhead(self.protection)
        sizes = [size for size, _ in self.read_efficiency]
        if sizes != sorted(set(sizes)) or any(size <= 0 for size in sizes):
            raise SpecError("read_efficiency must have ascending sizes above 0")
        for _, part in self.read_efficiency:
            share("read_efficiency", part)


def protection_overhead(text: str) -> float:
    """Return the bytes stored per byte written with `4+2` (1.5) or `3x` (3). Raises SpecError."""
    coded = re.fullmatch(r"\s*([1-9]\d*)\s*\+\s*(\d+)\s*", text)
    copies = re.fullmatch(r"\s*([1-9]\d*)\s*x\s*", text)
    if coded:
        return (int(coded[1]) + int(coded[2])) / int(coded[1])
    if copies:
        return float(copies[1])
    raise SpecError(f"protection {text!r} is not known", "write it like 4+2 (erasure coding) or 3x (copies)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSystem:
    """The hosts that the storage was measured with."""

    hosts: int | None = None
    nic: Rate | None = None
    """Bytes/s that one host can receive."""

    def __post_init__(self) -> None:
        positive(self, "hosts", "nic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Hardware of the storage and its price."""

    drives_per_node: int | None = None
    drive_capacity: Bytes | None = None
    """Bytes of one drive."""
    usable_capacity: Bytes | None = None
    """Bytes that users can store in the whole system; None: raw x k / (k + m)."""
    drive_power_read: float | None = None
    """Watts of one drive while it reads."""
    drive_power_write: float | None = None
    """Watts of one drive while it writes."""
    node_cost: float | None = None
    """Price of one node with its drives, in `currency`."""
    currency: str = "relative"
    """Currency of the prices, or `relative`."""

    def __post_init__(self) -> None:
        positive(self, "drives_per_node", "drive_capacity", "usable_capacity", "drive_power_read")
        positive(self, "drive_power_write", "node_cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A storage system with its clients."""

    name: str = ""
    """Short name: the file's name without .toml."""
    title: str = ""
    storage: StorageSystem = StorageSystem()
    clients: ClientSystem = ClientSystem()
    hardware: Hardware = Hardware()
    sources: Mapping[str, str] = field(default_factory=dict)
    """Sources of the numbers, by dotted key."""


def load_system(name: str, settings: Sequence[str] = ()) -> System:
    """Load the system at that path, or of that name in results/systems, with `--set` settings applied.

    Raises SpecError, StorageError.
    """
    path = find("results/systems", name)
    table, source = read_toml(path, settings)
    return build(System, {"name": path.stem, **table}, source)
