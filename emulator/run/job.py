"""The job of a run or sweep: its workload, its dataset, and the length of a point."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from emulator.analysis.flags import LONG, read_ahead
from emulator.calls import Calls, Cast, read_calls
from emulator.config.storage import Place, StorageSpec
from emulator.config.workload import Placement, Workload
from emulator.dataset.manifest import Manifest
from emulator.order import RankPlan, plan_for
from emulator.record.result import Kind
from emulator.run.preflight import NO_RULES, Rules
from emulator.units import show_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A run or sweep as the user requested it; the same on every rank."""

    kind: Kind
    dataset: Place
    """Folder or object URL."""
    workload: Workload
    loader: str
    """An entry point of `feedrate.loaders`."""
    storage: StorageSpec
    epochs: int | None
    """Most epochs of a point; None: as many as `steps` need."""
    steps: int | None
    """Most steps of a rank in a point; None: whole epochs. If `epochs` is None, too: `enough_steps`."""
    precision: float = 0.05
    """Requested width of the knee's interval, as a share."""
    placement: Placement = "spread"
    """`spread`: evenly over all hosts. `pack`: fill one host after the other."""
    out: Path
    force: bool = False
    """Overwrite a result in `out`."""
    resume: bool = False
    """Continue the sweep in `out`."""
    command: tuple[str, ...]
    label: str = ""
    rules: Rules = NO_RULES
    calls: Calls | None = None
    """The recorded batches of the workload, if it has any. Read where the job is made."""

    def __post_init__(self) -> None:
        if self.calls is None and (path := self.workload.access.calls):
            object.__setattr__(self, "calls", read_calls(Path(path)))

    @property
    def direct(self) -> bool:
        """True if files are read with O_DIRECT where the file system supports it."""
        return self.loader == "direct" and self.storage.cache == "cold" and self.calls is None

    def rank_plan(self, manifest: Manifest, number: int, ranks: int) -> RankPlan:
        """Return the plan of point `number` for `ranks` ranks. Raises DatasetError for too few samples."""
        plan = plan_for(self.workload, manifest.samples, ranks, manifest.samples_per_file)
        plan.require_a_step()
        if self.calls is not None:
            lanes = max(1, self.workload.loader.workers)
            sizes = np.asarray(manifest.sizes[:])
            plan = replace(plan, recorded=Cast(self.calls, sizes, plan.steps * ranks, lanes))
        # Each point has its own order: if all read the same samples first, caches behind the mount would
        # serve them.
        seed = self.workload.training.shuffle_seed + number
        epochs, steps = self.epochs, self.steps
        if epochs is None and steps is None:
            epochs, steps = self.workload.training.epochs, enough_steps(self.workload, ranks, self.precision)
        return RankPlan(plan=plan, epochs=epochs, steps=steps, seed=seed)


POINT_SECONDS = 30.0
"""Shortest point, in seconds of compute: long enough for the storage's drift to show."""


def enough_steps(workload: Workload, ranks: int, precision: float) -> int:
    """Return the steps of a rank that make a point of `ranks` ranks long enough.

    The largest of: steps that compute for POINT_SECONDS; steps after which prefetched batches no longer
    matter (the flag `short`); and steps whose mean sample size is known to half of `precision` with 95 %
    confidence, according to the workload's standard deviation.
    """
    sample = workload.sample_read
    samples = (2 * 1.96 / precision * sample.bytes_sd / sample.bytes_mean) ** 2
    by_size = samples / (ranks * workload.loader.batch_size)
    by_time = POINT_SECONDS / max(1e-3, workload.accelerator.step_seconds)
    return math.ceil(max(by_size, by_time, LONG * read_ahead(workload)))


MEAN_DIFFERENCE = 0.2
"""Largest relative difference between a dataset's mean sample and the workload's, beyond sampling error."""


def mismatch(workload: Workload, manifest: Manifest) -> str:
    """Return how the dataset differs from the workload's; empty if it does not.

    Compares the format, one or many samples per file, and the mean bytes of a sample, which may differ by
    MEAN_DIFFERENCE and three standard errors.
    """
    sample, mean = workload.sample, manifest.total / max(1, manifest.samples)
    spread = 3 * sample.bytes_sd / math.sqrt(max(1, manifest.samples))
    if manifest.format.removesuffix("-array") != sample.format:
        return f"its files are {manifest.format}, but the workload {workload.name} reads {sample.format}"
    if (manifest.samples_per_file > 1) != (sample.samples_per_file > 1):
        layout = "one sample per file" if manifest.samples_per_file == 1 else "many samples per file"
        return f"it has {layout}, but the workload {workload.name} reads {sample.samples_per_file} of each"
    if abs(mean - sample.bytes_mean) > MEAN_DIFFERENCE * sample.bytes_mean + spread:
        return (
            f"its mean sample has {show_bytes(mean)}, that of the workload {workload.name} "
            f"{show_bytes(sample.bytes_mean)}"
        )
    return ""
