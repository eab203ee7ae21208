"""What it costs to write a dataset: fio and feedrate generate (and DLIO) take turns in one run.

    python benchmarks/generate.py FOLDER [--files 16] [--repeats 5] [--jobs 4] [--out FILE.md]

fio writes as many bytes in as many files with as many jobs, in 1 MiB blocks: through the page cache
with fsync at the end of each file, and with O_DIRECT. feedrate generates the recipe kits19 (.npz,
incompressible, fsync). Everything is removed after each turn; FOLDER has to have room for one.

    GB/s        bytes / seconds of writing, start-up left out (DLIO: included, it does not say)
    CPU-s/GB    user + system seconds while writing; in brackets of the whole process, start-up included
    PSS MB      peak proportional set size of the process tree, sampled every 0.1 s

DLIO is run when $DLIO_PYTHON names a python that has dlio-benchmark; its share of unique 4 KiB blocks is
measured as feedrate measures its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from read_path_turn import watched

from emulator.config.recipe import load_recipe
from emulator.dataset.plan import DatasetPlan, outlook
from emulator.dataset.verify import measure_payload
from emulator.storage.folder import FolderStore

TARGET_RATE = 0.90
TARGET_CPU = 0.35

_DLIO_CONFIG = """defaults:
  - _self_
  - workload: grown
  - override hydra/job_logging: disabled
  - override hydra/hydra_logging: disabled
"""
_DLIO_WORKLOAD = """model: unet3d
framework: pytorch
workflow: {{generate_data: True, train: False, checkpoint: False}}
dataset:
  data_folder: {folder}
  format: npz
  num_files_train: {files}
  num_samples_per_file: 1
  record_length: 146600628
  record_length_stdev: 68341808
reader: {{data_loader: pytorch, batch_size: 7, read_threads: 4}}
train: {{epochs: 1, computation_time: 0.0}}
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """One contestant, once."""

    bytes: int
    seconds: float
    cpu: float
    """CPU-seconds while writing."""
    cpu_whole: float
    """CPU-seconds of the whole process tree."""
    pss: int
    unique: float | None = None
    """Share of distinct 4 KiB blocks, where it was measured."""

    @property
    def rate(self) -> float:
        return self.bytes / self.seconds


def fio(folder: Path, files: int, size: int, jobs: int, direct: bool) -> Turn:
    """`files` files of `size` bytes in 1 MiB blocks by `jobs` jobs."""
    command = [
        "fio", "--output-format=json", "--name=write", f"--directory={folder}", "--rw=write", "--bs=1M",
        "--ioengine=psync", f"--direct={int(direct)}", f"--numjobs={jobs}", f"--nrfiles={files // jobs}",
        f"--filesize={size}", f"--size={size * (files // jobs)}", "--file_service_type=sequential",
        "--group_reporting", "--fallocate=none", *(() if direct else ("--fsync_on_close=1", "--end_fsync=1")),
    ]  # fmt: skip
    done = watched(command)
    wrote = json.loads(done.out[done.out.index("{") :])["jobs"][0]
    size = int(wrote["write"]["io_bytes"])
    return Turn(size, wrote["job_runtime"] / jobs / 1000, done.cpu_seconds, done.cpu_seconds, done.peak_pss)


def feedrate(folder: Path, files: int, threads: int) -> Turn:
    """`feedrate generate`, as a user runs it."""
    command = [
        sys.executable, "-m", "emulator", "generate", str(folder / "data"), "--recipe", "kits19",
        "--files", str(files), "--threads", str(threads), "--json",
    ]  # fmt: skip
    done = watched(command)
    told = json.loads(done.out.splitlines()[-1])
    return Turn(
        told["made_bytes"], told["seconds"], told["cpu_seconds"], done.cpu_seconds, done.peak_pss,
        told["measured"]["unique_blocks"],
    )  # fmt: skip


def dlio(folder: Path, files: int, jobs: int) -> Turn:
    """DLIO's generator, one process per job (mpirun of the environment that has it)."""
    (folder / "conf/workload").mkdir(parents=True)
    (folder / "conf/config.yaml").write_text(_DLIO_CONFIG)
    text = _DLIO_WORKLOAD.format(folder=folder / "data", files=files)
    (folder / "conf/workload/grown.yaml").write_text(text)
    python = Path(os.environ["DLIO_PYTHON"])
    launcher = python.parent / "mpirun"
    mpirun = [str(launcher if launcher.exists() else "mpirun"), "-n", str(jobs)]
    command = [*mpirun, str(python), "-m", "dlio_benchmark.main", "--config-dir", str(folder / "conf")]
    command.append("workload=grown")  # a name that DLIO's own configurations do not have
    begin = time.monotonic()
    done = watched(command, cwd=folder)
    seconds = time.monotonic() - begin
    paths = sorted((folder / "data").rglob("*.npz"))
    size = sum(path.stat().st_size for path in paths)
    names = [str(path.relative_to(folder)) for path in paths[:16]]
    unique = measure_payload(FolderStore(folder), names)["unique_blocks"]
    return Turn(size, seconds, done.cpu_seconds, done.cpu_seconds, done.peak_pss, unique)


def contestants(files: int, jobs: int) -> dict[str, Callable[[Path], Turn]]:
    """Name -> turn, in the order that they take turns."""
    look = outlook(DatasetPlan(recipe=load_recipe("kits19"), seed=0, files=files))
    size = round(look.mean)
    chosen: dict[str, Callable[[Path], Turn]] = {
        "fio buffered + fsync": lambda folder: fio(folder, files, size, jobs, direct=False),
        "fio O_DIRECT": lambda folder: fio(folder, files, size, jobs, direct=True),
        "feedrate generate": lambda folder: feedrate(folder, files, jobs),
    }
    if "DLIO_PYTHON" in os.environ:
        chosen["DLIO generate"] = lambda folder: dlio(folder, files, jobs)
    return chosen


def report(turns: dict[str, list[Turn]], head: str) -> str:
    """Medians and ranges as Markdown, and the ratio that counts."""
    lines = [head, "", "| | GB/s | CPU-s/GB | PSS MB | unique 4 KiB blocks |", "|---|---|---|---|---|"]
    for name, rows in turns.items():
        rates = [row.rate / 1e9 for row in rows]
        cpu = statistics.median(row.cpu / row.bytes * 1e9 for row in rows)
        whole = statistics.median(row.cpu_whole / row.bytes * 1e9 for row in rows)
        unique = [row.unique for row in rows if row.unique is not None]
        pss = max(row.pss for row in rows) / 1e6
        shown = f"{statistics.median(unique):.1%}" if unique else "-"
        lines.append(
            f"| {name} | {statistics.median(rates):.2f} [{min(rates):.2f}-{max(rates):.2f}] "
            f"| {cpu:.2f} ({whole:.2f}) | {pss:.0f} | {shown} |"
        )
    ours = turns["feedrate generate"]
    pairs = [
        mine.rate / max(buffered.rate, direct.rate)
        for mine, buffered, direct in zip(
            ours, turns["fio buffered + fsync"], turns["fio O_DIRECT"], strict=True
        )
    ]
    medians = [statistics.median(row.rate for row in turns[name]) for name in list(turns)[:3]]
    cpu = statistics.median(row.cpu / row.bytes * 1e9 for row in ours)
    lines += [
        "",
        f"feedrate / better fio: {medians[2] / max(medians[:2]):.2f} of the medians, "
        f"{statistics.median(pairs):.2f} median of the turns (target {TARGET_RATE})",
        f"CPU-s/GB of feedrate: {cpu:.2f} (target {TARGET_CPU})",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if shutil.which("fio") is None:
        sys.exit("fio is not installed: apt-get install fio")
    options.folder.mkdir(parents=True, exist_ok=True)
    chosen = contestants(options.files // options.jobs * options.jobs, options.jobs)
    turns: dict[str, list[Turn]] = {name: [] for name in chosen}
    for repeat in range(options.repeats):
        for name, turn in chosen.items():
            print(f"\r{repeat + 1}/{options.repeats} {name:30s}", end="", file=sys.stderr)
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                turns[name].append(turn(Path(folder)))
            os.sync()
    print("\r\x1b[K", end="", file=sys.stderr)
    load = os.getloadavg()[1]
    head = (
        f"`python benchmarks/generate.py FOLDER --files {options.files} --repeats {options.repeats} "
        f"--jobs {options.jobs}`: {os.cpu_count()} cores, load {load:.1f}, medians [range]"
    )
    text = report(turns, head)
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
