"""A training of own_job_kinds that switches its own recording off and on, ten steps at a time, once reads are
no longer traced. Off: the hook in its process does nothing, and the recorder is stopped.

    feedrate record --out JOB --warmup 0 --traced-steps 60 -- python own_job_blocks.py KIND FOLDER CGROUP

Under torchrun each process switches its hook, and the first one the recorder. The last line on stdout is
JSON: a list of [step, seconds, CPU seconds of the cgroup] at the borders of stretches. Recorded or not,
these are the same; AT says what each is for.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
from own_job_kinds import train

TRACED, BLOCK, BLOCKS = 60, 10, 12
AT = (15, 55, *(70 + BLOCK * number for number in range(BLOCKS + 1)))
"""Steps: from the first to the second reads are traced; from the third on, blocks."""
ON = tuple(number % 4 in (0, 3) for number in range(BLOCKS))
"""Blocks that are recorded: on, off, off, on, so that a drift within four of them is for neither."""


def main(kind: str, folder: Path, group: Path) -> None:
    probe = sys.modules.get("feedrate_probe")  # where it is recorded
    first = os.environ.get("RANK", "0") == "0"
    recorder = next((one for one in psutil.Process().parents() if "record" in one.cmdline()), None)
    marks = []

    def then(done: int) -> None:
        if done not in AT:
            return
        marks.append([done, time.monotonic(), int((group / "cpuacct.usage").read_text()) / 1e9])
        number = AT.index(done) - 2
        if probe is not None and number >= 0:
            on = number == BLOCKS or ON[number]
            probe._events.open = on
            if first and recorder is not None:
                recorder.send_signal(signal.SIGCONT if on else signal.SIGSTOP)

    train(kind, folder, AT[-1], then)
    if first:
        print(json.dumps(marks), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
