"""Closed descriptors and encodings without the characters that are printed: what was asked for is done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import within

WORDS = [sys.executable, "-m", "emulator", "verify"]


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_closed_streams_change_no_status_and_no_file(tiny: Path, closed: tuple[int, ...]) -> None:
    before = {path: path.stat().st_size for path in tiny.rglob("*")}

    def close() -> None:
        for number in closed:
            os.close(number)

    done = subprocess.run([*WORDS, str(tiny)], preexec_fn=close, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert 1 in closed or "0 faults" in done.stdout
    assert {path: path.stat().st_size for path in tiny.rglob("*")} == before


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_any_encoding_shows_a_result(encoding: str) -> None:
    words = [sys.executable, "-m", "emulator", "workloads", "unet3d-a100"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = subprocess.run(words, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"unet3d-a100" in done.stdout and b"damaged" not in done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("redirection", ["2>&-", ">&-"])
def test_ranks_run_wherever_their_streams_go(tiny: Path, tmp_path: Path, redirection: str) -> None:
    words = ("run", tiny, "-w", "unet3d-tiny", "-n", 2, "--steps", 6, "--loader", "direct")
    line = f'cd {tmp_path}; exec "$0" "$@" {redirection}'
    done = within(["bash", "-c", line], *words, "--out", tmp_path / "o")
    assert done.status == 0, done.err
    assert (tmp_path / "o" / "run.json").is_file()
