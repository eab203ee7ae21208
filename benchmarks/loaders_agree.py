"""Below saturation both loaders must measure the same: samples/s within 1 %, AU within 0.5 points.

    python benchmarks/loaders_agree.py FOLDER [--ranks 2] [--repeats 5] [--out FILE]

FOLDER holds a dataset of the recipe `tiny`; where there is none, it is made. The workload is unet3d-tiny
at steps of 0.2 s on storage that is shaped to ten times the demand. The loaders take turns; medians of the
repeats are compared, and the status is 1 when they differ by more.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from emulator.record.out import read_result
from emulator.record.result import Point

RATE_TOLERANCE = 0.01
AU_TOLERANCE = 0.005
STEP_SECONDS = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the table there as Markdown")
    options = parser.parse_args()
    if not (options.folder / "manifest.json").is_file():
        _feedrate("generate", options.folder, "--recipe", "tiny", "--files", max(96, 8 * options.ranks))
    points: dict[str, list[Point]] = {"direct": [], "threads": []}
    for _ in range(options.repeats):
        for loader, taken in points.items():
            taken.append(_point(options, loader))
    agree, text = _verdict(points)
    head = f"# Loaders below saturation, {time.strftime('%Y-%m-%d')}\n\n`python {' '.join(sys.argv)}`\n\n"
    print(text)
    if options.out:
        options.out.write_text(head + text)
    sys.exit(0 if agree else 1)


def _point(options: argparse.Namespace, loader: str) -> Point:
    rate = round(10 * options.ranks * 4_000_000 / STEP_SECONDS)
    with tempfile.TemporaryDirectory() as name:
        out = Path(name, "out")
        _feedrate(
            "run", options.folder, "--workload", "unet3d-tiny", "-n", options.ranks, "--loader", loader,
            "--steps", options.steps, "--storage", f"shaped:{rate}B/s", "--out", out,
            "--set", f"accelerator.step_seconds={STEP_SECONDS}",
        )  # fmt: skip
        return read_result(out).points[0]


def _feedrate(*words: object) -> None:
    command = [sys.executable, "-m", "emulator", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _verdict(points: dict[str, list[Point]]) -> tuple[bool, str]:
    rates = {loader: [point.samples_per_second for point in taken] for loader, taken in points.items()}
    aus = {loader: [point.au for point in taken] for loader, taken in points.items()}
    middle = statistics.median
    rate_gap = middle(rates["threads"]) / middle(rates["direct"]) - 1
    au_gap = middle(aus["threads"]) - middle(aus["direct"])
    rows = [
        f"| {loader} | {middle(rates[loader]):.3f} [{min(rates[loader]):.3f}-{max(rates[loader]):.3f}] "
        f"| {100 * middle(aus[loader]):.2f} [{100 * min(aus[loader]):.2f}-{100 * max(aus[loader]):.2f}] |\n"
        for loader in points
    ]
    agree = abs(rate_gap) <= RATE_TOLERANCE and abs(au_gap) <= AU_TOLERANCE
    return agree, (
        "| loader | samples/s | AU % |\n|---|---|---|\n"
        + "".join(rows)
        + f"\nthreads against direct: samples/s {100 * rate_gap:+.2f} % (at most 1), "
        f"AU {100 * au_gap:+.2f} points (at most 0.5): {'they agree' if agree else 'they differ'}\n"
    )


if __name__ == "__main__":
    main()
