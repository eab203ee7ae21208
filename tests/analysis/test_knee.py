from __future__ import annotations

import math

import numpy as np
import pytest
from model_free import crossing
from points import point

from emulator.analysis.knee import ONSET, find_knee, peak, run_noise, saturated
from emulator.record.result import Flag

COUNTS = [1, 2, 4, 5, 6, 8, 12, 16]


def test_knees_of_a_hard_limit():
    efficiency = [min(1, 5 / n) for n in COUNTS]
    assert crossing(COUNTS, efficiency, 0.9).ranks == pytest.approx(5 / 0.9)
    assert crossing(COUNTS, efficiency, ONSET).ranks == pytest.approx(5 / 0.98)
    assert saturated(COUNTS, efficiency, 0.01)


def test_no_saturation_while_throughput_still_grows():
    efficiency = [1 - 0.02 * n / 16 for n in COUNTS]
    assert not saturated(COUNTS, efficiency, 0.01)
    assert not saturated([5], [0.5], 0.01)


def test_noise_does_not_pass_for_saturation():
    assert saturated([10, 11], [1.0, 0.91], 0.01)
    assert not saturated([10, 11], [1.0, 0.91], 0.05)


def test_run_noise_comes_from_repeats():
    assert run_noise([1, 2, 4], [1, 1, 0.5]) == pytest.approx(0.01)
    random = np.random.default_rng(1)
    runs = np.repeat([4, 8, 16], 40)
    assert run_noise(runs, np.exp(random.normal(0, 0.03, 120))) == pytest.approx(0.03, rel=0.2)


def test_peak_only_when_throughput_falls_after_it():
    assert peak([1, 2, 4, 8], [10, 20, 40, 36], 0.01) == 40
    assert peak([1, 2, 4, 8], [10, 20, 40, 39.5], 0.01) is None
    assert peak([1, 2, 4, 8], [10, 20, 40, 36], 0.05) is None
    assert peak([1, 2, 4, 8], [10, 20, 40, 80], 0.01) is None


def test_flat_throughput_with_noise_has_no_peak():
    random = np.random.default_rng(2)
    counts = np.repeat([4, 6, 8, 12, 16], 2)
    found = [peak(counts, np.exp(random.normal(0, 0.03, 10)), 0.03) for _ in range(200)]
    assert sum(top is not None for top in found) <= 10


def test_sentence_of_a_knee():
    knee = find_knee([point(n, min(1, 5 / n)) for n in COUNTS])
    assert knee.n_au == pytest.approx(5 / 0.9, rel=0.01)
    assert knee.n_saturation == pytest.approx(5, rel=0.01)
    assert knee.interval is not None
    low, high = knee.interval
    assert low < 5 / 0.9 < high
    assert high / low < 1.1
    assert knee.peak_samples_per_second is None
    assert knee.sentence.startswith("This storage feeds 5 accelerators at 90 % of their demand (knee at 5.5")
    assert knee.sentence.endswith("; throughput saturates at 401 MB/s.")


def test_no_knee_is_said():
    knee = find_knee([point(n, 0.99) for n in (1, 4, 16)])
    assert knee.n_au is None
    assert knee.interval is None
    assert knee.n_saturation is None
    assert knee.sentence == (
        "No knee up to 16 processes: this storage still delivers 99 % of ideal throughput there."
    )


def test_already_starved_at_the_smallest_count():
    knee = find_knee([point(n, 3 / n) for n in (4, 8, 16)])
    assert knee.n_au is None
    assert knee.sentence.startswith("This storage does not feed 4 accelerators at 90 %")


def test_a_single_point_is_enough_to_say_something():
    assert find_knee([point(8, 0.6)]).sentence.startswith("This storage does not feed 8 accelerators")
    assert find_knee([point(8, 0.97)]).sentence.startswith("No knee up to 8 processes")


def test_high_noise_gives_a_wide_interval():
    random = np.random.default_rng(3)
    runs = [(n, min(1, 40 / n) * math.exp(random.normal(0, 0.15))) for n in (8, 16, 32, 40, 48, 64, 96) * 2]
    knee = find_knee([point(n, x) for n, x in runs])
    assert knee.interval is not None
    low, high = knee.interval
    assert low < 40 / 0.9 < high
    assert high / low > 1.15


def test_flags_are_never_silent():
    flag = Flag(name="overshoot", value=0.1, threshold=0.01, sentence="...")
    points = [point(4, 1.0), point(8, 0.62, flags=(flag,)), point(16, 0.31)]
    assert "flagged runs: 1 of 3 (overshoot)" in find_knee(points).sentence


def test_what_a_flag_invalidates_is_left_out_and_said():
    from_memory = Flag(name="page-cache", value=0.4, threshold=0.01, sentence="...")
    good = [point(4, 1.0), point(8, 0.62), point(16, 0.31)]
    wild = point(12, 1.0, flags=(from_memory,))
    found, expected = find_knee([*good, wild]), find_knee(good)
    assert (found.n_au, found.interval) == (expected.n_au, expected.interval)
    assert found.sentence.endswith("runs left out: 1 of 4 (page-cache).")
    assert "left out" not in find_knee([good[0], wild]).sentence, "fewer than two counts would be left"


def test_no_point_is_an_error():
    with pytest.raises(ValueError, match="no point"):
        find_knee([])


def test_without_compute_there_is_no_knee():
    knee = find_knee([point(n, 0.0, ideal_samples_per_second=math.inf) for n in (1, 2)])
    assert knee.n_au is None
    assert "does not compute" in knee.sentence
