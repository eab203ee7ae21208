"""Synthetic results: built from formulas, never measured. For looking at, and for tests of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from emulator.analysis.point import with_course
from emulator.config.workload import load_workload
from emulator.record.result import Bound, Flag, HostShare, Knee, Point, RunResult
from emulator.record.steps import STEP, Steps

SAMPLE_BYTES = 146_600_628


def soft_min(demand: float, limit: float, power: float = 8.0) -> float:
    """min(demand, limit) with a rounded corner, in the unit of both."""
    return (demand**-power + limit**-power) ** (-1 / power)


def host_shares(hosts: int, ranks: int, size: int, samples: int, slow: int | None) -> tuple[HostShare, ...]:
    used = min(hosts, ranks)
    weights = np.full(used, 1.0)
    if slow is not None and slow < used:
        weights[slow] = 0.55
    weights /= weights.sum()
    return tuple(
        HostShare(
            host=f"node{number:03d}", ranks=ranks // used + (number < ranks % used),
            bytes=int(size * weight), samples=int(samples * weight), cpu_seconds=float(size * weight * 2e-11),
            cores=24, busy_share=0.31, steal_share=0.0, nic_bytes=int(size * weight * 1.01),
            wait_seconds=float(4.0 / weight / used),
        )
        for number, weight in enumerate(weights)
    )  # fmt: skip


def point(
    ranks: int,
    limit: float,
    *,
    step_seconds: float = 0.636,
    batch: int = 7,
    hosts: int = 1,
    slow: int | None = None,
    flags: tuple[Flag, ...] = (),
    noise: float = 0.0,
) -> Point:
    """A point at `ranks` processes on a storage of `limit` bytes/s. Synthetic."""
    ideal = ranks * batch / step_seconds
    rate = soft_min(ideal, limit / SAMPLE_BYTES) * (1 + noise)
    steps, efficiency = 40, rate / ideal
    seconds = steps * step_seconds / efficiency
    samples = steps * ranks * batch
    wait = 1 - efficiency
    centre = 20_000 / efficiency
    edges = [round(2 ** (power / 4)) for power in range(32, 80)]
    counts = [int(1e5 * np.exp(-((np.log(edge / centre) / 0.5) ** 2))) for edge in edges]
    return Point(
        ranks=ranks, hosts=host_shares(hosts, ranks, samples * SAMPLE_BYTES, samples, slow), epochs=2,
        steps=steps,
        samples=samples, bytes=samples * SAMPLE_BYTES, left_out=3, seconds=seconds, samples_per_second=rate,
        bytes_per_second=rate * SAMPLE_BYTES, ideal_samples_per_second=ideal, x_ideal=efficiency,
        au=min(1.0, efficiency * 1.002), x_ideal_first=efficiency * 0.97, au_first=efficiency * 0.975,
        wait_share=wait * 0.8, barrier_share=wait * 0.2, resident_share=0.0,
        read_latency={str(edge): count for edge, count in zip(edges, counts, strict=True) if count},
        flags=flags,
    )  # fmt: skip


def result(points: Sequence[Point], **changes: object) -> RunResult:
    workload = asdict(load_workload("unet3d-a100"))
    base = RunResult(
        kind="sweep", status="complete", version="0.1.0", created="2026-01-02T03:04:05Z",
        command=("mpirun", "-n", "32", "feedrate", "sweep", "/mnt/storage/kits19",
                 "--workload", "unet3d-a100", "--out", "my results/sweep 1"),
        workload=workload,
        dataset={"path": "/mnt/storage/kits19", "files": 4096, "samples": 4096,
                 "bytes": 4096 * SAMPLE_BYTES, "format": "npz", "recipe": "kits19", "seed": 0},
        storage={"cache": "cold", "shaped_rate": None, "shaped_latency": 0.0}, loader="direct",
        environment={"synthetic": "made by a formula, not measured", "host": "node000", "cores": 24,
                     "cpu": "AMD EPYC 74F3 24-Core Processor", "memory_bytes": 270_000_000_000,
                     "kernel": "6.1.0", "python": "3.11.7", "feedrate": "0.1.0",
                     "mpi": {"library": "Open MPI", "version": "5.0.8"}},
        points=tuple(points),
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def knee(n_au: float | None, limit: float | None, width: float = 0.03) -> Knee:
    one = 7 / 0.636 * SAMPLE_BYTES
    return Knee(
        kind="beyond" if n_au is None else "knee", n_au=n_au,
        n_saturation=None if limit is None else limit / one,
        interval=None if n_au is None else (n_au * (1 - width / 2), n_au * (1 + width / 2)),
    )  # fmt: skip


def steps_of(made: RunResult, ranks: int = 4) -> Steps:
    """A step log that fits the points, with at most `ranks` ranks a point. Synthetic."""
    rng = np.random.default_rng(0)
    parts = []
    for number, at in enumerate(made.points):
        used = min(ranks, at.ranks)
        rows = np.zeros(used * at.steps, dtype=STEP)
        step = np.tile(np.arange(at.steps), used)
        mean = at.seconds / at.steps
        rows["point"], rows["rank"], rows["step"] = number, np.repeat(np.arange(used), at.steps), step % 20
        rows["epoch"], rows["samples"], rows["bytes"] = step // 20, 7, 7 * SAMPLE_BYTES
        rows["compute"], rows["requested"], rows["arrived"] = 0.636, np.nan, np.nan
        rows["overshoot"] = rng.normal(0, 0.001, len(rows))
        rows["wait"] = rng.gamma(4, max(at.wait_share * mean, 1e-9) / 4, len(rows))
        rows["barrier"] = rng.gamma(2, max(at.barrier_share * mean, 1e-9) / 2, len(rows))
        seconds = sum(rows[part] for part in ("wait", "compute", "overshoot", "barrier")).reshape(used, -1)
        rows["begin"] = (np.cumsum(seconds, axis=1) - seconds).reshape(-1)
        parts.append(rows)
    return np.concatenate(parts) if parts else np.zeros(0, dtype=STEP)


def with_steps(made: RunResult) -> RunResult:
    """`made` with what figures show of the steps of its points."""
    rows = steps_of(made)
    points = (with_course(at, rows[rows["point"] == number], "none") for number, at in enumerate(made.points))
    return replace(made, points=tuple(points))


def one_point() -> RunResult:
    return result([point(4, 26e9)], kind="run")


def plain_sweep() -> RunResult:
    counts = (1, 2, 4, 8, 12, 14, 15, 16, 18, 20, 24, 32)
    return result([point(count, 26e9) for count in counts], knee=knee(14.8, 26e9))


def shaped_sweep() -> RunResult:
    return replace(plain_sweep(), storage={"cache": "cold", "shaped_rate": 26e9, "shaped_latency": 0.002})


OVERSHOOT = Flag(
    name="overshoot", value=0.034, threshold=0.01,
    sentence="Compute waits overslept by 3.4 % of the step at the 99th percentile: the client is too busy.",
)  # fmt: skip
CACHE = Flag(
    name="page-cache", value=0.12, threshold=0.01,
    sentence="12 % of the pages were in the page cache just before they were read: memory served them.",
)  # fmt: skip
SMALL = Flag(
    name="small-dataset", value=1.2, threshold=5.0,
    sentence="The dataset is 1.2 times the clients' memory; below 5 times, caches may serve part of it.",
)  # fmt: skip


def flagged_sweep() -> RunResult:
    base = shaped_sweep()
    points = list(base.points)
    points[-1] = replace(points[-1], flags=(OVERSHOOT, CACHE))
    points[-2] = replace(points[-2], flags=(OVERSHOOT,))
    points.insert(
        4, replace(points[3], flags=(CACHE,), samples_per_second=points[3].samples_per_second * 0.9)
    )
    return replace(base, points=tuple(points), flags=(SMALL,))


def incomplete_sweep() -> RunResult:
    base = plain_sweep()
    return replace(
        base, points=base.points[:5], knee=None, status="incomplete",
        reason="rank 3 on node001 died (signal 9) in point 6",
    )  # fmt: skip


def multi_host_sweep() -> RunResult:
    fed = Bound(kind="compute", evidence=("throughput is 99.9% of ideal", "ranks waited 0.1% of the time"))
    slow = Bound(
        kind="client-link", host="node005",
        evidence=("ranks of node005 waited 33.1% of the time, those of the median host 18.2%",),
    )  # fmt: skip
    counts = (1, 4, 12, 24, 28, 32, 48)
    points = [
        replace(point(count, 45e9, hosts=12, slow=5), bound=fed if count < 26 else slow) for count in counts
    ]
    return result(points, knee=knee(26.1, 45e9))


def huge_sweep() -> RunResult:
    counts = np.unique(np.geomspace(1, 100_000, 20).astype(int)).tolist()
    points = [point(count, 38.7e12, hosts=12_500) for count in counts]
    return result(points, knee=knee(21431.0, 38.7e12))


def no_knee_sweep() -> RunResult:
    points = [point(count, 400e9) for count in (1, 2, 4, 8, 16)]
    return result(points, knee=knee(None, None))


def long_names_sweep() -> RunResult:
    base = multi_host_sweep()
    workload = dict(base.workload) | {
        "name": "unet3d-" + "very-" * 20 + "long",
        "title": "3D U-Net <script>alert(1)</script> & a title that goes on and on " * 4,
    }
    host = "compute-rack-07-chassis-12-blade-03.cluster.example-university-with-a-long-name.internal"
    points = [
        replace(
            at, hosts=tuple(replace(share, host=f"{number}-{host}") for number, share in enumerate(at.hosts))
        )
        for at in base.points
    ]
    return replace(
        base, points=tuple(points), workload=workload,
        flags=(replace(SMALL, name="x" * 60, sentence="y" * 300),),
        dataset={"path": "/mnt/" + "deeply/" * 40 + "kits19", "files": 10**7, "bytes": 10**18},
        command=("mpirun", "--hostfile", "/home/" + "a" * 200, "feedrate", "sweep", "<b>&\"'", "--out", "o"),
    )  # fmt: skip


def repeated_sweep() -> RunResult:
    rng = np.random.default_rng(1)
    counts = [1, 2, 4, 8, 8, 12, 12, 14, 14, 14, 15, 15, 15, 16, 16, 20, 20, 32]
    points = [point(count, 26e9, noise=float(rng.normal(0, 0.01))) for count in counts]
    return replace(plain_sweep(), points=tuple(points))


def no_compute_run() -> RunResult:
    """A step time of 0: there is no ideal rate."""
    points = [
        replace(
            point(count, 26e9), ideal_samples_per_second=float("inf"), x_ideal=0.0, au=0.0, x_ideal_first=0.0,
            au_first=0.0, wait_share=1.0, barrier_share=0.0,
        )
        for count in (1, 2, 4)
    ]  # fmt: skip
    return result(points)


EXAMPLES = {
    "one-point": one_point,
    "plain": plain_sweep,
    "shaped": shaped_sweep,
    "flagged": flagged_sweep,
    "incomplete": incomplete_sweep,
    "multi-host": multi_host_sweep,
    "huge": huge_sweep,
    "no-knee": no_knee_sweep,
    "long-names": long_names_sweep,
    "repeated": repeated_sweep,
    "no-compute": no_compute_run,
    "empty": lambda: replace(incomplete_sweep(), points=()),
}
"""Every shape of result that the report has to bear."""
PAGES = {name: made for name, made in EXAMPLES.items() if name not in ("plain", "shaped", "repeated")}
"""Those of them whose pages are written and looked at: the others differ from `flagged` in little."""
