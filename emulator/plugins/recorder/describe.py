"""Make a workload and a recipe from a recording."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import pstdev

from emulator.config.recipe import Recipe, SizeSpec
from emulator.config.workload import (
    AcceleratorSpec,
    AccessSpec,
    JobSpec,
    LoaderSpec,
    SampleSpec,
    TrainingSpec,
    Workload,
)
from emulator.dataset.like import recipe_like, recipe_of_sizes
from emulator.errors import SpecError
from emulator.plugins.recorder.batches import Recorded, recorded, shared_files
from emulator.plugins.recorder.observation import Loader, Observation
from emulator.plugins.recorder.steps import FEW, StepTime
from emulator.plugins.recorder.watch import Watch
from emulator.units import show_bytes, show_seconds

_UNCHECKED = "--no-check, or a signal ended the job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """The workload and recipe made from a recording."""

    workload: Workload
    recorded: Recorded
    recipe: Recipe


def main_loader(observation: Observation) -> Loader | None:
    """Return the loader that read most bytes; None without loaders."""
    return max(observation.loaders, key=lambda loader: loader.weight, default=None)


def describe(observation: Observation, watch: Watch, name: str, data: Path | None = None) -> Described:
    """Return the workload and recipe of a recording; `data`: the folder with the job's dataset.

    Raises SpecError if the evidence is too thin, DatasetError.
    """
    loader, step = _evidence(observation)
    settings = loader.settings
    batch_size = settings.batch_size
    if not batch_size:  # a batch sampler of the job's own, or items of the dataset
        batch_size = max(1, round(loader.batch_samples)) if settings.auto_collation else 1
    length, ranks = settings.dataset_length, watch.batches(settings)
    whole = batch_size * loader.steps > 0.75 * length * loader.epochs * loader.ranks
    if whole and not shared_files(ranks):
        length *= loader.ranks  # each rank has as many samples of its own
    made = recorded(
        ranks,
        watch.log.files,
        batch_size=batch_size,
        length=length,
        replacement=settings.replacement,
        cpu_seconds=loader.batch_cpu_seconds,
    )
    recipe, sample = _dataset(made, length, batch_size, name, data)
    # Where a sample has several files, each counts as a sample of the replay.
    batch = batch_size
    if length and length < 0.75 * recipe.files:
        batch = max(1, round(batch_size * recipe.files / length))
    sample_bytes = max(1, round(made.batch_bytes / batch))
    samples = batch_size if settings.auto_collation and settings.batch_size else loader.batch_samples
    source = f"recorded on {observation.machine['host']}, {observation.created}"
    workload = Workload(
        name=name,
        title=f"recorded: {batch} samples a step, {show_bytes(sample_bytes)} each"
        + (", a bound of the step time" if step.bound else ""),
        sample=replace(sample, bytes_read=sample_bytes),
        access=AccessSpec(calls="calls.parquet"),
        job=JobSpec(samples=samples / batch if samples else 1.0, unchecked=_UNCHECKED),
        loader=LoaderSpec(
            batch_size=batch,
            workers=max(1, settings.workers),
            prefetch=settings.workers * (settings.prefetch_factor or 2),
            crop=(),
            refill="persistent" if settings.persistent_workers else "epoch",
        ),
        accelerator=AcceleratorSpec(
            name=loader.accelerator or "CPU of the recorded job",
            step_seconds=step.seconds,
            step_batch_size=batch,
            provenance="bound" if step.bound else "recorded",
            compute="empirical" if step.quantiles else "constant",
            quantiles=step.quantiles or None,
            in_flight=step.in_flight,
            # A thread takes batches that are pinned, while the process computes.
            taking_seconds=None if settings.pinned else step.taking,
            together=loader.ranks > 1,
            host_cpu_seconds=loader.cpu_seconds or None,
        ),
        training=TrainingSpec(epochs=max(1, min(5, loader.epochs)), sync="step"),
        sources={
            "access.calls": f"{source}: traced calls",
            "loader.batch_size": f"{source}: its DataLoader",
            "accelerator.step_seconds": f"{source}: {step_words(step)}",
            "accelerator.host_cpu_seconds": f"{source}: CPU time of its processes",
        },
    )
    return Described(workload=workload, recorded=made, recipe=recipe)


def _evidence(observation: Observation) -> tuple[Loader, StepTime]:
    """Return the main loader and its step time. Raises SpecError if they are not known."""
    loader = main_loader(observation)
    if loader is None and not observation.processes:
        raise SpecError(
            "no Python process of the job could be watched",
            "start Python without -I, -E or -S, and keep the PYTHONPATH that feedrate gives it",
        )
    if loader is None:
        raise SpecError("the job used no DataLoader of PyTorch", "only the reads of DataLoaders are recorded")
    if observation.step is None:
        raise SpecError(f"{loader.steps} steps are too few for a step time", "record more steps of the job")
    return loader, observation.step


def _dataset(
    made: Recorded, length: int, batch_size: int, name: str, data: Path | None
) -> tuple[Recipe, SampleSpec]:
    """Return the recipe, and the [sample] of the workload."""
    if data is not None:
        recipe, _, _ = recipe_like(data, "incompressible")
        recipe = replace(recipe, name=name)
    else:
        recipe = recipe_of_sizes(name, made.sizes, made.files)
    mean, files = recipe.size.bytes_mean, recipe.files
    samples = length / files if length else mean * batch_size / max(1.0, made.batch_bytes)
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


def step_words(step: StepTime) -> str:
    """Return text on the evidence for a step time."""
    if step.bound and step.steps >= FEW:
        return (
            "in the mean: in long steps the host may wait for an accelerator that it runs ahead of, or "
            "validate or save, which the recording does not tell apart"
        )
    if step.bound:
        return (
            f"only {step.steps} of {step.all_steps} steps did not wait for a batch (the job waited "
            f"{step.waited:.0%} of the time): a step takes {show_seconds(step.seconds)} or less, and "
            f"{show_seconds(step.at_least)} between two batches"
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
