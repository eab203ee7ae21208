"""The twin against real ranks: fitted to three counts, it predicts five that were not run."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import feedrate
from twin import JOB, twin

pytestmark = [pytest.mark.mpi, pytest.mark.long]

STEPS = 40


def test_counts_that_were_not_run_are_predicted(tiny, tmp_path):
    def sweep(counts: str, out: Path) -> None:
        words = (*JOB, "--steps", STEPS, "--loader", "direct", "--storage", "shaped:200MB/s")
        done = feedrate("sweep", tiny, *words, "--counts", counts, "--out", out)
        assert done.status == 0, done.err

    twin(sweep, tiny, STEPS, tmp_path).hold(limit=200e6)
