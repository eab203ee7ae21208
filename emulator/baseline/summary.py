"""What a baseline says: the maximum of each workload, the read limit, how much neighbours hurt. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emulator.baseline.suites import access_name
from emulator.record.result import Corner, Side


def sides(corner: Corner) -> tuple[Side, ...]:
    """Its reads and its writes, as far as there are any."""
    return tuple(side for side in (corner.read, corner.write) if side is not None)


def iops(corner: Corner) -> float:
    """Requests per second, reads and writes."""
    return sum(side.iops for side in sides(corner))


def bytes_per_second(corner: Corner) -> float:
    """Bytes per second, reads and writes."""
    return sum(side.bytes_per_second for side in sides(corner))


def name_of(corner: Corner) -> str:
    """`4 KiB random 70 % read`."""
    return access_name(corner.pattern, corner.block_bytes, corner.read_share)


def plain(corners: Sequence[Corner]) -> tuple[Corner, ...]:
    """The corners of which nobody asked what neighbours do to them."""
    return tuple(corner for corner in corners if not corner.beside)


def workloads(corners: Sequence[Corner]) -> dict[str, tuple[Corner, ...]]:
    """Name of the access pattern -> its corners by clients and depth, in the order they were run."""
    found: dict[str, list[Corner]] = {}
    for corner in plain(corners):
        found.setdefault(name_of(corner), []).append(corner)
    return {
        name: tuple(sorted(some, key=lambda corner: (corner.clients, corner.depth)))
        for name, some in found.items()
    }


def maxima(corners: Sequence[Corner]) -> dict[str, Corner]:
    """Name of the access pattern -> the corner with the most requests per second."""
    return {name: max(some, key=iops) for name, some in workloads(corners).items()}


def read_limit(corners: Sequence[Corner]) -> Corner | None:
    """The corner with the most bytes/s of those that only read, undisturbed; None: there is none."""
    reads = [
        corner
        for corner in corners
        if corner.read and corner.read_share == 1 and corner.beside in ("", "nothing")
    ]
    return max(reads, key=lambda corner: corner.read.bytes_per_second if corner.read else 0.0, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """One block size of the readers (or of the writers), alone and together."""

    name: str
    """For example `4 KiB random read`."""
    alone: Side
    together: Side

    @property
    def rate_ratio(self) -> float:
        """Bytes/s together over bytes/s alone."""
        return self.together.bytes_per_second / self.alone.bytes_per_second

    @property
    def latency_ratio(self) -> float:
        """Time within which 99.99 % completed, together over alone."""
        return self.together.latency_p9999 / self.alone.latency_p9999


def neighbours(corners: Sequence[Corner], clients: int, read: bool) -> tuple[Neighbour, ...]:
    """The readers, or the writers, of a noisy-neighbour suite at one number of clients, by block size."""
    wanted = [c for c in corners if c.beside and c.clients == clients and c.read_share == float(read)]
    alone = {c.block_bytes: c for c in wanted if c.beside == "nothing"}
    found = []
    for corner in sorted(wanted, key=lambda corner: corner.block_bytes):
        if corner.beside == "nothing" or corner.block_bytes not in alone:
            continue
        first = alone[corner.block_bytes]
        before, after = (first.read, corner.read) if read else (first.write, corner.write)
        if before and after:
            found.append(Neighbour(name=name_of(corner), alone=before, together=after))
    return tuple(found)


def summed(found: Sequence[Neighbour]) -> tuple[float, float]:
    """Bytes/s of all of them alone, and together with their neighbours."""
    return (
        sum(one.alone.bytes_per_second for one in found),
        sum(one.together.bytes_per_second for one in found),
    )
