"""A result of one's own as a system: its limits, and how many accelerators of another workload it feeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from emulator.analysis.bound import LIMIT_NAMES
from emulator.analysis.evidence import usable
from emulator.analysis.knee import asked_rate, find_knee
from emulator.config.reader import Source, build, override
from emulator.config.workload import Workload, stored_workload
from emulator.errors import SpecError
from emulator.plugins.systems.system import System, load_system
from emulator.record.out import RESULT, read_result
from emulator.record.result import Corner, RunResult, Side
from emulator.report.view import marks_line

BESIDE = "system.toml"
"""A system file in the folder of a result, with what was not measured: nodes, drives, power, price."""


def is_result(name: str) -> bool:
    """Return True for a result's folder or its run.json, False for a system."""
    return Path(name).name == RESULT or (Path(name) / RESULT).is_file()


def open_system(name: str, settings: Sequence[str] = ()) -> tuple[System, RunResult | None]:
    """Return the system of that name or file, or of a result's folder, with that result if it has a knee.

    `settings` are `--set` options for the system. Raises SpecError, StorageError.
    """
    if not is_result(name):
        return load_system(name, settings), None
    folder = Path(name).parent if Path(name).name == RESULT else Path(name)
    result = read_result(folder)
    beside = folder / BESIDE
    if beside.is_file():
        stated = load_system(str(beside), settings)
    else:
        stated = build(System, override({}, settings), Source(settings=tuple(settings)))
    qualified = " · ".join(filter(None, (stated.title or f"measured: {folder.name}", marks_line(result))))
    named = replace(stated, name=folder.name, title=qualified)
    if result.kind == "baseline":
        return _with_baseline(named, result), None
    rates = [point.bytes_per_second for point in result.points if math.isfinite(point.bytes_per_second)]
    if not rates:
        raise SpecError(f"{name} measured no reads", "use a result of sweep, run or baseline")
    return replace(named, storage=replace(named.storage, bandwidth=max(rates))), result


def _with_baseline(stated: System, result: RunResult) -> System:
    """Return the system with the highest rates of a baseline's undisturbed corners. Raises SpecError."""
    undisturbed = [corner for corner in result.baseline if corner.beside in ("", "nothing")]
    reads = [(corner, corner.read) for corner in undisturbed if corner.read and not corner.write]
    writes = [(corner, corner.write) for corner in undisturbed if corner.write and not corner.read]
    if not reads:
        raise SpecError(f"the baseline {stated.name} measured no reads", "run feedrate baseline")
    highest: dict[int, float] = {}  # bytes/s by size of a request
    for corner, read in reads:
        highest[corner.block_bytes] = max(highest.get(corner.block_bytes, 0.0), read.bytes_per_second)
    bandwidth = max(highest.values())
    storage = replace(
        stated.storage,
        bandwidth=bandwidth,
        write_bandwidth=max((side.bytes_per_second for _, side in writes), default=None),
        read_efficiency=tuple((size, rate / bandwidth) for size, rate in sorted(highest.items())),
    )
    # IOPS and their latency are of one corner: the latency is that of so many requests in flight.
    if most := _most_iops(reads):
        corner, read = most
        in_flight = corner.depth * corner.jobs * corner.clients
        storage = replace(storage, read_iops=read.iops, latency=read.latency_mean, depth=in_flight)
    if most := _most_iops(writes):
        _, write = most
        storage = replace(storage, write_iops=write.iops, write_latency=write.latency_mean)
    return replace(stated, storage=storage)


def _most_iops(corners: list[tuple[Corner, Side]]) -> tuple[Corner, Side] | None:
    """Return the random corner with the most IOPS. Large requests, as of rados bench, end at bandwidth."""
    small = [pair for pair in corners if pair[0].pattern == "random" and pair[0].block_bytes <= 16384]
    return max(small, key=lambda corner_side: corner_side[1].iops, default=None)


def measured_knee(result: RunResult, workload: Workload) -> tuple[float | None, tuple[float, float], str]:
    """Return the knee of a result at the AU that `workload` wants, in accelerators of it; None if not known.

    Also its 95 % interval, or the counts between which it is, and the name of the limit. Raises SpecError.
    """
    knee = find_knee(result.points, workload.training.au_threshold)
    if knee.kind is None:
        raise SpecError("the result is of a workload that does not compute", "use a sweep of one that does")
    # What limited the most accelerators limits the knee.
    bounds = [(point.ranks, point.bound.kind) for point in usable(result.points) if point.bound]
    limited = [(ranks, kind) for ranks, kind in bounds if kind != "compute"]
    _, kind = max(limited, key=lambda ranks_kind: ranks_kind[0], default=(0, "storage"))
    times = _worth(result, workload, kind)
    interval = knee.interval
    if interval is None:
        interval = (knee.fed or 0, math.inf if knee.starved is None else knee.starved)
    n_au = None if knee.n_au is None else knee.n_au * times
    return n_au, (interval[0] * times, interval[1] * times), LIMIT_NAMES[kind]


def _worth(result: RunResult, workload: Workload, kind: str) -> float:
    """Return how many accelerators of `workload` ask as much of the limit as one of the result.

    They share requests where IOPS are the limit and jobs choose their size (else the kernel's read-ahead
    does), files that are opened where opening is, and bytes in all other cases.
    """
    measured, demand = stored_workload(result.workload), asked_rate(result.points)
    reads = result.environment.get("reads")
    if kind == "iops" and reads and reads["direct"]:
        return demand / measured.request_bytes / (workload.demand / workload.request_bytes)
    if kind == "metadata":
        return measured.ideal_samples_per_second / workload.ideal_samples_per_second
    return demand / workload.demand
