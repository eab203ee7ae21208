"""The replay that checks a recording."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from emulator.analysis.flags import unlike_job
from emulator.config.workload import JobSpec, ReplaySpec, load_workload
from emulator.plugins.recorder.check import apart
from emulator.plugins.recorder.replay import _pace
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


@pytest.mark.parametrize(
    ("differences", "what"),
    [
        ({}, ""),
        ({"rate": 0.04, "bytes of a batch": 0.09, "requests": 0.15, "requests in flight": 0.9}, ""),
        ({"rate": 0.06}, "rate"),
        ({"bytes of a batch": 0.25}, "bytes of a batch"),
        ({"bytes from storage": 0.11}, "bytes from storage"),
        ({"requests": 0.33}, "requests"),
        ({"requests in flight": 6.0}, "requests in flight"),
        ({"waits within the step time": 0.79}, "waits within the step time"),
    ],
)
def test_what_a_replay_does_otherwise_than_its_job_is_not_trusted(differences, what):
    compared = ReplaySpec(
        samples_per_second=100, replay_samples_per_second=100, waited=0.1, replay_waited=0.1,
        differences=differences, why="decoding",
    )  # fmt: skip
    flag = unlike_job(replace(load_workload("unet3d-tiny"), job=JobSpec(replay=compared)))
    assert compared.distrusted == what and (flag is None) == (not what)
    assert flag is None or f"in {what}: decoding" in flag.sentence


def test_differences_count_in_both_directions():
    assert apart(80e3, 100e3) == apart(100e3, 80e3) == pytest.approx(0.25)
    assert apart(0, 0) == 0 and apart(0, 1) == np.inf
