"""Which ranks of the world are active at a process count: spread over hosts, pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def activation_order(hosts: Sequence[str]) -> list[int]:
    """World ranks in the order in which they become active, given each world rank's host.

    The first rank of every host, then the second of every host, and so on: n active ranks are spread
    over the hosts as evenly as their slots allow. World rank 0 always comes first.
    """
    seen: Counter[str] = Counter()
    place = []
    for rank, host in enumerate(hosts):
        place.append((seen[host], rank))
        seen[host] += 1
    return [rank for _, rank in sorted(place)]
