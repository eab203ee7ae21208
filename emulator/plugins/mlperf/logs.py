"""Logs of a run's ranks: the times of each step, and DLIO's AU of each block of steps. Pure.

A block is the steps between two checkpoints. DLIO logs for each of its steps `load` (the wait for a batch),
`proc` (load and compute together, measured) and `compute` (nominal in v1.0, the measured sleep later), and
for each block its AU, from which the length of the block follows.
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
from emulator.plugins.mlperf.published import Published
from emulator.plugins.mlperf.tree import RunFolder, as_table
from emulator.record.steps import STEP, Steps

_ROUNDING = 0.001
"""Largest difference between the AU of the logs and that of the summary. Shares of 1."""
_LONGEST_STEP = 1e7  # seconds


@dataclass(frozen=True, slots=True)
class Block:
    """Steps of one rank between two checkpoints. Seconds, shape (steps,)."""

    rank: int
    epoch: int
    """Number of the epoch, from 0."""
    load: Floats
    proc: Floats
    compute: Floats
    au: float
    """Published AU, 0 to 1."""

    @property
    def steps(self) -> int:
        return len(self.proc)

    @property
    def seconds(self) -> float:
        """Duration of the block, first step and barriers included, by its AU: at least that of its steps."""
        least = float(self.proc.sum())
        if self.au > 0:
            return max(least, float(self.compute[1:].sum()) / self.au + float(self.proc[0]))
        return least


def read_blocks(run: RunFolder, published: Published) -> list[Block]:
    """Read the blocks of all ranks; none unless every rank has a log.

    Raises SpecError if a log cannot be read, or if the summary's AU does not follow from the logs.
    """
    if run.logs.keys() != set(map(str, range(published.num_accelerators))):
        return []
    blocks: list[Block] = []
    shapes: set[tuple[tuple[int, int], ...]] = set()
    for rank in range(published.num_accelerators):
        of_rank = _blocks_of_rank(run.logs[str(rank)], rank, f"{run.name}/{rank}_output.json")
        shapes.add(tuple((block.epoch, block.steps) for block in of_rank))
        blocks += of_rank
    if not blocks or len(shapes) > 1:
        raise SpecError(f"{run.name}: the logs of its ranks do not have the same steps")
    logged = mean_of(blocks, [block.au for block in blocks])
    if abs(logged - published.au) > _ROUNDING:
        both = f"{logged * 100:.2f} % and {published.au * 100:.2f} %"
        raise SpecError(f"{run.name}: the logs belong to another run: AU by logs and by summary is {both}")
    return blocks


def _blocks_of_rank(log: Mapping[str, Any], rank: int, name: str) -> list[Block]:
    """Read the blocks of a log that have steps, in their order. Raises SpecError."""
    blocks = []
    for epoch, key in enumerate(sorted(filter(_is_number, log), key=int)):
        table = as_table(log[key])
        numbers = [block.removeprefix("block") for block in as_table(table.get("load"))]
        if not all(map(_is_number, numbers)):
            raise SpecError(f"{name}: epoch {key} has blocks with other names than block1, block2 ...")
        for number in sorted(numbers, key=int):
            block = _block(table, f"block{number}", rank, epoch, name)
            if block.steps:
                blocks.append(block)
    return blocks


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 9


def _block(table: Mapping[str, Any], block: str, rank: int, epoch: int, name: str) -> Block:
    """Read the block named `block` in the table of an epoch. Raises SpecError."""
    load, proc, compute = (_seconds(table, column, block, name) for column in ("load", "proc", "compute"))
    if not len(load) == len(proc) == len(compute):
        raise SpecError(f"{name}: {block} of epoch {epoch + 1} has lists of different lengths")
    percent = as_table(table.get("au")).get(block)
    if not isinstance(percent, int | float) or not 0 <= percent <= 1000:
        percent = 0.0
    return Block(rank, epoch, load, proc, compute, au=percent / 100)


def _seconds(table: Mapping[str, Any], column: str, block: str, name: str) -> Floats:
    """Return the seconds of each step in a column of a log. Raises SpecError."""
    values = as_table(table.get(column)).get(block)
    if not isinstance(values, list) or not all(
        type(value) in (int, float) and 0 <= value <= _LONGEST_STEP for value in values
    ):
        raise SpecError(f"{name}: {column} of {block} must be a list of seconds")
    return np.array(values, dtype=np.float64)


def step_rows(blocks: Sequence[Block], workload: Workload) -> Steps:
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
        barrier = (block.seconds - float((block.load + slept).sum())) / block.steps
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


def mean_of(blocks: Sequence[Block], values: Sequence[float]) -> float:
    """Return the mean of the blocks' values as DLIO forms it: in an epoch of a rank weighted by steps."""
    sums: dict[tuple[int, int], tuple[float, int]] = {}
    for block, value in zip(blocks, values, strict=True):
        total, steps = sums.get((block.rank, block.epoch), (0.0, 0))
        sums[block.rank, block.epoch] = (total + value * block.steps, steps + block.steps)
    return float(np.mean([total / steps for total, steps in sums.values()]))


def epoch_seconds(run: RunFolder, epoch: int) -> float | None:
    """Return an epoch's seconds in blocks, by the first rank's clock; None if not recorded."""
    by_rank = run.epochs.get("0", run.epochs.get("", {}))
    epoch_table = as_table(by_rank.get(str(epoch + 1)))
    times = [_span(table) for key, table in epoch_table.items() if key.startswith("block")]
    if not times or None in times:
        return None
    return sum(filter(None, times))


def _span(span: Any) -> float | None:
    """Return the seconds from start to end of a span; None if not recorded or impossible."""
    try:
        begin, end = (datetime.fromisoformat(str(span.get(key))) for key in ("start", "end"))
        seconds = (end - begin).total_seconds()
    except (ValueError, TypeError, OverflowError, AttributeError):
        return None
    return seconds if seconds > 0 else None
