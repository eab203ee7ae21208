"""`feedrate generate`: a dataset from a recipe, on one machine, over many ranks, or on a Dask cluster."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from emulator import live
from emulator.cli import options
from emulator.config.catalog import names
from emulator.config.recipe import Recipe, load_recipe
from emulator.config.storage import parse_place
from emulator.dataset.generate import Filled, Filling, Interrupted
from emulator.dataset.generate import generate as fill
from emulator.dataset.like import recipe_like
from emulator.dataset.names import TRAINING, Tree
from emulator.dataset.plan import DatasetPlan, files_for, outlook
from emulator.errors import SpecError
from emulator.launch.comm import Comm
from emulator.launch.world import on_ranks, world
from emulator.registry import FORMATS
from emulator.storage import open_store
from emulator.storage.base import Store, WriteOptions
from emulator.text import masked
from emulator.units import counted, parse_bytes, show_bytes, show_rate, show_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The options that describe a dataset."""

    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            "-r",
            help="What to make: kits19, resnet50, ..., tiny for a first look, or a path.",
            autocompletion=options.completing("datasets"),
        ),
    ] = None
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Instead of --recipe: as many files of such sizes in such a tree."
        ),
    ] = None
    files: Annotated[int | None, typer.Option(min=1, help="Files; default: the recipe's.")] = None
    size: Annotated[str | None, typer.Option(help="Instead of --files: about this size, like 2TB.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Other seeds, other bytes.")] = 0
    form: Annotated[str | None, typer.Option("--format", help=f"{FORMATS}.")] = None
    payload: Annotated[
        str | None, typer.Option(help="incompressible, ct-realistic or ratio=R; --like: ratio=measured.")
    ] = None
    seeds: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="KiTS19 as published: grow ct-realistic samples from it."),
    ] = None
    subfolders: Annotated[int | None, typer.Option(min=0, help="Deal the files to N sub-folders.")] = None
    layout: Annotated[
        Literal["flat", "dlio"],
        typer.Option(
            metavar="flat|dlio", help="flat, or dlio: in train/ beside an empty valid/, as DLIO reads them."
        ),
    ] = "flat"
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe; repeatable."),
    ] = None

    def plan(self) -> DatasetPlan:
        """Return the dataset that the options describe. Raises SpecError, DatasetError."""
        if self.files and self.size:
            raise SpecError("--files and --size were both given", "leave one of them out")
        spec, tree = self._like(self.like) if self.like else (self._recipe(), None)
        plan = DatasetPlan(
            recipe=spec,
            seed=self.seed,
            files=self.files or spec.files,
            subfolders=self.subfolders or 0,
            tree=tree if self.subfolders is None else None,
            folder=TRAINING if self.layout == "dlio" else "",
        )
        if self.size:
            plan = replace(plan, files=files_for(plan, parse_bytes(self.size)))
        return plan

    def _recipe(self) -> Recipe:
        if self.recipe is None:
            raise SpecError(
                "generate needs a recipe",
                "--recipe kits19 --size 2TB is 3D U-Net's dataset, --recipe tiny a first look; there are "
                "also " + ", ".join(name for name in names("datasets") if name not in ("kits19", "tiny")),
            )
        payload = self.payload or ("ct-realistic" if self.seeds else None)
        chosen = {"format": self.form, "payload": payload}
        settings = [f"{key}={value}" for key, value in chosen.items() if value]
        return load_recipe(self.recipe, [*(self.settings or ()), *settings])

    def _like(self, folder: Path) -> tuple[Recipe, Tree | None]:
        """Return the recipe of files like those of `folder`, and their folders. Raises DatasetError."""
        if self.recipe or self.form or self.seeds or self.settings:
            raise SpecError("--like takes its recipe from the folder", "leave out --recipe, --format, --set")
        recipe, tree, empty = recipe_like(folder, self.payload or "incompressible")
        if empty and world().rank == 0:  # each rank looks at the folder
            print(f"{folder}: {empty} empty files are left out", file=sys.stderr)
        return recipe, tree


def generate(
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder of the dataset to be, or s3://BUCKET/PREFIX.")
    ],
    wanted: Wanted,
    ranks: options.Ranks = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Writers of a process; default: a few more than cores.")
    ] = None,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler whose workers make the files.")
    ] = None,
    fsync: Annotated[
        bool, typer.Option("--fsync/--no-fsync", help="Each file on the disk before it gets its name.")
    ] = True,
    space_check: Annotated[
        bool, typer.Option("--space-check/--no-space-check", help="Compare the plan with the free space.")
    ] = True,
    dry_run: options.DryRun = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the dataset in DIR.")] = False,
) -> None:
    """Make a dataset; the same command again resumes, and gives the same bytes however it was run.

    \b
    Examples:
      feedrate generate /mnt/ai/kits19 --recipe kits19 --size 2TB
      feedrate generate s3://bucket/imagenet --recipe resnet50 --files 1024
    """
    plan = wanted.plan()
    place = parse_place(folder)
    if dry_run:
        _say_plan(open_store(place), plan)
        return
    how = Filling(
        seeds=wanted.seeds,
        threads=threads,
        dask=dask or "",
        write=WriteOptions(sync=fsync),
        space_check=space_check,
        force=force,
    )

    def work(comm: Comm) -> int:
        """Make this rank's share of the files."""
        if filled := fill(open_store(place), plan, comm, how):
            _say_done(filled)
        return 0

    try:
        status = on_ranks(work, ranks)
    except Interrupted as end:
        again = shlex.join(["feedrate", *(masked(word) for word in sys.argv[1:])])
        print(
            f"feedrate: interrupted: {end.done} or more of {end.files} files ({show_bytes(end.bytes)}) "
            f"were made and stay in {folder}; the same command goes on: {again}",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    if status:
        raise typer.Exit(status)


def _say_plan(store: Store, plan: DatasetPlan) -> None:
    expected = outlook(plan)
    free = store.free()
    if live.for_programs():
        live.answer({"folder": str(store), "free": free, **asdict(expected)})
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


def _say_done(filled: Filled) -> None:
    """Say what there is now, and what of it this command made."""
    store, manifest, made = filled.store, filled.manifest, filled.made
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
            "repeated": dict(filled.repeated),
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
    elif filled.begun:
        print("all files were there: only the manifest was made")
    else:
        print("complete already: nothing was made")
    if measured:
        files = counted(int(measured["files"]), "file")
        print(
            f"zstd-3 ratio {measured['zstd_ratio']:.2f}, {measured['unique_blocks']:.1%} of 4 KiB blocks "
            f"unique (measured on {show_bytes(measured['bytes'])} of {files})"
        )
