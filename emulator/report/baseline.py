"""What fio measured, as rows of text and as one sentence; a training result on the same axis."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.baseline.summary import (
    Neighbour,
    bytes_per_second,
    iops,
    maxima,
    name_of,
    neighbours,
    read_limit,
    sides,
    summed,
    workloads,
)
from emulator.record.result import Corner, RunResult
from emulator.report.frames import mean_demand, ordered
from emulator.report.view import NONE, number, percent
from emulator.units import show_rate, show_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table: heads and rows of text; the first column is words, the others are figures."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


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
    return (
        number(rate / 1e9, 3),
        percent(rate / top),
        number(rate / one, 3) if one else NONE,
        str(rate),
    )
