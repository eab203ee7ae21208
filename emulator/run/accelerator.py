"""The emulated accelerator: step times drawn from a profile, and the clock by which it waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.config.workload import AcceleratorSpec


class Clock(Protocol):
    """Seconds on a monotonic axis. Tests pass a clock of their own."""

    def now(self) -> float: ...

    def sleep_until(self, deadline: float) -> None: ...


class MonotonicClock:
    """CLOCK_MONOTONIC: one axis for all processes of a Linux machine. Sleeps; never spins."""

    def now(self) -> float:
        return time.monotonic()

    def sleep_until(self, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining > 0:
            time.sleep(remaining)


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

    Constant, or drawn from the measured times: each as likely as any other and independent, so that the mean
    is the profile's. They depend on seed, step and, unless `spec` has them together, rank alone, not on the
    number of ranks. The autocorrelation that the profile states is not reproduced.
    """
    if spec.compute == "constant" or spec.quantiles is None:
        return np.full(steps, spec.step_seconds)
    times = np.array(spec.quantiles)
    drawn = uniforms(seed, 0 if spec.together else rank, first, steps) * len(times)
    found: NDArray[np.float64] = times[drawn.astype(np.int64)]
    return found


def endless(spec: AcceleratorSpec, seed: int, rank: int) -> Iterator[float]:
    """The same times, step after step without end."""
    for block in count():
        yield from step_times(spec, seed, rank, block * _AHEAD, _AHEAD).tolist()


class Accelerator:
    """Computes by waiting, for one of `times` (seconds) after the other. Nothing spins."""

    def __init__(self, times: Iterator[float], clock: Clock) -> None:
        self._times = times
        self._clock = clock

    def compute(self, begin: float) -> tuple[float, float]:
        """Return when the step that began at `begin` is computed; its nominal seconds and its end.

        What the caller did since `begin` is hidden behind the step, as host work is hidden behind a real
        accelerator. A step that would be over already ends now.
        """
        nominal = next(self._times)
        # An absolute deadline: each sleep ends a little late, and relative sleeps add that up (500 sleeps of
        # 5 ms drifted by 97 ms on an idle machine, by 2.1 s on a busy one).
        end = max(begin + nominal, self._clock.now())
        self._clock.sleep_until(end)
        return nominal, end
