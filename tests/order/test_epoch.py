"""The epoch plan promises one order for any number of ranks, nothing twice, equal steps."""

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import DatasetError
from emulator.order import MOST_IN_TABLE, EpochOrder, EpochPlan, RankPlan, batches, portions

sizes = st.integers(min_value=1, max_value=300)


def head(order, count):
    return order.at(np.arange(count))


@given(sizes, st.integers(1, 7), st.integers(1, 9), st.integers(0, 2**40), st.integers(0, 20))
def test_an_epoch_is_the_head_of_its_order_whatever_the_ranks(samples, ranks, batch_size, seed, epoch):
    plan = EpochPlan(samples=samples, ranks=ranks, batch_size=batch_size)
    by_rank = [list(batches(plan, rank, seed, epoch)) for rank in range(ranks)]
    steps = {len(each) for each in by_rank}
    assert len(steps) == 1, "every rank has the same number of steps"
    assert samples - steps.pop() * ranks * batch_size < ranks * batch_size, "only the tail is left out"
    in_order = [sample for step in zip(*by_rank, strict=True) for batch in step for sample in batch]
    assert in_order == head(EpochOrder(samples, seed, epoch), len(in_order)).tolist()


@given(sizes, st.integers(0, 2**60), st.integers(0, 50))
def test_an_order_is_a_permutation_that_depends_on_seed_and_epoch_alone(samples, seed, epoch):
    order = head(EpochOrder(samples, seed, epoch), samples)
    assert sorted(order.tolist()) == list(range(samples))
    assert np.array_equal(order, head(EpochOrder(samples, seed, epoch), samples))


@given(st.integers(1, 2**62), st.integers(0, 2**60), st.integers(0, 50), st.data())
def test_any_part_of_an_order_is_computed_by_itself(samples, seed, epoch, data):
    place = st.integers(0, samples - 1)
    places = np.array(data.draw(st.lists(place, min_size=1, max_size=50, unique=True)))
    order = EpochOrder(samples, seed, epoch)
    found = order.at(places)
    assert len(set(found.tolist())) == len(places) and found.min() >= 0 and found.max() < samples
    assert found.tolist() == [int(order.at(places[[at]])[0]) for at in range(len(places))]


@given(st.integers(MOST_IN_TABLE + 1, 200_000), st.integers(0, 2**60))
@settings(max_examples=10)
def test_a_long_order_is_a_permutation(samples, seed):
    times = np.bincount(head(EpochOrder(samples, seed, 0), samples), minlength=samples)
    assert len(times) == samples and (times == 1).all()


@pytest.mark.parametrize("samples", [2, 3, 4])
def test_every_order_of_few_samples_is_as_likely_as_any_other(samples):
    """Chi-square over all permutations, at odds of one in a million."""
    seeds = 6000
    seen = Counter(tuple(head(EpochOrder(samples, seed, 0), samples).tolist()) for seed in range(seeds))
    expected = seeds / math.factorial(samples)
    chi = sum((seen[each] - expected) ** 2 / expected for each in permutations(range(samples)))
    assert chi < stats_bound(math.factorial(samples) - 1)


@pytest.mark.parametrize("samples", [1000, 65_537, 131_072, 1_000_000, 2**40 + 1])
def test_orders_are_uniform(samples):
    """Where a place leads, how far neighbours lie apart, and how two epochs go together: 16 classes each."""
    count = min(samples, 20_000)
    first, second = (head(EpochOrder(samples, seed=7, epoch=epoch), count) for epoch in (0, 1))
    for value in (first, np.diff(first) % samples, (first - second) % samples):
        seen = np.bincount(value * 16 // samples, minlength=16)
        expected = len(value) / 16
        assert ((seen - expected) ** 2 / expected).sum() < stats_bound(15)


def stats_bound(freedom):
    """What chi-square exceeds once in a million (Wilson and Hilferty)."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + 4.76 * part**0.5) ** 3


def test_the_order_is_the_same_on_every_machine_and_in_every_version():
    assert head(EpochOrder(10, seed=0, epoch=0), 10).tolist() == GOLDEN


GOLDEN = [0, 7, 8, 6, 9, 5, 1, 3, 2, 4]


@given(st.integers(1, 500), st.integers(1, 8), st.none() | st.integers(1, 9), st.none() | st.integers(1, 200))
def test_steps_and_epochs_are_upper_bounds(samples, batch_size, epochs, steps):
    plan = EpochPlan(samples=samples, ranks=1, batch_size=batch_size)
    if plan.steps == 0 or (epochs is None and steps is None):
        return
    rank_plan = RankPlan(plan=plan, seed=3, epochs=epochs, steps=steps)
    read = list(rank_plan.portions(0))
    assert len(read) == rank_plan.length == min(steps or 10**9, plan.steps * (epochs or 10**9))
    places = [rank_plan.place(number) for number in range(rank_plan.length)]
    assert places == [(n // plan.steps, n % plan.steps) for n in range(rank_plan.length)]
    assert read[: plan.steps] == list(portions(plan, 0, 3, 0))[: rank_plan.length]
    ends = sum(rank_plan.ends_epoch(number) for number in range(rank_plan.length))
    assert ends == -(-rank_plan.length // plan.steps)


def test_too_few_samples_is_one_clear_line():
    with pytest.raises(DatasetError, match="6 samples are too few for 2 ranks at batch size 4.*--files 8"):
        EpochPlan(samples=6, ranks=2, batch_size=4).require_a_step()
