"""What a baseline says: the maximum of each workload, the read limit, how much neighbours hurt. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emulator.record.result import Corner, RunResult, Side
from emulator.report.rows import mean_demand, ordered
from emulator.report.view import NONE, Grid, number, percent
from emulator.satellites.baseline.suites import access_name
from emulator.units import show_rate, show_seconds


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


# ---- What fio measured, as rows of text and as one sentence; a training result on the same axis.


QUESTION = "How many accelerators can this storage feed?"


def grids(result: RunResult) -> tuple[Grid, ...]:
    """The tables of a baseline: maximum per workload, every depth, noisy neighbours."""
    found = (_maxima(result), *_depths(result), *_noisy(result))
    return tuple(grid for grid in found if grid.rows)


_HEADS = ("depth", "clients", "k IOPS", "GB/s", "mean", "99.99 %")


def _maxima(result: RunResult) -> Grid:
    rows = tuple(
        (name, f"{corner.depth}", f"{corner.clients}", *_figures(corner))
        for name, corner in maxima(result.baseline).items()
    )
    return Grid(caption="Maximum of each workload", heads=("workload", *_HEADS), rows=rows)


def _depths(result: RunResult) -> tuple[Grid, ...]:
    rows = tuple(
        (name, f"{corner.depth}", f"{corner.clients}", *_figures(corner))
        for name, corners in workloads(result.baseline).items()
        for corner in corners
    )
    slowest = "" if tool(result) == "fio" else "; 99.99 %: the slowest request"
    return (Grid(caption=f"Every queue depth{slowest}", heads=("workload", *_HEADS), rows=rows),)


def _figures(corner: Corner) -> tuple[str, str, str, str]:
    """k IOPS, GB/s, mean latency, 99.99 % latency; of a mixed pattern reads / writes."""
    found = sides(corner)
    return (
        number(iops(corner) / 1e3, 4),
        number(bytes_per_second(corner) / 1e9, 3),
        " / ".join(show_seconds(side.latency_mean) for side in found) or NONE,
        " / ".join(show_seconds(side.latency_p9999) for side in found) or NONE,
    )


def _noisy(result: RunResult) -> tuple[Grid, ...]:
    counts = sorted({corner.clients for corner in result.baseline if corner.beside})
    return tuple(_neighbours(result, count, read) for count in counts for read in (True, False))


def _neighbours(result: RunResult, clients: int, read: bool) -> Grid:
    found = neighbours(result.baseline, clients, read)
    who, depth = ("Readers", 1) if read else ("Writers", 8)
    others = "writers" if read else "readers"
    where = "1 client" if clients == 1 else f"{clients} clients"
    heads = (
        "", "MB/s\nalone", "MB/s\ntogether", "ratio", "99.99 %\nalone", "99.99 %\ntogether", "ratio",
    )  # fmt: skip
    rows = [_neighbour(one) for one in found]
    if found:
        alone, together = summed(found)
        rows.append(
            (
                "sum",
                number(alone / 1e6, 4),
                number(together / 1e6, 4),
                number(together / alone, 3),
                "",
                "",
                "",
            )
        )
    caption = f"{who} at queue depth {depth}, alone and beside the {others}, {where}"
    return Grid(caption=caption, heads=heads, rows=tuple(rows))


def _neighbour(one: Neighbour) -> tuple[str, ...]:
    return (
        one.name,
        number(one.alone.bytes_per_second / 1e6, 4),
        number(one.together.bytes_per_second / 1e6, 4),
        number(one.rate_ratio, 3),
        show_seconds(one.alone.latency_p9999),
        show_seconds(one.together.latency_p9999),
        number(one.latency_ratio, 3),
    )


def tool(result: RunResult) -> str:
    """Name of what measured a baseline: fio, or rados bench."""
    return result.loader or "fio"


def setting(result: RunResult) -> str:
    """Where and how the tool ran, in one line."""
    clients = len(result.environment.get("clients", ())) or 1
    many = f"{clients} client{'s' if clients > 1 else ''}"
    place = str(result.dataset.get("path", ""))
    if tool(result) != "fio":
        version = " ".join(str(result.environment.get("rados", "")).split()[:3])
        return " · ".join([place, f"{tool(result)}, {version}", many])
    return " · ".join(
        [
            place,
            f"{result.environment.get('fio', 'fio')}, {result.workload.get('engine', '')}",
            "O_DIRECT" if result.storage.get("direct") else "through the page cache",
            f"{many} x {result.workload.get('jobs', 1)} jobs",
        ]
    )


def answer(result: RunResult) -> str:
    """What the tool says, in one sentence."""
    found = [
        f"Readers keep {percent(together / alone)} % of their throughput beside writers."
        for count in sorted({corner.clients for corner in result.baseline if corner.beside})[-1:]
        for alone, together in [summed(neighbours(result.baseline, count, read=True))]
        if alone
    ]
    if found:
        return found[0]
    limit = read_limit(result.baseline)
    if limit is None or limit.read is None:
        return f"{tool(result)} measured no reads." if result.baseline else "Nothing was measured."
    return f"{tool(result)} reads up to {show_rate(limit.read.bytes_per_second)} ({_where(limit)})."


def _where(corner: Corner) -> str:
    clients = "1 client" if corner.clients == 1 else f"{corner.clients} clients"
    return f"{name_of(corner)}, queue depth {corner.depth}, {corner.jobs} jobs, {clients}"


def against(training: RunResult, baseline: RunResult) -> Grid:
    """What fio (or another tool) read and what training reached; no rows where nothing can be compared."""
    limit, points = read_limit(baseline.baseline), ordered(training)
    name = tool(baseline)
    caption = f"Training beside {name}"
    heads = ("", "GB/s", f"% of {name}", "accelerators'\nworth")
    if limit is None or limit.read is None or not points:
        return Grid(caption=caption, heads=heads, rows=())
    one, top = mean_demand(points), limit.read.bytes_per_second
    reads = [corner for corner in maxima(baseline.baseline).values() if corner.read_share == 1]
    rates = [(f"{name}, {_where(corner)}", corner.read.bytes_per_second) for corner in reads if corner.read]
    most = max(points, key=lambda point: point.bytes_per_second)
    if most.bytes_per_second > 1.05 * top:
        caption += f": {name} read less, so its figure is not the storage's limit"
    rates.append((f"training at most, {most.ranks:,} ranks", most.bytes_per_second))
    rates += _at_knee(training, one)
    rows = sorted(((name, *_shares(rate, top, one)) for name, rate in rates), key=lambda row: -float(row[-1]))
    return Grid(caption=caption, heads=heads, rows=tuple(row[:-1] for row in rows))


def _at_knee(training: RunResult, one: float | None) -> list[tuple[str, float]]:
    """Bytes/s at the knee: its ranks, each at the threshold's share of what it asks for."""
    knee = training.knee
    if one is None or knee is None or knee.n_au is None:
        return []
    threshold = float(training.workload.get("training", {}).get("au_threshold", 0.9))
    return [(f"training at the knee, {number(knee.n_au, 3)} ranks", knee.n_au * threshold * one)]


def _shares(rate: float, top: float, one: float | None) -> tuple[str, str, str, str]:
    """GB/s, share of fio's limit, ranks that the rate feeds; and the rate itself, to sort by."""
    return (number(rate / 1e9, 3), percent(rate / top), number(rate / one, 3) if one else NONE, str(rate))
