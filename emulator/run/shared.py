"""The first rank of each host opens the dataset and tells the host's memory, for all of its ranks."""

from __future__ import annotations

import socket
from collections import Counter

from emulator.config.storage import Place
from emulator.dataset.manifest import Dataset, open_dataset
from emulator.record.machine import memory_bytes
from emulator.run.comm import Comm, agreed
from emulator.storage import open_store
from emulator.storage.base import Store


def open_together(comm: Comm, place: Place) -> Dataset:
    """Open the dataset at `place` on every rank; if one cannot, all end. Collective."""
    # Not a mapped table: its pages counted as each rank's memory, 1.3 MB per access, and a failing storage
    # ended the rank by SIGBUS.
    node = comm.node()
    own = agreed(comm, lambda: open_dataset(place) if node.rank == 0 else None)
    manifest, rows, table = node.bcast(own and (own.manifest, own.rows, own.table))
    store = agreed(comm, lambda: own.store if own else open_store(place))
    return own or Dataset(store, manifest, rows, table)


def hosts_of(comm: Comm) -> tuple[list[str], dict[str, int]]:
    """Return the host of every rank and, on rank 0, the bytes of memory of each host. Collective."""
    hosts = comm.hosts()
    told = comm.gather((socket.gethostname(), memory_bytes()) if comm.node().rank == 0 else None)
    return hosts, dict(filter(None, told))


def repeats_of(comm: Comm, store: Store) -> dict[str, int]:
    """Count repeated requests of all ranks together: reason -> how many. Rank 0 prints them. Collective."""
    counts: Counter[str] = Counter()
    for part in comm.gather(store.stats.snapshot().retries):
        counts.update(part)
    if counts and comm.rank == 0:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()))
        print(f"{sum(counts.values()):,} requests had to be repeated ({kinds})")
    return dict(counts)
