"""Find how many bytes of a mapped file a job's sample has, and how long it reads them, by replays.

Page faults do not show which bytes of a file were wanted, because the kernel reads around them. But it brings
more of the file, the more bytes a sample has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from emulator.plugins.recorder.observation import Loader
from emulator.plugins.recorder.pattern import PAGE
from emulator.plugins.recorder.steps import Pace, StepTime

_MOST_TRIES = 6
_REACH = 4
"""Largest ratio of the bytes of a sample to the first guess."""


def sample_bytes(of_job: float, first: int, close: float, delivered: Callable[[int], float]) -> int:
    """Return the bytes of a sample with which a replay gets `of_job` bytes from storage per batch.

    `delivered` replays samples of so many bytes, and returns what it got: more for more, give or take its
    noise. Begins at `first`, and follows the line through the last two sizes, or bisects where that leads
    out of what is left, until the relative difference is `close`, at most six times.
    """
    least, size, most, tries = PAGE, first, _REACH * first, list[tuple[float, int]]()
    before = (0, -1.0)  # nothing comes for nothing
    while True:
        difference = delivered(size) / of_job - 1
        tries.append((abs(difference), size))
        least, most = (size, most) if difference < 0 else (least, size)
        if abs(difference) < close or len(tries) == _MOST_TRIES or least >= most:
            return min(tries)[1]
        slope = (difference - before[1]) / (size - before[0])
        before, line = (size, difference), size - difference / slope if slope > 0 else 0.0
        size = round(line if least < line < most else math.sqrt(least * most))


def reads_unseen(step: StepTime, loader: Loader) -> bool:
    """Return True if the step time includes the page faults of a job that reads and computes in turn."""
    in_turn = loader.settings.marked and not loader.settings.workers
    return step.bound and in_turn and loader.reads.mapped > 0


def less_replayed(step: StepTime, job: Pace, replay: Pace) -> StepTime:
    """Return the step time of a job of pace `job` that reads as long as its replay, of pace `replay`."""
    waited = min(1.0, replay.waited * replay.seconds / job.seconds)
    seconds = (1 - waited) * job.seconds
    return replace(step, seconds=seconds, bound=False, in_turn=True, waited=waited, steps=job.steps)
