"""`feedrate generate`: a dataset from a recipe, on one machine, over many ranks, or on a Dask cluster."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from emulator import live
from emulator.cli.datasets import repeats_of
from emulator.config.catalog import names
from emulator.config.recipe import load_recipe
from emulator.config.storage import parse_place
from emulator.dataset.like import Likeness, look_at
from emulator.dataset.manifest import TRAINING, Manifest
from emulator.dataset.owned import Holding, removable
from emulator.dataset.plan import DatasetPlan, files_for, outlook
from emulator.dataset.progress import State, Tally, shown
from emulator.dataset.writer import DatasetWriter, exclusive, with_seeds
from emulator.errors import FeedrateError, SpecError
from emulator.registry import FORMATS
from emulator.run.comm import agreed, world
from emulator.storage import open_store
from emulator.storage.base import Store, WriteOptions
from emulator.storage.folder import FolderStore
from emulator.text import masked
from emulator.units import counted, parse_bytes, show_bytes, show_rate, show_seconds

_SMALL = 8 << 20


def generate(
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder of the dataset to be, or s3://BUCKET/PREFIX.")
    ],
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", "-r", help="What to make: kits19, resnet50, ..., tiny for a first look, or a path."
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            "--like",
            metavar="FOLDER",
            help="Instead of --recipe: as many files of such sizes in such a tree.",
        ),
    ] = None,
    files: Annotated[int | None, typer.Option("--files", min=1, help="Files; default: the recipe's.")] = None,
    size: Annotated[
        str | None, typer.Option("--size", help="Instead of --files: at least so much, like 2TB.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Other seeds, other bytes.")] = 0,
    form: Annotated[str | None, typer.Option("--format", help=f"{FORMATS}.")] = None,
    payload: Annotated[
        str | None,
        typer.Option("--payload", help="incompressible, ct-realistic or ratio=R; --like: ratio=measured."),
    ] = None,
    seeds: Annotated[
        Path | None,
        typer.Option(
            "--seeds", metavar="FOLDER", help="KiTS19 as published: grow ct-realistic samples from it."
        ),
    ] = None,
    subfolders: Annotated[
        int | None, typer.Option("--subfolders", min=0, help="Deal the files to so many sub-folders.")
    ] = None,
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
    force: Annotated[bool, typer.Option("--force", help="Replace the dataset in DIR.")] = False,
) -> None:
    """Make a dataset; the same command again resumes, and gives the same bytes however it was run."""
    if files and size:
        raise SpecError("--files and --size were both given", "leave one of them out")
    tree = (subfolders or 0, 1)
    if like is not None:
        if recipe or form or seeds or settings:
            raise SpecError("--like takes its recipe from the folder", "leave out --recipe, --format, --set")
        likeness = _likeness(like, payload)
        spec = likeness.recipe(_payload_like(payload, likeness))
        if subfolders is None:
            tree = (likeness.folders, likeness.depth)
    elif recipe is None:
        raise SpecError(
            "generate needs a recipe",
            "--recipe kits19 --size 2TB is 3D U-Net's dataset, --recipe tiny a first look; there are also "
            + ", ".join(name for name in names("datasets") if name not in ("kits19", "tiny")),
        )
    else:
        chosen = [f"{key}={value}" for key, value in (("format", form), ("payload", payload)) if value]
        if seeds and not payload:
            chosen.append("payload=ct-realistic")
        spec = load_recipe(recipe, [*(settings or []), *chosen])
    if layout not in ("flat", "dlio"):
        raise SpecError(f"--layout {layout!r} is not known", "use flat or dlio")
    plan = DatasetPlan(
        recipe=spec,
        seed=seed,
        files=files or spec.files,
        subfolders=tree[0],
        depth=tree[1],
        folder=TRAINING if layout == "dlio" else "",
    )
    if size:
        plan = dataclasses.replace(plan, files=files_for(plan, parse_bytes(size)))
    store = open_store(parse_place(folder))
    if dry_run:
        _say_plan(store, plan)
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
        with (
            _kept_if_interrupted(folder, tally, files_left),
            shown("generate", tally, files_left, bytes_left) as state,
        ):
            if dask:
                from emulator.dataset.fill_dask import fill_dask  # here: it imports Dask

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
    repeated = repeats_of(comm, store)
    if manifest:
        _say_done(store, manifest, made, begun, repeated)


def _likeness(folder: Path, payload: str | None) -> Likeness:
    """What `folder` is like; a line on the terminal counts its files meanwhile. Raises DatasetError."""

    def counted(files: int, size: int) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{folder}: {files} files, {show_bytes(size)}", end="", file=sys.stderr, flush=True)

    try:
        found = look_at(folder, content=payload == "ratio=measured", progress=counted)
    finally:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    if found.empty and world().rank == 0:
        print(f"{folder}: {found.empty} empty files are left out", file=sys.stderr)
    return found


def _payload_like(payload: str | None, likeness: Likeness) -> str:
    if payload == "ratio=measured" and likeness.ratio is not None:
        return "incompressible" if likeness.ratio < 1.02 else f"ratio={min(64.0, likeness.ratio):.2f}"
    return payload or "incompressible"


@contextmanager
def _kept_if_interrupted(folder: str, tally: Tally, files: int) -> Iterator[None]:
    """Ctrl-C says what there is and how to go on: files that are whole stay."""
    try:
        yield
    except KeyboardInterrupt:
        done, size = tally.now()
        again = shlex.join(["feedrate", *(masked(word) for word in sys.argv[1:])])
        print(
            f"feedrate: interrupted: {done} of {files} files ({show_bytes(size)}) were made and stay in "
            f"{folder}; the same command goes on: {again}",
            file=sys.stderr,
        )
        raise SystemExit(130) from None


def _say_plan(store: Store, plan: DatasetPlan) -> None:
    expected = outlook(plan)
    free = store.free()
    if live.for_programs():
        live.answer({"folder": str(store), "free": free, **dataclasses.asdict(expected)})
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


def _say_done(
    store: Store, manifest: Manifest, made: State, begun: bool, repeated: Mapping[str, int]
) -> None:
    """What there is now, and what of it this command made; `begun`: it wrote the manifest, at least."""
    measured = manifest.measured
    if live.for_programs():
        done = {
            "folder": str(store),
            "files": len(manifest.names),
            "bytes": manifest.total,
            "made_files": made.files,
            "made_bytes": made.bytes,
            "seconds": made.seconds,
            "cpu_seconds": made.cpu_seconds,
            "measured": dict(measured),
            "repeated": dict(repeated),
        }
        live.answer(done)
        return
    print(
        f"{store}: {counted(len(manifest.names), 'file')}, {show_bytes(manifest.total)} "
        f"({manifest.format}, recipe {manifest.recipe}, seed {manifest.seed})"
    )
    if made.files:
        print(
            f"made {counted(made.files, 'file')}, {show_bytes(made.bytes)} in {show_seconds(made.seconds)}: "
            f"{show_rate(made.bytes_per_second)}"
        )
    else:
        print(
            "all files were there: only the manifest was made"
            if begun
            else "complete already: nothing was made"
        )
    if measured:
        files = counted(int(measured["files"]), "file")
        print(
            f"zstd-3 ratio {measured['zstd_ratio']:.2f}, {measured['unique_blocks']:.1%} of 4 KiB blocks "
            f"unique (measured on {show_bytes(measured['bytes'])} of {files})"
        )
