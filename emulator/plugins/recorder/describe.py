"""From what was seen of a job to a workload and a recipe: pure. What cannot be replayed is said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import pstdev

from emulator.config.recipe import Recipe, SizeSpec
from emulator.config.workload import (
    AcceleratorSpec,
    AccessSpec,
    LoaderSpec,
    SampleSpec,
    TrainingSpec,
    Workload,
)
from emulator.errors import SpecError
from emulator.plugins.recorder.observation import Loader, Observation
from emulator.plugins.recorder.reads import Reads
from emulator.plugins.recorder.steps import StepTime
from emulator.units import BLOCK_BYTES, show_bytes, show_seconds

WHOLE = 0.95
"""Share of a file from which on it counts as read whole."""
_OWN_BYTES = 20e6
"""Bytes that a worker process reads for itself, at most: PyTorch's libraries are mapped."""
_PIECES = 4096
"""Places of a sample that are told apart, at most."""
_MOST_BLOCK = 16 * 2**20
_MOST_PROCESSES = 16
"""Accelerators of a host, at most: cores that suffice for more are no news."""
_READ_AHEAD = 1.1
"""Bytes from storage per byte that was asked for, from which on read-ahead is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """How samples lie in files, and what of them is read."""

    files: int
    samples_per_file: int
    files_per_sample: int
    sample_bytes: int
    """Mean bytes of a sample: a file, or its share of one."""
    sample_sd: int
    sizes: tuple[int, ...]
    """Quantiles of the bytes of a sample."""
    access: AccessSpec
    block_bytes: int
    told: tuple[str, ...]
    """In words: what the job does, and where the replay differs from it."""

    def sample(self) -> SampleSpec:
        """As a workload has it."""
        return SampleSpec(
            format="bytes",
            bytes_mean=self.sample_bytes,
            bytes_sd=self.sample_sd,
            samples_per_file=self.samples_per_file,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What a recording comes to."""

    workload: Workload
    recipe: Recipe
    told: tuple[str, ...]


def main_loaders(observation: Observation) -> Sequence[Loader]:
    """The loader that read most, of each rank that has it; nothing where there is none."""
    groups: dict[object, list[Loader]] = {}
    for loader in observation.loaders:
        groups.setdefault(loader.settings, []).append(loader)
    return max(groups.values(), key=lambda group: (sum(one.weight for one in group), len(group)), default=[])


def main_loader(observation: Observation) -> Loader | None:
    """All ranks of the loader that read most, as if they were one; None: there is none."""
    alike = main_loaders(observation)
    if not alike:
        return None
    reads = alike[0].reads
    for other in alike[1:]:
        reads = reads.plus(other.reads)
    first = alike[0]
    return Loader(
        rank=first.rank,
        host=first.host,
        process=first.process,
        settings=first.settings,
        torch=first.torch,
        accelerator=first.accelerator,
        epochs=max(one.epochs for one in alike),
        steps=sum(one.steps for one in alike),
        samples=sum(one.samples for one in alike),
        seconds=max(one.seconds for one in alike),
        read_steps=sum(round(one.steps * one.share_read) for one in alike),
        ahead=sum(one.samples * one.ahead for one in alike) / max(1, sum(one.samples for one in alike))
        if first.samples
        else 1.0,
        others=first.others,
        step_cpu_seconds=sum(one.step_cpu_seconds for one in alike) / len(alike),
        batch_cpu_seconds=sum(one.batch_cpu_seconds for one in alike) / len(alike),
        reads=reads,
    )


def pattern_of(loader: Loader, alike: Sequence[Loader]) -> Pattern:
    """How `loader`, all of `alike` together, reads. Raises SpecError when too little was seen to say."""
    reads, settings = loader.reads, loader.settings
    if not loader.share_read:
        raise SpecError(
            "the DataLoader that reads most began when calls were no longer traced",
            "give --traced-steps more steps than the one before it has",
        )
    if not reads.files and reads.sizes_only and (reads.call_bytes or 0) > _OWN_BYTES * settings.workers:
        raise SpecError(
            f"{show_bytes(reads.call_bytes or 0)} came from files that a library opens itself, as HDF5 does",
            "apt install strace: it sees them",
        )
    if not reads.files or not (reads.bytes or reads.mapped):
        raise SpecError(
            "no file was seen that the DataLoader reads",
            "it makes its samples itself, or reads them from memory or through a network",
        )
    samples = _samples(loader)
    told: list[str] = []
    mapped = reads.mapped > 0 and (reads.storage_bytes or 0) > 2 * reads.bytes
    unseen = not mapped and reads.bytes < 0.1 * reads.mapped
    if reads.mapped and (unseen or reads.resident > 0.5):
        raise SpecError(
            f"files of {show_bytes(reads.files_bytes)} are mapped into memory, and what was read of them was "
            "there already: no reads were seen",
            "record while their pages are not in the page cache",
        )
    if mapped:
        total = reads.storage_bytes or 0
        run = request = total / max(1, reads.faults)
        told.append(
            f"files are mapped into memory: {reads.faults} page faults brought {show_bytes(run)} each; the "
            "replay reads as much in as many places"
        )
    else:
        total, run, request = reads.bytes, reads.runs.typical(), reads.requests.typical()
        if reads.sizes_only:
            total = reads.visit_size
            run = request = max(1.0, total / max(1, reads.visits))
    length = settings.dataset_length if settings.dataset_length > 0 else 0
    # Different samples that were read, about: each rank draws its own.
    met = max(1.0, sum(min(_samples(one), length or math.inf) for one in alike))
    if mapped:
        each = total / met  # read once, while memory lasts
    else:
        each = _of_whole_runs(total / max(1.0, samples), total / max(1.0, samples / loader.ahead), run)
    in_order = settings.sampler in ("SequentialSampler", "iterable")
    files, together = reads.files, 1
    mean_file = reads.files_bytes / reads.files
    whole = reads.visit_bytes >= WHOLE * reads.visit_size and not mapped
    # Some samplers come back to the same files; others, to whom that happens, find several samples in each.
    own = whole and not reads.sizes_only and reads.visits > 0.9 * samples / loader.ahead
    own &= settings.sampler in ("iterable", "custom", "WeightedRandomSampler") or files > 0.5 * met
    if met / files < 1.5 or own:
        per_file = 1
        together = max(1, round(files / met if met / files < 1.5 else reads.visits / samples))
        if together > 1:
            each /= together
            told.append(
                f"a sample is read out of {together} files: each is a sample of the replay, whose samples/s "
                f"are {together} times the job's"
            )
    else:
        if not settings.iterable:  # ranks draw samples from the same files
            files = max(one.reads.files for one in alike)
        per_file, whole = max(2, round((length or samples) / files)), False
        if in_order and met < 0.99 * (length or math.inf):  # the files of the others were not seen
            read = reads.visit_bytes / reads.visit_size if reads.visit_size else 1.0
            per_file = max(2, round(met / files / min(1.0, read or 1.0)))
            files = round(length / per_file) or files
    if reads.sizes_only and not whole:
        told.append(
            "only opened files were seen, not which bytes of them are read: the replay reads all of them"
        )
    sample_bytes = max(5, round(mean_file / per_file))
    sequential = per_file > 1 and (in_order or (run > 1.5 * each and not mapped and not reads.sizes_only))
    bytes_read, pieces = 0, 1
    if whole:
        told.insert(0, "files are read whole, one a sample")
    elif sequential:
        told.insert(0, f"files of about {per_file} samples are read from their start to their end")
    elif not reads.sizes_only:
        share = each / sample_bytes
        if min(share, request / each) >= WHOLE:
            request = max(request, sample_bytes)  # a file's own head, shared out, makes no second request
        bytes_read = min(round(each), sample_bytes) if share < WHOLE else 0
        pieces = min(_PIECES, max(1, round(each / max(1.0, run)))) if bytes_read else 1
        what = (
            f"{show_bytes(each)} of a sample's {show_bytes(sample_bytes)}"
            if bytes_read
            else "all of a sample"
        )
        where = f"file of {per_file} samples, at random" if per_file > 1 else "file"
        told.insert(0, f"{what} is read, in {pieces} place{'s' if pieces > 1 else ''} of its {where}")
        if share > 1.05:
            told.append(
                f"the job reads {share:.2f} times the bytes of a sample, some of them more than once; the "
                "replay reads them once"
            )
    direct = reads.direct > reads.bytes / 2
    if direct:
        told.append(
            "the job reads with O_DIRECT, as --loader direct does; --loader torch uses the page cache"
        )
    # Where parts of files are read, the kernel reads ahead of such requests for the replay, too.
    wanted = max(request, reads.readahead if (sequential or whole) and not direct else 0)
    block = min(_MOST_BLOCK, max(1, math.ceil(wanted / BLOCK_BYTES)) * BLOCK_BYTES)
    sizes = tuple(max(5, round(size / per_file)) for size in reads.sizes) or (sample_bytes, sample_bytes)
    if settings.iterable:
        told.append(
            f"the dataset does not tell its length: the recipe has the {files} files whose reads were seen; "
            "generate --files N makes more"
        )
    held = files
    if length and per_file == 1:
        # Of batches that were on their way at the end, nobody knows how far their files were opened.
        least = sum(min(_samples(one) / one.ahead, length) for one in alike)
        whole_samples = own or least <= reads.files / together <= met
        held = length * together if whole_samples else round(length * reads.files / met)
        if met < 0.99 * length * len(alike):
            told.append(
                f"{reads.files} files were seen; the recipe has {held}, for all of the dataset's samples"
            )
    return Pattern(
        files=held,
        samples_per_file=per_file,
        files_per_sample=together,
        sample_bytes=sample_bytes,
        sample_sd=round(pstdev(sizes)),
        sizes=sizes,
        access=AccessSpec(
            pattern="sequential" if sequential else "random",
            streams=max(1, settings.workers) if sequential else 1,
            bytes_read=bytes_read,
            pieces=pieces,
            buffered=not (whole or sequential or mapped or direct or reads.sizes_only),
        ),
        block_bytes=block,
        told=tuple(told),
    )


def describe(observation: Observation, name: str) -> Described:
    """The workload and the recipe of what was recorded. Raises SpecError when it does not say enough."""
    loader = main_loader(observation)
    if loader is None:
        raise SpecError(
            "the job used no DataLoader of PyTorch", "what its processes read stands in record.json"
        )
    alike = main_loaders(observation)
    ranks, pattern = len(alike), pattern_of(loader, alike)
    settings, step = loader.settings, observation.step
    if step is None:
        raise SpecError(
            f"{loader.steps} steps are too few to say what one takes", "record a longer stretch of the job"
        )
    batch = settings.batch_size or max(1, round(loader.samples / max(1, loader.steps)))
    batch *= pattern.files_per_sample
    cores = int(observation.machine.get("cores", 0))
    told = [*pattern.told, *of_loader(loader, step, ranks, cores, pattern.access.buffered)]
    workers = max(1, settings.workers)
    prefetch = workers * (settings.prefetch_factor or 2) if settings.workers else 1
    accelerator = loader.accelerator or "CPU of the recorded job"
    recorded = f"recorded on {observation.machine.get('host', loader.host)}, {observation.created}"
    how = {"strace": "traced system calls", "python": "opened files and /proc/PID/io"}.get(
        observation.how, observation.how
    )
    workload = Workload(
        name=name,
        title=f"recorded: {batch} samples a step, {show_bytes(_each(pattern))} each"
        + (", a bound of the step time" if step.bound else ""),
        sample=pattern.sample(),
        access=pattern.access,
        loader=LoaderSpec(
            batch_size=batch, workers=workers, prefetch=prefetch, block_bytes=pattern.block_bytes, crop=()
        ),
        accelerator=AcceleratorSpec(
            name=accelerator,
            step_seconds=step.seconds,
            step_batch_size=batch,
            provenance="bound" if step.bound else "recorded",
            compute="empirical" if step.quantiles else "constant",
            quantiles=step.quantiles or None,
            together=ranks > 1,
            host_cpu_seconds=loader.cpu_seconds or None,
        ),
        training=TrainingSpec(epochs=max(1, min(5, loader.epochs)), sync="step"),
        sources={
            "sample.bytes_mean": f"{recorded}: {how}",
            "loader.batch_size": f"{recorded}: its DataLoader",
            "loader.workers": f"{recorded}: its DataLoader",
            "loader.block_bytes": f"{recorded}: requests of {show_bytes(loader.reads.requests.typical())}, "
            f"read-ahead of {show_bytes(loader.reads.readahead)}",
            "access.pattern": f"{recorded}: sampler {settings.sampler}, {how}",
            "accelerator.step_seconds": f"{recorded}: {step_words(step)}",
            "accelerator.host_cpu_seconds": f"{recorded}: CPU time of its processes",
        },
    )
    recipe = recipe_of(pattern, name, recorded)
    return Described(workload=workload, recipe=recipe, told=tuple(told))


def recipe_of(pattern: Pattern, name: str, source: str) -> Recipe:
    """Files as `pattern` has them. Raises SpecError."""
    size = show_bytes(pattern.sample_bytes * pattern.samples_per_file)
    return Recipe(
        name=name,
        title=f"{pattern.files} files of about {size}",
        format="bytes",
        files=pattern.files,
        samples_per_file=pattern.samples_per_file,
        size=size_spec(pattern.sizes),
        sources={"size.quantiles": f"{source}: sizes of the files that were read"},
    )


def size_spec(sizes: Sequence[int]) -> SizeSpec:
    """The sizes of a recipe whose samples have these quantiles. Raises SpecError."""
    mean = sum((a + b) / 2 for a, b in pairwise(sizes)) / (len(sizes) - 1)
    if min(sizes) == max(sizes):
        return SizeSpec(distribution="fixed", bytes_mean=max(5, sizes[0]), shape="flat")
    return SizeSpec(
        distribution="quantiles", quantiles=tuple(sizes), bytes_mean=max(5, round(mean)), shape="flat",
        bytes_max=max(max(sizes), 2**32 - 2**20),
    )  # fmt: skip


def _samples(loader: Loader) -> float:
    """Samples that it asked for, about."""
    batches = loader.steps * loader.share_read * loader.ahead
    return loader.asked_samples or batches * max(1, loader.settings.batch_size)


def _of_whole_runs(least: float, most: float, run: float) -> float:
    """Bytes of a sample, between these: a number of whole runs, where one is.

    Of the batches on their way when the job ended, nobody knows how far they were read.
    """
    runs = math.ceil(0.98 * least / run) if run else 0
    return runs * run if runs and runs * run <= 1.02 * most else (least + most) / 2


def _each(pattern: Pattern) -> int:
    return pattern.access.bytes_read or pattern.sample_bytes


def of_loader(
    loader: Loader, step: StepTime, ranks: int, cores: int = 0, buffered: bool = False
) -> list[str]:
    """What a replay leaves out of what the loader does, in words.

    `cores` are those of the host, 0: not known; `buffered` as AccessSpec has it.
    """
    settings, reads = loader.settings, loader.reads
    told = []
    # Workers also page in libraries, which are no reads of data.
    more = (reads.storage_bytes or 0) - _OWN_BYTES * max(1, settings.workers) * ranks
    fetched = more / reads.bytes if reads.bytes and not reads.mapped else 0.0
    if fetched > _READ_AHEAD:
        line = (
            f"at least {fetched:.3g} times the bytes that were asked for came from storage: the kernel reads "
            "ahead, as it does for a replay"
        )
        if not buffered:
            line += (
                " with --loader torch; --loader direct reads nothing ahead, and where storage is the limit "
                "it can be faster by as much"
            )
        told.append(line)
    if loader.others:
        told.append(
            f"between two batches the job takes {loader.others:g} of another DataLoader: a step of the "
            "replay takes as long, and reads for this one alone"
        )
    if not settings.workers:
        told.append("the job reads between its steps (num_workers=0); the replay reads one batch ahead")
    if settings.sampler in ("WeightedRandomSampler", "custom"):
        told.append(
            f"sampler {settings.sampler}: the replay takes each sample once an epoch, in random order"
        )
    if loader.cpu_seconds:
        line = (
            f"a step costs {show_seconds(loader.cpu_seconds)} of this host's CPU, training and loading, "
            "which a replay does not spend"
        )
        most = max(ranks, math.floor(cores * step.seconds / loader.cpu_seconds)) if cores else math.inf
        if most <= _MOST_PROCESSES:
            line += (
                f": with more than {most} process{'es' if most > 1 else ''} on {cores} cores the job is "
                "slower than its replay (flag job-cpu)"
            )
        told.append(line)
    if loader.batch_cpu_seconds > 0.5 * settings.workers * step.seconds:
        told.append(
            f"a batch costs its {settings.workers} workers {show_seconds(loader.batch_cpu_seconds)} of CPU: "
            "where decoding is the limit, the replay, which does not decode, is faster than the job"
        )
    return told


def step_words(step: StepTime) -> str:
    """Where a step time comes from."""
    if step.bound:
        why = (
            f"at only {step.steps} of {step.all_steps} steps no batch was waited for"
            if step.steps or step.waited < 0.5
            else "the job waited for data throughout"
        )
        return (
            f"{why} (it waited {step.waited:.0%} of the time): a step takes {show_seconds(step.seconds)} or "
            f"less, and {show_seconds(step.at_least)} between two batches"
        )
    if step.in_turn:
        return f"mean of {step.steps} steps, between which the job reads: {step.waited:.0%} of the time"
    traced = ", while reads were traced, which takes time: run a longer stretch" if step.traced else ""
    return f"mean of {step.steps} steps of {step.all_steps} at which no batch was waited for{traced}"


def reads_words(reads: Reads) -> str:
    """What some processes read, in one line."""
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
