"""The step log: one row per step per rank, for emulated and simulated runs alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STEP = np.dtype(
    [
        ("point", "<i4"),  # index into the result's list of points
        ("rank", "<i4"),  # rank among the active ones of the point
        ("epoch", "<i4"),
        ("step", "<i4"),  # within the epoch
        ("samples", "<i4"),  # samples in the batch
        ("bytes", "<i8"),  # bytes that were read for the batch
        ("begin", "<f8"),  # seconds since the start of the point, which all ranks share
        ("wait", "<f8"),  # seconds that the accelerator waited for the batch
        ("compute", "<f8"),  # nominal seconds of compute
        ("overshoot", "<f8"),  # seconds that it was occupied for longer than that
        ("barrier", "<f8"),  # seconds that it waited for other ranks
        ("late", "<f8"),  # seconds after the end of the step at which its process was there; in none of these
    ]
)
"""Layout of a row. `begin` of a step plus its wait, compute, overshoot and barrier is `begin` of the next."""

Steps = NDArray[np.void]
"""Rows of dtype STEP, shape (steps,)."""


class StepLog:
    """Rows of one rank, kept in memory; grows by doubling."""

    def __init__(self, point: int, rank: int) -> None:
        self._point = point
        self._rank = rank
        self._rows = np.zeros(256, dtype=STEP)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(
        self, *, epoch: int, step: int, samples: int, size: int, begin: float, wait: float,
        compute: float, overshoot: float, barrier: float, late: float,
    ) -> None:  # fmt: skip
        """Append one step; seconds and bytes as in STEP."""
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._rows[self._count] = (
            self._point, self._rank, epoch, step, samples, size, begin, wait, compute, overshoot, barrier,
            late,
        )  # fmt: skip
        self._count += 1

    def rows(self, since: int = 0) -> Steps:
        """The rows from number `since` on."""
        return self._rows[since : self._count]
