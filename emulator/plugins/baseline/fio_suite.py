"""fio as a tool: write every client's files, then run the job file of each turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from emulator.errors import SpecError, StorageError
from emulator.files import require_room
from emulator.plugins.baseline.fio import TOO_OLD, FioFolder, fio_version, parse, require_fio, run_fio, side
from emulator.plugins.baseline.measure import Sides, Tool
from emulator.plugins.baseline.suites import Suite, Turn, load_suite
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
    folders: tuple[Path, ...]
    """Folders over which each client spreads its files in turn, in a folder of its own below each."""
    file_bytes: int
    """Bytes of a file."""
    direct: bool = True
    seconds: float
    """Measured time of a turn in seconds."""
    ramp_seconds: float = 0.0
    """Seconds of ramp-up, before measurement."""

    def __post_init__(self) -> None:
        """Raise SpecError for a folder that fio would misread."""
        for folder in self.folders:
            _escaped(folder)

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self.suite.turns()

    @property
    def turn_seconds(self) -> float:
        return self.seconds + self.ramp_seconds

    def checked(self, clients: int) -> FioSuite:
        require_fio()
        files = self.suite.files
        if len(self.folders) > files:
            raise SpecError(f"{len(self.folders)} folders for {files} files of a client", "leave some out")
        # Files are spread in turn, so the first folder gets the most.
        fullest = -(-files // len(self.folders)) * clients * self.file_bytes
        direct = True
        for folder in self.folders:
            if folder.is_block_device():
                raise SpecError(
                    f"{folder} is a device, which fio would overwrite",
                    "mount a file system on it and give that",
                )
            require_room(folder, fullest, "the files", "choose a smaller --size, or fewer --jobs")
            direct = direct and probe_direct(folder)
        return replace(self, direct=direct)

    def described(self) -> dict[str, Any]:
        return {
            "workload": {
                "name": self.suite.name,
                "title": self.suite.title,
                "depths": self.suite.depths,
                "jobs": self.suite.clones,
                "file_bytes": self.file_bytes,
                "seconds": self.seconds,
                "ramp_seconds": self.ramp_seconds,
                "engine": "libaio",
            },
            "dataset": {"path": " ".join(map(str, self.folders))},
            "storage": {"cache": "cold" if self.direct else "warm", "direct": self.direct},
            "environment": {"fio": fio_version(), "mount": describe_mount(self.folders[0])},
            "flags": () if self.direct else (BUFFERED,),
        }

    def _folders_of(self, client: str) -> list[Path]:
        return [folder / "feedrate-baseline" / client for folder in self.folders]

    def prepare(self, client: str, stack: ExitStack) -> None:
        """Write every file completely, so that the first pattern does not read unwritten blocks."""
        for folder in self._folders_of(client):
            stack.enter_context(FioFolder(folder, keep=self.keep))
        layout = load_suite("layout", clones=self.suite.files)
        parse(run_fio(self.job_file(layout, layout.jobs, client)))

    def job_file(
        self, suite: Suite, names: Sequence[str], client: str, *, depth: int = 1, seed: int = 1
    ) -> str:
        """Return the sections `names` of a suite, on the files of `client`."""
        folders = [_escaped(folder) for folder in self._folders_of(client)]
        # Jobs that run together have a file each: DIRECTORY0 is the folder of the first one's.
        places = {f"DIRECTORY{file}": folders[file % len(folders)] for file in range(suite.files)}
        values = {
            **places,
            "DIRECTORY": ":".join(folders),
            "SIZE": self.file_bytes,
            "DIRECT": int(self.direct),
            "RUNTIME": f"{round(self.seconds * 1000)}ms",
            "RAMP": f"{round(self.ramp_seconds * 1000)}ms",
            "JOBS": suite.clones,
            "DEPTH": depth,
            "SEED": seed,
        }
        return suite.text(names, values)

    def run(self, turn: Turn, client: str, seed: int) -> tuple[str, str]:
        text = self.job_file(self.suite, list(turn.corners), client, depth=turn.depth, seed=seed)
        return text, run_fio(text, self.turn_seconds)

    def sides(self, turn: Turn, printed: Sequence[str]) -> list[Sides]:
        clients = [parse(text) for text in printed]
        if any(len(groups) != len(turn.corners) for groups in clients):
            raise StorageError("fio does not report one group for each section", TOO_OLD)
        return [
            (side([group["read"] for group in groups]), side([group["write"] for group in groups]))
            for groups in zip(*clients, strict=True)
        ]


def _escaped(folder: Path) -> str:
    """Return the folder as the value of an option in a job file. Raises SpecError.

    fio cuts a value at ";" and "#", a line break begins another option (exec_prerun runs a command), and "$"
    expands variables and keywords; none of them can be escaped. A colon separates folders and can be escaped.
    """
    text = str(folder.resolve())
    try:
        text.encode()
        wrong = re.search(r"[\x00-\x1f\x7f;#$]|\s$", text)
        problem = ascii(wrong[0]) if wrong else ""
    except UnicodeEncodeError:
        problem = "bytes that are not UTF-8"
    if problem:
        raise SpecError(f"fio cannot use the folder {text!r}: its name has {problem}", "rename it")
    return text.replace(":", "\\:")
