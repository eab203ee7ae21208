"""`feedrate efficiency`: performance per terabyte, watt and price, and the nodes needed to match a system.

TB = 10^12 bytes, GB/s = 10^9 bytes/s. A number that is not known is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from emulator.config.workload import load_workload
from emulator.errors import SpecError
from emulator.plugins.systems.measured import is_result, open_system
from emulator.plugins.systems.plan import what_it_feeds
from emulator.plugins.systems.system import System, protection_overhead
from emulator.record.result import RunResult
from emulator.report.table import Column, Table


def known(value: float | None) -> float:
    """Return a number as it is stated, NaN for None: what is computed from an unknown number is unknown."""
    return math.nan if value is None else value


def raw_bytes(system: System) -> float:
    """Return the raw capacity in bytes: nodes x drives per node x drive capacity."""
    hardware = system.hardware
    return known(system.storage.nodes) * known(hardware.drives_per_node) * known(hardware.drive_capacity)


def usable_bytes(system: System) -> float:
    """Return the usable capacity in bytes: as stated, or raw capacity x k / (k + m)."""
    if system.hardware.usable_capacity is not None:
        return system.hardware.usable_capacity
    return raw_bytes(system) / protection_overhead(system.storage.protection)


def figures(system: System, fed: float | None = None) -> dict[str, float | None]:
    """Return all figures by key, with the unit in it; prices are in the system's currency.

    `fed` is the number of accelerators that the system feeds, None if it is unknown.
    """
    storage, hardware = system.storage, system.hardware
    nodes, drives_per_node = known(storage.nodes), known(hardware.drives_per_node)
    read, write = known(storage.bandwidth) / 1e9, known(storage.write_bandwidth) / 1e9
    # Drives draw most power when they write.
    drive = known(hardware.drive_power_write or hardware.drive_power_read)
    reading = nodes * drives_per_node * known(hardware.drive_power_read)
    writing = nodes * drives_per_node * known(hardware.drive_power_write)
    watts = reading if math.isnan(writing) else writing
    price = nodes * known(hardware.node_cost)
    accelerators = known(fed)
    capacity = {"raw": raw_bytes(system) / 1e12, "usable": usable_bytes(system) / 1e12}
    figures_by_key = {
        "read_gb_per_second": read,
        "write_gb_per_second": write,
        "read_gb_per_second_per_node": read / nodes,
        "write_gb_per_second_per_node": write / nodes,
        "read_latency_ms": known(storage.latency) * 1e3,
        "write_latency_ms": known(storage.write_latency) * 1e3,
        "raw_tb": capacity["raw"],
        "usable_tb": capacity["usable"],
        "drive_watts": drive,
        "drives_of_a_node_watts": drives_per_node * drive,
        "reading_watts": reading,
        "writing_watts": writing,
        "cost": price,
        "reading_watts_per_gb_per_second": reading / read,
        "writing_watts_per_gb_per_second": writing / write,
        "cost_per_read_gb_per_second": price / read,
        "cost_per_write_gb_per_second": price / write,
        "accelerators": accelerators,
        "accelerators_per_kw": accelerators / (reading / 1e3),
        "accelerators_per_cost": accelerators / price,
    }
    amounts = {
        "read_mb_per_second": read * 1e3,
        "write_mb_per_second": write * 1e3,
        "read_iops": known(storage.read_iops),
        "write_iops": known(storage.write_iops),
        "watts": watts,
        "cost": price,
        "accelerators": accelerators,
    }
    for key, amount in amounts.items():
        for kind, size in capacity.items():
            figures_by_key[f"{key}_per_{kind}_tb"] = amount / size
    return {key: None if math.isnan(value) else value for key, value in figures_by_key.items()}


def matches(system: System, other: System) -> dict[str, int]:
    """Return the nodes of `system` that match `other` in usable capacity, reads and writes, if stated."""
    needed = {
        "usable_capacity": usable_bytes(other) / usable_bytes(system),
        "reads": known(other.storage.bandwidth) / known(system.storage.bandwidth),
        "writes": known(other.storage.write_bandwidth) / known(system.storage.write_bandwidth),
    }
    nodes = known(system.storage.nodes)
    # A whole quotient must not become the next integer by a rounding error.
    return {
        what: math.ceil(times * nodes * (1 - 1e-12))
        for what, times in needed.items()
        if not math.isnan(times * nodes)
    }


def scaled(system: System, nodes: int | None = None, write_factor: float = 1.0) -> System:
    """Return the system with `nodes` nodes, in proportion, and its write rate times `write_factor`.

    Raises SpecError if it does not state its nodes.
    """
    storage = system.storage
    if nodes is not None and storage.nodes is None:
        raise SpecError(f"{system.name} does not state its nodes", "give --nodes, or storage.nodes")
    times = nodes / storage.nodes if nodes and storage.nodes else 1.0

    def grown(value: float | None, factor: float = times) -> float | None:
        return None if value is None else value * factor

    larger = replace(
        storage,
        nodes=nodes or storage.nodes,
        bandwidth=grown(storage.bandwidth),
        write_bandwidth=grown(storage.write_bandwidth, times * write_factor),
        read_iops=grown(storage.read_iops),
        write_iops=grown(storage.write_iops),
    )
    usable = usable_bytes(system) * times
    capacity = None if math.isnan(usable) else round(usable)
    return replace(system, storage=larger, hardware=replace(system.hardware, usable_capacity=capacity))


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
        values = [figures_of_system.get(key) for figures_of_system in systems.values()]
        if any(value is not None for value in values):
            rows.append((_label(key), *values))
    columns = (Column("", align="left"), *(Column(name) for name in systems))
    return Table(caption=caption, columns=columns, rows=tuple(rows))


def _label(key: str) -> str:
    """Return a key for people: `raw TB` for raw_tb."""
    units = {"gb_per_second": "GB/s", "mb_per_second": "MB/s", "tb": "TB", "ms": "ms", "watts": "W",
             "kw": "kW", "iops": "IOPS"}  # fmt: skip
    for part, unit in units.items():
        key = key.replace(f"_{part}", f" {unit}")
    return key.replace("_", " ")


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

    `settings` are `--set` options of the results, such as storage.nodes=6, or of the systems without results.
    `nodes` scales every system to as many; `write_factor` multiplies write rates, as for another protection.
    Both leave the system to `match` as it is. Raises SpecError, StorageError.
    """
    shown, needed = {}, {}
    results = [name for name in systems if is_result(name)]
    other = open_system(match)[0] if match else System()
    for name in systems:
        # A data sheet beside a result keeps its own nodes and drives.
        stated, result = open_system(name, () if results and name not in results else settings)
        system = scaled(stated, nodes, write_factor)
        column = name if system.name in shown else system.name
        shown[column] = figures(system, _fed(system, result, workload))
        needed[column] = matches(system, other)
    return Efficiency(systems=shown, match=other.name, nodes_to_match=needed if match else {})


def _fed(system: System, result: RunResult | None, workload: str | None) -> float | None:
    """Return the accelerators that the system feeds: of `workload`, or else of the result's own."""
    if workload is not None:
        fed = what_it_feeds(system, result, load_workload(workload))
        return fed.accelerators if fed.limit or fed.accelerators else None
    return result.knee.n_au if result is not None and result.knee is not None else None
