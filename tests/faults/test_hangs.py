"""Storage that does not answer ends a command within its deadline, with the call and the path in one line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import build_shim, complaint, feedrate_struck

LIMIT = 3.0
"""Seconds given to --storage-timeout."""
SOON = 25.0
"""Seconds in which a command has ended: the limit, its start, and what two busy cores add."""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


def expect_hang(shim: Path, rule: str, path: str, *words: object) -> None:
    struck = feedrate_struck(
        shim, f"{rule} mode=hang", *words, "--storage-timeout", f"{LIMIT:g}s", seconds=SOON
    )
    assert struck.calls > 0
    assert struck.done.status == 4, struck.done.err
    assert not complaint(struck.done)
    line = struck.done.one_line()
    assert re.search(r"\w+ of \S+ has not answered for \S+ s: the storage hangs", line), line
    assert path in line


@pytest.mark.parametrize("calls", ["open", "read", pytest.param("close", marks=pytest.mark.long)])
def test_verify(shim, tiny, calls):
    expect_hang(shim, f"path={tiny} calls={calls} first=3", str(tiny), "verify", tiny)


@pytest.mark.parametrize("calls", ["write", pytest.param("fsync", marks=pytest.mark.long), "mkdir"])
def test_generate(shim, tmp_path, calls):
    data = tmp_path / "new"
    words = ("generate", data, "--recipe", "tiny", "--files", 32)
    expect_hang(shim, f"path={data} calls={calls}", str(data), *words)


@pytest.mark.mpi
@pytest.mark.parametrize("loader", ["direct", pytest.param("torch", marks=pytest.mark.long)])
def test_run(shim, tiny, tmp_path, loader):
    """The launcher has read the manifest; a sample does not answer."""
    words = ("run", tiny, "-w", "unet3d-tiny", "--loader", loader, "-n", 2, "--out", tmp_path / "out")
    expect_hang(shim, "path=.npz calls=read first=9", ".npz", *words)


@pytest.mark.faults
@pytest.mark.mpi
@pytest.mark.parametrize("verb", ["doctor", "verify", "generate", "run", "checkpoint"])
def test_a_mount_whose_server_is_stopped(tiny, tmp_path, verb):
    """As root: a FUSE server that gets SIGSTOP in the middle, so that its callers cannot be killed."""
    server = Mirror(tiny, tmp_path / "mount")
    try:
        mount = server.mount
        words = {
            "doctor": ("doctor", mount),
            "verify": ("verify", mount),
            "generate": ("generate", mount / "new", "--recipe", "tiny", "--files", 8),
            "run": (
                "run",
                mount,
                "-w",
                "unet3d-tiny",
                "--loader",
                "direct",
                "-n",
                2,
                "--out",
                tmp_path / "out",
            ),
            "checkpoint": ("checkpoint", mount, "--scale", "1/10000", "--out", tmp_path / "out"),
        }[verb]
        command = [sys.executable, "-m", "emulator", *map(str, words), "--storage-timeout", "4s"]
        if verb != "run":
            server.process.send_signal(19)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if verb == "run":
            time.sleep(6)
            server.process.send_signal(19)
        try:
            _, err = process.communicate(timeout=40)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail(f"{verb} did not end")
        assert process.returncode not in (0, None)
        assert err.count("feedrate: error:") == 1 and "Traceback" not in err, err
    finally:
        server.end()


class Mirror:
    """`source` at `mount`, through a FUSE server of its own."""

    def __init__(self, source: Path, mount: Path) -> None:
        if os.geteuid() or not Path("/dev/fuse").exists() or not shutil.which("fusermount3"):
            pytest.skip("needs root, /dev/fuse and fuse3")
        mount.mkdir()
        self.mount = mount
        self.process = subprocess.Popen(
            ["/usr/bin/python3", Path(__file__).with_name("mirror.py"), source, mount],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while not os.path.ismount(mount):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.end()
                pytest.skip("the FUSE server does not start: apt install python3-fusepy")
            time.sleep(0.1)

    def end(self) -> None:
        self.process.kill()
        subprocess.run(["umount", "-l", self.mount], check=False, capture_output=True)
        self.process.wait()
