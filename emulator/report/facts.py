"""The figures beside the answer, and nested facts (workload, environment) as flat rows of text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from emulator.record.result import Knee, Point, RunResult
from emulator.report.frames import mean_demand, ordered
from emulator.report.view import NONE, computes, number, percent
from emulator.units import show_bytes, show_rate, show_seconds

MOST_ITEMS = 12
"""Items of a list that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One figure with its name and what it means."""

    name: str
    value: str
    detail: str


def cards(result: RunResult) -> list[Card]:
    """The few figures that answer the question, the knee first."""
    points = ordered(result)
    if not points:
        return []
    found = _knee_cards(result, result.knee, points) if result.knee else []
    one = mean_demand(points)
    if one is not None:
        found.append(Card(name="One process asks for", value=show_rate(one), detail=_step(result)))
    last = points[-1]
    detail = f"at {last.ranks:,} process{'es' if last.ranks > 1 else ''}"
    if computes(last):
        detail += f", AU {percent(last.au)}\N{NO-BREAK SPACE}%"
    found.append(Card(name="Largest count", value=show_rate(last.bytes_per_second), detail=detail))
    return found


def _knee_cards(result: RunResult, knee: Knee, points: list[Point]) -> list[Card]:
    share = result.workload.get("training", {}).get("au_threshold", 0.9)
    most = points[-1].ranks
    found = [
        Card(
            name=f"Knee, {share * 100:g} % of ideal",
            value="none seen" if knee.n_au is None else number(knee.n_au, 3),
            detail=f"in counts from {points[0].ranks:,} to {most:,}"
            if knee.n_au is None
            else _interval(knee),
        )
    ]
    if knee.n_98 is not None:
        found.append(
            Card(
                name="Onset, 98 % of ideal", value=number(knee.n_98, 3), detail="each process begins to slow"
            )
        )
    one = mean_demand(points)
    if knee.n_saturation is not None and one is not None:
        detail = f"what {number(knee.n_saturation, 3)} processes ask for"
        found.append(Card(name="Saturates at", value=show_rate(knee.n_saturation * one), detail=detail))
    if knee.peak_samples_per_second is not None:
        value = number(knee.peak_samples_per_second, 4)
        found.append(Card(name="Peak, samples/s", value=value, detail="throughput falls after it"))
    return found


def _interval(knee: Knee) -> str:
    if knee.interval is None:
        return "no interval"
    return f"95 % interval {number(knee.interval[0], 3)} to {number(knee.interval[1], 3)}"


def _step(result: RunResult) -> str:
    batch = result.workload.get("loader", {}).get("batch_size")
    seconds = result.workload.get("accelerator", {}).get("step_seconds")
    if batch is None or seconds is None:
        return ""
    return f"{batch} sample{'s' if batch != 1 else ''} every {show_seconds(float(seconds))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One row: a dotted key, its value, and where the value comes from."""

    key: str
    value: str
    source: str = ""


def facts(table: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> list[Fact]:
    """All values of a nested table as rows, in its order; `sources` maps dotted keys to words."""
    known = sources or {}
    return [
        Fact(key=key, value=show(key, value), source=known.get(key, "")) for key, value in _flat(table, "")
    ]


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{key}.")
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            for place, item in enumerate(value[:MOST_ITEMS]):
                yield from _flat(item, f"{key}.{place}.") if isinstance(item, Mapping) else ((key, item),)
            if len(value) > MOST_ITEMS:
                yield key, f"and {len(value) - MOST_ITEMS:,} more"
        else:
            yield key, value


def show(key: str, value: Any) -> str:
    """A value for people: sizes, rates and durations by the name of their key, others as they are."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        more = f" and {len(value) - MOST_ITEMS:,} more" if len(value) > MOST_ITEMS else ""
        return (", ".join(map(str, value[:MOST_ITEMS])) or NONE) + more
    if not isinstance(value, int | float):
        return str(value)
    name = key.rpartition(".")[2]
    if "bytes" in name or name == "memory":
        return f"{show_bytes(value)} ({value:,})" if abs(value) >= 1000 else f"{value} B"
    if name.endswith("rate"):
        return show_rate(value)
    if name.endswith(("seconds", "timeout", "latency")) and math.isfinite(value):
        return show_seconds(value)
    return f"{value:,}" if isinstance(value, int) and name != "seed" else f"{value}"
