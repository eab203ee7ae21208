"""The cost of reading: feedrate's loaders beside fio and others, on the same bytes, in turns.

    python benchmarks/read_path.py FOLDER [--dlio PYTHON] [--out FILE]

Reads the dataset in FOLDER (recipe kits19; made where there is none): whole .npz files, cold and warm.
The table has medians of --turns and, in brackets, ranges. CPU is user + system seconds of the client and its
workers: fio's as fio reports it, DLIO's with its start. DLIO is a run of three epochs less one of one epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from dlio import run_dlio
from processes import Files, cpu_of_children, feedrate, machine, publish, spread

from emulator.config.workload import AccessSpec, Workload, load_workload
from emulator.dataset.manifest import Manifest, read_manifest
from emulator.loader import Loader, make_loader
from emulator.order import EpochPlan, RankPlan
from emulator.plugins.baseline.fio import fio_environment
from emulator.storage.base import Storage
from emulator.storage.counts import TimedStorage
from emulator.storage.posix import PosixStorage

THREADS = 4


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one contestant."""

    bytes: int
    seconds: float
    cpu: float
    """User + system seconds."""

    @property
    def rate(self) -> float:
        """GB/s."""
        return self.bytes / self.seconds / 1e9

    @property
    def cpu_per_gb(self) -> float:
        return self.cpu / self.bytes * 1e9


Contestant = Callable[[], Turn]


@dataclass(frozen=True, slots=True)
class Case:
    """Contestants that read the same bytes."""

    title: str
    contestants: dict[str, Contestant]
    rivals: tuple[str, ...]
    """Contestants, or beginnings of their names, whose best one the others are compared with."""
    before: Callable[[], None] = lambda: None
    """Called before each turn."""


def table(cases: Iterator[Case], turns: int, only: str) -> Iterator[str]:
    """The lines of the table; contestants of a case take turns."""
    yield "| bytes | reader | GB/s | CPU-s/GB | beside | GB/s / its | its CPU / own |"
    yield "|---" * 7 + "|"
    for case in cases:
        taken: dict[str, list[Turn]] = {name: [] for name in case.contestants if re.search(only, name)}
        for _ in range(turns):
            for name in taken:
                case.before()
                taken[name].append(case.contestants[name]())
        rates = {name: statistics.median(turn.rate for turn in own) for name, own in taken.items()}
        rivals = [[name for name in taken if name.startswith(start)] for start in case.rivals]
        best = [max(names, key=lambda name: rates[name]) for names in rivals if names]
        for name, own in taken.items():
            figures = f"{spread([t.rate for t in own])} | {spread([t.cpu_per_gb for t in own], 3)}"
            for rival in [one for one in best if one != name] or [""]:
                pairs = list(zip(own, taken.get(rival, ()), strict=False))
                faster = spread([mine.rate / theirs.rate for mine, theirs in pairs])
                cheaper = spread([theirs.cpu_per_gb / mine.cpu_per_gb for mine, theirs in pairs])
                yield f"| {case.title} | {name} | {figures} | {rival} | {faster} | {cheaper} |"


def timed(read: Callable[[], int]) -> Turn:
    """One turn of `read`, which returns how many bytes it read."""
    begin, cpu = time.monotonic(), _cpu()
    size = read()
    return Turn(size, time.monotonic() - begin, _cpu() - cpu)


def _cpu() -> float:
    """User + system seconds of this process and of those that it started and that live."""
    me = psutil.Process()
    times = [one.cpu_times() for one in (me, *me.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def loader_of(
    stack: ExitStack, kind: str, workload: Workload, files: Manifest, storage: Storage
) -> tuple[Loader, EpochPlan]:
    """feedrate's loader `kind`, closed by `stack`, and the order in which one rank reads the files."""
    access, spec = workload.access, workload.loader
    loader = make_loader(kind, spec, TimedStorage(storage), files, access=access)
    stack.enter_context(closing(loader))
    plan = EpochPlan(
        samples=files.samples, ranks=1, batch_size=spec.batch_size, samples_per_file=files.samples_per_file,
        access=access,
    )  # fmt: skip
    return loader, plan


def batches_of(loader: Loader, plan: EpochPlan, epochs: int) -> Iterator[int]:
    """The bytes of the batches of so many epochs."""
    return (batch.bytes for batch in loader.read(RankPlan(plan=plan, seed=0, epochs=epochs).portions(0)))


def fio(paths: Sequence[Path], engine: str, request: int, *more: str, direct: bool, depth: int) -> Turn:
    """fio reads the files: `depth` threads of psync, or one queue of that depth."""
    jobs = depth if engine == "psync" else 1
    folder = os.path.commonpath([path.parent for path in paths])  # fio limits how long its lists of files are
    lines = [
        "[global]", f"ioengine={engine}", "rw=read", f"bs={request}", f"direct={int(direct)}",
        f"iodepth={1 if engine == 'psync' else depth}", "thread=1", "iomem_align=2m", "allow_file_create=0",
        "invalidate=0",  # files that are to be read cold have been evicted
        "file_service_type=sequential", *more,
    ]  # fmt: skip
    for job in range(jobs):
        names = (str(path.relative_to(folder)).replace(":", "\\:") for path in paths[job::jobs])
        lines += [f"[job{job}]", f"filename={':'.join(names)}"]
    with tempfile.TemporaryDirectory() as made:
        job_file = Path(made, "job.fio")
        job_file.write_text("\n".join(lines) + "\n")
        said = _said(["fio", "--output-format=json", str(job_file)], cwd=folder, env=fio_environment())
    told = json.loads(said[said.index("{") :])["jobs"]
    # fio's own account of its jobs, in percent of their run time: its start is not in it.
    cpu = sum((job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000 for job in told)
    reads = [job["read"] for job in told]
    return Turn(sum(one["io_bytes"] for one in reads), max(one["runtime"] for one in reads) / 1000, cpu)


def _said(command: list[str], **more: Any) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **more).stdout


def whole_files(given: argparse.Namespace) -> Iterator[Case]:
    """Every byte of a dataset of large files."""
    folder: Path = given.place
    if not (folder / "manifest.json").exists():
        words = feedrate("generate", folder, "--recipe", "kits19", "--files", given.files)
        subprocess.run(words, check=True, stdout=sys.stderr)
    manifest = read_manifest(folder)
    files = Files.of(manifest, folder)
    workload = load_workload("unet3d-a100")
    spec = replace(workload.loader, batch_size=4, workers=THREADS, prefetch=2 * THREADS, block_bytes=4 << 20)
    accelerator = replace(workload.accelerator, step_batch_size=4)
    workload = replace(workload, loader=spec, access=AccessSpec(refill="persistent"), accelerator=accelerator)
    for title, direct, cold in (
        ("files, cold, O_DIRECT", True, True),
        ("files, cold, buffered", False, True),
        ("files, page cache", False, False),
    ):
        with ExitStack() as stack:
            found: dict[str, Contestant] = {
                f"fio {engine}": lambda engine=engine, direct=direct: fio(
                    files.paths, engine, 4 << 20, direct=direct, depth=THREADS
                )
                for engine in ("psync", "libaio", "io_uring")
            }
            for kind in ("direct",) if direct else ("direct", "torch"):
                storage = PosixStorage(folder, direct=direct, cache="cold" if cold else "warm")
                rank = loader_of(stack, kind, workload, manifest, storage)
                sum(batches_of(*rank, 1))  # workers, buffers, and the first use of their pages
                found[f"feedrate {kind}"] = lambda own=rank: timed(lambda: sum(batches_of(*own, 1)))
            if given.dlio and not direct:
                found["DLIO"] = lambda cold=cold: dlio(given.dlio, files, cold)
            yield Case(title, found, ("fio",), files.evict if cold else files.warm)


def dlio(python: Path, files: Files, cold: bool) -> Turn:
    """Two epochs of DLIO; cold only the first, since it finds its files in the page cache then."""
    spent = []
    few = files.paths[:4]
    for paths, epochs in ((files.paths, 1), (few, 1)) if cold else ((files.paths, 3), (files.paths, 1)):
        files.evict() if cold else None
        begin, cpu = time.monotonic(), cpu_of_children()
        run_dlio(python, files.folder, paths, batch=4, workers=THREADS, epochs=epochs)
        spent.append((time.monotonic() - begin, cpu_of_children() - cpu))
    (long, its), (short, less) = spent
    size = sum(files.sizes[4:]) if cold else 2 * sum(files.sizes)
    return Turn(size, long - short, its - less)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("place", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--files", type=int, default=24, help="files that are made")
    parser.add_argument("--dlio", type=Path, help="python of an environment with DLIO 2.0")
    parser.add_argument("--only", default="", help="contestants whose names match this pattern")
    parser.add_argument("--out", type=Path, help="write the table there as Markdown")
    given = parser.parse_args()
    head = f"{machine()} Medians of {given.turns} turns, ranges."
    publish("Read path", head, table(whole_files(given), given.turns, given.only), given.out)


if __name__ == "__main__":
    main()
