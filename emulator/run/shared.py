"""A dataset that ranks open together: the first one of each host reads manifest and table for all."""

from __future__ import annotations

from collections import Counter

from emulator.config.storage import Place
from emulator.dataset.manifest import Dataset, open_dataset
from emulator.run.comm import Comm, agreed
from emulator.storage import open_store
from emulator.storage.base import Store


def open_together(comm: Comm, place: Place) -> Dataset:
    """The dataset at `place` on every rank; where one cannot, all end. Collective.

    The others look at nothing but what they ask for: a file of the dataset, or one that the first rank of
    the host holds in memory.
    """
    node = comm.node()
    own = agreed(comm, lambda: open_dataset(place) if node.rank == 0 else None)
    manifest, rows, table, checked = node.bcast(own and (own.manifest, own.rows, own.table, own.checked))
    store = agreed(comm, lambda: own.store if own else open_store(place))
    return own or Dataset(store, manifest, rows, table, checked)


def repeats_of(comm: Comm, store: Store) -> dict[str, int]:
    """Count repeated requests of all ranks together: reason -> how many. Rank 0 says so. Collective."""
    counts: Counter[str] = Counter()
    for part in comm.gather(store.stats.snapshot().retries):
        counts.update(part)
    if counts and comm.rank == 0:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()))
        print(f"{sum(counts.values()):,} requests had to be repeated ({kinds})")
    return dict(counts)
