"""Ranks that watch each other, and hosts that run the same software."""

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from threads import Group, ThreadComm

from emulator.errors import LaunchError
from emulator.files import SCRATCH_VARIABLE
from emulator.run import heartbeat
from emulator.run.world import differences

TIMEOUT = 30.0
SAME = {"feedrate": "0.2.0", "code": "f38c", "Python": "3.11.7", "torch": "2.13.0"}


class Ranks:
    """Two ranks of a host, their clock, and what they say before they end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.said: list[tuple[int, str]] = []
        monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(heartbeat, "end_rank", self.end)
        page = mmap.mmap(-1, 2 * heartbeat._SLOT.size)
        self.first, self.second = (
            heartbeat._Watch(page, SimpleNamespace(rank=rank, size=2), 10 + rank, TIMEOUT) for rank in (0, 1)
        )

    def end(self, rank: int, error: Exception, *, witness: bool) -> None:
        self.said.append((rank, str(error)))

    def after(self, seconds: float, *alive: heartbeat._Watch) -> list[tuple[int, str]]:
        """Let `alive` beat once a second for `seconds`; what was said in that time."""
        self.said.clear()
        for _ in range(round(seconds)):
            self.now += 1
            for watch in alive:
                watch.look()
        return self.said


@pytest.fixture
def ranks(monkeypatch):
    return Ranks(monkeypatch)


def test_a_rank_that_has_no_heartbeat_for_the_timeout_is_named_by_the_one_before(ranks):
    assert not ranks.after(100, ranks.first, ranks.second)
    assert not ranks.after(TIMEOUT - 1, ranks.first)
    (rank, line), *_ = ranks.after(3, ranks.first)
    assert rank == 10 and "rank 11 on" in line and f"process {os.getpid()}" in line


def test_a_host_that_was_stopped_as_a_whole_is_not_hung(ranks):
    assert not ranks.after(10, ranks.first, ranks.second)
    ranks.now += 3600
    assert not ranks.after(10, ranks.first)  # the other one is continued a moment later
    assert not ranks.after(100, ranks.first, ranks.second)


def test_a_rank_that_has_ended_is_not_missed(ranks):
    ranks.second._end()
    assert not ranks.after(10 * TIMEOUT, ranks.first, ranks.second)


def test_hosts_with_the_same_software_do_not_differ():
    assert differences({}) == differences({"a": SAME}) == differences({"a": SAME, "b": dict(SAME)}) == ""


@pytest.mark.parametrize("fact", ["feedrate", "code"])
def test_another_feedrate_on_one_host_is_refused_with_its_name(fact):
    hosts = {name: dict(SAME) for name in ("a", "b", "c")}
    hosts["b"][fact] = "other"
    with pytest.raises(LaunchError, match=f"{fact} .* on a, c, other on b"):
        differences(hosts)


def test_other_differences_are_said():
    hosts = {f"n{number}": SAME for number in range(9)} | {"old": SAME | {"torch": "2.4.0"}}
    assert differences(hosts) == "torch 2.13.0 on n0, n1, n2 and 6 more hosts, 2.4.0 on old"


def test_a_rank_that_is_alone_on_its_host_takes_part(monkeypatch):
    """Ranks of other hosts watch each other, and begin together with it."""
    looks: list[object] = []
    monkeypatch.setattr(heartbeat, "at_each_beat", looks.append)
    monkeypatch.delenv(SCRATCH_VARIABLE, raising=False)
    group = Group(3)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda rank: heartbeat.watch_each_other(ThreadComm(group, rank, (2, 1))), range(3)))
    assert len(looks) == 2
