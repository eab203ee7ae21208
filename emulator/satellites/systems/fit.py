"""The parameters of a system from a few measured counts: bandwidth and latency, with intervals.

Every measured count is played again on its own batches (the step log has their bytes), with everything
known (workload, loader, plan) and two unknowns: the bandwidth that ranks share, and the latency of a
request. The sum over counts of (ln X measured - ln X played)^2 is minimised; an unknown's 95 % interval is
where it rises by less than 3.84 s^2, with s the relative deviation of one run (repeats, or residuals).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emulator.analysis.flags import usable
from emulator.analysis.knee import run_noise
from emulator.config.reader import build
from emulator.config.workload import Workload
from emulator.errors import SpecError
from emulator.files import write_whole
from emulator.plan import plan_for
from emulator.record.result import Point, RunResult
from emulator.record.steps import Steps
from emulator.satellites.systems.engine import Bools, Chosen, Floats, Scene, ends
from emulator.satellites.systems.limits import limits
from emulator.satellites.systems.outcome import outcome
from emulator.satellites.systems.system import ClientSystem, Fitted, StorageSystem, System
from emulator.units import show_rate, show_seconds

Loss = Callable[[float], float]

CONFIDENCE = 3.84
"""95 % quantile of chi-squared with one degree of freedom."""
SURE = 9.0
"""How far, in the same unit, an unlimited system must be from the measurements for the limit to be seen."""
LATENT = 0.98
"""Below this share of the ideal at the smallest count, a latency is looked for."""
_UNLIMITED = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One measured count."""

    ranks: int
    hosts: int
    rate: float
    """Bytes/s over the steady steps."""
    efficiency: float
    """Throughput over ideal throughput."""
    size: Floats
    """Bytes of the batches that were read, shape (steps, ranks)."""
    compute: Floats
    """Nominal seconds of compute of the steps, shape (steps, ranks)."""
    gates: Bools
    """True where all ranks waited for each other after the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted system and how it follows the measurements."""

    system: System
    counts: tuple[int, ...]
    """In the order of `measured` and `played`."""
    measured: tuple[float, ...]
    """Bytes/s."""
    played: tuple[float, ...]
    """Bytes/s of the fitted system at the same counts."""


def workload_of(result: RunResult) -> Workload:
    """The workload that a result was made with. Raises SpecError."""

    return build(Workload, result.workload, path=("workload",))


def seen_in(result: RunResult, steps: Steps) -> list[Seen]:
    """The measured counts of a result. Raises SpecError.

    Points that were cut short are left out, and those that a flag invalidates (`analysis.flags.usable`).
    """
    workload = workload_of(result)
    samples = int(result.dataset.get("samples", result.dataset.get("files", 0)))
    found = []
    used = usable(result.points)
    for number, point in enumerate(result.points):
        rows = steps[steps["point"] == number]
        if point in used and point.ranks * point.steps and len(rows) == point.ranks * point.steps:
            found.append(_seen(workload, samples, point, rows))
    if not found:
        raise SpecError(
            "the result has no point with all of its steps", "run it to its end, or give another OUT"
        )
    return found


def _seen(workload: Workload, samples: int, point: Point, rows: Steps) -> Seen:
    rows = np.sort(rows, order=("rank", "epoch", "step"))
    shape = (point.ranks, point.steps)
    asked = np.maximum(rows["bytes"].astype(np.float64), 1.0)  # a step may draw from what was read before
    size = np.ascontiguousarray(asked.reshape(shape).T)
    compute = np.ascontiguousarray(rows["compute"].reshape(shape).T)
    last = rows["step"][: point.steps] + 1 == plan_for(workload, samples, point.ranks).steps
    last[-1] = True
    sync = workload.training.sync
    gates = np.full(point.steps, sync == "step") | (last & (sync == "epoch"))
    hosts = len(point.hosts) or 1
    return Seen(
        ranks=point.ranks, hosts=hosts, rate=point.bytes_per_second, efficiency=point.x_ideal,
        size=size, compute=compute, gates=gates,
    )  # fmt: skip


def fit(result_names: Sequence[str], workload: Workload, seen: Sequence[Seen], engine: Chosen) -> Fit:
    """The system that explains the counts `seen`."""
    play = _Player(workload, seen, engine)
    hosted, latency, best = play.best()
    least = play.loss(math.exp(best), latency, hosted)
    unit = max(play.noise, math.sqrt(least / max(1, len(seen) - 1))) ** 2
    identified = play.loss(_UNLIMITED, latency, hosted) - least > SURE * unit

    def over(log: float) -> float:
        return play.loss(math.exp(log), latency, hosted) - least - CONFIDENCE * unit

    low = math.exp(_edge(over, best, -1))
    high = math.exp(_edge(over, best, +1)) if identified else math.inf
    rate = math.exp(best) if identified else low
    fitted = Fitted(
        results=tuple(result_names), workload=workload.name,
        counts=tuple(sorted({one.ranks for one in seen})),
        hosts=tuple(sorted({one.hosts for one in seen})), identified=identified,
        bandwidth_interval=(low, high) if identified else (),
        latency_interval=play.latency_interval(latency) if latency else (),
        error=math.sqrt(least / len(seen)),
    )  # fmt: skip
    return Fit(
        system=_system(rate, latency, hosted, fitted),
        counts=tuple(one.ranks for one in seen),
        measured=tuple(one.rate for one in seen),
        played=tuple(play.rates(rate, latency, hosted)),
    )


def _system(rate: float, latency: float, hosted: bool, fitted: Fitted) -> System:
    """The system file's content; a limit that grows with the hosts is theirs."""
    hosts = fitted.hosts[-1]
    source = "fitted to " + ", ".join(fitted.results)
    if not fitted.identified:
        source += "; a lower bound: no count was beyond saturation"
    key = "clients.nic" if hosted else "storage.bandwidth"
    return System(
        title=f"fitted to {fitted.workload}",
        storage=StorageSystem(bandwidth=None if hosted else rate, latency=latency),
        clients=ClientSystem(hosts=hosts, nic=rate if hosted else None),
        fit=fitted,
        sources={key: source, **({"storage.latency": source} if latency else {})},
    )


class _Player:
    """The counts that were seen, played on a system of two parameters."""

    def __init__(self, workload: Workload, seen: Sequence[Seen], engine: Chosen) -> None:
        self.workload, self.seen, self.engine = workload, seen, engine
        ranks = [one.ranks for one in seen]
        self.noise = run_noise(ranks, [one.rate for one in seen])

    def rates(self, bandwidth: float, latency: float, hosted: bool) -> list[float]:
        return [self._rate(one, bandwidth, latency, hosted) for one in self.seen]

    def loss(self, bandwidth: float, latency: float, hosted: bool, only: int | None = None) -> float:
        """Sum of squares of ln measured - ln played; `only` at one count."""
        seen = [one for one in self.seen if only in (None, one.ranks)]
        return sum(math.log(one.rate / self._rate(one, bandwidth, latency, hosted)) ** 2 for one in seen)

    def _rate(self, one: Seen, bandwidth: float, latency: float, hosted: bool) -> float:
        trial = System(storage=StorageSystem(latency=latency))
        scene = Scene(
            size=one.size, compute=one.compute, gates=one.gates,
            prefetch=self.workload.loader.prefetch, system=np.inf if hosted else bandwidth,
            host=bandwidth if hosted else np.inf, rank=limits(trial, self.workload).rank,
            hosts=one.hosts if hosted else 1, latency=latency,
        )  # fmt: skip
        ready = self.engine.play(scene).ready
        return outcome(scene, ready, ends(scene, ready), self.workload.loader.batch_size).bytes_per_second

    def reach(self) -> tuple[float, float]:
        """Where to look for the bandwidth, in logarithms: about what was read, or asked for, in all."""
        most = max(max(one.rate, one.rate / one.efficiency if one.efficiency else 0) for one in self.seen)
        least = min(one.rate for one in self.seen)
        return math.log(0.5 * least), math.log(2 * most)

    def best(self) -> tuple[bool, float, float]:
        """Whether the limit is each host's, the latency, and ln bandwidth.

        A latency is looked for only where a bandwidth alone does not explain the counts, and a limit of each
        host only where the counts were on different numbers of hosts.
        """
        kinds = (False, True) if len({one.hosts for one in self.seen}) > 1 else (False,)
        found = [self._with(hosted, 0.0) for hosted in kinds]
        if min(found)[0] > len(self.seen) * (2 * self.noise) ** 2:
            latency = self._best_latency()
            found += [self._with(hosted, latency) for hosted in kinds] if latency else []
        _, hosted, latency, log = min(found)
        return hosted, latency, log

    def _with(self, hosted: bool, latency: float) -> tuple[float, bool, float, float]:
        log = _golden(lambda log: self.loss(math.exp(log), latency, hosted), *self.reach())
        return self.loss(math.exp(log), latency, hosted), hosted, latency, log

    def _best_latency(self) -> float:
        """The latency that explains the smallest count without a bandwidth; 0 where it needs none."""
        first = min(self.seen, key=lambda one: one.ranks)
        if first.efficiency >= LATENT:
            return 0.0
        low, high = math.log(1e-5), math.log(10)
        return math.exp(_golden(lambda log: self._latency_loss(math.exp(log)), low, high))

    def _latency_loss(self, latency: float) -> float:
        return self.loss(_UNLIMITED, latency, False, only=min(one.ranks for one in self.seen))

    def latency_interval(self, latency: float) -> tuple[float, float]:
        """Where the smallest count is within its noise."""

        def over(log: float) -> float:
            return (
                self._latency_loss(math.exp(log)) - self._latency_loss(latency) - CONFIDENCE * self.noise**2
            )

        return math.exp(_edge(over, math.log(latency), -1)), math.exp(_edge(over, math.log(latency), +1))


def _golden(loss: Loss, low: float, high: float) -> float:
    """The minimum of `loss` from low to high: a grid, as it is flat beyond the data, then golden section."""
    grid = np.linspace(low, high, 41)
    values = [loss(float(x)) for x in grid]
    best = int(np.argmin(values))
    low, high = float(grid[max(0, best - 1)]), float(grid[min(40, best + 1)])
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    below, above = loss(left), loss(right)
    while high - low > 1e-4:
        if below <= above:
            high, right, above = right, left, below
            left = high - ratio * (high - low)
            below = loss(left)
        else:
            low, left, below = left, right, above
            right = low + ratio * (high - low)
            above = loss(right)
    return (low + high) / 2


def _edge(over: Loss, start: float, sign: int) -> float:
    """Where `over`, below 0 at `start`, becomes 0 in the direction `sign`: doubling steps, then halving."""
    step = 1e-3
    while over(start + sign * step) < 0 and step < 20:
        step *= 2
    low, high = 0.0, step
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if over(start + sign * middle) < 0 else (low, middle)
    return start + sign * low


# ---- A fitted system as a system file: TOML that spec.system reads back.


def check_file(path: Path, force: bool) -> None:
    """Raises SpecError when `path` is there already, unless `force`."""
    if path.exists() and not force:
        raise SpecError(f"{path} is there already", "choose another --out, or add --force")


def write_system(path: Path, fit: Fit) -> None:
    """Write the system of `fit` whole or not at all. Raises StorageError."""
    text = "\n".join([*_head(fit), *_tables(fit.system), ""])
    write_whole(path, text)


def _head(fit: Fit) -> list[str]:
    """What a reader of the file has to know, as comments."""
    fitted = fit.system.fit
    assert fitted is not None
    counts = ", ".join(f"{count:,}" for count in fitted.counts)
    lines = [f"# Fitted by feedrate to the counts {counts} of {', '.join(fitted.results)}."]
    if not fitted.identified:
        lines.append("# No count was beyond saturation: the bandwidth is a lower bound, not an estimate.")
    return [*lines, f"title = {json.dumps(fit.system.title)}"]


def _tables(system: System) -> Iterator[str]:
    for section in ("storage", "clients", "hardware", "fit"):
        spec = getattr(system, section)
        lines = list(_lines(spec)) if spec is not None else []
        if lines:
            yield from ("", f"[{section}]", *lines)
    yield from ("", "[sources]")
    for key, source in system.sources.items():
        yield f"{json.dumps(key)} = {json.dumps(source)}"


def _lines(spec: Any) -> Iterator[str]:
    """The fields that differ from their defaults, rates and durations with their reading as a comment."""
    assert is_dataclass(spec)
    for field in fields(spec):
        value = getattr(spec, field.name)
        if value is None or value == field.default:
            continue
        yield f"{field.name} = {_value(value)}{_reading(field.name, value)}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _reading(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return ""
    if "bandwidth" in name or name == "nic":
        return f"    # {show_rate(value)}"
    return f"    # {show_seconds(value)}" if "latency" in name else ""
