"""How long ranks of one machine take to start and to end, beside what they do in between.

    python benchmarks/start.py FOLDER [--ranks 100] [--loader direct] [--repeats 5] [--out FILE]

`feedrate run` as a user starts it, of 2 steps of 50 ms: the command's time less that of the steps, and the
CPU of all its processes, which also counts what other work on the machine does not change. FOLDER takes 1 MB
a rank and step.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from read_path import machine

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
    feedrate = [sys.executable, "-m", "emulator"]
    if not (options.folder / "manifest.json").exists():
        made = ("--recipe", "tiny", "--files", str(STEPS * options.ranks))
        subprocess.run([*feedrate, "generate", str(options.folder), *made], check=True, stdout=sys.stderr)
    rows, seconds, cpu = [], [], []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as name:
            words = ("--workload", "unet3d-tiny", "--loader", options.loader, "--cache", "warm", "--quiet")
            settings = (word for setting in SETTINGS for word in ("--set", setting))
            before, begin = _cpu_seconds(), time.monotonic()
            subprocess.run(
                [
                    *(*feedrate, "run", str(options.folder), *words, *settings, "--mismatched-dataset"),
                    *("-n", str(options.ranks), "--steps", str(STEPS), "--out", f"{name}/out"),
                ],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            took = time.monotonic() - begin
            seconds.append(took - read_result(Path(name, "out")).points[0].seconds)
        cpu.append((_cpu_seconds() - before) / options.ranks)
        rows.append(f"| {seconds[-1]:.1f} | {1e3 * cpu[-1]:.0f} |\n")
        print(rows[-1], end="", flush=True)
    text = (
        f"# Start of {options.ranks} ranks, loader {options.loader}, {time.strftime('%Y-%m-%d')}\n\n"
        f"`python {' '.join(sys.argv)}`\n\n{machine()}\n\n"
        f"Median {statistics.median(seconds):.1f} s, {1e3 * statistics.median(cpu):.0f} ms of CPU a rank.\n\n"
        "| start and end, s | CPU of all processes, ms a rank |\n|---:|---:|\n" + "".join(rows)
    )
    print("\n" + text)
    if options.out:
        options.out.write_text(text)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
