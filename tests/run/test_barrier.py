"""The barrier of a step: nobody leaves before all are there, and all learn when the last step was over."""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threads import Group, ThreadComm

from emulator.launch.barrier import StepBarrier
from emulator.launch.links import join_hosts


def on_ranks(nodes, work):
    """`work(barrier, rank)` of every rank, in rank order."""
    group = Group(sum(nodes))

    def live(rank):
        comm = ThreadComm(group, rank, nodes)
        links = join_hosts(comm)
        with links or nullcontext(), StepBarrier(comm, comm.node(), links) as barrier:
            found = work(barrier, rank)
            comm.barrier()  # before any of them closes its links
            return found

    with ThreadPoolExecutor(group.size) as pool:
        return list(pool.map(live, range(group.size)))


@settings(max_examples=10)
@given(
    st.integers(1, 9).flatmap(
        lambda ranks: st.lists(st.lists(st.floats(0, 1e9), min_size=ranks, max_size=ranks), max_size=30)
    )
)
def test_every_rank_of_a_node_learns_the_last_end(steps):
    ranks = len(steps[0]) if steps else 1
    learned = on_ranks([ranks], lambda barrier, rank: [barrier.wait(ends[rank]) for ends in steps])
    assert learned == [[max(ends) for ends in steps]] * ranks


@pytest.mark.parametrize("nodes", [[4], [1, 1], [3, 2]])
def test_infinity_of_one_rank_reaches_all(nodes):
    """A rank whose time is up stops the others with it."""
    last = sum(nodes) - 1
    learned = on_ranks(nodes, lambda barrier, rank: barrier.wait(math.inf if rank == last else 1.0))
    assert learned == [math.inf] * sum(nodes)


@pytest.mark.parametrize("nodes", [[4], [1, 1], [3, 2]])
def test_nobody_leaves_before_the_last_one_is_there(nodes):
    def work(barrier, rank):
        for late in range(sum(nodes)):
            if rank == late:
                time.sleep(0.02)
                arrived[late] = time.monotonic()
            barrier.wait(time.monotonic())
            left[rank].append(time.monotonic())

    arrived = [0.0] * sum(nodes)
    left = [[] for _ in arrived]
    on_ranks(nodes, work)
    for late, moment in enumerate(arrived):
        assert min(rank[late] for rank in left) >= moment


def test_joined_hosts_learn_when_the_last_step_of_all_was_over():
    begun = time.monotonic()

    def work(barrier, rank):
        return barrier.cost(), [barrier.wait(begun + step + rank) - begun for step in range(5)]

    for cost, learned in on_ranks([2, 1, 2], work):
        # clocks differ by a message's time
        assert learned == pytest.approx([4.0, 5.0, 6.0, 7.0, 8.0], abs=0.4) and cost > 0
