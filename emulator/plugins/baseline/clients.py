"""Run a tool's trials on all clients at once, and keep its output in OUT.

`fio_plan` and `rados` say which trials there are, and what one of them runs on a client.
"""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from emulator import live
from emulator.live import Now
from emulator.plugins.baseline.suites import access_name
from emulator.record.out import ResultFolder, check_out
from emulator.record.result import Corner, RunResult
from emulator.run.comm import Comm, Quiet, agreed, entered, guarded
from emulator.units import counted, show_rate

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ABC):
    """A baseline to be measured, whatever the tool."""

    out: Path
    """Folder for the result."""
    command: tuple[str, ...] = ()
    """Command line that repeats the measurement."""
    label: str = ""
    """Label of the result, for people."""
    keep: bool = False
    """True to leave the tool's files or objects on the storage."""
    per_host: int = 1
    """Ranks per host that are clients; the other ranks wait."""

    def clients(self, comm: Comm) -> int:
        """Return the number of clients. Collective over `comm`. Raises SpecError."""
        return sum(comm.allgather(comm.node().rank < self.per_host))

    @abstractmethod
    def lines(self, clients: int) -> Iterator[str]:
        """Yield the plan for people. Raises SpecError, MissingError."""

    @abstractmethod
    def check(self, clients: int) -> None:
        """Refuse what cannot work, before anything is written. Raises FeedrateError."""

    @abstractmethod
    def run(self, comm: Comm, client: str, *, force: bool, say: Say) -> RunResult | None:
        """Run all trials with the ranks of `comm`; this one is called `client`. The result on rank 0.

        Collective; an error of one rank ends all.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of a tool on a number of clients at once."""

    title: str
    """Title of the measurement, for people."""
    folder: str
    """Folder below OUT for job files and output."""
    run: Callable[[], Mapping[str, tuple[str, str]]]
    """Runs it on the clients of this process; client -> (what was run, what the tool printed)."""
    corners: Callable[[Sequence[str], tuple[str, ...]], Sequence[Corner]]
    """Figures from what was printed on each client, and the names of the files that hold it."""


def planned(plan: Plan, comm: Comm) -> tuple[int, list[str]]:
    """Return the number of clients, and on rank 0 the plan for people. Collective. Raises FeedrateError."""
    clients = agreed(comm, lambda: plan.clients(comm))
    return clients, agreed(comm, lambda: [] if comm.rank else list(plan.lines(clients)))


def measure(plan: Plan, comm: Comm, *, force: bool = False, say: Say = live.say) -> RunResult | None:
    """Measure what `plan` asks for, and write OUT; the result on rank 0, None elsewhere.

    Collective over `comm`. Raises Quiet after an error of any rank, which the first one has reported.
    """
    plan = replace(plan, out=comm.bcast(plan.out))  # one clock decides on the default name
    clients = agreed(comm, lambda: plan.clients(comm))
    node = comm.node()
    active = node.rank < plan.per_host

    def check() -> None:
        if active:
            plan.check(clients)
            check_out(plan.out, force)

    agreed(comm, check)
    group, host = comm.split(0 if active else 1), socket.gethostname()
    result, status = None, 0
    with guarded(comm, plan.out):
        if active:
            name = host if plan.per_host == 1 else f"{host}-{node.rank}"
            try:
                result = plan.run(group, name, force=force, say=say)
            except Quiet as end:  # all clients have ended; the ranks that wait have to be told
                status = int(end.code or 0)
        failed = [status for status in comm.allgather(status) if status]
        if failed:
            raise Quiet(failed[0])
    return result


def run_trials(
    plan: Plan,
    comm: Comm,
    begin: Callable[[], RunResult],
    trials: Sequence[Trial],
    *,
    prepare: Callable[[], None] = lambda: None,
    suffix: str,
    seconds: float,
    force: bool,
    say: Say,
) -> RunResult | None:
    """Run `prepare` and then each trial on all clients, and keep them in OUT; the result on rank 0.

    `begin()` makes the result without figures, on rank 0. What was run is kept as CLIENT.`suffix`. A trial
    takes at least `seconds`. Collective over `comm`.
    """

    def create() -> ResultFolder:
        return ResultFolder.create(plan.out, begin(), force=force)

    progress = Progress([trial.title for trial in trials], seconds)
    with entered(comm, None if comm.rank else create) as folder, progress.shown(comm):
        agreed(comm, prepare, plan.out)
        for number, trial in enumerate(trials):
            comm.barrier()
            progress.begin(number)
            gathered: list[Mapping[str, tuple[str, str]]] = comm.gather(agreed(comm, trial.run, plan.out))
            add = partial(_add, folder, trial, suffix, gathered, say) if folder else None
            agreed(comm, add or (lambda: None), plan.out)
        return folder.complete() if folder else None


def _add(
    folder: ResultFolder,
    trial: Trial,
    suffix: str,
    gathered: Sequence[Mapping[str, tuple[str, str]]],
    say: Say,
) -> None:
    """Keep what a trial ran and printed on the clients of each rank, and its figures. Raises StorageError."""
    printed = []
    files = []
    for client, (text, output) in ((client, pair) for part in gathered for client, pair in part.items()):
        folder.keep(f"{trial.folder}/{client}.{suffix}", text)
        folder.keep(f"{trial.folder}/{client}.json", output)
        printed.append(output)
        files.append(f"{trial.folder}/{client}.json")
    found = trial.corners(printed, tuple(files))
    folder.update(baseline=(*folder.result.baseline, *found))
    for corner in found:
        access = access_name(corner.pattern, corner.block_bytes, corner.read_share)
        rates = [
            f"{word} {side.iops:,.0f} IOPS, {show_rate(side.bytes_per_second)}"
            for word, side in (("read", corner.read), ("write", corner.write))
            if side
        ]
        clients = counted(corner.clients, "client")
        say(f"{access}, depth {corner.depth}, {clients}: {'; '.join(rates) or 'no request completed'}")


class Progress:
    """Progress of a series of trials that take about the same time each."""

    def __init__(self, titles: Sequence[str], seconds: float) -> None:
        """Start the clock. A trial takes at least `seconds`."""
        self._titles = titles
        self._each = seconds
        self._number = -1
        self._begin = self._first = self._last = time.monotonic()

    def shown(self, comm: Comm) -> AbstractContextManager[None]:
        """Show the progress on rank 0 during the body."""
        return live.telling(self.now) if comm.rank == 0 else nullcontext()

    def begin(self, number: int) -> None:
        """Note that trial `number` begins."""
        self._number, self._last = number, time.monotonic()
        if number == 0:
            self._first = self._last

    def now(self) -> Now:
        """Return the progress. Called by a thread beside the trials."""
        now = time.monotonic()
        mean = (self._last - self._first) / self._number if self._number > 0 else self._each
        here = max(0.0, mean - (now - self._last)) if self._number >= 0 else mean
        left = here + (len(self._titles) - max(0, self._number) - 1) * mean
        seconds = now - self._begin
        return Now(
            verb="baseline",
            doing=self._titles[self._number] if self._number >= 0 else "laying out files",
            unit="test",
            part=self._number + 1,
            parts=len(self._titles),
            share=seconds / (seconds + left) if seconds + left else None,
            seconds=seconds,
            eta_seconds=left,
        )
