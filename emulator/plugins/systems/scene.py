"""A scene of ranks that read, compute and wait for each other; its simulated times and step log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from emulator.analysis.parts import Floats
from emulator.analysis.throughput import kind_of_step
from emulator.errors import MissingError
from emulator.order import EpochPlan
from emulator.record.steps import STEP, Steps

Bools = NDArray[np.bool_]

RANKS_AT_ONCE = 4096
"""Ranks that are summed at once: 100,000 ranks x 500 steps as rows of STEP take 4 GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Ranks that read, compute and wait for each other, and the bandwidth that they share.

    Each rank reads its batches in order, at most `prefetch` batches ahead of the one that it computes on;
    with 0 it starts to read a batch when it needs it. Rank a is on host a mod hosts.
    """

    size: Floats
    """Bytes of each batch, shape (steps, ranks)."""
    compute: Floats
    """Seconds of compute of each step, shape (steps, ranks); (1, 1) if they are constant."""
    gates: Bools
    """True if all ranks wait for each other after the step, shape (steps,)."""
    prefetch: int
    """Most batches read ahead of the accelerator."""
    system: float = np.inf
    """Bytes/s of all ranks together."""
    host: float = np.inf
    """Bytes/s of the ranks of one host together."""
    rank: float = np.inf
    """Bytes/s of one rank."""
    hosts: int = 1
    latency: float = 0.0
    """Seconds to the first byte for a rank with no read in progress."""
    step_cost: float = 0.0
    """Seconds from the arrival of a batch to the start of its compute, which prefetching does not hide."""
    start: float = 0.0
    """Seconds before any rank requests its first batch."""
    epoch: int = 0
    """Steps per epoch if each epoch starts with nothing prefetched; 0 if reading continues across epochs."""

    @property
    def steps(self) -> int:
        return int(self.size.shape[0])

    @property
    def ranks(self) -> int:
        return int(self.size.shape[1])

    @property
    def compute_of_each(self) -> Floats:
        """`compute` with the shape (steps, ranks), without a copy."""
        return np.broadcast_to(self.compute, self.size.shape)


def gates_of(sync: str, ends_epoch: Bools) -> Bools:
    """Return `Scene.gates` of a workload's `training.sync`, from which steps end an epoch."""
    return (ends_epoch & (sync == "epoch")) | (sync == "step")


@dataclass(frozen=True, kw_only=True)
class Played:
    """The times of a simulated scene."""

    scene: Scene
    ready: Floats
    """Seconds at which each step's compute began, shape (steps, ranks)."""

    @cached_property
    def released(self) -> Floats:
        """Seconds at which all ranks continued after each step, shape (steps, 1); -1 without a barrier."""
        found = np.full((self.scene.steps, 1), -1.0)
        compute = self.scene.compute_of_each
        for step in np.flatnonzero(self.scene.gates):
            found[step] = (self.ready[step] + compute[step]).max()
        return found

    def end(self, ranks: slice | NDArray[np.int64], steps: slice = slice(None)) -> Floats:
        """Return the time at which each step of these ranks ended, barrier included, shape (steps, ranks).

        The result for all ranks is as large as `ready`.
        """
        done = self.ready[steps, ranks] + self.scene.compute_of_each[steps, ranks]
        return np.maximum(done, self.released[steps])

    def columns(self, ranks: slice | NDArray[np.int64]) -> dict[str, Floats]:
        """Return columns of the step log of these ranks, each of shape (steps, ranks).

        Overshoot is 0, because no process is late. The engine does not record arrivals of prefetched batches.
        """
        ready, end, size = self.ready[:, ranks], self.end(ranks), self.scene.size[:, ranks]
        compute = self.scene.compute_of_each[:, ranks]
        begin = np.concatenate([np.zeros((1, ready.shape[1])), end[:-1]])
        return {
            "bytes": np.rint(size),
            "begin": begin,
            "wait": ready - begin,
            "compute": compute,
            "barrier": end - ready - compute,
            "requested": np.full(size.shape, np.nan),
            "arrived": np.full(size.shape, np.nan),
        }

    def rows(self, ranks: NDArray[np.int64], plan: EpochPlan, point: int) -> Steps:
        """Return the step log of `ranks`, ordered by rank and step."""
        number = np.arange(self.scene.steps)
        rows = np.zeros((len(ranks), self.scene.steps), dtype=STEP)
        rows["point"], rows["rank"], rows["samples"] = point, ranks[:, None], plan.batch_size
        rows["epoch"], rows["step"] = number // plan.steps, number % plan.steps
        for name, column in self.columns(ranks).items():
            rows[name] = column.T
        return rows.reshape(-1)

    def totals(self, batch_size: int, epoch: int) -> tuple[Steps, Steps, Steps]:
        """Return three tables with a row per rank: sums of all steps, of those of X, and of those of AU.

        `epoch` is the steps of an epoch. The formulas of analysis.throughput have the same results for these
        rows as for the steps that its `busy` and `steady` select.
        """
        ranks = self.scene.ranks
        every, lasting, utilised = (np.zeros(ranks, STEP) for _ in range(3))
        number = np.arange(self.scene.steps)[:, None]
        first_end = self.end(slice(None), slice(-1, None)).min()
        for start in range(0, ranks, RANKS_AT_ONCE):
            part = slice(start, start + RANKS_AT_ONCE)
            together, columns = self.end(part) <= first_end + 1e-9, self.columns(part)
            for rows, wanted in ((every, None), (lasting, number > 0), (utilised, number % epoch > 0)):
                if wanted is None:
                    kept = np.ones(together.shape, np.bool_)
                else:
                    kind = kind_of_step(wanted, number > 0, together)
                    kept = kind == kind.min(axis=0)
                rows["samples"][part] = batch_size * kept.sum(axis=0)
                for name in ("bytes", "wait", "compute", "barrier"):
                    rows[name][part] = np.where(kept, columns[name], 0.0).sum(axis=0)
        every["rank"] = lasting["rank"] = utilised["rank"] = np.arange(ranks)
        return every, lasting, utilised


def play(scene: Scene) -> Played:
    """Simulate `scene` to its end. Raises MissingError without numba."""
    if find_spec("numba") is None:
        raise MissingError("simulate, fit and plan need numba", "pip install 'feedrate[sim]'")
    from emulator.plugins.systems.engine import play  # here, because it needs numba

    return Played(scene=scene, ready=play(scene) + scene.start + scene.step_cost)
