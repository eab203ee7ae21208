"""From what was played to rates and rows: the formulas of analysis.throughput on whole matrices.

100,000 ranks x 500 steps are 50 million rows, 3.4 GB; here they are two matrices, looked at in blocks of
ranks. A test holds the two ways of computing together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.plan import EpochPlan
from emulator.record.steps import STEP, Steps
from emulator.satellites.systems.engine import Bools, Floats, Scene

_BLOCK = 4096
"""Ranks that are looked at together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Rates of all ranks of a point together, as a result's point has them."""

    seconds: float
    samples_per_second: float
    bytes_per_second: float
    au: float
    samples_per_second_first: float
    """Over all steps, the first one included."""
    au_first: float
    wait_share: float
    barrier_share: float
    wait_of_rank: Floats
    """Seconds that each rank was blocked on its loader, shape (ranks,)."""


def outcome(scene: Scene, ready: Floats, end: Floats, batch_size: int) -> Outcome:
    """Rates over the steps in which all ranks were busy, and over all steps; `end` is that of scene.ends."""
    compute = np.broadcast_to(scene.compute, ready.shape)
    sums = np.zeros(7)
    waited = np.empty(scene.ranks)
    until = float(end[-1].min())
    for start in range(0, scene.ranks, _BLOCK):
        part = slice(start, start + _BLOCK)
        one = _Block(ready[:, part], end[:, part], compute[:, part], scene.size[:, part])
        sums += one.sums(batch_size, until)
        waited[part] = one.wait.sum(axis=0)
    total = float(sums[5])
    return Outcome(
        seconds=float(end[-1].max()),
        samples_per_second=float(sums[0]),
        bytes_per_second=float(sums[1]),
        au=float(sums[2]) / scene.ranks,
        samples_per_second_first=float(sums[3]),
        au_first=float(sums[4]) / scene.ranks,
        wait_share=float(waited.sum()) / total if total else 0.0,
        barrier_share=float(sums[6]) / total if total else 0.0,
        wait_of_rank=waited,
    )


class _Block:
    """Some ranks of a point."""

    def __init__(self, ready: Floats, end: Floats, compute: Floats, size: Floats) -> None:
        begin = np.concatenate([np.zeros((1, ready.shape[1])), end[:-1]])
        self.end, self.compute, self.size = end, compute, size
        self.wait = ready - begin
        self.barrier = end - ready - compute
        self.seconds = end - begin

    def kept(self, until: float) -> Bools:
        """The steady steps, as analysis.throughput.steady has them."""
        later = np.ones(self.end.shape, dtype=np.bool_)
        later[0] = False
        kept: Bools = later & (self.end <= until + 1e-9)
        for choice in (later, np.ones_like(later)):
            missing = ~kept.any(axis=0)
            kept[:, missing] = choice[:, missing]
        return kept

    def sums(self, batch_size: int, until: float) -> Floats:
        """X, bytes/s, AU over steady steps; X, AU over all; seconds, barrier seconds: summed over ranks."""
        kept = self.kept(until)
        steady = np.where(kept, self.seconds, 0.0).sum(axis=0)
        every = self.seconds.sum(axis=0)
        return np.array(
            [
                np.sum(kept.sum(axis=0) * batch_size / steady),
                np.sum(np.where(kept, self.size, 0.0).sum(axis=0) / steady),
                np.sum(np.where(kept, self.compute, 0.0).sum(axis=0) / steady),
                np.sum(len(self.end) * batch_size / every),
                np.sum(self.compute.sum(axis=0) / every),
                every.sum(),
                self.barrier.sum(),
            ]
        )


def step_rows(
    scene: Scene, ready: Floats, end: Floats, plan: EpochPlan, point: int, ranks: NDArray[np.int64]
) -> Steps:
    """The step log of `ranks`: rank after rank, each in the order of its steps. Overshoot is 0."""
    compute = np.broadcast_to(scene.compute, scene.size.shape)[:, ranks].T
    begin = np.concatenate([np.zeros((1, len(ranks))), end[:-1, ranks]]).T
    come, gone = ready[:, ranks].T, end[:, ranks].T
    number = np.arange(scene.steps)
    rows = np.zeros((len(ranks), scene.steps), dtype=STEP)
    rows["point"], rows["rank"] = point, ranks[:, None]
    rows["epoch"], rows["step"] = number // plan.steps, number % plan.steps
    rows["samples"] = plan.batch_size
    rows["bytes"] = np.rint(scene.size[:, ranks].T)
    rows["begin"], rows["wait"], rows["compute"] = begin, come - begin, compute
    rows["barrier"] = gone - come - compute
    return rows.reshape(-1)
