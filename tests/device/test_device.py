"""A real block device with a real cap: the knee is at cap / demand. Needs root: make test-device."""

from __future__ import annotations

import shutil

import pytest
from capped_device import CAP

from emulator.record.store import read_result

pytestmark = pytest.mark.device

DIRECT = ("--workload", "unet3d-tiny", "--loader", "direct", "--steps", "80", "--set", "loader.prefetch=8")


def test_the_knee_is_where_the_cap_is(device, tmp_path):
    out = tmp_path / "out"
    device.run("sweep", device.data, *DIRECT, "--counts", "1,2,3,4,5,6", "--out", out)
    result = read_result(out)
    demand = 80 * result.dataset["bytes"] / result.dataset["files"]
    assert result.points[-1].bytes_per_second == pytest.approx(CAP, rel=0.05)
    assert result.knee.n_saturation == pytest.approx(CAP / demand, rel=0.05)
    assert result.points[-1].bound.kind in ("storage", "client-link"), result.points[-1].bound
    assert result.points[-1].resident_share < 0.01


def test_buffered_reads_come_from_the_device_and_not_from_memory(device, tmp_path):
    """The torch loader reads through the page cache and evicts: still the device's speed."""
    out = tmp_path / "out"
    device.run("run", device.data, "--workload", "unet3d-tiny", "-n", "4", "--steps", "40", "--out", out)
    assert read_result(out).points[0].bytes_per_second == pytest.approx(CAP, rel=0.05)


def fio_is_needed() -> None:
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")


def test_sequential_reads_and_writes_by_fio_equal_the_cap(device, tmp_path):
    fio_is_needed()
    device.run(
        "baseline", device.data.parent, "--suite", "sequential", "--depths", "16", "--jobs", "4",
        "--size", "128MiB", "--runtime", "8s", "--ramp", "1s", "--out", tmp_path / "out",
    )  # fmt: skip
    corners = read_result(tmp_path / "out").baseline
    rates = [side.bytes_per_second for one in corners for side in (one.read, one.write) if side]
    assert rates == pytest.approx([CAP] * 4, rel=0.02)


def test_beside_noise_the_knee_is_at_what_the_noise_leaves(device, tmp_path):
    fio_is_needed()
    taken = 80e6
    device.run(
        "sweep", device.data, *DIRECT, "--counts", "1,2,3,4", "--out", tmp_path / "out",
        "--noise", f"read:1x1MiB,depth=16,rate={taken / 1e6:.0f}MB/s",
    )  # fmt: skip
    result = read_result(tmp_path / "out")
    demand = 80 * result.dataset["bytes"] / result.dataset["files"]
    assert result.points[-1].bytes_per_second == pytest.approx(CAP - taken, rel=0.07)
    assert result.knee.n_saturation == pytest.approx((CAP - taken) / demand, rel=0.07)
