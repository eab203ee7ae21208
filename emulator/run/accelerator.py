"""The emulated accelerator: draws step times from a profile and sleeps for as long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.config.workload import AcceleratorSpec


class Clock(Protocol):
    """A monotonic clock in seconds. Tests pass their own."""

    def now(self) -> float: ...

    def sleep_until(self, deadline: float) -> None: ...


class MonotonicClock:
    """CLOCK_MONOTONIC, which all processes of a Linux host share. Sleeps; never spins."""

    def now(self) -> float:
        return time.monotonic()

    def sleep_until(self, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining > 0:
            time.sleep(remaining)


_DOMAIN = 0x5354455054494D45
"""Counter word that separates these random numbers from others of a Philox with the same seed."""
_WORDS = 4
"""Random words per Philox counter."""
_AHEAD = 256
"""Steps drawn at once."""
KEPT = 200
"""Most step times that a profile stores."""


def quantiles_of(times: NDArray[np.float64]) -> tuple[float, ...]:
    """Return the means of equal parts of the sorted `times`; they preserve the mean exactly."""
    count = min(KEPT, len(times))
    total = np.concatenate([[0.0], np.cumsum(np.sort(times))])
    edges = np.interp(np.linspace(0, len(times), count + 1), np.arange(len(total)), total)
    means = np.maximum.accumulate(np.diff(edges) * (count / len(times)))
    return tuple(means.tolist())


def uniforms(seed: int, rank: int, first: int, steps: int) -> NDArray[np.float64]:
    """Return numbers in [0, 1) for `steps` steps from step `first` on, over all epochs; shape (steps,)."""
    block, skipped = divmod(first, _WORDS)
    key = np.array([seed, rank], dtype=np.uint64)
    philox = np.random.Philox(key=key, counter=np.array([block, _DOMAIN, 0, 0], dtype=np.uint64))
    # NumPy guarantees the same raw words in all its versions, but not the same distributions.
    raw = philox.random_raw(skipped + steps)[skipped:]
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def step_times(spec: AcceleratorSpec, seed: int, rank: int, first: int, steps: int) -> NDArray[np.float64]:
    """Return nominal compute seconds of `steps` steps of a rank from step `first` on; shape (steps,).

    They are constant, or drawn independently and uniformly from the profile's times. They depend on seed,
    step and, unless `spec.together`, rank, but not on the number of ranks. The profile's autocorrelation is
    not reproduced.
    """
    if spec.compute == "constant" or spec.quantiles is None:
        return np.full(steps, spec.step_seconds)
    times = np.array(spec.quantiles)
    drawn = uniforms(seed, 0 if spec.together else rank, first, steps) * len(times)
    chosen: NDArray[np.float64] = times[drawn.astype(np.int64)]
    return chosen


def endless(spec: AcceleratorSpec, seed: int, rank: int) -> Iterator[float]:
    """Yield the values of `step_times` from step 0 on, without end."""
    for block in count():
        yield from step_times(spec, seed, rank, block * _AHEAD, _AHEAD).tolist()


class Accelerator:
    """Emulates compute by sleeping for each of `times`, in seconds.

    The process goes on while steps are queued, and sleeps until all are done after every `in_flight` of them,
    as a host does that fetches the loss every so many steps. A queue that is never worked off would hide more
    of storage's delays: simulated jobs were up to 9 % slower than that.
    """

    def __init__(self, times: Iterator[float], clock: Clock, in_flight: int = 1) -> None:
        self._times = times
        self._clock = clock
        self._submitted = count(1)
        self._in_flight = in_flight

    def compute(self, begin: float) -> tuple[float, float]:
        """Queue the step that begins at `begin`, and sleep if it is one that the host waits for.

        Return its nominal seconds and its end. A step that should have ended before now ends now.
        """
        nominal = next(self._times)
        # The deadline is absolute: host work since `begin` overlaps the step, as with a real accelerator, and
        # late wake-ups do not add up. 500 relative sleeps of 5 ms drifted by 97 ms on an idle machine, by
        # 2.1 s on a busy one.
        end = max(begin + nominal, self._clock.now())
        if next(self._submitted) % self._in_flight == 0:
            self._clock.sleep_until(end)
        return nominal, end
