"""`feedrate verify`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from emulator import live
from emulator.cli import options
from emulator.config.storage import parse_place
from emulator.dataset.checking import Checked, Checking
from emulator.dataset.checking import verify as check
from emulator.dataset.verify import EXTRA, Fault
from emulator.errors import DatasetError, FeedrateError, StorageError
from emulator.launch.comm import Comm
from emulator.launch.world import on_ranks
from emulator.units import counted


def verify(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder of the dataset, or s3://...")],
    ranks: options.Ranks = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Check N files, evenly spread.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Readers of a process; default: 16.")] = None,
    repair_: Annotated[bool, typer.Option("--repair", help="Make wrong files again.")] = False,
) -> None:
    """Find flipped bits, truncated, missing and extra files; exit status 3 when there are any.

    \b
    Examples:
      feedrate verify /mnt/ai/kits19
      feedrate verify /mnt/ai/kits19 --sample 1000 --repair
    """
    how = Checking(sample=sample, threads=threads, repair=repair_)

    def work(comm: Comm) -> int:
        """Read this rank's share of the files."""
        if checked := check(parse_place(folder), comm, how):
            _say_checked(folder, checked, how)
        return 0

    try:
        status = on_ranks(work, ranks)
    except KeyboardInterrupt:
        stays = "files that were made again stay; verify again" if repair_ else "nothing was changed"
        print(f"feedrate: interrupted: {stays}", file=sys.stderr)
        raise typer.Exit(130) from None
    if status:
        raise typer.Exit(status)


def _say_checked(folder: str, checked: Checked, how: Checking) -> None:
    """Print the faults. Raises DatasetError or StorageError if any are left."""
    for fault in checked.found:
        print(f"{fault.name}: {fault.what}")
    files, faults = counted(checked.files, "file"), counted(len(checked.found), "fault")
    print(f"{folder}: {checked.checked} of {files} checked, {faults}")
    if live.for_programs():
        live.answer(
            {
                "folder": folder,
                "checked": checked.checked,
                "files": checked.files,
                "faults": [{"file": fault.name, "what": fault.what} for fault in checked.found],
                "repeated": dict(checked.repeated),
            }
        )
    if how.repair and checked.found:
        print(f"{folder}: {counted(len(checked.found) - len(checked.left), 'file')} made again")
    if checked.left:
        raise _refused(folder, checked.left)


def _refused(folder: str, faults: Sequence[Fault]) -> FeedrateError:
    """The error of a dataset with these faults."""
    unread = [fault for fault in faults if fault.unread]
    if unread:
        return StorageError(
            f"{counted(len(unread), 'file')} of {folder} could not be read: {unread[0].what}",
            "the bytes may be right; verify again when the storage answers",
        )
    hint = "feedrate verify --repair makes them again, where feedrate made them"
    if all(fault.what == EXTRA for fault in faults):
        hint = "move away what is not in the manifest"
    are = "is" if len(faults) == 1 else "are"
    return DatasetError(f"{counted(len(faults), 'file')} of {folder} {are} wrong", hint)
