"""Recompute a published run's figures from its documents, with DLIO's slips undone. Pure.

    AU as published    sum of compute without the first step / time without the first step, per block;
                       weighted by steps over an epoch's blocks, mean over ranks, mean over epochs
    AU recomputed      the same with nominal compute: time overslept does not count as compute
    X, same steps      (n - 1) x batch / time without the first step: v3.0 publishes it, v2.0 writes (n - 2)
    X, all steps       n x batch / time: v0.5 and v1.0 publish this one

X_ideal is batch / step time. With nominal compute AU is X / X_ideal over the same steps, by definition; a
slow start shows only in X over all steps. DLIO's MB is 2^20 bytes, its GB 2^30.

A block is what lies between two checkpoints. DLIO logs for each of its steps `load` (the wait for a batch),
`proc` (load and compute together, measured) and `compute` (nominal in v1.0, the measured sleep later), and
for each block `au` and `throughput`, from which the length of the block follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from emulator.analysis.parts import Floats
from emulator.config.workload import Workload
from emulator.errors import SpecError
from emulator.plugins.mlperf.summary import Machines, TrainedFiles, TrainingMetric, read_metric, read_summary
from emulator.plugins.mlperf.tree import RunFolder
from emulator.record.steps import STEP, Steps

HIDDEN_SHARE = 0.02
"""AU - X/X_ideal over all steps above which start-up is reported. A share of 1."""
OVERSLEPT = 0.005
"""Published - recomputed AU above which oversleep is reported. A share of 1."""
MOST = 1.02
"""X/X_ideal above which figures are impossible: accelerators take no more than they ask for."""
ROUNDING = 0.001
"""Tolerance of comparisons of AU. A recomputed AU cannot exceed the published one: sleeps are never short."""
SKIPS = {"v1.0": 0, "v2.0": 2, "v3.0": 1}
"""Version -> steps that its throughput does not count; 0: it is over the whole time."""

_LONGEST_STEP = 1e7  # seconds
_LONGEST_BLOCK = 1e10  # seconds
_MOST_BLOCKS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTraining:
    """The figures of a training as they were published."""

    machines: Machines
    au: tuple[float, ...]
    """Accelerator utilisation of each epoch, 0 to 1."""
    samples_per_second: tuple[float, ...]
    """Throughput of each epoch, all accelerators."""
    met: bool | None
    """True when the summary says that the AU was met; None where it says nothing."""
    files: int
    samples_per_file: int
    most_steps: int
    """Steps of an epoch after which the run was told to stop; 0: none were."""

    @property
    def accelerators(self) -> int:
        """Accelerators of all hosts."""
        return self.machines.num_accelerators

    @property
    def mean_rate(self) -> float:
        """Samples/s, mean over the epochs."""
        return sum(self.samples_per_second) / len(self.samples_per_second)

    def steps_per_epoch(self, batch: int) -> int:
        """Steps of all accelerators in an epoch, whole ones alone."""
        steps = self.files * self.samples_per_file // (batch * self.accelerators)
        return min(steps, self.most_steps) if self.most_steps else steps


def read_published(run: RunFolder, most_steps: int, samples_per_file: int) -> PublishedTraining:
    """The figures in the summary of `run`, whose configuration asks for `most_steps` an epoch.

    Its `samples_per_file` stand in for those that the summary does not state.

    Raises SpecError naming the key that is missing or wrong.
    """
    metric, files = read_metric(run, TrainingMetric), read_summary(run, TrainedFiles)
    expectation = metric.train_au_meet_expectation
    return PublishedTraining(
        machines=read_summary(run, Machines),
        au=tuple(value / 100 for value in metric.train_au_percentage),
        samples_per_second=metric.train_throughput_samples_per_second,
        met={"success": True, "fail": False}.get(expectation) if isinstance(expectation, str) else None,
        files=files.num_files_train,
        samples_per_file=files.num_samples_per_file or samples_per_file,
        most_steps=most_steps,
    )


@dataclass(frozen=True, slots=True)
class Block:
    """Steps of one rank between two checkpoints. Seconds, shape (steps,)."""

    rank: int
    epoch: int
    """Epochs count from 0."""
    number: int
    """Blocks of an epoch count from 1."""
    load: Floats
    proc: Floats
    compute: Floats
    au: float
    """Published AU, 0 to 1."""
    throughput: float
    """Published samples/s of this rank."""

    @property
    def steps(self) -> int:
        return len(self.proc)

    def seconds(self, batch: int, skips: int) -> float:
        """Return the duration of the block, first step and barriers included.

        From the published AU, which is compute without the first step over time without the first step; or
        from the throughput, of (steps - skips) steps over the whole time (skips 0) or over that without the
        first step. At least the sum of its steps.
        """
        first = float(self.proc[0])
        own = float(self.proc.sum())
        if self.au > 0 and self.steps > 1:
            return max(own, float(self.compute[1:].sum()) / self.au + first)
        if self.throughput > 0 and self.steps > skips:
            whole = (self.steps - skips) * batch / self.throughput
            return max(own, whole + (first if skips else 0.0))
        return own


def read_blocks(run: RunFolder, accelerators: int) -> list[Block]:
    """Read the blocks of all ranks; none unless every rank has a log. Raises SpecError."""
    if run.logs.keys() != set(map(str, range(accelerators))):
        return []
    blocks: list[Block] = []
    shapes: set[tuple[tuple[int, int, int], ...]] = set()
    for rank in range(accelerators):
        mine = _blocks_of_rank(run.logs[str(rank)], rank, f"{run.name}/{rank}_output.json")
        shapes.add(tuple((block.epoch, block.number, block.steps) for block in mine))
        blocks += mine
    if not blocks or len(shapes) > 1:
        raise SpecError(f"{run.name}: the logs of its ranks do not have the same steps")
    return blocks


def _blocks_of_rank(log: Mapping[str, Any], rank: int, name: str) -> list[Block]:
    """Read the blocks of a log that have steps. Raises SpecError."""
    blocks = []
    epochs = sorted((key for key in log if key.isdecimal() and len(key) < 9), key=int)
    for epoch, key in enumerate(epochs):
        table = log[key] if isinstance(log[key], Mapping) else {}
        load, proc, compute, au, throughput = (
            table[column] if isinstance(table.get(column), Mapping) else {}
            for column in ("load", "proc", "compute", "au", "throughput")
        )
        numbers = [block.removeprefix("block") for block in load if block.startswith("block")]
        if len(numbers) > _MOST_BLOCKS or not all(n.isdecimal() and len(n) < 9 for n in numbers):
            raise SpecError(f"{name}: epoch {key} has other blocks than block1, block2 ...")
        for number in sorted(numbers, key=int):
            block = f"block{number}"
            columns: dict[str, Floats] = {}
            for column, values in (("load", load), ("proc", proc), ("compute", compute)):
                seconds = values.get(block)
                if not isinstance(seconds, list) or not all(
                    type(value) in (int, float) and 0 <= value <= _LONGEST_STEP for value in seconds
                ):
                    raise SpecError(f"{name}: {column} of {block} must be a list of seconds")
                columns[column] = np.array(seconds, dtype=np.float64)
            if len({len(column) for column in columns.values()}) != 1:
                raise SpecError(f"{name}: {block} of epoch {epoch + 1} has lists of different lengths")
            percent, rate = (
                float(value) if isinstance(value, int | float) and 0 <= value <= 1e15 else 0.0
                for value in (au.get(block), throughput.get(block))
            )
            if len(columns["proc"]):
                blocks.append(Block(rank, epoch, int(number), **columns, au=percent / 100, throughput=rate))
    return blocks


def step_rows(
    blocks: Sequence[Block], step_seconds: float, batch: int, sample_bytes: float, skips: int
) -> Steps:
    """Convert blocks to rows of feedrate's step log, as point 0.

    Compute is nominal; what the sleep took beyond it is overshoot. What a block took beyond its steps,
    barriers and bookkeeping, is spread evenly over them: DLIO does not log it step by step.
    """
    parts = [np.zeros(0, dtype=STEP)]
    clock: dict[int, float] = {}
    done: dict[tuple[int, int], int] = {}
    for block in blocks:
        rows = np.zeros(block.steps, dtype=STEP)
        before = done.get((block.rank, block.epoch), 0)
        begin = clock.get(block.rank, 0.0)
        barrier = (block.seconds(batch, skips) - float(block.proc.sum())) / block.steps
        ends = np.cumsum(block.proc + barrier)
        rows["rank"], rows["epoch"] = block.rank, block.epoch
        rows["step"] = before + np.arange(block.steps)
        rows["samples"], rows["bytes"] = batch, round(batch * sample_bytes)
        rows["begin"] = begin + np.concatenate([[0.0], ends[:-1]])
        rows["wait"] = block.load
        rows["compute"] = step_seconds
        rows["overshoot"] = block.proc - block.load - step_seconds
        rows["barrier"] = barrier
        clock[block.rank] = begin + float(ends[-1])
        done[block.rank, block.epoch] = before + block.steps
        parts.append(rows)
    return np.concatenate(parts)


def epoch_seconds(run: RunFolder, epoch: int) -> float | None:
    """Return an epoch's seconds in blocks, by the first rank's clock; None: not recorded."""
    stats = run.epochs.get("", run.epochs.get("0", {})).get(str(epoch + 1), {})
    total = 0.0
    for table in (table for key, table in stats.items() if key.startswith("block")):
        try:
            begin, end = (datetime.fromisoformat(str(table.get(key))) for key in ("start", "end"))
            seconds = (end - begin).total_seconds()
        except (ValueError, TypeError, OverflowError, AttributeError):
            return None
        if not 0 < seconds < _LONGEST_BLOCK:
            return None
        total += seconds
    return total or None


def check_logs(run: RunFolder, published: PublishedTraining, blocks: Sequence[Block]) -> None:
    """Check that the summary's AU follows from the blocks. Raises SpecError."""
    if not blocks:
        return
    sums: dict[tuple[int, int], tuple[float, int]] = {}
    for block in blocks:
        total, steps = sums.get((block.rank, block.epoch), (0.0, 0))
        sums[block.rank, block.epoch] = (total + block.au * block.steps, steps + block.steps)
    epochs = sorted({epoch for _, epoch in sums})
    logged = tuple(
        float(np.mean([total / steps for (_, own), (total, steps) in sums.items() if own == epoch]))
        for epoch in epochs
    )
    if len(logged) != len(published.au) or not np.allclose(logged, published.au, atol=ROUNDING):
        shares = " and ".join(
            f"{100 * sum(au) / len(au):.2f} % in {len(au)} epochs" for au in (logged, published.au)
        )
        raise SpecError(f"{run.name}: the logs belong to another run: AU by logs and by summary is {shares}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Published and recomputed AU and throughput. Shares of 1."""

    au_published: float
    """Mean over epochs."""
    x_ideal: float | None
    """Throughput / ideal, over the steps of AU: this is the recomputed AU. None where neither logs nor a
    known formula allow it."""
    x_ideal_first: float | None
    """Throughput / ideal over all steps, start-up included."""
    skips: int | None
    """Steps that the published throughput leaves out of its count; None: nothing tells."""
    either: tuple[float, float] | None = None
    """x_ideal by the formulas of v3.0 and of v2.0, where nothing tells which one was used."""

    @property
    def overslept(self) -> float:
        """Share of the published AU that was oversleep."""
        return self.au_published - self.x_ideal if self.x_ideal is not None else 0.0

    @property
    def verdict(self) -> str:
        """The comparison as one line for people."""
        au = f"AU {self.au_published * 100:.1f} %"
        if self.either is not None:
            by = " or ".join(
                f"{share * 100:.2f} % if it is of {version}"
                for share, version in zip(self.either, ("v3.0", "v2.0"), strict=True)
            )
            return f"{au}; nothing says which formula its throughput follows: X/X_ideal is {by}"
        most = max(share for share in (self.x_ideal, self.x_ideal_first, 0.0) if share is not None)
        if most > MOST:
            return f"{au}, X/X_ideal {most * 100:.1f} %: not possible, its documents are of several runs"
        if self.x_ideal is not None and self.x_ideal > self.au_published + ROUNDING:
            return f"{au}, but its throughput gives {self.x_ideal * 100:.2f} %: the two do not fit together"
        if self.x_ideal_first is None:
            return f"{au}; X/X_ideal over all steps cannot be computed from what was published"
        hidden = self.au_published - max(self.overslept, 0.0) - self.x_ideal_first
        reasons = []
        if hidden > HIDDEN_SHARE:
            reasons.append(f"start-up and the excluded first step hide {hidden * 100:.0f} points")
        if self.overslept > OVERSLEPT:
            reasons.append(f"oversleep counted as compute adds {self.overslept * 100:.1f} points to AU")
        return f"{au}, X/X_ideal {self.x_ideal_first * 100:.1f} %: {'; '.join(reasons) or 'they agree'}"


def recompute(
    run: RunFolder, published: PublishedTraining, workload: Workload, blocks: Sequence[Block]
) -> Figures:
    """Recompute AU and X/X_ideal of `run` from the blocks of its logs, or from the summary without logs.

    Without logs: v1.0's AU counts nominal compute, so it is X/X_ideal over the same steps, and the published
    throughput is the one over all steps. v3.0's throughput is the former, v2.0's times (n - 1) / (n - 2); the
    latter follows from the epochs' times.
    """
    batch, step = workload.loader.batch_size, workload.accelerator.step_seconds
    skips = skipped_steps(run, blocks, batch)
    au = sum(published.au) / len(published.au)
    if step > 0 and blocks:  # each block's AU gives its time, so the formula of its throughput is not needed
        same, whole = (_x_ideal(blocks, batch, step, skips or 0, first) for first in (1, 0))
        return Figures(au_published=au, x_ideal=same, x_ideal_first=whole, skips=skips)
    steps = published.steps_per_epoch(batch)
    if step <= 0 or steps < 3:
        return Figures(au_published=au, x_ideal=None, x_ideal_first=None, skips=skips)
    share = published.mean_rate
    share /= published.accelerators * workload.ideal_samples_per_second
    if skips == 0:
        return Figures(au_published=au, x_ideal=au, x_ideal_first=share, skips=0)
    times = [epoch_seconds(run, epoch) for epoch in range(len(published.au))]
    shares = [steps * step / seconds for seconds in times if seconds]
    every = float(np.mean(shares)) if shares else None
    by_v2 = share * (steps - 1) / (steps - 2)
    if skips != 1 and by_v2 > au + ROUNDING:  # more than the accelerators were busy: it is not v2.0's
        skips = 1
    if skips is None:
        return Figures(au_published=au, x_ideal=None, x_ideal_first=every, skips=None, either=(share, by_v2))
    return Figures(au_published=au, x_ideal=by_v2 if skips == 2 else share, x_ideal_first=every, skips=skips)


def skipped_steps(run: RunFolder, blocks: Sequence[Block], batch: int) -> int | None:
    """Return how many steps the published throughput does not count, by the logs or else by the version.

    A block's time follows from its AU; then (steps - skips) x batch / throughput is that time with skips 0,
    or that time without the first step with skips 1 or 2.
    """
    votes: Counter[int] = Counter()
    for block in blocks:
        if block.steps < 4 or not block.au or not block.throughput:
            continue
        rest = float(block.compute[1:].sum()) / block.au
        times = {0: rest + float(block.proc[0]), 1: rest, 2: rest}
        errors = {
            skips: abs((block.steps - skips) * batch / block.throughput / seconds - 1)
            for skips, seconds in times.items()
        }
        votes[min(errors, key=errors.__getitem__)] += 1
    if votes:
        return votes.most_common(1)[0][0]
    return SKIPS[run.version] if run.version else None


def _x_ideal(blocks: Sequence[Block], batch: int, step: float, skips: int, first: int) -> float:
    """Return throughput / ideal, without the first step of each block when `first` is 1.

    Weighted by steps over the blocks of an epoch of a rank, mean over ranks and epochs: as DLIO does it.
    """
    sums: dict[tuple[int, int], tuple[float, int]] = {}
    for block in blocks:
        seconds = block.seconds(batch, skips) - float(block.proc[:first].sum())
        share = (block.steps - first) * step / seconds if seconds > 0 else 0.0
        total, steps = sums.get((block.rank, block.epoch), (0.0, 0))
        sums[block.rank, block.epoch] = (total + share * block.steps, steps + block.steps)
    return float(np.mean([total / steps for total, steps in sums.values()]))
