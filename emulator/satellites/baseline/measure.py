"""What a baseline is asked to do, decided before fio starts."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

from emulator import __version__
from emulator.errors import FeedrateError, SpecError, StorageError, storage_error
from emulator.files import write_whole
from emulator.record.folder import check_out, prepare_out, write_result
from emulator.record.machine import describe_machine, describe_mount
from emulator.record.result import Corner, Flag, RunResult, Status
from emulator.satellites.baseline.fio import (
    FILE_NAME,
    Setting,
    fio_version,
    job_file,
    layout_file,
    parse,
    require_fio,
    run_fio,
    side,
)
from emulator.satellites.baseline.suites import Suite, Turn, files_needed, turns
from emulator.storage.posix import probe_direct
from emulator.units import show_bytes, show_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a baseline is asked to do."""

    folder: Path
    """On the storage."""
    suite: Suite
    clients: tuple[int, ...]
    """Numbers of clients to sweep over; empty: all that there are."""
    file_bytes: int
    """Bytes of a job's file."""
    seconds: float
    """Measured time of a turn."""
    ramp_seconds: float
    """Time before it that is not counted."""
    engine: str
    """fio's ioengine."""
    keep: bool
    """Leave the files in `folder` afterwards."""
    out: Path
    command: tuple[str, ...]

    def turns(self, clients: int) -> tuple[Turn, ...]:
        """The runs of fio with at most `clients` clients. Raises SpecError."""
        if self.clients and max(self.clients) > clients:
            raise SpecError(
                f"--clients asks for {max(self.clients)}, but there are {clients}",
                "start one rank a host, mpirun --map-by ppr:1:node feedrate ..., or name more --servers",
            )
        return turns(self.suite, self.clients or (clients,))


def parse_list(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers above 0 from `1,8,32`. Raises SpecError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise SpecError(f"{option} {text!r} is not a list of numbers above 0", "write it like 1,8,32")
    return tuple(map(int, parts))


# ---- What is kept of a baseline: fio's own words, and the corners; run.json after every turn.


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
            write_whole(self.plan.out / folder / f"{client}.fio", text)
            write_whole(self.plan.out / folder / f"{client}.json", said)
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


# ---- A suite on all clients: lay out, run turn by turn, keep everything, write the result.


FOLDER = "feedrate-baseline"
"""Folder below DIR with the clients' folders."""
Value = TypeVar("Value")


class Clients(Protocol):
    """The processes that run one fio each, and how they talk."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def barrier(self) -> None: ...

    def bcast(self, value: Any) -> Any: ...

    def allgather(self, value: Any) -> list[Any]: ...


def measure(plan: Plan, crew: Clients, client: str, *, force: bool, say: Say) -> RunResult | None:
    """Run the suite with every process of `crew` as a client, and return the result on rank 0.

    `client` names this one: a folder below DIR. Collective; an error of one is raised by all.
    Raises SpecError, StorageError, MissingError.
    """
    planned = plan.turns(crew.size)
    direct = together(crew, lambda: probe_direct(plan.folder))
    setting = Setting(
        folder=plan.folder / FOLDER / client, file_bytes=plan.file_bytes, engine=plan.engine, direct=direct,
        seconds=plan.seconds, ramp_seconds=plan.ramp_seconds,
    )  # fmt: skip
    names: list[str] = crew.allgather(client)
    book = together(crew, lambda: Book.open(plan, names, direct, force) if crew.rank == 0 else None)
    try:
        together(crew, lambda: _lay_out(setting, files_needed(planned), say if book else _silent))
        for number, turn in enumerate(planned):
            crew.barrier()
            active = crew.rank < turn.clients
            text = job_file(setting, turn.tasks, seed=1 + number * crew.size + crew.rank)
            told = together(crew, lambda t=text, a=active: _run(plan, t) if a else "")  # type: ignore[misc]
            kept: list[tuple[str, str]] = crew.allgather((text, told))
            together(crew, lambda n=number, t=turn, k=kept: book.add(n, t, k, say) if book else None)  # type: ignore[misc]
    finally:
        if not plan.keep:
            remove_files(setting, files_needed(planned))
    return book.write("complete") if book else None


def _silent(line: str) -> None:
    pass


def together(crew: Clients, action: Callable[[], Value]) -> Value:
    """`action()` on every process; when one raises a FeedrateError, all end.

    The first that failed raises its error, the others SystemExit: it is said once.
    """
    failed: FeedrateError | None = None
    value: Value | None = None
    try:
        value = action()
    except FeedrateError as error:
        failed = error
    codes = crew.allgather(failed.exit_code if failed else 0)
    if not any(codes):
        return value  # type: ignore[return-value]
    first = next(rank for rank, code in enumerate(codes) if code)
    if failed is not None and crew.rank == first:
        raise failed
    raise SystemExit(codes[first])


def check(plan: Plan, clients: int, force: bool) -> None:
    """What can be seen before anything is written. Raises SpecError, StorageError, MissingError."""
    require_fio()
    planned = plan.turns(clients)
    check_out(plan.out, force)
    if not plan.folder.is_dir():
        raise StorageError(f"there is no folder {plan.folder}", "mount the storage, or check the path")
    needed = files_needed(planned) * plan.file_bytes * clients
    free = shutil.disk_usage(plan.folder).free
    if needed > free:
        raise SpecError(
            f"the files need {show_bytes(needed)}, but {plan.folder} has {show_bytes(free)} free",
            "choose a smaller --size, or fewer --jobs",
        )


def _lay_out(setting: Setting, files: int, say: Say) -> None:
    """Write every file whole: the first pattern meets written blocks."""
    say(f"laying out {files} files of {show_bytes(setting.file_bytes)} a client")
    make_folder(setting)
    parse(run_fio(layout_file(setting, files)))


def make_folder(setting: Setting) -> None:
    """The folder of a client. Raises StorageError."""
    try:
        setting.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, "cannot create the folder") from None


def _run(plan: Plan, text: str) -> str:
    return run_fio(text, plan.seconds + plan.ramp_seconds)


def remove_files(setting: Setting, files: int) -> None:
    """Remove the files of a client, and its folder where nothing else is in it."""
    try:
        for number in range(files):
            (setting.folder / FILE_NAME.format(number)).unlink(missing_ok=True)
        for folder in (setting.folder, setting.folder.parent):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    except OSError:
        return  # another client was faster, or the storage is gone, which has been said already


# ---- A suite on hosts that run `fio --server`: one fio here gives them their jobs and collects the results.
#
# The storage is mounted at the same path on all of them and here.


PORT = 8765
"""Where fio --server listens when it is told nothing else."""
_CONNECT_SECONDS = 5.0
_GLOBAL = "[global]\nunique_filename=0\n"
"""A server would put its client's address before the names of files."""
_SERVER = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A host that runs `fio --server`."""

    host: str
    port: int

    @property
    def name(self) -> str:
        """Its folder below DIR, and its files below OUT."""
        return self.host if self.port == PORT else f"{self.host}-{self.port}"


def parse_servers(text: str) -> tuple[Server, ...]:
    """`node1,node2:8766` as servers. Raises SpecError."""
    found = []
    for part in text.split(","):
        match = _SERVER.fullmatch(part.strip())
        if match is None or not 0 < int(match[2] or PORT) < 65536:
            raise SpecError(
                f"--servers {text!r}: {part!r} is not understood", "write it like node1,node2:8766"
            )
        found.append(Server(host=match[1], port=int(match[2] or PORT)))
    if len(set(found)) < len(found):
        raise SpecError(
            f"--servers {text!r} names a host twice", "run one fio --server a host, or other ports"
        )
    return tuple(found)


def reach(servers: Sequence[Server]) -> None:
    """Raises StorageError when one of them does not answer."""
    for server in servers:
        try:
            socket.create_connection((server.host, server.port), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            raise StorageError(
                f"no fio answers on {server.host}, port {server.port} ({error.strerror or error})",
                "start fio --server there, and let the port through",
            ) from None


def measure_remote(plan: Plan, servers: Sequence[Server], *, force: bool, say: Say) -> RunResult:
    """Run the suite with every server as a client. Raises SpecError, StorageError, MissingError."""
    planned = plan.turns(len(servers))
    direct = probe_direct(plan.folder)
    settings = [
        Setting(
            folder=plan.folder / FOLDER / server.name, file_bytes=plan.file_bytes, engine=plan.engine,
            direct=direct, seconds=plan.seconds, ramp_seconds=plan.ramp_seconds,
        )
        for server in servers
    ]  # fmt: skip
    files = files_needed(planned)
    book = Book.open(plan, [server.name for server in servers], direct, force)
    try:
        say(f"laying out {files} files of {show_bytes(plan.file_bytes)} a client")
        for setting in settings:
            make_folder(setting)
        for one in run_on(servers, [layout_file(setting, files) for setting in settings]):
            parse(one)
        for number, turn in enumerate(planned):
            texts = [
                job_file(setting, turn.tasks, seed=1 + number * len(servers) + place)
                for place, setting in enumerate(settings[: turn.clients])
            ]
            told = run_on(servers, texts, plan.seconds + plan.ramp_seconds)
            idle = [("", "")] * (len(servers) - turn.clients)
            book.add(number, turn, [*zip(texts, told, strict=True), *idle], say)
    finally:
        if not plan.keep:
            for setting in settings:
                remove_files(setting, files)
    return book.write("complete")


def run_on(servers: Sequence[Server], texts: Sequence[str], seconds: float | None = None) -> list[str]:
    """Run one job file on each of the first servers, all at once; fio's JSON of each, as if run there.

    `seconds` is the time that it should measure. Raises StorageError, MissingError.
    """
    with TemporaryDirectory(prefix="feedrate-") as folder:
        words = []
        for number, (server, text) in enumerate(zip(servers, texts, strict=False)):
            file = Path(folder) / f"{number}.fio"
            file.write_text(text.replace("[global]\n", _GLOBAL, 1))
            words += [f"--client=ip:{server.host},{server.port}", str(file)]
        told = run_fio("", seconds, words)
    return apart(told, servers[: len(texts)])


def apart(text: str, servers: Sequence[Server]) -> list[str]:
    """fio's JSON of many clients as one for each, in the order of `servers`. Raises StorageError.

    What fio says of all clients together is left out: it has no histograms.
    """
    try:
        whole = json.loads(text)
        groups = [one for one in whole.pop("client_stats") if one["jobname"] != "All clients"]
        found = [
            [one for one in groups if (one["hostname"], one["port"]) == (server.host, server.port)]
            for server in servers
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"fio's JSON cannot be read ({error})", "fio 3.33 or newer is needed") from None
    for server, mine in zip(servers, found, strict=True):
        if not mine:
            raise StorageError(f"fio on {server.host}, port {server.port}, reports nothing", "see its output")
    return [json.dumps({**whole, "jobs": mine}, indent=2) for mine in found]
