"""Import published trainings as results, one for each workload on a system."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from emulator.analysis.flags import small_dataset
from emulator.analysis.knee import find_knee
from emulator.analysis.point import with_course
from emulator.analysis.throughput import loop_seconds, share_of_time
from emulator.config.catalog import names
from emulator.config.workload import Workload, load_workload
from emulator.errors import SpecError
from emulator.plugins.mlperf.agreement import choices, documents, of_training, stated_config, version_of
from emulator.plugins.mlperf.config import Config
from emulator.plugins.mlperf.figures import HIDDEN_SHARE, OVERSLEPT, Figures, recompute
from emulator.plugins.mlperf.logs import check_logs, epoch_seconds, read_blocks, step_rows
from emulator.plugins.mlperf.summary import PublishedTraining, read_published
from emulator.plugins.mlperf.tree import Imported, RunFolder
from emulator.plugins.mlperf.workload import convert
from emulator.record.result import Flag, HostShare, Point, RunResult, new_result
from emulator.record.steps import STEP, Steps

NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTraining(Imported):
    """A training run with its published and recomputed figures."""

    published: PublishedTraining
    workload: Workload
    figures: Figures
    rows: Steps
    """Steps of the run as point 0; empty without logs."""

    @property
    def group(self) -> object:
        spec = self.workload
        return self.run.system, spec.sample, spec.loader.batch_size, spec.accelerator

    @property
    def order(self) -> str:
        return self.run.name

    @property
    def named(self) -> tuple[str, str]:
        return self.workload.name, ""

    @property
    def line(self) -> str:
        return f"{self.published.num_accelerators} accelerators, {self.run.name}: {self.figures.verdict}"

    def result(self, runs: Sequence[Self], command: Sequence[str]) -> tuple[RunResult, Steps]:
        first = self.workload
        points = tuple(with_course(imported_point(one), one.rows, first.training.sync) for one in runs)
        rows = [imported.rows.copy() for imported in runs]
        for number, part in enumerate(rows):
            part["point"] = number
        files = max(imported.published.num_files_train for imported in runs)
        each = self.published.num_samples_per_file
        size = round(files * each * first.sample.bytes_mean)
        memory = max(sum(imported.published.memory) for imported in runs)
        # MLPerf's datasize rounds files down, so a valid dataset may be up to one file below the threshold.
        full = size + round(each * first.sample.bytes_mean)
        small = small_dataset(size, memory) if memory and small_dataset(full, memory) else None
        rated = [point for point in points if math.isfinite(point.samples_per_second)]
        several = len({point.ranks for point in rated}) > 1
        result = new_result(
            "imported",
            command=tuple(command),
            workload=asdict(first),
            dataset={
                "path": "",
                "files": files,
                "samples_per_file": each,
                "bytes": size,
                "format": first.sample.format,
                "file_bytes_sd": float(first.sample.bytes_sd) if each == 1 else None,
                "recipe": "",
                "seed": 0,
            },
            storage={"cache": "unknown", "shaped_rate": None, "shaped_latency": 0.0, "noise": ""},
            loader="DLIO's",
            label=self.run.system,
            environment={"memory_bytes": memory, "imported": [_provenance(imported) for imported in runs]},
            points=points,
            knee=find_knee(rated, first.training.au_threshold) if several else None,
            flags=(small,) if small else (),
        )
        return result, np.concatenate([np.zeros(0, STEP), *rows])


def import_run(run: RunFolder, workload: str = "", with_logs: bool = True) -> ImportedTraining:
    """Read the figures of `run`, and recompute them as far as its logs allow. Raises SpecError."""
    spec, most_steps = _workload(run, workload)
    published = read_published(run, most_steps, spec.sample.samples_per_file)
    blocks = read_blocks(run, published.num_accelerators) if with_logs else []
    check_logs(run, published, blocks)
    figures = recompute(run, published, spec, blocks, version_of(run))
    said = (*run.unread, *of_training(run, published, spec, figures, blocks))
    rows = step_rows(blocks, spec, figures.skips or 0)
    return ImportedTraining(
        run=run, published=published, workload=spec, figures=figures, rows=rows, said=said
    )


def _workload(run: RunFolder, wanted: str) -> tuple[Workload, int]:
    """Return the workload by the configuration or the catalogue, and the most steps of an epoch (0: any).

    Raises SpecError.
    """
    config = stated_config(run)
    if config is not None and not wanted:
        name = NOT_IN_NAMES.sub("-", config.choice or config.model("training")).replace("_", "-")
        return convert(config, name or "training").workload, config.whole("train.total_training_steps")
    name = wanted or next(iter(choices(run).values()), "")
    if not wanted and name not in names("workloads"):
        raise SpecError(f"{run.name} has no configuration", "name its workload with --workload NAME")
    return load_workload(name), 0


def imported_point(imported: ImportedTraining) -> Point:
    """Return the run as a point, with NaN where nothing was published."""
    published, spec = imported.published, imported.workload
    figures, rows = imported.figures, imported.rows
    logged = len(rows) > 0
    ranks, batch, epochs = published.num_accelerators, spec.loader.batch_size, len(published.au)
    ideal = ranks * spec.ideal_samples_per_second
    steps = len(rows) // ranks or published.steps_per_epoch(batch) * epochs
    samples = steps * batch * ranks
    same, every = (math.nan if x is None else x for x in (figures.x_ideal, figures.x_ideal_first))
    rate = same * ideal if math.isfinite(ideal) else published.mean_rate
    by_epochs = sum(epoch_seconds(imported.run, epoch) or math.nan for epoch in range(epochs))
    return Point(
        ranks=ranks,
        hosts=_hosts(imported, samples),
        epochs=epochs,
        steps=steps,
        samples=samples,
        bytes=round(samples * spec.sample_read.bytes_mean),
        left_out=published.samples % (batch * ranks),
        seconds=loop_seconds(rows) if logged else by_epochs,
        samples_per_second=rate,
        bytes_per_second=rate * spec.sample_read.bytes_mean,
        ideal_samples_per_second=ideal,
        x_ideal=same,
        au=same,
        au_published=figures.au_published,
        samples_per_second_published=published.mean_rate,
        x_ideal_first=every,
        au_first=every,
        wait_share=share_of_time(rows, "wait") if logged else math.nan,
        barrier_share=share_of_time(rows, "barrier") if logged else math.nan,
        flags=tuple(_flags(imported)),
    )


def _flags(imported: ImportedTraining) -> list[Flag]:
    figures = imported.figures
    flags = [documents(imported.said)] if imported.said else []
    hidden = 0.0 if figures.x_ideal_first is None else figures.au_published - figures.x_ideal_first
    if hidden > HIDDEN_SHARE:
        sentence = f"{figures.verdict}."
        flags.append(Flag(name="hidden", value=hidden, threshold=HIDDEN_SHARE, sentence=sentence))
    if figures.overslept > OVERSLEPT:
        points = figures.overslept * 100
        sentence = f"Oversleep was counted as compute: the published AU is {points:.1f} points too high."
        flags.append(Flag(name="oversleep", value=figures.overslept, threshold=OVERSLEPT, sentence=sentence))
    return flags


def _hosts(imported: ImportedTraining, samples: int) -> tuple[HostShare, ...]:
    """Return each host's share, by the ranks' host names in the logs or else by numbered hosts."""
    published, rows = imported.published, imported.rows
    accelerators = published.num_accelerators
    logs = [imported.run.logs.get(str(rank), {}) for rank in range(accelerators)]
    host_of = [str(log.get("hostname", ""))[:80] for log in logs]
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
        stated = logs[ranks[0]].get("host_cpu_count", 0)
        known = isinstance(stated, int) and 0 < stated < 10**6
        each = samples // accelerators * len(ranks)
        shares.append(
            HostShare(
                host=name,
                ranks=len(ranks),
                samples=each,
                bytes=round(each * imported.workload.sample_read.bytes_mean),
                cpu_seconds=math.nan,
                cores=stated if known else cores[min(number, len(cores) - 1)],
                wait_seconds=float(waits[ranks].sum()) if logged else math.nan,
            )
        )
    return tuple(shares)


def _provenance(imported: ImportedTraining) -> dict[str, Any]:
    """Return the published and the recomputed figures of a run. Shares of 1."""
    run, published, figures, spec = imported.run, imported.published, imported.figures, imported.workload
    config = stated_config(run) or Config(run.name, {})
    seed, saved = config.at("train.seed"), config.at("workflow.checkpoint")
    either = dict(zip(("v3.0", "v2.0"), figures.either, strict=True)) if figures.either else None
    return {
        "run": run.name,
        "layout": run.layout,
        "start": published.start,
        "verdict": figures.verdict,
        "au_published": list(published.au),
        "samples_per_second_published": list(published.metric.train_throughput_samples_per_second),
        "version": version_of(run),
        "au_recomputed": figures.x_ideal,
        "au_recomputed_by_version": either,
        "x_ideal": figures.x_ideal,
        "x_ideal_first": figures.x_ideal_first,
        "from_logs": len(imported.rows) > 0,
        "steps_left_out_of_throughput": figures.skips,
        "au_met": published.met,
        "hosts": published.num_hosts if "num_hosts" in run.summary else None,
        "memory_bytes": sum(published.memory) or None,
        "files": published.num_files_train,
        "samples_per_file": published.num_samples_per_file,
        "dataset_bytes": round(published.samples * spec.sample.bytes_mean),
        "seed": seed if type(seed) is int else None,
        "saved": saved if isinstance(saved, bool) else None,
        "same_filesystem": run.same_filesystem,
    }
