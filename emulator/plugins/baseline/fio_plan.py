"""Plan a suite of fio's: lay out every client's files, then run the job file of each turn.

A rank runs fio for itself; with servers, one process runs it for the `fio --server` of each host.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from emulator.errors import SpecError, StorageError
from emulator.plugins.baseline.clients import Plan, Say, Trial, run_trials
from emulator.plugins.baseline.fio import (
    FioFiles,
    Setting,
    fio_version,
    job_file,
    layout_file,
    parse,
    require_fio,
    run_fio,
    side,
)
from emulator.plugins.baseline.fio_servers import Server, reach, run_on
from emulator.plugins.baseline.suites import (
    FULL,
    QUICK,
    QUICK_DEPTHS,
    Suite,
    Turn,
    files_needed,
    find_suite,
    tuned,
    turns,
)
from emulator.record.machine import describe_machine, describe_mount
from emulator.record.result import Corner, Flag, RunResult, new_result
from emulator.run.comm import Comm, agreed
from emulator.storage.posix import probe_direct
from emulator.units import show_bytes, show_seconds

FOLDER = "feedrate-baseline"
"""Folder below DIR with the clients' folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FioPlan(Plan):
    """A suite of fio's on a number of clients."""

    suite: Suite
    setting: Setting
    """Settings shared by all clients, whose folders are below this one's."""
    counts: tuple[int, ...] = ()
    """Numbers of clients to sweep over; empty for all clients."""
    servers: tuple[Server, ...] = ()
    """Hosts that run `fio --server` as clients; empty if the ranks are the clients."""

    def clients(self, comm: Comm) -> int:
        """Return the number of clients. Collective over `comm`. Raises SpecError."""
        if not self.servers:
            return Plan.clients(self, comm)
        if comm.size > 1:
            raise SpecError("--servers is for one process, not for ranks", "leave mpirun or --servers out")
        return len(self.servers)

    def turns(self, clients: int) -> tuple[Turn, ...]:
        """Return the runs of fio with at most `clients` clients. Raises SpecError."""
        if self.counts and max(self.counts) > clients:
            raise SpecError(
                f"--clients asks for {max(self.counts)}, but there are {clients}",
                "start one rank a host, mpirun --map-by ppr:1:node feedrate ..., or name more --servers",
            )
        return turns(self.suite, self.counts or (clients,))

    def lines(self, clients: int) -> Iterator[str]:
        """Yield the plan for people. Raises SpecError."""
        planned = self.turns(clients)
        files, size = files_needed(planned), show_bytes(self.setting.file_bytes)
        yield f"suite:    {self.suite.name}, {self.suite.title}"
        yield f"clients:  {clients}, each with {files} files of {size} in {self.setting.folder}"
        least = len(planned) * (self.setting.seconds + self.setting.ramp_seconds)
        yield f"tests:    {len(planned)}, at least {show_seconds(least)}"
        yield from (f"  {turn.name}" for turn in planned)

    def check(self, clients: int) -> None:
        """Refuse what cannot work, before anything is written. Raises FeedrateError."""
        require_fio()
        planned = self.turns(clients)
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
        reach(self.servers)

    def run(self, comm: Comm, client: str, *, force: bool, say: Say) -> RunResult | None:
        """Run the suite with the ranks of `comm`; the result on rank 0. Collective."""
        direct = agreed(comm, lambda: probe_direct(self.setting.folder))
        setting = replace(self.setting, direct=direct)
        own = [server.name for server in self.servers] or [client]
        gathered: list[list[str]] = comm.allgather(own)
        names = [name for part in gathered for name in part]
        planned = self.turns(len(names))
        with ExitStack() as stack:
            mine = _Clients(
                setting=setting,
                names=own,
                first=sum(map(len, gathered[: comm.rank])),
                every=len(names),
                servers=self.servers,
            )

            def lay_out() -> None:
                files = files_needed(planned)
                if comm.rank == 0:
                    say(f"laying out {files} files of {show_bytes(setting.file_bytes)} a client")
                mine.lay_out(files, stack, self.keep)

            trials = [
                Trial(
                    title=turn.title,
                    folder=f"fio/{number:03d}-{turn.name}",
                    run=partial(mine.run, number, turn),
                    corners=partial(corners_of, turn),
                )
                for number, turn in enumerate(planned)
            ]
            return run_trials(
                self,
                comm,
                lambda: _new_result(self, setting, names),
                trials,
                prepare=lay_out,
                suffix="fio",
                seconds=setting.seconds + setting.ramp_seconds,
                force=force,
                say=say,
            )


def fio_plan(
    folder: Path,
    out: Path,
    *,
    suite: str = "four-corners",
    quick: bool = False,
    depths: Sequence[int] = (),
    jobs: int | None = None,
    counts: Sequence[int] = (),
    servers: Sequence[Server] = (),
    per_host: int = 1,
    file_bytes: int | None = None,
    seconds: float | None = None,
    ramp_seconds: float | None = None,
    engine: str = "libaio",
    keep: bool = False,
    command: Sequence[str] = (),
    label: str = "",
) -> FioPlan:
    """Return a plan of a suite on files below `folder`; None or empty: the default. Raises SpecError."""
    found, effort = find_suite(suite), QUICK if quick else FULL
    if quick and found.depths and not depths:
        depths = QUICK_DEPTHS
    return FioPlan(
        suite=tuned(found, depths, jobs),
        setting=Setting(
            folder=folder,
            file_bytes=effort.file_bytes if file_bytes is None else file_bytes,
            engine=engine,
            seconds=effort.seconds if seconds is None else seconds,
            ramp_seconds=effort.ramp_seconds if ramp_seconds is None else ramp_seconds,
        ),
        counts=tuple(counts),
        servers=tuple(servers),
        per_host=per_host,
        keep=keep,
        out=out,
        command=tuple(command),
        label=label,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clients:
    """The clients of this process."""

    setting: Setting
    names: Sequence[str]
    first: int
    """Number of the first client of this process among all clients."""
    every: int
    """Number of clients in all."""
    servers: tuple[Server, ...]

    def _setting(self, name: str) -> Setting:
        return replace(self.setting, folder=self.setting.folder / FOLDER / name)

    def _fio(self, texts: Sequence[str], seconds: float | None) -> list[str]:
        """Run job files that measure for `seconds` (None: until they are done); return fio's JSON of each."""
        if self.servers:
            return run_on(self.servers, texts, seconds)
        return [run_fio(text, seconds) for text in texts]

    def lay_out(self, files: int, stack: ExitStack, keep: bool) -> None:
        """Write every file whole, so that the first pattern meets written blocks; `stack` removes them."""
        for name in self.names:
            made = FioFiles(self._setting(name).folder, files, self.setting.file_bytes)
            stack.callback(made.close, keep=keep)
        for output in self._fio([layout_file(self._setting(name), files) for name in self.names], None):
            parse(output)

    def run(self, number: int, turn: Turn) -> Mapping[str, tuple[str, str]]:
        """Run turn `number` on its clients; return client -> (job file, fio's JSON)."""
        active = self.names[: max(0, turn.clients - self.first)]
        texts = [
            # Another seed for each client and turn: offsets that were read before may be cached.
            job_file(self._setting(name), turn.tasks, seed=1 + number * self.every + self.first + place)
            for place, name in enumerate(active)
        ]
        outputs = self._fio(texts, self.setting.seconds + self.setting.ramp_seconds) if texts else []
        return dict(zip(active, zip(texts, outputs, strict=True), strict=True))


def _new_result(plan: FioPlan, setting: Setting, clients: Sequence[str]) -> RunResult:
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


def corners_of(turn: Turn, printed: Sequence[str], files: tuple[str, ...]) -> list[Corner]:
    """Return a corner for each task of the turn, from the JSON of each client. Raises StorageError."""
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
