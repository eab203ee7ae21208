"""Nothing is left behind in /dev/shm and /tmp, however a run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TextIO

import psutil
import pytest
from command import held, is_alive, outlive, started, unless_ended, until
from hosts import LAB

from emulator.record.steps import read_steps

pytestmark = pytest.mark.mpi

OTHERS = [("direct", None), ("direct", signal.SIGINT), ("torch", None)]


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The command and everything below it."""
    with suppress(psutil.NoSuchProcess):
        command = psutil.Process(process.pid)
        return [command, *command.children(recursive=True)]
    return []


def left(seen: set[str], folder: Path) -> set[str]:
    """What of `seen` is still there, and what is in the run's own folder for temporary files."""
    # Not by rglob, which fails where a folder is removed while it looks.
    return {path for path in seen if Path(path).exists()} | {
        f"{inside}/{name}" for inside, _, names in os.walk(folder) for name in names
    }


def cleared(seen: set[str], folder: Path, seconds: float) -> bool:
    return until(lambda: not left(seen, folder), seconds)


def start(tiny: Path, folder: Path, said: TextIO, *words: object) -> subprocess.Popen[str]:
    """A run of two ranks in a session of its own, with its temporary files and its result in `folder`."""
    settings = ("--set", "accelerator.step_seconds=0.01", "--storage", "shaped:400MB/s")
    command = ("run", tiny, "--workload", "unet3d-tiny", "-n", 2, *settings, "--out", folder / "out", *words)
    return started(
        *command, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True,
        environment={"TMPDIR": str(folder / "tmp")},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("loader", "number"),
    [("torch", signal.SIGTERM), *(pytest.param(*run, marks=pytest.mark.long) for run in OTHERS)],
)
def test_nothing_is_left_behind(tiny, tmp_path, loader, number):
    """Unless `number` is None, the run is stopped with that signal in the middle of it."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    out = tmp_path / "out"
    epochs = 1 if number is None else 500
    with (tmp_path / "said").open("w+") as said:
        process = start(tiny, tmp_path, said, "--loader", loader, "--epochs", epochs)
        try:
            seen = watch(process, out if number is not None else None)
            if number is not None:
                below = family(process)[1:]
                process.send_signal(number)
                assert process.wait(timeout=60) != 0
                assert not outlive(below)
            err = (tmp_path / "said").read_text()
            assert "Traceback" not in err
            assert number is not None or process.returncode == 0, err
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert any("feedrate-" in path for path in seen)
    # multiprocessing's resource tracker cleans up after its rank
    assert cleared(seen, temporary, 60), left(seen, temporary)


def is_helper(process: psutil.Process) -> bool:
    """True for processes that no run needs: multiprocessing's tracker and workers' fork server."""
    name, words = unless_ended(process.name, ""), " ".join(unless_ended(process.cmdline, []))
    return "multiprocessing." in words and name != "pt_data_worker"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("loader", ["direct", "torch"])
def test_whoever_is_killed_nothing_is_left_after_5_seconds(tiny, tmp_path, loader):
    """Kills one process of the run: command, the one that forks, rank, or worker."""
    random = Random(int(os.environ.get("FEEDRATE_FAULTS_SEED", "1")))
    for kill in range(int(os.environ.get("FEEDRATE_KILLS", "4"))):
        folder = tmp_path / str(kill)
        (folder / "tmp").mkdir(parents=True)
        with (folder / "said").open("w+") as said:
            process = start(tiny, folder, said, "--loader", loader, "--epochs", 500)
            try:
                seen = watch(process, folder / "out")
                everyone = family(process)
                # Not the zombie of a worker: its epoch has ended, and the run goes on after its "kill".
                victim = random.choice([one for one in everyone if is_alive(one) and not is_helper(one)])
                what = " ".join(unless_ended(victim.cmdline, []))[:200]
                worker = unless_ended(victim.name, "") == "pt_data_worker"
                unless_ended(victim.kill, None)
                try:
                    assert process.wait(timeout=60) != 0, what
                except subprocess.TimeoutExpired:
                    # A worker that has delivered its epoch's batches is not missed: the run goes on.
                    assert worker, what
                    process.terminate()
                    process.wait(timeout=30)
                assert not outlive(everyone, 5), what
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        assert cleared(seen, folder / "tmp", 5), what


def watch(process: subprocess.Popen[str], out: Path | None) -> set[str]:
    """What the run has had in /dev/shm until it ended; with `out`, until it has taken steps."""
    seen: set[str] = set()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for one in family(process):
            seen |= held(one.pid)
        if process.poll() is not None or (out is not None and out.is_dir() and len(read_steps(out)) > 10):
            return seen
        time.sleep(0.3)
    pytest.fail("no steps, or no end, within 120 s")


@pytest.mark.multihost
def test_a_killed_mpiexec_of_mpich_leaves_none_of_its_memory(tiny, tmp_path):
    """make test-multihost installs this MPICH, which keeps a name in /dev/shm until its ranks finish."""
    mpich, out = LAB.parents[1] / ".venv-mpich", tmp_path / "out"
    command = (mpich / "bin" / "mpiexec", "-n", 2, sys.executable, "-m", "emulator", "run", tiny, "-w",
               "unet3d-tiny", "--loader", "direct", "--epochs", 5000, "--out", out)  # fmt: skip
    library = {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(mpich / "lib")}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(list(map(str, command)), env={**os.environ, **library}, **quiet) as process:
        seen = watch(process, out)
        below = family(process)[1:]
        process.kill()
    assert any("/mpich_shm_" in path for path in seen)
    assert not outlive(below, 5) and not left(seen, tmp_path / "tmp")
