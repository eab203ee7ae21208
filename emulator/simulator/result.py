"""A simulated sweep as a result: the same files as a measured one, and what qualifies it as flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from emulator import __version__
from emulator.analysis.flags import short_run
from emulator.analysis.knee import find_knee
from emulator.record.machine import describe_machine, utc_now
from emulator.record.result import Flag, Point, RunResult
from emulator.record.step import Steps
from emulator.record.store import prepare_out, write_result, write_steps
from emulator.simulator.predict import LOGGED_RANKS, Predicted, Simulation, predict
from emulator.spec.system import Fitted

Say = Callable[[str], None]


def sweep(
    simulation: Simulation, counts: Sequence[int], say: Say
) -> tuple[list[Point], Steps, list[Predicted]]:
    """The points of `counts`, flagged, and the steps that are kept of them."""
    found = []
    for number, ranks in enumerate(counts):
        found.append(predict(simulation, ranks, number))
        say(_line(found[-1]))
    points = [_flagged(one, simulation) for one in found]
    return points, np.concatenate([one.steps for one in found]), found


def _line(one: Predicted) -> str:
    point = one.point
    return (
        f"  {point.ranks:,} ranks: {point.samples_per_second:.4g} samples/s, "
        f"{point.bytes_per_second / 1e9:.4g} GB/s, AU {100 * point.au:.1f} %"
    )


def _flagged(one: Predicted, simulation: Simulation) -> Point:
    system = simulation.system
    flags = _fit_flags(one.point.ranks, system.clients.hosts, system.fit) if system.fit else ()
    if one.played < one.point.ranks:
        sentence = (
            f"{one.played:,} ranks were played and stand for {one.point.ranks:,}; install feedrate[sim] "
            f"to play all"
        )
        flags += (
            Flag(name="representatives", value=one.played, threshold=one.point.ranks, sentence=sentence),
        )
    short = short_run(one.point, simulation.workload)
    return replace(one.point, flags=flags + ((short,) if short else ()))


def _fit_flags(ranks: int, hosts: int | None, fit: Fitted) -> tuple[Flag, ...]:
    """What a fit does not cover: counts outside of those seen, a limit that was not reached."""
    flags = []
    low, high = fit.counts[0], fit.counts[-1]
    if not low <= ranks <= high:
        sentence = f"extrapolated: the system was fitted to counts from {low:,} to {high:,}"
        edge = high if ranks > high else low
        flags.append(Flag(name="extrapolated", value=ranks, threshold=edge, sentence=sentence))
    if hosts is not None and hosts > fit.hosts[-1]:
        sentence = (
            f"extrapolated: the system was fitted on at most {fit.hosts[-1]} host(s); whether its limit "
            f"grows with the hosts was not seen"
        )
        flags.append(Flag(name="more-hosts", value=hosts, threshold=fit.hosts[-1], sentence=sentence))
    if not fit.identified:
        sentence = (
            f"no count up to {high:,} was beyond saturation: the bandwidth is a lower bound, and so is this"
        )
        flags.append(Flag(name="lower-bound", value=ranks, threshold=high, sentence=sentence))
    return tuple(flags)


def result_of(
    simulation: Simulation, points: Sequence[Point], played: Sequence[Predicted], *,
    command: Sequence[str], dataset: Mapping[str, Any], cpu_seconds: float,
) -> RunResult:  # fmt: skip
    """The result with these points."""
    several = len({point.ranks for point in points}) > 1
    most = max(point.ranks for point in points)
    logged = []
    if most > LOGGED_RANKS:
        sentence = (
            f"the step log holds at most {LOGGED_RANKS:,} ranks of a point, evenly spread; the figures of "
            f"the points are over all ranks"
        )
        logged = [Flag(name="step-log", value=LOGGED_RANKS, threshold=most, sentence=sentence)]
    return RunResult(
        kind="simulated", status="complete", version=__version__, created=utc_now(), command=tuple(command),
        workload=asdict(simulation.workload),
        dataset={"files": len(simulation.sizes), "bytes": round(float(simulation.sizes.sum())), **dataset},
        storage={
            "cache": "cold", "shaped_rate": None, "shaped_latency": 0.0, "system": asdict(simulation.system)
        },
        loader="simulated",
        environment={
            **describe_machine(), "engine": simulation.engine.kind, "cpu_seconds": cpu_seconds,
            "events": sum(one.events for one in played),
        },
        points=tuple(points),
        knee=find_knee(points, simulation.workload.training.au_threshold) if several else None,
        flags=tuple(logged),
    )  # fmt: skip


def write(out: Path, result: RunResult, steps: Steps, force: bool) -> None:
    """Write OUT as a measurement would. Raises SpecError when it holds files, StorageError."""
    prepare_out(out, force)
    write_steps(out, steps)
    write_result(out, result)
