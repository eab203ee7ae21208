"""fio on devices with a cap, compared with the cap. Needs root: make test-device."""

from __future__ import annotations

import shutil

import pytest
from capped_device import CAP

from emulator.record.out import read_result

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed"),
]


def test_sequential_reads_and_writes_by_fio_equal_the_cap(device, tmp_path):
    device.run(
        "baseline", device.data.parent, "--suite", "sequential", "--depths", "16", "--jobs", "4",
        "--size", "128MiB", "--runtime", "8s", "--out", tmp_path / "out",
    )  # fmt: skip
    corners = read_result(tmp_path / "out").baseline
    sides = [side for corner in corners for side in (corner.read, corner.write) if side]
    rates = [side.bytes_per_second for side in sides]
    print([f"{rate / CAP:.4f}" for rate in rates])
    assert rates == pytest.approx([CAP] * 4, rel=0.02)
