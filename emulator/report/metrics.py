"""A result as OpenMetrics text: gauges that Prometheus, or node_exporter's textfile collector, reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from emulator.analysis.answer import Answer
from emulator.record.result import Point, RunResult
from emulator.report.training_figures import limit_name
from emulator.report.view import answer_of
from emulator.text import label_text

OF_POINTS = {
    "bytes_per_second": ("throughput_bytes_per_second", "Bytes per second read by all ranks."),
    "au": ("au_ratio", "Accelerator utilization."),
    "x_ideal": ("ideal_ratio", "Throughput over that of accelerators that never wait."),
}
"""Field of a point -> name and help of its gauge, which every process count has."""

Sample = tuple[Mapping[str, str], float]
"""Labels and value."""


def as_openmetrics(result: RunResult, required: int | None = None) -> str:
    """Format the answer and the figures; runs of a count are averaged, and unknown figures left out."""
    labels = {
        "workload": str(result.workload.get("name", "")),
        "dataset": str(result.dataset.get("path", "")),
        "loader": result.loader,
        "label": result.label,
    }
    made = datetime.fromisoformat(result.created).timestamp()
    whole = float(result.status == "complete")
    lines = [
        *_gauge("result_timestamp_seconds", "Time at which the result was made.", [(labels, made)]),
        *_gauge("complete", "1 if the runs came to their end, else 0.", [(labels, whole)]),
        *_of_answer(answer_of(result, required), labels),
        *_of_points(result.points, labels),
        "# EOF\n",
    ]
    return "\n".join(lines)


def _of_answer(answer: Answer, labels: Mapping[str, str]) -> Iterator[str]:
    if answer.interval:
        low, high = answer.interval
        if high is None:
            high = math.inf
        ends = [({**labels, "end": "low"}, low), ({**labels, "end": "high"}, high)]
        yield from _gauge(
            "fed_accelerators", "Accelerators that are fed: lower and upper end of the 95 % interval.", ends
        )
    if answer.number is not None:
        number = [(labels, answer.number)]
        yield from _gauge(
            "answer_accelerators", "Accelerators that are fed; below 1, a share of one.", number
        )
    if answer.gate:
        status = [({**labels, "asked": answer.gate.asked}, float(answer.gate.status))]
        yield from _gauge("gate_status", "0 if what was required is fed, 10 if not, 9 if not known.", status)


def _of_points(points: Sequence[Point], labels: Mapping[str, str]) -> Iterator[str]:
    counts: dict[int, list[Point]] = {}
    for point in sorted(points, key=lambda point: point.ranks):
        counts.setdefault(point.ranks, []).append(point)
    # A name with the same labels may stand once: the runs of a count become their mean.
    for field, (name, help_text) in OF_POINTS.items():
        means = {
            ranks: sum(getattr(run, field) for run in runs) / len(runs) for ranks, runs in counts.items()
        }
        yield from _gauge(name, help_text, [({**labels, "ranks": str(n)}, means[n]) for n in means])
    limits = [
        ({**labels, "ranks": str(ranks), "limit": limit}, 1.0)
        for ranks, runs in counts.items()
        if (limit := limit_name(runs[-1]))
    ]
    yield from _gauge("limit", "What limits a process count.", limits)


def _gauge(name: str, help_text: str, samples: Iterable[Sample]) -> Iterator[str]:
    """The lines of a gauge; none where no value is known."""
    known = [(labels, value) for labels, value in samples if not math.isnan(value)]
    if known:
        yield f"# HELP feedrate_{name} {help_text}"
        yield f"# TYPE feedrate_{name} gauge"
    for labels, value in known:
        inner = ",".join(f'{key}="{label_text(text)}"' for key, text in labels.items())
        number = "+Inf" if math.isinf(value) else repr(float(value))
        yield f"feedrate_{name}{{{inner}}} {number}"
