"""Imported runs as results of feedrate: runs of one workload are the points of one result.

OUT/run.json, OUT/steps.parquet
OUT/mlperf/00000/ ...      the documents of point 0, as they were: feedrate export writes them again
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emulator.analysis.flags import small_dataset
from emulator.analysis.knee import find_knee
from emulator.analysis.throughput import loop_seconds, overshoot_p99, share_of_time
from emulator.config.catalog import names
from emulator.config.workload import Workload, load_workload
from emulator.errors import SpecError, storage_errors
from emulator.record.folder import ResultFolder, check_out
from emulator.record.result import Flag, HostShare, Point, RunResult, new_result
from emulator.record.steps import STEP, Steps
from emulator.satellites.mlperf.config import Config, parse_overrides, workload_table
from emulator.satellites.mlperf.figures import (
    HIDDEN,
    OVERSLEPT,
    Figures,
    Published,
    epoch_seconds,
    read_blocks,
    read_published,
    recompute,
    step_rows,
    trains,
)
from emulator.satellites.mlperf.folder import RunFolder, find_runs, read_run, write_run
from emulator.satellites.mlperf.workload import convert

ORIGINALS = "mlperf"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A run, what it published, and what follows from that."""

    run: RunFolder
    published: Published
    workload: Workload
    figures: Figures
    rows: Steps
    """Of point 0; empty without logs."""


def import_folder(folder: Path, workload: str = "") -> dict[str, list[Imported]]:
    """The training runs at or below `folder`, by the name of their workload. Raises SpecError, StorageError.

    `workload` names the workload where a run has no configuration beside it.
    """
    groups: dict[str, list[Imported]] = {}
    for path in find_runs(folder):
        name = path.relative_to(folder).as_posix() if path != folder else folder.resolve().name
        run = read_run(path, name)
        if trains(run):
            imported = import_run(run, workload)
            spec = imported.workload
            key = repr((spec.sample, spec.loader.batch_size, spec.accelerator))
            groups.setdefault(key, []).append(imported)
    if not groups:
        raise SpecError(f"{folder} holds runs of checkpoints alone", "only training runs are imported")
    named: dict[str, list[Imported]] = {}
    for runs in groups.values():
        base = name = _NOT_IN_NAMES.sub("-", runs[0].workload.name) or "training"
        number = 1
        while name in named:
            number += 1
            name = f"{base}-{number}"
        named[name] = runs
    return named


def import_run(run: RunFolder, workload: str = "") -> Imported:
    """What `run` published, recomputed where its logs allow it. Raises SpecError."""
    published = read_published(run)
    spec = _workload(run, workload)
    blocks = read_blocks(run, published.accelerators)
    figures = recompute(run, published, spec, blocks)
    step, batch = spec.accelerator.step_seconds, spec.loader.batch_size
    rows = step_rows(blocks, step, batch, spec.sample.bytes_mean, figures.skips)
    return Imported(run=run, published=published, workload=spec, figures=figures, rows=rows)


def _workload(run: RunFolder, wanted: str) -> Workload:
    """From the configuration beside the run, else the catalogue's that is named. Raises SpecError."""
    overrides = run.configs.get("overrides.yaml")
    texts = overrides if isinstance(overrides, list) else []
    choices = [text for text in texts if isinstance(text, str) and "workload=" in text[:12]]
    choice = parse_overrides(choices).workload
    table = run.configs.get("config.yaml")
    if table is not None and not wanted:
        where = f"{run.name}/config.yaml"
        config = Config(where, workload_table(table, where), choice)
        name = _NOT_IN_NAMES.sub("-", choice or config.model("training")).replace("_", "-")
        return convert(config, name or "training").workload
    name = wanted or choice.replace("_", "-")
    if not wanted and name not in names("workloads"):
        raise SpecError(f"{run.name} has no configuration beside it", "say what it ran with --workload NAME")
    return load_workload(name)


def point_of(imported: Imported) -> Point:
    """The run as a point. What was not published is NaN."""
    published, spec = imported.published, imported.workload
    figures, rows = imported.figures, imported.rows
    logged = len(rows) > 0
    ranks, batch, epochs = published.accelerators, spec.loader.batch_size, len(published.au)
    ideal = ranks * spec.ideal_samples_per_second
    steps = len(rows) // ranks or published.steps_per_epoch(batch) * epochs
    samples = steps * batch * ranks
    same = figures.x_ideal if figures.x_ideal is not None else math.nan
    every = figures.x_ideal_first if figures.x_ideal_first is not None else math.nan
    rate = same * ideal if math.isfinite(ideal) else sum(published.samples_per_second) / epochs
    flags = []
    if figures.x_ideal_first is not None and figures.au_published - figures.x_ideal_first > HIDDEN:
        hidden = figures.au_published - figures.x_ideal_first
        flags.append(Flag(name="hidden", value=hidden, threshold=HIDDEN, sentence=f"{figures.verdict}."))
    if figures.overslept > OVERSLEPT:
        points = figures.overslept * 100
        sentence = f"Oversleep was counted as compute: AU was published {points:.1f} points too high."
        flags.append(Flag(name="oversleep", value=figures.overslept, threshold=OVERSLEPT, sentence=sentence))
    return Point(
        ranks=ranks,
        hosts=_hosts(imported, samples),
        epochs=epochs,
        steps=steps,
        samples=samples,
        bytes=round(samples * spec.sample.bytes_mean),
        left_out=published.files * published.samples_per_file % (batch * ranks),
        seconds=loop_seconds(rows)
        if logged
        else sum(epoch_seconds(imported.run, epoch) or math.nan for epoch in range(epochs)),
        samples_per_second=rate,
        bytes_per_second=rate * spec.sample.bytes_mean,
        ideal_samples_per_second=ideal,
        x_ideal=same,
        au=figures.x_ideal if figures.x_ideal is not None else figures.au_published,
        x_ideal_first=every,
        au_first=every,
        wait_share=share_of_time(rows, "wait") if logged else math.nan,
        barrier_share=share_of_time(rows, "barrier") if logged else math.nan,
        overshoot_p99=overshoot_p99(rows, spec.accelerator.step_seconds) if logged else math.nan,
        flags=tuple(flags),
    )


def _hosts(imported: Imported, samples: int) -> tuple[HostShare, ...]:
    """By the host names in the logs; without logs the first by its name, the others by their number."""
    published, logs = imported.published, imported.run.logs
    named = [str(logs[rank].get("hostname", ""))[:80] for rank in sorted(logs)]
    if len(imported.rows) and all(named):
        ranks = {name: named.count(name) for name in dict.fromkeys(named)}
    else:
        hosts = min(published.hosts, published.accelerators)
        numbered = [published.hostname or "host 1", *(f"host {number}" for number in range(2, hosts + 1))]
        ranks = {name: len(range(n, published.accelerators, hosts)) for n, name in enumerate(numbered)}
    each = samples // published.accelerators
    cores = published.cores or (0,)
    return tuple(
        HostShare(
            host=name,
            ranks=count,
            samples=each * count,
            bytes=round(each * count * imported.workload.sample.bytes_mean),
            cpu_seconds=math.nan,
            cores=cores[min(number, len(cores) - 1)],
        )
        for number, (name, count) in enumerate(ranks.items())
    )


def result_of(name: str, runs: Sequence[Imported], command: Sequence[str]) -> tuple[RunResult, Steps]:
    """The result of runs of the workload `name`, and their steps."""
    first = runs[0].workload
    points = tuple(map(point_of, runs))
    rows = [imported.rows.copy() for imported in runs]
    for number, part in enumerate(rows):
        part["point"] = number
    files = max(imported.published.files for imported in runs)
    size = round(files * runs[0].published.samples_per_file * first.sample.bytes_mean)
    memory = max(sum(imported.published.host_memory) for imported in runs)
    small = small_dataset(size, memory) if memory else None
    several = len({point.ranks for point in points}) > 1
    result = new_result(
        "imported",
        command=tuple(command),
        workload={**asdict(first), "name": name},
        dataset={
            "path": "",
            "files": files,
            "bytes": size,
            "format": first.sample.format,
            "recipe": "",
            "seed": 0,
        },
        storage={"cache": "unknown", "shaped_rate": None, "shaped_latency": 0.0, "noise": ""},
        loader="DLIO's",
        environment={"memory_bytes": memory, "imported": [_provenance(imported) for imported in runs]},
        points=points,
        knee=find_knee(points, first.training.au_threshold) if several else None,
        flags=(small,) if small else (),
    )
    return result, np.concatenate([np.zeros(0, STEP), *rows])


def _provenance(imported: Imported) -> dict[str, Any]:
    """What a run published, beside what was recomputed; shares are of 1."""
    run, published, figures = imported.run, imported.published, imported.figures
    table = run.configs.get("config.yaml")
    train = workload_table(table, run.name).get("train") if table is not None else None
    seed = train.get("seed") if isinstance(train, Mapping) else None
    return {
        "run": run.name,
        "layout": run.layout,
        "start": published.start,
        "verdict": figures.verdict,
        "au_published": list(published.au),
        "samples_per_second_published": list(published.samples_per_second),
        "au_recomputed": figures.x_ideal,
        "x_ideal": figures.x_ideal,
        "x_ideal_first": figures.x_ideal_first,
        "from_logs": len(imported.rows) > 0,
        "steps_left_out_of_throughput": figures.skips,
        "au_met": published.met,
        "seed": seed if isinstance(seed, int) and not isinstance(seed, bool) else None,
    }


def write_imported(
    groups: Mapping[str, Sequence[Imported]], folders: Mapping[str, Path], command: Sequence[str], force: bool
) -> None:
    """Write every group's result to the folder of its name. Raises SpecError, StorageError."""
    results = {name: result_of(name, runs, command) for name, runs in groups.items()}
    for name in groups:
        check_out(folders[name], force)
    for name, runs in groups.items():
        result, steps = results[name]
        originals = folders[name] / ORIGINALS
        folder = ResultFolder.create(folders[name], result, force=force)
        if originals.is_dir() and not originals.is_symlink():
            with storage_errors("cannot remove an earlier import"):
                shutil.rmtree(originals)
        for number, imported in enumerate(runs):
            write_run(imported.run, originals / f"{number:05d}")
        folder.complete(steps if len(steps) else None)


def read_originals(out: Path, run_names: Sequence[str]) -> list[RunFolder]:
    """The documents that the result in OUT came from, under these names. Raises SpecError, StorageError."""
    return [read_run(out / ORIGINALS / f"{number:05d}", name) for number, name in enumerate(run_names)]
