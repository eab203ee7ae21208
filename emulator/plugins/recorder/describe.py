"""Make a workload and a recipe from a recording, and describe the differences of a replay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from statistics import fmean, pstdev

from emulator.calls import OPEN
from emulator.config.recipe import Recipe, SizeSpec
from emulator.config.workload import (
    AcceleratorSpec,
    AccessSpec,
    JobSpec,
    LoaderSpec,
    Refill,
    SampleSpec,
    TrainingSpec,
    Workload,
)
from emulator.dataset.like import recipe_like, recipe_of_sizes
from emulator.errors import SpecError
from emulator.plugins.recorder.batches import Recorded, recorded
from emulator.plugins.recorder.observation import Loader, Observation, Reads
from emulator.plugins.recorder.steps import FEW, StepTime
from emulator.plugins.recorder.watch import Watch
from emulator.units import show_bytes, show_seconds

_MOST_PROCESSES = 16
"""Most processes for which a limit by the host's cores is reported."""
_DIFFER = 0.1
"""Relative difference of two numbers of files, or of bytes, from which it is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """The workload and recipe made from a recording."""

    workload: Workload
    recorded: Recorded
    recipe: Recipe
    told: tuple[str, ...]


def main_loaders(observation: Observation) -> Sequence[Loader]:
    """Return the loader that read most bytes, once per rank that has it; empty without loaders."""
    groups: dict[object, list[Loader]] = {}
    for loader in observation.loaders:
        groups.setdefault(loader.settings, []).append(loader)
    return max(groups.values(), key=lambda group: (sum(one.weight for one in group), len(group)), default=[])


def main_loader(observation: Observation) -> Loader | None:
    """Return the loader that read most bytes, merged over its ranks; None without loaders."""
    alike = main_loaders(observation)
    if not alike:
        return None
    return replace(
        alike[0],
        epochs=max(one.epochs for one in alike),
        steps=sum(one.steps for one in alike),
        read_steps=sum(one.read_steps for one in alike),
        step_cpu_seconds=fmean(one.step_cpu_seconds for one in alike),
        batch_cpu_seconds=fmean(one.batch_cpu_seconds for one in alike),
        batch_call_bytes=_mean([one.batch_call_bytes for one in alike]),
        batch_storage_bytes=_mean([one.batch_storage_bytes for one in alike]),
        first_storage_bytes=_mean([one.first_storage_bytes for one in alike]),
        reads=reduce(Reads.plus, (one.reads for one in alike)),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def describe(seen: Observation, watch: Watch, name: str, data: Path | None = None) -> Described:
    """Return the workload and recipe of a recording; `data`: the folder with the job's dataset.

    Raises SpecError if the evidence is too thin, DatasetError.
    """
    loader = main_loader(seen)
    if loader is None and not seen.processes:
        raise SpecError(
            "no Python process of the job could be watched",
            "start Python without -I, -E or -S, and keep the PYTHONPATH that feedrate gives it",
        )
    if loader is None:
        raise SpecError(
            "the job used no DataLoader of PyTorch",
            "call feedrate.mark_step(samples) once a step (docs/own-job.md)",
        )
    settings, step = loader.settings, seen.step
    if step is None:
        raise SpecError(f"{loader.steps} steps are too few for a step time", "record more steps of the job")
    ranks = watch.batches(settings)
    asked = settings.batch_size or max(1, round(loader.batch_samples if settings.marked else 1))
    made = recorded(
        ranks,
        watch.log.files,
        asked=asked,
        length=settings.length,
        replacement=settings.replacement,
        cpu_seconds=0.0 if settings.marked else loader.batch_cpu_seconds,
        later_bytes=loader.batch_call_bytes if seen.how == "strace" else None,  # else it is that of all
        random_maps=watch.maps_random,
    )
    if seen.how == "python":
        _require_whole_files(loader, made)
    recipe, sample = _dataset(made, settings.length, asked, name, data)
    # Where a sample has several files, each counts as a sample of the replay.
    batch = asked
    if settings.length and settings.length < 0.75 * recipe.files:
        batch = max(1, round(asked * recipe.files / settings.length))
    each = round(made.batch_bytes / batch)
    source = f"recorded on {seen.machine.get('host', loader.host)}, {seen.created}"
    samples = asked if settings.auto_collation and settings.batch_size else loader.batch_samples
    workers = max(1, settings.workers)
    refill: Refill = "persistent" if settings.persistent_workers else "epoch"
    if settings.marked:  # no DataLoader begins anew
        refill = "never"
    workload = Workload(
        name=name,
        title=f"recorded: {batch} samples a step, {show_bytes(each)} each"
        + (", a bound of the step time" if step.bound else ""),
        sample=replace(sample, bytes_read=max(1, each)),
        access=AccessSpec(calls="calls.parquet"),
        job=JobSpec(samples=samples / batch if samples else 1.0),
        loader=LoaderSpec(
            batch_size=batch,
            workers=workers,
            prefetch=workers * (settings.prefetch_factor or 2) if settings.workers else 0,
            crop=(),
            refill=refill,
        ),
        accelerator=replace(
            _accelerator(step, loader.accelerator or "CPU of the recorded job", batch),
            # A thread takes batches that are pinned, while the process computes.
            taking_seconds=None if settings.pinned else step.taking,
            together=len(ranks) > 1,
            host_cpu_seconds=loader.cpu_seconds or None,
        ),
        training=TrainingSpec(epochs=max(1, min(5, loader.epochs)), sync="step"),
        sources={
            "access.calls": f"{source}: " + ("traced calls" if seen.how == "strace" else "opened files"),
            "loader.batch_size": f"{source}: " + ("marks of steps" if settings.marked else "its DataLoader"),
            "accelerator.step_seconds": f"{source}: {step_words(step)}",
            "accelerator.host_cpu_seconds": f"{source}: CPU time of its processes",
        },
    )
    told = [*_of_reads(made, recipe, data), *_of_loader(loader, step, len(ranks), seen)]
    return Described(workload=workload, recorded=made, recipe=recipe, told=tuple(told))


def _require_whole_files(loader: Loader, made: Recorded) -> None:
    """Raise SpecError unless the job reads the files that it opens whole, where strace does not show it."""
    called = loader.batch_call_bytes
    # A worker also reads messages and modules.
    most = (1 + _DIFFER) * made.batch_bytes + 2**16
    if called is None or not (1 - _DIFFER) * made.batch_bytes <= called <= most:
        raise SpecError(
            "without strace only jobs that read whole files can be recorded, and this one reads "
            f"{show_bytes(called or 0)} a batch of files with {show_bytes(made.batch_bytes)}",
            "apt install strace, and permit ptrace",
        )


def _dataset(
    made: Recorded, length: int, asked: int, name: str, data: Path | None
) -> tuple[Recipe, SampleSpec]:
    """Return the recipe, and the [sample] of the workload."""
    if data is not None:
        recipe, _, _ = recipe_like(data, "incompressible")
        recipe = replace(recipe, name=name)
    else:
        recipe = recipe_of_sizes(name, made.sizes, made.files)
    mean, files = recipe.size.bytes_mean, recipe.files
    samples = length / files if length else mean * asked / max(1.0, made.batch_bytes)
    held = max(1, round(samples))
    if held > 1:
        recipe = replace(recipe, samples_per_file=held, size=_divided(recipe.size, held))
    sizes = recipe.size.quantiles or (recipe.size.bytes_mean,)
    return recipe, SampleSpec(
        format="bytes",
        bytes_mean=recipe.size.bytes_mean,
        bytes_sd=round(pstdev(sizes)),
        samples_per_file=held,
    )


def _divided(size: SizeSpec, samples: int) -> SizeSpec:
    """Return the sizes of samples in files of so many."""

    def part(whole: int) -> int:
        return max(1, round(whole / samples))

    return replace(
        size,
        bytes_mean=part(size.bytes_mean),
        quantiles=tuple(map(part, size.quantiles)),
        listed=tuple(map(part, size.listed)),
    )


def _accelerator(step: StepTime, name: str, batch: int) -> AcceleratorSpec:
    """Return the accelerator `name` with this step time for `batch` samples."""
    return AcceleratorSpec(
        name=name,
        step_seconds=step.seconds,
        step_batch_size=batch,
        provenance="bound" if step.bound else "recorded",
        compute="empirical" if step.quantiles else "constant",
        quantiles=step.quantiles or None,
        in_flight=step.in_flight,
        taking_seconds=step.taking,
    )


def _of_reads(made: Recorded, recipe: Recipe, data: Path | None) -> list[str]:
    """Return sentences on the calls, and on how many files there are."""
    rows = made.rows
    batches = int(rows["batch"].max()) + 1
    threads = int(rows["thread"].max()) + 1
    facts = [
        f"{batches} batches of {show_bytes(made.batch_bytes)} in {len(rows)} calls, "
        f"{(rows['op'] == OPEN).sum() / batches:.3g} opens each"
        + (f", by {threads} threads of a worker" if threads > 1 else "")
    ]
    if data is not None and abs(recipe.files / made.files - 1) > _DIFFER:
        facts.append(f"{data} has {recipe.files} files; the reads look like {made.files}")
    elif made.guessed:
        facts.append(f"the dataset has no length: the recipe has the {made.seen} files that were read; "
                     "record --data DIR takes those of a folder")  # fmt: skip
    elif made.files > made.seen:
        facts.append(f"{made.seen} files were read; the recipe has {made.files}, by the dataset's length")
    if made.mapped:
        facts.append("files are mapped: which of their bytes are read is a guess")
    return facts


def _of_loader(loader: Loader, step: StepTime, ranks: int, seen: Observation) -> list[str]:
    """Return sentences on differences between the loader and a replay."""
    settings, facts = loader.settings, list[str]()
    if loader.others:
        facts.append(
            f"between two batches the job takes {loader.others:g} of another DataLoader: a step of the "
            "replay takes as long, and reads for this one alone"
        )
    if settings.marked and settings.workers:
        facts.append(
            f"{settings.workers} threads read ahead; how far is not known: the replay has a batch of each"
        )
    if loader.reads.direct:
        facts.append("the job reads with O_DIRECT, the replay through the page cache")
    if ranks == 1:
        facts.append(
            "one process was recorded: what several exchange in a step, such as gradients, is in no replay; "
            "record with as many on a host as you will replay"
        )
    if loader.cpu_seconds:
        facts.append(_cpu_words(loader, step, ranks, int(seen.machine.get("cores", 0))))
    return facts


def _cpu_words(loader: Loader, step: StepTime, ranks: int, cores: int) -> str:
    line = (
        f"a step costs {show_seconds(loader.cpu_seconds)} of this host's CPU, training and loading, "
        "which a replay does not spend"
    )
    fit = cores * step.seconds / loader.cpu_seconds
    most = max(ranks, math.floor(fit))
    if cores and most <= _MOST_PROCESSES:
        line += (
            f": with more than {most} process{'es' if most > 1 else ''} on {cores} cores the job is "
            f"slower than its replay (flag job-cpu); {ranks} took {ranks / fit:.0%} of them"
        )
    return line


def step_words(step: StepTime) -> str:
    """Return text on the evidence for a step time."""
    if step.bound and not step.at_least:
        return f"which includes an unknown time of reads: a step takes {show_seconds(step.seconds)} or less"
    if step.bound and step.steps >= FEW:
        return (
            "in the mean: in long steps the host may wait for an accelerator that it runs ahead of, or "
            "validate or save, which the recording does not tell apart"
        )
    if step.bound:
        why = (
            f"only {step.steps} of {step.all_steps} steps did not wait for a batch"
            if step.steps or step.waited < 0.5
            else "the job waited for data throughout"
        )
        return (
            f"{why} (it waited {step.waited:.0%} of the time): a step takes {show_seconds(step.seconds)} or "
            f"less, and {show_seconds(step.at_least)} between two batches"
        )
    if step.by_events:
        return (
            f"mean of {step.steps} steps on the GPU, each from its batch to its end; the job "
            f"waited for data for {step.waited:.0%} of the time"
        )
    if step.in_turn:
        return f"mean of {step.steps} steps, between which the job reads: {step.waited:.0%} of the time"
    traced = ", while reads were traced, which takes time: record more steps" if step.traced else ""
    return f"mean of {step.steps} of {step.all_steps} steps, which did not wait for a batch{traced}"
