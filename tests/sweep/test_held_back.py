"""A sweep among runs that the client held back: it tries again, and such runs say nothing of the storage."""

import math
from dataclasses import replace

import numpy as np
import pytest
from synthetic_results import point

from emulator.analysis.evidence import left_out, limited_by_client, usable
from emulator.analysis.knee import find_knee
from emulator.analysis.search import KneeSearch
from emulator.record.result import Bound, Point
from emulator.run.accelerator import MonotonicClock
from emulator.sweep.adaptive import Adaptive

STORAGE = 20e9
"""Bytes/s: twelve accelerators."""
POOR = 5e9
"""Throughput that the client gets while others have its cores."""


def run(ranks: int, client: str | None = None) -> Point:
    made = point(ranks, POOR if client else STORAGE)
    return replace(made, bound=Bound(kind=client or "storage", evidence=("...",)))  # type: ignore[arg-type]


def adaptive(**limits: int) -> Adaptive:
    return Adaptive(KneeSearch(maximum=64, **limits), MonotonicClock())


def test_a_disturbed_count_is_run_again_once():
    schedule = adaptive()
    first = schedule.next_count([])
    assert first is not None
    storm = run(first, "client-cpu")
    assert limited_by_client(storm)
    assert schedule.next_count([storm]) == first
    calm, undisturbed = schedule.next_count([storm, run(first)]), schedule.next_count([run(first)])
    assert calm == undisturbed, "the run in the storm chooses nothing once there is another"
    assert schedule.next_count([storm, storm]) != first


@pytest.mark.parametrize("most", [1, 6])
def test_disturbed_runs_count_as_runs(most):
    schedule, points = adaptive(max_runs=most), []
    assert [len(adaptive(max_runs=runs).expected([], math.inf)) for runs in (6, 2)] == [6, 2]
    while (count := schedule.next_count(points)) is not None:
        clean = any(point.ranks == count for point in points)
        points.append(run(count, None if clean else "client-cpu"))
    assert len(points) <= most
    assert schedule.verdict(points)


@pytest.mark.parametrize("cores", [0, 1, 5, 40])
@pytest.mark.parametrize("largest", [3, 16, 64])
def test_where_only_the_client_is_the_limit_it_is_bracketed_and_left(cores, largest):
    """The client has cores for so many accelerators. A sweep up to 3 went on to nine runs."""
    schedule = Adaptive(KneeSearch(maximum=largest), MonotonicClock())
    points: list[Point] = []
    while (count := schedule.next_count(points)) is not None:
        made = point(count, max(cores, 0.5) * STORAGE / 12)
        kind = "client-cpu" if count > cores else "compute"
        points.append(replace(made, bound=Bound(kind=kind, evidence=("...",))))
    if largest > cores:
        assert len(points) <= 4 + np.ceil(np.log2(largest))
        assert find_knee(points).kind == "at-least"
        assert (find_knee(points).fed or 0) >= 0.9 * cores - 1
        assert "the limit is client CPU, not the storage" in schedule.verdict(points)


def test_fed_all_the_same_is_evidence():
    late = run(2, "client-cpu")
    late = replace(late, x_ideal=0.99, samples_per_second=0.99 * late.ideal_samples_per_second)
    assert not limited_by_client(late)
    assert usable([late, run(32)]) == [late, run(32)]


def test_what_is_left_out_is_counted_by_its_reason():
    points = [run(4), run(8), run(16, "client-cpu"), run(32, "loader"), run(64)]
    assert usable(points) == [points[0], points[1], points[4]]
    assert left_out(points) == ["2 of 5 runs (limited by the client)"]
