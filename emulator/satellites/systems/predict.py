"""How many bytes each batch has: the plan's epoch orders over the sizes of a dataset."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from emulator import __version__
from emulator.analysis.flags import short_run
from emulator.analysis.knee import find_knee
from emulator.config.workload import SampleSpec, Workload
from emulator.dataset.sizes import quantiles
from emulator.plan import EpochPlan, RankPlan, epoch_order
from emulator.record.folder import prepare_out, write_result
from emulator.record.machine import describe_machine, utc_now
from emulator.record.result import Flag, HostShare, Point, RunResult
from emulator.record.steps import Steps, write_steps
from emulator.run.accelerator import step_times
from emulator.satellites.systems.engine import Bools, Chosen, Floats, Scene, constant, ends
from emulator.satellites.systems.limits import GB, Limits, limits
from emulator.satellites.systems.outcome import Outcome, outcome, step_rows
from emulator.satellites.systems.system import Fitted, System

_GRID = 4096
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: an evenly spread sequence, as dataset.sizes has it
DRAWN_SAMPLES = 30_000_000
"""Samples whose order is the plan's; beyond them the same batches are dealt to other ranks."""


def sample_sizes(sample: SampleSpec, files: int, seed: int = 0) -> Floats:
    """Bytes of `files` samples, shape (files,): lognormal with the workload's mean and deviation.

    The mean is exact to a byte, whatever the number of files; without a deviation all have it.
    """
    if sample.bytes_sd == 0:
        return np.full(files, float(sample.bytes_mean))
    sigma = math.sqrt(math.log1p((sample.bytes_sd / sample.bytes_mean) ** 2))
    normal = NormalDist()
    bends = np.array([normal.inv_cdf((step + 0.5) / _GRID) for step in range(_GRID)])
    place = quantiles(np.arange(files, dtype=np.int64), seed, "simulated", _GOLDEN)
    size = np.exp(sigma * bends[(place * _GRID).astype(np.int64)])
    return np.asarray(np.rint(size * (sample.bytes_mean / size.mean())))


def batch_bytes(course: RankPlan, sizes: Floats) -> Floats:
    """Bytes of every batch of `course` over samples of `sizes` bytes: shape (steps, ranks).

    The batches are those that `course.batches` gives each rank. After DRAWN_SAMPLES samples, where drawing
    orders would take longer than simulating, the first epochs' batches come again, moved on by some ranks.
    """
    plan = course.plan
    if sizes.min() == sizes.max():  # any order gives the same batches
        return np.full((course.length, plan.ranks), plan.batch_size * sizes[0])
    size = np.empty((course.length, plan.ranks))
    step_samples = plan.ranks * plan.batch_size
    drawn = min(course.length, max(plan.steps, DRAWN_SAMPLES // step_samples))
    for first in range(0, drawn, plan.steps):
        steps = min(plan.steps, drawn - first)
        order = epoch_order(plan.samples, course.seed, first // plan.steps)[: steps * step_samples]
        batches = sizes[order].reshape(steps, plan.ranks, plan.batch_size)
        size[first : first + steps] = batches.sum(axis=2)
    for step in range(drawn, course.length):
        turn = (step // drawn) * 7919 + step * 104729
        size[step] = np.roll(size[step % drawn], turn % plan.ranks)
    return size


def default_files(step_samples: int, steps: int | None) -> int:
    """Samples of a dataset that nobody specified: enough for some steps of `step_samples` samples.

    Whole epochs of at most about 4 million samples, so that epoch orders stay cheap to draw.
    """
    return step_samples * max(1, min(steps or 8, 4_000_000 // step_samples))


# ---- One process count on one system: set the scene, play it, and say what a measurement would have shown.


LOGGED_RANKS = 1000
"""Ranks of a point whose steps are logged, at most; evenly spread. The figures are over all ranks."""
LISTED_HOSTS = 128
"""Hosts of a point that are listed, at most; with more there is no list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What is simulated at every process count."""

    workload: Workload
    system: System
    sizes: Floats
    """Bytes of each sample of the dataset."""
    engine: Chosen
    epochs: int | None = None
    steps: int | None = None
    """Steps of a rank, at most; one of epochs and steps is given."""
    prefetch: int | None = None
    """Batches read ahead; None: the workload's. 0, which no real loader has, is for comparing with theory."""

    @property
    def hosts(self) -> int | None:
        return self.system.clients.hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One point and what is kept of its steps."""

    point: Point
    steps: Steps
    played: int
    """Ranks that were played; fewer than the point's when representatives stand for them."""
    events: int


def predict(simulation: Simulation, ranks: int, number: int = 0) -> Predicted:
    """The point of `ranks` ranks, the `number`-th of its result. Raises DatasetError: too few samples."""
    course = course_of(simulation, ranks, number)
    scene = set_scene(simulation, course)
    played = simulation.engine.play(scene)
    end = ends(scene, played.ready)
    found = outcome(scene, played.ready, end, course.plan.batch_size)
    logged = np.unique(np.linspace(0, scene.ranks - 1, min(scene.ranks, LOGGED_RANKS)).astype(np.int64))
    return Predicted(
        point=_point(simulation, course, scene, found),
        steps=step_rows(scene, played.ready, end, course.plan, number, logged),
        played=scene.ranks,
        events=played.events,
    )


def course_of(simulation: Simulation, ranks: int, number: int) -> RankPlan:
    """The course that emulated ranks would take at point `number`. Raises DatasetError."""
    batch_size = simulation.workload.loader.batch_size
    plan = EpochPlan(samples=len(simulation.sizes), ranks=ranks, batch_size=batch_size)
    plan.require_a_step()
    seed = simulation.workload.training.shuffle_seed + number
    return RankPlan(plan=plan, seed=seed, epochs=simulation.epochs, steps=simulation.steps)


def set_scene(simulation: Simulation, course: RankPlan) -> Scene:
    """The scene of the ranks that are played: all, or representatives of them."""
    bound = limits(simulation.system, simulation.workload)
    ranks, most = course.plan.ranks, simulation.engine.most_ranks
    hosts = min(simulation.hosts or 1, ranks)
    if np.isinf(bound.host):
        hosts = 1  # without a limit of their own, hosts make no difference
    size = batch_bytes(course, simulation.sizes)
    if most is not None and ranks > most and simulation.workload.training.sync == "none":
        size, hosts, bound = _represent(size, hosts, bound, most)
    workload = simulation.workload
    prefetch = workload.loader.prefetch if simulation.prefetch is None else simulation.prefetch
    return Scene(
        size=size, compute=_compute(workload, course, size.shape[1]), gates=_gates(workload, course),
        prefetch=prefetch, system=bound.system, host=bound.host, rank=bound.rank, hosts=hosts,
        latency=bound.latency,
    )  # fmt: skip


def _compute(workload: Workload, course: RankPlan, ranks: int) -> Floats:
    """Seconds of compute: the same draws as emulated ranks make where the workload has a distribution."""
    spec = workload.accelerator
    if spec.compute == "constant" or spec.quantiles is None:
        return constant(spec.step_seconds)
    drawn = [step_times(spec, course.seed, rank, 0, course.length) for rank in range(ranks)]
    return np.stack(drawn, axis=1)


def _gates(workload: Workload, course: RankPlan) -> Bools:
    sync = workload.training.sync
    return np.array(
        [sync == "step" or (sync == "epoch" and course.ends_epoch(number)) for number in range(course.length)]
    )


def _represent(size: Floats, hosts: int, bound: Limits, most: int) -> tuple[Floats, int, Limits]:
    """At most `most` ranks that stand for all, on fewer hosts or with less of each host, and their limits.

    What a rank meets depends on the share of the system and of its host that is left to it, not on how
    many others there are, as soon as these are many. Of each step the batches are taken evenly from the
    sorted ones. Not for ranks that wait for each other: there the slowest of all decides, and 2,000 ranks
    hold no rank as slow as 100,000 do (AU was 1 to 2 points too high).
    """
    ranks = size.shape[1]
    fewer = min(hosts, max(1, round(hosts * most / ranks), min(hosts, 16)))
    each = max(1, min(-(-ranks // hosts), most // fewer))
    count = fewer * each
    place = np.linspace(0, ranks - 1, count).astype(np.int64)
    chosen = np.sort(size, axis=1)[:, place]
    shuffle = np.random.Generator(np.random.Philox(0))
    chosen = shuffle.permuted(chosen, axis=1)
    host = bound.host * each / (ranks / hosts)
    system = bound.system * count / ranks
    return chosen, fewer, Limits(system=system, host=host, rank=bound.rank, latency=bound.latency)


def _point(simulation: Simulation, course: RankPlan, scene: Scene, found: Outcome) -> Point:
    """The result's point; rates of representatives are scaled up to all ranks."""
    workload, ranks = simulation.workload, course.plan.ranks
    scale = ranks / scene.ranks
    ideal = ranks * workload.ideal_samples_per_second
    samples = ranks * course.length * course.plan.batch_size
    return Point(
        ranks=ranks,
        hosts=_hosts(simulation, scene, found, ranks) if scale == 1 else (),
        epochs=-(-course.length // course.plan.steps),
        steps=course.length,
        samples=samples,
        bytes=round(float(scene.size.sum()) * scale),
        left_out=course.plan.left_out,
        seconds=found.seconds,
        samples_per_second=found.samples_per_second * scale,
        bytes_per_second=found.bytes_per_second * scale,
        ideal_samples_per_second=ideal,
        x_ideal=found.samples_per_second * scale / ideal,
        au=found.au,
        x_ideal_first=found.samples_per_second_first * scale / ideal,
        au_first=found.au_first,
        wait_share=found.wait_share,
        barrier_share=found.barrier_share,
        overshoot_p99=0.0,
    )


def _hosts(simulation: Simulation, scene: Scene, found: Outcome, ranks: int) -> tuple[HostShare, ...]:
    """What each host's ranks did, where the system says how many hosts there are."""
    clients = simulation.system.clients
    if clients.hosts is None or clients.hosts > LISTED_HOSTS:
        return ()
    hosts, steps = min(clients.hosts, ranks), scene.steps
    read: Sequence[float] = [float(scene.size[:, host::hosts].sum()) for host in range(hosts)]
    cost = (clients.cpu_seconds_per_gb or 0.0) / GB
    cores = clients.cores or 0
    return tuple(
        HostShare(
            host=f"client{host + 1:0{len(str(hosts))}d}",
            ranks=len(range(host, ranks, hosts)),
            bytes=round(read[host]),
            samples=len(range(host, ranks, hosts)) * steps * simulation.workload.loader.batch_size,
            cpu_seconds=read[host] * cost,
            cores=cores,
            busy_share=min(1.0, read[host] * cost / (cores * found.seconds)) if cores and cost else None,
            nic_bytes=round(read[host]),
            wait_seconds=float(found.wait_of_rank[host::hosts].sum()),
        )
        for host in range(hosts)
    )


# ---- A simulated sweep as a result: the same files as a measured one, and what qualifies it as flags.


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
