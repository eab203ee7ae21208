"""What ends a run from outside is named once; nothing outlives its launcher or stays in memory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command import (
    ROOT_AND_OVERSUBSCRIBED,
    feedrate,
    finished,
    outlive,
    ranks_of,
    scratch_of,
    started,
    unless_ended,
    until,
    within,
)

from emulator.launch.forked import RANKS_A_CORE
from emulator.record.out import read_failure
from emulator.record.steps import SPOOL, read_steps
from emulator.sweep.summary import recovered

pytestmark = pytest.mark.mpi

NOISE = re.compile(
    r"PMIX|PRTE|prterun|mpirun|Abort is in progress|\[warn\]|Traceback|MPI_ABORT", re.IGNORECASE
)


class Run:
    """A long run of three ranks, and what it says."""

    def __init__(self, data: Path, folder: Path, *more: object) -> None:
        self.out, self._err = folder / "out", folder / "err"
        words = ("run", data, "-w", "unet3d-tiny", "--loader", "direct", "-n", 3, "--epochs", 5000)
        with self._err.open("w") as err:
            words += ("--out", self.out, *more)
            self.process = started(*words, stdout=subprocess.DEVNULL, stderr=err, start_new_session=True)

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def ranks(self) -> list[psutil.Process]:
        """In rank order."""
        return ranks_of(self.process)

    def ends(self) -> int:
        """Return its status."""
        return self.process.wait(60)

    def wait_for_steps(self) -> None:
        def counted() -> bool:  # of each rank: a busy machine may start one late
            rows = read_steps(self.out) if self.out.is_dir() else ()
            return len(rows) > 30 and len(set(rows["rank"])) == 3

        assert until(lambda: self.process.poll() is not None or counted(), 120)
        assert self.process.poll() is None, self.err

    def scratch(self) -> Path:
        """Its folder in memory."""
        return scratch_of(self.process)

    @property
    def err(self) -> str:
        return self._err.read_text()


@pytest.fixture
def run(tiny: Path, tmp_path: Path) -> Iterator[Run]:
    run = Run(tiny, tmp_path, "--storage-timeout", "4s")
    family: list[psutil.Process] = []
    try:
        run.wait_for_steps()
        family = run.family()
        yield run
    finally:
        for process in family:
            unless_ended(process.kill, None)
        run.process.kill()
        run.process.wait()


def test_a_killed_rank_is_named_with_its_host_and_its_signal(run):
    place, rank = run.scratch(), run.ranks()[1]
    family = run.family()
    rank.kill()
    assert run.ends() == 6
    (line,) = run.err.splitlines()[:1]
    assert re.search(r"rank 1 on \S+ was killed by SIGKILL: .*(memory|system log)", line), run.err
    assert run.err.count("feedrate: error:") == 1 and not NOISE.search(run.err), run.err
    assert "rank 1" in read_failure(run.out) and "SIGKILL" in read_failure(run.out)
    shown = feedrate("report", run.out)
    assert "rank 1" in shown.out and "SIGTERM" not in shown.out and "incomplete" in shown.out.lower()
    result = recovered(run.out)
    assert (result.status, result.points[0].ranks) == ("incomplete", 3) and len(read_steps(run.out)) > 30
    assert not outlive(family)
    assert not place.exists()


def test_a_stopped_rank_ends_the_run(run):
    place, rank = run.scratch(), run.ranks()[2]
    rank.suspend()
    assert run.ends() == 6
    assert re.search(r"rank 2 on \S+ has not reported for \S+ s: it is stopped", run.err), run.err
    assert run.err.count("feedrate: error:") == 1 and not NOISE.search(run.err)
    assert "has not reported" in read_failure(run.out)
    assert len(read_steps(run.out)) > 30
    assert not outlive([rank]) and not place.exists()


@pytest.mark.long
@pytest.mark.parametrize("stopped", [0, 2])
def test_a_stopped_rank_ends_the_run_of_the_users_own_mpirun(tiny, tmp_path, stopped):
    mpirun = Path(sys.executable).parent / "mpirun"
    command = [mpirun, "--bind-to", "none", "-n", 3, sys.executable, "-m", "emulator", "run", tiny]
    command += ["--workload", "unet3d-tiny", "--loader", "direct", "--steps", 10**6]
    command += ["--storage-timeout", "4s", "--out", tmp_path / "out"]
    environment = {**os.environ, **ROOT_AND_OVERSUBSCRIBED}
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment,
    ) as launcher:  # fmt: skip
        assert until(lambda: any((tmp_path / "out" / SPOOL).glob("*.steps")), 120)
        ranks = [one for one in psutil.Process(launcher.pid).children() if "emulator" in one.cmdline()]
        numbers = {int(one.environ()["OMPI_COMM_WORLD_RANK"]): one for one in ranks}
        numbers[stopped].suspend()
        _, said = launcher.communicate(timeout=60)
    assert launcher.returncode == 6
    (line,) = [line for line in said.splitlines() if line.startswith("feedrate: error:")]
    assert re.search(rf"rank {stopped} on \S+ has not reported for .*it is stopped \(process", line)
    assert "has not reported" in read_failure(tmp_path / "out")
    assert not outlive(ranks)


@pytest.mark.long
def test_a_rank_that_is_stopped_at_its_start_ends_the_run_of_the_users_own_mpirun(tiny):
    """The other one waits for it in MPI_Init, where it keeps Python's lock, for 20 s at least."""
    stops = '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || kill -STOP $$; exec "$@"'
    command = [Path(sys.executable).parent / "mpirun", "-n", 2, "bash", "-c", stops, "bash", sys.executable]
    command += ["-m", "emulator", "verify", tiny, "--storage-timeout", "2s"]
    done = finished(command)
    assert done.status != 0
    line = done.one_line()
    assert re.search(r"rank 0 on \S+ \(process \d+\) has waited \S+ s for 2 ranks to start: ", line)


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (signal.SIGINT, 130, "interrupted"),
        pytest.param(signal.SIGTERM, 143, "ended by SIGTERM", marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, 129, "ended by SIGHUP", marks=pytest.mark.long),
    ],
)
def test_a_run_that_a_signal_ends_says_so_once(run, number, status, said):
    place, family = run.scratch(), run.family()
    os.killpg(run.process.pid, number)  # as a terminal does: every process in its foreground gets it
    assert run.ends() == status
    assert run.err.splitlines()[0] == f"feedrate: {said}" and not NOISE.search(run.err), run.err
    assert read_failure(run.out) == said and recovered(run.out).status == "incomplete"
    assert not outlive(family)
    assert not place.exists()


@pytest.mark.parametrize("whom", ["the command", pytest.param("the one that forks", marks=pytest.mark.long)])
def test_nothing_outlives_its_launcher(run, whom):
    """Nor stays in memory, where it was the user's alone."""
    place, family = run.scratch(), run.family()
    assert place.stat().st_mode & 0o777 == 0o700
    assert re.fullmatch(r"feedrate-[0-9a-f]{8}-\d+-[0-9a-f]{16}", place.name)
    launcher = psutil.Process(run.process.pid)
    if whom == "the one that forks":
        (launcher,) = launcher.children()
    launcher.kill()
    assert not outlive(family)
    run.process.wait()
    assert until(lambda: not place.exists())


def test_words_after_two_dashes_are_no_options_of_the_launcher(tiny, tmp_path):
    """A dataset whose name begins with a dash."""
    (tmp_path / "-ds").symlink_to(tiny)
    words = ("run", "-w", "unet3d-tiny", "--loader", "direct", "-n", 2, "--steps", 2)
    done = feedrate(*words, "--", "-ds", cwd=tmp_path)
    assert done.status == 0, done.err
    assert list((tmp_path / "feedrate-results").iterdir())


def test_a_soft_limit_of_open_files_is_raised_and_a_hard_one_is_one_line(tiny, tmp_path):
    words = ("run", tiny, "-w", "unet3d-tiny", "--loader", "direct", "-n", 8, "--steps", 2)
    words += ("--out", tmp_path / "out")
    done = within(["bash", "-c", 'ulimit -n 60; exec "$@"', "-"], *words)
    assert done.status == 5
    said = r"feedrate: error: 8 ranks need \d+ open files, and 60 are allowed: ulimit -n \d+"
    assert re.fullmatch(said, done.one_line())
    assert within(["bash", "-c", 'ulimit -Sn 60; exec "$@"', "-"], *words).status == 0


def test_what_a_host_cannot_hold_is_refused_before_anything_starts(tiny, tmp_path):
    words = ("run", tiny, "-w", "unet3d-tiny", "--loader", "direct", "--out", tmp_path / "out")
    samples = ("--set", "loader.batch_size=1", "--set", "accelerator.step_batch_size=1")
    most = RANKS_A_CORE * len(os.sched_getaffinity(0))
    refused = feedrate("generate", tmp_path / "new", "--recipe", "tiny", "-n", most + 1)
    assert re.search(f"cores of this host: .*at most -n {most} here", refused.one_line())
    done = feedrate(*words, *samples, "-n", 4, "--set", "loader.block_bytes=1TiB")
    assert (
        re.search(r"4 ranks would need [\d.]+ TB of memory or more", done.one_line())
        and "at most -n 0 here" in done.err
    )
    assert not (tmp_path / "out").exists()
