"""The replay that checks a recording."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from emulator.analysis.flags import unlike_job
from emulator.config.workload import JobSpec, ReplaySpec, load_workload
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


STORED = {"stored_bytes": 2e6, "replay_stored_bytes": 2e6}


def rates(**found: float) -> ReplaySpec:
    same = {"samples_per_second": 100, "replay_samples_per_second": 100, "waited": 0.1, "replay_waited": 0.1}
    return ReplaySpec(**{**same, **found})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ({}, ""),
        ({"replay_samples_per_second": 96}, ""),
        ({"replay_samples_per_second": 106}, "rate"),
        ({"replay_samples_per_second": 94}, "rate"),
        ({"bytes": 80e3, "replay_bytes": 100e3}, "bytes of a batch"),
        ({"bytes": 100e3, "replay_bytes": 80e3}, "bytes of a batch"),
        ({"bytes": 100e3, "replay_bytes": 95e3}, ""),
        ({"stored_bytes": 2e6, "replay_stored_bytes": 1.8e6}, "bytes from storage"),
        ({**STORED, "request_bytes": 21e3, "replay_request_bytes": 28e3}, "requests"),
        ({**STORED, "request_bytes": 35e3, "replay_request_bytes": 38e3}, ""),
        ({"in_flight": 8, "replay_in_flight": 1.1}, "requests in flight"),
        ({"in_flight": 2, "replay_in_flight": 1.1}, ""),
        ({"hidden": 0.04}, ""),
        ({"hidden": 0.79}, "waits within the step time"),
    ],
)  # fmt: skip
def test_what_a_replay_does_otherwise_than_its_job_is_not_trusted(found, what):
    """In both directions, however fast it is."""
    compared = rates(**found)
    flag = unlike_job(replace(load_workload("unet3d-tiny"), job=JobSpec(replay=compared)))
    assert compared.trusted == (not what) == (flag is None)
    assert flag is None or what in flag.sentence
