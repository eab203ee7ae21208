"""Import runs: those of one workload, or one checkpointed model, on one system become one result.

OUT/run.json, OUT/steps.parquet
OUT/mlperf-00000.json ...    the documents of each run, from which feedrate export writes them again
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from emulator.analysis.flags import small_dataset
from emulator.analysis.knee import find_knee
from emulator.analysis.point import with_course
from emulator.analysis.throughput import loop_seconds, overshoot_p99, share_of_time
from emulator.config.catalog import names
from emulator.config.reader import Source, build, read_json, to_plain
from emulator.config.workload import Workload, load_workload
from emulator.errors import SpecError, StorageError
from emulator.plugins.mlperf.agreement import choices, documents, of_training, stated_config
from emulator.plugins.mlperf.checkpoints import ImportedCheckpoints, checkpoint_result, read_checkpoints
from emulator.plugins.mlperf.config import Config
from emulator.plugins.mlperf.figures import (
    HIDDEN_SHARE,
    OVERSLEPT,
    Figures,
    PublishedTraining,
    check_logs,
    epoch_seconds,
    read_blocks,
    read_published,
    recompute,
    step_rows,
)
from emulator.plugins.mlperf.summary import trains
from emulator.plugins.mlperf.tree import RunFolder, find_runs, read_run, why_no_run
from emulator.plugins.mlperf.workload import convert
from emulator.record.out import ResultFolder, check_out, read_result, remove_result
from emulator.record.result import Flag, HostShare, Point, RunResult, new_result
from emulator.record.steps import STEP, Steps

DOCUMENTS = "mlperf-{:05}.json"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTraining:
    """A training run with its published and recomputed figures."""

    run: RunFolder
    published: PublishedTraining
    workload: Workload
    figures: Figures
    rows: Steps
    """Steps of the run as point 0; empty without logs."""
    said: tuple[str, ...]
    """What was left out of its documents, is missing, or does not agree."""

    @property
    def group(self) -> object:
        """Equal for runs of one result."""
        spec = self.workload
        return self.run.system, spec.sample, spec.loader.batch_size, spec.accelerator

    @property
    def named(self) -> tuple[str, str]:
        """The name of the workload; nothing tells it from others of this name."""
        return self.workload.name, ""

    @property
    def line(self) -> str:
        """The run in one line for people."""
        return f"{self.published.accelerators} accelerators, {self.run.name}: {self.figures.verdict}"


Imported = ImportedTraining | ImportedCheckpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """The runs of a folder."""

    groups: Mapping[str, Sequence[Imported]]
    """Runs of one result by its name, which begins with the system where there are several."""
    skipped: Mapping[str, str]
    """Name of a folder that was not imported -> why."""

    @property
    def runs(self) -> list[Imported]:
        """All imported runs."""
        return [run for runs in self.groups.values() for run in runs]

    @property
    def notes(self) -> dict[str, tuple[str, ...]]:
        """Name of an imported run -> what was left out of it, is missing, or does not agree."""
        return {imported.run.name: imported.said for imported in self.runs if imported.said}


def import_folder(folder: Path, workload: str = "", strict: bool = False) -> Imports:
    """Read the runs at or below `folder`. Raises SpecError when there are none, StorageError.

    `workload` names the workload where a run has no configuration beside it. With `strict`, the first run
    that cannot be read whole raises SpecError.
    """
    groups: dict[object, list[Imported]] = {}
    skipped: dict[str, str] = {}
    for path in find_runs(folder):
        name = path.relative_to(folder).as_posix() if path != folder else folder.resolve().name
        try:
            imported = _import_one(path, name, workload, strict)
        except SpecError as error:
            if strict:
                raise
            skipped[name] = (
                str(error).removeprefix(f"{path}/").removeprefix(f"{name}/").removeprefix(f"{name}: ")
            )
            continue
        groups.setdefault(imported.group, []).append(imported)
    for runs in groups.values():
        runs.sort(key=lambda one: one.start if isinstance(one, ImportedCheckpoints) else datetime.min)
    if not groups:
        name, why = next(iter(skipped.items()))
        more = f", and {len(skipped) - 1} more folders like it" if len(skipped) > 1 else ""
        raise SpecError(f"{folder}: no run could be imported ({name}: {why}{more})")
    return Imports(groups=_by_name(list(groups.values())), skipped=skipped)


def _import_one(path: Path, name: str, workload: str, strict: bool) -> Imported:
    """Read the run in `path`. Raises SpecError, StorageError."""
    if why := why_no_run(path, name):
        raise SpecError(f"{name}: {why}")
    run = read_run(path, name, strict)
    if not trains(run):
        return read_checkpoints(run)
    try:
        return import_run(run, workload)
    except SpecError as error:
        if strict or not run.logs:
            raise
        of_logs = f"its logs: {error.what.removeprefix(f'{name}: ')}"
    # Perhaps its logs alone are of no use.
    return import_run(replace(run, unread=(*run.unread, of_logs)), workload, with_logs=False)


def _by_name(groups: Sequence[list[Imported]]) -> dict[str, list[Imported]]:
    """Name each group by a part of a path, which begins with the system where there are several.

    Two of one name get what tells them apart; a number, where nothing does.
    """
    several = len({runs[0].run.system for runs in groups}) > 1
    words = [(runs[0].run.system * several, *runs[0].named) for runs in groups]
    count = Counter((system, name) for system, name, _ in words)
    named: dict[str, list[Imported]] = {}
    for runs, (system, called, apart) in zip(groups, words, strict=True):
        parts = (system, called, apart * (count[system, called] > 1))
        base = name = _NOT_IN_NAMES.sub("-", " ".join(filter(None, parts))) or "training"
        number = 1
        while name in named:
            number += 1
            name = f"{base}-{number}"
        named[name] = runs
    return named


def import_run(run: RunFolder, workload: str = "", with_logs: bool = True) -> ImportedTraining:
    """Read the figures of `run`, and recompute them as far as its logs allow. Raises SpecError."""
    spec, most_steps = _workload(run, workload)
    published = read_published(run, most_steps, spec.sample.samples_per_file)
    blocks = read_blocks(run, published.accelerators) if with_logs else []
    check_logs(run, published, blocks)
    figures = recompute(run, published, spec, blocks)
    said = (*run.unread, *of_training(run, published, spec, figures, blocks))
    step, batch = spec.accelerator.step_seconds, spec.loader.batch_size
    rows = step_rows(blocks, step, batch, spec.sample_read.bytes_mean, figures.skips or 0)
    return ImportedTraining(
        run=run, published=published, workload=spec, figures=figures, rows=rows, said=said
    )


def _workload(run: RunFolder, wanted: str) -> tuple[Workload, int]:
    """Return the workload by the configuration or the catalogue, and the most steps of an epoch (0: any).

    Raises SpecError.
    """
    config = stated_config(run)
    if config is not None and not wanted:
        name = _NOT_IN_NAMES.sub("-", config.choice or config.model("training")).replace("_", "-")
        return convert(config, name or "training").workload, config.whole("train.total_training_steps")
    name = wanted or next(iter(choices(run).values()), "")
    if not wanted and name not in names("workloads"):
        raise SpecError(f"{run.name} has no configuration beside it", "say what it ran with --workload NAME")
    return load_workload(name), 0


def imported_point(imported: ImportedTraining) -> Point:
    """Return the run as a point, with NaN where nothing was published."""
    published, spec = imported.published, imported.workload
    figures, rows = imported.figures, imported.rows
    logged = len(rows) > 0
    ranks, batch, epochs = published.accelerators, spec.loader.batch_size, len(published.au)
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
        left_out=published.files * published.samples_per_file % (batch * ranks),
        seconds=loop_seconds(rows) if logged else by_epochs,
        samples_per_second=rate,
        bytes_per_second=rate * spec.sample_read.bytes_mean,
        ideal_samples_per_second=ideal,
        x_ideal=same,
        au=same,
        au_here=same,  # DLIO logs the processes' time alone
        au_published=figures.au_published,
        samples_per_second_published=published.mean_rate,
        x_ideal_first=every,
        au_first=every,
        au_here_first=every,
        wait_share=share_of_time(rows, "wait") if logged else math.nan,
        barrier_share=share_of_time(rows, "barrier") if logged else math.nan,
        overshoot_p99=overshoot_p99(rows, spec.accelerator.step_seconds) if logged else math.nan,
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
        sentence = f"Oversleep was counted as compute: AU was published {points:.1f} points too high."
        flags.append(Flag(name="oversleep", value=figures.overslept, threshold=OVERSLEPT, sentence=sentence))
    return flags


def _hosts(imported: ImportedTraining, samples: int) -> tuple[HostShare, ...]:
    """Return each host's share. Logs name the host of every rank; without them hosts are numbered."""
    published, rows, machines = imported.published, imported.rows, imported.published.machines
    accelerators = published.accelerators
    logs = [imported.run.logs.get(str(rank), {}) for rank in range(accelerators)]
    host_of = [str(log.get("hostname", ""))[:80] for log in logs]
    logged = len(rows) > 0 and all(host_of)
    if not logged:
        hosts = min(machines.num_hosts, accelerators)
        numbered = [machines.hostname or "host 1", *(f"host {number}" for number in range(2, hosts + 1))]
        host_of = [numbered[rank % hosts] for rank in range(accelerators)]
    waits = np.bincount(rows["rank"], weights=rows["wait"], minlength=accelerators)
    cores = machines.cores or (0,)
    shares = []
    for number, name in enumerate(dict.fromkeys(host_of)):
        ranks = [rank for rank, host in enumerate(host_of) if host == name]
        stated = logs[ranks[0]].get("host_cpu_count", 0) if all(host_of) and logs[ranks[0]] else 0
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


def training_result(runs: Sequence[ImportedTraining], command: Sequence[str]) -> tuple[RunResult, Steps]:
    """Join runs of one workload into a result, and their steps."""
    first = runs[0].workload
    points = tuple(with_course(imported_point(one), one.rows, first.training.sync) for one in runs)
    rows = [imported.rows.copy() for imported in runs]
    for number, part in enumerate(rows):
        part["point"] = number
    files = max(imported.published.files for imported in runs)
    each = runs[0].published.samples_per_file
    size = round(files * each * first.sample.bytes_mean)
    memory = max(sum(imported.published.machines.memory) for imported in runs)
    small = small_dataset(size, memory) if memory else None
    several = len({point.ranks for point in points}) > 1
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
        label=runs[0].run.system,
        environment={"memory_bytes": memory, "imported": [_provenance(imported) for imported in runs]},
        points=points,
        knee=find_knee(points, first.training.au_threshold) if several else None,
        flags=(small,) if small else (),
    )
    return result, np.concatenate([np.zeros(0, STEP), *rows])


def _provenance(imported: ImportedTraining) -> dict[str, Any]:
    """Return what a run published beside what was recomputed. Shares of 1."""
    run, published, figures, spec = imported.run, imported.published, imported.figures, imported.workload
    config = stated_config(run) or Config(run.name, {})
    seed, saved = config.at("train.seed"), config.at("workflow.checkpoint")
    either = dict(zip(("v3.0", "v2.0"), figures.either, strict=True)) if figures.either else None
    return {
        "run": run.name,
        "layout": run.layout,
        "start": published.machines.start,
        "verdict": figures.verdict,
        "au_published": list(published.au),
        "samples_per_second_published": list(published.samples_per_second),
        "version": run.version,
        "au_recomputed": figures.x_ideal,
        "au_recomputed_by_version": either,
        "x_ideal": figures.x_ideal,
        "x_ideal_first": figures.x_ideal_first,
        "from_logs": len(imported.rows) > 0,
        "steps_left_out_of_throughput": figures.skips,
        "au_met": published.met,
        "hosts": published.machines.num_hosts if "num_hosts" in run.summary else None,
        "memory_bytes": sum(published.machines.memory) or None,
        "files": published.files,
        "samples_per_file": published.samples_per_file,
        "dataset_bytes": round(published.files * published.samples_per_file * spec.sample.bytes_mean),
        "seed": seed if type(seed) is int else None,
        "saved": saved if isinstance(saved, bool) else None,
    }


def results_of(imports: Imports, command: Sequence[str]) -> dict[str, tuple[RunResult, Steps]]:
    """Return the result and the steps of each group by its name."""
    results = {}
    for name, runs in imports.groups.items():
        checkpoints = [run for run in runs if isinstance(run, ImportedCheckpoints)]
        if checkpoints:
            results[name] = checkpoint_result(name, checkpoints, command), np.zeros(0, STEP)
        else:
            trainings = [run for run in runs if isinstance(run, ImportedTraining)]
            results[name] = training_result(trainings, command)
        for number, facts in enumerate(results[name][0].environment["imported"]):
            facts["documents"] = DOCUMENTS.format(number)
    return results


def write_imports(
    imports: Imports, out: Path, command: Sequence[str], force: bool, label: str = ""
) -> dict[str, Path]:
    """Write every group's result, below `out` where there are several; return the folder of each by its name.

    Raises SpecError, StorageError.
    """
    results = results_of(imports, command)
    folders = {name: out / name if len(results) > 1 else out for name in results}
    renamed = _renamed(out, [*folders.values()], [result for result, _ in results.values()]) if force else []
    for path in (*folders.values(), *renamed):
        check_out(path, force)
    for path in renamed:
        remove_result(path)
    for name, (result, steps) in results.items():
        result = replace(result, label=label or result.label)
        with ResultFolder.create(folders[name], result, force=force) as folder:
            for number, imported in enumerate(imports.groups[name]):
                folder.keep(DOCUMENTS.format(number), json.dumps(to_plain(imported.run)))
            folder.complete(steps if len(steps) else None)
    return folders


def _renamed(out: Path, taken: Sequence[Path], results: Sequence[RunResult]) -> list[Path]:
    """Return earlier results of the same runs at or below `out`, which have other names now."""

    def runs_of(result: RunResult) -> set[tuple[str, str]]:
        imported = result.environment.get("imported")
        return {(one["run"], one["start"]) for one in imported} if isinstance(imported, list) else set()

    runs = {run for result in results for run in runs_of(result)}
    found = []
    for path in [out, *out.iterdir()] if out.is_dir() else ():
        if path not in taken and path.is_dir() and not path.is_symlink():
            with suppress(SpecError, StorageError, KeyError, TypeError):
                before = runs_of(read_result(path))
                found += [path] * (bool(before) and before <= runs)
    return found


def read_documents(out: Path, result: RunResult) -> list[RunFolder]:
    """Read the documents that the result in OUT was imported from. Raises SpecError, StorageError."""
    files = [out / DOCUMENTS.format(number) for number in range(len(result.environment["imported"]))]
    return [build(RunFolder, read_json(file), Source(str(file))) for file in files]
