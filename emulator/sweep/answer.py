"""The second answer of `feedrate ask`: what PyTorch on these clients feeds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from emulator.analysis.answer import Answer, accelerator_of, feeds
from emulator.analysis.bound import LIMIT_NAMES, cores_of_others
from emulator.analysis.gate import threshold_of
from emulator.record.result import Point, RunResult
from emulator.sweep.schedule import fed_between
from emulator.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The hosts that read."""

    cores: int
    """Cores of all hosts together."""
    hosts: int

    @property
    def name(self) -> str:
        return "this client" if self.hosts == 1 else f"these {self.hosts} clients"


def pytorch_answer(trained: RunResult, up_to: int, client: Client) -> Answer:
    """What PyTorch on these clients feeds, their cores included. `up_to` accelerators were asked about."""
    name, subject = accelerator_of(trained), f"PyTorch on {client.name}"
    fed, _ = fed_between(trained.points, threshold_of(trained))
    starved = min(
        (point for point in trained.points if point.ranks > fed), key=lambda point: point.ranks, default=None
    )
    fastest = max(trained.points, key=lambda point: point.bytes_per_second)
    share_of_one = fastest.x_ideal * fastest.ranks
    number = float(fed) or (share_of_one if share_of_one < 1 else None)
    answer = Answer(
        question=f"How many can {subject} feed?",
        sentence=f"{subject} {feeds(name, number, fed, starved.ranks if starved else None)}.",
        number=number,
        interval=(number or 0.0, None),
        unit=name,
        threshold=threshold_of(trained),
    )
    if starved is None:
        return answer
    return replace(
        answer,
        interval=(number or 0.0, max(starved.ranks - 1.0, number or 0.0)),
        limit=_client_limit(starved, client),
        advice=_cores_wanted(trained, up_to, client, fed, starved),
    )


def _client_limit(point: Point, client: Client) -> str:
    """The limit of PyTorch's count in words, with the cores that others use."""
    if point.bound is None:
        return ""
    if point.bound.kind != "client-cpu":
        return LIMIT_NAMES[point.bound.kind]
    text = f"its {counted(client.cores, 'core')}"
    others = cores_of_others(point)
    return f"{text}, {others:.1f} of them used by other programs" if others else text


def _cores_wanted(trained: RunResult, up_to: int, client: Client, fed: int, starved: Point) -> str:
    """How many more cores feed as many accelerators as were asked about; empty if cores are not the limit."""
    if fed >= up_to or starved.bound is None or starved.bound.kind != "client-cpu":
        return ""
    least = min(trained.points, key=lambda point: point.ranks)
    used = sum(host.cpu_seconds for host in least.hosts) / least.seconds / least.ranks
    # A fed rank needs more CPU than a starved one, and the present cores did not feed the starved ranks.
    cores_a_rank = max(used / max(0.01, least.x_ideal), client.cores / starved.ranks)
    more = math.ceil(up_to * cores_a_rank) - client.cores
    if more <= 0:
        return ""
    hosts = f" (or {math.ceil(up_to * client.hosts / fed)} hosts like this)" if fed else ""
    return f"To feed {up_to}: about {counted(more, 'core')} more for PyTorch{hosts}."
