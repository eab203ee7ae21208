"""What small requests cost: the direct loader, a plain loop of preadv in one Python thread, and fio.

    python benchmarks/read_path_sizes.py FOLDER [--turns 5] [--seconds 1] [--out results/read_path_sizes.md]

All read the same files, which lie in the page cache, one rank or one job. They take turns; the table has
medians and, in brackets, the range. CPU is user + system seconds: of this process for the first two, for fio
what it says of its job.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from read_path import machine
from read_path_contest import Turn, arguments, in_turns, publish, rows

from emulator.config.workload import AccessSpec, load_workload
from emulator.loader import make_loader
from emulator.order import EpochPlan, RankPlan
from emulator.plugins.baseline.fio import fio_environment
from emulator.run.selftest import ram_files
from emulator.storage.base import TimedStorage
from emulator.storage.posix import PosixStorage, aligned_buffer

Contestant = Callable[[float], Turn]
"""Reads for so many seconds."""


@dataclass(frozen=True)
class Case:
    """One size of requests."""

    title: str
    workload: str
    request: int
    """Bytes; 0: a file."""
    access: AccessSpec | None = None
    """None: the workload's."""


CASES = (
    Case("24 kB column chunks", "dlrm-b200", 24 * 1024),
    Case("115 kB records", "resnet50-a100", 114_747, AccessSpec()),
    Case("323 kB files, opened and closed", "retinanet-b200", 0),
)


@contextmanager
def contestants(case: Case, folder: Path) -> Iterator[dict[str, Contestant]]:
    """The three, over files of their own."""
    workload = load_workload(case.workload)
    files = ram_files(folder, workload)
    paths = [folder / name for name in files.names]
    request = case.request or paths[0].stat().st_size
    access = case.access or workload.access
    batch = max(1, min(workload.loader.batch_size, files.samples // 4))
    storage = TimedStorage(PosixStorage(folder, direct=False, cache="warm"))
    loader = make_loader("direct", replace(workload.loader, batch_size=batch), storage, files, access=access)
    plan = EpochPlan(
        samples=files.samples,
        ranks=1,
        batch_size=batch,
        samples_per_file=files.samples_per_file,
        access=access,
    )
    batches = loader.read(RankPlan(plan=plan, seed=0, epochs=10**9).portions(0))

    def ours(seconds: float) -> Turn:
        return _timed(lambda: next(batches).bytes, seconds)

    buffer = aligned_buffer(2**21)
    places = [
        [(at, request) for at in range(0, path.stat().st_size - request + 1, request)] for path in paths
    ]
    turns = cycle(zip(paths, places, strict=True))

    def plain(seconds: float) -> Turn:
        def one_file() -> int:
            path, mine = next(turns)
            file = os.open(path, os.O_RDONLY)
            done = sum(os.preadv(file, (buffer[:length],), at) for at, length in mine)
            os.close(file)
            return done

        return _timed(one_file, seconds)

    yield {
        "feedrate direct": ours,
        "plain os.preadv": plain,
        "fio psync": lambda seconds: _fio(paths, request, seconds),
    }
    loader.close()


def _timed(some: Callable[[], int], seconds: float) -> Turn:
    some()
    begin, cpu, size = time.monotonic(), time.process_time(), 0
    while time.monotonic() - begin < seconds:
        size += some()
    return Turn(size / (time.monotonic() - begin) / 1e9, (time.process_time() - cpu) / size * 1e9)


def _fio(paths: list[Path], request: int, seconds: float) -> Turn:
    """One job, which goes through the files one after the other, one of them open at a time."""
    lines = [
        "[job]", "ioengine=psync", "rw=read", f"bs={request}", "thread=1", "iomem_align=2m", "invalidate=0",
        "time_based=1", f"runtime={round(seconds * 1000)}ms", "openfiles=1", "file_service_type=sequential",
        "allow_file_create=0", f"filename={':'.join(path.name for path in paths)}",
    ]  # fmt: skip
    with tempfile.NamedTemporaryFile("w", suffix=".fio") as job:
        job.write("\n".join(lines) + "\n")
        job.flush()
        command = ["fio", "--output-format=json", job.name]
        done = subprocess.run(
            command, cwd=paths[0].parent, capture_output=True, text=True, env=fio_environment()
        )
        if done.returncode:
            sys.exit(f"fio: {done.stderr}{done.stdout}")
    (told,) = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    spent = (told["usr_cpu"] + told["sys_cpu"]) / 100 * told["job_runtime"] / 1000
    size = told["read"]["io_bytes"]
    return Turn(size / told["read"]["runtime"] / 1e6, spent / size * 1e9)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    lines = [
        f"# Small requests, {time.strftime('%Y-%m-%d')}",
        "",
        f"`python {' '.join(sys.argv)}`",
        "",
        f"Page cache, one rank or one job; medians of {options.turns} and ranges, in turns. {machine()}",
        "",
        "| requests | reader | GB/s | CPU-s/GB | CPU of fio / its own | CPU of plain os.preadv / its own |",
        "|---|---|---|---|---|---|",
    ]
    for case in CASES:
        with (
            tempfile.TemporaryDirectory(dir=options.folder) as folder,
            contestants(case, Path(folder)) as found,
        ):
            taken = in_turns(
                {name: partial(read, options.seconds) for name, read in found.items()}, options.turns
            )
        lines += rows(case.title, taken, ("fio psync", "plain os.preadv"), cpu=3)
    publish(lines, options.out)


if __name__ == "__main__":
    main()
