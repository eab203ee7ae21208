from __future__ import annotations

import math

import numpy as np
import pytest
from curves import curve, drifting, heavy, searched, white
from hypothesis import given, settings
from hypothesis import strategies as st
from points import point

from emulator.analysis.knee import find_knee, saturated, whole_accelerators
from emulator.analysis.search import KneeSearch, observe
from emulator.errors import SpecError
from emulator.record.result import CLIENT, Bound, Point, Starved

COUNTS = [1, 2, 4, 5, 6, 8, 12, 16]


@pytest.mark.parametrize(
    ("ranks", "efficiency", "deviation", "limit"),
    [
        (COUNTS, [min(1, 5 / n) for n in COUNTS], 0.01, True),
        (COUNTS, [1 - 0.02 * n / 16 for n in COUNTS], 0.01, False),  # throughput still grows
        ([5], [0.5], 0.01, False),
        ([10, 11], [1.0, 0.91], 0.01, True),
        ([10, 11], [1.0, 0.91], 0.05, False),  # runs may differ by as much
    ],
)
def test_a_limit_shows_where_throughput_stops_growing(ranks, efficiency, deviation, limit):
    assert saturated(ranks, efficiency, deviation) == limit


def test_the_knee_of_a_hard_limit():
    knee = find_knee([point(n, min(1, 5 / n)) for n in COUNTS])
    assert knee.n_au == pytest.approx(5 / 0.9, rel=0.01)
    assert knee.n_saturation == pytest.approx(5, rel=0.01)
    assert knee.interval is not None
    low, high = knee.interval
    assert low < 5 / 0.9 < high
    assert high / low < 1.1


def test_no_knee_is_said():
    knee = find_knee([point(n, 0.99) for n in (1, 4, 16)])
    assert knee.n_au is None
    assert knee.interval is None
    assert knee.n_saturation is None
    assert (knee.kind, knee.fed, knee.starved) == ("beyond", 16, None)


def limited(ranks: int, efficiency: float, kind: str = "client-cpu") -> Point:
    return point(ranks, efficiency, bound=Bound(kind=kind, evidence=("...",)))


def test_a_storm_on_the_client_says_nothing_of_the_storage():
    """It used to say `this storage does not feed 2`."""
    knee = find_knee([limited(2, 0.6), limited(4, 0.4)])
    assert (knee.kind, knee.n_au, knee.fed, knee.n_saturation) == ("at-least", None, None, None)


@pytest.mark.parametrize("kind", CLIENT)
def test_where_the_client_was_the_limit_it_is_at_least(kind):
    knee = find_knee([point(1, 1.0), point(4, 0.99), limited(6, 0.92, kind), limited(8, 0.7, kind)])
    assert (knee.kind, knee.n_au, knee.interval, knee.fed) == ("at-least", None, None, 6)


@given(st.lists(st.tuples(st.integers(1, 16), st.floats(0.05, 0.89)), max_size=4))
@settings(max_examples=15)
def test_runs_that_the_client_limited_move_nothing(disturbed):
    clean = [point(n, min(1, 5 / n)) for n in COUNTS]
    knee, same = find_knee(clean), find_knee([*(limited(n, x) for n, x in disturbed), *clean])
    assert (knee.n_au, knee.interval, knee.n_saturation) == (same.n_au, same.interval, same.n_saturation)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.05, 1.1)), min_size=1, max_size=10))
@settings(max_examples=12)
def test_no_saturation_above_what_was_measured(runs):
    knee = find_knee([point(n, x) for n, x in runs])
    if knee.n_saturation is not None:
        assert knee.n_saturation <= max(n * x for n, x in runs) * (1 + 1e-9)
    if knee.kind == "knee":
        assert knee.interval is not None and knee.interval[1] / knee.interval[0] <= 3


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), st.floats(-0.1, 0.1)), min_size=4, max_size=12), st.floats(1, 8))
def test_no_run_denies_the_number(runs, limit):
    knee = find_knee([point(n, min(1.0, limit / n * math.exp(off))) for n, off in runs])
    if knee.kind == "knee":
        assert (knee.fed or 0) <= whole_accelerators(knee.n_au) < (knee.starved or math.inf)
        assert knee.interval[0] <= knee.n_au <= knee.interval[1]


@pytest.mark.parametrize(("count", "whole"), [(4.98, 5), (4.9, 4), (2.7, 2), (1000.2, 1000), (1000.6, 1001)])
def test_a_knee_just_short_of_a_whole_count_is_that_count(count, whole):
    assert whole_accelerators(count) == whole


def test_a_plateau_under_the_threshold_is_no_knee_beyond_it():
    """It used to say `feeds 44, interval 0.00106 to 287`, where 44 were measured at 0.866."""
    runs = [(8, 1.0), (64, 0.86), (30, 0.862), (16, 1.0), (44, 0.866), (44, 0.861), (90, 0.3), (22, 0.86)]
    knee = find_knee([point(n, x) for n, x in runs])
    low, high = knee.interval or (0, 0)
    assert 16 <= low < 22 <= high <= 44
    if knee.kind == "knee":
        assert 16 < knee.n_au < 30


def test_what_the_client_lost_beside_the_storage_widens_the_interval_upwards():
    """A demo on a busy machine said 5.16 [4.29 to 5.46] of a knee at 5.59."""
    measured = {1: 1.0, 2: 1.0, 4: 0.995, 6: 0.782, 8: 0.616}
    lost = {
        6: Starved(seconds=11.4, storage=0.52, cores=0.48),
        8: Starved(seconds=29.3, storage=0.84, cores=0.16),
    }
    runs = [point(n, x, starved=lost.get(n)) for n, x in measured.items()]
    assert [observe(run).slack for run in runs[3:]] == pytest.approx([0.0912, 0.0586], abs=1e-4)
    knee, blind = find_knee(runs), find_knee([point(n, x) for n, x in measured.items()])
    assert knee.interval is not None and blind.interval is not None
    assert knee.n_au is not None and blind.n_au is not None
    assert knee.interval[0] < 5.59 < knee.interval[1]
    assert knee.n_au > blind.n_au and knee.interval[1] > blind.interval[1]


def test_what_the_client_lost_does_not_show_that_a_count_is_fed():
    """Two cores, 275 MB/s, 4 x 80 MB/s: it said `at least 4 are fed`, and --require 4 was met."""
    late = Starved(seconds=8.0, storage=0.33, cores=0.67)
    knee = find_knee([point(1, 0.99), point(2, 0.98), point(4, 0.84, starved=late)])
    assert (knee.kind, knee.fed, knee.starved) == ("not-identifiable", 2, None)
    late = Starved(seconds=12.0, storage=0.46, cores=0.54)  # what is between two counts is not certain
    knee = find_knee([point(5, 0.937), point(6, 0.742, starved=late)])
    assert knee.kind != "beyond" and 1 < (knee.fed or 0) < 6


def test_a_threshold_that_nothing_reaches_is_refused():
    with pytest.raises(SpecError, match=r"at most 0\.999"):
        find_knee([point(1, 1.0), point(2, 1.0)], threshold=1.0)


def test_storage_that_starves_leaves_no_slack():
    lost = Starved(seconds=30.0, storage=0.9, barrier=0.1)
    assert observe(point(8, 0.6, starved=lost)).slack == 0
    late = Starved(seconds=30.0, cores=1.0)
    assert observe(point(8, 0.97, starved=late)).slack == pytest.approx(0.03), "no more than everything"


@pytest.mark.parametrize("kind", ["white", "drifting", "heavy"])
def test_a_cliff_is_found(kind):
    """It used to say 44 where 48 were fed again and again."""
    truth, variation = curve("cliff 0.5", 50.0), {"white": white, "drifting": drifting, "heavy": heavy}[kind]
    runs = searched(truth, variation(np.random.default_rng(4), 0.01), KneeSearch(maximum=256)).runs
    knee = find_knee([point(run.ranks, run.efficiency) for run in runs])
    assert knee.n_au == pytest.approx(50, rel=0.05)
    assert knee.interval is not None and knee.interval[0] < 50.5 and knee.interval[1] > 49.5


@pytest.mark.parametrize("seed", range(6))
def test_a_knee_at_the_smallest_count_keeps_its_number(seed):
    """It used to say `does not feed 3 at 90 %: 90 % of ideal there`."""
    random = np.random.default_rng(seed)
    for counts in ((3, 3, 4, 3, 6, 12), (1, 2, 3, 3, 2, 3)):
        knee = find_knee([point(n, min(1, 2.7 / n) * math.exp(random.normal(0, 0.005))) for n in counts])
        assert knee.kind != "below"
        if counts[0] == 3:
            assert knee.kind == "knee"
            assert knee.n_au == pytest.approx(3, rel=0.03)


def test_fed_and_starved_again_and_again_is_not_identifiable():
    dip = [(8, 1.0), (12, 0.8), (12, 0.81), (12, 0.8), (20, 1.0), (20, 1.0), (32, 0.6), (32, 0.6)]
    knee = find_knee([point(n, x) for n, x in dip])
    assert (knee.kind, knee.n_au, knee.interval) == ("not-identifiable", None, (8, 32))
