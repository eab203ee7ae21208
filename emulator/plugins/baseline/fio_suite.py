"""fio as a tool: write every client's files, then run the job file of each turn."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from emulator.errors import SpecError, StorageError
from emulator.files import require_room
from emulator.plugins.baseline.fio import (
    TOO_OLD,
    FioFolder,
    Setting,
    fio_version,
    parse,
    require_fio,
    run_fio,
    side,
)
from emulator.plugins.baseline.measure import Sides, Tool
from emulator.plugins.baseline.suites import QUICK_DEPTHS, Suite, Turn, find_suite
from emulator.record.machine import describe_mount
from emulator.record.result import Flag
from emulator.storage.posix import probe_direct

BUFFERED = Flag(
    name="page-cache",
    value=1.0,
    threshold=0.0,
    sentence="The file system does not support O_DIRECT: requests went through the clients' page cache.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FioSuite(Tool):
    """A suite of fio on files of each client."""

    name: ClassVar[str] = "fio"
    folder: ClassVar[str] = "fio"
    suffix: ClassVar[str] = "fio"

    suite: Suite
    setting: Setting
    """Settings of all clients, whose folders are below its folders."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self.suite.turns()

    @property
    def turn_seconds(self) -> float:
        return self.setting.seconds + self.setting.ramp_seconds

    @property
    def clones(self) -> int:
        return self.suite.clones

    def checked(self, clients: int) -> FioSuite:
        require_fio()
        folders, direct = self.setting.folders, True
        if len(folders) > self.suite.files:
            raise SpecError(
                f"{len(folders)} folders for {self.suite.files} files of a client", "leave some out"
            )
        for folder in folders:
            if folder.is_block_device():
                raise SpecError(
                    f"{folder} is a device, which fio would overwrite",
                    "mount a file system on it and give that",
                )
            files = -(-self.suite.files // len(folders)) * clients
            hint = "choose a smaller --size, or fewer --jobs"
            require_room(folder, files * self.setting.file_bytes, "the files", hint)
            direct = direct and probe_direct(folder)
        return replace(self, setting=replace(self.setting, direct=direct))

    def described(self) -> dict[str, Any]:
        suite, setting = self.suite, self.setting
        return {
            "workload": {
                "name": suite.name,
                "title": suite.title,
                "depths": suite.depths,
                "jobs": suite.clones,
                "file_bytes": setting.file_bytes,
                "seconds": setting.seconds,
                "ramp_seconds": setting.ramp_seconds,
                "engine": "libaio",
            },
            "dataset": {"path": " ".join(map(str, setting.folders))},
            "storage": {"cache": "cold" if setting.direct else "warm", "direct": setting.direct},
            "environment": {"fio": fio_version(), "mount": describe_mount(setting.folders[0])},
            "flags": () if setting.direct else (BUFFERED,),
        }

    def _setting(self, client: str) -> Setting:
        folders = tuple(folder / "feedrate-baseline" / client for folder in self.setting.folders)
        return replace(self.setting, folders=folders)

    def prepare(self, client: str, stack: ExitStack) -> None:
        """Write every file completely, so that the first pattern does not read unwritten blocks."""
        setting = self._setting(client)
        for folder in setting.folders:
            stack.enter_context(FioFolder(folder)).keep = self.keep
        setting.lay_out(self.suite.files)

    def run(self, turn: Turn, client: str, seed: int) -> tuple[str, str]:
        names = [job.name for job in turn.jobs]
        text = self._setting(client).job_file(self.suite, names, depth=turn.depth, seed=seed)
        return text, run_fio(text, self.turn_seconds)

    def sides(self, turn: Turn, printed: Sequence[str]) -> list[Sides]:
        clients = [parse(text) for text in printed]
        if any(len(groups) != len(turn.jobs) for groups in clients):
            raise StorageError("fio does not report one group for each section", TOO_OLD)
        return [
            (side([group["read"] for group in groups]), side([group["write"] for group in groups]))
            for groups in zip(*clients, strict=True)
        ]


def fio_suite(
    folders: Sequence[Path],
    out: Path,
    *,
    suite: str = "four-corners",
    quick: bool = False,
    depths: Sequence[int] = (),
    jobs: int | None = None,
    file_bytes: int | None = None,
    seconds: float | None = None,
    keep: bool = False,
    command: Sequence[str] = (),
    label: str = "",
) -> FioSuite:
    """Return a suite on files below `folders`; None or empty for defaults. Raises SpecError."""
    chosen = find_suite(suite, depths, jobs)
    if quick and chosen.depths and not depths:
        chosen = replace(chosen, depths=QUICK_DEPTHS)
    setting = Setting(
        folders=tuple(folders),
        file_bytes=file_bytes or (2**26 if quick else 2**30),
        seconds=seconds or (2.0 if quick else 30.0),
        ramp_seconds=0.2 if quick else 5.0,
    )
    return FioSuite(suite=chosen, setting=setting, keep=keep, out=out, command=tuple(command), label=label)
