"""Sequential access: every sample once an epoch, no rank reads another's, draws only what has been read."""

from collections import Counter
from itertools import islice
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from emulator.config.workload import AccessSpec
from emulator.order import EpochOrder, EpochPlan, _stream_starts, portions


@st.composite
def plans(draw):
    each = draw(st.integers(1, 40))
    files = draw(st.integers(1, 12))
    access = AccessSpec(
        pattern="sequential", streams=draw(st.integers(1, 6)), shuffle_buffer=draw(st.integers(0, 50))
    )
    return EpochPlan(
        samples=files * each,
        ranks=draw(st.integers(1, 5)),
        batch_size=draw(st.integers(1, 20)),
        samples_per_file=each,
        access=access,
    )


def samples_of(reads, each):
    return [read.file * each + read.first + n for read in reads for n in range(read.samples)]


def drawn(plan, rank, seed, epoch):
    """The batches of a training whose shuffle buffer is played as tf.data documents it."""
    each, starts = plan.samples_per_file, _stream_starts(plan, rank)
    turn, stream = np.divmod(np.arange(plan.steps * plan.batch_size), len(starts))
    place, first = np.divmod(starts[stream] + turn, each)
    order, random = EpochOrder(plan.samples // each, seed, epoch), Random(f"{seed} {epoch} {rank}")
    coming = iter((order.at(place) * each + first).tolist())
    held, left = list(islice(coming, max(1, plan.access.shuffle_buffer))), []
    for sample in coming:
        slot = random.randrange(len(held))
        left.append(held[slot])
        held[slot] = sample
    random.shuffle(held)
    left += held
    return [left[step * plan.batch_size :][: plan.batch_size] for step in range(plan.steps)]


@given(plans(), st.integers(0, 2**40), st.integers(0, 20))
def test_every_sample_is_read_once_and_used_once_and_by_one_rank(plan, seed, epoch):
    read, used = Counter(), Counter()
    for rank in range(plan.ranks):
        steps = list(portions(plan, rank, seed, epoch))
        assert len(steps) == plan.steps
        assert {step.samples for step in steps} <= {plan.batch_size}
        read.update(samples_of([read for step in steps for read in step.reads], plan.samples_per_file))
        used.update(sample for batch in drawn(plan, rank, seed, epoch) for sample in batch)
    assert read == used
    assert len(used) == plan.samples - plan.left_out
    assert set(used.values()) <= {1}


@given(plans(), st.integers(0, 2**40))
def test_what_is_drawn_has_been_read_by_then(plan, seed):
    for rank in range(plan.ranks):
        there: set[int] = set()
        for step, batch in zip(portions(plan, rank, seed, 0), drawn(plan, rank, seed, 0), strict=True):
            there.update(samples_of(step.reads, plan.samples_per_file))
            assert there.issuperset(batch)
            there.difference_update(batch)
            assert len(there) <= max(plan.access.shuffle_buffer - 1, 0), "the buffer holds no more"


@given(plans(), st.integers(0, 2**40))
def test_a_stream_goes_on_where_it_was_and_through_whole_files(plan, seed):
    """A read that goes on begins where one of the same stream ended, or at the head of a file."""
    for rank in range(plan.ranks):
        ends: Counter[tuple[int, int]] = Counter()
        starts = 0
        for step in portions(plan, rank, seed, 0):
            for read in step.reads:
                if read.how == "start":
                    starts += 1
                elif read.first:
                    assert ends[read.file, read.first]
                    ends[read.file, read.first] -= 1
                ends[read.file, read.first + read.samples] += 1
        assert starts <= plan.access.streams


def test_files_are_shuffled_by_seed_and_epoch():
    plan = EpochPlan(
        samples=64 * 4, ranks=2, batch_size=8, samples_per_file=4, access=AccessSpec(pattern="sequential")
    )
    orders = {
        tuple(read.file for step in portions(plan, 0, seed, epoch) for read in step.reads)
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


def test_samples_of_a_file_are_read_by_themselves_with_random_access():
    plan = EpochPlan(samples=120, ranks=2, batch_size=5, samples_per_file=10)
    got = [read for rank in range(2) for step in portions(plan, rank, 0, 0) for read in step.reads]
    assert {(read.samples, read.how) for read in got} == {(1, "alone")}
    assert sorted(samples_of(got, 10)) == list(range(120))


def test_a_shuffle_of_more_samples_than_memory_would_hold_begins_at_once():
    plan = EpochPlan(samples=2**40, ranks=8, batch_size=48, samples_per_file=2**20)
    plan.require_a_step()
    (read, *_) = next(portions(plan, 3, 0, 0)).reads
    assert 0 <= read.file < 2**20 and 0 <= read.first < 2**20
