"""Points of a run or a sweep before they are measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from emulator.dataset.manifest import Manifest
from emulator.record.result import HostShare, Point
from emulator.run.job import TrainingJob


def planned_point(job: TrainingJob, manifest: Manifest, number: int, hosts: Sequence[str]) -> Point:
    """Return point `number` with a rank on each of `hosts`, and NaN for measured figures.

    Raises DatasetError for too few samples.
    """
    ranks, workload, unknown = len(hosts), job.workload, math.nan
    plan = job.rank_plan(manifest, number, ranks)
    samples = plan.length * ranks * workload.loader.batch_size
    size = round(samples * manifest.total / manifest.samples)
    shares = (
        HostShare(host=host, ranks=active, bytes=0, samples=0, cpu_seconds=unknown, cores=0)
        for host, active in Counter(hosts).items()
    )
    return Point(
        ranks=ranks,
        hosts=tuple(shares),
        epochs=math.ceil(plan.length / plan.plan.steps),
        steps=plan.length,
        samples=samples,
        bytes=size,
        left_out=0,
        seconds=unknown,
        samples_per_second=unknown,
        bytes_per_second=unknown,
        ideal_samples_per_second=ranks * workload.ideal_samples_per_second,
        x_ideal=unknown,
        au=unknown,
        x_ideal_first=unknown,
        au_first=unknown,
        wait_share=unknown,
        barrier_share=unknown,
    )
