"""The replay that checks a recording."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from emulator.analysis.flags import unlike_job
from emulator.config.workload import JobSpec, ReplaySpec, load_workload
from emulator.errors import SpecError
from emulator.plugins.recorder.check import _amplification, _kept, _stored, _why
from emulator.plugins.recorder.job import Written
from emulator.plugins.recorder.observation import Loader, Observation, Settings
from emulator.plugins.recorder.reads import Reads
from emulator.plugins.recorder.replay import _pace
from emulator.plugins.recorder.steps import Pace
from emulator.plugins.recorder.watch import uneven
from emulator.record.steps import STEP


def test_a_replay_that_runs_ahead_is_as_fast_as_its_accelerator():
    """Its process takes batches every 7 ms until the queue of 20 steps of 25 ms is full."""
    rows, ends, now = np.zeros(60, STEP), [0.0], 0.0
    for step in range(60):
        now = max(now + 0.007, ends[-20] if step >= 20 else 0.0)
        ends.append(max(ends[-1], now) + 0.025)
        rows[step]["step"], rows[step]["begin"], rows[step]["compute"] = step, ends[-2], 0.025
        rows[step]["wait"] = ends[-1] - ends[-2] - 0.025
    found = _pace(rows, 4 + 19)
    assert found is not None and found.seconds == pytest.approx(0.025)


@pytest.mark.parametrize(("share", "cold"), [(1.1, True), (0.05, False), (0.5, None), (None, None)])
def test_a_job_read_cold_if_its_samples_came_from_storage_however_often_it_reads_them(share, cold):
    workload = load_workload("unet3d-tiny")
    stored = share and share * workload.sample.bytes_mean * workload.loader.batch_size
    loader = Loader(rank=0, host="", process=1, settings=Settings(), epochs=1, steps=9, samples=9,
                    batch_call_bytes=9e9, batch_storage_bytes=stored, reads=Reads())  # fmt: skip
    if cold is None:
        with pytest.raises(SpecError):
            _stored(loader, workload)
    else:
        assert _stored(loader, workload) is cold


@pytest.mark.parametrize(
    ("samples_per_file", "pattern", "batches", "found"),
    [
        (50, "random", 100, 2.0),
        (50, "random", 40, 2.0),
        (50, "random", 200, 1.5),
        (1, "random", 200, 1.0),
        (50, "sequential", 200, 1.0),
    ],
)
def test_pages_that_samples_share_come_from_storage_early(samples_per_file, pattern, batches, found):
    """A job got 2 bytes for each of its first 100 batches, then 1: so does a replay of as many batches."""
    workload = load_workload("unet3d-tiny")
    sample = replace(workload.sample, samples_per_file=samples_per_file)
    workload = replace(workload, sample=sample, access=replace(workload.access, pattern=pattern))
    reads = Reads(storage_bytes=int(2 * 100 * workload.batch_bytes))
    loader = Loader(rank=0, host="", process=1, settings=Settings(), epochs=1, steps=300, samples=1200,
                    read_steps=80, ahead=1.25, reads=reads,
                    batch_storage_bytes=float(workload.batch_bytes))  # fmt: skip
    assert _amplification(loader, workload, batches) == pytest.approx(found)


@pytest.mark.parametrize(
    ("share", "mapped", "traced", "kept"),
    [(0.2, 0, 30, 0.8), (1.1, 0, 30, 0), (None, 0, 30, 0), (0.0, 9, 30, 0), (0.2, 0, 80, 0)],
)
def test_a_job_that_keeps_samples_in_memory_reads_less_than_its_replay(share, mapped, traced, kept):
    """As MONAI's CacheDataset; the bytes of mapped files are no calls, and few later steps show nothing."""
    workload = load_workload("unet3d-tiny")
    later = share if share is None else share * workload.sample.bytes_mean * workload.loader.batch_size
    loader = Loader(rank=0, host="", process=1, settings=Settings(), epochs=1, steps=100, samples=100,
                    read_steps=traced, batch_call_bytes=later, reads=Reads(mapped=mapped))  # fmt: skip
    assert _kept(loader, workload) == pytest.approx(kept)


@pytest.mark.parametrize(("every", "uncertain"), [(1, 0.0), (2, 0.005), (50, 0.245)])
def test_bytes_that_are_read_in_few_large_pieces_are_uncertain(every, uncertain):
    """A piece is read when the first of its batches is requested; there are a hundred batches."""
    progress = [(batch, -(-batch // every) * every) for batch in range(101)]
    assert uneven(progress) == pytest.approx(uncertain)
    assert uneven([]) == uneven([(3, 7), (3, 7)]) == 0


@pytest.mark.parametrize(("rate", "also"), [(100.0, False), (80.0, True)])
def test_why_a_recording_is_not_trusted_is_the_reason_for_it(rate, also, tmp_path):
    """The flags of a replay that was as fast as the job explain nothing."""
    loader = Loader(rank=0, host="", process=1, settings=Settings(), epochs=1, steps=9, samples=9,
                    reads=Reads())  # fmt: skip
    written = Written(folder=tmp_path, observation=Observation(created="", how="strace"), described=None,
                      refused="")  # fmt: skip
    rates = ReplaySpec(
        samples_per_second=100.0, waited=0.1, replay_samples_per_second=rate, replay_waited=0.1
    )
    rows = np.zeros(20, STEP)
    workload = load_workload("unet3d-tiny")
    assert "no reason" in _why(written, workload, loader, rates, rows, [])
    pauses = replace(written, pace=Pace(seconds=0.1, waited=0.0, steps=90, pauses=0.025))
    again = _why(pauses, workload, loader, replace(rates, refilled=0.1), rows, ["client"])
    assert "every 40 steps" in again and ("client" in again) == also


@pytest.mark.parametrize(("hidden", "trusted"), [(0.0, True), (0.04, True), (0.79, False)])
def test_a_step_time_that_hides_waits_is_not_trusted_however_fast_its_replay(hidden, trusted):
    rates = ReplaySpec(samples_per_second=75.6, waited=0.79, replay_samples_per_second=75.6,
                       replay_waited=0.79 - hidden, hidden=hidden)  # fmt: skip
    flag = unlike_job(replace(load_workload("unet3d-tiny"), job=JobSpec(replay=rates)))
    assert rates.trusted is trusted and (flag is None) is trusted
    if flag is not None:
        assert "waited for data for 79% of the time" in flag.sentence and "faster storage" in flag.sentence


@pytest.mark.parametrize(
    ("job", "replay", "trusted"),
    [
        ((1.85, 21_000), (1.91, 28_000), False),
        ((1.2, 35_000), (1.2, 38_000), True),
        ((1, 126e3), (1, 73e3), True),
    ],
)
def test_a_job_that_makes_many_more_requests_than_its_replay_is_not_trusted(job, replay, trusted):
    """SQLite's rows with a page elsewhere; HDF5's index; a stream with larger requests than its replay's."""
    (amplification, request), (replay_amplification, replay_request) = job, replay
    rates = ReplaySpec(samples_per_second=100, waited=0, replay_samples_per_second=100, replay_waited=0,
                       amplification=amplification, replay_amplification=replay_amplification,
                       request_bytes=request, replay_request_bytes=replay_request)  # fmt: skip
    flag = unlike_job(replace(load_workload("unet3d-tiny"), job=JobSpec(replay=rates)))
    assert (flag is None) is trusted
    assert (flag is not None and "more requests from the job" in flag.sentence) == (not trusted)
