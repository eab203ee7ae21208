"""How fast the direct loader reads, beside fio and a plain Python loop, on the same files, in turns.

    python benchmarks/read_path.py FOLDER [--cases 24kB,4kB] [--turns 5] [--before PYTHON] [--out FILE]

Makes the datasets of the cases in FOLDER. One rank; every contestant reads all files of a case once a turn in
shuffled order, at its faster queue depth of a first round. CPU is user + system time: fio's as
fio reports it. PYTHON is that of an environment with another feedrate, to compare with. Medians and ranges of
the turns; `/ fio` compares with the fio engine that was the fastest in the median, turn by turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from processes import Files, feedrate, machine, publish, spread, table_line

from emulator.config.workload import AccessSpec, load_workload
from emulator.dataset.manifest import Manifest, read_manifest
from emulator.loader import make_loader
from emulator.order import EpochPlan, RankPlan
from emulator.storage.posix import PosixStorage, aligned_buffer

BATCH = 400
RECIPE = """name = "same"
title = "files of one size"
format = "bytes"
payload = "incompressible"

[size]
distribution = "fixed"
shape = "bytes"
bytes_mean = {bytes}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """Files that all contestants read."""

    name: str
    bytes: int
    """Bytes of a file, which is a sample: whole blocks, because fio reads nothing else with O_DIRECT."""
    files: int
    direct: bool = True
    depths: tuple[int, ...] = (4, 64)


CASES = (
    Case("4kB", 4096, 30_000),
    Case("24kB", 24_576, 30_000),
    Case("115kB", 114_688, 10_000),
    Case("323kB", 323_584, 4_000),
    Case("cached", 24_576, 30_000, direct=False, depths=(1,)),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One pass over the files."""

    rate: float
    """Samples per second."""
    cpu: float
    """Microseconds of CPU a sample."""


Contestant = Callable[[int], Turn]
"""Reads the files at a queue depth."""


def read_once(case: Case, folder: Path, depth: int) -> Turn:
    """Read the dataset with the direct loader, after a few batches that start it."""
    samples, size = read_manifest(folder), min(BATCH, max(4, case.files // 16))
    spec = replace(load_workload("unet3d-a100").loader, batch_size=size, workers=depth, prefetch=8)
    spec, access = replace(spec, refill="never"), AccessSpec()
    storage = PosixStorage(folder, direct=case.direct, cache="cold" if case.direct else "warm")
    plan = EpochPlan(samples=samples.samples, ranks=1, batch_size=size, access=access)
    with closing(make_loader("direct", spec, storage, samples, access=access)) as loader:
        batches = iter(loader.read(RankPlan(plan=plan, seed=0, epochs=2).portions(0)))
        for _ in range(4):
            next(batches)
        begin, cpu, count = time.monotonic(), time.process_time(), 0
        for _ in range(plan.steps):
            count += next(batches).samples
        return Turn(count / (time.monotonic() - begin), (time.process_time() - cpu) / count * 1e6)


def by_feedrate(case: Case, folder: Path, engine: str, python: str) -> Contestant:
    def read(depth: int) -> Turn:
        words = [python, __file__, str(folder), "--child", case.name, "--depth", str(depth)]
        environment = {**os.environ, "FEEDRATE_READS": engine, "PYTHONPATH": str(Path(__file__).parent)}
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        return Turn(**json.loads(done.stdout))

    return read


def by_loop(case: Case, files: Files) -> Contestant:
    """Threads that open, preadv and close, and nothing else."""
    flags = os.O_RDONLY | os.O_DIRECT * case.direct

    def read_some(paths: Sequence[Path]) -> None:
        buffer = aligned_buffer(case.bytes)
        for path in paths:
            fd = os.open(path, flags)
            os.preadv(fd, (buffer,), 0)
            os.close(fd)

    def read(depth: int) -> Turn:
        threads = [threading.Thread(target=read_some, args=(files.paths[n::depth],)) for n in range(depth)]
        begin, cpu, count = time.monotonic(), time.process_time(), case.files
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return Turn(count / (time.monotonic() - begin), (time.process_time() - cpu) / count * 1e6)

    return read


def by_fio(case: Case, folder: Path, files: Files, engine: str) -> Contestant:
    """fio: `depth` threads of psync, or two threads with half of the depth each."""
    links = folder.with_name(folder.name + ".fio")

    def read(depth: int) -> Turn:
        jobs = min(depth if engine == "psync" else 2, depth, case.files)
        each = case.files // jobs
        for job in range(jobs):
            for number in range(each):
                link = links / f"{jobs}.{job}.{number}"
                if not link.exists():
                    links.mkdir(exist_ok=True)
                    link.hardlink_to(files.paths[job * each + number])
        lines = [
            "[global]", f"ioengine={engine}", f"direct={int(case.direct)}", "thread=1", "invalidate=0",
            "iomem_align=2m", f"bs={case.bytes}", f"iodepth={1 if engine == 'psync' else depth // jobs}",
            f"filename_format={jobs}.$jobnum.$filenum", f"nrfiles={each}", f"openfiles={2 * depth}",
            "allow_file_create=0", f"filesize={case.bytes}", f"numjobs={jobs}",
            "file_service_type=sequential", "rw=read", f"io_size={each * case.bytes}", "[job]",
        ]  # fmt: skip
        environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        with tempfile.NamedTemporaryFile("w", suffix=".fio") as job_file:
            job_file.write("\n".join(lines) + "\n")
            job_file.flush()
            command = ["fio", "--output-format=json", job_file.name]
            done = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, cwd=links, env=environment
            )
        groups = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
        count = sum(group["read"]["io_bytes"] for group in groups) / case.bytes
        cpu = sum(
            (group["usr_cpu"] + group["sys_cpu"]) / 100 * group["job_runtime"] / 1000 for group in groups
        )
        return Turn(count / max(group["read"]["runtime"] for group in groups) * 1000, cpu / count * 1e6)

    return read


def contestants(case: Case, folder: Path, manifest: Manifest, before: str) -> dict[str, Contestant]:
    files = Files.of(manifest, folder)
    # In a shuffled order, as the loader's: neighbours on the disk are faster.
    shuffled = np.random.default_rng(1).permutation(len(files.paths))
    files = replace(files, paths=tuple(files.paths[number] for number in shuffled))
    if not case.direct:
        files.warm()
    found: dict[str, Contestant] = {
        f"fio {engine}": by_fio(case, folder, files, engine) for engine in ("psync", "libaio", "io_uring")
    }
    found["Python loop"] = by_loop(case, files)
    for engine, name in (("io_uring", "io_uring"), ("threads", "C threads"), ("python", "Python")):
        if engine != "io_uring" or case.direct:
            found[f"feedrate, {name}"] = by_feedrate(case, folder, engine, sys.executable)
    if before:
        found["feedrate before"] = by_feedrate(case, folder, "", before)
    return found


def table(place: Path, cases: Sequence[Case], turns: int, before: str) -> Iterator[str]:
    yield "| samples | reader | depth | samples/s | / fio | CPU us a sample | / fio |"
    yield "|---" * 7 + "|"
    for case in cases:
        readers = contestants(case, *_made(case, place), before)
        first = {name: {depth: read(depth) for depth in case.depths} for name, read in readers.items()}
        depths = {name: max(found, key=lambda d, f=found: f[d].rate) for name, found in first.items()}
        taken: dict[str, list[Turn]] = {name: [] for name in readers}
        for _ in range(turns):
            for name, read in readers.items():
                taken[name].append(read(depths[name]))
        rates = {name: statistics.median(turn.rate for turn in passes) for name, passes in taken.items()}
        best = max((name for name in rates if name.startswith("fio")), key=lambda name: rates[name])
        for name, passes in taken.items():
            pairs = list(zip(passes, taken[best], strict=True))
            faster = spread([mine.rate / theirs.rate for mine, theirs in pairs])
            dearer = spread([mine.cpu / theirs.cpu for mine, theirs in pairs if theirs.cpu])
            figures = spread([turn.rate for turn in passes], 0), spread([turn.cpu for turn in passes], 1)
            yield table_line(case.name, name, str(depths[name]), figures[0], faster, figures[1], dearer)


def _made(case: Case, place: Path) -> tuple[Path, Manifest]:
    folder = place / f"{case.bytes}x{case.files}"
    if not (folder / "manifest.json").exists():
        recipe = place / "recipe.toml"
        place.mkdir(exist_ok=True)
        recipe.write_text(RECIPE.format(bytes=case.bytes))
        words = feedrate("generate", folder, "--recipe", recipe, "--files", case.files)
        subprocess.run(words, check=True, stdout=sys.stderr)
    return folder, read_manifest(folder)


def main(
    place: Path,
    cases: str = ",".join(case.name for case in CASES),
    turns: int = 5,
    before: str = "",
    out: Path | None = None,
    child: Annotated[str, typer.Option(hidden=True)] = "",
    depth: Annotated[int, typer.Option(hidden=True)] = 1,
) -> None:
    """Let all contestants read some cases; `before` is the python of an environment with another feedrate."""
    if child:
        case = next(case for case in CASES if case.name == child)
        print(json.dumps(asdict(read_once(case, place, depth))))
        return
    chosen = [case for case in CASES if case.name in cases.split(",")]
    head = f"{machine()} Medians of {turns} turns, ranges."
    publish("Read path", head, table(place, chosen, turns, before), out)


if __name__ == "__main__":
    typer.run(main)
