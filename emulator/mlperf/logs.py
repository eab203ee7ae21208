"""The logs of ranks ({rank}_output.json): blocks of steps, their times, and rows of our step log.

A block is what lies between two checkpoints. DLIO writes for each step `load` (the wait for a batch), `proc`
(load and compute together, measured) and `compute` (nominal in v1.0, the measured sleep later), and for each
block `au` and `throughput`; the length of the block follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import SpecError
from emulator.mlperf.folder import RunFolder
from emulator.record.step import STEP, Steps

Floats = NDArray[np.float64]
_LONGEST = 1e7
"""Seconds of a step, at most."""
_BLOCKS = 10_000


@dataclass(frozen=True, slots=True)
class Block:
    """Steps of one rank between two checkpoints. Seconds."""

    rank: int
    epoch: int
    """From 0."""
    number: int
    """Within the epoch, from 1."""
    load: Floats
    proc: Floats
    compute: Floats
    au: float
    """Published, 0 to 1."""
    throughput: float
    """Published, samples/s of this rank."""

    @property
    def steps(self) -> int:
        return len(self.proc)

    def seconds(self, batch: int, skips: int) -> float:
        """How long the block took, first step and barriers included.

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


def blocks_of(run: RunFolder, accelerators: int) -> list[Block]:
    """The blocks of all ranks; none unless every rank's log is there. Raises SpecError."""
    if sorted(run.logs) != list(range(accelerators)):
        return []
    found = [block for rank in sorted(run.logs) for block in _of_rank(run, rank)]
    shapes = {
        rank: [(b.epoch, b.number, b.steps) for b in found if b.rank == rank] for rank in range(accelerators)
    }
    if not found or any(shape != shapes[0] for shape in shapes.values()):
        raise SpecError(f"{run.name}: the logs of its ranks do not have the same steps")
    return found


def _of_rank(run: RunFolder, rank: int) -> list[Block]:
    log, name = run.logs[rank], f"{run.name}/{rank}_output.json"
    epochs = sorted((key for key in log if key.isdecimal() and len(key) < 9), key=int)
    found = []
    for epoch, key in enumerate(epochs):
        table = log[key] if isinstance(log[key], Mapping) else {}
        loads = table.get("load")
        names = [one for one in loads if one.startswith("block")] if isinstance(loads, Mapping) else []
        if len(names) > _BLOCKS or any(not one[5:].isdecimal() for one in names):
            raise SpecError(f"{name}: epoch {key} has blocks that are none")
        found += [_block(table, rank, epoch, one, name) for one in sorted(names, key=lambda b: int(b[5:]))]
    return [block for block in found if block.steps]


def _block(table: Mapping[str, Any], rank: int, epoch: int, key: str, name: str) -> Block:
    lists = [_seconds(table, what, key, name) for what in ("load", "proc", "compute")]
    if len({len(one) for one in lists}) != 1:
        raise SpecError(f"{name}: {key} of epoch {epoch + 1} has lists of different lengths")
    load, proc, compute = lists
    au, rate = (_value(table, what, key) for what in ("au", "throughput"))
    return Block(rank, epoch, int(key[5:]), load, proc, compute, au / 100, rate)


def _seconds(table: Mapping[str, Any], what: str, key: str, name: str) -> Floats:
    inner = table.get(what)
    values = inner.get(key) if isinstance(inner, Mapping) else None
    good = isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LONGEST
        for value in values
    )
    if not good:
        raise SpecError(f"{name}: {what} of {key} must be a list of seconds")
    return np.array(values, dtype=np.float64)


def _value(table: Mapping[str, Any], what: str, key: str) -> float:
    inner = table.get(what)
    value = inner.get(key) if isinstance(inner, Mapping) else None
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1e15 else 0.0


def step_rows(
    blocks: Sequence[Block], point: int, step_seconds: float, batch: int, sample_bytes: float, skips: int
) -> Steps:
    """The blocks as rows of our step log.

    Compute is nominal; what the sleep took beyond it is overshoot. What a block took beyond its steps,
    barriers and bookkeeping, is spread evenly over them: DLIO does not log it step by step.
    """
    parts = [np.zeros(0, dtype=STEP)]
    clock: dict[int, float] = {}
    counted: dict[tuple[int, int], int] = {}
    for block in blocks:
        rows = np.zeros(block.steps, dtype=STEP)
        seconds = block.seconds(batch, skips)
        rows["point"], rows["rank"], rows["epoch"] = point, block.rank, block.epoch
        done = counted.get((block.rank, block.epoch), 0)
        rows["step"] = done + np.arange(block.steps)
        rows["samples"], rows["bytes"] = batch, round(batch * sample_bytes)
        rows["wait"] = block.load
        rows["compute"] = step_seconds
        rows["overshoot"] = block.proc - block.load - step_seconds
        rows["barrier"] = (seconds - float(block.proc.sum())) / block.steps
        lengths = block.proc + rows["barrier"]
        begin = clock.get(block.rank, 0.0)
        rows["begin"] = begin + np.concatenate([[0.0], np.cumsum(lengths)[:-1]])
        clock[block.rank] = begin + float(lengths.sum())
        counted[block.rank, block.epoch] = done + block.steps
        parts.append(rows)
    return np.concatenate(parts)


def epoch_seconds(run: RunFolder, epoch: int) -> float | None:
    """Seconds of the blocks of an epoch (from 0), checkpoints left out, by the first rank's clock."""
    stats = run.epochs.get("", run.epochs.get("0", {})).get(str(epoch + 1))
    if stats is None:
        return None
    spans = [_span(table) for key, table in stats.items() if key.startswith("block")]
    known = [span for span in spans if span is not None]
    return sum(known) if known and len(known) == len(spans) else None


def _span(table: Any) -> float | None:
    """From its start to its end; None when it does not say."""
    if not isinstance(table, Mapping):
        return None
    try:
        begin, end = (datetime.fromisoformat(str(table.get(key))) for key in ("start", "end"))
        span = (end - begin).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return span if 0 < span < _LONGEST * 1000 else None
