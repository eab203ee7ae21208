"""Throughput and AU against formulas worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.analysis.throughput import (
    loop_seconds,
    overshoot_p99,
    rate_series,
    share_of_time,
    steady,
    throughput,
)
from emulator.record.steps import STEP


def steps_of(rank, waits, compute=0.5, samples=4, epoch=0, overshoot=0.0, barrier=0.0):
    rows = np.zeros(len(waits), dtype=STEP)
    rows["rank"], rows["epoch"], rows["step"] = rank, epoch, np.arange(len(waits))
    rows["samples"], rows["bytes"] = samples, samples * 1000
    rows["wait"], rows["compute"], rows["overshoot"], rows["barrier"] = waits, compute, overshoot, barrier
    length = rows["wait"] + compute + overshoot + barrier
    rows["begin"] = np.concatenate([[0.0], np.cumsum(length)[:-1]])
    return rows


def test_one_rank_by_hand():
    rows = steps_of(0, [2.0, 0.0, 0.5, 0.0])
    lasting = throughput(steady(rows))  # 3 steps in 2.0 s, 1.5 s of them compute
    assert lasting.samples_per_second == pytest.approx(12 / 2.0)
    assert lasting.bytes_per_second == pytest.approx(12000 / 2.0)
    assert lasting.au == pytest.approx(1.5 / 2.0)
    whole = throughput(rows)
    assert whole.samples_per_second == pytest.approx(16 / 4.5)
    assert whole.au == pytest.approx(2.0 / 4.5)


def test_ranks_add_up_and_au_is_their_mean():
    rows = np.concatenate([steps_of(0, [0.0] * 5), steps_of(7, [0.5] * 5)])
    both = throughput(rows)
    assert both.samples_per_second == pytest.approx(8 + 4)
    assert both.au == pytest.approx((1.0 + 0.5) / 2)


def test_an_overslept_wait_is_no_utilisation():
    rows = steps_of(0, [0.0] * 5, overshoot=0.5)
    assert throughput(rows).au == pytest.approx(0.5)
    assert overshoot_p99(rows, 0.5) == pytest.approx(1.0)


def test_the_first_step_of_the_first_epoch_is_left_out():
    rows = np.concatenate([steps_of(0, [9.0, 0.0, 0.0]), steps_of(0, [0.5, 0.0, 0.0], epoch=1)])
    rows["begin"] = np.concatenate([[0.0], np.cumsum([9.5, 0.5, 0.5, 1.0, 0.5])])
    assert throughput(steady(rows)).au == pytest.approx(5 * 0.5 / 3.0)


def test_what_a_rank_does_after_the_first_one_ended_is_left_out():
    fast, slow = steps_of(0, [0.0] * 4), steps_of(1, [0.5] * 4)  # end at 2.0 s and at 4.0 s
    kept = steady(np.concatenate([fast, slow]))
    assert (kept["rank"] == 0).sum() == 3
    assert (kept["rank"] == 1).sum() == 1


def test_a_single_step_is_kept_rather_than_nothing():
    assert len(steady(steps_of(0, [1.0]))) == 1
    late = steps_of(1, [9.0, 0.0])
    assert (steady(np.concatenate([steps_of(0, [0.0] * 3), late]))["rank"] == 1).sum() == 1


@given(st.lists(st.floats(0, 10), min_size=2, max_size=40), st.floats(0, 0.1))
def test_au_and_share_of_compute_agree(waits, barrier):
    rows = steps_of(0, waits, barrier=barrier)
    assert throughput(rows).au == pytest.approx(share_of_time(rows, "compute"))
    shares = sum(share_of_time(rows, name) for name in ("wait", "compute", "overshoot", "barrier"))
    assert shares == pytest.approx(1.0)
    assert loop_seconds(rows) == pytest.approx(sum(waits) + len(waits) * (0.5 + barrier))


def test_nothing_measured_is_zero():
    nothing = throughput(np.zeros(0, dtype=STEP))
    assert (nothing.samples_per_second, nothing.au) == (0.0, 0.0)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=60), st.integers(1, 50))
def test_a_series_of_rates_adds_up_to_the_samples(waits, bins):
    rows = steps_of(0, waits)
    rates = rate_series(rows, bins)
    assert len(rates) == bins
    assert rates.sum() * loop_seconds(rows) / bins == pytest.approx(rows["samples"].sum())


def test_a_steady_rank_has_a_flat_series():
    assert np.allclose(rate_series(steps_of(0, [0.0] * 30)), 8.0)


def test_a_rank_that_begins_late_does_not_make_the_rate_rise():
    early, late = steps_of(0, [0.0] * 30), steps_of(1, [0.0] * 30)
    late["begin"] += 10 * 0.5
    assert np.allclose(rate_series(np.concatenate([early, late])), 16.0)
    late["begin"] += 1000.0
    assert not len(rate_series(np.concatenate([early, late]))), "they were never busy together"
