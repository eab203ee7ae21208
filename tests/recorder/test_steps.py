"""What a step takes, from when batches were asked for and handed over."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.plugins.recorder.steps import Track, pace_of, settled, step_cpu, step_time


def track(waits: list[float], step: float, ready: list[int] | None = None, epochs: int = 1) -> Track:
    """A job whose step takes `step` seconds beside waiting."""
    found, now = Track(0), 0
    for epoch in range(epochs):
        for number, wait in enumerate(waits):
            got = now + round(1e9 * wait)
            found.add(
                epoch, number, 4, ready[number] if ready else int(wait < 1e-3), now, got, number + 3, now // 4
            )
            now = got + round(1e9 * step)
        found.ends[epoch] = now
    return found


def test_steps_count_where_no_batch_was_waited_for():
    waits = [1.0] + [0.0] * 30 + [0.5, 0.5] + [0.0] * 20
    found = step_time([track(waits, 0.1).table()], warmup=0)
    assert found is not None and not found.bound
    assert found.seconds == pytest.approx(0.1, rel=1e-3)
    assert found.steps == 30 - 2 + 20 - 2
    assert sum(found.quantiles) / len(found.quantiles) == pytest.approx(found.seconds)


def test_taking_a_ready_batch_is_part_of_the_step():
    found = step_time([track([0.002] * 40, 0.1, [1] * 40).table()], warmup=5)
    assert found is not None and not found.bound
    assert found.seconds == pytest.approx(0.102) and found.taking == pytest.approx(0.002)


def test_a_job_that_starves_throughout_gives_a_bound():
    found = step_time([track([0.3] * 40, 0.1).table()], warmup=5)
    assert found is not None and found.bound and not found.quantiles
    assert found.seconds == pytest.approx(0.4) and found.at_least == pytest.approx(0.1)
    assert found.waited == pytest.approx(0.75)


@pytest.mark.parametrize(("host", "in_flight"), [(0.01, 2), (0.1, 1)])
def test_cuda_events_give_the_step_time_of_a_job_that_starves(host, in_flight):
    """The GPU takes 0.1 s; the host launches ahead of it, or waits for it in each step."""
    one = track([0.3] * 40, host)
    for number in range(40):
        one.add_computed(0, number, 10**8)
    found = step_time([one.table()], warmup=5)
    assert found is not None and found.by_events and not found.bound and found.in_flight == in_flight
    assert found.seconds == pytest.approx(0.1) and found.taking == 0
    few = track([0.3] * 40, host)
    few.add_computed(0, 7, 10**8)
    bound = step_time([few.table()], warmup=5)
    assert bound is not None and bound.bound, "one step says too little"


def test_gpus_that_wait_for_the_rank_whose_batch_came_last_have_no_longer_steps():
    one, other = track([0.3] * 40, 0.1), track([0.3] * 40, 0.1)
    for number in range(40):
        late = number % 2
        one.add_computed(0, number, 10**8 + late * 10**9)
        other.add_computed(0, number, 10**8 + (1 - late) * 10**9)
    found = step_time([one.table(), other.table()], warmup=5)
    assert found is not None and found.by_events and found.seconds == pytest.approx(0.1)


def test_a_job_that_reads_in_turn_needs_no_such_stretch():
    found = step_time([track([0.3] * 40, 0.1).table()], 5, in_turn=True)
    assert found is not None and not found.bound and found.seconds == pytest.approx(0.1)


def test_ranks_wait_for_each_other_so_a_step_counts_where_none_waited_for_a_batch():
    one, other = track([0.0] * 40, 0.1), track([0.0] * 20 + [0.3] + [0.0] * 19, 0.1)
    for number in range(21, 40):  # its step 20 is as much longer as the other waits for its batch
        *name, asked, got, used = one.rows[number]
        one.rows[number] = (*name, asked + 3 * 10**8, got + 3 * 10**8, used)
    one.ends[0] += 3 * 10**8
    found = step_time([one.table(), other.table()], warmup=0)
    assert found is not None and found.seconds == pytest.approx(0.1) and found.steps == 2 * (17 + 17)


def test_a_pace_leaves_out_what_was_read_ahead_and_counts_waits():
    waits = [3.0] + [0.0] * 8 + [0.1, 0.3] * 20
    found = pace_of([track(waits, 0.2, epochs=2).table()] * 2, 0, ahead=8)
    assert found is not None and found.samples == 4
    assert found.seconds == pytest.approx(0.2 + 8.0 / 41) and found.waited == pytest.approx(8.0 / 16.2)
    assert pace_of([track(waits, 0.2).table()], 40, ahead=8) is None


def test_of_a_short_epoch_the_second_half_is_settled():
    epoch, step = np.array([0, 0, 0, 0, 1, 1, 1], np.int32), np.array([0, 1, 2, 3, 0, 1, 2], np.int32)
    assert settled(epoch, step, 8).tolist() == [False, False, True, True, False, True, True]
    assert settled(epoch, step, 0).tolist() == [False, True, True, True, False, True, True]


def test_too_few_steps_give_nothing():
    assert step_time([track([0.0] * 9, 0.1).table()], warmup=0) is None
    assert step_time([], warmup=0) is None


def test_cpu_of_a_step_is_from_ask_to_ask():
    assert step_cpu(track([0.0] * 10, 0.1).table()) == pytest.approx(0.025)
    assert step_cpu(track([0.0], 0.1).table()) == 0


def test_epochs_are_borders_and_the_last_step_of_one_has_its_end():
    table = track([0.0] * 10, 0.05, epochs=3).table()
    assert len(table) == 30 and not np.isnan(table["between"]).any()
    cut = track([0.0] * 10, 0.05)
    cut.ends.clear()
    assert np.isnan(cut.table()["between"]).sum() == 1
    assert cut.batches == (10, 12) and track([0.0] * 10, 0.05).batches == (10, 10)


def test_steps_that_were_traced_count_only_where_there_are_too_few_others():
    whole = track([0.0] * 40, 0.1)
    table = whole.table(traced_until=round(20 * 0.1e9))
    assert table["traced"].sum() == 20
    table["between"][:20] *= 2
    found = step_time([table], warmup=5)
    assert found is not None and found.seconds == pytest.approx(0.1) and not found.traced
    found = step_time([table[:25]], warmup=5)
    assert found is not None and found.traced


def test_long_steps_now_and_then_make_a_bound_of_the_mean():
    """A host that runs ahead of its accelerator, or validates: never a mixture of short and long steps."""
    table = track([0.0] * 200, 0.01).table()
    table["between"][19::20] = 0.8
    found = step_time([table], warmup=5)
    assert found is not None and found.bound and not found.quantiles
    assert found.seconds == pytest.approx((19 * 0.01 + 0.8) / 20, rel=0.05)
