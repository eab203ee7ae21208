"""What a host did between two moments."""

from __future__ import annotations

import os
import time
from pathlib import Path

from emulator.record.device import DeviceReads
from emulator.record.host import HostProbe


def test_a_busy_host_that_writes_to_its_device(tmp_path: Path) -> None:
    probe, content, end = HostProbe(tmp_path), os.urandom(8 << 20), time.monotonic() + 0.5
    probe.start()
    while time.monotonic() < end:  # busy, and writing to the device of `tmp_path`
        with (tmp_path / "file").open("wb") as file:
            file.write(content)
            os.fsync(file.fileno())
    probe.stop()
    activity = probe.activity
    assert 0 < activity["busy_share"] <= 1 and 0 <= activity["steal_share"] < 1
    interfaces = {path.name for path in Path("/sys/class/net").iterdir()} - {"lo"}
    assert activity["nic_bytes"] >= 0 if interfaces else activity["nic_bytes"] is None
    assert probe.device is None or probe.device.written_bytes >= len(content), "none on overlay"


def test_counters_of_a_device_since_an_earlier_look() -> None:
    names = ("requests", "bytes", "seconds", "written_bytes", "busy")
    earlier, later = (
        DeviceReads(name="sda", **dict(zip(names, v, strict=True)))
        for v in ((1, 2, 3, 4, 5), (11, 22, 33, 44, 55))
    )
    assert later.since(earlier) == DeviceReads(
        name="sda", requests=10, bytes=20, seconds=30, written_bytes=40, busy=50
    )
