"""A call that keeps Python's lock and does not return ends its process."""

import os
import subprocess
import sys

import psutil
import pytest

from emulator.launch.deadline import ended_after

CALL = """
import ctypes, os
from emulator.launch.deadline import ended_after
with ended_after(1.0, lambda: os.write(1, b"late")):
    ctypes.PyDLL(None).sleep(SECONDS)
print("in time")
"""


@pytest.mark.parametrize(("seconds", "status", "said"), [(60, -9, "late"), (0, 0, "in time\n")])
def test_only_a_call_that_takes_too_long_ends_the_process(seconds, status, said):
    words = [sys.executable, "-c", CALL.replace("SECONDS", str(seconds))]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (status, said)


def test_nothing_is_left_of_a_call_in_time():
    me = psutil.Process()
    before = os.listdir("/proc/self/fd"), me.children()  # noqa: PTH208
    with ended_after(60.0, int):
        assert len(me.children()) == len(before[1]) + 1
    assert (os.listdir("/proc/self/fd"), me.children()) == before  # noqa: PTH208
