"""What is kept of a baseline: fio's own words, and the corners; run.json after every turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from emulator import __version__
from emulator.baseline.fio import fio_version, parse, side
from emulator.baseline.plan import Plan
from emulator.baseline.suites import Turn
from emulator.errors import StorageError, storage_error
from emulator.record.machine import describe_machine, describe_mount
from emulator.record.result import Corner, Flag, RunResult, Status
from emulator.record.store import prepare_out, write_result, write_whole
from emulator.units import show_rate

Say = Callable[[str], None]

KEPT = "fio"
"""Folder below OUT with job files and fio's JSON."""


@dataclass(slots=True)
class Book:
    """What rank 0 keeps: fio's own words, and the corners; run.json after every turn."""

    plan: Plan
    clients: list[str]
    environment: dict[str, Any]
    direct: bool
    corners: list[Corner] = field(default_factory=list)

    @classmethod
    def open(cls, plan: Plan, clients: list[str], direct: bool, force: bool) -> Book:
        """A new OUT; with `force`, in place of what an earlier one left. Raises SpecError, StorageError."""
        prepare_out(plan.out, force)
        for old in (plan.out / KEPT).glob("[0-9][0-9][0-9]-*/*"):
            if old.suffix in (".fio", ".json"):
                old.unlink()
        environment = {
            **describe_machine(),
            "fio": fio_version(),
            "clients": clients,
            "mount": describe_mount(plan.folder),
        }
        book = cls(plan, clients, environment, direct)
        book.write("incomplete")
        return book

    def add(self, number: int, turn: Turn, told: Sequence[tuple[str, str]], say: Say) -> None:
        """Keep what the clients ran and were told, and add the corners. Raises StorageError."""
        folder = Path(KEPT) / f"{number:03d}-{turn.name}"
        try:
            (self.plan.out / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(error, "cannot keep fio's output") from None
        files = []
        for client, (text, said) in list(zip(self.clients, told, strict=True))[: turn.clients]:
            _keep(self.plan.out / folder / f"{client}.fio", text)
            _keep(self.plan.out / folder / f"{client}.json", said)
            files.append(str(folder / f"{client}.json"))
        found = corners_of(turn, [said for _, said in told[: turn.clients]], tuple(files))
        self.corners.extend(found)
        self.write("incomplete")
        for corner, task in zip(found, turn.tasks, strict=True):
            say(f"{task.access.name}, depth {corner.depth}, {_clients(corner.clients)}: {_rates(corner)}")

    def write(self, status: Status) -> RunResult:
        """Raises StorageError."""
        plan = self.plan
        suite = plan.suite
        result = RunResult(
            kind="baseline", status=status, version=__version__,
            reason="" if status == "complete" else "the run has not ended, or was killed",
            created=datetime.now(UTC).isoformat(timespec="seconds"), command=plan.command,
            workload={
                "name": suite.name, "title": suite.title, "depths": suite.depths, "jobs": suite.jobs,
                "file_bytes": plan.file_bytes, "seconds": plan.seconds, "ramp_seconds": plan.ramp_seconds,
                "engine": plan.engine,
            },
            dataset={"path": str(plan.folder)},
            storage={"cache": "cold" if self.direct else "warm", "direct": self.direct},
            loader="fio", environment=self.environment, baseline=tuple(self.corners),
            flags=() if self.direct else (_BUFFERED,),
        )  # fmt: skip
        write_result(plan.out, result)
        return result


_BUFFERED = Flag(
    name="page-cache", value=1.0, threshold=0.0,
    sentence="The file system takes no O_DIRECT: requests went through the page cache of the clients.",
)  # fmt: skip


def _keep(path: Path, text: str) -> None:
    write_whole(path, lambda file: file.write(text.encode()))


def corners_of(turn: Turn, told: Sequence[str], files: tuple[str, ...]) -> list[Corner]:
    """One corner for each task of the turn, from the JSON of each client. Raises StorageError."""
    groups = [parse(text) for text in told]
    if any(len(found) != len(turn.tasks) for found in groups):
        raise StorageError("fio reports other groups than it was asked for", "fio 3.33 or newer is needed")
    return [
        Corner(
            pattern=task.access.pattern, block_bytes=task.access.block_bytes,
            read_share=task.access.read_share, depth=task.depth, jobs=task.jobs, clients=turn.clients,
            beside=turn.beside[place] if turn.beside else "",
            read=side([found[place]["read"] for found in groups]),
            write=side([found[place]["write"] for found in groups]), files=files,
        )
        for place, task in enumerate(turn.tasks)
    ]  # fmt: skip


def _clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"


def _rates(corner: Corner) -> str:
    parts = [
        f"{word} {one.iops:,.0f} IOPS, {show_rate(one.bytes_per_second)}"
        for word, one in (("read", corner.read), ("write", corner.write))
        if one
    ]
    return "; ".join(parts) or "no request completed"
