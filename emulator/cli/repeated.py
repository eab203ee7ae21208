"""What `generate` and `verify` say of requests to an object store that had to be repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emulator.run.comm import Comm
    from emulator.storage.base import Store


def say_repeated(comm: Comm, store: Store, as_json: bool) -> None:
    """One line when there were any, of all ranks together. Collective."""
    import json
    from collections import Counter

    counts: Counter[str] = Counter()
    for part in comm.gather(store.stats.snapshot().repeated()):
        counts.update(part)
    if not counts or comm.rank:
        return
    if as_json:
        print(json.dumps({"event": "repeated", **counts}), flush=True)
    else:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()))
        print(f"{sum(counts.values()):,} requests had to be repeated ({kinds})")
