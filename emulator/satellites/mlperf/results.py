"""Run folders as RunResults: runs of one workload are the points of one result."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emulator import __version__
from emulator.analysis.flags import small_dataset
from emulator.analysis.knee import find_knee
from emulator.analysis.throughput import loop_seconds, overshoot_p99, share_of_time
from emulator.config.catalog import names
from emulator.config.workload import Workload, load_workload
from emulator.errors import SpecError, storage_error
from emulator.record.folder import check_out, prepare_out, write_result
from emulator.record.machine import utc_now
from emulator.record.result import Flag, HostShare, Point, RunResult
from emulator.record.steps import STEP, Steps, write_steps
from emulator.satellites.mlperf.config import Config, parse_overrides, workload_table
from emulator.satellites.mlperf.figures import HIDDEN, OVERSLEPT, Figures, figures, steps_per_epoch
from emulator.satellites.mlperf.folder import (
    Published,
    RunFolder,
    blocks_of,
    epoch_seconds,
    find_runs,
    published,
    read_run,
    step_rows,
    trains,
    write_run,
)
from emulator.satellites.mlperf.workload import convert

_NAME = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """One run, understood."""

    run: RunFolder
    said: Published
    workload: Workload
    figures: Figures
    rows: Steps
    """Of point 0; empty without logs."""


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of the same workload: one result."""

    name: str
    runs: tuple[Imported, ...]


def import_folder(folder: Path, workload: str = "") -> list[Group]:
    """The training runs at or below `folder`, by workload. Raises SpecError, StorageError.

    `workload` names the workload where a run has no configuration beside it.
    """
    grouped: dict[str, list[Imported]] = {}
    keys: dict[str, Any] = {}
    for path in find_runs(folder):
        name = path.relative_to(folder).as_posix() if path != folder else folder.resolve().name
        run = read_run(path, name)
        if not trains(run):
            continue
        one = understand(run, workload)
        key = repr((one.workload.sample, one.workload.loader.batch_size, one.workload.accelerator))
        keys.setdefault(key, _NAME.sub("-", one.workload.name) or "training")
        grouped.setdefault(key, []).append(one)
    if not grouped:
        raise SpecError(f"{folder} holds runs of checkpoints alone", "only training runs are imported")
    used: dict[str, int] = {}
    found = []
    for key, runs in grouped.items():
        used[keys[key]] = used.get(keys[key], 0) + 1
        again = f"-{used[keys[key]]}" if used[keys[key]] > 1 else ""
        found.append(Group(keys[key] + again, tuple(runs)))
    return found


def understand(run: RunFolder, workload: str = "") -> Imported:
    """What `run` says, recomputed where its logs allow it. Raises SpecError."""
    said = published(run)
    spec = _workload(run, said, workload)
    blocks = blocks_of(run, said.accelerators)
    found = figures(run, said, spec, blocks)
    step, batch = spec.accelerator.step_seconds, spec.loader.batch_size
    rows = step_rows(blocks, 0, step, batch, spec.sample.bytes_mean, found.skips)
    return Imported(run=run, said=said, workload=spec, figures=found, rows=rows)


def _workload(run: RunFolder, said: Published, wanted: str) -> Workload:
    """From the configuration beside the run, else the catalogue's that is named. Raises SpecError."""
    overrides = run.configs.get("overrides.yaml")
    texts = [one for one in overrides if isinstance(one, str)] if isinstance(overrides, list) else []
    chosen = parse_overrides([one for one in texts if "workload=" in one[:12]]).workload
    table = run.configs.get("config.yaml")
    if table is not None and not wanted:
        config = Config(f"{run.name}/config.yaml", workload_table(table, f"{run.name}/config.yaml"), chosen)
        name = chosen or config.model("training")
        return convert(config, _NAME.sub("-", name).replace("_", "-") or "training").workload
    name = wanted or chosen.replace("_", "-")
    if not wanted and name not in names("workloads"):
        raise SpecError(f"{run.name} has no configuration beside it", "say what it ran with --workload NAME")
    return load_workload(name)


def point_of(one: Imported) -> Point:
    """The run as a point. What was not published is NaN."""
    said, spec, found, rows = one.said, one.workload, one.figures, one.rows
    batch = spec.loader.batch_size
    ideal = said.accelerators * spec.ideal_samples_per_second
    steps = len(rows) // said.accelerators or steps_per_epoch(said, batch) * len(said.au)
    samples = steps * batch * said.accelerators
    computes = math.isfinite(ideal)
    same = found.x_ideal if found.x_ideal is not None else math.nan
    first = found.x_ideal_first if found.x_ideal_first is not None else math.nan
    rate = same * ideal if computes else sum(said.samples_per_second) / len(said.samples_per_second)
    times = [epoch_seconds(one.run, epoch) or math.nan for epoch in range(len(said.au))]
    return Point(
        ranks=said.accelerators,
        hosts=_hosts(one, samples),
        epochs=len(said.au),
        steps=steps,
        samples=samples,
        bytes=round(samples * spec.sample.bytes_mean),
        left_out=said.files * said.samples_per_file % (batch * said.accelerators),
        seconds=loop_seconds(rows) if len(rows) else sum(times),
        samples_per_second=rate,
        bytes_per_second=rate * spec.sample.bytes_mean,
        ideal_samples_per_second=ideal,
        x_ideal=same,
        au=found.au if found.au is not None else found.au_published,
        x_ideal_first=first,
        au_first=first,
        wait_share=share_of_time(rows, "wait") if len(rows) else math.nan,
        barrier_share=share_of_time(rows, "barrier") if len(rows) else math.nan,
        overshoot_p99=overshoot_p99(rows, spec.accelerator.step_seconds) if len(rows) else math.nan,
        flags=_flags(found),
    )


def _hosts(one: Imported, samples: int) -> tuple[HostShare, ...]:
    """By the host names in the logs; without logs the first by its name, the others by their number."""
    said = one.said
    named = [str(one.run.logs[rank].get("hostname", ""))[:80] for rank in sorted(one.run.logs)]
    if len(one.rows) and all(named):
        ranks = {name: named.count(name) for name in dict.fromkeys(named)}
    else:
        hosts = min(said.hosts, said.accelerators)
        numbered = [said.hostname or "host 1", *(f"host {n}" for n in range(2, hosts + 1))]
        ranks = {name: len(range(n, said.accelerators, hosts)) for n, name in enumerate(numbered)}
    share = samples // said.accelerators
    return tuple(
        HostShare(
            host=name, ranks=count, samples=share * count,
            bytes=round(share * count * one.workload.sample.bytes_mean), cpu_seconds=math.nan,
            cores=said.cores[min(number, len(said.cores) - 1)] if said.cores else 0,
        )
        for number, (name, count) in enumerate(ranks.items())
    )  # fmt: skip


def _flags(found: Figures) -> tuple[Flag, ...]:
    raised = []
    if found.x_ideal_first is not None and found.au_published - found.x_ideal_first > HIDDEN:
        hidden = found.au_published - found.x_ideal_first
        raised.append(Flag(name="hidden", value=hidden, threshold=HIDDEN, sentence=found.verdict + "."))
    if found.au is not None and found.au_published - found.au > OVERSLEPT:
        slept = found.au_published - found.au
        sentence = f"Oversleep was counted as compute: AU was published {slept * 100:.1f} points too high."
        raised.append(Flag(name="oversleep", value=slept, threshold=OVERSLEPT, sentence=sentence))
    return tuple(raised)


def result_of(group: Group, command: Sequence[str]) -> tuple[RunResult, Steps]:
    """The result of the runs of `group`, marked as imported, and their steps."""
    runs = group.runs
    points = tuple(map(point_of, runs))
    rows = [one.rows.copy() for one in runs]
    for number, part in enumerate(rows):
        part["point"] = number
    first = runs[0]
    files = max(one.said.files for one in runs)
    size = round(files * first.said.samples_per_file * first.workload.sample.bytes_mean)
    memory = max((sum(one.said.host_memory) for one in runs), default=0)
    small = small_dataset(size, memory) if memory else None
    several = len({point.ranks for point in points}) > 1
    result = RunResult(
        kind="imported",
        status="complete",
        version=__version__,
        created=utc_now(),
        command=tuple(command),
        workload={**asdict(first.workload), "name": group.name},
        dataset={"path": "", "files": files, "bytes": size, "format": first.workload.sample.format,
                 "recipe": "", "seed": 0},
        storage={"cache": "unknown", "shaped_rate": None, "shaped_latency": 0.0, "noise": ""},
        loader="DLIO's",
        environment={"memory_bytes": memory, "imported": [_about(one) for one in runs]},
        points=points,
        knee=find_knee(points, first.workload.training.au_threshold) if several else None,
        flags=(small,) if small else (),
    )  # fmt: skip
    return result, np.concatenate([np.zeros(0, STEP), *rows])


def _seed(run: RunFolder) -> int | None:
    """The shuffle seed of its configuration; None where it does not say."""
    table = run.configs.get("config.yaml")
    train = workload_table(table, run.name).get("train") if table is not None else None
    seed = train.get("seed") if isinstance(train, Mapping) else None
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else None


def _about(one: Imported) -> dict[str, Any]:
    """What was published of a run, beside what was recomputed; shares are of 1."""
    return {
        "run": one.run.name,
        "layout": one.run.layout,
        "start": one.said.start,
        "verdict": one.figures.verdict,
        "au_published": list(one.said.au),
        "samples_per_second_published": list(one.said.samples_per_second),
        "au_recomputed": one.figures.au,
        "x_ideal": one.figures.x_ideal,
        "x_ideal_first": one.figures.x_ideal_first,
        "from_logs": one.figures.from_logs,
        "steps_left_out_of_throughput": one.figures.skips,
        "au_met": one.said.met,
        "seed": _seed(one.run),
    }


# ---- The OUT folder of an import: a result as any other, and the documents that it was made from.
#
# OUT/run.json, OUT/steps.parquet
# OUT/mlperf/00000/ ...      the documents of point 0, as they were: feedrate export writes them again


ORIGINALS = "mlperf"


def write_imported(
    groups: Sequence[Group], places: Mapping[str, Path], command: Sequence[str], force: bool
) -> None:
    """Write every group's result to its place. Raises SpecError when one is taken, StorageError."""
    results = [(places[group.name], group, *result_of(group, command)) for group in groups]
    for out, _, _, _ in results:
        check_out(out, force)
    for out, group, result, steps in results:
        prepare_out(out, force)
        _remove(out / ORIGINALS)
        for number, one in enumerate(group.runs):
            write_run(one.run, out / ORIGINALS / f"{number:05d}")
        if len(steps):
            write_steps(out, steps)
        write_result(out, result)


def _remove(folder: Path) -> None:
    """An earlier import's documents. Raises StorageError."""
    if folder.is_dir() and not folder.is_symlink():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise storage_error(error, "cannot remove an earlier import") from None


def read_originals(out: Path, names: Sequence[str]) -> list[RunFolder]:
    """The documents that the result in OUT came from, under `names`. Raises SpecError, StorageError."""
    return [read_run(out / ORIGINALS / f"{number:05d}", name) for number, name in enumerate(names)]
