"""One process count on one system: set the scene, play it, and say what a measurement would have shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.accelerator.draw import step_times
from emulator.plan.epoch import Course, EpochPlan
from emulator.record.result import HostShare, Point
from emulator.record.step import Steps
from emulator.simulator.engine import Chosen
from emulator.simulator.limits import GB, Limits, limits
from emulator.simulator.outcome import Outcome, outcome, step_rows
from emulator.simulator.scene import Bools, Floats, Scene, constant, ends
from emulator.simulator.sizes import batch_bytes
from emulator.spec.system import System
from emulator.spec.workload import Workload

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


def course_of(simulation: Simulation, ranks: int, number: int) -> Course:
    """The course that emulated ranks would take at point `number`. Raises DatasetError."""
    batch_size = simulation.workload.loader.batch_size
    plan = EpochPlan(samples=len(simulation.sizes), ranks=ranks, batch_size=batch_size)
    plan.require_a_step()
    seed = simulation.workload.training.shuffle_seed + number
    return Course(plan=plan, seed=seed, epochs=simulation.epochs, steps=simulation.steps)


def set_scene(simulation: Simulation, course: Course) -> Scene:
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


def _compute(workload: Workload, course: Course, ranks: int) -> Floats:
    """Seconds of compute: the same draws as emulated ranks make where the workload has a distribution."""
    spec = workload.accelerator
    if spec.compute == "constant" or spec.quantiles is None:
        return constant(spec.step_seconds)
    drawn = [step_times(spec, course.seed, rank, 0, course.length) for rank in range(ranks)]
    return np.stack(drawn, axis=1)


def _gates(workload: Workload, course: Course) -> Bools:
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


def _point(simulation: Simulation, course: Course, scene: Scene, found: Outcome) -> Point:
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
