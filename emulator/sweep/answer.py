"""Sentences of the answer of `feedrate ask`: what storage and client feed, and what they lack."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from emulator.analysis.bound import LIMIT_NAMES, cores_of_others
from emulator.analysis.evidence import held
from emulator.analysis.knee import whole_accelerators
from emulator.analysis.shortfall import lacking, show_limit
from emulator.record.result import STORAGE, Knee, KneeKind, Point, RunResult
from emulator.sweep.ask import Answer
from emulator.sweep.asked_data import Question
from emulator.sweep.schedule import fed_between
from emulator.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A sentence of the answer, and what limits it."""

    says: str
    limit: str = ""


def answer_lines(question: Question, answer: Answer, cores: int, hosts: int) -> list[Line]:
    """Return the answer in at most three lines; `cores` and `hosts` are the client's."""
    fed, starved = 0, 1
    if answer.pytorch is not None:
        fed, starved = fed_between(answer.pytorch.points, question.workload.training.au_threshold)
    limit = _storage_limit(question, answer.storage)
    lines = [Line(says=_storage_says(question, answer.storage, fed), limit=limit)]
    if answer.pytorch is not None:
        above = [point for point in answer.pytorch.points if point.ranks > fed]
        above.sort(key=lambda point: -point.ranks)
        many = f"{fed} of them" if fed else "none of them"
        if starved > fed + 1:
            many = f"{fed} to {starved - 1} of them" if fed else f"fewer than {starved} of them"
        client = "this client" if hosts == 1 else f"these {hosts} clients"
        limit = _client_limit(above[-1], cores) if above else ""
        lines.append(Line(says=f"PyTorch on {client} feeds {many}.", limit=limit))
    if missing := _missing(question, answer, cores, hosts):
        lines.append(Line(says=f"To feed {question.up_to}: {missing}."))
    return lines


def _named(count: int, name: str) -> str:
    """Return `count` accelerators as text: "1 A100", "2 A100s", "2 accelerators in miniature"."""
    article, _, noun = name.partition(" ")
    if article not in ("a", "an"):
        noun = name.removeprefix("NVIDIA ").removeprefix("AMD ")
    if count == 1:
        return f"1 {noun}"
    # The plural s goes to the noun, before a size or addition: V100s 32 GB, accelerators in miniature.
    return f"{count} " + re.sub(r"( [0-9]+ GB| in .*)?$", r"s\1", noun, count=1)


def _storage_says(question: Question, result: RunResult, by_pytorch: int) -> str:
    """Return what the storage feeds: where its own runs leave it open, `by_pytorch` at least."""
    place, knee = question.place, result.knee or _of_one_count(result, question)
    fed, _ = fed_between(result.points, question.workload.training.au_threshold)

    def feeds(count: int) -> str:
        job = question.workload.title.partition(",")[0]
        return f"{_named(count, question.workload.accelerator.name)} ({job})"

    if knee.kind == "beyond":
        return f"{place} feeds at least {feeds(fed)}: the largest count that was run."
    if knee.kind == "knee" and knee.n_au and knee.interval:
        low, high = map(whole_accelerators, knee.interval)
        between = f"{low} to {high}" if low else f"at most {high}"
        sure = f"95 % sure of {between if high > low else low}"
        return f"{place} feeds {feeds(whole_accelerators(knee.n_au))}, {sure}."
    if knee.kind == "below":
        return f"{place} does not feed {feeds(min(point.ranks for point in result.points))}."
    fed = max(knee.fed or 0, by_pytorch)
    why = "the runs differ too much" if result.knee else "there was time for one count"
    if knee.kind == "at-least":
        why = "the client was the limit" + " beyond" * bool(fed)
    starved = knee.starved if knee.starved and knee.starved > fed else None
    if fed:
        return f"{place} feeds at least {feeds(fed)}{f', fewer than {starved}' if starved else ''}: {why}."
    if starved:
        return f"{place} feeds fewer than {feeds(starved)}: {why}."
    return f"Whether {place} feeds {feeds(1)} is not known: {why}."


def _of_one_count(result: RunResult, question: Question) -> Knee:
    """Return what runs of a single count, which have no knee, say of the counts that are fed."""
    free = [point for point in result.points if not held(point)]
    fed, starved = fed_between(free, question.workload.training.au_threshold)
    kind: KneeKind = "beyond" if fed else "below" if starved == 1 else "not-identifiable"
    if not free:
        kind, starved = "at-least", 0
    return Knee(kind=kind, n_au=None, n_saturation=None, interval=None, starved=starved, sentence="")


def _storage_limit(question: Question, result: RunResult) -> str:
    starved = _starved_by_storage(question, result)
    return show_limit(max(starved, key=lambda point: point.bytes_per_second)) if starved else ""


def _starved_by_storage(question: Question, result: RunResult) -> list[Point]:
    threshold = question.workload.training.au_threshold
    starved = [point for point in result.points if point.x_ideal < threshold]
    by_storage = [point for point in starved if point.bound and point.bound.kind in STORAGE]
    return by_storage or [point for point in starved if point.bound and point.bound.kind == "latency"]


def _client_limit(point: Point, cores: int) -> str:
    if point.bound is None:
        return ""
    client_cores = f"its {counted(cores, 'core')}"
    if others := cores_of_others(point):
        client_cores += f", {others:.1f} of them used by other programs"
    words = {"client-cpu": client_cores, "cpu-quota": "its CPU quota"}
    return words.get(point.bound.kind, LIMIT_NAMES[point.bound.kind])


def _missing(question: Question, answer: Answer, cores: int, hosts: int) -> str:
    """Return what storage and client lack for `up_to` accelerators, in numbers; empty if nothing is known."""
    spec, lacks = question.workload, []
    threshold = spec.training.au_threshold
    if full := _starved_by_storage(question, answer.storage):
        most = max(full, key=lambda point: point.bytes_per_second)
        if more := lacking(most, threshold * question.up_to * spec.demand):
            lacks.append(more)
    if answer.pytorch is not None and answer.pytorch.points:
        fed, starved = fed_between(answer.pytorch.points, threshold)
        above = [point for point in answer.pytorch.points if point.ranks > fed and point.bound]
        if fed < question.up_to and above and above[-1].bound and above[-1].bound.kind == "client-cpu":
            least = min(answer.pytorch.points, key=lambda point: point.ranks)
            each = sum(host.cpu_seconds for host in least.hosts) / least.seconds / least.ranks
            each /= max(0.01, least.x_ideal)  # a fed rank needs more CPU than a starved one
            each = max(each, cores / starved)  # the present cores did not feed that many
            short = math.ceil(question.up_to * each) - cores
            if short > 0:
                like = f" (or {math.ceil(question.up_to * hosts / fed)} hosts like this)" if fed else ""
                lacks.append(f"about {counted(short, 'core')} more for PyTorch{like}")
    return ", and ".join(lacks)
