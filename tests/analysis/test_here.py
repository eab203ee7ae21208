"""The processes' time against a plain training loop that is played by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import COSTS, STEP_SECONDS, drawn, emulated

from emulator.analysis.here import here
from emulator.analysis.throughput import durations


def trained(costs, sync, per_epoch=4, *, ask=False):
    """Return the ends of a plain training loop's steps with the same costs, shape (steps, ranks)."""
    steps, ranks = costs["gap"].shape
    now, arrived, ends = [0.0] * ranks, [0.0] * ranks, []
    for k in range(steps):
        for rank in range(ranks):
            arrived[rank] += costs["gap"][k, rank]
            now[rank] = max(now[rank], arrived[rank]) + costs["hand"][k, rank]
            if ask:
                arrived[rank] = now[rank]
            now[rank] += STEP_SECONDS + costs["sleep"][k, rank]
        if sync == "step" or (sync == "epoch" and ((k + 1) % per_epoch == 0 or k + 1 == steps)):
            now = [max(now) + costs["wake"][k, rank] for rank in range(ranks)]
        ends.append(now.copy())
    return np.array(ends)


@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.integers(1, 30),
    st.integers(1, 5),
    st.sampled_from(["step", "epoch", "none"]),
    st.tuples(*[st.floats(0.0, 0.15)] * 4),
)
def test_it_is_what_a_plain_loop_with_the_same_costs_does(seed, steps, ranks, sync, means):
    costs = drawn(seed, steps, ranks, **dict(zip(COSTS, means, strict=True)))
    rows = emulated(costs, sync)
    played = here(rows, sync)
    expected = trained(costs, sync)
    ends = (played["begin"] + durations(played)).reshape(ranks, steps).T
    np.testing.assert_allclose(ends, expected, atol=1e-9)
    assert (played["compute"] == STEP_SECONDS).all(), "compute is nominal here, too"
    assert min(played[name].min() for name in ("wait", "overshoot", "barrier")) >= -1e-9


@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.integers(1, 30),
    st.sampled_from([("step", 1), ("none", 1), ("none", 3), ("epoch", 3)]),
    st.tuples(*[st.floats(0.0, 0.15)] * 4),
)
def test_who_asks_later_is_served_later(seed, steps, kind, means):
    (sync, ranks) = kind
    costs = drawn(seed, steps, ranks, **dict(zip(COSTS, means, strict=True)))
    played = here(emulated(costs, sync, ask=True), sync)
    ends = (played["begin"] + durations(played)).reshape(ranks, steps).T
    np.testing.assert_allclose(ends, trained(costs, sync, ask=True), atol=1e-9)


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from(["step", "epoch", "none"]), st.floats(0.0, 0.05))
def test_what_a_recorded_step_has_for_taking_a_batch_counts_once(seed, sync, taking):
    """The job's step was `taking` longer than its accelerator's: only what is beyond that is added."""
    costs = drawn(seed, 20, 3, gap=0.1, hand=0.03, sleep=0.01, wake=0.01)
    played = here(emulated(costs, sync), sync, taking=taking)
    beyond = {**costs, "hand": np.maximum(0.0, costs["hand"] - taking)}
    ends = (played["begin"] + durations(played)).reshape(3, 20).T
    np.testing.assert_allclose(ends, trained(beyond, sync), atol=1e-9)


@pytest.mark.parametrize("sync", ["step", "none"])
def test_a_stall_makes_up_for_no_lateness(sync):
    # 20 ms late in each step of 50 ms, and two seconds without data in step 20: the training feels both.
    costs = drawn(8, steps=40, sleep=0.0)
    costs["sleep"][:] = 0.02
    costs["gap"][20] = 2.0
    played = here(emulated(costs, sync, ask=True), sync)
    assert played["wait"].reshape(3, 40)[:, 20] == pytest.approx(2.0 - 0.07, abs=0.001)


@pytest.mark.parametrize(("queued", "each"), [(0, 0.058), (2, 0.052)])
def test_who_falls_behind_finds_the_worker_idle(queued, each):
    """Two workers, two batches each under way; while they read, handing over takes 8 ms, otherwise 1 ms."""
    costs = drawn(3, steps=200, ranks=1)
    costs["gap"][:], costs["hand"][:] = 0.052, 0.008
    costs["hand"][::8] = 0.001
    played = here(emulated(costs, "none"), "none", queued)
    assert durations(played)[100:].mean() == pytest.approx(each, rel=0.02)


def test_nobody_is_awaited_who_has_gone_on():
    # Both are 0.2 s behind when a stall ends; one asked before it was behind, and its data come last.
    costs = drawn(9, steps=20, ranks=2)
    costs["sleep"][:], costs["gap"][10] = 0.02, [2.0, 1.99]
    rows = emulated(costs, "step")
    of_second = rows[20:]
    of_second["requested"][10] = of_second["got"][9]
    assert here(rows, "step")["barrier"].min() >= -1e-9


def test_a_log_without_the_moments_says_nothing():
    rows = emulated(drawn(4), "none")
    rows["got"] = np.nan
    assert here(rows, "none") is None
    assert here(rows[:0], "none") is None


def test_of_a_run_that_was_cut_off_the_common_steps_are_played():
    rows = emulated(drawn(5, gap=0.02, wake=0.01), "step")
    whole, cut = here(rows, "step"), here(rows[:-5], "step")
    assert len(cut) == 3 * (17 - 5)
    np.testing.assert_allclose(cut["begin"][:12], whole["begin"][:12])
