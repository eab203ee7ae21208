"""How a rank ends on a signal."""

import subprocess
import sys

from emulator.errors import RankError

SIGNAL_IN_A_FINALIZER = """
import os, signal, sys, time, weakref
from pathlib import Path
from emulator.run.comm import Comm, guarded

class Semaphore:
    pass

with guarded(Comm(), Path(sys.argv[1])):
    semaphore = Semaphore()
    weakref.finalize(semaphore, lambda: [os.kill(os.getpid(), signal.SIGTERM), time.sleep(0.1)])
    del semaphore
    try:
        time.sleep(60)
    finally:
        print("flushed")
"""


def test_a_signal_within_a_finalizer_ends_the_rank(tmp_path):
    words = [sys.executable, "-c", SIGNAL_IN_A_FINALIZER, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (RankError.exit_code, "flushed\n", "")
