"""Recompute a published run's figures from its documents, with DLIO's errors corrected. Pure.

    AU as published    sum of compute without the first step / time without the first step, per block;
                       weighted by steps over an epoch's blocks, mean over ranks, mean over epochs
    AU recomputed      the same with nominal compute, so that oversleep does not count as compute
    X, same steps      (n - 1) x batch / time without the first step; v3.0 publishes it, v2.0 has (n - 2)
    X, all steps       n x batch / time; v0.5 and v1.0 publish it

X_ideal is batch / step time. With nominal compute AU is X / X_ideal over the same steps, by definition; a
slow start shows only in X over all steps. DLIO's MB is 2^20 bytes, its GB 2^30.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.config.workload import Workload
from emulator.plugins.mlperf.logs import ROUNDING, Block, by_epoch, epoch_seconds
from emulator.plugins.mlperf.summary import PublishedTraining
from emulator.plugins.mlperf.tree import RunFolder

HIDDEN_SHARE = 0.02
"""AU - X/X_ideal over all steps above which start-up is reported. A share of 1."""
OVERSLEPT = 0.005
"""Published - recomputed AU above which oversleep is reported. A share of 1."""
MOST = 1.02
"""X/X_ideal above which figures are impossible: accelerators cannot take more than they demand."""
SKIPS = {"v1.0": 0, "v2.0": 2, "v3.0": 1}
"""Steps that the throughput does not count, by version. 0 means that it is over the whole time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Published and recomputed AU and throughput. Shares of 1."""

    au_published: float
    """Mean over epochs."""
    x_ideal: float | None
    """Throughput / ideal over the steps of AU, which is the recomputed AU. None without logs or a known
    formula."""
    x_ideal_first: float | None
    """Throughput / ideal over all steps, start-up included."""
    skips: int | None
    """Steps that the published throughput does not count; None if unknown."""
    either: tuple[float, float] | None = None
    """x_ideal by the formulas of v3.0 and v2.0, if it is unknown which one was used."""

    @property
    def overslept(self) -> float:
        """Share of the published AU that was oversleep."""
        return self.au_published - self.x_ideal if self.x_ideal is not None else 0.0

    @property
    def verdict(self) -> str:
        au = f"AU {self.au_published * 100:.1f} %"
        if self.either is not None:
            by = " or ".join(
                f"{share * 100:.2f} % by {version}'s"
                for share, version in zip(self.either, ("v3.0", "v2.0"), strict=True)
            )
            return f"{au}; the formula of its throughput is unknown: X/X_ideal is {by}"
        most = max(share for share in (self.x_ideal, self.x_ideal_first, 0.0) if share is not None)
        if most > MOST:
            return f"{au}, X/X_ideal {most * 100:.1f} %: impossible, its documents are from several runs"
        if self.x_ideal is not None and self.x_ideal > self.au_published + ROUNDING:
            return f"{au}, but its throughput gives {self.x_ideal * 100:.2f} %: they contradict each other"
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
    run: RunFolder,
    published: PublishedTraining,
    workload: Workload,
    blocks: Sequence[Block],
    version: str | None,
) -> Figures:
    """Recompute AU and X/X_ideal of `run` from the blocks of its logs, or from the summary without logs.

    Without logs: v1.0's AU counts nominal compute, so it is X/X_ideal over the same steps, and its published
    throughput is over all steps. X over the same steps is v3.0's throughput, or v2.0's x (n - 1) / (n - 2);
    X over all steps follows from the epochs' times.
    """
    batch, step = workload.loader.batch_size, workload.accelerator.step_seconds
    skips = skipped_steps(blocks, batch, version)
    au = published.mean_au
    if step > 0 and blocks:  # a block's AU gives its time, without the formula of its throughput
        same, whole = (_x_ideal(blocks, batch, step, skips or 0, first) for first in (1, 0))
        return Figures(au_published=au, x_ideal=same, x_ideal_first=whole, skips=skips)
    steps = published.steps_per_epoch(batch)
    if step <= 0 or steps < 3:
        return Figures(au_published=au, x_ideal=None, x_ideal_first=None, skips=skips)
    share = published.mean_rate
    share /= published.num_accelerators * workload.ideal_samples_per_second
    if skips == 0:
        return Figures(au_published=au, x_ideal=au, x_ideal_first=share, skips=0)
    times = [epoch_seconds(run, epoch) for epoch in range(len(published.au))]
    shares = [steps * step / seconds for seconds in times if seconds]
    every = float(np.mean(shares)) if shares else None
    by_v2 = share * (steps - 1) / (steps - 2)
    if skips != 1 and by_v2 > au + ROUNDING:  # above the published AU, which v2.0's formula cannot be
        skips = 1
    if skips is None:
        return Figures(au_published=au, x_ideal=None, x_ideal_first=every, skips=None, either=(share, by_v2))
    return Figures(au_published=au, x_ideal=by_v2 if skips == 2 else share, x_ideal_first=every, skips=skips)


def skipped_steps(blocks: Sequence[Block], batch: int, version: str | None) -> int | None:
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
    return SKIPS[version] if version else None


def _x_ideal(blocks: Sequence[Block], batch: int, step: float, skips: int, first: int) -> float:
    """Return throughput / ideal, without the first step of each block when `first` is 1.

    As in DLIO, blocks of one rank and epoch are weighted by steps; then it is the mean over ranks and epochs.
    """
    shares = []
    for block in blocks:
        seconds = block.seconds(batch, skips) - float(block.proc[:first].sum())
        shares.append((block.steps - first) * step / seconds if seconds > 0 else 0.0)
    return float(np.mean([*by_epoch(blocks, shares).values()]))
