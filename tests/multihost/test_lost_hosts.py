"""A host that is gone ends the run soon, with its name. Needs root: make test-multihost."""

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest
from hosts import HOSTS, NAME, pids_on, start_on_hosts, start_with_mpich

import emulator
from emulator.notes import DEFAULT_TIMEOUT
from emulator.record.out import read_result
from emulator.record.steps import read_steps

pytestmark = pytest.mark.multihost

TIMEOUT = 6
"""--storage-timeout, seconds."""


@pytest.fixture(params=[start_on_hosts, start_with_mpich], ids=["openmpi", "mpich"])
def starting(hosts, tiny, tmp_path, request):
    """A run on three hosts, a rank each, that has just begun."""
    out = tmp_path / "out"
    run = request.param(
        1, "run", tiny, "--workload", "unet3d-tiny", "--loader", "direct", "--steps", 100000,
        "--set", "training.sync=step", "--storage-timeout", f"{TIMEOUT}s", "--out", out,
    )  # fmt: skip
    yield run, out
    run.kill()
    run.communicate()
    for host in hosts:
        for pid in pids_on(host):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def reading(starting):
    """The same, once its steps are being counted."""
    run, out = starting
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not ((out / "spool").is_dir() and len(read_steps(out))):
        time.sleep(0.2)
    assert run.poll() is None, run.communicate()
    return run, out


@contextmanager
def cut_off():
    """The second host without its network."""
    switch = ["ip", "-n", f"{NAME}sw", "link", "set", "p2"]
    subprocess.run([*switch, "down"], check=True)
    try:
        yield
    finally:
        subprocess.run([*switch, "up"], check=True)
        for host in HOSTS:  # else a failed neighbour is remembered into the next test
            subprocess.run(["ip", "-n", host, "neigh", "flush", "dev", "eth0"], check=True)


@pytest.mark.parametrize("fault", ["stopped", "cut off"])
def test_a_fault_at_the_start_ends_the_run(starting, fault):
    """The ranks of other hosts wait in MPI_Init, where no thread of theirs gets to run."""
    run, out = starting
    before = set(Path("/dev/shm").glob("mpich_shm_*"))
    while not all(pids_on(host, "emulator") for host in HOSTS[:2]):
        time.sleep(0.01)
    began = time.monotonic()
    if fault == "stopped":
        os.kill(pids_on(HOSTS[1], "emulator")[0], signal.SIGSTOP)
    with cut_off() if fault == "cut off" else nullcontext():
        _, errors = run.communicate(timeout=60)
        assert time.monotonic() - began < DEFAULT_TIMEOUT + 10
    assert run.returncode != 0 and not out.exists()
    (line,) = [line for line in errors.splitlines() if "feedrate: error:" in line]
    reasons = [rf"rank 0 on {HOSTS[0]} \(process \d+\) has waited .* for 3 ranks to start"]
    if fault == "stopped":  # its watcher may have begun
        reasons.append(rf"rank 1 on {HOSTS[1]} has not reported for")
    assert any(re.search(reason, line) for reason in reasons)
    deadline = time.monotonic() + 5
    while (left := set(Path("/dev/shm").glob("mpich_shm_*")) - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def test_a_rank_that_is_killed_ends_the_run(reading):
    run, _ = reading
    os.kill(pids_on(HOSTS[1], "emulator")[0], signal.SIGKILL)
    began = time.monotonic()
    run.communicate(timeout=20)
    assert run.returncode != 0
    assert time.monotonic() - began < 10


def test_a_rank_that_is_stopped_ends_the_run_on_all_hosts(reading):
    run, out = reading
    (stopped,) = pids_on(HOSTS[1], "emulator")
    os.kill(stopped, signal.SIGSTOP)
    _said_once(run, out, f"rank 1 on {HOSTS[1]} has not reported for ")


def test_a_host_that_is_stopped_as_a_whole_ends_the_run_on_the_others(reading):
    run, out = reading
    for pid in pids_on(HOSTS[1]):
        os.kill(pid, signal.SIGSTOP)
    _said_once(run, out, f"rank 1 on {HOSTS[1]} has not reported for ", still=HOSTS[1])


def _said_once(run, out, reason, still=""):
    """The run ends within its --storage-timeout and 10 s, with one error; nothing is left but on `still`."""
    began = time.monotonic()
    _, errors = run.communicate(timeout=60)
    took = time.monotonic() - began
    assert run.returncode != 0
    (line,) = [line for line in errors.splitlines() if "feedrate: error:" in line]
    assert reason in line and reason in (out / "failure.txt").read_text()
    assert read_result(out).status == "incomplete"
    assert took < TIMEOUT + 10
    while any(pids_on(host) for host in HOSTS if host != still) and time.monotonic() < began + 60:
        time.sleep(0.2)
    assert not [host for host in HOSTS if host != still and pids_on(host)]


def test_a_host_with_another_feedrate_is_refused_by_its_name(hosts, tiny, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(Path(emulator.__file__).parent, other / "emulator")
    with (other / "emulator" / "units.py").open("a") as file:
        file.write("# a change\n")
    start = f'[ "$(hostname)" != {HOSTS[2]} ] || export PYTHONPATH={other}; exec "$@"'
    run = start_on_hosts(
        2, "run", tiny, "--workload", "unet3d-tiny", "--loader", "direct", "--out", tmp_path / "out",
        before=["bash", "-c", start, "bash"], folder=tmp_path,
    )  # fmt: skip
    _, errors = run.communicate(timeout=60)
    assert run.returncode != 0 and errors.count("feedrate: error:") == 1
    assert re.search(
        rf"run different software: code \S+ on {HOSTS[0]}, {HOSTS[1]}, \S+ on {HOSTS[2]}", errors
    )
    assert not (tmp_path / "out").exists()


def test_a_host_whose_network_is_gone_ends_the_run(reading):
    """Nobody closed a connection, and mpirun waits for the host. Nothing stays on any."""
    run, out = reading
    began = time.monotonic()
    with cut_off():
        _, errors = run.communicate(timeout=30)
        took = time.monotonic() - began
        while any(map(pids_on, HOSTS)) and time.monotonic() < began + 20:
            time.sleep(0.2)
        assert not [pids for host in HOSTS if (pids := pids_on(host))]
    assert run.returncode != 0
    assert read_result(out).status == "incomplete"
    assert errors.count("feedrate: error:") == 1 and f"lost the connection to {HOSTS[1]}" in errors
    assert "Traceback" not in errors
    assert took < 10
