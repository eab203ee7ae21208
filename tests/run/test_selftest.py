"""What the emulator itself costs is measured, and small."""

import pytest

from emulator.run.selftest import self_test
from emulator.spec.catalog import load_workload


@pytest.mark.parametrize("kind", ["direct", "torch"])
def test_overhead_is_measured_and_a_step_costs_well_under_a_millisecond(kind):
    cost = self_test(kind, load_workload("unet3d-a100").loader)
    assert 0 < cost.step_seconds < 0.001
    assert 0 < cost.cpu_seconds_per_gb < 10
    assert cost.samples_per_second > 10
    assert cost.sample_bytes > 3_800_000
