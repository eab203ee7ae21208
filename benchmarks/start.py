"""Times the start and the end of ranks on one machine, beside what they do in between.

    python benchmarks/start.py FOLDER [--ranks 100] [--loader direct] [--repeats 5] [--out FILE]

`feedrate run` as a user starts it, of 2 steps of 50 ms: the command's time less that of the steps, and the
CPU of all its processes, which also counts what other work on the machine does not change. FOLDER takes 1 MB
a rank and step.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from processes import cpu_of_children, feedrate, machine, publish

from emulator.record.out import read_result

STEPS = 2
SETTINGS = (
    *("loader.batch_size=1", "loader.crop=[]", "accelerator.step_batch_size=1"),
    "accelerator.step_seconds=0.05",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=100)
    parser.add_argument("--loader", default="direct")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the table there as Markdown")
    options = parser.parse_args()
    if not (options.folder / "manifest.json").exists():
        made = feedrate("generate", options.folder, "--recipe", "tiny", "--files", STEPS * options.ranks)
        subprocess.run(made, check=True, stdout=sys.stderr)
    title = f"Start of {options.ranks} ranks, loader {options.loader}"
    publish(title, machine(), lines(options), options.out)


def lines(options: argparse.Namespace) -> Iterator[str]:
    """The table, and the medians."""
    yield "| start and end, s | CPU of all processes, ms a rank |\n|---:|---:|"
    seconds, cpu = [], []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as name:
            words = ("--workload", "unet3d-tiny", "--loader", options.loader, "--cache", "warm", "--quiet")
            settings = (word for setting in SETTINGS for word in ("--set", setting))
            before, begin = cpu_of_children(), time.monotonic()
            command = feedrate(
                *("run", options.folder, *words, *settings, "--mismatched-dataset"),
                *("-n", options.ranks, "--steps", STEPS, "--out", f"{name}/out"),
            )
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            took = time.monotonic() - begin
            seconds.append(took - read_result(Path(name, "out")).points[0].seconds)
        cpu.append((cpu_of_children() - before) / options.ranks)
        yield f"| {seconds[-1]:.1f} | {1e3 * cpu[-1]:.0f} |"
    yield f"\nMedian {statistics.median(seconds):.1f} s, {1e3 * statistics.median(cpu):.0f} ms of CPU a rank."


if __name__ == "__main__":
    main()
