"""A real block device with a real cap: the knee is at cap / demand. Needs root: make test-device."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT_AND_OVERSUBSCRIBED, feedrate

from emulator.record.store import read_result

pytestmark = pytest.mark.device

SCRIPT = Path(__file__).parents[1] / "lab" / "device.sh"
CAP = 200 * 2**20


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """Cgroup and dataset folder of a device capped to 200 MiB/s."""
    if not Path("/sys/fs/cgroup/blkio").is_dir():
        pytest.skip("this system has no cgroup v1 blkio to cap a device with")
    folder = tmp_path_factory.mktemp("device")
    up = subprocess.run([SCRIPT, "up", folder, "2G", str(CAP)], check=True, capture_output=True, text=True)
    try:
        data = folder / "mnt" / "data"
        assert feedrate("generate", data, "--recipe", "tiny", "--files", 512).status == 0
        yield up.stdout.strip(), data
    finally:
        subprocess.run([SCRIPT, "down", folder], check=True)


def capped(device, *words: object) -> subprocess.CompletedProcess[str]:
    group, _ = device
    return subprocess.run(
        [SCRIPT, "in", group, sys.executable, "-m", "emulator", *map(str, words)],
        capture_output=True, text=True, timeout=170, check=False,
        env={**os.environ, **ROOT_AND_OVERSUBSCRIBED},
    )  # fmt: skip


def test_the_knee_is_where_the_cap_is(device, tmp_path):
    _, data = device
    out = tmp_path / "out"
    done = capped(
        device, "sweep", data, "--workload", "unet3d-tiny", "--loader", "direct", "--counts", "1,2,3,4,5,6",
        "--steps", "80", "--set", "loader.prefetch=8", "--out", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = read_result(out)
    mean = result.dataset["bytes"] / result.dataset["files"]
    demand = 80 * mean
    assert result.points[-1].bytes_per_second == pytest.approx(CAP, rel=0.05)
    assert result.knee.n_saturation == pytest.approx(CAP / demand, rel=0.05)
    assert result.points[-1].bound.kind in ("storage", "client-link"), result.points[-1].bound
    assert result.points[-1].resident_share < 0.01


def test_buffered_reads_come_from_the_device_and_not_from_memory(device, tmp_path):
    """The torch loader reads through the page cache and evicts: still the device's speed."""
    _, data = device
    out = tmp_path / "out"
    done = capped(device, "run", data, "--workload", "unet3d-tiny", "-n", "4", "--steps", "40", "--out", out)
    assert done.returncode == 0, done.stderr
    assert read_result(out).points[0].bytes_per_second == pytest.approx(CAP, rel=0.05)


def fio_is_needed() -> None:
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")


def test_sequential_reads_by_fio_equal_the_cap(device, tmp_path):
    fio_is_needed()
    _, data = device
    done = capped(
        device, "baseline", data.parent, "--suite", "sequential", "--depths", "16", "--jobs", "4",
        "--size", "128MiB", "--runtime", "8s", "--ramp", "1s", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reads = [corner.read for corner in read_result(tmp_path / "out").baseline if corner.read]
    assert [read.bytes_per_second for read in reads] == pytest.approx([CAP, CAP], rel=0.02)


def test_beside_noise_the_knee_is_at_what_the_noise_leaves(device, tmp_path):
    fio_is_needed()
    _, data = device
    taken = 80e6
    done = capped(
        device, "sweep", data, "--workload", "unet3d-tiny", "--loader", "direct", "--counts", "1,2,3,4",
        "--steps", "80", "--set", "loader.prefetch=8", "--out", tmp_path / "out",
        "--noise", f"read:1x1MiB,depth=16,rate={taken / 1e6:.0f}MB/s",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = read_result(tmp_path / "out")
    demand = 80 * result.dataset["bytes"] / result.dataset["files"]
    assert result.points[-1].bytes_per_second == pytest.approx(CAP - taken, rel=0.07)
    assert result.knee.n_saturation == pytest.approx((CAP - taken) / demand, rel=0.07)
