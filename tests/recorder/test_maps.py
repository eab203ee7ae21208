"""The bytes of a mapped sample, and the time of its reads, that replays find."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.plugins.recorder.maps import less_replayed, reads_unseen, sample_bytes
from emulator.plugins.recorder.observation import Loader, Settings
from emulator.plugins.recorder.reads import Reads
from emulator.plugins.recorder.steps import Pace, StepTime
from emulator.plugins.recorder.watch import _maps

AROUND = 65536
"""Bytes that the kernel reads around those that a sample has."""


@given(st.integers(4096, 10**6), st.integers(1, 8), st.floats(-0.015, 0.015))
def test_a_sample_has_the_bytes_with_which_as_many_come_from_storage(truth, larger, noise):
    tried = []

    def delivered(size: int) -> float:
        tried.append(size)
        return (size + AROUND) * (1 + noise)

    first = truth * larger
    found = sample_bytes(truth + AROUND, first, 0.02, delivered)
    assert found in tried and len(tried) <= 6
    assert (found + AROUND) / (truth + AROUND) == pytest.approx(1, abs=0.1)


def test_a_first_size_that_is_close_is_kept():
    assert sample_bytes(104_000.0, 100_000, 0.05, float) == 100_000


def test_a_sample_may_have_more_than_the_first_guess():
    """Pages of earlier samples were in memory, so that storage delivered less than a sample has."""
    found = sample_bytes(150_000 + AROUND, 80_000, 0.02, lambda size: size + AROUND)
    assert found == pytest.approx(150_000, rel=0.1)


@pytest.mark.parametrize(("of_job", "found"), [(10.0**9, 320_000), (1.0, 4096)])
def test_the_closest_counts_if_no_size_delivers_as_much(of_job, found):
    assert sample_bytes(of_job, 80_000, 0.02, lambda size: size + AROUND) == pytest.approx(found, rel=0.2)


def test_a_job_that_reads_and_computes_in_turn_computes_while_its_replay_does_not_read():
    bound = StepTime(seconds=0.03, bound=True, steps=0, all_steps=100, waited=0.0)
    job = Pace(seconds=0.03, waited=0.0, steps=90)
    found = less_replayed(bound, job, Pace(seconds=0.035, waited=0.2, steps=90))
    assert found.seconds == pytest.approx(0.023) and found.waited == pytest.approx(0.007 / 0.03)
    assert found.in_turn and not found.bound
    assert less_replayed(bound, job, Pace(seconds=0.1, waited=0.9, steps=9)).seconds == 0


@pytest.mark.parametrize(
    ("workers", "marked", "mapped", "unseen"),
    [(0, True, 9, True), (2, True, 9, False), (0, False, 9, False), (0, True, 0, False)],
)
def test_reads_are_unseen_of_maps_in_the_process_that_marks_its_steps(workers, marked, mapped, unseen):
    loader = Loader(rank=0, host="", process=1, settings=Settings(workers=workers, marked=marked), epochs=1,
                    steps=9, samples=9, reads=Reads(mapped=mapped))  # fmt: skip
    bound = StepTime(seconds=0.03, bound=True, steps=0, all_steps=100, waited=0.0)
    assert reads_unseen(bound, loader) is unseen


@pytest.mark.parametrize("random", [False, True])
def test_it_is_seen_that_the_kernel_was_told_of_random_reads(tmp_path: Path, random: bool) -> None:
    (tmp_path / "a name").write_bytes(bytes(8 * 4096))
    with (tmp_path / "a name").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_RANDOM if random else mmap.MADV_NORMAL)
        (found,) = (one for one in _maps(Path("/proc/self/smaps")) if one.path.endswith(b"a name"))
    assert (found.path, found.size, found.random) == (os.fsencode(tmp_path / "a name"), 8 * 4096, random)
    assert _maps(Path("/proc/4194304/smaps")) == [], "there is no such process"
