"""How well a sweep's first estimate of its duration holds, on ten sweeps of different kinds.

    python benchmarks/estimate.py FOLDER --disk FOLDER [--out FILE] [--only NAME;...]

The first line of progress with a time left gives the estimate: seconds so far and seconds left. It is
compared with the time from the command's start to its end. FOLDER should lie in memory (0.5 GB), --disk on a
disk (5 GB).
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from read_path import machine

FEEDRATE = (sys.executable, "-m", "emulator")
TINY, UNET = "unet3d-tiny", "unet3d-a100"
SWEEPS = {
    "knee": f"MEMORY -w {TINY} -n 12 --loader direct --storage shaped:400MB/s --steps 60",
    "knee, torch": f"MEMORY -w {TINY} -n 8 --loader torch --storage shaped:300MB/s --steps 60",
    "counts": f"MEMORY -w {TINY} --counts 1,2,4,8 --loader direct --storage shaped:400MB/s --steps 100",
    "fit": f"MEMORY -w {TINY} --for fit -n 12 --loader direct --storage shaped:400MB/s --steps 100",
    "beyond": f"MEMORY -w {TINY} -n 8 --loader direct --steps 100",
    "below": f"MEMORY -w {TINY} -n 8 --loader direct --storage shaped:50MB/s --steps 40",
    "budget": f"MEMORY -w {TINY} -n 12 --loader direct --storage shaped:400MB/s --budget 90s",
    "client's limit": f"MEMORY -w {TINY} -n 16 --loader torch --steps 100",
    "disk": f"DISK/tiny -w {TINY} -n 60 --loader direct --steps 60",
    "disk, large": f"DISK/unet -w {UNET} -n 4 --loader direct --steps 6",
}


class Row(NamedTuple):
    """One sweep."""

    name: str
    dry: float
    """Seconds that --dry-run gives."""
    estimate: float
    """Seconds in all, by the first line of progress that says how long is left."""
    took: float
    """Seconds."""
    end: str

    @property
    def off(self) -> float:
        """The factor between estimate and time taken, 1 or more."""
        return max(self.estimate / self.took, self.took / self.estimate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--disk", type=Path, required=True)
    parser.add_argument("--only", help="names of sweeps, separated by semicolons")
    parser.add_argument("--out", type=Path, help="append the table there as Markdown")
    options = parser.parse_args()
    for folder, recipe, files in (
        (options.folder, "tiny", 256),
        (options.disk / "tiny", "tiny", 256),
        (options.disk / "unet", "kits19", 28),
    ):
        words = ("generate", str(folder), "--recipe", recipe, "--files", str(files))
        subprocess.run([*FEEDRATE, *words], check=True, stdout=sys.stderr)
    chosen = options.only.split(";") if options.only else list(SWEEPS)
    places = {"MEMORY": str(options.folder), "DISK": str(options.disk)}
    rows = []
    for name in chosen:
        text = SWEEPS[name]
        for word, place in places.items():
            text = text.replace(word, place)
        rows.append(_swept(name, shlex.split(text)))
        print(rows[-1], file=sys.stderr, flush=True)
    lines = [
        f"{machine()}",
        "",
        "| sweep | dry run s | estimate at start s | took s | factor | how it ended |",
        "|---|---:|---:|---:|---:|---|",
        *(
            f"| {r.name} | {r.dry:.0f} | {r.estimate:.0f} | {r.took:.0f} | {r.off:.2f} | {r.end} |"
            for r in rows
        ),
        "",
        f"Median factor {statistics.median(row.off for row in rows):.2f}.",
    ]
    print("\n".join(lines))
    if options.out:
        with options.out.open("a") as file:
            file.write("\n".join(lines) + "\n")


def _swept(name: str, words: list[str]) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "live"
        command = [*FEEDRATE, "sweep", *words, "--out", f"{folder}/out", "--live", f"json:{log}"]
        dry = subprocess.run([*command, "--dry-run", "--json"], capture_output=True, text=True, check=True)
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        took = time.monotonic() - begin
        if done.returncode not in (0, 9):
            raise SystemExit(done.stderr)
        shown = [json.loads(line) for line in log.read_text().splitlines()]
        first = next(now for now in shown if now["eta_seconds"] is not None)
        ended = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("done: ")), "")
        runs = len(json.loads((Path(folder) / "out/run.json").read_text())["points"])
        return Row(
            name=name,
            dry=json.loads(dry.stdout)["seconds"],
            estimate=first["seconds"] + first["eta_seconds"],
            took=took,
            end=f"{runs} runs: {ended.removeprefix('done: ')}"[:100],
        )


if __name__ == "__main__":
    main()
