"""`feedrate verify`: every byte against the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from emulator.dataset.verify import Done, Fault


def verify(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder of the dataset, or s3://...")],
    sample: Annotated[int | None, typer.Option(min=1, help="Check so many files, evenly spread.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Readers of a process; default: cores.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Faults and result as lines of JSON.")] = False,
) -> None:
    """Find flipped bits, truncated, missing and extra files; exit status 3 when there are any."""
    import os

    from emulator.cli.repeated import say_repeated
    from emulator.dataset.verify import check_files, chosen_files, extra_files, open_dataset
    from emulator.errors import DatasetError
    from emulator.run.comm import world
    from emulator.run.guard import agreed
    from emulator.spec.place import parse_place

    comm = world()
    dataset = agreed(comm, lambda: open_dataset(parse_place(folder)))
    indices = chosen_files(len(dataset.manifest.names), sample)
    mine = indices[comm.rank :: comm.size]
    pool = threads or min(16, len(os.sched_getaffinity(0)))
    tally, progress = _progress(len(mine), int(dataset.rows["bytes"][mine].sum()), comm.rank == 0)
    with progress:
        found = agreed(comm, lambda: check_files(dataset, mine, pool, tally))
        found += agreed(comm, lambda: extra_files(dataset) if comm.rank == 0 else [])
    faults: list[Fault] = comm.bcast([fault for part in comm.gather(found) for fault in part])
    say_repeated(comm, dataset.store, as_json)
    if comm.rank == 0:
        _show(folder, faults, len(indices), len(dataset.manifest.names), as_json)
    if faults:
        raise DatasetError(
            f"{len(faults)} files of {folder} are wrong",
            "the feedrate generate command that made it, with --paranoid, makes them again",
        )


def _progress(files: int, size: int, first: bool) -> tuple[Done, AbstractContextManager[Any]]:
    from emulator.dataset.progress import Tally, show_on_terminal, shown

    tally = Tally()
    return tally.add, shown(tally.now, files, size, show_on_terminal if first else lambda state: None, 1.0)


def _show(folder: str, faults: Sequence[Fault], checked: int, files: int, as_json: bool) -> None:
    import json

    from emulator.dataset.progress import clear_terminal

    clear_terminal()
    for fault in faults:
        event = {"event": "fault", "file": fault.name, "what": fault.what}
        print(json.dumps(event) if as_json else f"{fault.name}: {fault.what}")
    if as_json:
        print(json.dumps({"event": "done", "checked": checked, "files": files, "faults": len(faults)}))
    else:
        print(f"{folder}: {checked} of {files} files checked, {len(faults)} faults")
