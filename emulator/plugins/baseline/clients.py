"""Run a tool's tests on all clients at once, and store its output in OUT.

A `Plan` (in `fio_plan` and `rados`) has the tests, and runs one of them on a client.
"""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from emulator import live
from emulator.live import Now
from emulator.plugins.baseline.suites import Turn
from emulator.record.machine import describe_machine
from emulator.record.out import ResultFolder, check_out
from emulator.record.result import Corner, RunResult, Side, new_result
from emulator.run.comm import Comm, Quiet, agreed, entered, guarded
from emulator.units import counted, show_rate

Sides = tuple[Side | None, Side | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ABC):
    """A baseline to measure with a tool."""

    tool: ClassVar[str]
    folder: ClassVar[str]
    """Folder below OUT for the tool's inputs and outputs."""
    suffix: ClassVar[str]
    """Suffix of the files with the tool's input."""

    out: Path
    command: tuple[str, ...] = ()
    label: str = ""
    keep: bool = False
    """True to leave the tool's files or objects on the storage."""
    per_host: int = 1
    """Ranks per host that are clients; the other ranks wait."""

    @property
    @abstractmethod
    def turn_seconds(self) -> float:
        """Shortest time of a turn, in seconds."""

    @abstractmethod
    def turns(self, clients: int) -> tuple[Turn, ...]:
        """Return the tests with at most `clients` clients. Raises SpecError."""

    @abstractmethod
    def lines(self, clients: int) -> Iterator[str]:
        """Yield the plan as lines. Raises SpecError, MissingError."""

    @abstractmethod
    def checked(self, clients: int) -> Self:
        """Check the plan before anything is written; return it with facts about the storage.

        Raises FeedrateError.
        """

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Return workload, dataset, storage, environment and flags of the result."""

    @abstractmethod
    def prepare(self, client: str, turns: Sequence[Turn], stack: ExitStack) -> None:
        """Prepare the storage for `client`, and its clean-up in `stack`. Raises FeedrateError."""

    @abstractmethod
    def run(self, turn: Turn, client: str, seed: int) -> tuple[str, str]:
        """Run a test on one client; return the tool's input and output. Raises FeedrateError.

        Each client and turn has a different `seed`, because data of another one may be cached.
        """

    @abstractmethod
    def sides(self, turn: Turn, printed: Sequence[str]) -> list[Sides]:
        """Return the figures of each task from the outputs of all clients. Raises StorageError."""


def planned(plan: Plan, comm: Comm) -> tuple[int, list[str]]:
    """Return the number of clients, and on rank 0 the plan as lines. Collective. Raises Quiet."""
    clients = _clients(plan, comm)
    return clients, agreed(comm, lambda: [] if comm.rank else list(plan.lines(clients)))


def _clients(plan: Plan, comm: Comm) -> int:
    return sum(comm.allgather(comm.node().rank < plan.per_host))


def measure(plan: Plan, comm: Comm, *, force: bool = False) -> RunResult | None:
    """Measure `plan`, write OUT, and return the result on rank 0, None on others.

    Collective over `comm`. Raises Quiet after an error of any rank, which the first one has reported.
    """
    plan = replace(plan, out=comm.bcast(plan.out))  # its default has the time of rank 0
    clients = _clients(plan, comm)
    node = comm.node()
    active = node.rank < plan.per_host

    def check() -> Plan:
        if not active:
            return plan
        check_out(plan.out, force)
        return plan.checked(clients)

    plan = agreed(comm, check)
    group, host = comm.split(0 if active else 1), socket.gethostname()
    result, status = None, 0
    with guarded(comm, plan.out):
        if active:
            name = host if plan.per_host == 1 else f"{host}-{node.rank}"
            try:
                result = _run(plan, group, name, force=force)
            except Quiet as end:  # all clients have ended; the waiting ranks must end, too
                status = int(end.code or 0)
        failed = [status for status in comm.allgather(status) if status]
        if failed:
            raise Quiet(failed[0])
    return result


def _run(plan: Plan, comm: Comm, client: str, *, force: bool) -> RunResult | None:
    """Run every turn with the ranks of `comm`, of which this is `client`; return the result on rank 0.

    Collective; an error of one rank ends all.
    """
    names: list[str] = comm.allgather(client)
    turns = agreed(comm, lambda: plan.turns(len(names)))
    progress = Progress([turn.title for turn in turns], plan.turn_seconds)

    def create() -> ResultFolder:
        return ResultFolder.create(plan.out, _new_result(plan, names), force=force)

    with ExitStack() as stack, entered(comm, None if comm.rank else create) as folder, progress.shown(comm):
        agreed(comm, lambda: plan.prepare(client, turns, stack), plan.out)
        for number, turn in enumerate(turns):
            comm.barrier()
            progress.begin(number)
            work = partial(plan.run, turn, client, 1 + number * comm.size + comm.rank)
            gathered = comm.gather(agreed(comm, work if comm.rank < turn.clients else tuple, plan.out))
            place = f"{plan.folder}/{number:03d}-{turn.name}"
            ran = {f"{place}/{name}": pair for name, pair in zip(names, gathered, strict=False) if pair}
            add = partial(_add, folder, plan, turn, ran) if folder else tuple
            agreed(comm, add, plan.out)
        return folder.complete() if folder else None


def _new_result(plan: Plan, clients: Sequence[str]) -> RunResult:
    described = plan.described()
    environment = {**describe_machine(), "clients": clients, **described.pop("environment")}
    return new_result(
        "baseline",
        command=plan.command,
        label=plan.label,
        loader=plan.tool,
        environment=environment,
        **described,
    )


def _add(folder: ResultFolder, plan: Plan, turn: Turn, ran: dict[str, tuple[str, str]]) -> None:
    """Store the tool's inputs and outputs, and the figures of each task. Raises StorageError."""
    for path, (text, output) in ran.items():
        folder.keep(f"{path}.{plan.suffix}", text)
        folder.keep(f"{path}.json", output)
    corners = []
    sides = plan.sides(turn, [output for _, output in ran.values()])
    for task, (read, write) in zip(turn.tasks, sides, strict=True):
        corners.append(
            Corner(
                pattern=task.access.pattern,
                block_bytes=task.access.block_bytes,
                read_share=task.access.read_share,
                depth=task.depth,
                jobs=task.jobs,
                clients=turn.clients,
                beside=task.beside,
                read=read,
                write=write,
                files=tuple(f"{path}.json" for path in ran),
            )
        )
        rates = [
            f"{word} {side.iops:,.0f} IOPS, {show_rate(side.bytes_per_second)}"
            for word, side in (("read", read), ("write", write))
            if side
        ]
        clients = counted(turn.clients, "client")
        live.say(
            f"{task.access.name}, depth {task.depth}, {clients}: {'; '.join(rates) or 'no request completed'}"
        )
    folder.update(baseline=(*folder.result.baseline, *corners))


class Progress:
    """Progress of a series of trials of about the same length."""

    def __init__(self, titles: Sequence[str], seconds: float) -> None:
        """Start the clock. A trial takes at least `seconds`."""
        self._titles = titles
        self._each = seconds
        self._number = -1
        self._begin = self._first = self._last = time.monotonic()

    def shown(self, comm: Comm) -> AbstractContextManager[None]:
        return live.telling(self.now) if comm.rank == 0 else nullcontext()

    def begin(self, number: int) -> None:
        self._number, self._last = number, time.monotonic()
        if number == 0:
            self._first = self._last

    def now(self) -> Now:
        """Return the progress. Another thread calls this."""
        now = time.monotonic()
        mean = (self._last - self._first) / self._number if self._number > 0 else self._each
        here = max(0.0, mean - (now - self._last)) if self._number >= 0 else mean
        left = here + (len(self._titles) - max(0, self._number) - 1) * mean
        seconds = now - self._begin
        return Now(
            verb="baseline",
            doing=self._titles[self._number] if self._number >= 0 else "writing files",
            unit="test",
            part=self._number + 1,
            parts=len(self._titles),
            share=live.share_done(seconds, left),
            seconds=seconds,
            eta_seconds=left,
        )
