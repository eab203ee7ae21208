"""Does a sweep of real ranks find a knee that is known? Five sweeps on a shaped storage.

    python benchmarks/shaped_knee.py [--rate 400MB/s] [--ranks 10] [--repeats 5] [--loader direct]

The limit divided by one process's demand is where the knee is: both are known beforehand.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from emulator.record.out import read_result
from emulator.units import parse_rate


def feedrate(*words: object) -> None:
    subprocess.run(
        [sys.executable, "-m", "emulator", *map(str, words)], check=True, stdout=subprocess.DEVNULL
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", default="400MB/s")
    parser.add_argument("--ranks", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--loader", default="direct")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        feedrate("generate", data, "--recipe", "tiny", "--files", 512)
        print(
            "| sweep | runs | N* found | limit / demand | error | N_AU90, 95 % interval | seconds |\n"
            + "|---" * 7
            + "|"
        )
        for number in range(options.repeats):
            out = Path(folder) / f"out-{number}"
            begin = time.monotonic()
            feedrate(
                "sweep",
                data,
                "--workload",
                "unet3d-tiny",
                "--storage",
                f"shaped:{options.rate}",
                "--steps",
                48,
                "--loader",
                options.loader,
                "-n",
                options.ranks,
                "--set",
                f"training.shuffle_seed={100 * number}",
                "--out",
                out,
            )
            seconds = time.monotonic() - begin
            result = read_result(out)
            mean = result.dataset["bytes"] / result.dataset["files"]
            truth = parse_rate(options.rate) / (80 * mean)  # 4 samples in 50 ms are 80 a second
            knee = result.knee
            assert knee is not None
            found = knee.n_saturation
            error = "no saturated point" if found is None else f"{found / truth - 1:+.1%}"
            interval = (
                "none" if knee.interval is None else f"{knee.interval[0]:.2f} to {knee.interval[1]:.2f}"
            )
            print(
                f"| {number + 1} | {len(result.points)} | {found and round(found, 2)} | {truth:.2f} "
                f"| {error} | {knee.n_au and round(knee.n_au, 2)}, {interval} | {seconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
