"""A host that is gone ends the run soon, with its name. Needs root: make test-multihost."""

import os
import signal
import subprocess
import time
from contextlib import suppress

import pytest
from hosts import HOSTS, NAME, pids_on, start_on_hosts, start_with_mpich

from emulator.record.out import read_result
from emulator.record.steps import read_steps

pytestmark = pytest.mark.multihost


@pytest.fixture(params=[start_on_hosts, start_with_mpich], ids=["openmpi", "mpich"])
def reading(hosts, tiny, tmp_path, request):
    """A run on three hosts, a rank each, whose steps are being counted."""
    out = tmp_path / "out"
    run = request.param(
        1, "run", tiny, "--workload", "unet3d-tiny", "--loader", "direct", "--steps", 100000,
        "--set", "training.sync=step", "--out", out,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not ((out / "spool").is_dir() and len(read_steps(out))):
        time.sleep(0.2)
    yield run, out
    run.kill()
    run.communicate()
    for host in hosts:
        for pid in pids_on(host):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_rank_that_is_killed_ends_the_run(reading):
    run, _ = reading
    os.kill(pids_on(HOSTS[1], "emulator")[0], signal.SIGKILL)
    began = time.monotonic()
    run.communicate(timeout=20)
    assert run.returncode != 0
    assert time.monotonic() - began < 10


def test_a_host_whose_network_is_gone_ends_the_run(reading):
    """Nobody closed a connection, and mpirun waits for the host. Nothing stays on any."""
    run, out = reading
    switch = ["ip", "-n", f"{NAME}sw", "link", "set", "p2"]
    subprocess.run([*switch, "down"], check=True)
    began = time.monotonic()
    try:
        _, errors = run.communicate(timeout=30)
        took = time.monotonic() - began
        while any(map(pids_on, HOSTS)) and time.monotonic() < began + 20:
            time.sleep(0.2)
        assert not [pids for host in HOSTS if (pids := pids_on(host))]
    finally:
        subprocess.run([*switch, "up"], check=True)
    assert run.returncode != 0
    assert read_result(out).status == "incomplete"
    assert f"lost the connection to {NAME}" in errors + (out / "failure.txt").read_text()
    assert "Traceback" not in errors
    assert took < 10
