"""Import runs as results of feedrate: runs of one workload become the points of one result.

OUT/run.json, OUT/steps.parquet
OUT/mlperf/00000/ ...      the documents of point 0, as they were: feedrate export writes them again

Runs of checkpoints become results of the kind checkpoint: those of one model and system in one result, since
its writes and its reads may be two runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from emulator.analysis.flags import small_dataset
from emulator.analysis.knee import find_knee
from emulator.analysis.point import with_course
from emulator.analysis.throughput import loop_seconds, overshoot_p99, share_of_time
from emulator.config.catalog import names
from emulator.config.workload import Workload, load_workload
from emulator.errors import SpecError, StorageError, storage_errors
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
from emulator.plugins.mlperf.tree import RunFolder, find_runs, own_runs, read_run, why_no_run, write_run
from emulator.plugins.mlperf.workload import convert
from emulator.record.out import ResultFolder, check_out, read_result, remove_result
from emulator.record.result import Flag, HostShare, Point, RunResult, new_result
from emulator.record.steps import STEP, Steps

ORIGINALS = "mlperf"
Run = TypeVar("Run", "Imported", ImportedCheckpoints)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A training run with its published and recomputed figures."""

    run: RunFolder
    published: PublishedTraining
    workload: Workload
    figures: Figures
    rows: Steps
    """Steps of the run as point 0; empty without logs."""
    said: tuple[str, ...]
    """What was left out of its documents, is missing, or does not agree."""
    apart: str = ""
    """What tells it from another group of the same name."""

    @property
    def called(self) -> str:
        return self.workload.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """The runs of a folder."""

    training: Mapping[str, Sequence[Imported]]
    """Runs of one workload and system, by the workload's name, after the system's where there are several."""
    checkpoints: Mapping[str, Sequence[ImportedCheckpoints]]
    """Checkpoint runs by the name of the model."""
    skipped: Mapping[str, str]
    """Name of a folder that was not imported -> why."""
    notes: Mapping[str, Sequence[str]]
    """Name of an imported run -> what was left out of it, is missing, or does not agree."""

    @property
    def count(self) -> int:
        """Number of imported runs."""
        return sum(map(len, self.training.values())) + sum(map(len, self.checkpoints.values()))


def import_folder(folder: Path, workload: str = "", strict: bool = False) -> Imports:
    """Read the runs at or below `folder`. Raises SpecError when there are none, StorageError.

    `workload` names the workload where a run has no configuration beside it. With `strict`, the first run
    that cannot be read whole raises SpecError.
    """
    training: dict[str, list[Imported]] = {}
    checkpoints: dict[str, list[ImportedCheckpoints]] = {}
    skipped: dict[str, str] = {}
    notes: dict[str, Sequence[str]] = {}
    for path in find_runs(folder):
        name = path.relative_to(folder).as_posix() if path != folder else folder.resolve().name
        try:
            if why := why_no_run(path, name):
                if strict:
                    raise SpecError(f"{name}: {why}")
                skipped[name] = why
                continue
            run = read_run(path, name, strict)
            if not trains(run):
                written = read_checkpoints(run)
                key = repr((name.rpartition("/")[0], written.workload["shape"], written.ranks))
                checkpoints.setdefault(key, []).append(written)
                notes[name] = written.said
                continue
            try:
                imported = import_run(run, workload)
            except SpecError as error:  # perhaps its logs alone are of no use
                if strict or not run.logs:
                    raise
                of_logs = f"its logs: {error.what.removeprefix(f'{name}: ')}"
                unread = (*run.unread, of_logs)
                imported = import_run(replace(run, unread=unread), workload, with_logs=False)
            notes[name] = imported.said
        except SpecError as error:
            if strict:
                raise
            skipped[name] = str(error).removeprefix(f"{path}/").removeprefix(f"{name}/")
            continue
        spec = imported.workload
        key = repr((run.system, spec.sample, spec.loader.batch_size, spec.accelerator))
        training.setdefault(key, []).append(imported)
    if not (training or checkpoints):
        name, why = next(iter(skipped.items()))
        more = f", and {len(skipped) - 1} more folders like it" if len(skipped) > 1 else ""
        raise SpecError(f"{folder}: no run could be imported ({name}: {why}{more})")
    systems = {runs[0].run.system for group in (training, checkpoints) for runs in group.values()}
    several = len(systems) > 1  # whose knees are their own
    return Imports(
        training=_named(training, several),
        checkpoints=_named(checkpoints, several),
        skipped=skipped,
        notes={name: reasons for name, reasons in notes.items() if reasons},
    )


def _named(groups: Mapping[str, list[Run]], several: bool) -> dict[str, list[Run]]:
    """Name each group by a part of a path, by its submitter's where there are several.

    Two of one name get what tells them apart; a number, where nothing does.
    """
    named: dict[str, list[Run]] = {}
    labels = [(runs[0].run.system if several else "", runs[0].called) for runs in groups.values()]
    for runs, (system, word) in zip(groups.values(), labels, strict=True):
        more = runs[0].apart if labels.count((system, word)) > 1 else ""
        text = " ".join(part for part in (system, word, more) if part)
        base = name = _NOT_IN_NAMES.sub("-", text) or "training"
        number = 1
        while name in named:
            number += 1
            name = f"{base}-{number}"
        named[name] = runs
    return named


def import_run(run: RunFolder, workload: str = "", with_logs: bool = True) -> Imported:
    """Read the figures of `run`, and recompute them as far as its logs allow. Raises SpecError."""
    spec, most_steps = _workload(run, workload)
    published = read_published(run, most_steps, spec.sample.samples_per_file)
    blocks = read_blocks(run, published.accelerators) if with_logs else []
    check_logs(run, published, blocks)
    figures = recompute(run, published, spec, blocks)
    said = (*run.unread, *of_training(run, published, spec, figures, blocks))
    step, batch = spec.accelerator.step_seconds, spec.loader.batch_size
    rows = step_rows(blocks, step, batch, spec.sample_read.bytes_mean, figures.skips or 0)
    return Imported(run=run, published=published, workload=spec, figures=figures, rows=rows, said=said)


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


def imported_point(imported: Imported) -> Point:
    """Return the run as a point, with NaN where nothing was published."""
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
    flags = [documents(imported.said)] if imported.said else []
    if figures.x_ideal_first is not None and figures.au_published - figures.x_ideal_first > HIDDEN_SHARE:
        hidden = figures.au_published - figures.x_ideal_first
        flags.append(
            Flag(name="hidden", value=hidden, threshold=HIDDEN_SHARE, sentence=f"{figures.verdict}.")
        )
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
        bytes=round(samples * spec.sample_read.bytes_mean),
        left_out=published.files * published.samples_per_file % (batch * ranks),
        seconds=loop_seconds(rows)
        if logged
        else sum(epoch_seconds(imported.run, epoch) or math.nan for epoch in range(epochs)),
        samples_per_second=rate,
        bytes_per_second=rate * spec.sample_read.bytes_mean,
        ideal_samples_per_second=ideal,
        x_ideal=same,
        au=same,
        au_here=same,  # DLIO's processes' own time: what the storage would have fed, they do not tell
        au_published=figures.au_published,
        samples_per_second_published=sum(published.samples_per_second) / epochs,
        x_ideal_first=every,
        au_first=every,
        au_here_first=every,
        wait_share=share_of_time(rows, "wait") if logged else math.nan,
        barrier_share=share_of_time(rows, "barrier") if logged else math.nan,
        overshoot_p99=overshoot_p99(rows, spec.accelerator.step_seconds) if logged else math.nan,
        flags=tuple(flags),
    )


def _hosts(imported: Imported, samples: int) -> tuple[HostShare, ...]:
    """Return each host's share: hosts have the names in the logs, or numbers without logs."""
    published, logs, rows = imported.published, imported.run.logs, imported.rows
    machines = published.machines
    named = [str(logs[rank].get("hostname", ""))[:80] for rank in sorted(logs)]
    if len(rows) and all(named):
        ranks = {name: named.count(name) for name in dict.fromkeys(named)}
    else:
        hosts = min(machines.num_hosts, published.accelerators)
        numbered = [machines.hostname or "host 1", *(f"host {number}" for number in range(2, hosts + 1))]
        ranks = {name: len(range(n, published.accelerators, hosts)) for n, name in enumerate(numbered)}
    each = samples // published.accelerators
    cores = machines.cores or (0,)
    waits = dict.fromkeys(ranks, math.nan)  # without logs nothing tells
    if len(rows) and all(named):
        seconds = np.bincount(rows["rank"], weights=rows["wait"], minlength=len(named))
        waits = {
            name: float(sum(s for s, own in zip(seconds, named, strict=True) if own == name))
            for name in ranks
        }
    return tuple(
        HostShare(
            host=name,
            ranks=count,
            samples=each * count,
            bytes=round(each * count * imported.workload.sample_read.bytes_mean),
            cpu_seconds=math.nan,
            cores=_logged_cores(logs, named, name) or cores[min(number, len(cores) - 1)],
            wait_seconds=waits[name],
        )
        for number, (name, count) in enumerate(ranks.items())
    )


def _logged_cores(logs: Mapping[int, Mapping[str, Any]], named: Sequence[str], host: str) -> int:
    """Return the cores of a host by the log of its first rank; 0: not recorded."""
    if host not in named:
        return 0
    cores = logs[sorted(logs)[named.index(host)]].get("host_cpu_count", 0)
    return cores if isinstance(cores, int) and 0 < cores < 10**6 else 0


def result_of(runs: Sequence[Imported], command: Sequence[str]) -> tuple[RunResult, Steps]:
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


def _provenance(imported: Imported) -> dict[str, Any]:
    """Return what a run published beside what was recomputed. Shares of 1."""
    run, published, figures, spec = imported.run, imported.published, imported.figures, imported.workload
    config = stated_config(run) or Config(run.name, {})
    seed, saved = config.at("train.seed"), config.at("workflow.checkpoint")
    return {
        "run": run.name,
        "layout": run.layout,
        "start": published.machines.start,
        "verdict": figures.verdict,
        "au_published": list(published.au),
        "samples_per_second_published": list(published.samples_per_second),
        "version": run.version,
        "au_recomputed": figures.x_ideal,
        "au_recomputed_by_version": dict(zip(("v3.0", "v2.0"), figures.either, strict=True))
        if figures.either
        else None,
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
        "seed": seed if isinstance(seed, int) and not isinstance(seed, bool) else None,
        "saved": saved if isinstance(saved, bool) else None,
    }


def results_of(
    imports: Imports, command: Sequence[str]
) -> tuple[dict[str, tuple[RunResult, Steps]], dict[str, list[RunFolder]]]:
    """Return the result and the steps of each group by its name, and the documents it was made from."""
    results = {name: result_of(runs, command) for name, runs in imports.training.items()}
    sources = {name: [imported.run for imported in runs] for name, runs in imports.training.items()}
    for name, found in imports.checkpoints.items():
        name = f"{name}-checkpoints" if name in results else name
        results[name] = (checkpoint_result(name, found, command), np.zeros(0, STEP))
        sources[name] = [written.run for written in found]
    return results, sources


def write_imports(
    imports: Imports, out: Path, command: Sequence[str], force: bool, label: str = ""
) -> dict[str, Path]:
    """Write every group's result, below `out` where there are several; return the folder of each by its name.

    Raises SpecError, StorageError.
    """
    results, sources = results_of(imports, command)
    folders = {name: out / name if len(results) > 1 else out for name in results}
    earlier: dict[str, list[Path]] = {}
    for name, path in folders.items():
        check_out(path, force)
        earlier[name] = own_runs(path / ORIGINALS) if force else []
        if earlier[name] and read_result(path).kind not in ("imported", "checkpoint"):
            raise SpecError(f"{path / ORIGINALS} was not written by feedrate import", "choose another --out")
    renamed = _renamed(out, [*folders.values()], [result for result, _ in results.values()]) if force else []
    for path in renamed:
        earlier[str(path)] = [*own_runs(path / ORIGINALS), path / ORIGINALS]
    for path in renamed:
        with storage_errors("cannot remove an earlier import"):
            _remove(earlier[str(path)])
            remove_result(path)
    for name, (result, steps) in results.items():
        originals = folders[name] / ORIGINALS
        folder = ResultFolder.create(folders[name], replace(result, label=label or result.label), force=force)
        with storage_errors("cannot remove an earlier import"):
            _remove(earlier[name])
        for number, run in enumerate(sources[name]):
            write_run(run, originals / f"{number:05d}")
        folder.complete(steps if len(steps) else None)
    return folders


def _remove(paths: Sequence[Path]) -> None:
    """Remove files and folders, the deepest first. Raises OSError."""
    for path in paths:
        path.rmdir() if path.is_dir() else path.unlink()


def _renamed(out: Path, taken: Sequence[Path], results: Sequence[RunResult]) -> list[Path]:
    """Return earlier results of the same runs at or below `out`, which have other names now."""

    def runs_of(result: RunResult) -> set[tuple[str, str]]:
        imported = result.environment.get("imported")
        return {(one["run"], one["start"]) for one in imported} if isinstance(imported, list) else set()

    runs = {run for result in results for run in runs_of(result)}
    found = []
    for path in [out, *out.iterdir()] if out.is_dir() else ():
        if path not in taken and (path / ORIGINALS).is_dir() and not path.is_symlink():
            with suppress(SpecError, StorageError, KeyError, TypeError):
                before = runs_of(read_result(path))
                found += [path] * (bool(before) and before <= runs)
    return found


def read_originals(out: Path, run_names: Sequence[str]) -> list[RunFolder]:
    """Read the documents that the result in OUT was imported from. Raises SpecError, StorageError."""
    return [read_run(out / ORIGINALS / f"{number:05d}", name) for number, name in enumerate(run_names)]
