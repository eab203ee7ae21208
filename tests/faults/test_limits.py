"""Machines that run out of something, and processes that are killed early: one line each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command import Done, feedrate, finished, in_namespace, started, within
from faults.harness import complaint, feedrate_struck

TRAINING = ("-w", "unet3d-tiny", "--epochs", 50)


@pytest.mark.mpi
@pytest.mark.parametrize("loader", ["direct", pytest.param("torch", marks=pytest.mark.long)])
def test_an_error_at_close(shim, tiny, tmp_path, loader):
    """Some file systems tell only then that a read or a write has failed."""
    struck = feedrate_struck(
        shim, "path=.npz calls=close mode=errno:EIO times=0", "run", tiny, *TRAINING, "--loader", loader,
        "-n", 1, "--out", tmp_path / "out",
    )  # fmt: skip
    assert struck.calls and not complaint(struck.done)
    if struck.done.status:
        assert "Input/output error" in struck.done.one_line()


@pytest.mark.mpi
@pytest.mark.long
def test_a_worker_that_is_killed_at_its_start(tiny, tmp_path):
    """Python starts a fork server again that dies before it is asked; a worker that dies ends the run."""
    words = ("run", tiny, *TRAINING[:2], "--steps", 8, "--loader", "torch", "-n", 1)
    words += ("--out", tmp_path / "out")
    done = struck(kill_first_worker, *words)
    assert not complaint(done) and len(done.err.splitlines()) < 12, done.err
    assert done.status == 0 or (done.status == 6 and "worker" in done.one_line()), done.err


def kill_first_worker(launcher: psutil.Process) -> bool:
    """Kill the fork server of a rank's workers, or a worker; False: there is none yet."""
    of_ranks = {process.pid: process for process in launcher.children(recursive=True)}
    for process in of_ranks.values():
        started = process.ppid() in of_ranks and process.status() != psutil.STATUS_ZOMBIE
        if started and "multiprocessing.forkserver" in " ".join(process.cmdline()):
            process.kill()
            return True
    return False


def struck(strike, *words: object) -> Done:
    """`feedrate WORDS`, asked again and again to be struck until it is."""
    with started(*words) as process:
        launcher = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                if strike(launcher):
                    break
            except psutil.Error:
                continue
        out, err = process.communicate(timeout=90)
    return Done(process.returncode, out, err, 0)


# ---- As root.


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with 40 inodes."""
    if os.geteuid():
        pytest.skip("needs root, to mount a file system with few inodes")
    place = tmp_path / "small"
    place.mkdir()
    if finished(["mount", "-t", "tmpfs", "-o", "nr_inodes=40,size=200m", "none", place]).status:
        pytest.skip("this system mounts no tmpfs")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_inodes_that_are_used_up(small):
    words = ("generate", small / "data", "--recipe", "tiny", "--files", 60)
    assert "inodes are used up" in feedrate(*words).one_line()
    assert not (small / "data").exists()
    done = feedrate(*words, "--no-space-check")
    assert done.status == 4 and "no inodes" in done.one_line() and "resumes" in done.one_line()


@pytest.mark.faults
@pytest.mark.mpi
def test_a_machine_without_memory(tiny, tmp_path):
    """A cgroup that ends ranks for want of memory: it is said once, with the rank."""
    groups = Path("/sys/fs/cgroup/memory")
    if os.geteuid() or not (groups / "memory.limit_in_bytes").exists():
        pytest.skip("needs root and cgroup v1 for memory")
    group = groups / f"feedrate-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(260 << 20))
        words = ("run", tiny, *TRAINING, "--loader", "direct", "-n", 12, "--out", tmp_path / "out")
        done = within(["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "-"], *words)
    finally:
        time.sleep(0.5)
        group.rmdir()
    assert done.status, "it had memory enough"
    assert done.err.count("oom_kill") == 1 and "oom_kill" in done.one_line()


@pytest.mark.mpi
def test_a_user_without_a_home_can_run_it(tiny, tmp_path):
    """Containers run with user IDs that are in no passwd file; Open MPI and Path.home() fail without one."""
    nobody = ["unshare", "--user", "--map-user=65001", "--map-group=65001", "env", "-u", "HOME"]
    if finished([*nobody, "true"]).status:
        pytest.skip("this system does not let users make namespaces")
    words = ("run", tiny, *TRAINING[:2], "--steps", 2, "--loader", "direct", "-n", 2)
    done = within(nobody, *words, "--out", tmp_path / "out")
    assert done.status == 0, done.err


@pytest.mark.mpi
@pytest.mark.long
def test_a_small_shared_memory_is_enough_or_named(tiny, tmp_path):
    """Containers limit /dev/shm to 64 MB by default."""
    words = (sys.executable, "-m", "emulator", "run", tiny, *TRAINING[:2], "--steps", 64, "--loader", "torch")
    mounted = 'mount -t tmpfs -o size=$0 none /dev/shm && exec "$@"'
    enough = in_namespace(mounted, "64m", *words, "-n", 2, "--out", tmp_path / "a")
    assert enough.status == 0, enough.err
    whole = ("loader.batch_size=1", "accelerator.step_batch_size=1", "loader.crop=[]", "loader.prefetch=32")
    settings = [word for setting in whole for word in ("--set", setting)]
    done = in_namespace(mounted, "16m", *words, *settings, "-n", 1, "--out", tmp_path / "b")
    assert done.status == 6 and "docker: --shm-size=1g" in done.one_line(), done.err


@pytest.mark.mpi
@pytest.mark.parametrize("own_mpirun", [False, True])
def test_ranks_start_with_next_to_no_shared_memory(tiny, tmp_path, own_mpirun):
    """Open MPI wants 16 MiB free for each rank; some containers have 1 MB."""
    words = [sys.executable, "-m", "emulator", "run", tiny, *TRAINING[:2], "--steps", 4, "--loader", "direct"]
    words += ["--out", tmp_path / "out"]
    started = [Path(sys.executable).parent / "mpirun", "-n", 2, *words] if own_mpirun else [*words, "-n", 2]
    done = in_namespace('mount -t tmpfs -o size=$0 none /dev/shm && exec "$@"', "1m", *started)
    assert done.status == 0 and not done.err, done.err
