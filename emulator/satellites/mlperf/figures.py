"""From a run's documents to AU and X/X_ideal, with the known slips undone. Pure.

    AU as published    sum of compute without the first step / time without the first step, per block;
                       weighted by steps over an epoch's blocks, mean over ranks, mean over epochs
    AU recomputed      the same with nominal compute, which an overslept wait does not raise
    X, same steps      (n - 1) x batch / time without the first step: v2.0 writes (n - 2)
    X, all steps       n x batch / time: v0.5 and v1.0 publish this one

X_ideal is batch / step time. With nominal compute AU is X / X_ideal over the same steps, by definition; a
start-up shows in X over all steps alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from emulator.config.workload import Workload
from emulator.satellites.mlperf.folder import Block, Published, RunFolder, epoch_seconds

HIDDEN = 0.02
"""Share of the ideal throughput that may lie between AU and X/X_ideal over all steps before it is said."""
OVERSLEPT = 0.005
"""Share by which the published AU may exceed the recomputed one before it is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Shares are of 1."""

    au_published: float
    """Mean over epochs."""
    au: float | None
    """Recomputed from nominal compute; None where neither logs nor a known formula allow it."""
    x_ideal: float | None
    """Throughput / ideal, over the steps of AU."""
    x_ideal_first: float | None
    """Throughput / ideal over all steps, start-up included."""
    skips: int
    """Steps that the published throughput leaves out of its count: 2 in v2.0, 0 before."""
    from_logs: bool
    """True: from the logs of the ranks; False: from the summary and the epochs' times."""

    @property
    def verdict(self) -> str:
        """One line for people."""
        if self.x_ideal_first is None:
            return f"AU {_percent(self.au_published)}; X/X_ideal cannot be computed from what was published"
        line = f"AU {_percent(self.au_published)}, X/X_ideal {_percent(self.x_ideal_first)}"
        slept = self.au_published - self.au if self.au is not None else 0.0
        own = self.au_published - max(slept, 0.0) - self.x_ideal_first
        said = []
        if own > HIDDEN:
            said.append(f"start-up and the excluded first step hide {own * 100:.0f} points")
        if slept > OVERSLEPT:
            said.append(f"oversleep counted as compute adds {slept * 100:.1f} points to AU")
        return line + (": " + "; ".join(said) if said else ": they agree")


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def skipped_steps(run: RunFolder, blocks: Sequence[Block], batch: int) -> int:
    """How many steps the published throughput leaves out: by the logs where they tell, else by the layout.

    A block's time follows from its AU; then (steps - skips) x batch / throughput is either that time with
    skips 0, or that time without the first step with skips 2.
    """
    votes = []
    for block in blocks:
        if block.steps < 4 or not block.au or not block.throughput:
            continue
        rest = float(block.compute[1:].sum()) / block.au
        every = abs(block.steps * batch / block.throughput / (rest + float(block.proc[0])) - 1)
        fewer = abs((block.steps - 2) * batch / block.throughput / rest - 1)
        votes.append(2 if fewer < every else 0)
    if votes:
        return 2 if sum(votes) > len(votes) else 0
    return 2 if run.layout == "v2.0" else 0


def figures(run: RunFolder, said: Published, workload: Workload, blocks: Sequence[Block]) -> Figures:
    """AU and X/X_ideal of `run`, from the logs where there are some, else from the summary."""
    batch, step = workload.loader.batch_size, workload.accelerator.step_seconds
    skips = skipped_steps(run, blocks, batch)
    published = sum(said.au) / len(said.au)
    same: float | None = None
    first: float | None = None
    if step > 0 and blocks:
        same = _mean(blocks, lambda block: _rate(block, batch, skips, leave=1) * step)
        first = _mean(blocks, lambda block: _rate(block, batch, skips, leave=0) * step)
    elif step > 0:
        same, first = _from_summary(run, said, workload, skips)
    return Figures(
        au_published=published, au=same, x_ideal=same, x_ideal_first=first, skips=skips,
        from_logs=bool(blocks),
    )  # fmt: skip


def _rate(block: Block, batch: int, skips: int, leave: int) -> float:
    """Steps/s of a block, `leave` first steps left out of steps and time."""
    seconds = block.seconds(batch, skips) - (float(block.proc[0]) if leave else 0.0)
    return (block.steps - leave) / seconds if seconds > 0 else 0.0


def _mean(blocks: Sequence[Block], value: Callable[[Block], float]) -> float:
    """Weighted by steps over the blocks of an epoch of a rank, mean over ranks and epochs: as coded."""
    sums: dict[tuple[int, int], tuple[float, int]] = {}
    for block in blocks:
        total, steps = sums.get((block.rank, block.epoch), (0.0, 0))
        sums[block.rank, block.epoch] = (total + value(block) * block.steps, steps + block.steps)
    return float(np.mean([total / steps for total, steps in sums.values()]))


def steps_per_epoch(said: Published, batch: int) -> int:
    """Whole steps of all accelerators in an epoch."""
    return said.files * said.samples_per_file // (batch * said.accelerators)


def _from_summary(
    run: RunFolder, said: Published, workload: Workload, skips: int
) -> tuple[float | None, float | None]:
    """(X/X_ideal over the steps of AU, over all steps) without logs.

    v1.0: AU counts nominal compute, so it is the former, and the published throughput is the latter. v2.0:
    the published throughput times (n - 1) / (n - 2) is the former; the latter follows from the epochs' times.
    """
    batch = workload.loader.batch_size
    ideal = said.accelerators * workload.ideal_samples_per_second
    steps = steps_per_epoch(said, batch)
    rate = sum(said.samples_per_second) / len(said.samples_per_second)
    if not skips:
        return sum(said.au) / len(said.au), rate / ideal
    if steps < 3:
        return None, None
    times = [epoch_seconds(run, epoch) for epoch in range(len(said.au))]
    known = [seconds for seconds in times if seconds is not None]
    whole = (
        float(np.mean([steps * batch * said.accelerators / seconds for seconds in known])) if known else None
    )
    same = rate * (steps - 1) / (steps - skips) / ideal
    return same, None if whole is None else whole / ideal
