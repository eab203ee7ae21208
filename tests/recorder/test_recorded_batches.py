"""From a job's calls to the batches of calls.parquet."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.calls import ANY, END, FIXED, MAP, MOVED, NEXT, OPEN, READ
from emulator.errors import SpecError
from emulator.plugins.recorder.batches import TracedBatch, batches_in, estimated_files, recorded, shared_files
from emulator.plugins.recorder.log import BATCH_BEGINS, BATCH_ENDS, CallLog, Event, File

SIZE = 100_000


def event(op: int, file: int = -1, offset: int = 0, size: int = 0, at: float = 0.0, thread: int = 1) -> Event:
    return Event(op, thread, file, offset, size, at, at + 1e-5)


def whole(file: int, at: float = 0.0, size: int = SIZE) -> list[Event]:
    return [event(OPEN, file, at=at), event(READ, file, 0, size, at + 1e-4)]


def files(count: int, size: int = SIZE, ending: str = "npy") -> list[File]:
    return [File(f"/data/{number}.{ending}".encode(), size, number) for number in range(count)]


def batches(contents: list[list[Event]]) -> list[list[list[TracedBatch]]]:
    """What one worker of one rank has made."""
    return [[[TracedBatch(float(at), at + 0.9, calls) for at, calls in enumerate(contents)]]]


def record(contents, of, batch_size=2, length=0, **more):  # type: ignore[no-untyped-def]
    more = {"replacement": False, "cpu_seconds": 0.01, **more}
    return recorded(batches(contents), of, batch_size=batch_size, length=length, **more)


def test_batches_are_what_lies_between_their_marks():
    calls = [event(READ, 0, at=0.5), event(BATCH_BEGINS, at=1), event(READ, 1, at=2), event(BATCH_ENDS, at=3)]
    calls += [event(READ, 2, at=4), event(BATCH_BEGINS, at=5), event(READ, 3, at=6), event(BATCH_ENDS, at=7)]
    calls += [event(READ, 4, at=8), event(BATCH_BEGINS, at=9)]
    assert [[one.file for one in made.events] for made in batches_in(calls, 0)] == [[0, 1], [2, 3]]
    assert batches_in(calls, 7) == [], "those of another loader of the process"


def test_whole_files_are_visits_to_the_next_file_of_an_epoch():
    found = record([whole(2 * n) + whole(2 * n + 1, 0.1) for n in range(4)], files(8), length=64)
    rows = found.rows
    assert (found.files, found.seen, found.batch_bytes, found.guessed) == (64, 8, 2 * SIZE, False)
    assert rows["op"].tolist() == 4 * [OPEN, READ, OPEN, READ, END]
    assert set(rows["place"][rows["op"] == READ]) == {NEXT} and len(set(rows["visit"])) == 9
    # What a batch costs is divided among its calls as the clock shows it.
    assert rows["cpu_gap_us"].sum() == pytest.approx(4 * 10_000)


def test_a_file_that_is_opened_again_in_a_batch_is_the_same_file():
    found = record([whole(n) + whole(n, 0.1) for n in range(6)], files(6), batch_size=1, length=30)
    assert found.files == 30 and len(set(found.rows["visit"])) == 1 + 5


def test_samples_of_one_file_move_and_its_index_does_not():
    places = np.random.default_rng(1).permutation(400)[:80] * 10_000
    contents = [
        [event(READ, 0, 0, 96, 0.0), *(event(READ, 0, int(at), 9000, 0.1 + n) for n, at in enumerate(pair))]
        for pair in places.reshape(-1, 2)
    ]
    found = record(contents, files(1, 4_000_000, "h5"), length=400)
    rows = found.rows[found.rows["op"] == READ]
    assert found.files == 1 and set(rows["place"][rows["bytes"] == 9000]) == {MOVED}
    assert set(rows["place"][rows["bytes"] == 96]) == {FIXED}
    assert 70 <= len(set(rows["visit"])) <= 78, "near ones count as one"


def test_a_stream_goes_on_with_its_file_and_is_no_file_of_many_samples():
    contents = [[event(READ, 0, 5000 * n, 5000, 0.1)] for n in range(20)]
    found = record([[event(OPEN, 0), *contents[0]], *contents[1:]], files(1, ending="tar"), batch_size=1)
    assert set(found.rows["place"][found.rows["op"] == READ]) == {NEXT}
    assert found.guessed and found.files == 1


def test_other_files_that_samples_draw_are_any_files():
    """Each sample reads its own file, and another one at random."""
    draw = np.random.default_rng(3)
    order = draw.permutation(300)
    contents = [whole(int(n)) + whole(int(draw.integers(300)), 0.5) for n in order[:200]]
    found = record(contents, files(300), batch_size=1, length=300)
    assert found.files == pytest.approx(300, rel=0.1)
    rows = found.rows[found.rows["op"] == READ]
    assert (rows["place"] == ANY).mean() == pytest.approx(0.5, abs=0.1)
    assert set(record(contents, files(300), batch_size=1, length=300, replacement=True).rows["place"]) <= {
        0,
        ANY,
    }


@pytest.mark.parametrize(
    ("visits", "per_epoch", "held"),
    [(800, 800, 800), (800, 50_000, 50_000), (800, 96_000, 1200), (800, 0, 1200), (800, 2400, 1200)],
)
def test_how_many_files_there_are_follows_from_how_often_one_is_seen_again(visits, per_epoch, held):
    """One that is read once an epoch is one of as many; rows of the same file, or others, repeat."""
    draw, found = np.random.default_rng(1), []
    for _ in range(20):
        first = round(visits * held / per_epoch) if per_epoch else 0
        seen = set(draw.permutation(held)[: min(first, held)].tolist())
        seen |= set(draw.integers(0, held, visits - first).tolist())
        found.append(estimated_files(visits, len(seen), per_epoch, min(visits, per_epoch)))
    assert np.median(found) == pytest.approx(held, rel=0.07)


def test_threads_of_a_worker_are_kept_and_those_that_seldom_read_are_not():
    contents = [
        [event(READ, 4 * n + t, 0, SIZE, 0.1 * t, 10 + t) for t in range(4)]
        + [event(READ, 0, 0, 1, 0.5, 99)] * (n == 3)
        for n in range(8)
    ]
    assert set(record(contents, files(32), batch_size=4, length=64).rows["thread"]) == {0, 1, 2, 3}


def test_the_first_batch_may_fill_a_buffer_and_is_left_out():
    contents = [[event(READ, n, 0, SIZE if n else 20 * SIZE, 0.1)] for n in range(20)]
    found = record(contents, files(20), batch_size=1, length=40)
    assert found.batch_bytes == SIZE


def test_a_sample_of_a_mapped_file_is_its_share():
    contents = [[event(MAP, 0, 0, 4_000_000, -1.0)] if not n else [] for n in range(10)]
    found = record(contents, files(1, 4_000_000), length=1000)
    rows = found.rows[found.rows["op"] == MAP]
    assert (
        found.mapped and found.files == 1 and set(rows["bytes"]) == {4000} and set(rows["place"]) == {MOVED}
    )
    assert len(rows) == 2 * (int(found.rows["batch"].max()) + 1)
    with pytest.raises(SpecError, match="no length of a dataset"):
        record(contents, files(1, 4_000_000))


def test_a_job_that_reads_nothing_is_refused():
    with pytest.raises(SpecError, match="read no data file"):
        record([[] for _ in range(10)], [], length=10)
    with pytest.raises(SpecError, match="no batch was made"):
        record([], [], length=10)


def test_a_file_that_a_job_empties_and_fills_has_the_bytes_it_was_read_with(tmp_path):
    log, path = CallLog(), tmp_path / "scratch.bin"
    path.touch()
    log.opened(7, 7, 3, bytes(path))
    path.write_bytes(b"12345")
    log.read(7, 7, 3, bytes(path), None, 5)
    assert [(file.bytes, file.number) for file in log.files] == [(5, 0)]
    assert [event.bytes for event in log.events[7]] == [5]


def test_threads_are_those_of_a_batch_though_workers_are_new_in_each_epoch():
    contents = [[event(READ, n, 0, SIZE, 0.1, 10 + n // 4)] for n in range(12)]
    assert set(record(contents, files(12), batch_size=1, length=4).rows["thread"]) == {0}


def test_samples_drawn_with_replacement_and_epochs_that_are_cut_leave_files_unseen():
    draw = np.random.default_rng(1)
    drawn = [whole(int(number)) for number in draw.integers(0, 200, 150)]
    found = record(drawn, files(200), batch_size=1, length=200, replacement=True)
    assert found.seen < 120 and found.files == pytest.approx(200, rel=0.12)
    epochs = [whole(int(number)) for number in [*draw.permutation(60), *draw.permutation(60)[:5]]]
    found = record(epochs, files(60), batch_size=1, length=60)
    assert found.files == 60, "the first batch is left out, whose file the second epoch did not reach"


def test_ranks_share_files_or_have_their_own():
    ((first,),), ((own,),) = batches([whole(0), whole(1)]), batches([whole(2), whole(3)])
    ((both,),) = batches([whole(1), whole(2)])
    assert not shared_files([[first], [own]]) and shared_files([[first], [both]])
