"""Per-host balance of a point: which host waits more, reads less or is busier than the others."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.record.result import HostShare, Point, RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """Rates of one host during a point."""

    host: str
    ranks: int
    bytes_per_second: float
    """Bytes/s that its ranks read."""
    wait_share: float
    """Share (0 to 1) of its ranks' loop time blocked on the loader."""
    busy_share: float | None
    """Share (0 to 1) of the host's CPU time that was not idle."""
    cpu_seconds_per_gb: float | None
    """CPU seconds of its ranks for each 10^9 bytes read."""
    runqueue: float | None
    nic_bytes_per_second: float | None


def _row(name: str, share: HostShare, seconds: float) -> HostRow:
    rank_seconds = share.ranks * seconds
    return HostRow(
        host=name,
        ranks=share.ranks,
        bytes_per_second=share.bytes / seconds if seconds else 0.0,
        wait_share=min(1.0, share.wait_seconds / rank_seconds) if rank_seconds else 0.0,
        busy_share=share.busy_share,
        cpu_seconds_per_gb=share.cpu_seconds / share.bytes * 1e9 if share.bytes else None,
        runqueue=share.runqueue,
        nic_bytes_per_second=None if share.nic_bytes is None or not seconds else share.nic_bytes / seconds,
    )


def host_rows(point: Point) -> list[HostRow]:
    """The hosts of a point, the one that waits the most first."""
    names = short_names([share.host for share in point.hosts])
    found = [_row(name, share, point.seconds) for name, share in zip(names, point.hosts, strict=True)]
    return sorted(found, key=lambda row: (-row.wait_share, row.host))


def short_names(names: list[str]) -> list[str]:
    """The names without the domain that all of them share."""
    domains = {name.partition(".")[2] for name in names}
    short = [name.partition(".")[0] for name in names]
    return short if len(domains) == 1 and len(set(short)) == len(set(names)) else names


def fullest(result: RunResult) -> Point | None:
    """The point whose balance is shown: the most hosts, then the most ranks; None without points."""
    return max(result.points, key=lambda point: (len(point.hosts), point.ranks), default=None)


def shortened(found: list[HostRow], most: int) -> tuple[list[HostRow], list[HostRow], int]:
    """Head and tail of at most `most` rows together, and how many lie between them."""
    if len(found) <= most:
        return found, [], 0
    head = most * 2 // 3
    return found[:head], found[head - most :], len(found) - most
