"""Measures the cost of more hosts to the emulator. As root, on network-namespace hosts.

    python benchmarks/scale.py [--hosts 1,2,4,8,16] [--ranks 8] [--step-ms 3.5,47.5] [--seconds 6]
        [--repeats 3] [--out FILE]

Each row is `feedrate run` as a user starts it over that many hosts (tests/lab/hosts.sh): as many ranks in
all, or one a host where there are more hosts, warm samples of 30 kB in memory, a barrier after each step.
Storage has nothing to do, so AU would be 100 % everywhere but for the first step's start.

    barrier ms   what the barrier takes when all ranks come at once, as the result has it
    AU           for each step time, as `feedrate report` shows it
    late p99     of the processes after the ends of their steps, seconds
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import namespaces
import numpy as np
from processes import AS_ROOT, feedrate, machine, publish, table_line

from emulator.analysis.parts import Floats
from emulator.record.out import read_result
from emulator.record.result import Point
from emulator.record.steps import read_steps

RECIPE = """name = "specks"
title = "samples that cost next to nothing"
format = "npz"
payload = "incompressible"

[size]
distribution = "lognormal"
bytes_mean = 30_000
bytes_sd = 100
bytes_min = 29_000
bytes_max = 31_000
min_edge = 16
"""
FILES = 256


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", default="1,2,4,8,16")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--step-ms", default="3.5,47.5")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run's loop, without waits")
    parser.add_argument("--repeats", type=int, default=1, help="of each run; the median counts")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    publish("More hosts", machine(), table(given), given.out)


def table(given: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table as they are measured."""
    counts = [int(word) for word in given.hosts.split(",")]
    steps = [float(word) / 1e3 for word in given.step_ms.split(",")]
    yield table_line(
        "hosts", "ranks", "barrier ms", *(f"AU at {1e3 * step:g} ms" for step in steps), "late p99 ms"
    )
    yield table_line(*("---:" for _ in range(4 + len(steps))))
    with namespaces.hosts(max(counts)) as folder:
        data = folder / "data"
        (folder / "specks.toml").write_text(RECIPE)
        words = feedrate("generate", data, "--recipe", folder / "specks.toml", "--files", FILES)
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        for hosts in counts:
            ranks = max(hosts, given.ranks)
            found = [
                [run(data, hosts, ranks, step, round(given.seconds / step)) for _ in range(given.repeats)]
                for step in steps
            ]
            barrier = median(point.barrier_seconds or 0.0 for runs in found for point, _ in runs)
            yield table_line(
                str(hosts), str(ranks), f"{1e3 * barrier:.2f}",
                *(f"{100 * median(point.au for point, _ in runs):.1f} %" for runs in found),
                " / ".join(f"{1e3 * np.quantile([late for _, late in runs], 0.99):.1f}" for runs in found),
            )  # fmt: skip


def run(data: Path, hosts: int, ranks: int, step: float, steps: int) -> tuple[Point, Floats]:
    """`ranks` ranks on `hosts` hosts: the point, and the seconds that each was late, shape (steps, ranks)."""
    out = data.parent / "out"
    words = feedrate(
        "run", data, "--workload", "unet3d-tiny", "--loader", "direct", "--cache", "warm",
        "--set", f"accelerator.step_seconds={step}", "--set", "training.sync=step",
        "--set", "loader.batch_size=1", "--set", "accelerator.step_batch_size=1",
        "--set", "loader.crop=[16, 16, 16]", "--set", "loader.workers=1",
        "--mismatched-dataset", "--steps", steps, "--out", out, "--force",
    )  # fmt: skip
    over_hosts(hosts, ranks, words)
    (point,) = read_result(out).points
    log = np.sort(read_steps(out), order=("rank", "epoch", "step"))
    return point, log["late"].reshape(point.ranks, -1).T[1:]


def over_hosts(hosts: int, ranks: int, words: Sequence[object]) -> None:
    """An mpirun on the first host that starts `ranks` ranks, as many on each host as on the others."""
    slots = {1 + host: -(-ranks // hosts) for host in range(hosts)}
    command = namespaces.mpirun(slots, ranks, "-x", "PYTHONPATH", *words)
    environment = {**os.environ, **AS_ROOT}
    subprocess.run(
        namespaces.on(1, shlex.join(command)), check=True, stdout=subprocess.DEVNULL, env=environment
    )


if __name__ == "__main__":
    main()
