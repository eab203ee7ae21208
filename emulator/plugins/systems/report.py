"""The report of a plan: sentences, tables and a figure."""

from __future__ import annotations

import math

from emulator.analysis.answer import Answer
from emulator.config.reader import build, to_plain
from emulator.plugins.systems.limits import soft_count, soft_utilization
from emulator.plugins.systems.plan import Feeds, Plan, show_amount
from emulator.record.result import RunResult, new_result
from emulator.report.charts import PROCESSES, Axis, Figure, Level, Series, colour, spread
from emulator.report.table import Column, Table, number
from emulator.units import show_rate

QUESTION = "How many accelerators can this storage feed, and what do they need?"


def plan_of(result: RunResult) -> Plan:
    """Return the plan in a result. Raises SpecError."""
    return build(Plan, result.details)


def plan_result(plan: Plan, command: tuple[str, ...] = ()) -> RunResult:
    """Return the plan as an incomplete result of kind `plan`, which other commands show."""
    return new_result(
        "plan", command=command, workload={"title": plan.title}, dataset={}, storage={}, loader="",
        environment={}, details=to_plain(plan, named=True),
    )  # fmt: skip


def answer(result: RunResult) -> Answer:
    """Return what is fed and every shortfall, a sentence each."""
    plan = plan_of(result)
    shortfalls = [need.shortfall for need in plan.needs if need.shortfall]
    if plan.accelerators and not shortfalls:
        known = any(need.available is not None for need in plan.needs)
        shortfalls = [f"No shortfall in what is known of {plan.system}."] if known else []
    sentence = " ".join(fed.sentence for fed in plan.feeds)
    sentence = sentence or f"The table shows what {plan.accelerators:,} accelerators need."
    if len(plan.feeds) != 1:
        return Answer(question=QUESTION, sentence=sentence, notes=tuple(shortfalls))
    (fed,) = plan.feeds
    low, high = fed.interval
    return Answer(
        question=QUESTION, sentence=sentence, number=fed.accelerators, threshold=fed.au_threshold,
        interval=(low, high if math.isfinite(high) else None), unit=fed.workload, limit=fed.limit,
        notes=tuple(shortfalls),
    )  # fmt: skip


def setting(result: RunResult) -> str:
    """Say where the limit and its interval are from."""
    plan = plan_of(result)
    if not plan.feeds:
        return "planned by a formula; nothing was read"
    if plan.measured:
        return (
            "the knee of a sweep and its 95 % interval, in accelerators of each workload; of other workloads "
            "than its own it was off by 10 % (median) in published pairs"
        )
    return "by a formula: the knee at a hard limit, the interval from a soft one, and run-to-run variation"


def tables(result: RunResult) -> tuple[Table, ...]:
    """Return a table of what is fed, and one of what is needed."""
    plan = plan_of(result)
    return tuple(table for table in (_fed_table(plan), _need_table(plan)) if table.rows)


def _fed_table(plan: Plan) -> Table:
    columns = (
        Column("workload", align="left"),
        Column("demand\nof one", show_rate, unit="B/s"),
        Column("none\nwaits", "{:,.1f}".format, room=61),
        Column("at AU"),
        Column("95 % interval"),
        Column(f"{plan.margin:.0%} in\nreserve", room=60),
        Column("limit", align="fold"),
    )
    rows = []
    for fed in plan.feeds:
        low, high = fed.interval
        span = f"{number(low, 3)} to {number(high, 3)}" if math.isfinite(high) else f"{low:,.3g} or more"
        rate = fed.limit_bytes_per_second
        limit = f"{fed.limit}, {show_rate(rate)}" if rate is not None else "not known"
        at_au = f"{fed.accelerators:,} at {fed.au_threshold:.0%}"
        reserved = math.floor((low if fed.knee is None else fed.knee) * (1 - plan.margin) + 1e-9)
        rows.append((fed.workload, fed.demand_bytes_per_second, fed.fully_fed, at_au, span, reserved, limit))
    return Table(caption="Accelerators that it feeds", columns=columns, rows=tuple(rows))


def _need_table(plan: Plan) -> Table:
    columns = (
        Column("workload", align="left"),
        Column("need", align="fold"),
        Column("at AU", room=62),
        Column("none\nwaits", room=61),
        Column(f"{plan.margin:.0%} in\nreserve"),
        Column("there"),
        Column("share %", "{:.0f}".format),
    )
    rows = []
    for need in plan.needs:
        amounts = [show_amount(amount, need.unit) for amount in (need.least, need.full, need.reserved)]
        there, share = None, None
        if need.available is not None:
            there, share = show_amount(need.available, need.unit), 100 * need.available / need.reserved
        rows.append((need.workload, need.resource, *amounts, there, share))
    caption = f"What {plan.accelerators or 0:,} accelerators need, {plan.per_host} a host"
    short = frozenset(place for place, need in enumerate(plan.needs) if need.shortfall)
    return Table(caption=caption, columns=columns, rows=tuple(rows), flagged=short)


def figures(result: RunResult) -> tuple[Figure, ...]:
    """Return utilization against accelerators, from a soft to a hard limit; none if no limit is known."""
    drawn = [fed for fed in plan_of(result).feeds if fed.knee and math.isfinite(fed.interval[1])]
    if not drawn:
        return ()
    most = 2 * max(fed.knee or 0 for fed in drawn)
    counts = [1.0 * most ** (step / 200) for step in range(201)]
    series = [
        Series(name=fed.workload, colour=colour(place), band=[_utilization(fed, count) for count in counts])
        for place, fed in enumerate(drawn)
    ]
    figure = Figure(
        name="plan",
        title="Accelerator utilization",
        caption="Predicted, not measured. Bands: where they cross the dashed line, the 95 % interval.",
        x=Axis(title=PROCESSES, log=spread([1, most]), whole=True),
        y=Axis(unit="%", high=105),
        series=series,
        levels=[Level(100 * share, "AU wanted") for share in sorted({fed.au_threshold for fed in drawn})],
        qualified="predicted",
    )
    return (figure,)


def _utilization(fed: Feeds, count: float) -> tuple[float, float, float, float]:
    """Return the count, and its utilization in %: behind a soft limit, as predicted, behind a hard limit.

    The soft and the hard limit are those that leave the wanted utilization at the ends of the interval.
    """
    low, high = fed.interval
    soft = soft_utilization(low / soft_count(1, fed.au_threshold), count)
    predicted = min(1, (fed.fully_fed or 0) / count)
    hard = min(1, high * fed.au_threshold / count)
    return count, 100 * soft, 100 * predicted, 100 * hard


def beside(main: RunResult, result: RunResult) -> tuple[tuple[Table, ...], tuple[Figure, ...]]:
    return tables(result), figures(result)
