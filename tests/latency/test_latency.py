"""On devices whose every request takes a known time: AU beside that of a plain PyTorch training."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.latency, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]
DEVICE = ROOT / "tests/lab/device.sh"
MOST_POINTS = 5.0


@pytest.fixture
def device(request, tmp_path):
    """A file system on a device with this latency, jitter and bandwidth (bytes/s, 0: no limit)."""
    latency, jitter, rate = request.param
    words = [str(word) for word in (DEVICE, "up", tmp_path, "4G", rate, "shared", latency, jitter)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    yield tmp_path / "mnt"
    subprocess.run([str(DEVICE), "down", str(tmp_path)], check=True)


@pytest.mark.parametrize(
    "device",
    [
        *((latency, 0, 0) for latency in (0.0003, 0.001, 0.003, 0.012)),
        (0.003, 0.5, 0),
        (0.003, 0, 200_000_000),
    ],
    indirect=True,
    ids=lambda given: f"{1000 * given[0]:g}ms, jitter {given[1]}, {given[2] / 1e6:g} MB/s",
)
def test_au_is_what_a_training_gets(device, tmp_path, request):
    table = tmp_path / "table.md"
    command = [sys.executable, str(ROOT / "benchmarks/against_pytorch.py"), str(device)]
    subprocess.run([*command, "--only", "^cold", "--out", str(table)], check=True)
    rows = re.findall(r"^\| (cold[^|]*) \| ([\d.]+) \| ([\d.]+) \|", table.read_text(), re.MULTILINE)
    print("\n".join([request.node.name, *table.read_text().splitlines()[2:]]))
    assert len(rows) == 15
    off = {case: float(ours) - float(training) for case, training, ours in rows}
    assert all(abs(points) <= MOST_POINTS for points in off.values()), off
