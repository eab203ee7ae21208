"""A dataset that ranks open together: the first one of each host reads manifest and table for all."""

from __future__ import annotations

from emulator.config.storage import Place
from emulator.dataset.manifest import Dataset, open_dataset
from emulator.run.comm import Comm, agreed
from emulator.storage import open_store


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
