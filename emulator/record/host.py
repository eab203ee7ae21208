"""The activity of a host during a point: its CPU, its network, and the device of the dataset."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from emulator.record.device import DeviceReads, counters_of
from emulator.record.machine import read_text


class HostProbe:
    """Reads the counters of this host at `start()` and at `stop()`."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is that of the dataset, whose device is watched; None if it is no mounted folder."""
        self._counters = counters_of(folder) if folder else lambda: None
        self._cores = frozenset(os.sched_getaffinity(0))

    def start(self) -> None:
        self._before = _ticks(self._cores), _received_bytes(), self._counters()

    def stop(self) -> None:
        self._after = _ticks(self._cores), _received_bytes(), self._counters()

    @property
    def device(self) -> DeviceReads | None:
        """Return the increase of the device's counters; None if it has none."""
        before, after = self._before[2], self._after[2]
        return after.since(before) if before and after else None

    @property
    def activity(self) -> dict[str, Any]:
        """Return busy_share, steal_share and nic_bytes of a HostShare; None: not known."""
        (ticks_before, received_before, _), (ticks, received, _) = self._before, self._after
        # user, nice, system, idle, iowait, irq, softirq, steal, ...
        spent = [after - before for after, before in zip(ticks, ticks_before, strict=False)]
        total = sum(spent[:8])
        return {
            "busy_share": 1 - (spent[3] + spent[4]) / total if total else None,
            "steal_share": spent[7] / total if total else None,
            "nic_bytes": None if received is None else received - (received_before or 0),
        }


def _ticks(cores: frozenset[int]) -> list[int]:
    """Return the summed ticks of these cores, in the order of /proc/stat."""
    names = {f"cpu{core}" for core in cores}
    lines = [line.split() for line in read_text("/proc/stat").splitlines()]
    rows = [map(int, numbers) for name, *numbers in filter(None, lines) if name in names]
    return [sum(column) for column in zip(*rows, strict=False)]


def _received_bytes() -> int | None:
    """Return the bytes received on network interfaces, loopback left out."""
    rows = (row.split(":", 1) for row in read_text("/proc/net/dev").splitlines()[2:])
    counts = [int(rest.split()[0]) for name, rest in rows if name.strip() != "lo"]
    return sum(counts) if counts else None
