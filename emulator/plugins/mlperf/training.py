"""Import published trainings: recompute the figures of each run, with DLIO's errors corrected.

    AU as published    sum of compute without the first step / time without the first step; mean over ranks
                       and epochs. Since v2.0 oversleep counts as compute
    X, same steps      (n - 1) x batch / time without the first step; v3.0 publishes it, v2.0 has (n - 2)
    X, all steps       n x batch / time; v1.0 publishes it

X_ideal is batch / step time. With nominal compute AU is X / X_ideal over the same steps, by definition; a
slow start shows only in X over all steps. The logs of single ranks, which are rarely published, are not read.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from emulator.analysis.flags import small_dataset
from emulator.analysis.knee import find_knee
from emulator.config.catalog import names
from emulator.config.workload import Workload, load_workload
from emulator.errors import SpecError
from emulator.plugins.mlperf.published import Published, read_published
from emulator.plugins.mlperf.tree import RunFolder, find_runs, read_run, why_no_training
from emulator.plugins.mlperf.workload import convert
from emulator.record.out import ResultFolder, check_out
from emulator.record.result import Flag, HostShare, Point, RunResult, new_result

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

    @property
    def group(self) -> object:
        """Key that is equal for runs of one result."""
        workload = self.workload
        return self.run.system, workload.sample, workload.loader.batch_size, workload.accelerator

    @property
    def flags(self) -> list[Flag]:
        """What the published figures hide, and what could not be read."""
        hidden = self.published.au - self.x_ideal_first
        overslept = self.published.au - self.x_ideal
        most = max(self.x_ideal, self.x_ideal_first)
        one_host = "It counts one host; accelerators of others, as in v0.5, are in runs of their own."
        candidates = (
            ("documents", float("num_hosts" not in self.run.summary), 0.0, one_host),
            ("documents", most, _MOST, f"X/X_ideal is {most * 100:.1f} %, which is impossible."),
            ("documents", len(self.run.unread), 0.0, f"{'; '.join(self.run.unread)}."),
            ("hidden", hidden, _HIDDEN, f"A slow start hides {hidden * 100:.0f} points of AU."),
            ("oversleep", overslept, _OVERSLEPT, f"Oversleep adds {overslept * 100:.1f} points to its AU."),
        )
        return [
            Flag(name=name, value=value, threshold=threshold, sentence=sentence)
            for name, value, threshold, sentence in candidates
            if value > threshold
        ]

    @property
    def verdict(self) -> str:
        """The published AU, and what the flags say of it."""
        au = f"AU {self.published.au * 100:.1f} %"
        said = " ".join(flag.sentence for flag in self.flags)
        if math.isnan(self.x_ideal_first):
            return f"{au}; X/X_ideal over all steps cannot be computed from what was published. {said}"
        return f"{au}, X/X_ideal {self.x_ideal_first * 100:.1f} %. {said or 'They agree.'}"

    @property
    def line(self) -> str:
        return f"{self.published.num_accelerators} accelerators, {self.run.name}: {self.verdict}"


def import_run(run: RunFolder, workload: str = "") -> ImportedTraining:
    """Read the figures of `run`, and recompute them. Raises SpecError."""
    spec, most_steps = _workload(run, workload)
    published = read_published(run, most_steps, spec.sample.samples_per_file)
    version = run.version
    if version is None and run.choice.endswith(("-b200", "-mi355")):
        version = "v3.0"  # the only one with these accelerators
    x_ideal, x_ideal_first = _shares(run, published, spec, version)
    return ImportedTraining(
        run=run,
        published=published,
        workload=spec,
        version=version,
        x_ideal=x_ideal,
        x_ideal_first=x_ideal_first,
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


def _shares(run: RunFolder, published: Published, spec: Workload, version: str | None) -> tuple[float, float]:
    """Return X/X_ideal over the steps of AU, and over all steps.

    v1.0's AU counts nominal compute, so it is X/X_ideal over the same steps, and its published throughput is
    over all steps. X over the same steps is v3.0's throughput, or v2.0's x (n - 1) / (n - 2); X over all
    steps follows from the epochs' times.
    """
    step, steps = spec.accelerator.step_seconds, published.steps_per_epoch(spec.loader.batch_size)
    if step <= 0 or steps < 3:
        return math.nan, math.nan
    share = published.rate / (published.num_accelerators * spec.ideal_samples_per_second)
    if version == "v1.0":
        return published.au, share
    same = {"v2.0": share * (steps - 1) / (steps - 2), "v3.0": share}.get(version or "", math.nan)
    seconds = [run.epoch_seconds(epoch) for epoch in range(published.epochs)]
    return same, steps * step * sum(1 / of_epoch for of_epoch in seconds) / published.epochs


def imported_result(runs: Sequence[ImportedTraining], command: Sequence[str]) -> RunResult:
    """Join runs of one group into a result."""
    workload = runs[0].workload
    dataset = _dataset(runs)
    points = tuple(map(_point, runs))
    memory = max(sum(run.published.memory) for run in runs)
    small = small_dataset(dataset["bytes"], memory) if memory else None
    rated = [point for point in points if math.isfinite(point.samples_per_second)]
    knee = None
    if len({point.ranks for point in rated}) > 1:  # one count has no curve
        knee = find_knee(rated, workload.training.au_threshold)
    return new_result(
        "imported",
        command=tuple(command),
        workload=asdict(workload),
        dataset=dataset,
        storage={"cache": "unknown", "shaped_rate": None, "shaped_latency": 0.0},
        loader="DLIO's",
        label=runs[0].run.system,
        environment={"memory_bytes": memory, "imported": [_facts(run) for run in runs]},
        points=points,
        knee=knee,
        flags=(small,) if small else (),
    )


def _dataset(runs: Sequence[ImportedTraining]) -> dict[str, Any]:
    """Return the dataset of runs of one group, which is the largest of them."""
    sample = runs[0].workload.sample
    files = max(run.published.num_files_train for run in runs)
    samples_per_file = runs[0].published.num_samples_per_file
    return {
        "path": "",
        "files": files,
        "samples_per_file": samples_per_file,
        "bytes": round(files * samples_per_file * sample.bytes_mean),
        "format": sample.format,
        "file_bytes_sd": float(sample.bytes_sd) if samples_per_file == 1 else None,
        "recipe": "",
        "seed": 0,
    }


def _point(imported: ImportedTraining) -> Point:
    """Return the run as a point, with NaN where nothing was published."""
    published, spec = imported.published, imported.workload
    ranks, batch, size = published.num_accelerators, spec.loader.batch_size, spec.sample_read.bytes_mean
    ideal = ranks * spec.ideal_samples_per_second
    steps = published.steps_per_epoch(batch) * published.epochs
    samples = steps * batch * ranks
    rate = imported.x_ideal * ideal if math.isfinite(ideal) else published.rate
    return Point(
        ranks=ranks,
        hosts=_hosts(published, samples, size),
        epochs=published.epochs,
        steps=steps,
        samples=samples,
        bytes=round(samples * size),
        left_out=published.samples % (batch * ranks),
        seconds=sum(imported.run.epoch_seconds(epoch) for epoch in range(published.epochs)),
        samples_per_second=rate,
        bytes_per_second=rate * size,
        ideal_samples_per_second=ideal,
        x_ideal=imported.x_ideal,
        au=imported.x_ideal,
        au_published=published.au,
        samples_per_second_published=published.rate,
        x_ideal_first=imported.x_ideal_first,
        au_first=imported.x_ideal_first,
        wait_share=math.nan,
        barrier_share=math.nan,
        flags=tuple(imported.flags),
    )


def _hosts(published: Published, samples: int, size: float) -> tuple[HostShare, ...]:
    """Return each host's share of the ranks, evenly; only the first host has a name."""
    hosts = min(published.num_hosts, published.num_accelerators)
    cores, unknown = (*published.cores, *[0] * hosts), math.nan
    shares = []
    for number in range(hosts):
        ranks = len(range(number, published.num_accelerators, hosts))
        own, name = samples // published.num_accelerators * ranks, f"host {number + 1}"
        if number == 0 and published.hostname:
            name = published.hostname
        shares.append(
            HostShare(host=name, ranks=ranks, samples=own, bytes=round(own * size), cpu_seconds=unknown,
                      cores=cores[number], wait_seconds=unknown)
        )  # fmt: skip
    return tuple(shares)


def _facts(imported: ImportedTraining) -> dict[str, Any]:
    """Return what the documents of a run state, for the rules and for the report."""
    run, published = imported.run, imported.published
    return {
        "run": run.name,
        "start": published.start,
        "verdict": imported.verdict,
        "version": imported.version,
        "au_published": published.au,
        "memory_bytes": sum(published.memory) or None,
        "files": published.num_files_train,
        "samples_per_file": published.num_samples_per_file,
        "same_filesystem": run.same_filesystem,
    }


# ---- Folders of runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """Runs that were imported from a folder."""

    groups: Mapping[str, Sequence[ImportedTraining]]
    """Runs of each result by its name, which begins with the system if there are several."""
    skipped: Mapping[str, str]
    """Reason why a folder was not imported, by its name."""

    @property
    def runs(self) -> list[ImportedTraining]:
        return [run for runs in self.groups.values() for run in runs]


def import_folder(folder: Path, workload: str = "") -> Imports:
    """Read the runs at or below `folder`. Raises SpecError if there are none, StorageError.

    `workload` is the name of the workload of runs without a configuration.
    """
    groups: dict[object, list[ImportedTraining]] = {}
    skipped: dict[str, str] = {}
    for path in find_runs(folder):
        name = path.relative_to(folder).as_posix() if path != folder else folder.resolve().name
        try:
            if why := why_no_training(path, name):
                raise SpecError(f"{name}: {why}")
            imported = import_run(read_run(path, name), workload)
            groups.setdefault(imported.group, []).append(imported)
        except SpecError as error:
            why = str(error)
            for prefix in (f"{path}/", f"{name}/", f"{name}: "):
                why = why.removeprefix(prefix)
            skipped[name] = why
    imports = Imports(groups=_by_name(list(groups.values())), skipped=skipped)
    if not groups:
        name, why = next(iter(skipped.items()))
        more = f", and {len(skipped) - 1} more" if len(skipped) > 1 else ""
        raise SpecError(f"{folder}: no run could be imported ({name}: {why}{more})")
    return imports


def _by_name(groups: Sequence[list[ImportedTraining]]) -> dict[str, list[ImportedTraining]]:
    """Return the groups by a name fit for a path, which begins with the system if there are several."""
    several = len({runs[0].run.system for runs in groups}) > 1
    named: dict[str, list[ImportedTraining]] = {}
    taken: Counter[str] = Counter()
    for runs in groups:
        words = [runs[0].run.system] * several + [runs[0].workload.name]
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", " ".join(filter(None, words))) or "training"
        taken[name] += 1
        named[f"{name}-{taken[name]}" if taken[name] > 1 else name] = runs
    return named


def write_imports(
    imports: Imports, out: Path, command: Sequence[str], force: bool, label: str = ""
) -> dict[str, Path]:
    """Write every group's result, below `out` where there are several; return the folder of each by its name.

    Raises SpecError, StorageError.
    """
    several = len(imports.groups) > 1
    folders = {name: out / name if several else out for name in imports.groups}
    for path in folders.values():
        check_out(path, force)
    for name, runs in imports.groups.items():
        result = imported_result(runs, command)
        result = replace(result, label=label or result.label)
        with ResultFolder.create(folders[name], result, force=force) as folder:
            folder.complete(None)
    return folders
