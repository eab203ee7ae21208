"""Less memory than data: the page cache cannot hide the device. Needs root: make test-device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from capped_device import CAP, Device, capped

from emulator.record.out import read_result
from emulator.record.result import Point

pytestmark = pytest.mark.device

MEMORY = 700 * 2**20
"""Bytes that ranks and the page cache have together, against 1.07 GB of data."""


@dataclass(frozen=True)
class Short:
    """A device, and a memory cgroup that is smaller than its dataset."""

    device: Device
    group: Path

    def reads(self, out: Path, *words: object, short: bool) -> Point:
        """One rank that reads through the page cache, with no page of the data in it at the start."""
        for path in self.device.data.rglob("*.npz"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.device.run(
            "run", self.device.data, "--workload", "unet3d-tiny", "--loader", "torch", "-n", "1",
            "--set", "accelerator.step_seconds=0", "--out", out, *words,
            groups=[self.group] if short else [],
        )  # fmt: skip
        return read_result(out).points[0]


@pytest.fixture(scope="module")
def memory(tmp_path_factory) -> Iterator[Short]:
    group = Path("/sys/fs/cgroup/memory/feedrate-memory-test")
    if not group.parent.is_dir():
        pytest.skip("this system has no cgroup v1 to limit memory with")
    with capped(tmp_path_factory.mktemp("memory"), "3G", 1024) as device:
        group.mkdir(exist_ok=True)
        try:
            (group / "memory.limit_in_bytes").write_text(str(MEMORY))
            yield Short(device, group)
        finally:
            group.rmdir()


def test_the_page_cache_cannot_hold_what_memory_cannot(memory, tmp_path):
    """Three epochs of buffered reads, pages left where they are: with less memory than data they are the
    device's all the same; with enough memory, two of the three are not."""
    warm = ("--cache", "warm", "--epochs", "3")
    short = memory.reads(tmp_path / "short", *warm, short=True)
    ample = memory.reads(tmp_path / "ample", *warm, short=False)
    print(f"short {short.bytes_per_second / CAP:.3f}, ample {ample.bytes_per_second / CAP:.3f} of the cap")
    assert 0.95 * CAP < short.bytes_per_second < 1.15 * CAP
    assert ample.bytes_per_second > 1.5 * CAP


def test_cold_reads_are_the_devices_whatever_the_memory(memory, tmp_path):
    for short in (True, False):
        point = memory.reads(tmp_path / str(short), "--cache", "cold", "--epochs", "2", short=short)
        assert point.bytes_per_second == pytest.approx(CAP, rel=0.05)
        assert point.resident_share < 0.01
