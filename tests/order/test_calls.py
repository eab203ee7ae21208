"""Recorded batches on a dataset: which file and place a visit gets."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.calls import ANY, CALL, END, FIXED, MOVED, NEXT, OPEN, READ, Calls, Cast
from emulator.errors import SpecError


def calls(visits: list[tuple[int, int, int, int, int]], batches: int) -> Calls:
    """Of visits with (batch, bytes of the file, offset, bytes, place), each an open and a read."""
    rows = []
    for batch in range(batches):
        for number, (of, size, offset, length, place) in enumerate(visits):
            if of == batch:
                rows.append((batch, number, number, size, 0, OPEN, place, 0, 0, 1.0))
                rows.append((batch, number, number, size, 0, READ, place, offset, length, 1.0))
        rows.append((batch, -1, -1, 0, 0, END, NEXT, 0, 0, 1.0))
    return Calls(np.array(rows, CALL))


def played(cast: Cast, steps: int, ranks: int = 1, seed: int = 0, epoch: int = 0):  # type: ignore[no-untyped-def]
    return [
        placed
        for rank in range(ranks)
        for portion in islice(cast.portions(2, rank, ranks, seed, epoch), steps)
        for placed in portion.drawn.visits
    ]


@given(
    count=st.integers(8, 60), ranks=st.integers(1, 4), batches=st.integers(1, 7), seed=st.integers(0, 2**32)
)
def test_an_epoch_reads_each_file_once_whatever_the_ranks(count, ranks, batches, seed):
    recorded = calls([(n // 2, SIZE, 0, SIZE, NEXT) for n in range(2 * batches)], batches)
    steps = count // (2 * ranks)
    found = played(Cast(recorded, np.full(count, SIZE), steps * ranks, 2), steps, ranks, seed)
    assert len(found) == len({one.file for one in found}) == 2 * steps * ranks
    assert all(one.anew and not one.shift for one in found)


SIZE = 100_000


def test_a_visit_gets_a_file_of_its_size():
    recorded = calls([(0, SIZE, 0, SIZE, NEXT), (0, 4000, 0, 4000, NEXT)], 1)
    sizes = np.array([SIZE, 4100, SIZE + 5000, 3900] * 10)
    for placed in played(Cast(recorded, sizes, 20, 1), 20):
        assert sizes[placed.file] == pytest.approx([SIZE, 4000][placed.visit], rel=0.2)


def test_samples_of_a_file_are_read_once_an_epoch_and_lie_apart():
    """40 recorded samples of 10 kB; the file has 400, and the epoch ten laps of the recording."""
    places = np.random.default_rng(1).permutation(400)[:40] * 10_000
    recorded = calls([(n // 2, 4_000_000, int(at), 9000, MOVED) for n, at in enumerate(places)], 20)
    cast = Cast(recorded, np.array([4_000_000]), 200, 2)
    begins = np.sort([placed.shift + places[placed.visit] for placed in played(cast, 200)])
    assert len(begins) == 400 and begins.min() >= 0 and begins.max() + 9000 <= 4_000_000
    assert (np.diff(begins) > 5000).mean() > 0.98
    assert {placed.shift % 4096 for placed in played(cast, 200)} == {0}, "whole pages"


def test_a_visit_that_goes_on_keeps_its_file_until_the_next_lap():
    rows = [(batch, 0, 0, SIZE, 0, READ, NEXT, 1000 * batch, 1000, 1.0) for batch in range(5)]
    ends = [(batch, -1, -1, 0, 0, END, NEXT, 0, 0, 1.0) for batch in range(5)]
    recorded = Calls(np.array([row for pair in zip(rows, ends, strict=True) for row in pair], CALL))
    found = [placed.file for placed in played(Cast(recorded, np.full(20, SIZE), 10, 1), 10)]
    assert len(set(found[:5])) == len(set(found[5:])) == 1 and found[0] != found[5]


def test_any_files_repeat_and_an_index_stays():
    recorded = calls([(0, SIZE, 0, SIZE, ANY), (0, SIZE, 0, 100, FIXED), (0, SIZE, 0, SIZE, NEXT)], 1)
    found = played(Cast(recorded, np.full(30, SIZE), 20, 1), 20)
    drawn, fixed = ([one for one in found if one.visit == number] for number in (0, 1))
    assert len({one.file for one in drawn}) > 10 and len({one.file for one in fixed}) == 1
    assert sum(one.anew for one in found) == len({one.file for one in found}), "a second use is no first one"


@pytest.mark.parametrize("name", ["batch", "offset", "bytes", "cpu_gap_us", "op"])
def test_damaged_calls_are_refused(name):
    rows = calls([(0, SIZE, 0, SIZE, NEXT)], 1).rows.copy()
    rows[name][1] = 77 if name == "op" else -1
    with pytest.raises(SpecError):
        Calls(rows)
