"""What the loaders torch and ring cost beside a plain DataLoader with as many workers and the same files.

    python benchmarks/read_path_torch.py FOLDER [--turns 5] [--batches 400] [--out results/read_path_torch.md]

The files lie in the page cache, samples of the workload's kind, about 4 MB a batch, eight workers. The plain
one reads each sample with one os.preadv into a tensor of its own, which default_collate stacks. They take
turns, each with workers that have read 100 batches before; the table has medians and, in brackets, the range.
CPU is user + system seconds of this process and its workers.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import psutil
import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).parent))

from read_path import machine
from read_path_contest import Turn, arguments, in_turns, publish, rows

from emulator.config.workload import Workload, load_workload
from emulator.dataset.manifest import Manifest
from emulator.loader import make_loader
from emulator.order import EpochPlan, RankPlan
from emulator.run.selftest import ram_files
from emulator.storage.base import TimedStorage
from emulator.storage.posix import PosixStorage

BATCH_BYTES = 4_000_000
WARM_BATCHES = 100


class Rows(Dataset[torch.Tensor]):
    """Stretches of files, as long as a sample."""

    def __init__(self, paths: list[str], sample: int) -> None:
        self.places = [
            (path, at) for path in paths for at in range(0, Path(path).stat().st_size - sample + 1, sample)
        ]
        self.sample = sample

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> torch.Tensor:
        path, at = self.places[index % len(self.places)]
        data = torch.empty(self.sample, dtype=torch.uint8)
        file = os.open(path, os.O_RDONLY)
        os.preadv(file, (data.numpy().data,), at)
        os.close(file)
        return data


@contextmanager
def ours(
    workload: Workload, files: Manifest, folder: Path, batch: int, *, loader: str
) -> Iterator[Iterator[int]]:
    """The bytes of feedrate's batches."""
    storage = TimedStorage(PosixStorage(folder, direct=False, cache="warm"))
    spec = replace(workload.loader, batch_size=batch)
    access = replace(workload.access, refill="persistent")
    made = make_loader(loader, spec, storage, files, access=access)
    plan = EpochPlan(
        samples=files.samples, ranks=1, batch_size=batch,
        samples_per_file=files.samples_per_file, access=access,
    )  # fmt: skip
    rank = RankPlan(plan=plan, seed=0, epochs=10**3)
    yield (one.bytes for epoch in range(10**3) for one in made.read(rank.portions(epoch)))
    made.close()


@contextmanager
def plain(workload: Workload, files: Manifest, folder: Path, batch: int) -> Iterator[Iterator[int]]:
    """The bytes of PyTorch's."""
    rows = Rows([str(folder / name) for name in files.names], workload.sample_read.bytes_mean)
    spec = workload.loader
    loader = DataLoader(
        rows, batch_size=batch, num_workers=spec.workers, multiprocessing_context="forkserver",
        prefetch_factor=-(-spec.prefetch // spec.workers),
    )  # fmt: skip
    yield (one.numel() for one in loader)


def turn(reader: Callable[[], AbstractContextManager[Iterator[int]]], batches: int) -> Turn:
    """Start the reader and read so many batches, after some that nobody times."""
    with reader() as sizes:
        sum(islice(sizes, WARM_BATCHES))
        begin, cpu = time.monotonic(), _cpu()
        size = sum(islice(sizes, batches))
        seconds = time.monotonic() - begin
        return Turn(size / seconds / 1e9, (_cpu() - cpu) / size * 1e9)


def _cpu() -> float:
    me = psutil.Process()
    times = [one.cpu_times() for one in (me, *me.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--only", default="", help="contestants with this in their names")
    options = parser.parse_args()
    lines = [
        f"# The torch loader, {time.strftime('%Y-%m-%d')}",
        "",
        f"`python {' '.join(sys.argv)}`",
        "",
        f"{options.batches} batches of about 4 MB, page cache, eight workers; medians of {options.turns} and "
        f"ranges, in turns. {machine()} PyTorch {torch.__version__}.",
        "",
        "| workload | loader | GB/s | CPU-s/GB | CPU of the plain DataLoader / its own |",
        "|---|---|---|---|---|",
    ]
    for name in ("retinanet-b200", "flux-b200"):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            workload, place = load_workload(name), Path(folder)
            files = ram_files(place, workload)
            batch = -(-BATCH_BYTES // workload.sample_read.bytes_mean)
            given = (workload, files, place, batch)
            readers = {
                "feedrate torch": partial(ours, *given, loader="torch"),
                "plain DataLoader": partial(plain, *given),
            }
            chosen = {one: reader for one, reader in readers.items() if options.only in one}
            taken = in_turns(
                {one: partial(turn, reader, options.batches) for one, reader in chosen.items()}, options.turns
            )
        lines += rows(name, taken, ("plain DataLoader",))
    publish(lines, options.out)


if __name__ == "__main__":
    main()
