"""`feedrate generate`: a dataset from a recipe, on one machine, over many ranks, or on a Dask cluster."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from emulator.cli.datasets import say_repeated, show_nothing
from emulator.config.recipe import load_recipe
from emulator.config.storage import parse_place
from emulator.dataset.manifest import TRAINING, Manifest
from emulator.dataset.owned import Holding, removable
from emulator.dataset.plan import DatasetPlan, files_for, outlook
from emulator.dataset.progress import State, Tally, show_on_terminal, shown
from emulator.dataset.writer import DatasetWriter, exclusive, with_seeds
from emulator.errors import FeedrateError, SpecError
from emulator.registry import WRITTEN_FORMATS, load
from emulator.run.comm import agreed, world
from emulator.storage import open_store
from emulator.storage.base import Store, WriteOptions
from emulator.storage.folder import FolderStore
from emulator.units import parse_bytes, show_bytes, show_rate, show_seconds

_SMALL = 8 << 20


def generate(
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder of the dataset to be, or s3://BUCKET/PREFIX.")
    ],
    recipe: Annotated[
        str, typer.Option("--recipe", "-r", help="tiny, kits19, resnet50, ..., or a path.")
    ] = "tiny",
    files: Annotated[int | None, typer.Option("--files", min=1, help="Files; default: the recipe's.")] = None,
    size: Annotated[
        str | None, typer.Option("--size", help="Instead of --files: at least so much, like 2TB.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Other seeds, other bytes.")] = 0,
    form: Annotated[str | None, typer.Option("--format", help=f"{', '.join(WRITTEN_FORMATS)}.")] = None,
    payload: Annotated[
        str | None, typer.Option("--payload", help="incompressible, ct-realistic or ratio=R.")
    ] = None,
    seeds: Annotated[
        Path | None,
        typer.Option(
            "--seeds", metavar="FOLDER", help="KiTS19 as published: grow ct-realistic samples from it."
        ),
    ] = None,
    subfolders: Annotated[
        int, typer.Option("--subfolders", min=0, help="Deal the files to so many sub-folders.")
    ] = 0,
    layout: Annotated[
        str,
        typer.Option("--layout", help="flat, or dlio: in train/ beside an empty valid/, as DLIO reads them."),
    ] = "flat",
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="Writers of a process; default: a few more than cores."),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(
            "--dask", metavar="ADDRESS", help="A Dask scheduler, or local for workers in this process."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe; repeatable."),
    ] = None,
    fsync: Annotated[
        bool, typer.Option("--fsync/--no-fsync", help="Each file on the disk before it gets its name.")
    ] = True,
    direct: Annotated[
        bool, typer.Option("--direct/--no-direct", help="O_DIRECT where the file system can.")
    ] = True,
    space_check: Annotated[
        bool, typer.Option("--space-check/--no-space-check", help="Compare the plan with the free space.")
    ] = True,
    paranoid: Annotated[bool, typer.Option("--paranoid", help="Resuming: compare checksums too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and touch nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Progress and result as lines of JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the dataset in DIR.")] = False,
) -> None:
    """Make a dataset; the same command again resumes, and gives the same bytes however it was run."""
    chosen = [f"{key}={value}" for key, value in (("format", form), ("payload", payload)) if value]
    if seeds and not payload:
        chosen.append("payload=ct-realistic")
    spec = load_recipe(recipe, [*(settings or []), *chosen])
    if files and size:
        raise SpecError("--files and --size were both given", "leave one of them out")
    if layout not in ("flat", "dlio"):
        raise SpecError(f"--layout {layout!r} is not known", "use flat or dlio")
    plan = DatasetPlan(
        recipe=spec,
        seed=seed,
        files=files or spec.files,
        subfolders=subfolders,
        folder=TRAINING if layout == "dlio" else "",
    )
    if size:
        plan = dataclasses.replace(plan, files=files_for(plan, parse_bytes(size)))
    store = open_store(parse_place(folder))
    if dry_run:
        _say_plan(store, plan, as_json)
        return

    comm = world()
    if dask and comm.size > 1:
        raise SpecError("--dask under mpirun would make every file twice", "use one of them")
    first = comm.rank == 0
    with ExitStack() as stack:
        nobody = nullcontext((Holding(store), None))
        holding, before = agreed(comm, lambda: stack.enter_context(exclusive(store) if first else nobody))
        # Seeds are files: one rank of each host makes them where hosts do not share the folder.
        makes_seeds = first if isinstance(store, FolderStore) else comm.node().rank == 0
        if force:
            agreed(comm, lambda: removable(holding) if first else None)
        seeded = agreed(comm, lambda: with_seeds(plan, store, seeds) if makes_seeds else plan)
        writer = DatasetWriter(store, comm.bcast(seeded), force)
        old = agreed(comm, lambda: writer.check(holding) if first else None)
        share = np.arange(comm.rank, plan.files, comm.size)
        mine = agreed(comm, lambda: writer.unfinished(share, paranoid))
        left = comm.allgather((len(mine), int(writer.plan.planned_bytes(mine).sum())))
        files_left, bytes_left = (sum(counts) for counts in zip(*left, strict=True))

        def begin() -> bool:
            """True when there is something to be done; then the place is ready for it."""
            if old is None or (not files_left and writer.finished()):
                return False
            if space_check:
                writer.require_space(files_left, bytes_left, old.bytes)
            writer.begin(holding, old, before)
            return True

        begun = comm.bcast(agreed(comm, begin))
        tally = Tally(store, range(1, comm.size) if first else ())
        options = WriteOptions(direct=direct, sync=fsync)
        cores = len(os.sched_getaffinity(0))
        show = _show_json if as_json else show_on_terminal
        with shown(tally, files_left, bytes_left, show if first else show_nothing) as state:
            if dask:
                fill_dask = load("dataset.fill_dask:fill_dask")
                fill_dask(writer, mine, dask, threads or cores, options, tally.watch)
            else:
                # Most writers wait for the disk; those of small samples wait for fsync most of the time.
                threads = threads or min(16, 4 * cores if spec.size.bytes_mean < _SMALL else cores + 2)
                try:
                    writer.fill(mine, comm.rank, threads, options, tally.add)
                except FeedrateError as error:
                    if comm.size == 1:
                        raise
                    print(f"feedrate: error: rank {comm.rank}: {error}", file=sys.stderr, flush=True)
                    comm.abort(error.exit_code)  # takes all down; the next run resumes
            comm.barrier()
            made = state()
        manifest = agreed(comm, lambda: (writer.finish() if begun else writer.finished()) if first else None)
    say_repeated(comm, store, as_json)
    if manifest:
        _say_done(store, manifest, made, begun, as_json)


def _show_json(state: State) -> None:
    event = {
        "event": "progress",
        "files": state.files,
        "files_all": state.files_all,
        "bytes": state.bytes,
        "bytes_all": state.bytes_all,
        "bytes_per_second": state.bytes_per_second,
        "eta_seconds": state.eta_seconds if state.bytes else None,
    }
    print(json.dumps(event), flush=True)


def _say_plan(store: Store, plan: DatasetPlan, as_json: bool) -> None:
    expected = outlook(plan)
    free = store.free()
    if as_json:
        event = {"event": "plan", "folder": str(store), "free": free, **dataclasses.asdict(expected)}
        print(json.dumps(event), flush=True)
        return
    recipe = plan.recipe
    print(
        f"{store}: {expected.files} files, {show_bytes(expected.total)} ({recipe.format}, {recipe.payload})"
    )
    print(
        f"a file: mean {show_bytes(expected.mean)}, SD {show_bytes(expected.sd)}, "
        f"{show_bytes(expected.smallest)} to {show_bytes(expected.largest)}"
    )
    if free is not None:
        print(f"free:   {show_bytes(free)}" + ("" if free >= expected.total else ", NOT ENOUGH"))


def _say_done(store: Store, manifest: Manifest, made: State, begun: bool, as_json: bool) -> None:
    """What there is now, and what of it this command made; `begun`: it wrote the manifest, at least."""
    measured = manifest.measured
    if as_json:
        event = {
            "event": "done",
            "folder": str(store),
            "files": len(manifest.names),
            "bytes": manifest.total,
            "made_files": made.files,
            "made_bytes": made.bytes,
            "seconds": made.seconds,
            "cpu_seconds": made.cpu_seconds,
            "measured": dict(measured),
        }
        print(json.dumps(event), flush=True)
        return
    print(
        f"{store}: {len(manifest.names)} files, {show_bytes(manifest.total)} "
        f"({manifest.format}, recipe {manifest.recipe}, seed {manifest.seed})"
    )
    if made.files:
        print(
            f"made {made.files} files, {show_bytes(made.bytes)} in {show_seconds(made.seconds)}: "
            f"{show_rate(made.bytes_per_second)}"
        )
    else:
        print(
            "all files were there: only the manifest was made"
            if begun
            else "complete already: nothing was made"
        )
    if measured:
        print(
            f"zstd-3 ratio {measured['zstd_ratio']:.2f}, {measured['unique_blocks']:.1%} of 4 KiB blocks "
            f"unique (measured on {show_bytes(measured['bytes'])} of {measured['files']:.0f} files)"
        )
