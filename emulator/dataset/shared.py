"""What ranks do together with a dataset: open it, and count the requests that were repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from emulator.config.storage import Place
from emulator.dataset.manifest import Dataset, open_dataset
from emulator.errors import DatasetError, FeedrateError
from emulator.launch.comm import Comm, agreed
from emulator.storage import open_store
from emulator.storage.base import Store


def open_together(comm: Comm, place: Place) -> Dataset:
    """Open the dataset at `place` on every rank; all end if one cannot, or finds another dataset there.

    Collective.
    """
    # The table is not mapped: its pages counted as memory of each rank, 1.3 MB per access, and a failing
    # storage killed the rank with SIGBUS.
    node, hosts = comm.node(), comm.hosts()
    host = hosts[comm.rank] if len(set(hosts)) > 1 else ""
    own = agreed(comm, lambda: _open_on(host, place) if node.rank == 0 else None)
    identities = comm.gather(own and (host, _identity(own)))
    agreed(comm, lambda: _require_one(place, dict(filter(None, identities))))
    manifest, rows, table = node.bcast(own and (own.manifest, own.rows, own.table))
    store = agreed(comm, lambda: own.store if own else open_store(place))
    return own or Dataset(store, manifest, rows, table)


def _open_on(host: str, place: Place) -> Dataset:
    """Open the dataset; errors begin with the name of `host`, if there are several."""
    try:
        return open_dataset(place)
    except FeedrateError as error:
        raise type(error)(f"host {host}: {error.what}" if host else error.what, error.hint) from None


def _identity(dataset: Dataset) -> tuple[str, ...]:
    """Return what two datasets share only if they are the same: the table's name has its checksum."""
    manifest = dataset.manifest
    return dataset.table, manifest.identity, manifest.format, str(manifest.samples_per_file)


def _require_one(place: Place, identities: Mapping[str, tuple[str, ...]]) -> None:
    """Raise DatasetError, which names the hosts, unless all hosts have the same dataset."""
    usual = [identity for identity, _ in Counter(identities.values()).most_common(1)]
    others = [host for host, identity in identities.items() if identity not in usual]
    if others:
        raise DatasetError(
            f"{place} on host {', '.join(others[:5])} is another dataset than on the other hosts",
            "mount the same storage on all hosts",
        )


def repeats_of(comm: Comm, store: Store) -> dict[str, int]:
    """Return the number of retried requests of all ranks by reason; rank 0 prints them. Collective."""
    counts: Counter[str] = Counter()
    for part in comm.gather(store.stats.snapshot().retries):
        counts.update(part)
    if counts and comm.rank == 0:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()))
        print(f"{sum(counts.values()):,} requests had to be repeated ({kinds})")
    return dict(counts)
