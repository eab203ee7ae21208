"""Logs of a run's ranks: the times of each step, and DLIO's figures of each block of steps. Pure.

A block is the steps between two checkpoints. DLIO logs for each of its steps `load` (the wait for a batch),
`proc` (load and compute together, measured) and `compute` (nominal in v1.0, the measured sleep later), and
for each block `au` and `throughput`, from which the length of the block follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from emulator.analysis.parts import Floats
from emulator.config.workload import Workload
from emulator.errors import SpecError
from emulator.plugins.mlperf.summary import PublishedTraining
from emulator.plugins.mlperf.tree import RunFolder, as_table
from emulator.record.steps import STEP, Steps

ROUNDING = 0.001
"""Tolerance of comparisons of AU. A sleep is never too short, so a recomputed AU is at most the published."""
_LONGEST_STEP = 1e7  # seconds
_LONGEST_BLOCK = 1e10  # seconds
_MOST_BLOCKS = 10_000


@dataclass(frozen=True, slots=True)
class Block:
    """Steps of one rank between two checkpoints. Seconds, shape (steps,)."""

    rank: int
    epoch: int
    """Number of the epoch, from 0."""
    number: int
    """Number of the block in its epoch, from 1."""
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

        It follows from the published AU (compute / time, both without the first step), or else from the
        throughput: (steps - skips) steps over the whole time (skips 0) or over the time without the first
        step. It is at least the sum of the steps.
        """
        first = float(self.proc[0])
        least = float(self.proc.sum())
        if self.au > 0 and self.steps > 1:
            return max(least, float(self.compute[1:].sum()) / self.au + first)
        if self.throughput > 0 and self.steps > skips:
            whole = (self.steps - skips) * batch / self.throughput
            return max(least, whole + (first if skips else 0.0))
        return least


def read_blocks(run: RunFolder, accelerators: int) -> list[Block]:
    """Read the blocks of all ranks; none unless every rank has a log. Raises SpecError."""
    if run.logs.keys() != set(map(str, range(accelerators))):
        return []
    blocks: list[Block] = []
    shapes: set[tuple[tuple[int, int, int], ...]] = set()
    for rank in range(accelerators):
        of_rank = _blocks_of_rank(run.logs[str(rank)], rank, f"{run.name}/{rank}_output.json")
        shapes.add(tuple((block.epoch, block.number, block.steps) for block in of_rank))
        blocks += of_rank
    if not blocks or len(shapes) > 1:
        raise SpecError(f"{run.name}: the logs of its ranks do not have the same steps")
    return blocks


def _blocks_of_rank(log: Mapping[str, Any], rank: int, name: str) -> list[Block]:
    """Read the blocks of a log that have steps. Raises SpecError."""
    blocks = []
    epochs = sorted((key for key in log if key.isdecimal() and len(key) < 9), key=int)
    for epoch, key in enumerate(epochs):
        table = as_table(log[key])
        load, proc, compute, au, throughput = (
            as_table(table.get(column)) for column in ("load", "proc", "compute", "au", "throughput")
        )
        numbers = [block.removeprefix("block") for block in load if block.startswith("block")]
        if len(numbers) > _MOST_BLOCKS or not all(n.isdecimal() and len(n) < 9 for n in numbers):
            raise SpecError(f"{name}: epoch {key} has blocks with other names than block1, block2 ...")
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


def step_rows(blocks: Sequence[Block], workload: Workload, skips: int) -> Steps:
    """Convert blocks to rows of feedrate's step log, as point 0.

    Compute is nominal, and the rest of the sleep is overshoot. If no log exceeds nominal compute, as in v1.0,
    the sleep is the step's time after its load. The block's time outside its steps (barriers, bookkeeping),
    which DLIO does not log by step, is spread evenly over them.
    """
    batch, step_seconds = workload.loader.batch_size, workload.accelerator.step_seconds
    measured = any((block.compute > step_seconds).any() for block in blocks)
    parts = [np.zeros(0, dtype=STEP)]
    clock: dict[int, float] = {}
    done: dict[tuple[int, int], int] = {}
    for block in blocks:
        rows = np.zeros(block.steps, dtype=STEP)
        before = done.get((block.rank, block.epoch), 0)
        begin = clock.get(block.rank, 0.0)
        slept = block.compute if measured else block.proc - block.load
        barrier = (block.seconds(batch, skips) - float((block.load + slept).sum())) / block.steps
        ends = np.cumsum(block.load + slept + barrier)
        rows["rank"], rows["epoch"] = block.rank, block.epoch
        rows["step"] = before + np.arange(block.steps)
        rows["samples"], rows["bytes"] = batch, round(batch * workload.sample_read.bytes_mean)
        rows["begin"] = begin + np.concatenate([[0.0], ends[:-1]])
        rows["wait"] = block.load
        rows["compute"] = step_seconds
        rows["overshoot"] = slept - step_seconds
        rows["barrier"] = barrier
        clock[block.rank] = begin + float(ends[-1])
        done[block.rank, block.epoch] = before + block.steps
        parts.append(rows)
    return np.concatenate(parts)


def epoch_seconds(run: RunFolder, epoch: int) -> float | None:
    """Return an epoch's seconds in blocks, by the first rank's clock; None if not recorded."""
    stats = run.first_epochs.get(str(epoch + 1), {})
    times = [_seconds(table) for key, table in stats.items() if key.startswith("block")]
    return sum(filter(None, times)) or None if all(times) else None


def block_seconds(run: RunFolder, block: Block) -> float | None:
    """Return a block's seconds by its own rank's clock; None if not recorded."""
    stats = run.epochs.get(str(block.rank), run.epochs.get("", {}) if block.rank == 0 else {})
    return _seconds(stats.get(str(block.epoch + 1), {}).get(f"block{block.number}"))


def _seconds(span: Any) -> float | None:
    """Return the seconds from start to end of a span; None if not recorded or impossible."""
    try:
        begin, end = (datetime.fromisoformat(str(span.get(key))) for key in ("start", "end"))
        seconds = (end - begin).total_seconds()
    except (ValueError, TypeError, OverflowError, AttributeError):
        return None
    return seconds if 0 < seconds < _LONGEST_BLOCK else None


def by_epoch(blocks: Sequence[Block], values: Sequence[float]) -> dict[tuple[int, int], float]:
    """Return the mean of the blocks' values by (rank, epoch), weighted by steps."""
    sums: dict[tuple[int, int], tuple[float, int]] = {}
    for block, value in zip(blocks, values, strict=True):
        total, steps = sums.get((block.rank, block.epoch), (0.0, 0))
        sums[block.rank, block.epoch] = (total + value * block.steps, steps + block.steps)
    return {key: total / steps for key, (total, steps) in sums.items()}


def over_ranks(blocks: Sequence[Block], values: Sequence[float]) -> list[float]:
    """Return the mean over ranks of `by_epoch`, for each epoch that has blocks."""
    of_epoch: dict[int, list[float]] = {}
    for (_, epoch), value in by_epoch(blocks, values).items():
        of_epoch.setdefault(epoch, []).append(value)
    return [float(np.mean(of_epoch[epoch])) for epoch in sorted(of_epoch)]


def check_logs(run: RunFolder, published: PublishedTraining, blocks: Sequence[Block]) -> None:
    """Check that the summary's AU follows from the blocks. Raises SpecError."""
    if not blocks:
        return
    logged = over_ranks(blocks, [block.au for block in blocks])
    if len(logged) != len(published.au) or not np.allclose(logged, published.au, atol=ROUNDING):
        both = " and ".join(
            f"{100 * sum(au) / len(au):.2f} % in {len(au)} epochs" for au in (logged, published.au)
        )
        raise SpecError(f"{run.name}: the logs belong to another run: AU by logs and by summary is {both}")
