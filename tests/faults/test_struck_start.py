"""A signal while a command still imports is answered by silence or a line, and by the right status."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
import pytest
from command import ROOT_AND_OVERSUBSCRIBED, outlive

OURS = re.compile(r'File "\S*/emulator/(?!__)')
"""A line of a traceback that is in our code. Python's start, up to the first line of ours, is Python's."""
SIGNALS = (signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_signal_at_a_random_moment_of_the_start_is_answered_by_silence_or_a_line(tiny, tmp_path):
    """It strikes the command, its group as Ctrl-C does, or one process below it: launcher, server, rank."""
    seed = os.environ.get("FEEDRATE_FAULTS_SEED", "2/")
    random = Random(seed)
    started = Path(sys.executable).with_name("feedrate")
    for kill in range(100):
        out = tmp_path / str(kill)
        sweep = ("sweep", tiny, "-w", "unet3d-tiny", "--counts", "1,2", "--steps", "30", "--out", out)
        others = (("verify", tiny), ("record", "--out", out, "--", "sleep", "1"))
        words = random.choice((*((*sweep, "--loader", kind) for kind in ("direct", "torch")), *others))
        command = random.choice(((sys.executable, "-m", "emulator"), (started,)))
        number, whom = random.choice(SIGNALS), random.choice(("command", "group", "below"))
        with subprocess.Popen(
            list(map(str, (*command, *words))), env={**os.environ, **ROOT_AND_OVERSUBSCRIBED}, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        ) as process:  # fmt: skip
            time.sleep(random.uniform(0, 3 if whom == "below" else 1))
            below = psutil.Process(process.pid).children(recursive=True)
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if whom == "group":
                    os.killpg(process.pid, number)
                elif whom == "command" or not below:
                    process.send_signal(number)
                else:
                    random.choice(below).send_signal(number)
            _, said = process.communicate(timeout=120)
        case = (seed, kill, words[0], number.name, whom, process.returncode, said)
        assert not OURS.search(said) and "internal error" not in said, case
        assert said.count("feedrate: error:") <= 1, case
        if whom != "below" and "Fatal Python error" not in said:
            assert process.returncode in (-number, 128 + number, 0), case
        assert not outlive(below), case
