"""A real block device with a real cap: the knee is at cap / demand. Needs root: make test-device."""

from __future__ import annotations

import pytest
from capped_device import CAP, DIRECT

from emulator.record.out import read_result
from emulator.record.result import STORAGE

pytestmark = pytest.mark.device


def test_the_knee_is_where_the_cap_is(device, tmp_path):
    out = tmp_path / "out"
    device.run("sweep", device.data, *DIRECT, "--counts", "1,2,3,4,5,6", "--out", out)
    result = read_result(out)
    demand = 80 * result.dataset["bytes"] / result.dataset["files"]
    assert result.points[-1].bytes_per_second == pytest.approx(CAP, rel=0.05)
    assert result.knee.n_saturation == pytest.approx(CAP / demand, rel=0.05)
    last = result.points[-1]
    assert last.bound.kind in (*STORAGE, "client-link"), last.bound
    assert last.resident_share < 0.01


def test_buffered_reads_come_from_the_device_and_not_from_memory(device, tmp_path):
    """The torch loader reads through the page cache and evicts: still the device's speed."""
    out = tmp_path / "out"
    device.run("run", device.data, "--workload", "unet3d-tiny", "-n", "4", "--steps", "40", "--out", out)
    assert read_result(out).points[0].bytes_per_second == pytest.approx(CAP, rel=0.05)


def test_a_checkpoint_takes_the_time_that_its_bytes_take(device, tmp_path):
    """375 MB each way at 200 MiB/s: what a slow disk does to it, and nothing else."""
    device.run(
        "checkpoint", device.data.parent, "-m", "llama3-8b", "-n", "2", "--scale", "1/300", "--writes", "3",
        "--reads", "2", "--pause", "1s", "--out", tmp_path / "out",
    )  # fmt: skip
    saved = read_result(tmp_path / "out").checkpoints
    print([f"{checkpoint.direction} {checkpoint.bytes_per_second / CAP:.3f}" for checkpoint in saved])
    # The kernel's cap lets 7 to 11 % more through in the first second after a long rest.
    assert [checkpoint.bytes_per_second / CAP for checkpoint in saved[1:]] == pytest.approx([1] * 4, rel=0.05)
    assert not list(device.data.parent.glob("feedrate-checkpoints"))
