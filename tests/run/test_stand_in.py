"""What mpirun starts in place of a rank."""

import subprocess
import sys

import pytest
from command import feedrate

from emulator.launch import stand_in
from emulator.launch.mpirun import feedrate as feedrate_itself


def test_without_its_server_it_is_the_rank_itself(tmp_path):
    """mpirun may start it on another host of an allocation, where no fork server is."""
    command = [
        sys.executable,
        "-I",
        "-S",
        stand_in.__file__,
        tmp_path / "nobody",
        *feedrate_itself(["run", "--help"]),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "--workload" in done.stdout


@pytest.mark.mpi
def test_an_environment_too_large_for_the_server_is_no_reason_to_fail(tiny, tmp_path):
    large = {f"FEEDRATE_TEST_{number}": 100_000 * "x" for number in range(5)}
    words = ("run", tiny, "-w", "unet3d-tiny", "--loader", "direct", "-n", 2, "--steps", 6)
    done = feedrate(*words, "--out", tmp_path / "out", **large)
    assert done.status == 0, done.err
