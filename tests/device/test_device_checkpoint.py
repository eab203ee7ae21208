"""Checkpoints on devices with a known bandwidth, alone and beside training. Needs root: make test-device."""

from __future__ import annotations

import json

import pytest
from capped_device import CAP, DIRECT, Device, capped

from emulator.record.out import read_result

pytestmark = pytest.mark.device


def test_a_checkpoint_takes_the_time_that_its_bytes_take(device: Device, tmp_path):
    """375 MB each way at 200 MiB/s: what a slow disk does to it, and nothing else."""
    device.run(
        "checkpoint", device.data.parent, "-m", "llama3-8b", "-n", "2", "--scale", "1/300", "--writes", "2",
        "--reads", "2", "--pause", "1s", "--out", tmp_path / "out",
    )  # fmt: skip
    found = read_result(tmp_path / "out").checkpoints
    print([f"{one.direction} {one.bytes_per_second / CAP:.3f}" for one in found])
    assert [one.bytes_per_second / CAP for one in found] == pytest.approx([1] * 4, rel=0.05)
    assert not list(device.data.parent.glob("feedrate-checkpoints"))


def test_the_knee_beside_checkpoints_is_at_what_they_leave(tmp_path_factory, tmp_path):
    """One bandwidth for reads and writes: checkpoints take their share of it, and training has the rest."""
    with capped(tmp_path_factory.mktemp("medium"), "3G", 512, "shared") as medium:
        for out, more in (("quiet", ()), ("noisy", ("--noise", "checkpoint"))):
            medium.run("sweep", medium.data, *DIRECT, "--counts", "1,2,3,4", "--out", tmp_path / out, *more)
        said = medium.run("compare", tmp_path / "quiet", tmp_path / "noisy").out
    quiet, noisy = (read_result(tmp_path / out) for out in ("quiet", "noisy"))
    (told,) = (json.loads(path.read_text()) for path in (tmp_path / "noisy" / "noise").glob("*.json"))
    written = len(told["checkpoints"]) * told["bytes"] / told["seconds"]
    most = [one.points[-1].bytes_per_second for one in (quiet, noisy)]
    print(
        f"training {most[0] / CAP:.3f} -> {most[1] / CAP:.3f} of the medium, checkpoints {written / CAP:.3f}"
    )
    print([one.knee.n_au for one in (quiet, noisy)], said)
    assert most[0] == pytest.approx(CAP, rel=0.05)
    assert most[1] < 0.85 * CAP
    assert noisy.knee.n_au is None or noisy.knee.n_au < 0.9 * quiet.knee.n_au
    assert "noisy: the knee moves from" in said
