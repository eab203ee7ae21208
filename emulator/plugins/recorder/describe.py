"""Make a workload and a recipe from a recording, and describe the differences of a replay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from statistics import fmean

from emulator.config.recipe import Recipe, SizeSpec
from emulator.config.workload import AcceleratorSpec, JobSpec, LoaderSpec, TrainingSpec, Workload
from emulator.dataset.like import spread
from emulator.errors import SpecError
from emulator.plugins.recorder.observation import Loader, Observation
from emulator.plugins.recorder.pattern import OWN_BYTES, Pattern, pattern_of
from emulator.plugins.recorder.reads import Reads
from emulator.plugins.recorder.steps import FEW, StepTime
from emulator.units import show_bytes, show_seconds

_MOST_PROCESSES = 16
"""Most processes for which a limit by the host's cores is reported."""
_READ_AHEAD = 1.1
"""Bytes from storage per requested byte, from which read-ahead is reported."""
_GUESSED = "files are mapped, and only replays find how many bytes of them a sample has"


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """The workload and recipe made from a recording."""

    workload: Workload
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
    steps = sum(one.seen_steps for one in alike)
    return replace(
        alike[0],
        epochs=max(one.epochs for one in alike),
        steps=sum(one.steps for one in alike),
        samples=sum(one.samples for one in alike),
        read_steps=steps,
        ahead=sum(one.asked_batches for one in alike) / steps if steps else 1.0,
        step_cpu_seconds=fmean(one.step_cpu_seconds for one in alike),
        batch_cpu_seconds=fmean(one.batch_cpu_seconds for one in alike),
        batch_call_bytes=_mean([one.batch_call_bytes for one in alike]),
        batch_storage_bytes=_mean([one.batch_storage_bytes for one in alike]),
        uneven=max(one.uneven for one in alike),
        reads=reduce(Reads.plus, (one.reads for one in alike)),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def reading_seconds(loader: Loader) -> float | None:
    """Return the seconds of the reads of a step, summed over threads; None if unknown."""
    reads, steps = loader.reads, loader.seen_steps
    unseen = reads.sizes_only or (reads.mapped and reads.faults)
    return None if unseen or not steps else reads.call_seconds / steps


def describe(observation: Observation, name: str) -> Described:
    """Return the workload and recipe of a recording. Raises SpecError if the evidence is too thin."""
    loader = main_loader(observation)
    if loader is None and not observation.processes:
        raise SpecError(
            "no Python process of the job could be watched",
            "start Python without -I, -E or -S, and with its environment",
        )
    if loader is None:
        raise SpecError(
            "the job used no DataLoader of PyTorch",
            "call feedrate.mark_step(samples) once a step (docs/own-job.md); record.json has its files",
        )
    alike = main_loaders(observation)
    ranks, pattern = len(alike), pattern_of(loader, alike, observation.of_map)
    settings, step = loader.settings, observation.step
    if step is None:
        raise SpecError(f"{loader.steps} steps are too few for a step time", "record more steps of the job")
    batch = settings.batch_size or max(1, round(loader.samples / max(1, loader.steps)))
    samples = settings.batch_size if settings.auto_collation and settings.batch_size else loader.batch_samples
    batch *= pattern.files_per_sample
    cores = int(observation.machine.get("cores", 0))
    facts = [*pattern.told, *of_loader(loader, step, ranks, cores, pattern.access.buffered)]
    workers = max(1, settings.workers)
    prefetch = workers * (settings.prefetch_factor or 2) if settings.workers else 0
    recorded = f"recorded on {observation.machine.get('host', loader.host)}, {observation.created}"
    where = "its marks of steps" if settings.marked else "its DataLoader"
    how = "traced system calls" if observation.how == "strace" else "opened files and /proc/PID/io"
    each = show_bytes(pattern.access.bytes_read or pattern.sample_bytes)
    workload = Workload(
        name=name,
        title=f"recorded: {batch} samples a step, {each} each"
        + (", a bound of the step time" if step.bound else ""),
        sample=pattern.sample(),
        access=pattern.access,
        job=JobSpec(
            samples=samples / batch if samples else 1.0, unchecked=_GUESSED if pattern.guessed else ""
        ),
        loader=LoaderSpec(
            batch_size=batch,
            workers=workers,
            prefetch=prefetch,
            block_bytes=pattern.block_bytes,
            crop=(),
            batch_cpu_seconds=0.0 if settings.marked else loader.batch_cpu_seconds,
        ),
        accelerator=replace(
            accelerator_of(step, loader.accelerator or "CPU of the recorded job", batch),
            # A thread takes batches that are pinned, while the process computes.
            taking_seconds=None if settings.pinned else step.taking,
            together=ranks > 1,
            host_cpu_seconds=loader.cpu_seconds or None,
        ),
        training=TrainingSpec(epochs=max(1, min(5, loader.epochs)), sync="step"),
        sources={
            "sample.bytes_mean": f"{recorded}: {how}",
            "loader.batch_size": f"{recorded}: {where}",
            "loader.workers": f"{recorded}: {where}",
            "loader.block_bytes": f"{recorded}: requests of {show_bytes(loader.reads.requests.typical())}, "
            f"read-ahead of {show_bytes(loader.reads.readahead)}",
            "access.pattern": f"{recorded}: sampler {settings.sampler}, {how}",
            "accelerator.step_seconds": f"{recorded}: {step_words(step)}",
            "accelerator.host_cpu_seconds": f"{recorded}: CPU time of its processes",
            "loader.batch_cpu_seconds": f"{recorded}: CPU time of its workers",
        },
    )
    recipe = recipe_of(pattern, name, recorded)
    return Described(workload=workload, recipe=recipe, told=tuple(facts))


def accelerator_of(step: StepTime, name: str, batch: int) -> AcceleratorSpec:
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


def recipe_of(pattern: Pattern, name: str, source: str) -> Recipe:
    """Return the recipe for the files of `pattern`. Raises SpecError."""
    size = show_bytes(pattern.sample_bytes * pattern.samples_per_file)
    return Recipe(
        name=name,
        title=f"{pattern.files} files of about {size}",
        format="bytes",
        files=pattern.files,
        samples_per_file=pattern.samples_per_file,
        size=size_spec(pattern.sizes, pattern.listed),
        sources={"size.quantiles": f"{source}: sizes of the files that were read"},
    )


def size_spec(sizes: Sequence[int], listed: bool = False) -> SizeSpec:
    """Return the [size] of a recipe with these sizes of samples, which are quantiles unless `listed`.

    Raises SpecError.
    """
    least, most = min(sizes), max(sizes)
    if least == most:
        return SizeSpec(distribution="fixed", bytes_mean=least, shape="bytes")
    mean = fmean(sizes) if listed else sum((a + b) / 2 for a, b in pairwise(sizes)) / (len(sizes) - 1)
    return SizeSpec(
        distribution="quantiles", quantiles=tuple(sizes), bytes_mean=round(mean), shape="bytes",
        bytes_max=max(most, 2**32 - 2**20), listed=spread(sizes) if listed else (),
        listed_among=len(sizes) if listed else 0,
    )  # fmt: skip


def of_loader(
    loader: Loader, step: StepTime, ranks: int, cores: int = 0, buffered: bool = False
) -> list[str]:
    """Return sentences on differences between the loader and a replay.

    `cores` are those of the host, 0 if unknown; `buffered` is that of AccessSpec.
    """
    settings = loader.settings
    facts = _read_ahead_words(loader, ranks, buffered)
    if loader.others:
        facts.append(
            f"between two batches the job takes {loader.others:g} of another DataLoader: a step of the "
            "replay takes as long, and reads for this one alone"
        )
    if settings.marked:
        facts.append(
            "the job marks its steps: the recipe has the files that were read; generate --files N makes more"
        )
        if settings.workers:
            facts.append(
                f"{settings.workers} threads read ahead; how far is not known: the replay has a batch of each"
            )
    if not settings.workers:
        facts.append("the job reads between its steps, without workers, and so does the replay")
    if settings.sampler == "WeightedRandomSampler":
        facts.append("sampler WeightedRandomSampler: the replay gives each sample the same weight")
    if settings.sampler == "custom" and not settings.marked:
        facts.append("sampler custom: the replay takes each sample once an epoch, in random order")
    if ranks == 1:
        facts.append(
            "one process was recorded: what several exchange in a step, such as gradients, is in no replay; "
            "record with as many on a host as you will replay"
        )
    if loader.cpu_seconds:
        facts.append(_cpu_words(loader, step, ranks, cores))
    return facts


def _read_ahead_words(loader: Loader, ranks: int, buffered: bool) -> list[str]:
    reads = loader.reads
    # Workers also page in libraries, which are not data.
    more = (reads.storage_bytes or 0) - OWN_BYTES * max(1, loader.settings.workers) * ranks
    fetched = more / reads.bytes if reads.bytes and not reads.mapped else 0.0
    if fetched <= _READ_AHEAD:
        return []
    line = (
        f"at least {fetched:.3g} times the bytes that were asked for came from storage: the kernel reads "
        "ahead, as it does for a replay"
    )
    if not buffered:
        line += (
            " with --loader torch; --loader direct reads nothing ahead, and where storage is the limit "
            "it can be faster by as much"
        )
    return [line]


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
            "validate or save, which the recording does not tell apart; in the second case the job is slower "
            "than its replay on storage that is somewhat slower than this; more steps may show it"
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
    if step.in_flight > 1:
        return f"the host runs ahead of its accelerator and waits for it every {step.in_flight} steps"
    traced = ", while reads were traced, which takes time: record more steps" if step.traced else ""
    return f"mean of {step.steps} of {step.all_steps} steps, which did not wait for a batch{traced}"


def reads_words(reads: Reads) -> str:
    """Return a one-line summary of reads."""
    if not reads.files and not reads.bytes:
        return "no data files were seen"
    size = reads.bytes or reads.storage_bytes or 0
    files = f"{reads.files} data file{'s' if reads.files != 1 else ''} of {show_bytes(reads.files_bytes)}"
    return (
        f"{files}, {show_bytes(size)} read in {reads.requests.count} requests of about "
        f"{show_bytes(reads.requests.typical())}"
        if reads.requests.count
        else f"{files} opened"
    )
