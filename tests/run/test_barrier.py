"""The barrier of a step: nobody leaves before all are there, and all learn when the last step was over."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.run.barrier import StepBarrier


class Group:
    """What the threads of a ThreadComm share."""

    def __init__(self, size):
        self.size = size
        self.meet = threading.Barrier(size)
        self.said = [None] * size
        self.lock = threading.Lock()
        self.parts = {}

    def part(self, color, size):
        with self.lock:
            return self.parts.setdefault(color, Group(size))


class ThreadComm:
    """Ranks as threads; `nodes` are the numbers of ranks on each."""

    def __init__(self, group, rank, nodes=()):
        self.group, self.rank, self.size, self.nodes = group, rank, group.size, nodes

    def barrier(self, poll=0.0):
        self.group.meet.wait(10)

    def bcast(self, value):
        return self._all(value)[0]

    def split(self, color):
        colors = self._all(color)
        rank = colors[: self.rank].count(color)
        found = ThreadComm(self.group.part(color, colors.count(color)), rank)
        self.barrier()
        if self.rank == 0:
            self.group.parts = {}
        self.barrier()
        return found

    def node(self):
        return self.split([node for node, ranks in enumerate(self.nodes) for _ in range(ranks)][self.rank])

    def _all(self, value):
        self.group.said[self.rank] = value
        self.barrier()
        said = list(self.group.said)
        self.barrier()
        return said


def on_ranks(nodes, work):
    """`work(barrier, rank)` of every rank, in rank order."""
    group = Group(sum(nodes))

    def live(rank):
        comm = ThreadComm(group, rank, nodes)
        with StepBarrier(comm, comm.node()) as barrier:
            return work(barrier, rank)

    with ThreadPoolExecutor(group.size) as pool:
        return list(pool.map(live, range(group.size)))


@settings(max_examples=10, deadline=None)
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


def test_who_is_held_up_by_another_node_is_free_when_that_is_there():
    """Clocks of two nodes cannot be compared, so the moment is each node's own."""
    begun = time.monotonic()

    def work(barrier, rank):
        if rank == 2:
            time.sleep(0.05)
        return barrier.wait(begun - rank) - begun

    first, second, alone = on_ranks([2, 1], work)
    assert first == second >= 0.05
    assert alone == pytest.approx(-2.0), "nobody held it up"
