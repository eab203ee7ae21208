"""A suite on all clients: lay out files, run fio turn by turn, keep what it printed, write the result.

A process runs fio for some of the clients: a rank for its own, or one process for the `fio --server` of many
hosts. `take_turn` and `as_clients` serve rados bench too.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from emulator import live
from emulator.errors import SpecError, StorageError
from emulator.live import Now
from emulator.plugins.baseline.fio import (
    Files,
    Setting,
    fio_version,
    job_file,
    layout_file,
    parse,
    require_fio,
    side,
)
from emulator.plugins.baseline.suites import Suite, Turn, access_name, files_needed, turns
from emulator.record.machine import describe_machine, describe_mount
from emulator.record.out import ResultFolder, check_out
from emulator.record.result import Corner, Flag, RunResult, new_result
from emulator.run.comm import Comm, Quiet, agreed, guarded
from emulator.storage.posix import probe_direct
from emulator.units import show_bytes, show_rate, show_seconds

FOLDER = "feedrate-baseline"
"""Folder below DIR with the clients' folders."""

Say = Callable[[str], None]
RunFio = Callable[[Sequence[str], float | None], list[str]]
"""Runs a job file for each of the first clients of this process, at once; fio's JSON of each.

The number is the seconds that they measure; None: as long as it takes. Raises StorageError.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselinePlan:
    """What a baseline is asked to do."""

    suite: Suite
    clients: tuple[int, ...]
    """Numbers of clients to sweep over; empty: all that there are."""
    setting: Setting
    """Of each client, in a folder of its own below this one's."""
    keep: bool
    """Leave the files afterwards."""
    out: Path
    command: tuple[str, ...]
    label: str = ""
    """A name for the result, for people."""

    def turns(self, clients: int) -> tuple[Turn, ...]:
        """The runs of fio with at most `clients` clients. Raises SpecError."""
        if self.clients and max(self.clients) > clients:
            raise SpecError(
                f"--clients asks for {max(self.clients)}, but there are {clients}",
                "start one rank a host, mpirun --map-by ppr:1:node feedrate ..., or name more --servers",
            )
        return turns(self.suite, self.clients or (clients,))

    def lines(self, clients: int) -> Iterator[str]:
        """What it would do, for people. Raises SpecError."""
        planned = self.turns(clients)
        files, size = files_needed(planned), show_bytes(self.setting.file_bytes)
        yield f"suite:    {self.suite.name}, {self.suite.title}"
        yield f"clients:  {clients}, each with {files} files of {size} in {self.setting.folder}"
        least = len(planned) * (self.setting.seconds + self.setting.ramp_seconds)
        yield f"tests:    {len(planned)}, at least {show_seconds(least)}"
        yield from (f"  {turn.name}" for turn in planned)

    def check(self, clients: int, force: bool) -> None:
        """What can be seen before anything is written. Raises SpecError, StorageError, MissingError."""
        require_fio()
        planned = self.turns(clients)
        check_out(self.out, force)
        folder = self.setting.folder
        if not folder.is_dir():
            raise StorageError(f"there is no folder {folder}", "mount the storage, or check the path")
        needed = files_needed(planned) * self.setting.file_bytes * clients
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise SpecError(
                f"the files need {show_bytes(needed)}, but {folder} has {show_bytes(free)} free",
                "choose a smaller --size, or fewer --jobs",
            )


def measure(
    plan: BaselinePlan, comm: Comm, clients: Sequence[str], run: RunFio, *, force: bool, say: Say
) -> RunResult | None:
    """Run the suite on the clients of all processes of `comm`, and return the result on rank 0.

    `clients` names those of this process, each a folder below DIR; `run` runs fio for them. Collective; an
    error of one process ends all.
    """
    gathered: list[Sequence[str]] = comm.allgather(clients)
    names = [name for some in gathered for name in some]
    first = sum(map(len, gathered[: comm.rank]))
    planned = plan.turns(len(names))
    files = files_needed(planned)
    direct = agreed(comm, lambda: probe_direct(plan.setting.folder))
    shared = replace(plan.setting, direct=direct)
    settings = [replace(shared, folder=shared.folder / FOLDER / name) for name in clients]

    def create() -> ResultFolder | None:
        if comm.rank:
            return None
        return ResultFolder.create(plan.out, _new_result(plan, shared, names), force=force)

    record = agreed(comm, create)

    held: list[Files] = []

    def lay_out() -> None:
        """Write every file whole: the first pattern meets written blocks."""
        if record:
            say(f"laying out {files} files of {show_bytes(shared.file_bytes)} a client")
        for setting in settings:
            held.append(Files(setting.folder, files, setting.file_bytes))
        for output in run([layout_file(setting, files) for setting in settings], None):
            parse(output)

    def run_turn(number: int) -> dict[str, tuple[str, str]]:
        turn = planned[number]
        texts = {
            name: job_file(setting, turn.tasks, seed=1 + number * len(names) + first + place)
            for place, (name, setting) in enumerate(zip(clients, settings, strict=True))
            if first + place < turn.clients
        }
        outputs = run(list(texts.values()), shared.seconds + shared.ramp_seconds) if texts else []
        return {name: (texts[name], output) for name, output in zip(texts, outputs, strict=True)}

    progress = Turns([turn.title for turn in planned], shared.seconds + shared.ramp_seconds)
    stack = ExitStack()
    try:
        stack.enter_context(progress.shown(comm))
        agreed(comm, lay_out, plan.out)
        for number, turn in enumerate(planned):
            progress.begin(number)
            folder = f"fio/{number:03d}-{turn.name}"
            take_turn(
                comm,
                plan.out,
                record,
                folder,
                "fio",
                partial(run_turn, number),
                partial(corners_of, turn),
                say,
            )
    finally:
        stack.close()
        for part in held:
            part.close(keep=plan.keep)
    return record.complete() if record else None


def _new_result(plan: BaselinePlan, setting: Setting, clients: Sequence[str]) -> RunResult:
    buffered = Flag(
        name="page-cache",
        value=1.0,
        threshold=0.0,
        sentence="The file system takes no O_DIRECT: requests went through the page cache of the clients.",
    )
    suite = plan.suite
    return new_result(
        "baseline",
        command=plan.command,
        label=plan.label,
        workload={
            "name": suite.name,
            "title": suite.title,
            "depths": suite.depths,
            "jobs": suite.jobs,
            "file_bytes": setting.file_bytes,
            "seconds": setting.seconds,
            "ramp_seconds": setting.ramp_seconds,
            "engine": setting.engine,
        },
        dataset={"path": str(setting.folder)},
        storage={"cache": "cold" if setting.direct else "warm", "direct": setting.direct},
        loader="fio",
        environment={
            **describe_machine(),
            "fio": fio_version(),
            "clients": clients,
            "mount": describe_mount(setting.folder),
        },
        flags=() if setting.direct else (buffered,),
    )


class Turns:
    """How far a row of tests is that take a known time each."""

    def __init__(self, names: Sequence[str], seconds: float) -> None:
        """`seconds` is what each test takes at least."""
        self._names = names
        self._each = seconds
        self._number = -1
        self._begin = self._turn = time.monotonic()
        self._ended: list[float] = []

    def shown(self, comm: Comm) -> AbstractContextManager[None]:
        """While it is open, rank 0 shows how far it is."""
        return live.telling(self.now) if comm.rank == 0 else nullcontext()

    def begin(self, number: int) -> None:
        """Test `number` begins."""
        now = time.monotonic()
        if self._number >= 0:
            self._ended.append(now - self._turn)
        self._number, self._turn = number, now

    def now(self) -> Now:
        """Where it is. For a thread beside it."""
        now = time.monotonic()
        mean = sum(self._ended) / len(self._ended) if self._ended else self._each
        here = max(0.0, mean - (now - self._turn)) if self._number >= 0 else mean
        left = here + (len(self._names) - max(0, self._number) - 1) * mean
        seconds = now - self._begin
        return Now(
            verb="baseline",
            doing=self._names[self._number] if self._number >= 0 else "laying out files",
            unit="test",
            part=self._number + 1,
            parts=len(self._names),
            share=seconds / (seconds + left) if seconds + left else None,
            seconds=seconds,
            eta_seconds=left,
        )


def take_turn(
    comm: Comm,
    out: Path,
    record: ResultFolder | None,
    folder: str,
    suffix: str,
    run: Callable[[], Mapping[str, tuple[str, str]]],
    corners: Callable[[Sequence[str], tuple[str, ...]], Sequence[Corner]],
    say: Say,
) -> None:
    """Run one turn on all clients from a common start on, and add it to the record. Collective over `comm`.

    `run()` returns for each client of this process what was run and what the tool printed. Rank 0, which has
    the `record`, keeps these below `folder` of OUT as CLIENT.`suffix` and CLIENT.json, and adds what
    `corners(printed, files)` makes of them.
    """
    comm.barrier()
    gathered: list[Mapping[str, tuple[str, str]]] = comm.gather(agreed(comm, run, out))

    def add() -> None:
        if record is None:
            return
        ran = {client: pair for part in gathered for client, pair in part.items()}
        for client, (text, printed) in ran.items():
            record.keep(f"{folder}/{client}.{suffix}", text)
            record.keep(f"{folder}/{client}.json", printed)
        files = tuple(f"{folder}/{client}.json" for client in ran)
        found = corners([printed for _, printed in ran.values()], files)
        record.update(baseline=(*record.result.baseline, *found))
        for corner in found:
            access = access_name(corner.pattern, corner.block_bytes, corner.read_share)
            clients = "1 client" if corner.clients == 1 else f"{corner.clients} clients"
            rates = [
                f"{word} {part.iops:,.0f} IOPS, {show_rate(part.bytes_per_second)}"
                for word, part in (("read", corner.read), ("write", corner.write))
                if part
            ]
            say(f"{access}, depth {corner.depth}, {clients}: {'; '.join(rates) or 'no request completed'}")

    agreed(comm, add, out)


def corners_of(turn: Turn, printed: Sequence[str], files: tuple[str, ...]) -> list[Corner]:
    """One corner for each task of the turn, from the JSON of each client. Raises StorageError."""
    groups = [parse(text) for text in printed]
    if any(len(found) != len(turn.tasks) for found in groups):
        raise StorageError("fio reports other groups than it was asked for", "fio 3.33 or newer is needed")
    return [
        Corner(
            pattern=task.access.pattern,
            block_bytes=task.access.block_bytes,
            read_share=task.access.read_share,
            depth=task.depth,
            jobs=task.jobs,
            clients=turn.clients,
            beside=turn.beside[place] if turn.beside else "",
            read=side([found[place]["read"] for found in groups]),
            write=side([found[place]["write"] for found in groups]),
            files=files,
        )
        for place, task in enumerate(turn.tasks)
    ]


def as_clients(
    comm: Comm, per_host: int, out: Path, run: Callable[[Comm, str], RunResult | None]
) -> RunResult | None:
    """`run(group, name)` on the first `per_host` ranks of each host, while the others wait; what it returns.

    `group` is the group of these ranks, `name` what this one is called. Collective over `comm`; None on
    ranks that wait.
    """
    node = comm.node()
    active = node.rank < per_host
    group, host = comm.split(0 if active else 1), socket.gethostname()
    result, status = None, 0
    with guarded(comm, out):
        if active:
            try:
                result = run(group, host if per_host == 1 else f"{host}-{node.rank}")
            except Quiet as end:  # all clients have ended; the ranks that wait have to be told
                status = int(end.code or 0)
        failed = [status for status in comm.allgather(status) if status]
        if failed:
            raise Quiet(failed[0])
    return result
