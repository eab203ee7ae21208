"""The program that mpirun starts in place of a rank."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import feedrate, finished

from emulator.launch import stand_in
from emulator.launch.mpirun import feedrate as feedrate_itself


def test_without_its_server_it_is_the_rank_itself(tmp_path):
    """mpirun may start it on another host of an allocation, where no fork server is."""
    isolated = [sys.executable, "-I", "-S", stand_in.__file__, tmp_path / "nobody"]
    done = finished([*isolated, *feedrate_itself(["run", "--help"])])
    assert done.status == 0 and "--workload" in done.out


def caught(pid):
    """The signals that a process has handlers for, a bit each."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigCgt" in line)
    return int(line.split()[1], 16)


def test_a_signal_that_comes_after_the_rank_has_ended_changes_nothing(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / "server"))
        server.listen()
        command = [sys.executable, "-I", "-S", stand_in.__file__, tmp_path / "server", "unused"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        rank, _ = server.accept()
        with rank:
            rank.recv(1 << 20)
            rank.shutdown(socket.SHUT_RD)  # what is sent from now on fails, as to a closed socket
            while not caught(process.pid) >> (signal.SIGTERM - 1) & 1:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            rank.send((3 << 8).to_bytes(4, sys.byteorder))
            _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (3, "")


@pytest.mark.mpi
def test_an_environment_too_large_for_the_server_is_no_reason_to_fail(tiny, tmp_path):
    large = {f"FEEDRATE_TEST_{number}": 100_000 * "x" for number in range(5)}
    words = ("run", tiny, "-w", "unet3d-tiny", "--loader", "direct", "-n", 2, "--steps", 6)
    done = feedrate(*words, "--out", tmp_path / "out", **large)
    assert done.status == 0, done.err
