"""A system's performance per terabyte, watt and price, and the nodes needed to match another system.

TB = 10^12 bytes, GB/s = 10^9 bytes/s. A number that the system file lacks is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from emulator.config.workload import Workload
from emulator.plugins.systems.sizing import feeds
from emulator.plugins.systems.system import System, load_system, parse_protection
from emulator.record.result import RunResult
from emulator.report.table import Cell, Column, Table

TB, GB = 1e12, 1e9

_EXACTLY = 1 - 1e-12
"""Factor so that rounding errors do not raise a whole quotient to the next integer."""


def ratio(value: float | None, amount: float | None) -> float | None:
    """Return value / amount, or None if either is unknown."""
    return None if value is None or not amount else value / amount


def raw_bytes(system: System) -> float | None:
    """Return the raw capacity in bytes: nodes x drives per node x drive capacity."""
    nodes, hardware = system.storage.nodes, system.hardware
    if nodes is None or hardware.drives_per_node is None or hardware.drive_capacity is None:
        return None
    return float(nodes * hardware.drives_per_node * hardware.drive_capacity)


def usable_bytes(system: System) -> float | None:
    """Return the usable capacity in bytes: as stated, or raw capacity x k / (k + m)."""
    if system.hardware.usable_capacity is not None:
        return float(system.hardware.usable_capacity)
    raw = raw_bytes(system)
    return None if raw is None else raw / parse_protection(system.storage.protection).overhead


def watts(system: System, *, reading: bool) -> float | None:
    """Return the power of the drives in watts: nodes x drives per node x drive power."""
    nodes, hardware = system.storage.nodes, system.hardware
    drive = hardware.drive_power_read if reading else hardware.drive_power_write
    if nodes is None or hardware.drives_per_node is None or drive is None:
        return None
    return nodes * hardware.drives_per_node * drive


def cost(system: System) -> float | None:
    """Return the price: nodes x node price, which includes the drives."""
    nodes, price = system.storage.nodes, system.hardware.node_cost
    return None if nodes is None or price is None else nodes * price


def nodes_to_match(target: float, of_all: float, nodes: int) -> int:
    """Return the number of nodes that together deliver `target`: ceil(target / (of_all / nodes))."""
    return math.ceil(target * nodes / of_all * _EXACTLY)


class SystemFigure(NamedTuple):
    """One figure of a system."""

    name: str
    value: float | None
    """Value in `unit`; None if the system file lacks a key that it needs."""
    unit: str


def efficiency(system: System, fed: float | None = None) -> tuple[SystemFigure, ...]:
    """Return all figures of a system; `fed` is the number of accelerators that it feeds, None if unknown."""
    storage, money = system.storage, system.hardware.currency
    raw, usable = ratio(raw_bytes(system), TB), ratio(usable_bytes(system), TB)
    read, write = ratio(storage.bandwidth, GB), ratio(storage.write_bandwidth, GB)
    reading, writing = watts(system, reading=True), watts(system, reading=False)
    price = cost(system)
    rows = [
        ("read", read, "GB/s"),
        ("write", write, "GB/s"),
        ("read per node", ratio(read, storage.nodes), "GB/s"),
        ("raw capacity", raw, "TB"),
        ("usable capacity", usable, "TB"),
        ("power, reading", reading, "W"),
        ("power, writing", writing, "W"),
        ("cost", price, money),
    ]
    for name, amount, unit in (
        ("read", read, "GB/s"),
        ("write", write, "GB/s"),
        ("read IOPS", storage.read_iops, "IOPS"),
        ("write IOPS", storage.write_iops, "IOPS"),
        ("power", writing or reading, "W"),
        ("cost", price, money),
    ):
        rows.append((f"{name} per raw TB", ratio(amount, raw), f"{unit}/TB"))
        rows.append((f"{name} per usable TB", ratio(amount, usable), f"{unit}/TB"))
    rows += [
        ("power per read", ratio(reading, read), "W/(GB/s)"),
        ("power per write", ratio(writing, write), "W/(GB/s)"),
        ("cost per read", ratio(price, read), f"{money}/(GB/s)"),
        ("cost per write", ratio(price, write), f"{money}/(GB/s)"),
        ("accelerators fed", fed, ""),
        ("accelerators per usable TB", ratio(fed, usable), "1/TB"),
        ("accelerators per kW", ratio(fed, ratio(reading, 1e3)), "1/kW"),
        ("accelerators per cost", ratio(fed, price), f"1/{money}"),
    ]
    return tuple(SystemFigure(*row) for row in rows)


def matches(system: System, other: System) -> dict[str, int]:
    """Return the number of nodes of `system` that match `other` in capacity, reads and writes, if stated.

    Writes are compared as stated, and with the protection of `other`: write rate x overhead of `system` /
    overhead of `other`.
    """
    nodes, write = system.storage.nodes, system.storage.write_bandwidth
    if nodes is None:
        return {}
    own, theirs = parse_protection(system.storage.protection), parse_protection(other.storage.protection)
    pairs = {
        "usable capacity": (usable_bytes(other), usable_bytes(system)),
        "reads": (other.storage.bandwidth, system.storage.bandwidth),
        "writes": (other.storage.write_bandwidth, write),
    }
    if write is not None and own != theirs:
        same = write * own.overhead / theirs.overhead
        pairs[f"writes, with {other.storage.protection} protection"] = (other.storage.write_bandwidth, same)
    return {
        what: nodes_to_match(target, have, nodes)
        for what, (target, have) in pairs.items()
        if target is not None and have is not None
    }


def lacks(system: System) -> tuple[str, ...]:
    """Return a sentence for each key that the system file lacks, with the figures that need it."""
    storage, hardware = system.storage, system.hardware
    needed = {
        "storage.bandwidth": (storage.bandwidth, "reads per TB, watt or price"),
        "storage.write_bandwidth": (storage.write_bandwidth, "writes per TB, watt or price"),
        "storage.read_iops": (storage.read_iops, "read IOPS per TB"),
        "storage.write_iops": (storage.write_iops, "write IOPS per TB"),
        "storage.nodes": (storage.nodes, "raw capacity, power, cost or nodes to match"),
        "hardware.drives_per_node": (hardware.drives_per_node, "raw capacity or power"),
        "hardware.drive_capacity": (hardware.drive_capacity, "raw capacity"),
        "hardware.drive_power_read": (hardware.drive_power_read, "power while reading"),
        "hardware.drive_power_write": (hardware.drive_power_write, "power while writing"),
        "hardware.node_cost": (hardware.node_cost, "cost"),
        "hardware.usable_capacity": (usable_bytes(system), "usable capacity"),
    }
    return tuple(
        f"{system.name} lacks {key}: no {without}"
        for key, (value, without) in needed.items()
        if value is None
    )


Fed = tuple[float | None, tuple[float, float] | None]
"""Accelerators that a system feeds, and the 95 % interval of their number; None: unknown."""
NOBODY_KNOWS: Fed = (None, None)


def efficiency_table(systems: Sequence[System], fed: Sequence[Fed]) -> Table:
    """Return a table with a column for each system, without figures that no system file has."""
    figures = [efficiency(system, count) for system, (count, _) in zip(systems, fed, strict=True)]
    intervals = [interval for _, interval in fed]
    rows: list[tuple[Cell, ...]] = []
    for row in zip(*figures, strict=True):
        if any(figure.value is not None for figure in row):
            same_unit = row[0].unit and len({figure.unit for figure in row}) == 1
            head = f"{row[0].name}, {row[0].unit}" if same_unit else row[0].name
            counted = row[0].name == "accelerators fed"  # whole numbers are shown in full
            values = (figure.value for figure in row)
            rows.append((head, *(v if counted or v is None else float(v) for v in values)))
            if counted and any(intervals):
                shown = (f"{part[0]:,.3g} to {part[1]:,.3g}" if part else None for part in intervals)
                rows.append(("95 % interval", *shown))
    columns = (Column("", align="left"), *(Column(system.name) for system in systems))
    return Table(caption="Efficiency", columns=columns, rows=tuple(rows))


def match_table(systems: Sequence[System], other: System) -> Table:
    """Return a table of the number of nodes of each system that match `other`."""
    found = [matches(system, other) for system in systems]
    kinds = dict.fromkeys(what for nodes in found for what in nodes)
    rows = tuple((what, *(nodes.get(what) for nodes in found)) for what in kinds)
    columns = (Column("nodes", align="left"), *(Column(system.name) for system in systems))
    return Table(caption=f"Nodes to match {other.name}", columns=columns, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficiencyAnswer:
    """The answer of `feedrate efficiency`."""

    tables: tuple[Table, ...]
    """Tables of the figures and, if another system was named, of the nodes that match it."""
    missing: tuple[str, ...]


def compare_systems(
    systems: Sequence[System], workload: Workload | None = None, match: System | None = None
) -> EfficiencyAnswer:
    """Compare the figures of `systems`, and the accelerators of `workload` that each of them feeds.

    With `match`, also the nodes of each system that match that one. Raises MissingError without numba.
    """
    missing = [sentence for system in systems for sentence in lacks(system)]
    fed: list[Fed] = []
    for system in systems:
        found = feeds(workload, system) if workload else None
        limited = found is not None and found.bound is not None
        fed.append((found.accelerators, found.interval) if found and limited else NOBODY_KNOWS)
        if workload and not limited:
            missing.append(f"{system.name} lacks a bandwidth that limits {workload.name}")
    tables = [efficiency_table(systems, fed)]
    if match is not None:
        tables.append(match_table(systems, match))
    return EfficiencyAnswer(tables=tuple(tables), missing=tuple(missing))


def tables_beside(result: RunResult, names: Sequence[str]) -> tuple[Table, ...]:
    """Return tables of the efficiency of these systems at the knee of the result. Raises SpecError."""
    systems, knee = [load_system(name) for name in names], result.knee
    fed = (knee.n_au, knee.interval) if knee else NOBODY_KNOWS
    return (efficiency_table(systems, [fed] * len(systems)),)
