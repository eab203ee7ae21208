"""The answer of a result: how many accelerators its storage feeds, why no more, and whether that suffices.

Terminal, page, Markdown, JSON, JUnit, OpenMetrics and Python show an `Answer`, and say nothing else about it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from emulator.analysis.bound import HELPS, LIMIT_NAMES
from emulator.analysis.evidence import left_out, limited_by_client, usable
from emulator.analysis.gate import Verdict, fed_range, knee_of, require, threshold_of
from emulator.analysis.knee import asked_rate, demand_of_one, find_knee, whole_accelerators
from emulator.analysis.point import show_au
from emulator.analysis.storage_limit import device_request_bytes
from emulator.config.workload import TrainingSpec
from emulator.record.result import STORAGE, Knee, Point, RunResult
from emulator.units import show_bytes, show_rate, show_seconds

QUESTION = "How many accelerators can this storage feed?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a result."""

    question: str
    sentence: str
    number: float | None = None
    """Accelerators that are fed, in `unit`; below 1, the share of one; None: not known."""
    interval: tuple[float, float | None] | None = None
    """Its 95 % interval, or the counts that bound it; the end is None where nothing bounds it."""
    unit: str = "accelerator"
    """What `number` counts: an accelerator's name, or bytes/s."""
    threshold: float | None = None
    """Share of its demand from which an accelerator counts as fed (0 to 1)."""
    limit: str = ""
    """What limits, with its number: `storage bandwidth, 2.86 GB/s`."""
    advice: str = ""
    """What would feed more."""
    notes: tuple[str, ...] = ()
    """Runs that are flagged or left out."""
    gate: Verdict | None = None
    """The verdict of --require; None: nothing was required."""

    @property
    def line(self) -> str:
        """The verdict, or without one the sentence: all that --quiet prints."""
        return self.gate.line if self.gate else self.sentence

    @property
    def lines(self) -> list[str]:
        """The answer as text, the gate first."""
        lines = [self.gate.line] if self.gate else []
        lines.append(self.sentence)
        if self.limit:
            lines.append(f"Limit: {self.limit}.")
        if self.advice:
            lines.append(self.advice)
        return [*lines, *self.notes]

    def as_plain(self) -> dict[str, Any]:
        """The answer for programs."""
        return {**asdict(self), "gate": self.gate.as_plain() if self.gate else None}


def at_threshold(result: RunResult, share: float | None) -> RunResult:
    """The result with the knee of another threshold; itself for None or its own. Raises SpecError."""
    if share is None or share == threshold_of(result):
        return result
    TrainingSpec(au_threshold=share)  # refuses what is no threshold
    training = {**result.workload.get("training", {}), "au_threshold": share}
    knee = None if result.knee is None else find_knee(result.points, share)
    return replace(result, workload={**result.workload, "training": training}, knee=knee)


def gated(answer: Answer, required: int | None, result: RunResult) -> Answer:
    """The answer of `result` with the verdict of --require; itself if nothing is required."""
    return replace(answer, gate=require(required, result)) if required else answer


def answer_of(result: RunResult) -> Answer:
    """The answer of a training: a run, a sweep, an import, a replay."""
    points, threshold, name = result.points, threshold_of(result), accelerator_of(result)
    plain = Answer(question=QUESTION, sentence="Nothing was measured.", unit=name)
    if not points:
        return plain
    if not all(0 < point.ideal_samples_per_second < math.inf for point in points):
        return replace(plain, sentence=f"{_read(points)}; the workload does not compute: it has no demand.")
    if all(math.isnan(point.x_ideal) for point in points):
        return replace(plain, sentence=_published(points))
    knee = knee_of(result)
    number, interval = _number(knee, points)
    # `ask` was asked about a place and a number. Else the advice is for the largest count that was run.
    asked = result.environment.get("asked", {})
    subject = asked.get("place", "This storage")
    wanted = asked.get("up_to") or max(point.ranks for point in points)
    answer = replace(
        plain,
        sentence=_sentence(subject, name, knee, number, result),
        number=number,
        interval=interval,
        threshold=threshold,
        notes=_notes(points),
    )
    if starved_point := _starved_point(points, threshold):
        advice = _advice(starved_point, wanted, threshold)
        answer = replace(answer, limit=show_limit(starved_point), advice=advice)
    return answer


def accelerator_of(result: RunResult) -> str:
    """The accelerator's name without its maker: `H100`, or `accelerator` where it has none."""
    name = str(result.workload.get("accelerator", {}).get("name") or "accelerator")
    article, _, noun = name.partition(" ")
    noun = noun if article in ("a", "an", "an NVIDIA") and noun else name
    return noun.removeprefix("NVIDIA ").removeprefix("AMD ")


def named(count: float, name: str) -> str:
    """Accelerators as text: `1 A100`, `2 A100s`, `0.09 of an H100`, `2 V100s 32 GB`."""
    if 0 < count < 0.995:
        article = "an" if re.match(r"[aeiouAEFHILMNORSX](?![a-z])|[aeiou]", name) else "a"
        return f"{count:.2g} of {article} {name}"
    whole = f"{whole_accelerators(count):,}"
    if whole == "1":
        return f"1 {name}"
    # The plural s goes to the noun, before a size or addition.
    return f"{whole} " + re.sub(r"( [0-9]+ GB| in .*)?$", r"s\1", name, count=1)


def feeds(name: str, number: float | None, fed: int, starved: int | None) -> str:
    """`feeds 3 A100s`, `feeds 0.4 of an A100`, `feeds 3 to 5 A100s`, of counts that were fed and starved."""
    if number is not None and (number < 1 or starved == fed + 1):
        return f"feeds {named(number, name)}"
    if starved is None:
        return f"feeds at least {named(fed, name)}"
    if fed:
        return f"feeds {fed} to {named(starved - 1, name)}"
    return f"feeds fewer than {named(starved, name)}"


def _number(knee: Knee, points: Sequence[Point]) -> tuple[float | None, tuple[float, float | None] | None]:
    """The accelerators that are fed, and the ends between which that is known."""
    if knee.n_au is not None:
        return knee.n_au, knee.interval
    low, high = fed_range(knee)
    if low:
        return low, (low, high)
    share = _share_of_one(points)
    if share is None:
        return None, (0.0, high) if high else None
    return share, (share, None if high is None else max(share, high))


def _share_of_one(points: Sequence[Point]) -> float | None:
    """The share of one accelerator's demand that all ranks together got; None if they got all of it."""
    fastest = max(usable(points) or points, key=lambda point: point.samples_per_second)
    share = fastest.samples_per_second / fastest.ideal_samples_per_second * fastest.ranks
    return share if 0 < share < 0.995 else None


def _sentence(subject: str, name: str, knee: Knee, number: float | None, result: RunResult) -> str:
    points = result.points
    whose = "its" if (number or 2) < 2 else "their"
    demand = f"at {100 * threshold_of(result):.3g} % of {whose} demand"
    if knee.kind == "knee" and number is not None and knee.interval:
        low, high = knee.interval
        sure = f"(between {_count(low)} and {_count(high)}, 95 % sure)"
        return f"{subject} feeds {named(number, name)} {sure} {demand}{_saturation(knee, points)}."
    if number is not None and number < 0.995:
        return f"{subject} feeds {_part_of_one(number, name, knee, points)}."
    if bounds := _bounded(knee, name):
        return f"{subject} {bounds} {demand}: {_because(knee, points)}."
    return f"Whether it feeds {named(1, name)} is not known: {_because(knee, points)}."


def _bounded(knee: Knee, name: str) -> str:
    """`feeds at least 3 A100s and fewer than 5`, of counts that were fed and starved; empty without any."""
    if knee.fed:
        fewer = f" and fewer than {knee.starved:,}" if knee.starved and knee.kind != "beyond" else ""
        return f"feeds at least {named(knee.fed, name)}{fewer}"
    if not knee.starved:
        return ""
    does = "does not feed" if knee.kind == "below" and knee.starved == 1 else "feeds fewer than"
    return f"{does} {named(knee.starved, name)}"


def _because(knee: Knee, points: Sequence[Point]) -> str:
    """Why no number is known."""
    if knee.kind == "below" and knee.starved:
        return _read([point for point in usable(points) or points if point.ranks == knee.starved])
    if knee.kind == "at-least":
        return _client_limits(points)
    if len({point.ranks for point in points}) == 1:
        return _read(points)
    if knee.kind == "beyond" and knee.fed:
        return "the largest count that was run"
    return "the runs contradict each other or are too few"


def _saturation(knee: Knee, points: Sequence[Point]) -> str:
    if knee.n_saturation is None:
        return ""
    return f"; throughput saturates at {show_rate(knee.n_saturation * demand_of_one(points))}"


def _part_of_one(number: float, name: str, knee: Knee, points: Sequence[Point]) -> str:
    """`0.4 of an A100: 1 process read 32 MB/s ..., and 1 asks for 80 MB/s`."""
    fastest = max(usable(points) or points, key=lambda point: point.bytes_per_second)
    # One process alone might get more, and more without the client's limit.
    at_least = "at least " if knee.starved != 1 or any(map(limited_by_client, points)) else ""
    demand = show_rate(demand_of_one(points))
    return f"{at_least}{named(number, name)}: {_read([fastest])}, and 1 asks for {demand}"


def _client_limits(points: Sequence[Point]) -> str:
    """The counts at which the client was the limit, and its limits."""
    limited = list(filter(limited_by_client, points))
    counts = ", ".join(map(str, sorted({point.ranks for point in limited})))
    limits = dict.fromkeys(LIMIT_NAMES[point.bound.kind] for point in limited if point.bound)
    return f"at {counts} processes the limit was {' and '.join(limits)}, not the storage"


def _read(points: Sequence[Point]) -> str:
    """What the runs of one count measured: `4 processes read 6.4 GB/s, 99.2 % of their demand, AU 98.9 %`."""
    last = points[-1]
    processes, whose = ("1 process", "its") if last.ranks == 1 else (f"{last.ranks:,} processes", "their")
    rate = sum(point.bytes_per_second for point in points) / len(points)
    text = f"{processes} read {show_rate(rate)}"
    if not 0 < last.ideal_samples_per_second < math.inf:
        return text
    share = sum(point.x_ideal for point in points) / len(points)
    au = sum(point.au for point in points) / len(points)
    return f"{text}, {100 * share:.3g} % of {whose} demand, {show_au(replace(last, au=au))}"


def _published(points: Sequence[Point]) -> str:
    """What an import says whose rates cannot be computed."""
    known = [point for point in points if point.au_published is not None]
    if not known:
        return "What was published tells no rate."
    ranks, au = known[0].ranks, known[0].au_published or 0.0
    return f"{ranks:,} processes had AU {100 * au:.1f} % as published, which tells no rate."


def _starved_point(points: Sequence[Point], threshold: float) -> Point | None:
    """The starved run whose limit the answer names: one that the storage limited, if there is any."""
    starved = [(point.bound.kind, point) for point in points if point.bound and point.x_ideal < threshold]
    by_storage = [point for kind, point in starved if kind in STORAGE]
    if by_storage:
        return max(by_storage, key=lambda point: point.bytes_per_second)
    by_others = [point for kind, point in starved if kind != "compute"]
    return min(by_others, key=lambda point: point.ranks, default=None)


def _advice(point: Point, wanted: int, threshold: float) -> str:
    """What would feed `wanted` accelerators at the threshold, or else what the limit of `point` advises."""
    bound = point.bound
    assert bound is not None  # it is a starved run's
    if not bound.help and (more := lacking(point, threshold * wanted * asked_rate([point]))):
        return f"To feed {wanted:,}: {more}."
    text = bound.help or HELPS[bound.kind]
    return f"{text[0].upper()}{text[1:]}."


def _notes(points: Sequence[Point]) -> tuple[str, ...]:
    """Sentences on runs that are flagged but used, and on runs that are left out."""
    used, notes = usable(points), []
    flagged = [point for point in used if point.flags]
    if flagged:
        names = ", ".join(sorted({flag.name for point in flagged for flag in point.flags}))
        notes.append(f"Flagged, but used: {len(flagged)} of {len(points)} runs ({names}).")
    if used and (reasons := left_out(points)):
        notes.append(f"Left out: {', '.join(reasons)}.")
    return tuple(notes)


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def request_bytes(point: Point) -> float | None:
    """Mean bytes of a request, as the device counts them, or else as readers make them; None: not counted."""
    if counted := device_request_bytes(point):
        return counted
    requests = sum(point.read_latency.values())
    return point.bytes / requests if requests else None


def request_seconds(point: Point) -> float | None:
    """Mean seconds of a read request; None: not counted."""
    requests = sum(point.read_latency.values())
    return point.read_seconds / requests if requests and point.read_seconds else None


def show_limit(point: Point) -> str:
    """The limit of a point and its number: `storage IOPS, 400 requests/s of 457 kB`."""
    if point.bound is None:
        return ""
    name, size, seconds = LIMIT_NAMES[point.bound.kind], request_bytes(point), request_seconds(point)
    match point.bound.kind:
        case "iops" if size:
            return f"{name}, {point.bytes_per_second / size:,.0f} requests/s of {show_bytes(size)}"
        case "latency" if seconds:
            return f"{name}, {show_seconds(seconds)} a request"
        case "metadata" if point.open_seconds:
            return f"{name}, {show_seconds(point.open_seconds / max(1, point.samples))} to open a sample"
        case "storage" | "bandwidth" | "iops" | "latency" | "metadata":
            return f"{name}, {show_rate(point.bytes_per_second)}"
    return name


def lacking(point: Point, wanted: float) -> str:
    """What the limit of `point` lacks to deliver `wanted` bytes/s; empty if storage lacks nothing."""
    more = wanted - point.bytes_per_second
    if more <= 0 or point.bound is None:
        return ""
    size, seconds = request_bytes(point), request_seconds(point)
    match point.bound.kind:
        case "iops" if size:
            return f"{more / size:,.0f} requests/s more, or larger requests"
        case "latency" if seconds:
            faster = show_seconds(seconds * point.bytes_per_second / wanted)
            return (
                f"requests that take {faster} instead of {show_seconds(seconds)}, or more of them in flight"
            )
        case "metadata":
            samples = more * point.samples / max(1, point.bytes)
            return f"{samples:,.0f} more files opened per second"
        case "storage" | "bandwidth":
            return f"{show_rate(more)} more"
    return ""
