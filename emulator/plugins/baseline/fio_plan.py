"""A plan of fio: write every client's files, then run the job file of each turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from emulator.errors import SpecError, StorageError
from emulator.files import require_room
from emulator.plugins.baseline.clients import Plan, Sides
from emulator.plugins.baseline.fio import (
    ENGINE,
    TOO_OLD,
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
from emulator.record.machine import describe_mount
from emulator.record.result import Flag
from emulator.storage.posix import probe_direct
from emulator.units import show_bytes, show_seconds

FOLDER = "feedrate-baseline"
"""Folder below DIR with the clients' folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FioPlan(Plan):
    """A suite of fio on a number of clients, each with its own files."""

    tool: ClassVar[str] = "fio"
    folder: ClassVar[str] = "fio"
    suffix: ClassVar[str] = "fio"

    suite: Suite
    setting: Setting
    """Settings of all clients, whose folders are below its folder."""
    counts: tuple[int, ...] = ()
    """Numbers of clients to sweep; empty for all clients."""

    @property
    def turn_seconds(self) -> float:
        return self.setting.seconds + self.setting.ramp_seconds

    def turns(self, clients: int) -> tuple[Turn, ...]:
        if self.counts and max(self.counts) > clients:
            raise SpecError(
                f"--clients needs {max(self.counts)}, but there are {clients}",
                "start one rank per host: mpirun --map-by ppr:1:node feedrate ...",
            )
        return turns(self.suite, self.counts or (clients,))

    def lines(self, clients: int) -> Iterator[str]:
        planned = self.turns(clients)
        files, size = files_needed(planned), show_bytes(self.setting.file_bytes)
        yield f"suite:    {self.suite.name}, {self.suite.title}"
        yield f"clients:  {clients}, each with {files} files of {size} in {self.setting.folder}"
        yield f"tests:    {len(planned)}, at least {show_seconds(len(planned) * self.turn_seconds)}"
        yield from (f"  {turn.name}" for turn in planned)

    def checked(self, clients: int) -> FioPlan:
        require_fio()
        planned = self.turns(clients)
        folder = self.setting.folder
        needed = files_needed(planned) * self.setting.file_bytes * clients
        require_room(folder, needed, "the files", "choose a smaller --size, or fewer --jobs")
        return replace(self, setting=replace(self.setting, direct=probe_direct(folder)))

    def described(self) -> dict[str, Any]:
        suite, setting = self.suite, self.setting
        buffered = Flag(
            name="page-cache",
            value=1.0,
            threshold=0.0,
            sentence="The file system does not support O_DIRECT: requests went through the page cache of the "
            "clients.",
        )
        return {
            "workload": {
                "name": suite.name,
                "title": suite.title,
                "depths": suite.depths,
                "jobs": suite.jobs,
                "file_bytes": setting.file_bytes,
                "seconds": setting.seconds,
                "ramp_seconds": setting.ramp_seconds,
                "engine": ENGINE,
            },
            "dataset": {"path": str(setting.folder)},
            "storage": {"cache": "cold" if setting.direct else "warm", "direct": setting.direct},
            "environment": {"fio": fio_version(), "mount": describe_mount(setting.folder)},
            "flags": () if setting.direct else (buffered,),
        }

    def _setting(self, client: str) -> Setting:
        return replace(self.setting, folder=self.setting.folder / FOLDER / client)

    def prepare(self, client: str, turns: Sequence[Turn], stack: ExitStack) -> None:
        """Write every file completely, so that the first pattern does not read unwritten blocks."""
        setting, files = self._setting(client), files_needed(turns)
        made = FioFiles(setting.folder, files, setting.file_bytes)
        stack.callback(made.close, keep=self.keep)
        parse(run_fio(layout_file(setting, files)))

    def run(self, turn: Turn, client: str, seed: int) -> tuple[str, str]:
        text = job_file(self._setting(client), turn.tasks, seed)
        return text, run_fio(text, self.turn_seconds)

    def sides(self, turn: Turn, printed: Sequence[str]) -> list[Sides]:
        groups = [parse(text) for text in printed]
        if any(len(found) != len(turn.tasks) for found in groups):
            raise StorageError("fio does not report one group for each section", TOO_OLD)
        return [
            (side([task["read"] for task in tasks]), side([task["write"] for task in tasks]))
            for tasks in zip(*groups, strict=True)
        ]


def fio_plan(
    folder: Path,
    out: Path,
    *,
    suite: str = "four-corners",
    quick: bool = False,
    depths: Sequence[int] = (),
    jobs: int | None = None,
    counts: Sequence[int] = (),
    per_host: int = 1,
    file_bytes: int | None = None,
    seconds: float | None = None,
    keep: bool = False,
    command: Sequence[str] = (),
    label: str = "",
) -> FioPlan:
    """Return a plan of a suite on files below `folder`; None or empty for defaults. Raises SpecError."""
    found, effort = find_suite(suite), QUICK if quick else FULL
    if quick and found.depths and not depths:
        depths = QUICK_DEPTHS
    return FioPlan(
        suite=tuned(found, depths, jobs),
        setting=Setting(
            folder=folder,
            file_bytes=effort.file_bytes if file_bytes is None else file_bytes,
            seconds=effort.seconds if seconds is None else seconds,
            ramp_seconds=effort.ramp_seconds,
        ),
        counts=tuple(counts),
        per_host=per_host,
        keep=keep,
        out=out,
        command=tuple(command),
        label=label,
    )
