"""A system file: the storage, clients and hardware of a system that exists, or is on paper.

`simulate`, `plan` and `efficiency` read it, `fit` writes one. Only the part that a command needs must be
there; what is not stated does not limit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated

from emulator.analysis.drift import student_t
from emulator.analysis.knee import PRIOR_DEVIATION
from emulator.config.catalog import content_folder
from emulator.config.reader import (
    Bytes,
    Rate,
    Seconds,
    at_least,
    build,
    positive,
    read_toml,
    share,
    stated,
    toml_text,
)
from emulator.errors import SpecError
from emulator.files import write_whole

_WATTS = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(k?)W\s*")


def parse_watts(text: str | float) -> float:
    """Return the watts of `"10.1W"`, `"1.2kW"` or a number. Raises SpecError."""
    if not isinstance(text, str):
        return float(text)
    match = _WATTS.fullmatch(text)
    if match is None:
        raise SpecError(f"{text!r} is not a power", "write it like 10.1W or 1.2kW")
    return float(match[1]) * (1000 if match[2] else 1)


SOFT = 8.5
"""Softness of a system that was documented: 288 accelerators at 98 % where the hard limit is 352
(results/seed-case-45GBps.md)."""

ALONE = 0.995
"""Efficiency from which a rank counts as losing nothing."""
ALIKE = 1.001
"""Ratio of two demands below which they count as equal."""

Watts = Annotated[float, parse_watts]
"""Watts; in TOML a number or text such as "10.1W"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSystem:
    """Limits of the storage."""

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
    softness: float | None = None
    """Gradualness of the limit: ranks that ask for D together get (D^-p + limit^-p)^(-1/p) with p =
    softness. None: the smaller of the two."""

    def __post_init__(self) -> None:
        positive(self, "bandwidth", "write_bandwidth", "read_iops", "write_iops", "nodes", "node_bandwidth")
        positive(self, "softness")
        at_least(0, self, "latency", "write_latency")
        parse_protection(self.protection)
        sizes = [size for size, _ in self.read_efficiency]
        if sizes != sorted(set(sizes)) or any(size <= 0 for size in sizes):
            raise SpecError("read_efficiency must have ascending sizes above 0")
        for _, part in self.read_efficiency:
            share("read_efficiency", part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """Protection of stored bytes."""

    data: int
    """Nodes that hold the data of a stripe: k, or 1 with copies."""
    parity: int
    """Nodes that hold the rest of it: m, or copies - 1."""

    @property
    def overhead(self) -> float:
        """Return bytes stored and sent to nodes per byte written by a client: (k + m) / k."""
        return (self.data + self.parity) / self.data


def parse_protection(text: str) -> Protection:
    """Parse `4+2` or `3x`. Raises SpecError."""
    coded = re.fullmatch(r"\s*(\d+)\s*\+\s*(\d+)\s*", text)
    copies = re.fullmatch(r"\s*(\d+)\s*x\s*", text)
    if coded and int(coded[1]) >= 1:
        return Protection(data=int(coded[1]), parity=int(coded[2]))
    if copies and int(copies[1]) >= 1:
        return Protection(data=1, parity=int(copies[1]) - 1)
    raise SpecError(f"protection {text!r} is not known", "write it like 4+2 (erasure coding) or 3x (copies)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSystem:
    """The hosts that contain the accelerators."""

    hosts: int | None = None
    """Client hosts; accelerators are spread evenly over them."""
    nic: Rate | None = None
    """Bytes/s that one host can receive."""
    cores: int | None = None
    """CPU cores of a host."""
    cpu_seconds_per_gb: float | None = None
    """CPU seconds that reading 10^9 bytes costs a host, loader included."""
    step_cost: Seconds = 0.0
    """Seconds of each step that neither reading ahead nor computing hides: launching, collating, copying."""
    start: Seconds = 0.0
    """Seconds before a rank asks for its first batch: imports, connections, listing."""

    def __post_init__(self) -> None:
        positive(self, "hosts", "nic", "cores", "cpu_seconds_per_gb")
        at_least(0, self, "step_cost", "start")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Hardware of the storage and its price."""

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
        positive(self, "drives_per_node", "drive_capacity", "usable_capacity", "drive_power_read")
        positive(self, "drive_power_write", "node_power", "drive_cost", "node_cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What `fit` estimates: parameters of StorageSystem and ClientSystem. A bandwidth of None is no limit."""

    bandwidth: Rate | None = None
    nic: Rate | None = None
    latency: Seconds = 0.0
    step_cost: Seconds = 0.0
    softness: float | None = None

    @property
    def free(self) -> tuple[str, ...]:
        """Return the names of the parameters that have a value."""
        return tuple(part.name for part in fields(self) if getattr(self, part.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The throughput of one measured count."""

    ranks: int
    hosts: int
    rate: Rate
    """Bytes/s over the steps in which all ranks were busy."""
    efficiency: float
    """Throughput / ideal throughput."""

    def __post_init__(self) -> None:
        positive(self, "ranks", "hosts", "rate", "efficiency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The measurements behind a fitted system, and its uncertainty."""

    results: tuple[str, ...]
    """OUT folders that it was fitted to."""
    workload: str
    """Name of their workload."""
    seen: tuple[Evidence, ...]
    """Measured counts, at least one."""
    identified: bool
    """True if a limit was seen; False if the system has only `at_least`, not a bandwidth."""
    interval: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """95 % interval by parameter; without those that were not estimated."""
    deviation: float = PRIOR_DEVIATION
    """Relative standard deviation of one run: repeats, residuals and drift within runs."""
    freedom: int = 2
    """Degrees of freedom of `deviation`."""
    held_out: tuple[float, ...] = ()
    """Median relative errors of throughput at counts that were held out of the fit, each by itself: of the
    simulation, of a constant efficiency, of the bandwidth cap alone; empty where too few were seen."""
    alternative: tuple[Parameters, ...] = ()
    """Other parameters that the measurements do not exclude at 95 %: predictions span all of them."""

    def __post_init__(self) -> None:
        if len(self.held_out) not in (0, 3):
            raise SpecError("fit.held_out must have three errors, or none")
        if not self.seen:
            raise SpecError("fit.seen is empty", "a fit has at least one measured count")

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the process counts that were seen, ascending."""
        return tuple(sorted({one.ranks for one in self.seen}))

    @property
    def hosts(self) -> tuple[int, ...]:
        """Return the numbers of hosts that were seen, ascending."""
        return tuple(sorted({one.hosts for one in self.seen}))

    @property
    def run_error(self) -> float:
        """Return the half width of the 95 % interval of ln throughput of a run, parameters known."""
        return student_t(0.95, self.freedom) * self.deviation

    @property
    def at_least(self) -> float:
        """Return the bytes/s that all hosts together get at least (95 %), whatever the limit is."""
        return max(one.rate for one in self.seen) * math.exp(-self.run_error)

    def between(self, demand: float, ranks: int, hosts: int) -> tuple[float, float]:
        """Return the efficiencies that the measured counts allow ranks that ask for `demand` bytes/s each.

        Run-to-run variation comes on top. The low end: what no more hosts were seen to read is read again. A
        rank loses no more time per byte than in a measured run of as many ranks that asked for as much, and
        what a larger job reads is no less. The high end: the ranks are not better off than fewer that asked
        for less, nor do they read more than more of them that starved, on as many hosts or more.
        """
        low, high = 0.0, 1.0
        for one in self.seen:
            asked = one.rate / one.efficiency / one.ranks
            whole = ranks * demand  # bytes/s that all ask for
            larger = max(1.0, ranks / one.ranks, whole * one.efficiency / one.rate)
            fed = 1 / (1 + demand / asked * (1 / one.efficiency - 1))
            if one.hosts <= hosts:
                low = max(low, fed / larger)
            if one.hosts >= hosts and one.ranks <= ranks and asked <= demand * ALIKE:
                high = min(high, one.efficiency)
            starved = one.efficiency < ALONE
            if starved and one.hosts >= hosts and one.ranks >= ranks and asked * ALIKE >= demand:
                high = min(high, one.rate / whole)
        return low, high

    @property
    def no_better(self) -> bool:
        """Return True if a guess without simulation predicts held-out counts as well."""
        return bool(self.held_out) and self.held_out[0] >= min(self.held_out[1:])

    @property
    def standing(self) -> str:
        """Return a sentence on the prediction errors of held-out counts; empty if unknown."""
        if not self.held_out:
            return ""
        twin, constant, cap = self.held_out
        guesses = {"a constant efficiency": constant, "the bandwidth cap alone": cap}
        beaten = " and ".join(name for name, error in guesses.items() if twin >= error)
        verdict = f"no better than {beaten}" if beaten else "better than either"
        return (
            f"counts held out of the fit are predicted to {100 * twin:.1f} % (median), by a constant "
            f"efficiency to {100 * constant:.1f} %, by the bandwidth cap alone to {100 * cap:.1f} %: "
            f"{verdict}"
        )


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

    def having(self, chosen: Parameters) -> System:
        """Return the system with these parameters."""
        storage = replace(
            self.storage, bandwidth=chosen.bandwidth, latency=chosen.latency, softness=chosen.softness
        )
        clients = replace(self.clients, nic=chosen.nic, step_cost=chosen.step_cost)
        return replace(self, storage=storage, clients=clients)

    @property
    def parameters(self) -> Parameters:
        """Return the parameters that `fit` estimates."""
        storage, clients = self.storage, self.clients
        return Parameters(
            bandwidth=storage.bandwidth,
            nic=clients.nic,
            latency=storage.latency,
            step_cost=clients.step_cost,
            softness=storage.softness,
        )

    @property
    def lower_bound(self) -> bool:
        """Return True if a fit saw no limit, so that what the system feeds is a lower bound."""
        return self.fit is not None and not self.fit.identified

    @property
    def cautious(self) -> System:
        """Return the system with no more bandwidth than is known, where a fit saw no limit; else as it is."""
        if self.fit is None or self.fit.identified:
            return self
        return self.having(replace(self.parameters, bandwidth=self.fit.at_least))

    @property
    def alternatives(self) -> tuple[System, ...]:
        """Return other systems that are as likely: those that the fit did not exclude; for a system that is
        only described, itself with a soft limit."""
        if self.fit is None:
            return (replace(self, storage=replace(self.storage, softness=SOFT)),)
        return tuple(self.having(other).cautious for other in self.fit.alternative)

    @property
    def run_error(self) -> float:
        """Return the half width of the 95 % interval of ln throughput of a run, parameters known."""
        return self.fit.run_error if self.fit else 1.96 * PRIOR_DEVIATION


def load_system(name: str) -> System:
    """Return the system at that path, or of that name in results/systems. Raises SpecError, StorageError."""
    path = Path(name)
    if not path.is_file():
        if name.endswith(".toml") or "/" in name:
            raise SpecError(f"there is no file {name}", "check the path")
        folder = content_folder("results") / "systems"
        path = folder / f"{name}.toml"
        if not path.is_file():
            known = ", ".join(sorted(found.stem for found in folder.glob("*.toml")))
            raise SpecError(f"there is no system {name!r}", f"give a path, or one of: {known}")
    table, source = read_toml(path)
    return build(System, {"name": path.stem, **table}, source)


def on_hosts(system: System, hosts: int | None) -> System:
    """Return `system` with `hosts` client hosts; unchanged for None."""
    return system if hosts is None else replace(system, clients=replace(system.clients, hosts=hosts))


def refuse_existing(path: Path, force: bool) -> None:
    """Raise SpecError if `path` exists, unless `force`."""
    if path.exists() and not force:
        raise SpecError(f"{path} exists already", "choose another --out, or add --force")


def write_system(path: Path, system: System) -> None:
    """Write `system` as a file that `load_system` reads back, whole or not at all. Raises StorageError."""
    write_whole(path, toml_text(stated(replace(system, name=""))))
