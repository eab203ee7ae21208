"""Throughput and AU against formulas worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.analysis.point import point_of
from emulator.analysis.throughput import (
    arrived,
    busy,
    loop_seconds,
    rate_series,
    share_of_time,
    steady,
    sustained,
    throughput,
)
from emulator.config.workload import load_workload
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


def test_an_overslept_wait_is_no_utilization():
    rows = steps_of(0, [0.0] * 5, overshoot=0.5)
    assert throughput(rows).au == pytest.approx(0.5)


def test_the_first_step_of_each_epoch_is_left_out_of_au_and_borders_are_in_x():
    rows = np.concatenate([steps_of(0, [9.0, 0.0, 0.0]), steps_of(0, [0.5, 0.0, 0.0], epoch=1)])
    rows["begin"] = np.concatenate([[0.0], np.cumsum([9.5, 0.5, 0.5, 1.0, 0.5])])
    assert throughput(steady(rows)).au == pytest.approx(4 * 0.5 / 2.0)
    assert throughput(busy(rows)).samples_per_second == pytest.approx(5 * 4 / 3.0)


def test_what_a_rank_does_after_the_first_one_ended_is_left_out():
    fast, slow = steps_of(0, [0.0] * 4), steps_of(1, [0.5] * 4)  # end at 2.0 s and at 4.0 s
    kept = busy(np.concatenate([fast, slow]))
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


@given(st.lists(st.floats(0, 3), min_size=1, max_size=60), st.integers(1, 50))
def test_a_series_of_rates_adds_up_to_the_samples(waits, bins):
    rows = steps_of(0, waits)
    rates = rate_series(rows, bins).rates
    assert len(rates) == bins
    assert rates.sum() * loop_seconds(rows) / bins == pytest.approx(rows["samples"].sum())


def test_a_rank_that_begins_late_does_not_make_the_rate_rise():
    early, late = steps_of(0, [0.0] * 30), steps_of(1, [0.0] * 30)
    late["begin"] += 10 * 0.5
    assert np.allclose(rate_series(np.concatenate([early, late])).rates, 16.0)
    late["begin"] += 1000.0
    assert not len(rate_series(np.concatenate([early, late])).rates), "they were never busy together"


def reading_from(storage, ranks, steps, compute, prefetch, start=0.0):
    """Ranks of one storage of `storage` bytes/s, shared equally, that read `prefetch` batches ahead at most.

    Batches have a byte. A step of the clock is a twentieth of what a batch takes; rank r begins at r x
    `start`.
    """
    tick = 0.05 / storage
    rows = np.zeros((ranks, steps), dtype=STEP)
    rows["rank"], rows["step"] = np.arange(ranks)[:, None], np.arange(steps)
    rows["samples"], rows["bytes"], rows["compute"] = 1, 1, compute
    got, left, taken, free = (np.zeros(ranks) for _ in range(4))
    got, taken = got.astype(int), taken.astype(int)
    left[:] = 1.0
    now = 0.0
    while taken.min() < steps:
        reads = (got < steps) & (got < taken + prefetch) & (now >= np.arange(ranks) * start)
        for rank in np.flatnonzero(reads):
            if left[rank] == 1.0:
                rows["requested"][rank, got[rank]] = now
            left[rank] -= 0.05 / reads.sum()
        now += tick
        for rank in np.flatnonzero(reads & (left <= 1e-9)):
            rows["arrived"][rank, got[rank]] = now
            got[rank], left[rank] = got[rank] + 1, 1.0
        for rank in range(ranks):
            while taken[rank] < min(got[rank], steps) and free[rank] <= now:
                row = rows[rank, taken[rank]]
                row["begin"], row["wait"] = free[rank], max(0.0, row["arrived"] - free[rank])
                free[rank] = max(free[rank], row["arrived"]) + compute
                taken[rank] += 1
    return rows.reshape(-1)


@settings(max_examples=15)
@given(
    st.integers(1, 4),
    st.integers(2, 25),
    st.floats(0.02, 0.6),
    st.integers(1, 8),
    st.sampled_from([0, 0.05, 1]),
)
def test_no_run_of_any_length_reads_more_than_its_storage_gives(ranks, steps, compute, prefetch, start):
    rows = reading_from(10.0, ranks, steps, compute, prefetch, start)
    found = sustained(rows, throughput(busy(rows))).bytes_per_second
    own = rows.reshape(ranks, steps)
    together = (own["begin"] + own["wait"])[:, -1].min() + compute - own["begin"][:, 0].max()
    # A batch counts evenly over the time of its read, though ranks that come and go change its rate.
    assert found * together <= 10.0 * 1.01 * together + 1, "to a batch at the ends"
    assert found <= ranks / compute * (1 + 1e-9), "nor more than the accelerators ask for"


def read_in_waves(storage, steps, compute, workers):
    """Rows of a rank whose workers share `storage` B/s: their batches of a byte arrive together."""
    rows = steps_of(0, [0.0] * steps, compute=compute)
    rows["bytes"] = rows["samples"] = 1
    free, ready, wave = 0.0, 0.0, workers / storage
    for step, row in enumerate(rows):
        if step % workers == 0:  # the batch before this wave was taken, at the latest
            row["requested"] = max(ready, rows["begin"][max(0, step - workers)])
            ready = row["requested"] + wave
        row["requested"], row["arrived"] = ready - wave, ready
        row["begin"], row["wait"] = free, max(0.0, ready - free)
        free = max(free, ready) + compute
    return rows


@pytest.mark.parametrize("steps", [20, 40, 100])
def test_what_was_read_ahead_before_the_time_began_is_not_counted(steps):
    rows = read_in_waves(10.0, steps, 0.05, 4)
    assert throughput(busy(rows)).bytes_per_second > 10.0 * (1 + 1.0 / steps), "consumed alone is too much"
    assert sustained(rows, throughput(busy(rows))).bytes_per_second == pytest.approx(10.0)


def test_accelerators_that_are_fed_are_fed_however_fast_their_batches_come():
    rows = reading_from(100.0, 3, 40, 0.2, 4)
    assert sustained(rows, throughput(busy(rows))).samples_per_second == pytest.approx(15.0, rel=0.01)


def test_without_the_moments_it_is_what_was_consumed():
    rows = reading_from(10.0, 2, 10, 0.1, 4)
    rows["arrived"] = np.nan
    assert arrived(rows) is None
    assert sustained(rows, throughput(busy(rows))).bytes_per_second == throughput(busy(rows)).bytes_per_second


@settings(max_examples=60)
@given(st.integers(16, 120), st.floats(0.2, 1.5), st.integers(1, 8))
def test_au_that_is_shown_is_what_the_storage_sustains(steps, share, workers):
    """Storage gives `share` of what the accelerator asks for; a batch of each worker is read ahead."""
    workload = load_workload("unet3d-tiny", [f"loader.prefetch={workers}", "accelerator.step_seconds=0.1"])
    rows = read_in_waves(share * 10.0, steps, 0.1, workers)
    au = point_of(workload, 10_000, 1, rows).au
    assert np.isnan(au) or au == pytest.approx(min(1.0, share), abs=0.06)


@pytest.mark.parametrize(("prefetch", "start"), [(1, 0.0), (4, 0.0), (8, 0.5)])
def test_a_course_never_exceeds_the_storage(prefetch, start):
    """Batches that were read ahead are consumed at the end: 668 MB/s of a device of 300."""
    workload = load_workload("unet3d-tiny", ["accelerator.step_seconds=0.05"])
    rows = reading_from(10.0, 2, 40, 0.05, prefetch, start)
    course = point_of(workload, 10_000, 2, rows).course
    assert course is not None and max(course.bytes_per_second) <= 10.0 * 1.05


def test_a_course_without_moments_is_what_was_consumed():
    rows = np.concatenate([steps_of(0, [0.5] * 20), steps_of(1, [0.5] * 20)])
    rows["arrived"] = rows["requested"] = np.nan
    course = point_of(load_workload("unet3d-tiny"), 10_000, 2, rows).course
    assert course is not None and np.allclose(course.bytes_per_second, 8000.0)
