"""Predict the point of a sweep of a workload on a system.

The batches are those of emulated ranks (`emulator.order`), with the sizes of a dataset or drawn ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from emulator.analysis.parts import Floats
from emulator.analysis.point import measured_au, with_course
from emulator.analysis.throughput import share_of_time, throughput
from emulator.config.workload import SampleSpec, Workload
from emulator.dataset.sizes import quantiles
from emulator.order import EpochOrder, EpochPlan, RankPlan
from emulator.plugins.systems.limits import GB, cap, soft_limits, tightest_limits
from emulator.plugins.systems.scene import Bools, Scene, gates_of, play
from emulator.plugins.systems.system import System
from emulator.record.result import HostShare, Point
from emulator.record.steps import Steps
from emulator.run.accelerator import step_times

DRAWN_SIZES = 4_000_000
"""Most sizes drawn for a dataset without files; with more samples the sizes repeat."""
LOGGED_RANKS = 1000
"""Most ranks, evenly spread, in the step log of a point; the figures cover all ranks."""
LISTED_HOSTS = 128
"""Most hosts listed for a point; with more there is no list."""
_GRID = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A workload, a system and a dataset, to simulate at any process count."""

    workload: Workload
    system: System
    sizes: Floats
    """Bytes of each sample of the dataset; with more samples the sizes repeat in order."""
    samples: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One point and the steps kept in its log."""

    point: Point
    steps: Steps
    interval: tuple[float, float] = (0.0, 1.0)
    """95 % interval of throughput / ideal of one run; set only by `forecast`."""


def sample_sizes(sample: SampleSpec, files: int) -> Floats:
    """Return the bytes of `files` samples, shape (files,): lognormal with the workload's mean and deviation.

    The mean is exact to a byte for any number of files; without a deviation all samples have it.
    """
    if sample.bytes_sd == 0:
        return np.full(files, float(sample.bytes_mean))
    sigma = math.sqrt(math.log1p((sample.bytes_sd / sample.bytes_mean) ** 2))
    normal = NormalDist()
    bends = np.array([normal.inv_cdf((step + 0.5) / _GRID) for step in range(_GRID)])
    place = quantiles(np.arange(files, dtype=np.int64), 0, "simulated")
    size = np.exp(sigma * bends[(place * _GRID).astype(np.int64)])
    return np.asarray(np.rint(size * (sample.bytes_mean / size.mean())))


def on_paper(
    workload: Workload, system: System, ranks: int, *, files: int | None = None, steps: int
) -> Simulation:
    """Return a simulation without a dataset, with `files` drawn samples.

    None for as many as `ranks` ranks read in `steps` steps, so that no epoch ends.
    """
    files = files or workload.loader.batch_size * ranks * steps
    sizes = sample_sizes(workload.sample_read, min(files, DRAWN_SIZES))
    return Simulation(workload=workload, system=system, sizes=sizes, samples=files, steps=steps)


def batch_bytes(rank_plan: RankPlan, sizes: Floats) -> Floats:
    """Return the bytes of every batch of all ranks over samples of `sizes` bytes, shape (steps, ranks).

    The batches are those that `rank_plan.batches` gives each rank.
    """
    plan, length = rank_plan.plan, rank_plan.length
    if sizes.min() == sizes.max():  # any order gives the same batches
        return np.full((length, plan.ranks), plan.batch_size * sizes[0])
    size = np.empty((length, plan.ranks))
    step_samples = plan.ranks * plan.batch_size
    for row in range(length):
        epoch, step = divmod(row, plan.steps)
        if step == 0:
            order = EpochOrder(plan.samples, rank_plan.seed, epoch)
        samples = order.at(np.arange(step * step_samples, (step + 1) * step_samples)) % len(sizes)
        size[row] = sizes[samples].reshape(-1, plan.batch_size).sum(axis=1)
    return size


def rank_plan_of(simulation: Simulation, ranks: int, number: int) -> RankPlan:
    """Return the plan of emulated ranks at point `number`. Raises DatasetError for too few samples."""
    batch_size = simulation.workload.loader.batch_size
    plan = EpochPlan(samples=simulation.samples, ranks=ranks, batch_size=batch_size)
    plan.require_a_step()
    seed = simulation.workload.training.shuffle_seed + number
    return RankPlan(plan=plan, seed=seed, steps=simulation.steps)


def scene_on(
    system: System,
    workload: Workload,
    size: Floats,
    compute: Floats,
    gates: Bools,
    *,
    demand: float,
    epoch: int = 0,
) -> Scene:
    """Return the scene of ranks with a demand of `demand` bytes/s each that read batches of `size`.

    Shapes and `epoch` are those of `Scene`.
    """
    system, ranks = system.cautious, size.shape[1]
    hard, hosts = tightest_limits(system, workload), min(system.clients.hosts or 1, ranks)
    bound = soft_limits(hard, demand, ranks, hosts, system.storage.softness)
    return Scene(
        size=size,
        compute=compute,
        gates=gates,
        prefetch=workload.batches_ahead,
        system=bound.system,
        host=bound.host,
        rank=bound.rank,
        # Hosts without a limit need not be distinguished.
        hosts=1 if math.isinf(bound.host) else hosts,
        latency=system.storage.latency,
        step_cost=system.clients.step_cost,
        start=system.clients.start,
        epoch=epoch,
    )


def set_scene(simulation: Simulation, rank_plan: RankPlan) -> Scene:
    """Return the scene of `rank_plan` on the system. Variable compute times are those of emulated ranks."""
    workload, ranks = simulation.workload, rank_plan.plan.ranks
    accelerator = workload.accelerator
    if accelerator.compute == "constant" or accelerator.quantiles is None:
        compute = np.full((1, 1), float(accelerator.step_seconds))
    else:
        drawn = [step_times(accelerator, rank_plan.seed, rank, 0, rank_plan.length) for rank in range(ranks)]
        compute = np.stack(drawn, axis=1)
    ends = np.array([rank_plan.ends_epoch(step) for step in range(rank_plan.length)])
    return scene_on(
        simulation.system,
        workload,
        batch_bytes(rank_plan, simulation.sizes),
        compute,
        gates_of(workload.training.sync, ends),
        demand=workload.demand,
        epoch=0 if workload.access.refill == "never" else rank_plan.plan.steps,
    )


def predict(simulation: Simulation, ranks: int, number: int = 0) -> Predicted:
    """Predict the point of `ranks` ranks, point `number` of its result.

    Raises DatasetError for too few samples.
    """
    workload, rank_plan = simulation.workload, rank_plan_of(simulation, ranks, number)
    plan, steps = rank_plan.plan, rank_plan.length
    played = play(set_scene(simulation, rank_plan))
    every, busy, steady = played.totals(plan.batch_size, plan.steps)
    all_steps, lasting, utilised = throughput(every), throughput(busy), throughput(steady)
    seconds = float(played.end(slice(None), slice(-1, None)).max())
    ideal = ranks * workload.ideal_samples_per_second
    point = Point(
        ranks=ranks,
        hosts=_hosts(simulation, every, seconds),
        epochs=-(-steps // plan.steps),
        steps=steps,
        samples=ranks * steps * plan.batch_size,
        bytes=int(every["bytes"].sum()),
        left_out=plan.left_out,
        seconds=seconds,
        samples_per_second=lasting.samples_per_second,
        bytes_per_second=lasting.bytes_per_second,
        ideal_samples_per_second=ideal,
        x_ideal=lasting.samples_per_second / ideal,
        au=utilised.au,
        x_ideal_first=all_steps.samples_per_second / ideal,
        au_first=all_steps.au,
        wait_share=share_of_time(every, "wait"),
        barrier_share=share_of_time(every, "barrier"),
    )
    logged = np.unique(np.linspace(0, ranks - 1, min(ranks, LOGGED_RANKS)).astype(np.int64))
    rows = played.rows(logged, plan, number)
    point = with_course(measured_au(point, workload), rows, workload.training.sync)
    return Predicted(point=point, steps=rows)


def _hosts(simulation: Simulation, totals: Steps, seconds: float) -> tuple[HostShare, ...]:
    """Return the share of each host, if the system states their number."""
    clients = simulation.system.clients
    if clients.hosts is None or clients.hosts > LISTED_HOSTS:
        return ()
    hosts = min(clients.hosts, len(totals))
    cost, cores = (clients.cpu_seconds_per_gb or 0.0) / GB, clients.cores or 0
    shares = []
    for host in range(hosts):
        of_host = totals[host::hosts]
        read = int(of_host["bytes"].sum())
        busy = min(1.0, read * cost / (cores * seconds)) if cores and cost else None
        shares.append(
            HostShare(
                host=f"client{host + 1:0{len(str(hosts))}d}",
                ranks=len(of_host),
                bytes=read,
                samples=int(of_host["samples"].sum()),
                cpu_seconds=read * cost,
                cores=cores,
                busy_share=busy,
                nic_bytes=read,
                wait_seconds=float(of_host["wait"].sum()),
            )
        )
    return tuple(shares)


def forecast(simulation: Simulation, ranks: int, number: int = 0) -> Predicted:
    """Predict the point of `ranks` ranks, with an interval that spans every system that this may be.

    A fitted system may be any of its alternatives, within the bounds of the measured counts
    (`Fitted.between`). A system that is only described may have a soft limit, or feed as many as its limit
    alone allows, without barriers and varying samples. Run-to-run variation widens the interval.
    """
    system, workload, error = simulation.system, simulation.workload, math.exp(simulation.system.run_error)
    trials = [
        predict(replace(simulation, system=one), ranks, number) for one in (system, *system.alternatives)
    ]
    shares = [trial.point.x_ideal for trial in trials]
    floor, ceiling = 0.0, 1.0
    if system.fit is not None and math.isfinite(workload.demand):
        hosts = min(system.clients.hosts or 1, ranks)
        floor, ceiling = system.fit.between(workload.demand, ranks, hosts)
        floor, ceiling = floor / error, min(1.0, ceiling * error)
    elif full := cap(system, workload):
        shares.append(min(1.0, full / ranks))
    low, high = min(shares) / error, ceiling if system.lower_bound else max(shares) * error
    interval = min(max(low, floor), ceiling), max(min(high, ceiling), floor)
    # The system itself, unless the measured counts exclude it here.
    nearest = min(
        trials, key=lambda trial: abs(np.clip(trial.point.x_ideal, *interval) - trial.point.x_ideal)
    )
    return replace(nearest, interval=interval)
