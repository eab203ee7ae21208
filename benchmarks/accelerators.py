"""Counts the emulated accelerators that this machine holds when storage costs nothing but a copy.

    python benchmarks/accelerators.py FOLDER [--direct 140,180] [--out FILE]

One NVIDIA A100 at 1/16 of the sample size: 7 samples of 9.2 MB (image and label) every 0.636 s, 101 MB/s,
warm in the page cache. Each count is `feedrate run` as a user starts it: mpirun, a barrier after each step,
every byte of every file read.

    AU          as `feedrate report` shows it
    plain       GB/s of a loop over os.preadv and nothing else, a thread a core, just before and just after:
                what the memory gave meanwhile, which a virtual machine shares with others
    CPU-s/GB    user + system seconds of all ranks and their workers during the loop
    start s     from the start of the command to that of the loop, and from its end to the command's
    PSS MB      of a rank: peak over the run, of all ranks together, per rank

FOLDER takes 64 MB a rank of the largest count, and the page cache has to hold it.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import typer
from processes import Files, feedrate, machine, peak_pss, publish, table_line

import emulator
from emulator.dataset.manifest import read_manifest
from emulator.record.out import read_result

SCALE, BATCH = 16, 7
EDGE = 48  # of 128 voxels at 1/16 of the volume 51 would be left
SIZES = {
    "bytes_mean": 146_600_628 // SCALE,
    "bytes_sd": 68_341_808 // SCALE,
    "bytes_min": 32_000_000 // SCALE,
    "bytes_max": 392_500_000 // SCALE,
    "min_edge": EDGE,
}


def main(
    folder: Path, direct: str = "64,96,112,128", steps: int = 30, repeats: int = 1, out: Path | None = None
) -> None:
    """Run the counts `direct` of ranks with the direct loader; write the table to `out`, too."""
    counts = [int(word) for word in direct.split(",")]
    files = _files(folder, BATCH * max(counts))
    files.warm()
    mean = sum(files.sizes) / len(files.paths) / 1e6
    head = f"{len(files.paths)} files of {mean:.2f} MB; {steps} steps.\n{machine()}"
    publish("Accelerators on one machine", head, _table(files, counts * repeats, steps), out)


def _table(files: Files, counts: Sequence[int], steps: int) -> Iterator[str]:
    """Yield the lines of the table as they are measured."""
    columns = ("ranks", "AU", "GB/s", "plain", "CPU-s/GB", "start s", "PSS MB")
    yield table_line(*columns)
    yield "|---" * len(columns) + "|"
    for ranks in counts:
        yield _run(files, ranks, steps)


def _files(folder: Path, least: int) -> Files:
    """The files of the dataset in `folder`, made where there are fewer than `least`."""
    sizes = [word for name, value in SIZES.items() for word in ("--set", f"size.{name}={value}")]
    command = feedrate("generate", folder, "--recipe", "kits19", "--files", least, *sizes)
    if not (folder / "manifest.json").is_file() or len(read_manifest(folder).names) < least:
        subprocess.run(command, check=True, stdout=sys.stderr)
    return Files.of(read_manifest(folder), folder)


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


def _run(files: Files, ranks: int, steps: int) -> str:
    """The row of one count."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name, "out")
        command = feedrate(
            *("run", files.folder, "--workload", "unet3d-a100", "--mismatched-dataset"),
            *("-n", ranks, "--loader", "direct", "--cache", "warm", "--steps", steps, "--out", out),
            # Of a dataset this small an epoch is a step or two: accelerators would wait at each border.
            *("--set", f"loader.crop={[EDGE] * 3}", "--set", "loader.refill=never"),
        )
        compileall.compile_dir(Path(emulator.__file__).parent, quiet=2)  # once, and not by each rank
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        plain = [_plain(files)]
        begin = time.monotonic()
        peak = peak_pss(command, environment, 4.0)  # a look costs as much as some ranks do
        seconds = time.monotonic() - begin
        plain.append(_plain(files))
        (point,) = read_result(out).points
    spent = point.hosts[0].cpu_seconds
    return table_line(
        str(ranks), f"{100 * point.au:.1f} %", f"{point.bytes_per_second / 1e9:.2f}",
        ", ".join(f"{rate:.1f}" for rate in plain), f"{spent / point.bytes * 1e9:.3f}",
        f"{seconds - point.seconds:.1f}", f"{peak / ranks / 1e6:.0f}",
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
