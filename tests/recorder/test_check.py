"""The replay that checks a recording."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.plugins.recorder.check import _pace
from emulator.record.steps import STEP


def test_a_replay_that_runs_ahead_is_as_fast_as_its_accelerator():
    """Its process takes batches every 7 ms until the queue of 20 steps of 25 ms is full."""
    rows, ends, now = np.zeros(60, STEP), [0.0], 0.0
    for step in range(60):
        now = max(now + 0.007, ends[-20] if step >= 20 else 0.0)
        ends.append(max(ends[-1], now) + 0.025)
        rows[step]["step"], rows[step]["got"], rows[step]["woke"] = step, now, ends[-1]
    found = _pace(rows, 4 + 19)
    assert found is not None and found.seconds == pytest.approx(0.025)
