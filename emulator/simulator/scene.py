"""What an engine plays and what it returns. The only interface between engines and everybody else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Ranks that read, compute and wait for each other, and the bandwidth that they share.

    Each rank reads its batches in order, the next one as soon as at most `prefetch` batches are ahead of
    the one that it computes on; with prefetch 0 it begins to read a batch when it needs it. Rank a is on
    host a mod hosts.
    """

    size: Floats
    """Bytes of each batch, shape (steps, ranks)."""
    compute: Floats
    """Seconds of compute of each step, shape (steps, ranks); (1, 1) when it is constant."""
    gates: Bools
    """True where all ranks wait for each other after the step, shape (steps,)."""
    prefetch: int
    """Batches read ahead of the accelerator, at most."""
    system: float = np.inf
    """Bytes/s of all ranks together."""
    host: float = np.inf
    """Bytes/s of the ranks of one host together."""
    rank: float = np.inf
    """Bytes/s of one rank."""
    hosts: int = 1
    latency: float = 0.0
    """Seconds before the first byte for a rank that had nothing to read."""

    @property
    def steps(self) -> int:
        return int(self.size.shape[0])

    @property
    def ranks(self) -> int:
        return int(self.size.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What happened in a scene."""

    ready: Floats
    """Second at which each batch was there and its compute began, shape (steps, ranks)."""
    events: int
    """Events that the engine went through."""


Engine = Callable[[Scene], Played]

FAST = 1e21
"""Bytes/s that stand for no limit: infinity would make 0 x infinity."""


def constant(seconds: float) -> Floats:
    """A compute time that is the same for every step."""
    return np.full((1, 1), float(seconds))


def ends(scene: Scene, ready: Floats) -> Floats:
    """Second at which each step ended, its barrier included: shape (steps, ranks)."""
    end: Floats = ready + scene.compute
    for step in np.flatnonzero(scene.gates):
        end[step] = end[step].max()
    return end
