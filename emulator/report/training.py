"""A result of training (`run`, `sweep`, `imported`): its answer, its tables and its cards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from emulator.analysis.answer import answer_of
from emulator.analysis.starved import CAUSES
from emulator.record.result import HostShare, Point, RunResult, Starved
from emulator.report.charts import Figure
from emulator.report.table import (
    Cell,
    Column,
    Table,
    one_place,
    scaled,
    three_digits,
    three_places,
    two_digits,
)
from emulator.report.training_figures import FIGURES, by_ranks, computes, limit_name, mean_demand
from emulator.report.view import notes, shape_of
from emulator.units import show_bytes, show_rate, show_seconds

STARVED = 0.05
"""Share of the time that accelerators have to lose before the table says what to."""


def job_samples(result: RunResult) -> float:
    """Return how many samples of a recorded job one sample of its replay is (a file, a row group); else 1."""
    return float(result.workload.get("job", {}).get("samples", 1.0))


answer = answer_of


def setting(result: RunResult) -> str:
    """Describe the measurement in one line: dataset, storage, loader."""
    parts = []
    if result.dataset.get("path"):
        size = f" ({show_bytes(result.dataset['bytes'])})" if result.dataset.get("bytes") else ""
        parts.append(f"{result.dataset['path']}{size}")
    shaped = result.storage.get("shaped_rate") is not None
    parts.append(shape_of(result.storage) if shaped else f"{result.storage.get('cache', 'unknown')} cache")
    parts.append(f"{result.loader} loader{_how(result.environment.get('reads'))}")
    if demand := _demand(result):
        parts.append(demand)
    return " · ".join(parts)


def _demand(result: RunResult) -> str:
    """Say what one process asks for; empty if it is not known."""
    demand = mean_demand(by_ranks(result))
    batch = result.workload.get("loader", {}).get("batch_size")
    seconds = result.workload.get("accelerator", {}).get("step_seconds")
    if demand is None or batch is None or seconds is None:
        return ""
    job = job_samples(result)
    samples = "samples" if job == 1 else "of the job's samples"
    step = f"{batch * job:g} {samples} every {show_seconds(float(seconds))}"
    return f"one process asks for {show_rate(demand)}, {step}"


def _how(reads: Mapping[str, Any] | None) -> str:
    """Describe how samples are read, by the environment of a result."""
    if not reads:
        return ""
    size, ahead = show_bytes(reads["request_bytes"]), reads["read_ahead_bytes"]
    if ahead and not reads["direct"]:
        size = f"read-ahead {show_bytes(ahead)}"
    engine = {"io_uring": ", io_uring", "python": ", by Python"}.get(reads.get("engine") or "", "")
    return f" ({reads['call']}, {size}{engine})"


def figures(result: RunResult) -> tuple[Figure, ...]:
    drawn = [figure(result) for figure in FIGURES]
    return tuple(figure for figure in drawn if figure is not None)


def beside(main: RunResult, result: RunResult) -> tuple[tuple[Table, ...], tuple[Figure, ...]]:
    """Return nothing: `compare` shows two trainings beside each other."""
    return (), ()


def tables(result: RunResult) -> tuple[Table, ...]:
    """The points, the hosts of the largest, the latency of requests."""
    tables = [points_table(result), latency_table(result)]
    if result.points:
        tables.insert(1, hosts_table(result))
    return tuple(table for table in tables if table.rows)


def points_table(result: RunResult) -> Table:
    """One row a point, by rank count, repeats in the order they were run."""
    letter_of = {note.name: note.letter for note in notes(result)}
    points = sorted(result.points, key=lambda point: point.ranks)
    job = job_samples(result)
    rows = []
    for point in points:
        letters = sorted({letter_of[flag.name] for flag in point.flags})
        rows.append((*_rates(point, job), *_utilization(point), " ".join(letters)))
    columns = (
        Column("ranks"),
        Column("samples/s" if job == 1 else "the job's\nsamples/s", room=70),
        Column("files or\nparts/s", room=90),
        Column("reads/s", room=100),
        Column("GB/s", three_digits),
        Column("MB/s\nper rank"),
        Column("AU %", one_place),
        Column("AU %,\npublished", one_place),
        Column("samples/s,\npublished", room=90),
        Column("X/\nX_ideal", three_places),
        Column("bound by", align="left", room=20),
        Column("starved by", align="fold", room=100),
        Column("notes", align="fold"),
    )
    flagged = frozenset(place for place, point in enumerate(points) if point.flags)
    return Table(caption="", columns=columns, rows=tuple(rows), flagged=flagged).without_empty_columns()


def _rates(point: Point, job: float) -> tuple[Cell, ...]:
    """The columns to `MB/s per rank`. Of a recorded job also the replay's own samples, and its reads."""
    replayed = job != 1
    return (
        point.ranks,
        point.samples_per_second * job,
        point.samples_per_second if replayed else "",
        sum(point.read_latency.values()) / max(1e-9, point.seconds) if replayed else "",
        point.bytes_per_second / 1e9,
        point.bytes_per_second / point.ranks / 1e6,
    )


def _utilization(point: Point) -> tuple[Cell, ...]:
    """The columns from `AU %` on, without the notes."""
    au, x_ideal = (point.au, point.x_ideal) if computes(point) else (None, None)
    return (
        scaled(au, 100),
        scaled(point.au_published, 100),
        point.samples_per_second_published,
        x_ideal,
        limit_name(point),
        starved_by(point, point.starved),
    )


PLAIN = ("samples_per_second", "bytes_per_second", "ideal_samples_per_second", "x_ideal", "au")
"""Fields of a point that a CSV has under their own names."""
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "p99.99": 99.99, "max": 100.0}
"""Head of a column of read latencies -> its percentile."""


def csv_table(result: RunResult) -> Table:
    """Return the points for programs: base units, names of run.json's fields, no layout.

    `answer`, `answer_low` and `answer_high` are the accelerators that are fed, and its interval.
    """
    its = answer(result)
    low, high = its.interval or (None, None)
    of_result = (result.label, str(result.workload.get("name", "")), result.loader, result.created)
    rows = []
    for point in by_ranks(result):
        figures = [_finite(getattr(point, field)) for field in PLAIN]
        seconds = latencies(point) or [None] * len(PERCENTILES)
        flags = " ".join(flag.name for flag in point.flags)
        counts = point.ranks, len(point.hosts) or None
        rows.append(
            (*of_result, *counts, *figures, *seconds, limit_name(point), flags, its.number, low, high)
        )
    heads = ["label", "workload", "loader", "created", "ranks", "hosts", *PLAIN]
    heads += [f"read_{head.replace('.', '')}_seconds" for head in PERCENTILES]
    heads += ["limit", "flags", "answer", "answer_low", "answer_high"]
    return Table(caption="", columns=tuple(map(Column, heads)), rows=tuple(rows))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def starved_by(point: Point, starved: Starved | None) -> str:
    """The shares of what starved the accelerators, all or a host's, where they did: `storage 92 %`."""
    if starved is None or 1 - min(point.x_ideal, point.au) < STARVED:
        return ""
    shares = sorted(((getattr(starved, cause), cause) for cause in CAUSES), reverse=True)
    return ", ".join(f"{cause} {share * 100:.0f} %" for share, cause in shares if share >= 0.1)


def hosts_table(result: RunResult) -> Table:
    """The hosts of the point with the most hosts (of these, with the most ranks). Needs points."""
    point = max(result.points, key=lambda point: (len(point.hosts), point.ranks))
    rows = host_rows(point)
    columns = (
        Column("host", align="fold"),
        Column("ranks"),
        Column("GB/s", three_digits),
        Column("wait %", one_place),
        Column("CPU %", one_place, room=56),
        Column("CPU-s\nper GB", two_digits, room=60),
        Column("NIC in,\nGB/s", three_places, room=110),
        Column("starved by", align="fold", room=130),
    )
    return Table(
        caption=_caption_of_hosts(point),
        columns=columns,
        rows=tuple(rows),
        items="hosts",
        detail=len(rows) < 2,
    ).without_empty_columns()


def _caption_of_hosts(point: Point) -> str:
    # Over the whole run, as each host's own rate is computed.
    rate = sum(share.bytes for share in point.hosts) / point.seconds if point.seconds else 0.0
    hosts = f"{len(point.hosts):,} hosts" if len(point.hosts) > 1 else "1 host"
    return f"{hosts} at {point.ranks:,} ranks, the most waiting first ({show_rate(rate)} in all)"


def host_rows(point: Point) -> list[tuple[Cell, ...]]:
    """The hosts of a point in the columns of `hosts_table`, the one whose ranks waited the most first."""
    rows = (_host_row(point, share) for share in sorted(point.hosts, key=lambda share: share.host))
    return sorted(rows, key=lambda row: float(row[3] or 0), reverse=True)


def _host_row(point: Point, share: HostShare) -> tuple[Cell, ...]:
    seconds = point.seconds or math.nan
    return (
        share.host,
        share.ranks,
        share.bytes / seconds / 1e9,
        _percent_waited(share, share.ranks * point.seconds),
        scaled(share.busy_share, 100),
        share.cpu_seconds / share.bytes * 1e9 if share.bytes and share.cpu_seconds else None,
        scaled(share.nic_bytes, 1e-9 / seconds),
        starved_by(point, share.starved),
    )


def _percent_waited(share: HostShare, rank_seconds: float) -> float | None:
    """Return the percentage of the time that ranks waited; None for an imported run without logs."""
    if not math.isfinite(share.wait_seconds):
        return None
    return min(1.0, share.wait_seconds / rank_seconds) * 100 if rank_seconds else 0.0


def latency_table(result: RunResult) -> Table:
    """Percentiles of the latency of read requests at each point."""
    columns = [Column("ranks")]
    for head in PERCENTILES:
        room = 60 if head in ("p90", "p99.9") else 0  # a phone has no room for all
        columns.append(Column(head, show_seconds, unit="s", room=room))
    rows = []
    for point in by_ranks(result):
        if seconds := latencies(point):
            rows.append((point.ranks, *seconds))
    return Table(caption="Latency of read requests", columns=tuple(columns), rows=tuple(rows), detail=True)


def latencies(point: Point) -> tuple[float, ...]:
    """Return the percentiles of read latency in seconds; the last one is the longest request itself where
    that was measured. () without a histogram."""
    seconds = percentiles(point.read_latency)
    longest = point.read_latency_max
    if not seconds or longest is None:
        return seconds
    return (*(min(edge, longest) for edge in seconds[:-1]), longest)


def percentiles(histogram: Mapping[str, int]) -> tuple[float, ...]:
    """Return the seconds within which each of the PERCENTILES of the requests ended; () without requests.

    `histogram` maps the upper edge of a bucket in microseconds to requests. The answer is the upper edge
    of the bucket that the percentile falls into, so it never flatters.
    """
    edges = np.array([_edge(name) for name in histogram])
    counts = np.array(list(histogram.values()), dtype=np.int64)
    if not len(edges) or counts.sum() <= 0:
        return ()
    order = np.argsort(edges)
    total = np.cumsum(counts[order])
    percentiles = np.array(list(PERCENTILES.values()))
    # Less a hair: 99.9 % of 1000 requests is request 999, whatever the rounding of the product.
    places = np.searchsorted(total, np.ceil(total[-1] * percentiles / 100 - 1e-9))
    return tuple((edges[order][np.minimum(places, len(edges) - 1)] * 1e-6).tolist())


def _edge(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return math.inf  # a bucket without an upper edge, whatever it is called
