"""A suite on all clients: lay out, run turn by turn, keep everything, write the result."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from emulator.baseline.book import Book, Say
from emulator.baseline.fio import parse, require_fio, run_fio
from emulator.baseline.jobfile import FILE_NAME, Setting, job_file, layout_file
from emulator.baseline.plan import Plan
from emulator.baseline.suites import files_needed
from emulator.errors import FeedrateError, SpecError, StorageError, storage_error
from emulator.record.result import RunResult
from emulator.record.store import check_out
from emulator.storage.posix import probe_direct
from emulator.units import show_bytes

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
