"""Points from the reports of ranks, bounds and knee from points, and what a run that was cut off left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from emulator.analysis.bound import Shape, classify
from emulator.analysis.flags import (
    another_dataset,
    costly_barrier,
    non_stationary,
    point_flags,
    short_run,
    small_dataset,
)
from emulator.analysis.here import here
from emulator.analysis.knee import find_knee
from emulator.analysis.starved import RankAccount, starved
from emulator.analysis.throughput import (
    busy,
    loop_seconds,
    overshoot_p99,
    rate_series,
    share_of_time,
    steady,
    sustained,
    throughput,
)
from emulator.config.workload import Workload, stored_workload
from emulator.dataset.manifest import Manifest
from emulator.plan import plan_for
from emulator.record.folder import read_failure, read_result
from emulator.record.result import Flag, HostShare, Point, RunResult, Starved, new_result
from emulator.record.steps import STEP, Steps, read_steps
from emulator.run.point import RankReport, TrainingJob, mismatch


def summarise(job: TrainingJob, manifest: Manifest, ranks: int, reports: Sequence[RankReport]) -> Point:
    """The point that `ranks` ranks measured, with its flags."""
    rows = np.concatenate([report.steps for report in reports])
    latency: Counter[int] = Counter()
    retries: Counter[str] = Counter()
    by_host: dict[str, list[RankReport]] = {}
    for report in reports:
        latency.update(report.read_latency)
        retries.update(report.retries)
        by_host.setdefault(report.host, []).append(report)
    lost, of_host = _starved(job, rows, by_host, reports)
    pages = sum(report.pages_sampled for report in reports)
    resident = sum(report.pages_resident for report in reports)
    point = point_of(
        job.workload,
        manifest.samples,
        ranks,
        rows,
        hosts=tuple(
            replace(_host_share(group), starved=of_host.get(host)) for host, group in by_host.items()
        ),
        starved=lost,
        resident_share=resident / pages if pages else None,
        read_latency={str(edge): latency[edge] for edge in sorted(latency)},
        read_latency_max=max(report.slowest_read for report in reports) or None,
        read_retries=dict(sorted(retries.items())),
        barrier_seconds=reports[0].barrier_seconds,
    )
    flags = [
        non_stationary(rate_series(busy(rows))),
        short_run(point, job.workload),
        costly_barrier(point, job.workload, polled=reports[0].barrier_polled),
    ]
    buffered = sum(not report.direct_io for report in reports) / len(reports)
    if job.loader == "direct" and job.storage.cache == "cold" and buffered:
        sentence = (
            "The file system refuses O_DIRECT: reads went through the page cache and were evicted, "
            "at a higher cost in CPU."
        )
        flags.insert(1, Flag(name="no-o-direct", value=buffered, threshold=0.0, sentence=sentence))
    return replace(point, flags=point_flags(point) + tuple(flag for flag in flags if flag))


def _starved(
    job: TrainingJob, rows: Steps, by_host: Mapping[str, Sequence[RankReport]], reports: Sequence[RankReport]
) -> tuple[Starved | None, dict[str, Starved]]:
    """What starved the accelerators, all together and by host; unknown where a kernel keeps no books."""
    stolen = {}
    for host, group in by_host.items():
        activity = next((report.activity for report in group if report.activity), None)
        busy = (activity.busy_share or 0.0) if activity else 0.0
        stolen[host] = min(0.9, (activity.steal_share or 0.0) / busy) if activity and busy else 0.0
    ranks = [
        RankAccount(
            host=report.host,
            reading=report.account.reading,
            process=report.account.process,
            stolen=stolen[report.host],
        )
        for report in reports
        if report.account is not None
    ]
    if len(ranks) < len(reports):
        return None, {}
    return starved(rows, job.workload.training.sync, ranks)


def _host_share(reports: Sequence[RankReport]) -> HostShare:
    """What the ranks of one host did."""
    activity = next((report.activity for report in reports if report.activity), None)
    rows = np.concatenate([report.steps for report in reports])
    return HostShare(
        host=reports[0].host,
        ranks=len(reports),
        bytes=int(rows["bytes"].sum()),
        samples=int(rows["samples"].sum()),
        cpu_seconds=sum(report.cpu_seconds for report in reports),
        cores=max(report.cores for report in reports),
        wait_seconds=float(rows["wait"].sum()),
        **(asdict(activity) if activity else {}),
    )


def point_of(workload: Workload, samples: int, ranks: int, rows: Steps, **more: Any) -> Point:
    """The point that the step log `rows` of `ranks` ranks shows; `more` are fields that it does not.

    `samples` are those of the dataset.
    """
    plan = plan_for(workload, samples, ranks)
    lasting, whole = sustained(rows), throughput(rows)
    trained = here(rows, workload.training.sync)
    ideal = ranks * workload.ideal_samples_per_second
    return Point(
        ranks=ranks,
        hosts=more.pop("hosts", ()),
        epochs=len(np.unique(rows["epoch"])),
        steps=len(rows) // ranks,
        samples=int(rows["samples"].sum()),
        bytes=int(rows["bytes"].sum()),
        left_out=plan.left_out,
        seconds=loop_seconds(rows),
        samples_per_second=lasting.samples_per_second,
        bytes_per_second=lasting.bytes_per_second,
        ideal_samples_per_second=ideal,
        x_ideal=lasting.samples_per_second / ideal,
        au=throughput(steady(rows)).au,
        x_ideal_first=whole.samples_per_second / ideal,
        au_first=whole.au,
        wait_share=share_of_time(rows, "wait"),
        barrier_share=share_of_time(rows, "barrier"),
        overshoot_share=share_of_time(rows, "overshoot"),
        overshoot_p99=overshoot_p99(rows, workload.accelerator.step_seconds),
        au_here=None if trained is None else throughput(steady(trained)).au,
        au_here_first=None if trained is None else throughput(trained).au,
        **more,
    )


def first_result(job: TrainingJob, manifest: Manifest, environment: dict[str, Any]) -> RunResult:
    """The result before its first point."""
    memory = int(environment["memory_bytes"]) * len(environment["hosts"])
    small = None if job.storage.emulated else small_dataset(manifest.total, memory)
    flags = (small, another_dataset(mismatch(job.workload, manifest)))
    return new_result(
        job.kind,
        command=job.command,
        label=job.label,
        workload=asdict(job.workload),
        dataset=dataset_facts(job, manifest),
        storage=asdict(job.storage),
        loader=job.loader,
        environment=environment,
        flags=tuple(flag for flag in flags if flag),
    )


def conclusions(job: TrainingJob, result: RunResult, points: Sequence[Point]) -> dict[str, Any]:
    """The fields of `result` that follow from its points: what bounds each, and the knee.

    There is a knee as soon as there are two process counts.
    """
    several = len({point.ranks for point in points}) > 1
    emulator = result.environment["emulator"]
    from_memory = float(emulator["samples_per_second"]) * float(emulator["sample_bytes"])
    shape = None
    if job.storage.shaped_rate is not None:
        rate = job.storage.shaped_rate
        alone = job.storage.shaped_latency + job.workload.request_bytes / rate
        shape = Shape(rate=rate, request_seconds=alone)
    bound = tuple(replace(point, bound=classify(point, points, from_memory, shape)) for point in points)
    return {
        "points": bound,
        "knee": find_knee(bound, job.workload.training.au_threshold) if several else None,
    }


def dataset_facts(job: TrainingJob, manifest: Manifest) -> dict[str, Any]:
    """What a result says of its dataset."""
    return {
        "path": str(job.dataset),
        "files": len(manifest.names),
        "samples": manifest.samples,
        "bytes": manifest.total,
        "format": manifest.format,
        "recipe": manifest.recipe,
        "seed": manifest.seed,
        "identity": manifest.identity,
    }


def recovered(out: Path) -> tuple[RunResult, Steps]:
    """The result and the steps in OUT; of a run that was cut off also the point that it died in.

    Raises StorageError, SpecError.
    """
    if out.is_file():  # a result under another name: the step log beside it is of run.json
        return read_result(out), np.zeros(0, STEP)
    result, steps = read_result(out), read_steps(out)
    if result.status == "complete":
        return result, steps
    result = replace(result, reason=read_failure(out) or result.reason)
    torn = steps[steps["point"] >= len(result.points)]
    if result.kind in ("run", "sweep") and len(torn):
        workload, ranks = stored_workload(result.workload), len(np.unique(torn["rank"]))
        samples = int(result.dataset.get("samples", result.dataset["files"]))
        result = replace(result, points=(*result.points, point_of(workload, samples, ranks, torn)))
    return result, steps
