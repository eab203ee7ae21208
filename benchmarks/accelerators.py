"""Counts the emulated accelerators that this machine holds when storage costs nothing but a copy.

    python benchmarks/accelerators.py FOLDER [--direct 64,96,112] [--torch 8,12] [--pytorch 8,12]
                                      [--cold 0.8] [--out FILE]

One NVIDIA A100 at 1/16 of the sample size: 7 samples of 9.2 MB (image and label) every 0.636 s, 101 MB/s,
warm in the page cache. With --cold the direct loader is also run cold, with as many as ask for that share
of what fio reads from the same files just before. Each count is `feedrate run` as a user starts it: mpirun,
a barrier after each step, every byte of every file read. A count holds when AU >= 90 %, over all steps but
each rank's first. Which processes ran beside it matters: the table has the share of CPU that others took.
AU of a plain PyTorch training (--pytorch; plain_training.py) stands beside that of the torch loader.

    AU, X/X_ideal   as `feedrate report` shows them
    plain           GB/s of a loop over os.preadv and nothing else, a thread a core, just before and just
                    after: what the memory gave meanwhile, which a virtual machine shares with others
    CPU-s/GB        user + system seconds of all ranks and their workers during the loop
    others          cores that were busy with anything but the ranks
    late p99        of the processes after the ends of their steps, as a share of the step
    start s         from the start of the command to that of the loop, and from its end to the command's
    PSS MB          of a rank: peak over the run, of all ranks together, per rank

FOLDER takes 64 MB a rank of the largest count, and the page cache has to hold it.
"""

from __future__ import annotations

import argparse
import compileall
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from against_pytorch import Case, trained
from processes import Files, feedrate, machine, peak_pss, publish, table_line
from read_path import fio

import emulator
from emulator.dataset.manifest import read_manifest
from emulator.record.out import read_result
from emulator.record.result import Point
from emulator.record.steps import read_steps

PSS_SECONDS = 4.0
"""Between two looks at the memory of all ranks: a look costs as much as some ranks do."""
SCALE = 16
BATCH = 7
STEP_SECONDS = 0.636
LOADERS = ("direct", "torch")
WORKERS, EDGE = 4, 48  # of 128 voxels at 1/16 of the volume 51 would be left
FIO_DEPTHS, FIO_BLOCK = (8, 16, 32), 2**18  # it leaves out what fills no request: 2 % of files this small
RECIPE = f"""name = "kits19-16th"
title = "KiTS19's sizes / {SCALE}"
format = "npz"
payload = "incompressible"

[size]
distribution = "lognormal"
bytes_mean = {146_600_628 // SCALE}
bytes_sd = {68_341_808 // SCALE}
bytes_min = {32_000_000 // SCALE}
bytes_max = {392_500_000 // SCALE}
min_edge = {EDGE}
aspect = 1.35
aspect_sigma = 0.31
"""


@dataclass(frozen=True, slots=True)
class Held:
    """One count, run once."""

    loader: str
    cache: str
    point: Point
    seconds: float
    """Seconds of the whole command."""
    memory: int
    """Bytes, of all of its processes together."""
    plain: tuple[float, ...]
    """GB/s of a loop that only reads, before and after; of a cold run none."""
    late: float
    """99th percentile over the steps of |overshoot| and lateness, as a share of the step time."""


def main() -> None:
    options = _options()
    counts = {kind: _counts(getattr(options, kind)) for kind in ("pytorch", *LOADERS)}
    files = _files(options.folder, BATCH * max((n for some in counts.values() for n in some), default=32))
    files.warm()
    head = (
        f"{len(files.paths)} files of {sum(files.sizes) / len(files.paths) / 1e6:.2f} MB; "
        f"{options.steps} steps.\n{machine()}"
    )
    publish("Accelerators on one machine", head, _table(options, files, counts), options.out)


def _table(options: argparse.Namespace, files: Files, counts: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yield the lines of the table as they are measured, and what follows from them."""
    held, fio = dict.fromkeys(counts, 0), []
    yield table_line(*_COLUMNS)
    yield "|---" * len(_COLUMNS) + "|"
    for _ in range(options.repeats):
        for kind, some in counts.items():
            for ranks in some:
                if kind == "pytorch":
                    au = _trained(options, files, ranks)
                    yield f"| plain PyTorch | warm | {ranks} | {100 * au:.1f} % |" + " |" * 8
                else:
                    run = _run(options, files, kind, "warm", ranks)
                    au = run.point.au
                    yield _row(run)
                held[kind] = max(held[kind], ranks) if au >= 0.9 else held[kind]
        if options.cold:
            best, ranks = _most_cold(files, options.cold)
            files.evict()
            fio.append(best)
            yield _row(_run(options, files, "direct", "cold", ranks))
    most = ", ".join(f"{ranks} with {kind}" for kind, ranks in held.items())
    yield f"\nMost that held AU >= 90 %: {most}."
    for best in fio:
        yield f"\nCold: as many as ask for {options.cold:.0%} of fio's {best:.2f} GB/s."


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--direct", default="64,96,104,112,128", help="counts of the direct loader, or none")
    parser.add_argument("--torch", default="none", help="counts of the torch loader, or none")
    parser.add_argument("--pytorch", default="none", help="counts of plain PyTorch trainings, or none")
    parser.add_argument("--cold", type=float, help="share of fio's best that cold ranks ask for")
    parser.add_argument("--steps", type=int, default=30, help="steps of a rank")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="as of feedrate run")
    parser.add_argument("--out", type=Path, help="write the table there as Markdown")
    return parser.parse_args()


def _counts(text: str) -> list[int]:
    return [] if text == "none" else [int(word) for word in text.split(",")]


def _files(folder: Path, least: int) -> Files:
    """The files of the dataset in `folder`, made where there are fewer than `least`."""
    with tempfile.TemporaryDirectory() as name:
        recipe = Path(name, "kits19-16th.toml")
        recipe.write_text(RECIPE)
        command = feedrate("generate", folder, "--recipe", recipe, "--files", least)
        if not (folder / "manifest.json").is_file() or len(read_manifest(folder).names) < least:
            subprocess.run(command, check=True, stdout=sys.stderr)
    return Files.of(read_manifest(folder), folder)


def _most_cold(files: Files, share: float) -> tuple[float, int]:
    """GB/s that fio reads from the files, and how many accelerators ask for `share` of it."""
    rates = []
    for depth in FIO_DEPTHS:
        files.evict()
        rates.append(fio(files.paths, "psync", FIO_BLOCK, direct=True, depth=depth).rate)
    demand = BATCH * sum(files.sizes) / len(files.paths) / STEP_SECONDS
    return max(rates), max(1, int(share * max(rates) * 1e9 / demand))


def _plain(files: Files) -> float:
    """GB/s of one pass over the files, a thread a core, into memory that stays in the first-level cache."""
    cores = os.cpu_count() or 1

    def read(paths: Sequence[Path]) -> None:
        pieces = [bytearray(2**13)] * 1024
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            offset = 0
            while done := os.preadv(fd, pieces, offset):
                offset += done
            os.close(fd)

    begin = time.perf_counter()
    with ThreadPoolExecutor(cores) as readers:
        list(readers.map(read, [files.paths[first::cores] for first in range(cores)]))
    return sum(files.sizes) / 1e9 / (time.perf_counter() - begin)


def _run(options: argparse.Namespace, files: Files, kind: str, cache: str, ranks: int) -> Held:
    # Of a dataset this small an epoch is a step or two: accelerators would wait at the border of each.
    settings = [f"loader.crop={[EDGE] * 3}", "access.refill=never", *options.set]
    with tempfile.TemporaryDirectory() as name:
        out = Path(name, "out")
        command = feedrate(
            *("run", options.folder, "--workload", "unet3d-a100", "--mismatched-dataset"),
            *("-n", ranks, "--loader", kind, "--cache", cache, "--steps", options.steps, "--out", out),
            *(word for setting in settings for word in ("--set", setting)),
        )
        plain = [_plain(files)] if cache == "warm" else []
        begin = time.monotonic()
        peak = peak_pss(command, _environment(), PSS_SECONDS)
        seconds = time.monotonic() - begin
        plain += [_plain(files)] if plain else []
        rows = read_steps(out)
        late = float(np.percentile(np.abs(rows["overshoot"]) + rows["late"], 99)) / STEP_SECONDS
        return Held(kind, cache, read_result(out).points[0], seconds, peak, tuple(plain), late)


def _trained(options: argparse.Namespace, files: Files, ranks: int) -> float:
    """AU of a plain PyTorch training of as many ranks, in an epoch that is as long as the run."""
    case = Case(
        name="", ranks=ranks, steps=options.steps, step_seconds=STEP_SECONDS, files=len(files.paths),
        batch=BATCH, workers=WORKERS, edge=EDGE,
        times=-(-ranks * BATCH * options.steps // len(files.paths)),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        return trained(case, Path(name), list(files.paths)).steady / 100


def _environment() -> dict[str, str]:
    """Environment of an installed feedrate, whose modules are compiled once and not by each rank."""
    compileall.compile_dir(Path(emulator.__file__).parent, quiet=2)
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


_COLUMNS = (
    "loader", "cache", "ranks", "AU", "X/X_ideal", "GB/s", "plain", "CPU-s/GB", "others",
    "late p99", "start s", "PSS MB",
)  # fmt: skip


def _row(run: Held) -> str:
    point = run.point
    host = point.hosts[0]
    spent = (host.cpu_seconds or 0.0) / point.seconds
    others = "?" if host.busy_share is None else f"{host.busy_share * host.cores - spent:.2f}"
    plain = ", ".join(f"{rate:.1f}" for rate in run.plain) or "-"
    return (
        f"| {run.loader} | {run.cache} | {point.ranks} | {100 * point.au:.1f} % "
        f"| {point.x_ideal:.3f} "
        f"| {point.bytes_per_second / 1e9:.2f} | {plain} "
        f"| {spent * point.seconds / point.bytes * 1e9:.3f} | {others} "
        f"| {100 * run.late:.1f} % | {run.seconds - point.seconds:.1f} "
        f"| {run.memory / point.ranks / 1e6:.0f} |"
    )


if __name__ == "__main__":
    main()
