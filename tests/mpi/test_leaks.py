"""Nothing is left behind in /dev/shm and /tmp, however a run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from command import ROOT_AND_OVERSUBSCRIBED

from emulator.record.store import read_steps

pytestmark = pytest.mark.mpi

KINDS = [("direct", "thread"), ("torch", "thread"), ("torch", "process")]
DEFAULT = [("direct", "thread", signal.SIGINT), ("torch", "process", signal.SIGTERM)]
OTHERS = [
    pytest.param(*run, marks=pytest.mark.long)
    for run in ((*kind, number) for kind in KINDS for number in (None, signal.SIGINT, signal.SIGTERM))
    if run not in DEFAULT
]


def left(folder: Path) -> set[str]:
    """What is in /dev/shm that a run may have put there, and in the run's own folder for temporary files."""
    ours = ("torch_", "psm_", "sem.", "sm_segment", "feedrate-")
    shared = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if name.startswith(ours)}  # noqa: PTH208
    return shared | {str(path) for path in folder.rglob("*") if not path.is_dir()}


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=15)[1]


@pytest.mark.parametrize(("loader", "worker_kind", "number"), [*DEFAULT, *OTHERS])
def test_nothing_is_left_behind(tiny, tmp_path, loader, worker_kind, number):
    """Unless `number` is None, the run is stopped with that signal in the middle of it."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    before = left(temporary)
    out = tmp_path / "out"
    epochs = 1 if number is None else 500
    words = (
        "run", tiny, "--workload", "unet3d-tiny", "-n", 2, "--loader", loader, "--epochs", epochs,
        "--set", f"loader.worker_kind={worker_kind}", "--set", "accelerator.step_seconds=0.01",
        "--storage", "shaped:400MB/s", "--out", out,
    )  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "emulator", *map(str, words)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, **ROOT_AND_OVERSUBSCRIBED, "TMPDIR": str(temporary)},
    )  # fmt: skip
    try:
        if number is not None:
            wait_for_steps(out)
            family = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            _, err = process.communicate(timeout=30)
            assert process.returncode != 0
            assert "Traceback" not in err
            assert gone(family)
        else:
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    deadline = time.monotonic() + 10  # multiprocessing's resource tracker cleans up after its rank
    while left(temporary) > before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left(temporary) <= before


def wait_for_steps(out: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if out.is_dir() and len(read_steps(out)) > 10:
            return
        time.sleep(0.2)
    pytest.fail("no steps within 90 s")
