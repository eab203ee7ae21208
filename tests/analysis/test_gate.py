"""The truth table of --require: kind of knee x count asked for -> exit status."""

from __future__ import annotations

from dataclasses import replace

import pytest
from points import point

from emulator.analysis.gate import FED, NOT_FED, UNKNOWN, gate
from emulator.record.result import Bound, Knee

KNEE = Knee(
    kind="knee", n_au=10.4, n_98=9.0, n_saturation=11.0, peak_samples_per_second=None, interval=(8.7, 11.9),
    fed=9, starved=12, sentence="",
)  # fmt: skip


def bare(kind: str, **more: object) -> Knee:
    return replace(KNEE, kind=kind, n_au=None, interval=None, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("knee", "required", "status"),
    [
        (KNEE, 8, FED),
        (KNEE, 9, UNKNOWN),
        (KNEE, 11, UNKNOWN),
        (KNEE, 12, NOT_FED),
        (bare("beyond", fed=16, starved=None), 16, FED),
        (bare("beyond", fed=16, starved=None), 17, UNKNOWN),
        (bare("below", fed=None, starved=4), 4, NOT_FED),
        (bare("below", fed=None, starved=4), 2, UNKNOWN),
        (bare("at-least", fed=6, starved=9), 6, FED),
        (bare("at-least", fed=6, starved=9), 12, UNKNOWN),
        (bare("not-identifiable", fed=5, starved=9), 5, FED),
        (bare("not-identifiable", fed=5, starved=9), 7, UNKNOWN),
        (bare("not-identifiable", fed=5, starved=9), 9, NOT_FED),
    ],
)
def test_a_knee_decides(knee: Knee, required: int, status: int) -> None:
    points = [point(4, 0.5)]
    assert gate(required, knee, points, 0.9) == status


@pytest.mark.parametrize(
    ("x_ideal", "bound", "required", "status"),
    [
        (0.95, "compute", 4, FED),
        (0.95, "compute", 5, UNKNOWN),
        (0.5, "storage", 4, NOT_FED),
        (0.5, "storage", 3, UNKNOWN),
        (0.5, "client-cpu", 4, UNKNOWN),
    ],
)
def test_without_a_knee_a_count_decides(x_ideal: float, bound: str, required: int, status: int) -> None:
    run = point(4, x_ideal, bound=Bound(kind=bound, evidence=()))
    assert gate(required, None, [run], 0.9) == status
