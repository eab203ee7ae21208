"""A block device with a known bandwidth, and commands under its cap."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import Done, feedrate, within

SCRIPT = Path(__file__).parents[1] / "lab" / "device.sh"
CAP = 200 * 2**20
"""Bytes/s that can be read, and written, on the device."""
DIRECT = ("--workload", "unet3d-tiny", "--loader", "direct", "--steps", "80", "--set", "loader.prefetch=8")
"""A training of 80 MB/s a rank, long enough against its read-ahead."""


@dataclass(frozen=True)
class Device:
    """A mounted device that cgroups cap."""

    group: str
    data: Path
    """A dataset of unet3d-tiny."""

    def run(self, *words: object) -> Done:
        """`feedrate WORDS` under the cap."""
        done = within([SCRIPT, "in", self.group], *words, timeout=170)
        assert done.status == 0, done.err
        return done


@contextmanager
def capped(folder: Path, size: str, files: int) -> Iterator[Device]:
    """A device of `size` with a dataset of `files` files, capped to CAP for reads and for writes."""
    if not Path("/sys/fs/cgroup/blkio").is_dir():
        pytest.skip("this system has no cgroup v1 blkio to cap a device with")
    command = [SCRIPT, "up", folder, size, str(CAP)]
    up = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHON": sys.executable}
    )
    try:
        data = folder / "mnt" / "data"
        done = feedrate("generate", data, "--recipe", "tiny", "--files", files)
        assert done.status == 0, done.err
        yield Device(up.stdout.strip(), data)
    finally:
        subprocess.run([SCRIPT, "down", folder], check=True)
