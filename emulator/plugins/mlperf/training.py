"""Import a published training: recompute its figures from its documents, with DLIO's errors corrected.

    AU as published    sum of compute without the first step / time without the first step, per block;
                       weighted by steps over an epoch's blocks, mean over ranks, mean over epochs
    AU recomputed      the same with nominal compute, so that oversleep does not count as compute
    X, same steps      (n - 1) x batch / time without the first step; v3.0 publishes it, v2.0 has (n - 2)
    X, all steps       n x batch / time; v1.0 publishes it

X_ideal is batch / step time. With nominal compute AU is X / X_ideal over the same steps, by definition; a
slow start shows only in X over all steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from emulator.analysis.flags import small_dataset
from emulator.analysis.knee import find_knee
from emulator.analysis.point import with_course
from emulator.analysis.throughput import loop_seconds, share_of_time
from emulator.config.catalog import names
from emulator.config.workload import Workload, load_workload
from emulator.errors import SpecError
from emulator.plugins.mlperf.logs import Block, epoch_seconds, mean_of, read_blocks, step_rows
from emulator.plugins.mlperf.published import Published, read_published
from emulator.plugins.mlperf.tree import RunFolder
from emulator.plugins.mlperf.workload import convert
from emulator.record.result import Flag, HostShare, Point, RunResult, new_result
from emulator.record.steps import STEP, Steps

_HIDDEN = 0.02
"""AU - X/X_ideal over all steps above which a slow start is reported. A share of 1."""
_OVERSLEPT = 0.005
"""Published - recomputed AU above which oversleep is reported. A share of 1."""
_MOST = 1.02
"""X/X_ideal above which figures are impossible: accelerators cannot take more than they demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTraining:
    """A training run with its published and recomputed figures. Shares of 1; NaN if unknown."""

    run: RunFolder
    published: Published
    workload: Workload
    version: str | None
    x_ideal: float
    """Throughput / ideal over the steps of AU, which is the recomputed AU."""
    x_ideal_first: float
    """Throughput / ideal over all steps, start-up included."""
    rows: Steps
    """Steps of the run as point 0; empty without logs."""
    unread: tuple[str, ...]
    """Sentences on documents that were left out."""

    @property
    def group(self) -> object:
        """Key that is equal for runs of one result."""
        return (
            self.run.system,
            self.workload.sample,
            self.workload.loader.batch_size,
            self.workload.accelerator,
        )

    @property
    def flags(self) -> list[Flag]:
        """What the published figures hide, and what could not be read."""
        flags = []
        hidden = self.published.au - self.x_ideal_first
        overslept = self.published.au - self.x_ideal
        most = max(self.x_ideal, self.x_ideal_first)
        if most > _MOST:
            sentence = (
                f"X/X_ideal is {most * 100:.1f} %, which is impossible: its documents are of several runs."
            )
            flags.append(Flag(name="documents", value=most, threshold=_MOST, sentence=sentence))
        if self.unread:
            sentence = f"{'; '.join(self.unread)}."
            flags.append(Flag(name="documents", value=len(self.unread), threshold=0.0, sentence=sentence))
        if hidden > _HIDDEN:
            sentence = f"Start-up and the excluded first step hide {hidden * 100:.0f} points of AU."
            flags.append(Flag(name="hidden", value=hidden, threshold=_HIDDEN, sentence=sentence))
        if overslept > _OVERSLEPT:
            points = overslept * 100
            sentence = f"Oversleep was counted as compute: the published AU is {points:.1f} points too high."
            flags.append(Flag(name="oversleep", value=overslept, threshold=_OVERSLEPT, sentence=sentence))
        return flags

    @property
    def verdict(self) -> str:
        """The published AU, and what the flags say of it."""
        au = f"AU {self.published.au * 100:.1f} %"
        if math.isnan(self.x_ideal_first):
            return f"{au}; X/X_ideal over all steps cannot be computed from what was published"
        said = " ".join(flag.sentence for flag in self.flags) or "They agree."
        return f"{au}, X/X_ideal {self.x_ideal_first * 100:.1f} %. {said}"

    @property
    def line(self) -> str:
        return f"{self.published.num_accelerators} accelerators, {self.run.name}: {self.verdict}"


def import_run(run: RunFolder, workload: str = "") -> ImportedTraining:
    """Read the figures of `run`, and recompute them as far as its logs allow. Raises SpecError."""
    spec, most_steps = _workload(run, workload)
    published = read_published(run, most_steps, spec.sample.samples_per_file)
    version, unread = run.version, run.unread
    if version is None and run.choice.endswith(("-b200", "-mi355")):
        version = "v3.0"  # the only one with these accelerators
    try:
        blocks = read_blocks(run, published)
    except SpecError as error:  # the summary may be usable without the logs
        blocks, unread = [], (*unread, f"its logs: {error.what.removeprefix(f'{run.name}: ')}")
    x_ideal, x_ideal_first = _shares(run, published, spec, blocks, version)
    return ImportedTraining(
        run=run,
        published=published,
        workload=spec,
        version=version,
        x_ideal=x_ideal,
        x_ideal_first=x_ideal_first,
        rows=step_rows(blocks, spec),
        unread=unread,
    )


def _workload(run: RunFolder, wanted: str) -> tuple[Workload, int]:
    """Return the workload by the configuration or the catalogue, and the most steps of an epoch (0: any).

    Raises SpecError.
    """
    config = run.config
    if config is not None and not wanted:
        name = config.choice or re.sub(r"[^A-Za-z0-9-]+", "-", config.model("training"))
        return convert(config, name or "training").workload, config.whole("train.total_training_steps")
    name = wanted or run.choice
    if not wanted and name not in names("workloads"):
        raise SpecError(f"{run.name} has no configuration", "name its workload with --workload NAME")
    return load_workload(name), 0


def _shares(
    run: RunFolder, published: Published, spec: Workload, blocks: Sequence[Block], version: str | None
) -> tuple[float, float]:
    """Return X/X_ideal over the steps of AU and over all steps, by the logs or else by the summary.

    Without logs: v1.0's AU counts nominal compute, so it is X/X_ideal over the same steps, and its published
    throughput is over all steps. X over the same steps is v3.0's throughput, or v2.0's x (n - 1) / (n - 2);
    X over all steps follows from the epochs' times.
    """
    batch, step = spec.loader.batch_size, spec.accelerator.step_seconds
    if step > 0 and blocks:
        return _by_logs(blocks, step, 1), _by_logs(blocks, step, 0)
    steps = published.steps_per_epoch(batch)
    if step <= 0 or steps < 3:
        return math.nan, math.nan
    share = published.rate / (published.num_accelerators * spec.ideal_samples_per_second)
    if version == "v1.0":
        return published.au, share
    seconds = filter(None, (epoch_seconds(run, epoch) for epoch in range(published.epochs)))
    shares = [steps * step / of_epoch for of_epoch in seconds]
    over_all = float(np.mean(shares)) if shares else math.nan
    same = {"v2.0": share * (steps - 1) / (steps - 2), "v3.0": share}.get(version or "", math.nan)
    return same, over_all


def _by_logs(blocks: Sequence[Block], step: float, first: int) -> float:
    """Return throughput / ideal, without the first step of each block when `first` is 1."""
    shares = []
    for block in blocks:
        seconds = block.seconds - float(block.proc[:first].sum())
        shares.append((block.steps - first) * step / seconds if seconds > 0 else 0.0)
    return mean_of(blocks, shares)


def imported_result(runs: Sequence[ImportedTraining], command: Sequence[str]) -> tuple[RunResult, Steps]:
    """Join runs of one group into a result and their steps."""
    first = runs[0].workload
    points = tuple(with_course(_point(run), run.rows, first.training.sync) for run in runs)
    rows = [np.zeros(0, STEP)]
    for number, run in enumerate(runs):
        rows.append(run.rows.copy())
        rows[-1]["point"] = number
    files = max(run.published.num_files_train for run in runs)
    samples_per_file = runs[0].published.num_samples_per_file
    size = round(files * samples_per_file * first.sample.bytes_mean)
    memory = max(sum(run.published.memory) for run in runs)
    small = small_dataset(size, memory) if memory else None
    rated = [point for point in points if math.isfinite(point.samples_per_second)]
    several = len({point.ranks for point in rated}) > 1
    result = new_result(
        "imported",
        command=tuple(command),
        workload=asdict(first),
        dataset={
            "path": "",
            "files": files,
            "samples_per_file": samples_per_file,
            "bytes": size,
            "format": first.sample.format,
            "file_bytes_sd": float(first.sample.bytes_sd) if samples_per_file == 1 else None,
            "recipe": "",
            "seed": 0,
        },
        storage={"cache": "unknown", "shaped_rate": None, "shaped_latency": 0.0, "noise": ""},
        loader="DLIO's",
        label=runs[0].run.system,
        environment={"memory_bytes": memory, "imported": [_facts(run) for run in runs]},
        points=points,
        knee=find_knee(rated, first.training.au_threshold) if several else None,
        flags=(small,) if small else (),
    )
    return result, np.concatenate(rows)


def _point(imported: ImportedTraining) -> Point:
    """Return the run as a point, with NaN where nothing was published."""
    published, spec, rows = imported.published, imported.workload, imported.rows
    logged = len(rows) > 0
    ranks, batch = published.num_accelerators, spec.loader.batch_size
    ideal = ranks * spec.ideal_samples_per_second
    steps = len(rows) // ranks or published.steps_per_epoch(batch) * published.epochs
    samples = steps * batch * ranks
    rate = imported.x_ideal * ideal if math.isfinite(ideal) else published.rate
    by_epochs = [epoch_seconds(imported.run, epoch) or math.nan for epoch in range(published.epochs)]
    return Point(
        ranks=ranks,
        hosts=_hosts(imported, samples),
        epochs=published.epochs,
        steps=steps,
        samples=samples,
        bytes=round(samples * spec.sample_read.bytes_mean),
        left_out=published.samples % (batch * ranks),
        seconds=loop_seconds(rows) if logged else sum(by_epochs),
        samples_per_second=rate,
        bytes_per_second=rate * spec.sample_read.bytes_mean,
        ideal_samples_per_second=ideal,
        x_ideal=imported.x_ideal,
        au=imported.x_ideal,
        au_published=published.au,
        samples_per_second_published=published.rate,
        x_ideal_first=imported.x_ideal_first,
        au_first=imported.x_ideal_first,
        wait_share=share_of_time(rows, "wait") if logged else math.nan,
        barrier_share=share_of_time(rows, "barrier") if logged else math.nan,
        flags=tuple(imported.flags),
    )


def _hosts(imported: ImportedTraining, samples: int) -> tuple[HostShare, ...]:
    """Return each host's share, by the ranks' host names in the logs or else by numbered hosts."""
    published, rows = imported.published, imported.rows
    accelerators = published.num_accelerators
    logs = imported.run.logs
    host_of = [str(logs.get(str(rank), {}).get("hostname", ""))[:80] for rank in range(accelerators)]
    logged = len(rows) > 0 and all(host_of)
    if not logged:
        hosts = min(published.num_hosts, accelerators)
        numbered = [published.hostname or "host 1", *(f"host {number}" for number in range(2, hosts + 1))]
        host_of = [numbered[rank % hosts] for rank in range(accelerators)]
    waits = np.bincount(rows["rank"], weights=rows["wait"], minlength=accelerators)
    cores = published.cores or (0,)
    shares = []
    for number, name in enumerate(dict.fromkeys(host_of)):
        ranks = [rank for rank, host in enumerate(host_of) if host == name]
        host_samples = samples // accelerators * len(ranks)
        shares.append(
            HostShare(
                host=name,
                ranks=len(ranks),
                samples=host_samples,
                bytes=round(host_samples * imported.workload.sample_read.bytes_mean),
                cpu_seconds=math.nan,
                cores=cores[min(number, len(cores) - 1)],
                wait_seconds=float(waits[ranks].sum()) if logged else math.nan,
            )
        )
    return tuple(shares)


def _facts(imported: ImportedTraining) -> dict[str, Any]:
    """Return what the documents of a run state, for the rules and for the report."""
    run, published, config = imported.run, imported.published, imported.run.config
    seed = config.at("train.seed") if config else None
    saved = config.at("workflow.checkpoint") if config else None
    return {
        "run": run.name,
        "start": published.start,
        "verdict": imported.verdict,
        "version": imported.version,
        "au_published": published.au,
        "memory_bytes": sum(published.memory) or None,
        "samples_per_file": published.num_samples_per_file,
        "dataset_bytes": round(published.samples * imported.workload.sample.bytes_mean),
        "seed": seed if type(seed) is int else None,
        "saved": saved if isinstance(saved, bool) else None,
        "same_filesystem": run.same_filesystem,
    }
