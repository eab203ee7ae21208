"""A system under test or on paper: storage, clients, hardware. One file for simulate, plan, efficiency.

Only the part that a command needs must be there. What is not stated does not limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from emulator.config.catalog import content_folder
from emulator.config.reader import Bytes, Rate, Seconds, at_least, build, positive, read_toml, share
from emulator.errors import SpecError

_WATTS = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(k?)W\s*")


def parse_watts(text: str | float) -> float:
    """Watts from `"10.1W"`, `"1.2kW"` or a number. Raises SpecError."""
    if not isinstance(text, str):
        return float(text)
    match = _WATTS.fullmatch(text)
    if match is None:
        raise SpecError(f"{text!r} is not a power", "write it like 10.1W or 1.2kW")
    return float(match[1]) * (1000 if match[2] else 1)


Watts = Annotated[float, parse_watts]
"""Watts; in TOML a number or text such as "10.1W"."""


def _positive(spec: object, *names: str) -> None:
    for name in names:
        value = getattr(spec, name)
        if value is not None:
            positive(name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSystem:
    """What the storage can deliver."""

    bandwidth: Rate | None = None
    """Bytes/s that all clients together can read. None: no limit of its own."""
    write_bandwidth: Rate | None = None
    """Bytes/s that all clients together can write."""
    latency: Seconds = 0.0
    """Seconds from a read request to its first byte, unloaded."""
    write_latency: Seconds = 0.0
    """Seconds from a write request to its acknowledgement, unloaded."""
    read_iops: float | None = None
    """Small random reads per second."""
    write_iops: float | None = None
    """Small random writes per second."""
    nodes: int | None = None
    """Storage nodes."""
    node_bandwidth: Rate | None = None
    """Bytes/s that one node can send to clients, or take from them."""
    protection: str = "1x"
    """k+m erasure coding, or Rx for R copies."""
    read_efficiency: tuple[tuple[Bytes, float], ...] = ()
    """[read size, share of the bandwidth] pairs, sizes ascending; interpolated along ln size. Empty: 1."""

    def __post_init__(self) -> None:
        _positive(self, "bandwidth", "write_bandwidth", "read_iops", "write_iops", "nodes", "node_bandwidth")
        at_least("latency", self.latency, 0)
        at_least("write_latency", self.write_latency, 0)
        parse_protection(self.protection)
        sizes = [size for size, _ in self.read_efficiency]
        if sizes != sorted(set(sizes)) or any(size <= 0 for size in sizes):
            raise SpecError("read_efficiency must have ascending sizes above 0")
        for _, part in self.read_efficiency:
            share("read_efficiency", part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """How stored bytes are protected."""

    data: int
    """Nodes that hold the data of a stripe: k, or 1 with copies."""
    parity: int
    """Nodes that hold the rest of it: m, or copies - 1."""

    @property
    def overhead(self) -> float:
        """Bytes stored and sent to nodes per byte written by a client: (k + m) / k."""
        return (self.data + self.parity) / self.data


def parse_protection(text: str) -> Protection:
    """`4+2` or `3x`. Raises SpecError."""
    coded = re.fullmatch(r"\s*(\d+)\s*\+\s*(\d+)\s*", text)
    copies = re.fullmatch(r"\s*(\d+)\s*x\s*", text)
    if coded and int(coded[1]) >= 1:
        return Protection(data=int(coded[1]), parity=int(coded[2]))
    if copies and int(copies[1]) >= 1:
        return Protection(data=1, parity=int(copies[1]) - 1)
    raise SpecError(f"protection {text!r} is not known", "write it like 4+2 (erasure coding) or 3x (copies)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSystem:
    """The hosts that the accelerators sit in."""

    hosts: int | None = None
    """Client hosts; accelerators are spread evenly over them."""
    nic: Rate | None = None
    """Bytes/s that one host can receive."""
    cores: int | None = None
    """CPU cores of a host."""
    cpu_seconds_per_gb: float | None = None
    """CPU seconds that reading 10^9 bytes costs a host, loader included."""

    def __post_init__(self) -> None:
        _positive(self, "hosts", "nic", "cores", "cpu_seconds_per_gb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What the storage is made of and what it costs."""

    drives_per_node: int | None = None
    drive_capacity: Bytes | None = None
    """Bytes of one drive."""
    usable_capacity: Bytes | None = None
    """Bytes that users can store in the whole system; None: raw x k / (k + m)."""
    drive_power_read: Watts | None = None
    """Watts of one drive while it reads."""
    drive_power_write: Watts | None = None
    """Watts of one drive while it writes."""
    node_power: Watts | None = None
    """Watts of one node without its drives."""
    drive_cost: float | None = None
    """Price of one drive, in `currency`."""
    node_cost: float | None = None
    """Price of one node with its drives, in `currency`."""
    currency: str = "relative"
    """Currency of the prices, or `relative`."""

    def __post_init__(self) -> None:
        _positive(self, "drives_per_node", "drive_capacity", "usable_capacity", "drive_power_read")
        _positive(self, "drive_power_write", "node_power", "drive_cost", "node_cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """How `feedrate fit` came to a system, and within which counts it was looked at."""

    results: tuple[str, ...]
    """OUT folders that it was fitted to."""
    workload: str
    """Name of their workload."""
    counts: tuple[int, ...]
    """Process counts that were seen, ascending."""
    hosts: tuple[int, ...]
    """Numbers of hosts that were seen, ascending."""
    identified: bool
    """True when a count was beyond saturation; False: the bandwidth is only a lower bound."""
    bandwidth_interval: tuple[Rate, ...] = ()
    """95 % interval of the bandwidth in bytes/s; empty when it is not identified."""
    latency_interval: tuple[Seconds, ...] = ()
    """95 % interval of the latency in seconds; empty when it was not estimated."""
    error: float = 0.0
    """Root mean square relative error of throughput at the counts that were seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A storage system with its clients."""

    name: str = ""
    """Short name: the file's name without .toml."""
    title: str = ""
    """One line for people."""
    storage: StorageSystem = StorageSystem()
    clients: ClientSystem = ClientSystem()
    hardware: Hardware = Hardware()
    fit: Fitted | None = None
    """Set when the parameters were estimated."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Dotted key -> where its number comes from."""


def load_system(name: str) -> System:
    """The system of that path, or of that name in results/systems. Raises SpecError, StorageError."""
    path = Path(name)
    if not path.is_file():
        path = _catalogued(name)
    table, source = read_toml(path)
    return build(System, {"name": path.stem, **table}, source)


def on_hosts(system: System, hosts: int | None) -> System:
    """`system` with `hosts` client hosts; None: as it is."""
    return system if hosts is None else replace(system, clients=replace(system.clients, hosts=hosts))


def _catalogued(name: str) -> Path:
    if name.endswith(".toml") or "/" in name:
        raise SpecError(f"there is no file {name}", "check the path")
    folder = content_folder("results") / "systems"
    path = folder / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in folder.glob("*.toml")))
        raise SpecError(f"there is no system {name!r}", f"give a path, or one of: {known}")
    return path
