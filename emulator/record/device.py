"""The kernel's counters of the block device or NFS mount that a dataset lies on, and its read-ahead."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from emulator.record.machine import mount_of, read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReads:
    """Counters of a block device or NFS mount over a point, for every process of the host."""

    name: str
    """Name of the block device, or the mount point."""
    requests: int
    """Read requests that completed."""
    bytes: int
    """Bytes read."""
    seconds: float
    """Sum of the latencies of these requests, in seconds."""
    written_bytes: int
    """Bytes written."""
    busy: float = 0.0
    """Seconds in which requests were under way; 0 if unknown."""

    def since(self, earlier: DeviceReads) -> DeviceReads:
        """Return the increase of the counters since `earlier`."""
        return DeviceReads(
            name=self.name,
            requests=self.requests - earlier.requests,
            bytes=self.bytes - earlier.bytes,
            seconds=self.seconds - earlier.seconds,
            written_bytes=self.written_bytes - earlier.written_bytes,
            busy=self.busy - earlier.busy,
        )

    def requests_of(self, own: float) -> tuple[float | None, float | None]:
        """Return the mean bytes of a request, and the mean requests under way while there were any.

        None for fewer than 100 requests, or if over 10 % of the bytes are not the `own` ones.
        """
        if self.requests < 100 or own <= 0 or abs(self.bytes / own - 1) > 0.1:
            return None, None
        return self.bytes / self.requests, self.seconds / self.busy if self.busy > 0 else None


Counters = Callable[[], DeviceReads | None]
"""Reads the counters of one device since boot or mount; None where the kernel has none."""


def counters_of(folder: Path) -> Counters:
    """Return a function that reads the counters of the device below `folder`, without touching `folder`."""
    return counters_at(mount_of(folder.resolve()))


def counters_at(mount: Mapping[str, str]) -> Counters:
    """Return the same for a result of `mount_of`; it returns None for FUSE, Lustre, overlay and tmpfs."""
    if mount.get("type", "").startswith("nfs"):
        return partial(_nfs_counters, mount["mount"])
    return partial(_disk_counters, _device_number(mount))


def _disk_counters(number: str) -> DeviceReads | None:
    """Return the counters of the block device with that major and minor number."""
    device = Path("/sys/dev/block") / number
    # https://docs.kernel.org/block/stat.html
    counters = read_text(device / "stat").split()
    if not counters:
        return None
    reads, _, sectors, milliseconds, _, _, written, _, _, busy = map(int, counters[:10])
    return DeviceReads(
        name=device.resolve().name,
        requests=reads,
        bytes=512 * sectors,
        seconds=milliseconds / 1e3,
        written_bytes=512 * written,
        busy=busy / 1e3,
    )


def read_ahead_bytes(folder: Path) -> int | None:
    """Return the most that the kernel reads ahead of a sequential reader in `folder`; None if unknown."""
    mount = mount_of(folder.resolve())
    bdi = Path("/sys/class/bdi") / mount.get("device", "")
    places = [block / name for block in _block_devices(mount) for name in ("bdi", "queue")]
    for file in (place / "read_ahead_kb" for place in (bdi, *places)):
        with suppress(OSError, ValueError):
            return 1024 * int(file.read_text())
    return None


def io_scheduler(folder: Path) -> str | None:
    """Return the I/O scheduler of the block device below `folder`; None if there is none, or unknown."""
    for block in _block_devices(mount_of(folder.resolve())):
        with suppress(OSError):
            text = (block / "queue/scheduler").read_text()
            return text.partition("[")[2].partition("]")[0] or text.strip()
    return None


def _block_devices(mount: Mapping[str, str]) -> list[Path]:
    """Return the folder in /sys of the block device of a mount, and of its disk if it is a partition."""
    block = (Path("/sys/dev/block") / _device_number(mount)).resolve()
    return [block, block.parent]


def _device_number(mount: Mapping[str, str]) -> str:
    """Return major and minor number of the block device of a mount."""
    number, source = mount.get("device", ""), mount.get("source", "")
    if number.startswith("0:") and source.startswith("/dev/"):  # btrfs: an anonymous number
        with suppress(OSError):
            device = Path(source).stat().st_rdev
            number = f"{os.major(device)}:{os.minor(device)}"
    return number


def _nfs_counters(mount: str) -> DeviceReads | None:
    # https://git.linux-nfs.org/?p=steved/nfs-utils.git;a=blob;f=tools/mountstats: per-op statistics
    lines = iter(read_text("/proc/self/mountstats").splitlines())
    here = f" mounted on {mount} with fstype nfs"
    if not any(here in line for line in lines):
        return None
    reads: tuple[int, ...] = (0,) * 8
    written = reads
    for line in lines:
        if line.startswith("device "):
            break
        name, _, numbers = line.strip().partition(": ")
        if name == "READ":
            reads = tuple(map(int, numbers.split()[:8]))
        elif name == "WRITE":
            written = tuple(map(int, numbers.split()[:8]))
    # operations, transmissions, timeouts, bytes sent, bytes received, ms queued, ms round trip, ms in all
    return DeviceReads(
        name=mount, requests=reads[0], bytes=reads[4], seconds=reads[6] / 1e3, written_bytes=written[3]
    )
