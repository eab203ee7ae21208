"""`feedrate efficiency`: performance per terabyte, watt and price, and the nodes needed to match a system.

TB = 10^12 bytes, GB/s = 10^9 bytes/s. A number that is not known is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from emulator.config.workload import load_workload
from emulator.errors import SpecError
from emulator.plugins.systems.measured import open_system
from emulator.plugins.systems.plan import what_it_feeds
from emulator.plugins.systems.system import System, protection_overhead
from emulator.record.result import RunResult
from emulator.report.table import Column, Table

LABELS = {
    "_gb_per_second": " GB/s", "_mb_per_second": " MB/s", "_tb": " TB", "_ms": " ms", "_watts": " W",
    "_per_kw": " per kW", "_iops": " IOPS",
}  # fmt: skip
"""Parts of keys, for people."""


def ratio(value: float | None, amount: float | None) -> float | None:
    """Return value / amount, or None if either is unknown."""
    return None if value is None or not amount else value / amount


def product(*factors: float | None) -> float | None:
    """Return the product, or None if a factor is unknown."""
    known = [factor for factor in factors if factor is not None]
    return math.prod(known) if len(known) == len(factors) else None


def raw_bytes(system: System) -> float | None:
    """Return the raw capacity in bytes: nodes x drives per node x drive capacity."""
    hardware = system.hardware
    return product(system.storage.nodes, hardware.drives_per_node, hardware.drive_capacity)


def usable_bytes(system: System) -> float | None:
    """Return the usable capacity in bytes: as stated, or raw capacity x k / (k + m)."""
    if system.hardware.usable_capacity is not None:
        return float(system.hardware.usable_capacity)
    return ratio(raw_bytes(system), protection_overhead(system.storage.protection))


def figures(system: System, fed: float | None = None) -> dict[str, float | None]:
    """Return all figures by key, with the unit in it; prices are in the system's currency.

    `fed` is the number of accelerators that the system feeds, None if it is unknown.
    """
    storage, hardware = system.storage, system.hardware
    read, write = ratio(storage.bandwidth, 1e9), ratio(storage.write_bandwidth, 1e9)
    drive = hardware.drive_power_write or hardware.drive_power_read
    drives = product(storage.nodes, hardware.drives_per_node)
    reading, writing = product(drives, hardware.drive_power_read), product(drives, hardware.drive_power_write)
    price = product(storage.nodes, hardware.node_cost)
    capacity = {"raw": ratio(raw_bytes(system), 1e12), "usable": ratio(usable_bytes(system), 1e12)}
    figures_by_key = {
        "read_gb_per_second": read,
        "write_gb_per_second": write,
        "read_gb_per_second_per_node": ratio(read, storage.nodes),
        "write_gb_per_second_per_node": ratio(write, storage.nodes),
        "read_latency_ms": product(storage.latency, 1e3),
        "write_latency_ms": product(storage.write_latency, 1e3),
        "raw_tb": capacity["raw"],
        "usable_tb": capacity["usable"],
        "drive_watts": drive,
        "drives_of_a_node_watts": product(hardware.drives_per_node, drive),
        "reading_watts": reading,
        "writing_watts": writing,
        "cost": price,
        "reading_watts_per_gb_per_second": ratio(reading, read),
        "writing_watts_per_gb_per_second": ratio(writing, write),
        "cost_per_read_gb_per_second": ratio(price, read),
        "cost_per_write_gb_per_second": ratio(price, write),
        "accelerators": fed,
        "accelerators_per_kw": ratio(fed, ratio(reading, 1e3)),
        "accelerators_per_cost": ratio(fed, price),
    }
    amounts = {
        "read_mb_per_second": product(read, 1e3),
        "write_mb_per_second": product(write, 1e3),
        "read_iops": storage.read_iops,
        "write_iops": storage.write_iops,
        "watts": writing or reading,
        "cost": price,
        "accelerators": fed,
    }
    for key, amount in amounts.items():
        for kind, size in capacity.items():
            figures_by_key[f"{key}_per_{kind}_tb"] = ratio(amount, size)
    return figures_by_key


def matches(system: System, other: System) -> dict[str, int]:
    """Return the nodes of `system` that match `other` in usable capacity, reads and writes, if stated."""
    nodes = system.storage.nodes
    pairs = {
        "usable_capacity": (usable_bytes(other), usable_bytes(system)),
        "reads": (other.storage.bandwidth, system.storage.bandwidth),
        "writes": (other.storage.write_bandwidth, system.storage.write_bandwidth),
    }
    needed = {what: product(ratio(target, have), nodes) for what, (target, have) in pairs.items()}
    # A whole quotient must not become the next integer by a rounding error.
    return {what: math.ceil(count * (1 - 1e-12)) for what, count in needed.items() if count is not None}


def scaled(system: System, nodes: int | None = None, write_factor: float = 1.0) -> System:
    """Return the system with `nodes` nodes, in proportion, and its write rate times `write_factor`.

    Raises SpecError if it does not state its nodes.
    """
    storage = system.storage
    if nodes is not None and storage.nodes is None:
        raise SpecError(f"{system.name} does not state its nodes", "give --nodes, or storage.nodes")
    times = ratio(nodes, storage.nodes) or 1.0
    usable = product(usable_bytes(system), times)
    grown = replace(
        storage,
        nodes=nodes or storage.nodes,
        bandwidth=product(storage.bandwidth, times),
        write_bandwidth=product(storage.write_bandwidth, times * write_factor),
        read_iops=product(storage.read_iops, times),
        write_iops=product(storage.write_iops, times),
    )
    hardware = replace(system.hardware, usable_capacity=None if usable is None else round(usable))
    return replace(system, storage=grown, hardware=hardware)


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Figures of systems side by side."""

    systems: Mapping[str, Mapping[str, float | None]]
    """Figures by name of the system, and by key."""
    match: str = ""
    """Name of the system to match."""
    nodes_to_match: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Nodes to match it, by system, in capacity, reads and writes."""

    @property
    def tables(self) -> tuple[Table, ...]:
        """Return a column for each system, without the figures that none has; and the nodes to match."""
        return (
            _side_by_side("Efficiency", self.systems),
            _side_by_side(f"Nodes to match {self.match}", self.nodes_to_match),
        )


def _side_by_side(caption: str, systems: Mapping[str, Mapping[str, float | None]]) -> Table:
    keys = dict.fromkeys(key for values in systems.values() for key in values)
    rows = []
    for key in keys:
        values = [of_system.get(key) for of_system in systems.values()]
        if any(value is not None for value in values):
            label = key
            for part, words in LABELS.items():
                label = label.replace(part, words)
            rows.append((label.replace("_", " "), *values))
    columns = (Column("", align="left"), *(Column(name) for name in systems))
    return Table(caption=caption, columns=columns, rows=tuple(rows))


def efficiency(
    systems: Sequence[str],
    workload: str | None = None,
    match: str | None = None,
    *,
    settings: Sequence[str] = (),
    nodes: int | None = None,
    write_factor: float = 1.0,
) -> Efficiency:
    """Return the figures of systems or results, and the accelerators of `workload` that each feeds.

    `settings` are `--set` options of the systems, such as what a result does not tell: storage.nodes=6.
    `nodes` scales every system to as many; `write_factor` multiplies write rates, as for another protection.
    Both leave the system to `match` as it is. Raises SpecError, StorageError.
    """
    shown, needed = {}, {}
    other = open_system(match)[0] if match else System()
    for name in systems:
        stated, result = open_system(name, settings)
        system = scaled(stated, nodes, write_factor)
        shown[system.name] = figures(system, _fed(system, result, workload))
        needed[system.name] = matches(system, other)
    return Efficiency(systems=shown, match=other.name, nodes_to_match=needed if match else {})


def _fed(system: System, result: RunResult | None, workload: str | None) -> float | None:
    """Return the accelerators that the system feeds: of `workload`, or else of the result's own."""
    if workload is not None:
        return what_it_feeds(system, result, load_workload(workload)).accelerators or None
    return result.knee.n_au if result is not None and result.knee is not None else None
