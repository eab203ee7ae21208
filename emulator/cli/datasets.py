"""`feedrate verify` and `datasize`."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from typing import Annotated

import numpy as np
import psutil
import typer

from emulator import live
from emulator.config.storage import parse_place
from emulator.config.workload import load_workload
from emulator.dataset.manifest import MANIFEST, Dataset
from emulator.dataset.progress import Tally, shown
from emulator.dataset.sizes import needed_data
from emulator.dataset.verify import Fault, check_files, evenly_spread, extra_files
from emulator.dataset.writer import repair, repair_was_cut_off
from emulator.errors import DatasetError, SpecError
from emulator.run.comm import Comm, agreed, world
from emulator.run.shared import open_together
from emulator.storage.base import Store
from emulator.units import counted, parse_bytes, parse_rate, show_bytes, show_rate, show_seconds


def verify(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder of the dataset, or s3://...")],
    sample: Annotated[int | None, typer.Option(min=1, help="Check so many files, evenly spread.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Readers of a process; default: cores.")] = None,
    repair_: Annotated[bool, typer.Option("--repair", help="Make wrong files again.")] = False,
) -> None:
    """Find flipped bits, truncated, missing and extra files; exit status 3 when there are any."""
    comm = world()
    first = comm.rank == 0
    dataset = open_together(comm, agreed(comm, lambda: parse_place(folder)))
    files = len(dataset.manifest.names)
    indices = evenly_spread(files, sample)
    mine = indices[comm.rank :: comm.size]
    tally, size = Tally(), agreed(comm, lambda: dataset.manifest.bytes_of(mine))
    with shown("verify", tally, len(mine), size):
        found = agreed(comm, lambda: check_files(dataset, mine, threads or _cores(), tally.add))
        found += agreed(comm, lambda: extra_files(dataset, comm.rank, comm.size))
    said: list[Fault] = comm.bcast([fault for part in comm.gather(found) for fault in part])
    faults = [fault for fault in said if not fault.note]
    repeated = repeats_of(comm, dataset.store)
    if first:
        for fault in said:
            print(f"{fault.name}: {'note: ' if fault.note else ''}{fault.what}")
        print(
            f"{folder}: {len(indices)} of {counted(files, 'file')} checked, {counted(len(faults), 'fault')}"
        )
        if not dataset.checked:
            print(f"{folder}/{MANIFEST} has no checksum of its own: an older feedrate wrote it")
        if live.for_programs():
            live.answer(
                {
                    "folder": folder,
                    "checked": len(indices),
                    "files": files,
                    "faults": [{"file": fault.name, "what": fault.what} for fault in faults],
                    "notes": [{"file": fault.name, "what": fault.what} for fault in said if fault.note],
                    "repeated": repeated,
                }
            )
    if repair_ and comm.bcast(agreed(comm, lambda: first and (bool(faults) or repair_was_cut_off(dataset)))):
        faults = comm.bcast(agreed(comm, lambda: _repaired(dataset, faults, threads) if first else []))
    if faults:
        raise DatasetError(
            f"{counted(len(faults), 'file')} of {folder} {'is' if len(faults) == 1 else 'are'} wrong",
            "feedrate verify --repair makes them again, where feedrate made them",
        )


def _repaired(dataset: Dataset, faults: list[Fault], threads: int | None) -> list[Fault]:
    """Make the files of these faults again; the faults that are left. Raises DatasetError, StorageError."""
    names = [fault.name for fault in faults]
    repair(dataset, names, threads or _cores())
    wanted = set(names)
    known = {name: index for index, name in enumerate(dataset.manifest.names) if name in wanted}
    indices = np.array([known[name] for name in names if name in known], np.int64)
    checked = check_files(dataset, indices, threads or _cores(), lambda files, size: None)
    left = [fault for fault in checked if not fault.note]
    print(f"{dataset.store}: {counted(len(indices) - len(left), 'file')} made again")
    return left + extra_files(dataset)


def _cores() -> int:
    return min(16, len(os.sched_getaffinity(0)))


def repeats_of(comm: Comm, store: Store) -> dict[str, int]:
    """Why requests were repeated -> how many, of all ranks together; rank 0 says so. Collective."""
    counts: Counter[str] = Counter()
    for part in comm.gather(store.stats.snapshot().retries):
        counts.update(part)
    if counts and comm.rank == 0:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()))
        print(f"{sum(counts.values()):,} requests had to be repeated ({kinds})")
    return dict(counts)


def datasize(
    workload: Annotated[str, typer.Option("--workload", "-w", help="Name or path.")],
    accelerators: Annotated[int, typer.Option(min=1, help="Emulated accelerators in all.")],
    hosts: Annotated[int, typer.Option(min=1, help="Client hosts.")] = 1,
    host_memory: Annotated[
        str | None, typer.Option(help="Memory of one host, like 256GiB; default: this machine's.")
    ] = None,
    rate: Annotated[str, typer.Option(help="Rate of writing, for the time that it takes.")] = "1GB/s",
) -> None:
    """Files and bytes by MLPerf Storage's rule: 5 x the hosts' memory, and 500 steps an epoch."""
    if host_memory is not None and host_memory.strip().isdecimal():
        raise SpecError(f"--host-memory {host_memory} has no unit", f"write {host_memory.strip()}GiB")
    memory = parse_bytes(host_memory) if host_memory else int(psutil.virtual_memory().total)
    spec = load_workload(workload)
    size = needed_data(spec, accelerators, hosts, memory)
    speed = parse_rate(rate)
    if live.for_programs():
        live.answer({**dataclasses.asdict(size), "seconds": size.bytes / speed})
        return
    unit = "files" if size.samples == size.files else "samples"
    each = "" if unit == "files" else f" of {spec.sample.samples_per_file} samples"
    print(f"{size.files} files{each}, {show_bytes(size.bytes)}")
    print(f"  5 x {show_bytes(hosts * memory)} of memory on {hosts} hosts: {size.by_memory} {unit}")
    print(
        f"  500 steps x batch size {spec.loader.batch_size} x {accelerators} accelerators: "
        f"{size.by_steps} {unit}"
    )
    print(f"generating takes {show_seconds(size.bytes / speed)} at {show_rate(speed)}")
