"""`make demo` again and again, beside nothing and beside other work: does its answer hold the truth?

    python benchmarks/demo.py --runs 5
    python benchmarks/demo.py --runs 5 --beside 'stress-ng --cpu 2'

Runs the lines of the Makefile with this Python, and prints a row a run. The truth follows from the shaped
rate and the bytes of a sample. A row holds if the interval does, if the answer is at least N and true, or if
no number is given, between counts that hold it.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from emulator.analysis.evidence import usable
from emulator.record.out import read_result
from emulator.record.result import Knee, RunResult

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "demo" / "result"


def lines() -> list[list[str]]:
    """The commands of `make demo`, with this Python in place of an installation."""
    words = ["make", "-n", "demo", "INSTALLED=", f"FEEDRATE={sys.executable} -m emulator"]
    text = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    joined = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line.partition("||")[0]) for line in joined if "-m emulator" in line]


def truth(result: RunResult) -> float:
    """Shaped rate / demand of one process / threshold."""
    point = result.points[0]
    demand = point.ideal_samples_per_second / point.ranks * point.bytes / point.samples
    return float(result.storage["shaped_rate"]) / demand / float(result.workload["training"]["au_threshold"])


def holds(knee: Knee, knee_is: float) -> bool:
    """True when the answer is true."""
    sides = (knee.fed or 0, math.inf if knee.kind == "at-least" else knee.starved or math.inf)
    low, high = knee.interval or sides
    return low <= knee_is <= high and knee.kind in ("knee", "at-least", "not-identifiable")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--beside", default="", help="a command that runs meanwhile")
    options = parser.parse_args()
    generate, *rest = lines()
    subprocess.run(generate, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    print("| beside | seconds | kind | knee | 95 % interval | holds | points left out | flags |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for _ in range(options.runs):
        other = (
            subprocess.Popen(shlex.split(options.beside), stderr=subprocess.DEVNULL)
            if options.beside
            else None
        )
        begin = time.monotonic()
        try:
            for words in rest:
                subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, check=False, env=os.environ)
        finally:
            if other is not None:
                other.terminate()
                other.wait()
        seconds = time.monotonic() - begin
        result = read_result(RESULT)
        knee, used = result.knee, usable(result.points)
        assert knee is not None
        interval = " to ".join(f"{end:.3g}" for end in knee.interval or ())
        number = f"{knee.n_au:.3g}" if knee.n_au else f"{knee.fed} or more" if knee.fed else ""
        left = [str(point.ranks) for point in result.points if point not in used]
        flags = sorted({f"{flag.name} at {point.ranks}" for point in result.points for flag in point.flags})
        held = f"{holds(knee, truth(result))} ({truth(result):.2f})"
        row = (options.beside or "nothing", f"{seconds:.0f}", knee.kind, number, interval, held)
        print(f"| {' | '.join(map(str, row))} | {', '.join(left)} | {', '.join(flags)} |", flush=True)


if __name__ == "__main__":
    main()
