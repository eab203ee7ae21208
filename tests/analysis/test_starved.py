"""Causes of a point's starving follow from what single ranks know."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.analysis.starved import CAUSES, RankAccount, starved
from emulator.record.result import Starved
from emulator.record.schedstat import Stretch
from emulator.record.steps import STEP

STORAGE, CORES, QUOTA, WORK = (Stretch(**{name: 1.0}) for name in ("storage", "cores", "quota", "work"))
NOTHING, ASLEEP = Stretch(), Stretch(loader=1.0)


def log(waits, barriers=0.0, late=0.0, compute=1.0):
    """Steps of `compute` s, `waits` of shape (ranks, steps); in each the process takes its batch `late`."""
    waits = np.atleast_2d(np.asarray(waits, dtype=float))
    rows = np.zeros(waits.shape, STEP)
    rows["rank"], rows["step"] = np.indices(waits.shape)
    rows["wait"], rows["compute"], rows["barrier"], rows["overshoot"] = waits, compute, barriers, late
    return rows.reshape(-1)


def account(reading, host="a", process=CORES, readers=NOTHING, **more):
    return RankAccount(host=host, reading=reading, process=process, readers=readers, **more)


def shares(found: Starved) -> dict[str, float]:
    return {name: getattr(found, name) for name in CAUSES if getattr(found, name) > 1e-9}


def test_the_waits_of_each_rank_count_by_their_length():
    both, _ = starved(log([[9, 1, 1], [9, 3, 3]]), [account(STORAGE), account(CORES)])
    assert both.seconds == pytest.approx(8.0)
    assert shares(both) == pytest.approx({"storage": 0.25, "cores": 0.75}), "without the first steps"


def test_hosts_have_shares_of_their_own():
    ranks = [account(STORAGE, "a"), account(WORK, "b")]
    _, hosts = starved(log([[9, 2, 2], [9, 2, 2]]), ranks)
    assert shares(hosts["a"]) == {"storage": 1.0} and shares(hosts["b"]) == {"work": 1.0}


def test_what_a_slow_host_waits_longer_is_its_link():
    ranks = [account(STORAGE, host) for host in "abc"]
    both, hosts = starved(log([[0, 0.5, 0.5], [0, 0.5, 0.5], [0, 8, 8]]), ranks)
    assert shares(hosts["a"]) == {"storage": 1.0}
    assert hosts["c"].link == pytest.approx(1 - (1 / 3) / (16 / 18)) and both.link > both.storage


def test_a_rank_at_a_barrier_waits_for_what_holds_up_the_last():
    rows = log([[0, 4, 4], [0, 0, 0]], [[0, 0, 0], [0, 4, 4]])
    both, _ = starved(rows, [account(CORES), account(STORAGE)])
    assert both.seconds == pytest.approx(16.0)
    assert shares(both) == {"cores": 1.0}, "the second rank's storage has nothing to do with it"


def test_a_rank_that_computes_for_longer_is_nobodys_fault():
    rows = log([[0, 0, 0], [0, 0, 0]], [[0, 0, 0], [0, 4, 4]], compute=[[1, 5, 5], [1, 1, 1]])
    both, _ = starved(rows, [account(CORES), account(STORAGE)])
    assert shares(both) == {"steps": 1.0}


def test_a_barrier_that_nobody_held_up_is_the_emulators():
    rows = log([[0, 0, 0], [0, 0, 0]], [[0, 4, 4], [0, 4, 4]])
    both, _ = starved(rows, [account(STORAGE, process=Stretch())] * 2)
    assert shares(both) == {"barrier": 1.0}


@pytest.mark.parametrize(("cause", "named"), [(ASLEEP, True), (CORES, False), (STORAGE, False)])
def test_one_rank_that_is_late_by_itself_is_named(cause, named):
    rows = log([[0, 4, 4], [0, 0, 0], [0, 0, 0]], [[0, 0, 0], [0, 4, 4], [0, 4, 4]])
    both, hosts = starved(rows, [account(cause, "b"), account(CORES), account(CORES)])
    assert (both.straggler, both.straggler_host) == ((0, "b") if named else (None, ""))
    assert hosts["b"].straggler is None
    every, _ = starved(log([[0, 4, 4], [0, 4, 4]]), [account(ASLEEP), account(ASLEEP)])
    assert every.straggler is None


@pytest.mark.parametrize("ready", [0.0, 4.0])
def test_who_is_woken_late_from_a_barrier_holds_up_the_next_one(ready):
    """The first is back from each barrier 1 s late, for want of a core or not; the other waits."""
    rows = log([[0] * 5] * 2, [[0] * 5, [1] * 5], [[1] * 5, [0] * 5])
    rows["late"][rows["rank"] == 0] = 1.0
    both, _ = starved(rows, [account(STORAGE, process=Stretch(cores=ready)), account(STORAGE, "b")])
    assert shares(both) == pytest.approx({"cores": 1.0} if ready else {"barrier": 1.0})


def test_a_late_process_is_the_clients_though_its_data_were_there():
    rows = log([[0, 0, 0, 0]], late=0.5)
    both, _ = starved(rows, [account(STORAGE, process=Stretch(cores=1.2, work=0.3, loader=2.0))])
    assert both.seconds == pytest.approx(1.5)
    assert shares(both) == pytest.approx({"cores": 0.8, "work": 0.2})


def test_a_lock_that_a_worker_without_a_core_keeps_is_for_want_of_cores():
    rank = account(STORAGE, process=Stretch(loader=9.0), readers=Stretch(storage=5.0, cores=3.0, work=1.0))
    both, _ = starved(log([[0, 0, 0, 0]], late=0.5), [rank])
    assert shares(both) == pytest.approx({"cores": 0.75, "loader": 0.25})


def test_a_stopped_rank_is_named_though_its_readers_waited_for_cores():
    readers = Stretch(cores=3.0, work=1.0)
    ranks = [account(STORAGE, process=Stretch(loader=9.0), readers=readers)] * 3
    late = np.array([[4.0], [0.1], [0.1]])
    both, _ = starved(log([[0] * 4] * 3, late=late), ranks)
    assert both.straggler == 0
    both, _ = starved(log([[0] * 4] * 3, late=late[[0, 0, 1]]), ranks)
    assert both.straggler is None


def test_stolen_time_looks_like_sleep():
    rank = account(Stretch(storage=0.5, work=0.5), stolen=0.5)
    assert starved(log([[0, 1, 1]]), [rank])[0].cores == pytest.approx(0.5)


@given(st.lists(st.lists(st.floats(0, 5), min_size=4, max_size=4), min_size=1, max_size=4), st.data())
def test_shares_sum_to_all(waits, data):
    barriers = data.draw(st.floats(0, 3))
    ranks = [
        account(Stretch(*data.draw(st.tuples(*[st.floats(0, 1)] * 5))), str(at % 2))
        for at in range(len(waits))
    ]
    both, hosts = starved(log(waits, barriers), ranks)
    for found in (both, *hosts.values()):
        total = sum(shares(found).values())
        assert total == pytest.approx(1.0) if found.seconds > 1e-9 else total <= 1.0 + 1e-9
    assert both.seconds == pytest.approx(sum(found.seconds for found in hosts.values()))
