"""Step times drawn from a profile: pure functions of (seed, rank, step), the same for any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

from emulator.spec.workload import AcceleratorSpec

_DOMAIN = 0x5354455054494D45
"""Keeps these numbers apart from the others that are drawn with a Philox of the same seed."""
_WORDS = 4
"""Random words of one Philox counter."""
_AHEAD = 256
"""Steps that are drawn at a time."""


def uniforms(seed: int, rank: int, first: int, steps: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each step from number `first` on, counted over all epochs; shape (steps,)."""
    block, skipped = divmod(first, _WORDS)
    key = np.array([seed, rank], dtype=np.uint64)
    philox = np.random.Philox(key=key, counter=np.array([block, _DOMAIN, 0, 0], dtype=np.uint64))
    # Raw words: NumPy promises that these stay the same in all its versions.
    raw = philox.random_raw(skipped + steps)[skipped:]
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def step_times(spec: AcceleratorSpec, seed: int, rank: int, first: int, steps: int) -> NDArray[np.float64]:
    """Nominal seconds of compute of the steps `first`, `first` + 1, ... of a rank; shape (steps,).

    Constant, or drawn from the measured times: all equally likely, independent of each other, so that
    their mean is that of the profile. The autocorrelation that the profile states is not reproduced.
    """
    if spec.compute == "constant" or spec.quantiles is None:
        return np.full(steps, spec.step_seconds)
    times = np.array(spec.quantiles)
    drawn: NDArray[np.float64] = times[(uniforms(seed, rank, first, steps) * len(times)).astype(np.int64)]
    return drawn


def endless(spec: AcceleratorSpec, seed: int, rank: int) -> Iterator[float]:
    """The same, step after step without end."""
    for block in count():
        yield from step_times(spec, seed, rank, block * _AHEAD, _AHEAD).tolist()
