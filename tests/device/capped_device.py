"""A block device with a known bandwidth, and commands under its cap."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import ROOT_AND_OVERSUBSCRIBED, Done, feedrate

SCRIPT = Path(__file__).parents[1] / "lab" / "device.sh"
CAP = 200 * 2**20
"""Bytes/s that can be read, and written, on the device."""


@dataclass(frozen=True)
class Device:
    """A mounted device that cgroups cap."""

    group: str
    data: Path
    """A dataset of unet3d-tiny."""

    def run(self, *words: object, groups: Sequence[object] = ()) -> Done:
        """`feedrate WORDS` under the cap, and in more `groups`."""
        command: list[object] = [sys.executable, "-m", "emulator", *words]
        for group in (self.group, *groups):
            command = [SCRIPT, "in", group, *command]
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True, text=True, timeout=170, check=False,
            env={**os.environ, **ROOT_AND_OVERSUBSCRIBED},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return Done(done.returncode, done.stdout, done.stderr, 0.0)


@contextmanager
def capped(folder: Path, size: str, files: int) -> Iterator[Device]:
    """A device of `size` with a dataset of `files` files, capped to CAP for reads and for writes."""
    if not Path("/sys/fs/cgroup/blkio").is_dir():
        pytest.skip("this system has no cgroup v1 blkio to cap a device with")
    up = subprocess.run([SCRIPT, "up", folder, size, str(CAP)], check=True, capture_output=True, text=True)
    try:
        data = folder / "mnt" / "data"
        done = feedrate("generate", data, "--recipe", "tiny", "--files", files)
        assert done.status == 0, done.err
        yield Device(up.stdout.strip(), data)
    finally:
        subprocess.run([SCRIPT, "down", folder], check=True)
