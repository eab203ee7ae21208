"""`feedrate verify`: every byte against the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
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

    from emulator.cli.generate import say_repeated
    from emulator.config.storage import parse_place
    from emulator.dataset.verify import check_files, chosen_files, extra_files, open_dataset
    from emulator.errors import DatasetError
    from emulator.run.comm import agreed, world

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


# ---- `feedrate adopt DIR`: a manifest for files that somebody else made.


def adopt(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of the files; of DLIO's: over train/.")
    ],
    form: Annotated[
        str | None, typer.Option("--format", help="Take these only, where there are several formats.")
    ] = None,
    samples_per_file: Annotated[int, typer.Option(min=1, help="Samples in each file.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Readers; default: cores.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Make a manifest that is there anew.")] = False,
) -> None:
    """Write a manifest for files without one (DLIO's, anyone's), so that run, sweep and verify take them."""
    import os

    from emulator.dataset.adopt import adopted, find_samples, look, write_manifest
    from emulator.dataset.progress import Tally, clear_terminal, show_on_terminal, shown
    from emulator.units import show_bytes

    found = find_samples(folder, form or "", force)
    pool, tally = threads or min(16, len(os.sched_getaffinity(0))), Tally()
    with shown(tally.now, len(found.names), found.bytes, show_on_terminal, 1.0):
        rows = look(found, samples_per_file, pool, tally.add)
    clear_terminal()
    write_manifest(folder, adopted(found, rows, samples_per_file), rows)
    typer.echo(
        f"{folder}: adopted {len(found.names)} {found.format} files, {show_bytes(found.bytes)}"
        + (f"; {found.left} other files are left alone" if found.left else "")
    )
