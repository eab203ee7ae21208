"""Work that the first rank of each host does for all: open the dataset, and read the host's memory."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emulator import live
from emulator.config.storage import Place
from emulator.dataset.manifest import Dataset, open_dataset
from emulator.launch.launched import started_by_mpi
from emulator.record.machine import describe_machine, describe_mount, memory_bytes
from emulator.run.comm import Comm, agreed
from emulator.storage import open_store
from emulator.storage.base import Store


def open_together(comm: Comm, place: Place) -> Dataset:
    """Open the dataset at `place` on every rank; all end if one cannot. Collective."""
    # The table is not mapped: its pages counted as memory of each rank, 1.3 MB per access, and a failing
    # storage killed the rank with SIGBUS.
    node = comm.node()
    own = agreed(comm, lambda: open_dataset(place) if node.rank == 0 else None)
    manifest, rows, table = node.bcast(own and (own.manifest, own.rows, own.table))
    store = agreed(comm, lambda: own.store if own else open_store(place))
    return own or Dataset(store, manifest, rows, table)


def hosts_of(comm: Comm) -> tuple[list[str], dict[str, int]]:
    """Return the host of every rank and, on rank 0, the bytes of memory of each host. Collective."""
    hosts = comm.hosts()
    memories = comm.gather((socket.gethostname(), memory_bytes()) if comm.node().rank == 0 else None)
    return hosts, dict(filter(None, memories))


def describe_run(hosts: Sequence[str], memory: Mapping[str, int], out: Path) -> dict[str, Any]:
    """Describe this machine, the start of a run that writes to `out`, and what `hosts_of` returned."""
    return {
        **describe_machine(),
        "ranks_started": len(hosts),
        "folder": str(Path.cwd()),
        "mpirun": started_by_mpi() and not live.launched(),
        "hosts": sorted(set(hosts)),
        "memory_of_hosts": dict(memory),
        "out_mount": describe_mount(out),
    }


def repeats_of(comm: Comm, store: Store) -> dict[str, int]:
    """Return the number of retried requests of all ranks by reason; rank 0 prints them. Collective."""
    counts: Counter[str] = Counter()
    for part in comm.gather(store.stats.snapshot().retries):
        counts.update(part)
    if counts and comm.rank == 0:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()))
        print(f"{sum(counts.values()):,} requests had to be repeated ({kinds})")
    return dict(counts)
