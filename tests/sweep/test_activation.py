"""Active ranks are spread over hosts as evenly as their slots allow."""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import SpecError
from emulator.sweep.schedule import Halving, activation_order, fed_between, parse_counts, require_ranks


def test_packed_one_host_after_the_other():
    assert activation_order(["a", "b", "a", "b", "c"], "pack") == [0, 2, 1, 3, 4]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40))
def test_every_rank_once_and_hosts_even(hosts):
    order = activation_order(hosts)
    assert sorted(order) == list(range(len(hosts)))
    assert order[0] == 0
    slots = Counter(hosts)
    for count in range(1, len(hosts) + 1):
        used = Counter(hosts[rank] for rank in order[:count])
        room = [used[host] for host in slots if used[host] < slots[host]]
        assert not room or max(used.values()) <= min(room) + 1


def test_counts():
    assert parse_counts("1,2,4,8") == (1, 2, 4, 8)
    assert parse_counts("1-4, 8") == (1, 2, 3, 4, 8)
    for wrong in ("", "1,,2", "0", "4-2", "a", "1.5", "-1"):
        with pytest.raises(SpecError, match="--counts"):
            parse_counts(wrong)
    with pytest.raises(SpecError, match="needs 8 processes, but only 4 ranks were started"):
        require_ranks((1, 8), 4)


@pytest.mark.parametrize("feeds", [0, 1, 5, 9, 12])
def test_halving_finds_the_largest_count_that_is_fed(feeds):
    """Against a list of every count, and within a time."""
    clock, points = SimpleNamespace(now=lambda: float(len(points))), []
    schedule = Halving(12, 0.9, clock, 60.0)
    schedule.cost = lambda ranks, points: 1.0
    while (count := schedule.next_count(points)) is not None:
        points.append(SimpleNamespace(ranks=count, x_ideal=1.0 if count <= feeds else 0.5))
    assert fed_between(points, 0.9)[0] == feeds and len(points) <= 7


def test_a_count_that_was_fed_once_is_fed():
    runs = [SimpleNamespace(ranks=ranks, x_ideal=share) for ranks, share in ((3, 0.95), (3, 0.8), (5, 0.7))]
    assert fed_between(runs, 0.9) == (3, 5)
    assert fed_between(runs[:2], 0.9) == (3, 4), "no count above it was run"
    assert fed_between(runs[1:], 0.9) == (0, 3)


def test_no_run_begins_that_would_not_end_in_time():
    clock = SimpleNamespace(time=0.0)
    clock.now = lambda: clock.time
    schedule = Halving(12, 0.9, clock, 60.0)
    schedule.cost = lambda ranks, points: 5.0 * ranks
    assert schedule.next_count([]) == 1
    fed = SimpleNamespace(ranks=4, x_ideal=1.0)
    assert schedule.next_count([fed]) == 8
    clock.time = 25.0
    assert schedule.next_count([fed]) == 7, "35 s are left"
    clock.time = 55.0
    assert schedule.next_count([fed]) is None, "four ranks are known"
