"""A system file: the storage, clients and hardware of an existing or planned system.

`simulate`, `plan` and `efficiency` read it, `fit` writes one. Only the part that a command needs is required;
a value that is not stated is no limit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from emulator.analysis.drift import student_t
from emulator.analysis.variation import PRIOR_DEVIATION
from emulator.config.catalog import find
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

SOFT = 8.5
"""Softness of a documented system, which feeds 288 accelerators at 98 % with a hard limit of 352
(results/seed-case-45GBps.md)."""

ALONE = 0.995
"""Efficiency from which a rank is considered to lose nothing."""
ALIKE = 1.001
"""Ratio of two demands up to which they are considered equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSystem:
    """Limits of the storage."""

    bandwidth: Rate | None = None
    """Bytes/s that all clients together can read; None for no limit."""
    write_bandwidth: Rate | None = None
    """Bytes/s that all clients together can write."""
    latency: Seconds = 0.0
    """Seconds from a read request to its first byte, unloaded."""
    read_iops: float | None = None
    """Small random reads per second."""
    write_iops: float | None = None
    """Small random writes per second."""
    nodes: int | None = None
    node_bandwidth: Rate | None = None
    """Bytes/s that one node can send to clients, or take from them."""
    protection: str = "1x"
    """k+m erasure coding, or Rx for R copies."""
    read_efficiency: tuple[tuple[Bytes, float], ...] = ()
    """[read size, share of the bandwidth] pairs, sizes ascending; interpolated along ln size. Empty: 1."""
    softness: float | None = None
    """Gradualness of the limit: ranks with a total demand of D get (D^-p + limit^-p)^(-1/p) with p =
    softness; None for the smaller of the two."""

    def __post_init__(self) -> None:
        positive(self, "bandwidth", "write_bandwidth", "read_iops", "write_iops", "nodes", "node_bandwidth")
        positive(self, "softness")
        at_least(0, self, "latency")
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
    """Nodes with the data of a stripe: k, or 1 with copies."""
    parity: int
    """Nodes with its redundancy: m, or copies - 1."""

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
    """CPU seconds of a host to read 10^9 bytes, loader included."""
    step_cost: Seconds = 0.0
    """Seconds of each step that neither prefetching nor compute hides: launching, collating, copying."""
    start: Seconds = 0.0
    """Seconds before a rank requests its first batch: imports, connections, listing."""

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
class Parameters:
    """The parameters that `fit` estimates, of StorageSystem and ClientSystem; a bandwidth may be None."""

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
    workload: str
    seen: tuple[Evidence, ...]
    """Measured counts, at least one."""
    identified: bool
    """True if a limit was visible; False if only `at_least` is known, not a bandwidth."""
    interval: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """95 % intervals of the estimated parameters, by name."""
    deviation: float = PRIOR_DEVIATION
    """Relative standard deviation of one run: repeats, residuals and drift within runs."""
    freedom: int = 2
    """Degrees of freedom of `deviation`."""
    held_out: tuple[float, ...] = ()
    """Median relative errors of throughput at counts that were held out of the fit, one at a time: of the
    simulation, of a constant efficiency, of the bandwidth cap alone; empty if there were too few counts."""
    alternative: tuple[Parameters, ...] = ()
    """Other parameters that the measurements do not exclude at 95 %; predictions span all of them."""

    def __post_init__(self) -> None:
        if len(self.held_out) not in (0, 3):
            raise SpecError("fit.held_out must have three errors or none")
        if not self.seen:
            raise SpecError("fit.seen is empty", "a fit has at least one measured count")

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the measured process counts, ascending."""
        return tuple(sorted({one.ranks for one in self.seen}))

    @property
    def hosts(self) -> tuple[int, ...]:
        """Return the measured numbers of hosts, ascending."""
        return tuple(sorted({one.hosts for one in self.seen}))

    @property
    def run_error(self) -> float:
        """Return the half width of the 95 % interval of ln throughput of a run, parameters known."""
        return student_t(0.95, self.freedom) * self.deviation

    @property
    def at_least(self) -> float:
        """Return a lower bound (95 %) of the bytes/s of all hosts together, for any limit."""
        return max(one.rate for one in self.seen) * math.exp(-self.run_error)

    def between(self, demand: float, ranks: int, hosts: int) -> tuple[float, float]:
        """Return the bounds of efficiency, from the measured counts, of ranks with `demand` bytes/s each.

        They exclude run-to-run variation. The lower bound assumes that as many or more hosts read at least as
        much: a rank loses no more time per byte than in a measured run with the same ranks and demand, and a
        larger job reads no less. The upper bound assumes, for as many or fewer hosts, that the ranks do not
        have a higher efficiency than fewer ranks with a smaller demand, nor read more than a larger number of
        ranks that starved.
        """
        low, high = 0.0, 1.0
        for one in self.seen:
            seen_demand = one.rate / one.efficiency / one.ranks
            whole = ranks * demand  # total demand, bytes/s
            larger = max(1.0, ranks / one.ranks, whole * one.efficiency / one.rate)
            fed = 1 / (1 + demand / seen_demand * (1 / one.efficiency - 1))
            if one.hosts <= hosts:
                low = max(low, fed / larger)
            if one.hosts >= hosts and one.ranks <= ranks and seen_demand <= demand * ALIKE:
                high = min(high, one.efficiency)
            starved = one.efficiency < ALONE
            if starved and one.hosts >= hosts and one.ranks >= ranks and seen_demand * ALIKE >= demand:
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
    storage: StorageSystem = StorageSystem()
    clients: ClientSystem = ClientSystem()
    hardware: Hardware = Hardware()
    fit: Fitted | None = None
    """Set if the parameters were estimated."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Sources of the numbers, by dotted key."""

    def having(self, chosen: Parameters) -> System:
        storage = replace(
            self.storage, bandwidth=chosen.bandwidth, latency=chosen.latency, softness=chosen.softness
        )
        clients = replace(self.clients, nic=chosen.nic, step_cost=chosen.step_cost)
        return replace(self, storage=storage, clients=clients)

    @property
    def parameters(self) -> Parameters:
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
        """Return True if a fit identified no limit, so that what the system feeds is a lower bound."""
        return self.fit is not None and not self.fit.identified

    @property
    def cautious(self) -> System:
        """Return the system; if a fit identified no limit, with the lower bound of its bandwidth."""
        if self.fit is None or self.fit.identified:
            return self
        return self.having(replace(self.parameters, bandwidth=self.fit.at_least))

    @property
    def alternatives(self) -> tuple[System, ...]:
        """Return systems that the fit did not exclude; without a fit, the system with a soft limit."""
        if self.fit is None:
            return (replace(self, storage=replace(self.storage, softness=SOFT)),)
        return tuple(self.having(other).cautious for other in self.fit.alternative)

    @property
    def run_error(self) -> float:
        """Return the half width of the 95 % interval of ln throughput of a run, parameters known."""
        return self.fit.run_error if self.fit else 1.96 * PRIOR_DEVIATION


def load_system(name: str) -> System:
    """Load the system at that path, or of that name in results/systems. Raises SpecError, StorageError."""
    path = find("results/systems", name)
    table, source = read_toml(path)
    return build(System, {"name": path.stem, **table}, source)


def on_hosts(system: System, hosts: int | None) -> System:
    """Return `system` with `hosts` client hosts; unchanged for None."""
    return system if hosts is None else replace(system, clients=replace(system.clients, hosts=hosts))


def write_system(path: Path, system: System) -> None:
    """Write `system` atomically as a file that `load_system` can read. Raises StorageError."""
    write_whole(path, toml_text(stated(system)))
