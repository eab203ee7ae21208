"""The twin on a real block device with a real cap. Needs root: make test-device."""

from __future__ import annotations

from pathlib import Path

import pytest
from capped_device import CAP
from twin import JOB, twin

pytestmark = pytest.mark.device

STEPS = 40


def test_counts_that_were_not_run_are_predicted(device, tmp_path):
    def sweep(counts: str, out: Path) -> None:
        device.run(
            "sweep", device.data, *JOB, "--steps", STEPS, "--loader", "direct",
            "--counts", counts, "--out", out,
        )  # fmt: skip

    twin(sweep, device.data, STEPS, tmp_path).hold(limit=CAP)
