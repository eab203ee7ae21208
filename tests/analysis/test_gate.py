"""The truth tables of --require and --fail-if-worse: what was found x what is asked -> exit status."""

from __future__ import annotations

from dataclasses import replace

import pytest
from points import point
from synthetic_results import result

from emulator.analysis.answer import answer_of
from emulator.analysis.gate import MET, UNKNOWN, no_worse, require
from emulator.analysis.knee import NO_KNEE
from emulator.errors import NOT_MET
from emulator.record.result import Bound, Knee

KNEE = Knee(
    kind="knee", n_au=10.4, n_saturation=11.0, interval=(8.7, 11.9),
    fed=9, starved=12,
)  # fmt: skip


def bare(kind: str, **more: object) -> Knee:
    return replace(KNEE, kind=kind, n_au=None, interval=None, **more)  # type: ignore[arg-type]


BEYOND, BELOW = bare("beyond", fed=16, starved=None), bare("below", fed=None, starved=4)
AT_LEAST, UNSURE = bare("at-least", fed=6, starved=9), bare("not-identifiable", fed=5, starved=9)
NOTHING = bare("at-least", fed=None, starved=None)


@pytest.mark.parametrize(
    ("knee", "required", "status"),
    [
        (KNEE, 8, MET), (KNEE, 9, UNKNOWN), (KNEE, 11, UNKNOWN), (KNEE, 12, NOT_MET),
        (BEYOND, 16, MET), (BEYOND, 17, UNKNOWN), (BELOW, 4, NOT_MET), (BELOW, 2, UNKNOWN),
        (AT_LEAST, 6, MET), (AT_LEAST, 12, UNKNOWN), (NOTHING, 1, UNKNOWN),
        (UNSURE, 5, MET), (UNSURE, 7, UNKNOWN), (UNSURE, 9, NOT_MET), (NO_KNEE, 1, UNKNOWN),
    ],
)  # fmt: skip
def test_a_knee_decides(knee: Knee, required: int, status: int) -> None:
    assert require(required, result([point(4, 0.5)], knee=knee)).status == status


@pytest.mark.parametrize(
    ("x_ideal", "bound", "required", "status"),
    [
        (0.95, "compute", 4, MET),
        (0.95, "compute", 5, UNKNOWN),
        (0.5, "storage", 4, NOT_MET),
        (0.5, "storage", 3, UNKNOWN),
        (0.5, "client-cpu", 4, UNKNOWN),
    ],
)
def test_without_a_knee_a_count_decides(x_ideal: float, bound: str, required: int, status: int) -> None:
    run = point(4, x_ideal, bound=Bound(kind=bound, evidence=()))  # type: ignore[arg-type]
    assert require(required, result([run], knee=None)).status == status


def test_runs_of_one_count_decide_by_their_mean() -> None:
    """It said `at least 4 are fed: 4 processes read 87.5 % of their demand`."""
    bound = Bound(kind="bandwidth", evidence=())
    for shares, status in (((0.95, 0.8), UNKNOWN), ((0.98, 0.86), MET), ((0.85, 0.8), NOT_MET)):
        made = result([point(4, share, bound=bound) for share in shares], knee=None)
        assert require(4, made).status == status
    assert "82.5 % of their demand, AU 82.5 %" in answer_of(made).sentence


def test_a_share_of_one_that_two_processes_got_leaves_room_for_one() -> None:
    """`feeds 0.6 of an accelerator`, interval 0.6 to 0.6, and --require 1 cannot be told: one was not run."""
    bound = Bound(kind="bandwidth", evidence=())
    made = result([point(2, 0.3, bound=bound)], knee=None)
    assert answer_of(made).interval == (0.6, 1.0) and "feeds at least 0.6 of" in answer_of(made).sentence
    assert require(1, made).status == UNKNOWN
    made = result([point(1, 0.6, bound=bound)], knee=None)
    assert answer_of(made).interval == (0.6, 0.6) and "feeds 0.6 of" in answer_of(made).sentence


def test_a_run_that_was_cut_off_does_not_show_that_the_storage_starves_a_count() -> None:
    """The client was the limit, but a run that was killed has no limit yet: --require 4 was `not met`."""
    for ranks, fed in ((4, 0.5), (1, 0.2)):
        cut = replace(result([point(ranks, fed)], knee=None), status="incomplete")
        assert require(4, cut).status == UNKNOWN
    assert answer_of(cut).interval == (0.2, None)


def moved(factor: float) -> Knee:
    return replace(KNEE, n_au=10 * factor, interval=(9.9 * factor, 10.1 * factor))


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        (moved(1), moved(1), MET), (moved(1), moved(1.3), MET), (moved(1), moved(0.9), NOT_MET),
        (moved(1), moved(0.95), UNKNOWN), (moved(1), replace(moved(1), interval=(7.0, 13.0)), UNKNOWN),
        (BEYOND, BEYOND, MET), (BEYOND, moved(1), NOT_MET), (BEYOND, AT_LEAST, UNKNOWN),
        (moved(1), BEYOND, MET), (moved(1), AT_LEAST, UNKNOWN), (moved(1), BELOW, NOT_MET),
        (NOTHING, BEYOND, UNKNOWN), (AT_LEAST, AT_LEAST, MET),
    ],
)  # fmt: skip
def test_knees_are_compared_with_both_intervals(old: Knee, new: Knee, status: int) -> None:
    made = [result([point(4, 0.5)], knee=knee) for knee in (old, new)]
    assert no_worse(0.05, ("old", "new"), *made).status == status


@pytest.mark.parametrize(
    ("shares", "status"), [([0.8], MET), ([0.7], NOT_MET), ([0.762], UNKNOWN), ([0.5, 1.0], UNKNOWN)]
)
def test_without_knees_the_throughput_of_the_same_counts_is_compared(
    shares: list[float], status: int
) -> None:
    old = result([point(4, 0.8)], knee=None)
    new = result([point(4, share) for share in shares] + [point(9, 0.1)], knee=None)
    assert no_worse(0.05, ("old", "new"), old, new).status == status
    assert no_worse(0.05, ("old", "new"), old, replace(new, points=new.points[-1:])).status == UNKNOWN
