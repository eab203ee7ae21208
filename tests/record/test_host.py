"""The seconds of a host add up to its totals, and are drawn in the order of the runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from emulator.errors import SpecError
from emulator.record.host import HOST, HOSTS, HostProbe, HostRows, read_hosts, write_hosts


def seconds_of(point: int, host: int, ends: list[float], received: float, busy: float) -> HostRows:
    rows = np.zeros(len(ends), HOST)
    rows["device_read"] = np.nan
    rows["point"], rows["host"], rows["second"] = point, host, ends
    rows["received"], rows["busy"] = received, busy
    return rows


def test_the_seconds_of_a_host_add_up_to_its_totals(tmp_path: Path) -> None:
    probe, begin = HostProbe(tmp_path), time.monotonic()
    probe.start()
    content, end = os.urandom(8 << 20), begin + 2.3
    while time.monotonic() < end:  # busy, and writing to the device of `tmp_path`
        with (tmp_path / "file").open("wb") as file:
            file.write(content)
            os.fsync(file.fileno())
    probe.stop()
    rows = probe.rows(3)
    assert set(rows["point"]) == {3} and set(rows["host"]) == {0}
    spans = np.diff(rows["second"], prepend=0.0)
    assert len(rows) and 1.5 < spans.sum() <= time.monotonic() - begin
    assert ((rows["busy"] > 0) & (rows["busy"] <= 1)).all()
    assert (rows["page_cache"] > 0).all() and (rows["available"] > 0).all()
    assert (rows["busy"] * spans).sum() / spans.sum() == pytest.approx(probe.activity["busy_share"], abs=0.15)
    if probe.device:  # none on overlay; a last row that would be noise is left out
        written = (rows["device_written"] * spans).sum()
        assert 0 < written <= probe.device.written_bytes * (1 + 1e-9)
    else:
        assert np.isnan(rows["device_written"]).all()


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    assert len(read_hosts(tmp_path)) == 0
    write_hosts(tmp_path, seconds_of(0, 0, [np.nan], 1.0, 0.5))
    with pytest.raises(SpecError, match="damaged"):
        read_hosts(tmp_path)
    (tmp_path / HOSTS).write_bytes(b"PAR1")
    with pytest.raises(SpecError, match=HOSTS):
        read_hosts(tmp_path)
