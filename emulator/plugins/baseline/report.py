"""The report of a baseline: a sentence, tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from emulator.analysis.answer import Answer
from emulator.plugins.baseline.suites import access_of
from emulator.record.result import Corner, RunResult, Side
from emulator.report.charts import Axis, Dot, Figure, Series, colour
from emulator.report.table import Cell, Column, Table, number, one_place, percent, three_digits
from emulator.report.training_figures import by_ranks, mean_demand
from emulator.report.view import marks_line
from emulator.units import counted, show_rate, show_seconds


def sides(corner: Corner) -> tuple[Side, ...]:
    return tuple(side for side in (corner.read, corner.write) if side is not None)


def iops(corner: Corner) -> float:
    """Return requests per second, reads and writes together."""
    return sum(side.iops for side in sides(corner))


def bytes_per_second(corner: Corner) -> float:
    """Return bytes per second, reads and writes together."""
    return sum(side.bytes_per_second for side in sides(corner))


def by_access(corners: Sequence[Corner]) -> dict[str, list[Corner]]:
    """Return the corners of each access pattern by name, without those of a noisy-neighbour suite."""
    by_name: dict[str, list[Corner]] = {}
    for corner in corners:
        if not corner.beside:  # those have a depth for each role, and tables of their own
            by_name.setdefault(access_of(corner), []).append(corner)
    return by_name


def maxima(corners: Sequence[Corner]) -> dict[str, Corner]:
    """Return the corner of each access pattern, by name, with the most requests per second."""
    return {access: max(depths, key=iops) for access, depths in by_access(corners).items()}


class Neighbour(NamedTuple):
    """Readers (or writers) of one block size, alone and beside the others."""

    access: str
    """Name of the access pattern, such as `4 KiB random read`."""
    alone: Side
    together: Side


def neighbours(corners: Sequence[Corner], read: bool) -> list[Neighbour]:
    """Return the readers (or the writers) of a noisy-neighbour suite by block size."""
    alone: dict[str, Side] = {}
    together: dict[str, Side] = {}
    for corner in corners:
        side = corner.read if read else corner.write
        if corner.beside and side:
            by_name = alone if corner.beside == "nothing" else together
            by_name[access_of(corner)] = side
    return [Neighbour(access, alone[access], side) for access, side in together.items() if access in alone]


def summed(pairs: Sequence[Neighbour]) -> tuple[float, float]:
    """Return the sums of bytes/s alone, and beside neighbours."""
    alone = sum(pair.alone.bytes_per_second for pair in pairs)
    return alone, sum(pair.together.bytes_per_second for pair in pairs)


def setting(result: RunResult) -> str:
    """Return the place and settings of the tool, in one line."""
    clients = counted(len(result.environment.get("clients", ())) or 1, "client")
    place = str(result.dataset.get("path", ""))
    if result.loader != "fio":
        version = " ".join(str(result.environment.get("rados", "")).split()[:3])
        return " · ".join([place, f"{result.loader}, {version}", clients])
    return " · ".join(
        [
            place,
            f"{result.environment.get('fio', 'fio')}, {result.workload.get('engine', '')}",
            "O_DIRECT" if result.storage.get("direct") else "through the page cache",
            f"{clients} x {counted(result.workload.get('jobs', 1), 'job')}",
        ]
    )


def answer(result: RunResult) -> Answer:
    """Return the measured limit of reads in bytes/s, or the share that readers keep beside writers."""
    unanswered = Answer(
        question="How fast is this storage without a training?", sentence="Nothing was measured."
    )
    if not result.baseline:
        return unanswered
    # Readers at depth 1 do not reach a storage's limit: the question is what writers take from them.
    alone, together = summed(neighbours(result.baseline, read=True))
    if alone:
        kept = f"Readers keep {percent(together / alone)} % of their throughput beside writers."
        return replace(unanswered, sentence=kept, number=together / alone, unit="of the throughput alone")
    limit = result.read_limit
    if limit is None:
        return replace(unanswered, sentence=f"{result.loader} measured no reads.")
    rate = bytes_per_second(limit)
    sentence = f"{result.loader} reads up to {show_rate(rate)} ({_where(limit)})."
    return replace(unanswered, sentence=sentence, number=rate, unit="B/s")


def _where(corner: Corner) -> str:
    jobs, clients = counted(corner.jobs, "job"), counted(corner.clients, "client")
    return f"{access_of(corner)}, queue depth {corner.depth}, {jobs}, {clients}"


def tables(result: RunResult) -> tuple[Table, ...]:
    """Return the tables: maximum of each workload, every depth, noisy neighbours."""
    every = [corner for corners in by_access(result.baseline).values() for corner in corners]
    most = list(maxima(result.baseline).values())
    swept = len(every) > len(most)
    slowest = "" if result.loader == "fio" else "; 99.99 %: the slowest request"
    candidates = [
        _corners(f"Maximum of each workload{slowest}", most),
        _corners(f"Every queue depth{slowest}", every if swept else ()),
        _neighbours("Readers at queue depth 1, alone and beside the writers", result, read=True),
        _neighbours("Writers at queue depth 8, alone and beside the readers", result, read=False),
    ]
    return tuple(table for table in candidates if table.rows)


def _corners(caption: str, corners: Sequence[Corner]) -> Table:
    """Return a table with a row for each corner. Mixed patterns have the latencies of reads / writes."""
    latencies = {
        Column("mean", show_seconds, unit="s", room=30): attrgetter("latency_mean"),
        Column("50 %", show_seconds, unit="s", room=62): attrgetter("latency_p50"),
        Column("90 %", show_seconds, unit="s", room=63): attrgetter("latency_p90"),
        Column("99 %", show_seconds, unit="s", room=40): attrgetter("latency_p99"),
        Column("99.9 %", show_seconds, unit="s", room=61): attrgetter("latency_p999"),
        Column("99.99 %", show_seconds, unit="s"): attrgetter("latency_p9999"),
    }
    columns = (
        Column("workload", align="left"),
        Column("depth"),
        Column("clients", room=64),
        Column("k IOPS"),
        Column("GB/s", three_digits),
        *latencies,
    )
    rows: list[tuple[Cell, ...]] = []
    for corner in corners:
        rates = (iops(corner) / 1e3, bytes_per_second(corner) / 1e9)
        seconds = [_latency_cell([get(side) for side in sides(corner)]) for get in latencies.values()]
        rows.append((access_of(corner), corner.depth, corner.clients, *rates, *seconds))
    return Table(caption=caption, columns=columns, rows=tuple(rows))


def _latency_cell(seconds: Sequence[float | None]) -> Cell:
    """Return the only latency as a figure, those of reads and writes as text, None if there is none."""
    known = [value for value in seconds if value is not None]
    if len(known) == 1:
        return known[0]
    return " / ".join(map(show_seconds, known)) or None


def _neighbours(caption: str, result: RunResult, read: bool) -> Table:
    pairs = neighbours(result.baseline, read)
    columns = (
        Column("", align="left"),
        Column("MB/s\nalone"),
        Column("MB/s\ntogether"),
        Column("ratio", three_digits),
        Column("99.99 %\nalone", show_seconds, unit="s"),
        Column("99.99 %\ntogether", show_seconds, unit="s"),
        Column("ratio", three_digits),
    )
    rows: list[tuple[Cell, ...]] = []
    for access, alone, together in pairs:
        before, after = alone.bytes_per_second / 1e6, together.bytes_per_second / 1e6
        latencies = alone.latency_p9999, together.latency_p9999
        slower = together.latency_p9999 / alone.latency_p9999
        rows.append((access, before, after, after / before, *latencies, slower))
    if pairs:
        before, after = summed(pairs)
        rows.append(("sum", before / 1e6, after / 1e6, after / before, "", "", ""))
    return Table(caption=caption, columns=columns, rows=tuple(rows))


def beside(main: RunResult, result: RunResult) -> tuple[tuple[Table, ...], tuple[Figure, ...]]:
    """Return tables and figures for the page of a training: the comparison, then the baseline's own."""
    return (against(main, result), *tables(result)), figures(result)


def against(training: RunResult, baseline: RunResult) -> Table:
    """Return a table of the tool's reads beside training; no rows if nothing can be compared."""
    limit, points = baseline.read_limit, by_ranks(training)
    tool = baseline.loader
    caption = f"Training beside {tool}"
    columns = (
        Column("", align="left"),
        Column("GB/s", three_digits),
        Column(f"% of {tool}", one_place),
        Column("accelerators'\nworth", three_digits),
    )
    if limit is None or not points:
        return Table(caption=caption, columns=columns, rows=())
    top = bytes_per_second(limit)
    trained = max(point.bytes_per_second for point in points)
    if trained > 1.05 * top:  # repeated runs differ by a few per cent
        caption += f": {tool} read less, so its figure is not the storage's limit"
    rates = [*_read_rates(baseline), *_training_rates(training)]
    demand = mean_demand(points)
    rows: list[tuple[Cell, ...]] = [
        (label, rate / 1e9, rate / top * 100, rate / demand if demand else None)
        for label, rate in sorted(rates, key=lambda row: -row[1])
    ]
    return Table(caption=caption, columns=columns, rows=tuple(rows))


def _read_rates(baseline: RunResult) -> Iterator[tuple[str, float]]:
    """Yield the largest bytes/s of each access pattern that only reads, with its name."""
    for corner in maxima(baseline.baseline).values():
        if corner.read and corner.read_share == 1:
            yield f"{baseline.loader}, {_where(corner)}", bytes_per_second(corner)


def _training_rates(training: RunResult) -> Iterator[tuple[str, float]]:
    """Yield the largest bytes/s of a training and those at its knee, with their names."""
    points, knee = by_ranks(training), training.knee
    most = max(points, key=lambda point: point.bytes_per_second)
    yield f"training at most, {most.ranks:,} ranks", most.bytes_per_second
    demand = mean_demand(points)
    if demand is not None and knee is not None and knee.n_au is not None:
        # At the knee every rank gets the threshold's share of its demand.
        threshold = float(training.workload.get("training", {}).get("au_threshold", 0.9))
        yield f"training at the knee, {number(knee.n_au, 3)} ranks", knee.n_au * threshold * demand


def figures(result: RunResult) -> tuple[Figure, ...]:
    """Return the measured figures of throughput and latency against queue depth."""
    drawn = (
        _over_depths(result, "sequential", "Sequential access", bytes_per_second, "B/s"),
        _over_depths(result, "random", "Random access, requests per second", iops, "IOPS"),
        _over_depths(result, "", "Latency: 99.99 % of the requests completed", _slowest, "s"),
    )
    return tuple(figure for figure in drawn if figure is not None)


def _slowest(corner: Corner) -> float:
    return max((side.latency_p9999 for side in sides(corner)), default=0.0)


def _over_depths(
    result: RunResult, pattern: str, title: str, value: Callable[[Corner], float], unit: str
) -> Figure | None:
    """Return a figure of `value` against queue depth; None without measurements.

    `pattern` chooses the accesses; all of them, on a log axis, if it is empty.
    """
    series: list[Series] = []
    for access, corners in by_access(result.baseline).items():
        if pattern in ("", corners[0].pattern):
            # Nothing completed where a storage hung; a log axis has no 0.
            dots = [Dot(corner.depth, value(corner)) for corner in corners if value(corner) > 0]
            series.append(Series(name=access, colour=colour(len(series)), dots=dots))
    if not any(line.dots for line in series):
        return None
    return Figure(
        name=f"baseline-{pattern or 'latency'}",
        title=title,
        caption="All clients together. Mixes: reads and writes together; the slower of their latencies.",
        x=Axis(title="queue depth of a job", names=True),
        y=Axis(unit=unit, log=not pattern),
        series=series,
        qualified=marks_line(result),
    )
