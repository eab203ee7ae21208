"""What the emulator itself costs is measured, and small."""

import pytest

from emulator.config.workload import load_workload
from emulator.loader import reads_by_library
from emulator.run.selftest import ram_files, self_test


@pytest.mark.parametrize(
    ("name", "sample_bytes"),
    [
        ("unet3d-a100", 3_894_000),
        ("resnet50-a100", 114_747),
        ("bert-v100", 2_581),
        ("cosmoflow-a100", 2_828_572),
        ("retinanet-b200", 323_011),
        ("dlrm-b200", 160),
        ("flux-b200", 2_164_832),
    ],
)
def test_samples_are_the_workloads(name, sample_bytes):
    assert self_test("direct", load_workload(name)).sample_bytes == pytest.approx(sample_bytes, rel=0.1)


@pytest.mark.parametrize("kind", ["direct", "torch"])
def test_steps_and_bytes_have_a_cost(kind):
    cost = self_test(kind, load_workload("unet3d-a100"))
    assert cost.samples_per_second > 0 and cost.step_seconds > 0 and cost.cpu_seconds_per_gb > 0


def test_the_torch_loader_reads_volumes_by_np_load(tmp_path):
    assert reads_by_library("torch", ram_files(tmp_path, load_workload("unet3d-a100")))
