"""The schedstat of threads, from real threads and from invented ones."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.record.schedstat import Books, Stretch, _Thread, divided
from emulator.storage.counts import ReadStats

share = st.floats(0, 1)


@st.composite
def threads(draw):
    """Some threads in a stretch of one second."""
    found = []
    for _ in range(draw(st.integers(0, 5))):
        ran = draw(share)
        ready = draw(share) * (1 - ran)
        asleep = 1 - ran - ready
        found.append(_Thread(ran, ready, asleep, draw(share) * asleep, draw(st.integers(0, 100))))
    return found


@given(threads(), threads(), share, st.sampled_from([1, 4]), st.floats(0, 0.01))
def test_every_second_is_counted_once(readers, helpers, throttled, together, lock):
    found = divided(1.0, readers, helpers, throttled, together, lock)
    assert sum(found) == pytest.approx(1.0)
    assert min(found) >= -1e-9
    assert throttled or not found.quota


def asleep(within=1.0, requests=1):
    return _Thread(0.0, 0.0, 1.0, within, requests)


def test_readers_asleep_in_their_requests_wait_for_the_storage():
    assert divided(1.0, [asleep(), asleep(0.5)], []).storage == pytest.approx(1.0)
    assert divided(1.0, [asleep(0.25)], []) == pytest.approx(Stretch(storage=0.25, loader=0.75))


def test_a_reader_without_a_core_is_not_the_storages():
    starving = _Thread(0.2, 0.7, 0.1, 0.1, 1)
    found = divided(1.0, [starving], [])
    assert (found.cores, found.work, found.storage) == pytest.approx((0.7, 0.2, 0.1))
    assert divided(1.0, [starving], [], throttled=1.0).quota == pytest.approx(0.7)


def test_the_one_whose_turn_it_is_holds_up_the_others():
    """One reader of four has the emulated device and no core; the other three sleep because of it."""
    found = divided(1.0, [_Thread(0.0, 1.0, 0.0, 0.0, 1), asleep(), asleep(), asleep()], [], together=4)
    assert found.cores == pytest.approx(1.0)


def test_requests_wait_for_helpers_without_a_core():
    """As with an object store, whose client has threads of its own."""
    found = divided(1.0, [asleep()], [_Thread(0.1, 0.8, 0.1, 0.0, 0)])
    assert found.cores > 0.7 > found.storage


def test_taking_pythons_lock_at_the_end_of_each_request_is_the_loaders():
    found = divided(1.0, [asleep(requests=100)], [], lock_seconds=0.008)
    assert found.loader == pytest.approx(0.8)


def test_real_threads():
    """A reader that sleeps in a request, then works in one; a request under way counts."""
    stats, begun, go, worked, seen = ReadStats(), *(threading.Event() for _ in range(4))

    def read():
        tally = stats.mine()
        tally.starts(b"")
        begun.set()
        go.wait()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            sum(range(1000))
        tally.add(1, [0.0])
        worked.set()
        seen.wait()

    reader = threading.Thread(target=read)
    reader.start()
    books = Books(stats.tallies)
    assert books.kept
    try:
        begun.wait()
        time.sleep(0.01)
        before = time.monotonic()
        first = books.look()
        time.sleep(0.3)
        second = books.look()
        between = time.monotonic() - before
        go.set()
        worked.wait()
        third = books.look()
    finally:
        go.set()
        seen.set()
        reader.join()
        books.close()
    slept, ran = books.reading(first, second), books.reading(second, third)
    assert slept.storage > 0.9 * sum(slept) and 0.29 < sum(slept) <= between
    assert ran.work + ran.cores > 0.8 * min(0.3, sum(ran)), "with others about, it may have waited for a core"
