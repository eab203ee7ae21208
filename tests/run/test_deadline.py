"""A call that keeps Python's lock and does not return ends its process."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from emulator.launch.deadline import ended_after

CALL = """
import ctypes, mmap, os, sys
from emulator.launch.deadline import ended_after
with open(sys.argv[1], "w+b") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
with ended_after(1.0, lambda: os.write(1, b"late")):
    ctypes.PyDLL(None).sleep(SECONDS)
print("in time")
"""


@pytest.mark.parametrize(("seconds", "status", "said"), [(60, -9, "late"), (0, 0, "in time\n")])
def test_only_a_call_that_takes_too_long_ends_the_process(seconds, status, said):
    """Then MPICH cannot remove its shared memory."""
    segment = Path(f"/dev/shm/mpich_shm_of_test_{os.getpid()}")
    words = [sys.executable, "-c", CALL.replace("SECONDS", str(seconds)), segment]
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=90, check=False)
        assert (done.returncode, done.stdout) == (status, said)
        assert segment.exists() == (status == 0)  # the child has ended, too: it had stdout
    finally:
        segment.unlink(missing_ok=True)


def test_nothing_is_left_of_a_call_in_time():
    """What other tests left of theirs may go meanwhile."""
    me = psutil.Process()
    children, files = set(me.children()), set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with ended_after(60.0, int):
        assert len(set(me.children()) - children) == 1
    assert not set(os.listdir("/proc/self/fd")) - files  # noqa: PTH208
    assert not set(me.children()) - children
