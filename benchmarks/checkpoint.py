"""What writing and restoring checkpoints costs: feedrate, fio with the same requests, torch.save, in turns.

    python benchmarks/checkpoint.py FOLDER [--ranks 2] [--bytes 1000000000] [--repeats 3] [--out FILE]

All write `--bytes` a rank in FOLDER, synced, and read them back without the page cache. fio: as many jobs
with as many requests of 16 MiB in flight (2 a rank), O_DIRECT. torch.save: one process a rank saves a tensor
of random bytes through the page cache and syncs, as DLIO's PyTorch checkpointing does; torch.load after
eviction.

    GB/s        bytes of all ranks / seconds of the slowest; start-up left out
    CPU-s/GB    user + system seconds of the ranks meanwhile (of torch, of saving and loading alone)

Medians, and in brackets the range. feedrate makes its bytes new meanwhile and takes checksums of what
it writes and reads; fio reuses a buffer and looks at nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from emulator.launch.child import ChildProcess

WHOLE = 112_423_657_472
"""Bytes of llama3-8b's checkpoint."""
Turn = dict[str, tuple[float, float]]
"""write, read -> (GB/s, CPU-s/GB)."""

TORCH = """
import os, sys, time, torch, numpy
path, size = sys.argv[1], int(sys.argv[2])
tensor = torch.from_numpy(numpy.random.default_rng(os.getpid()).integers(0, 256, size, dtype=numpy.uint8))
def timed(action):
    sys.stdin.readline()
    begin, cpu = time.monotonic(), sum(os.times()[:2])
    action()
    print(time.monotonic() - begin, sum(os.times()[:2]) - cpu, flush=True)
def save():
    with open(path, "wb") as file:
        torch.save({"model": tensor}, file); file.flush(); os.fsync(file.fileno())
def load():
    torch.load(path)
print("ready", flush=True)
timed(save)
file = os.open(path, os.O_RDONLY); os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
timed(load)
os.unlink(path)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=10**9, help="of a rank")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the table there as Markdown")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    contestants: dict[str, Callable[[Path, int, int], Turn]] = {
        "feedrate checkpoint": _feedrate,
        "fio, 16 MiB, O_DIRECT": _fio,
        "torch.save, torch.load": _torch,
    }
    turns: dict[str, list[Turn]] = {name: [] for name in contestants}
    names = list(contestants)
    for turn in range(given.repeats):
        for place in range(len(names)):  # each is first, second and last in turn
            name = names[(turn + place) % len(names)]
            turns[name].append(contestants[name](given.folder, given.ranks, given.bytes))
    text = _report(given, turns)
    print(text)
    if given.out:
        given.out.write_text(text)


def _feedrate(folder: Path, ranks: int, size: int) -> Turn:
    out = folder / "out"
    scale = Fraction(size * ranks, WHOLE).limit_denominator(10**9)
    options = f"-m llama3-8b -n {ranks} --scale {scale} --writes 1 --reads 1 --pause 0s --force".split()
    command = [sys.executable, "-m", "emulator", "checkpoint", folder, *options, "--out", out]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = json.loads((out / "run.json").read_text())["checkpoints"]
    return {
        checkpoint["direction"]: (
            checkpoint["bytes_per_second"] / 1e9,
            checkpoint["cpu_seconds"] / checkpoint["bytes"] * 1e9,
        )
        for checkpoint in found
    }


def _fio(folder: Path, ranks: int, size: int) -> Turn:
    turn: Turn = {}
    for direction in ("write", "read"):
        options = (
            f"--name=c --rw={direction} --bs=16M --direct=1 --ioengine=libaio --iodepth=2 --numjobs={ranks} "
            f"--size={size // 2**24 * 2**24} --group_reporting --end_fsync=1 --fallocate=none"
        )
        command = ["fio", f"--directory={folder}", *options.split(), "--output-format=json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        (job,) = json.loads(done.stdout)["jobs"]
        moved, seconds = job[direction]["io_bytes"], job["job_runtime"] / ranks / 1e3
        cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds * ranks
        turn[direction] = (job[direction]["bw_bytes"] / 1e9, cpu / moved * 1e9)
    for file in folder.glob("c.*"):
        file.unlink()
    return turn


def _torch(folder: Path, ranks: int, size: int) -> Turn:
    commands = [
        [sys.executable, "-c", TORCH, str(folder / f"rank{rank}.pt"), str(size)] for rank in range(ranks)
    ]
    running = [ChildProcess("torch", command, stderr=None) for command in commands]
    for process in running:
        assert process.stdout and process.stdout.readline() == "ready\n"
    turn: Turn = {}
    for direction in ("write", "read"):
        for process in running:
            process.send("go\n", last=direction == "read")
        rows = [list(map(float, process.stdout.readline().split())) for process in running if process.stdout]
        seconds, cpu = max(row[0] for row in rows), sum(row[1] for row in rows)
        turn[direction] = (ranks * size / seconds / 1e9, cpu / (ranks * size) * 1e9)
    for process in running:
        process.finish()
    return turn


def _report(given: argparse.Namespace, turns: dict[str, list[Turn]]) -> str:
    words = sys.argv[1:]
    lines = [
        f"`python benchmarks/checkpoint.py {' '.join(words)}`",
        "",
        "| | write GB/s | CPU-s/GB | read GB/s | CPU-s/GB |",
        "|---|---|---|---|---|",
    ]
    for name, some in turns.items():
        cells = [
            _cell([turn[direction][place] for turn in some])
            for direction in ("write", "read")
            for place in (0, 1)
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


if __name__ == "__main__":
    main()
