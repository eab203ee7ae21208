"""fio on devices with a cap, alone and beside training. Needs root: make test-device."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from capped_device import CAP, DIRECT, Device, capped

from emulator.record.out import read_result

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed"),
]

TAKEN = 80e6
"""Bytes/s that noise asks for."""


def test_sequential_reads_and_writes_by_fio_equal_the_cap(device, tmp_path):
    device.run(
        "baseline", device.data.parent, "--suite", "sequential", "--depths", "16", "--jobs", "4",
        "--size", "128MiB", "--runtime", "8s", "--out", tmp_path / "out",
    )  # fmt: skip
    corners = read_result(tmp_path / "out").baseline
    rates = [side.bytes_per_second for one in corners for side in (one.read, one.write) if side]
    print([f"{rate / CAP:.4f}" for rate in rates])
    assert rates == pytest.approx([CAP] * 4, rel=0.02)


@pytest.fixture(scope="module")
def medium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """Reads and writes share the 200 MiB/s."""
    with capped(tmp_path_factory.mktemp("medium"), "2G", 512, "shared") as found:
        yield found


@pytest.mark.parametrize(("kind", "place"), [("read", "device"), ("write", "medium")])
def test_beside_noise_the_knee_is_at_what_the_noise_leaves(kind, place, request, tmp_path):
    """Readers take from a cap on reads, writers from a medium that both share."""
    found = request.getfixturevalue(place)
    found.run(
        "sweep", found.data, *DIRECT, "--counts", "1,2,3,4", "--out", tmp_path / "out",
        "--noise", f"{kind}:1x1MiB,depth=16,rate={TAKEN / 1e6:.0f}MB/s",
    )  # fmt: skip
    result = read_result(tmp_path / "out")
    demand = 80 * result.dataset["bytes"] / result.dataset["files"]
    left = CAP - TAKEN
    most = result.points[-1].bytes_per_second
    print(f"{most / left:.3f} of what is left, knee {result.knee.n_saturation * demand / left:.3f}")
    assert most == pytest.approx(left, rel=0.07)
    assert result.knee.n_saturation == pytest.approx(left / demand, rel=0.07)
