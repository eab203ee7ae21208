"""The parameters of a system from a few measured counts: bandwidth and latency, with intervals.

Every measured count is played again on its own batches (the step log has their bytes), with everything
known (workload, loader, plan) and two unknowns: the bandwidth that ranks share, and the latency of a
request. The sum over counts of (ln X measured - ln X played)^2 is minimised; an unknown's 95 % interval is
where it rises by less than 3.84 s^2, with s the relative deviation of one run (repeats, or residuals).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from emulator.analysis.flags import usable
from emulator.analysis.knee import run_noise
from emulator.analysis.throughput import throughput
from emulator.config.reader import build
from emulator.config.workload import Workload
from emulator.errors import SpecError
from emulator.plan import plan_for
from emulator.record.result import RunResult
from emulator.record.steps import Steps
from emulator.satellites.systems.limits import limits
from emulator.satellites.systems.scene import Bools, Floats, Scene, play
from emulator.satellites.systems.system import ClientSystem, Fitted, StorageSystem, System

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
    fitted: Fitted
    """How sure it is; the system's `fit`."""
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
    workload, used = workload_of(result), usable(result.points)
    samples, sync = int(result.dataset.get("samples", result.dataset.get("files", 0))), workload.training.sync
    found = []
    for number, point in enumerate(result.points):
        rows = steps[steps["point"] == number]
        shape = (point.ranks, point.steps)
        if point not in used or not math.prod(shape) or len(rows) != math.prod(shape):
            continue
        rows = np.sort(rows, order=("rank", "epoch", "step")).reshape(shape).T
        ends_epoch = rows["step"][:, 0] + 1 == plan_for(workload, samples, point.ranks).steps
        ends_epoch[-1] = True
        found.append(
            Seen(
                ranks=point.ranks,
                hosts=len(point.hosts) or 1,
                rate=point.bytes_per_second,
                efficiency=point.x_ideal,
                # A step may draw from what was read before, and read nothing.
                size=np.ascontiguousarray(np.maximum(rows["bytes"].astype(np.float64), 1.0)),
                compute=np.ascontiguousarray(rows["compute"]),
                gates=np.full(point.steps, sync == "step") | (ends_epoch & (sync == "epoch")),
            )
        )
    if not found:
        raise SpecError(
            "the result has no point with all of its steps", "run it to its end, or give another OUT"
        )
    return found


def fit(result_names: Sequence[str], workload: Workload, seen: Sequence[Seen]) -> Fit:
    """The system that explains the counts `seen`."""
    model = _Model(workload, seen)
    hosted, latency, best = model.best()
    least = model.loss(math.exp(best), latency, hosted)
    unit = max(model.noise, math.sqrt(least / max(1, len(seen) - 1))) ** 2
    identified = model.loss(_UNLIMITED, latency, hosted) - least > SURE * unit

    def over(log: float) -> float:
        return model.loss(math.exp(log), latency, hosted) - least - CONFIDENCE * unit

    low = math.exp(_edge(over, best, -1))
    high = math.exp(_edge(over, best, +1)) if identified else math.inf
    rate = math.exp(best) if identified else low
    fitted = Fitted(
        results=tuple(result_names),
        workload=workload.name,
        identified=identified,
        counts=tuple(sorted({count.ranks for count in seen})),
        hosts=tuple(sorted({count.hosts for count in seen})),
        bandwidth_interval=(low, high) if identified else (),
        latency_interval=model.latency_interval(latency) if latency else (),
        error=math.sqrt(least / len(seen)),
    )
    source = "fitted to " + ", ".join(result_names)
    if not identified:
        source += "; a lower bound: no count was beyond saturation"
    key = "clients.nic" if hosted else "storage.bandwidth"  # a limit that grows with the hosts is theirs
    system = System(
        title=f"fitted to {fitted.workload}",
        storage=StorageSystem(bandwidth=None if hosted else rate, latency=latency),
        clients=ClientSystem(hosts=fitted.hosts[-1], nic=rate if hosted else None),
        fit=fitted,
        sources={key: source, **({"storage.latency": source} if latency else {})},
    )
    return Fit(
        system=system,
        fitted=fitted,
        counts=tuple(count.ranks for count in seen),
        measured=tuple(count.rate for count in seen),
        played=tuple(model.rate(count, rate, latency, hosted) for count in seen),
    )


class _Model:
    """The counts that were seen, played on a system of two parameters."""

    def __init__(self, workload: Workload, seen: Sequence[Seen]) -> None:
        self.workload, self.seen = workload, seen
        self.smallest = min(seen, key=lambda count: count.ranks)
        self.noise = run_noise([count.ranks for count in seen], [count.rate for count in seen])

    def rate(self, count: Seen, bandwidth: float, latency: float, hosted: bool) -> float:
        """Bytes/s over the steady steps of a count, with the bandwidth of all or of each host."""
        trial = System(storage=StorageSystem(latency=latency))
        scene = Scene(
            size=count.size,
            compute=count.compute,
            gates=count.gates,
            prefetch=self.workload.loader.prefetch,
            system=np.inf if hosted else bandwidth,
            host=bandwidth if hosted else np.inf,
            rank=limits(trial, self.workload).rank,
            hosts=count.hosts if hosted else 1,
            latency=latency,
        )
        _, steady = play(scene).totals(self.workload.loader.batch_size)
        return throughput(steady).bytes_per_second

    def loss(self, bandwidth: float, latency: float, hosted: bool, only: int | None = None) -> float:
        """Sum of squares of ln measured - ln played; `only` at one count."""
        seen = [count for count in self.seen if only in (None, count.ranks)]
        return sum(math.log(count.rate / self.rate(count, bandwidth, latency, hosted)) ** 2 for count in seen)

    def best(self) -> tuple[bool, float, float]:
        """Whether the limit is each host's, the latency, and ln bandwidth.

        A latency is looked for only where a bandwidth alone does not explain the counts, and a limit of each
        host only where the counts were on different numbers of hosts.
        """
        # The bandwidth is about what was read, or asked for, in all.
        asked = [max(seen.rate, seen.rate / seen.efficiency if seen.efficiency else 0) for seen in self.seen]
        low, high = math.log(0.5 * min(seen.rate for seen in self.seen)), math.log(2 * max(asked))

        def explained(hosted: bool, latency: float) -> tuple[float, bool, float, float]:
            log = _golden(lambda log: self.loss(math.exp(log), latency, hosted), low, high)
            return self.loss(math.exp(log), latency, hosted), hosted, latency, log

        kinds = (False, True) if len({count.hosts for count in self.seen}) > 1 else (False,)
        found = [explained(hosted, 0.0) for hosted in kinds]
        if min(found)[0] > len(self.seen) * (2 * self.noise) ** 2 and self.smallest.efficiency < LATENT:
            # The latency that explains the smallest count without a bandwidth.
            bounds = math.log(1e-5), math.log(10)
            latency = math.exp(_golden(lambda log: self._latency_loss(math.exp(log)), *bounds))
            found += [explained(hosted, latency) for hosted in kinds]
        _, hosted, latency, log = min(found)
        return hosted, latency, log

    def _latency_loss(self, latency: float) -> float:
        return self.loss(_UNLIMITED, latency, False, only=self.smallest.ranks)

    def latency_interval(self, latency: float) -> tuple[float, float]:
        """Where the smallest count is within its noise."""
        most = self._latency_loss(latency) + CONFIDENCE * self.noise**2

        def over(log: float) -> float:
            return self._latency_loss(math.exp(log)) - most

        return math.exp(_edge(over, math.log(latency), -1)), math.exp(_edge(over, math.log(latency), +1))


def _golden(loss: Callable[[float], float], low: float, high: float) -> float:
    """The minimum of `loss` from low to high: a grid, as it is flat beyond the data, then golden section."""
    grid = np.linspace(low, high, 41)
    best = int(np.argmin([loss(float(x)) for x in grid]))
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


def _edge(over: Callable[[float], float], start: float, sign: int) -> float:
    """Where `over`, below 0 at `start`, becomes 0 in the direction `sign`: doubling steps, then halving."""
    step = 1e-3
    while over(start + sign * step) < 0 and step < 20:
        step *= 2
    low, high = 0.0, step
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if over(start + sign * middle) < 0 else (low, middle)
    return start + sign * low
