"""Run a tool's turns on all clients at once, and store its output in OUT.

Each rank is a client. A `Tool` (in `fio_suite` and `rados`) runs one turn on one client.
"""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from emulator import live
from emulator.launch.comm import Comm, agreed, entered, guarded
from emulator.live import Now
from emulator.plugins.baseline.suites import Turn, access_of
from emulator.record.machine import describe_machine
from emulator.record.out import ResultFolder, check_out
from emulator.record.result import Corner, RunResult, Side, new_result
from emulator.units import counted, show_rate, show_seconds

Sides = tuple[Side | None, Side | None]
"""Reads and writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(ABC):
    """A program that measures a storage. Its methods raise FeedrateError."""

    name: ClassVar[str]
    folder: ClassVar[str]
    """Folder below OUT for its inputs and outputs."""
    suffix: ClassVar[str]
    """Suffix of the files with its input."""

    out: Path
    command: tuple[str, ...] = ()
    label: str = ""
    keep: bool = False
    """True to leave its files or objects on the storage."""

    @property
    @abstractmethod
    def turns(self) -> tuple[Turn, ...]: ...

    @property
    @abstractmethod
    def turn_seconds(self) -> float:
        """Shortest time of a turn."""

    @abstractmethod
    def checked(self, clients: int) -> Self:
        """Check that it can run, before anything is written; return it with facts about the storage."""

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Return workload, dataset, storage, environment and flags of the result."""

    @abstractmethod
    def prepare(self, client: str, stack: ExitStack) -> None:
        """Prepare the storage for `client`, and its clean-up in `stack`."""

    @abstractmethod
    def run(self, turn: Turn, client: str, seed: int) -> tuple[str, str]:
        """Run a turn on one client; return the tool's input and output.

        Each client and turn has a different `seed`, because data of another one may be cached.
        """

    @abstractmethod
    def sides(self, turn: Turn, printed: Sequence[str]) -> list[Sides]:
        """Return the figures of each corner from the outputs of all clients."""

    def plan(self, clients: int) -> list[str]:
        """Return the plan as lines."""
        turns = self.turns
        least = show_seconds(len(turns) * self.turn_seconds)
        place = self.described()["dataset"]["path"]
        return [
            f"{self.name}, {counted(clients, 'client')}, {place}: {len(turns)} tests, at least {least}",
            *(f"  {turn.name}" for turn in turns),
        ]


def measure(tool: Tool, comm: Comm, *, force: bool = False) -> RunResult | None:
    """Run `tool`, write OUT, and return the result on rank 0, None on others.

    Collective over `comm`. Raises Quiet after an error of any rank, which the first one has reported.
    """
    tool = replace(tool, out=comm.bcast(tool.out))  # its default has the time of rank 0

    def check() -> Tool:
        check_out(tool.out, force)
        return tool.checked(comm.size)

    tool = agreed(comm, check)
    node = comm.node()
    # Ranks that share a host have files of their own.
    client = socket.gethostname() + (f"-{node.rank}" if node.size > 1 else "")
    clients: list[str] = comm.allgather(client)

    def create() -> ResultFolder:
        described = tool.described()
        environment = {**describe_machine(), "clients": clients, **described.pop("environment")}
        result = new_result(
            "baseline",
            command=tool.command,
            label=tool.label,
            loader=tool.name,
            environment=environment,
            **described,
        )
        return ResultFolder.create(tool.out, result, force=force)

    turns = tool.turns
    began = turn_began = time.monotonic()
    number = -1  # writing files, before the first turn

    def now() -> Now:
        """Return the progress. Another thread calls this."""
        seconds = time.monotonic() - began
        done = number * tool.turn_seconds + time.monotonic() - turn_began if number >= 0 else 0.0
        left = max(0.0, len(turns) * tool.turn_seconds - done)
        return Now(
            verb="baseline",
            doing=turns[number].name if number >= 0 else "writing files",
            unit="test",
            part=number + 1,
            parts=len(turns),
            share=live.share_done(seconds, left),
            seconds=seconds,
            eta_seconds=left,
        )

    first = comm.rank == 0
    with guarded(comm, tool.out), ExitStack() as stack:
        folder = stack.enter_context(entered(comm, create if first else None))
        stack.enter_context(live.telling(now) if first else nullcontext())
        agreed(comm, lambda: tool.prepare(client, stack), tool.out)
        for number, turn in enumerate(turns):
            # All clients begin at once: the figures are of their load together.
            comm.barrier()
            turn_began = time.monotonic()
            # A seed of its own: caches do not serve a turn from the data of an earlier one.
            work = partial(tool.run, turn, client, 1 + number * comm.size + comm.rank)
            texts = comm.gather(agreed(comm, work, tool.out))
            place = f"{tool.folder}/{number:03d}-{turn.name}"
            # Only rank 0 has texts.
            texts_of = {f"{place}/{name}": pair for name, pair in zip(clients, texts, strict=False)}
            agreed(comm, partial(_add, folder, tool, turn, texts_of), tool.out)
        return folder.complete() if folder else None


def _add(
    folder: ResultFolder | None, tool: Tool, turn: Turn, texts_of: Mapping[str, tuple[str, str]]
) -> None:
    """Store the tool's input and output by path, and the figures of each corner. Raises StorageError."""
    if folder is None:
        return
    # Before they are parsed: what cannot be read stays to be looked at.
    for path, (text, output) in texts_of.items():
        folder.keep(f"{path}.{tool.suffix}", text)
        folder.keep(f"{path}.json", output)
    corners = list(folder.result.baseline)
    sides = tool.sides(turn, [output for _, output in texts_of.values()])
    clients, files = len(texts_of), tuple(f"{path}.json" for path in texts_of)
    for planned, (read, write) in zip(turn.corners.values(), sides, strict=True):
        corner = replace(planned, clients=clients, read=read, write=write, files=files)
        corners.append(corner)
        what = f"{access_of(corner)}, depth {corner.depth}, {counted(clients, 'client')}"
        live.say(f"{what}: {_rates(corner)}")
    folder.update(baseline=tuple(corners))


def _rates(corner: Corner) -> str:
    rates = [
        f"{word} {side.iops:,.0f} IOPS, {show_rate(side.bytes_per_second)}"
        for word, side in (("read", corner.read), ("write", corner.write))
        if side
    ]
    return "; ".join(rates) or "no request completed"
