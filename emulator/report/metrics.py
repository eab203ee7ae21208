"""A result as OpenMetrics text: gauges that Prometheus, or node_exporter's textfile collector, reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from emulator.analysis.bound import LIMIT_NAMES
from emulator.record.result import Point, RunResult
from emulator.report.view import answer_of
from emulator.text import label_text

OF_POINTS: dict[str, tuple[str, Callable[[Point], float | None]]] = {
    "feedrate_throughput_bytes_per_second": (
        "Bytes per second read by all ranks.", lambda point: point.bytes_per_second
    ),
    "feedrate_au_ratio": ("Accelerator utilization.", lambda point: point.au),
    "feedrate_ideal_ratio": ("Throughput over that of accelerators that never wait.", lambda p: p.x_ideal),
}  # fmt: skip
"""Name -> help and value of the gauges that every process count has."""

Sample = tuple[Mapping[str, str], float]


def as_openmetrics(result: RunResult, required: int | None = None) -> str:
    """Format the answer and the figures; runs of a count are averaged, and unknown figures left out."""
    own = {
        "workload": str(result.workload.get("name", "")),
        "dataset": str(result.dataset.get("path", "")),
        "loader": result.loader,
        "label": result.label,
    }
    answer = answer_of(result, required)
    low, high = answer.interval or (math.nan, math.nan)
    ends = [({**own, "end": "low"}, low), ({**own, "end": "high"}, math.inf if high is None else high)]
    number = math.nan if answer.number is None else answer.number
    gates = [({**own, "asked": answer.gate.asked}, float(answer.gate.status))] if answer.gate else []
    made = datetime.fromisoformat(result.created).timestamp()
    text = _family(
        "feedrate_result_timestamp_seconds", "Time at which the result was made.", [(own, made)]
    ) + _family(
        "feedrate_complete", "1 if the runs came to their end, else 0.",
        [(own, float(result.status == "complete"))],
    ) + _family(
        "feedrate_fed_accelerators", "Accelerators that are fed: lower and upper end of the 95 % interval.",
        ends,
    ) + _family(
        "feedrate_answer_accelerators", "Accelerators that are fed; below 1, a share of one.", [(own, number)]
    ) + _family(
        "feedrate_gate_status", "0 if what was required is fed, 10 if not, 9 if not known.", gates
    )  # fmt: skip
    counts = sorted({point.ranks for point in result.points})
    runs = {ranks: [point for point in result.points if point.ranks == ranks] for ranks in counts}
    for name, (help_text, value) in OF_POINTS.items():
        samples = [({**own, "ranks": str(ranks)}, _mean(map(value, runs[ranks]))) for ranks in counts]
        text += _family(name, help_text, samples)
    limits = [
        ({**own, "ranks": str(point.ranks), "limit": LIMIT_NAMES[point.bound.kind]}, 1.0)
        for point in {point.ranks: point for point in result.points}.values()
        if point.bound is not None
    ]
    return text + _family("feedrate_limit", "What limits a process count.", limits) + "# EOF\n"


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def _family(name: str, help_text: str, samples: Iterable[Sample]) -> str:
    """One gauge; empty where no value is known."""
    lines = []
    for labels, value in samples:
        if not math.isnan(value):
            inner = ",".join(f'{key}="{label_text(text)}"' for key, text in labels.items())
            lines.append(f"{name}{{{inner}}} {_number(value)}")
    return "\n".join([f"# HELP {name} {help_text}", f"# TYPE {name} gauge", *lines]) + "\n" if lines else ""


def _number(value: float) -> str:
    return "+Inf" if math.isinf(value) else repr(float(value))
