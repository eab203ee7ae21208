"""`feedrate generate`: a dataset from a recipe, on one machine, over many ranks, or on a Dask cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from emulator.dataset.manifest import Manifest
    from emulator.dataset.plan import Plan
    from emulator.dataset.progress import State
    from emulator.dataset.site import Site
    from emulator.dataset.writing import WriteOptions
    from emulator.run.comm import Comm


def generate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the dataset to be.")],
    recipe: Annotated[str, typer.Option("--recipe", "-r", help="tiny, kits19, or a path.")] = "tiny",
    files: Annotated[int | None, typer.Option(min=1, help="Files; default: the recipe's.")] = None,
    size: Annotated[str | None, typer.Option(help="Instead of --files: at least so much, like 2TB.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Other seeds, other bytes.")] = 0,
    form: Annotated[str | None, typer.Option("--format", help="npz, npy, nii, nii.gz, hdf5 or raw.")] = None,
    payload: Annotated[str | None, typer.Option(help="incompressible, ct-realistic or ratio=R.")] = None,
    subfolders: Annotated[int, typer.Option(min=0, help="Deal the files to so many sub-folders.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Writers of a process; default: cores.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe; repeatable."),
    ] = None,
    fsync: Annotated[bool, typer.Option(help="Each file on the disk before it gets its name.")] = True,
    direct: Annotated[bool, typer.Option(help="O_DIRECT where the file system can.")] = True,
    space_check: Annotated[bool, typer.Option(help="Compare the plan with the free space.")] = True,
    paranoid: Annotated[bool, typer.Option("--paranoid", help="Resuming: compare checksums too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and touch nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Progress and result as lines of JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the dataset in DIR.")] = False,
) -> None:
    """Make a dataset; the same command again resumes, and gives the same bytes however it was run."""
    from emulator.dataset.writing import WriteOptions
    from emulator.run.comm import world

    chosen = [f"{key}={value}" for key, value in (("format", form), ("payload", payload)) if value]
    plan = _plan(recipe, [*(settings or []), *chosen], files, size, seed, subfolders)
    if dry_run:
        _dry_run(folder, plan, as_json)
        return
    comm = world()
    options = WriteOptions(direct=direct, sync=fsync)
    _generate(folder, plan, comm, options, threads, space_check, paranoid, force, as_json)


def _plan(
    recipe: str, settings: list[str], files: int | None, size: str | None, seed: int, subfolders: int
) -> Plan:
    """The plan that the options ask for. Raises SpecError."""
    from dataclasses import replace

    from emulator.dataset.plan import Plan, files_for
    from emulator.errors import SpecError
    from emulator.spec.recipe import load_recipe
    from emulator.units import parse_bytes

    spec = load_recipe(recipe, settings)
    if files and size:
        raise SpecError("--files and --size were both given", "leave one of them out")
    plan = Plan(recipe=spec, seed=seed, files=files or spec.files, subfolders=subfolders)
    return replace(plan, files=files_for(plan, parse_bytes(size))) if size else plan


def _generate(
    folder: Path, plan: Plan, comm: Comm, options: WriteOptions, threads: int | None,
    space_check: bool, paranoid: bool, force: bool, as_json: bool,
) -> None:  # fmt: skip
    import os

    from emulator.dataset.fill import default_threads
    from emulator.dataset.generate import fill, finish, finished, survey
    from emulator.dataset.plan import require_space
    from emulator.dataset.site import Site
    from emulator.run.guard import agreed

    site = Site(folder, plan)
    first = comm.rank == 0
    agreed(comm, lambda: site.prepare(force) if first else None)
    todo = agreed(comm, lambda: survey(site, comm.rank, comm.size, paranoid))
    shares = comm.allgather((len(todo.indices), todo.planned))
    count, planned = sum(share[0] for share in shares), sum(share[1] for share in shares)
    agreed(comm, lambda: require_space(folder, planned) if first and space_check else None)
    cores = len(os.sched_getaffinity(0))
    pool = threads or default_threads(cores, plan.recipe.size.bytes_mean)
    with _Progress(site, comm, count, planned, as_json) as progress:
        agreed(comm, lambda: fill(site, todo, comm.rank, pool, options, progress.add))
    manifest = agreed(comm, lambda: ((not count and finished(site)) or finish(site)) if first else None)
    if manifest:
        _say(folder, manifest, progress.final, as_json)


class _Progress:
    """Progress of all ranks, shown by rank 0; the others' is read from their journals."""

    def __init__(self, site: Site, comm: Comm, files: int, planned: int, as_json: bool) -> None:
        from emulator.dataset.generate import journalled
        from emulator.dataset.progress import Tally, shown

        tally = Tally()
        self.add = tally.add
        self._first = comm.rank == 0
        others = [site.journal(rank) for rank in range(1, comm.size)]
        mean = planned / files if files else 0.0
        base = journalled(others, mean) if self._first else (0, 0)

        def count() -> tuple[int, int]:
            done, far = tally.now(), journalled(others, mean)
            return done[0] + far[0] - base[0], done[1] + far[1] - base[1]

        show = _progress_json if as_json else _progress_text
        self._shown = shown(count, files, planned, show if self._first else lambda state: None, 1.0)

    def __enter__(self) -> _Progress:
        self._state = self._shown.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        from emulator.dataset.progress import clear_terminal

        self.final = self._state()
        self._shown.__exit__(*error)
        if self._first:
            clear_terminal()


def _progress_text(state: State) -> None:
    from emulator.dataset.progress import show_on_terminal

    show_on_terminal(state)


def _progress_json(state: State) -> None:
    _print_json(
        {
            "event": "progress",
            "files": state.files,
            "files_all": state.files_all,
            "bytes": state.bytes,
            "bytes_all": state.bytes_all,
            "bytes_per_second": state.bytes_per_second,
            "eta_seconds": state.eta_seconds if state.bytes else None,
        }
    )


def _print_json(value: dict[str, Any]) -> None:
    import json

    print(json.dumps(value), flush=True)


def _say(folder: Path, manifest: Manifest, state: State, as_json: bool) -> None:
    """What there is now."""
    from emulator.units import show_bytes, show_rate, show_seconds

    measured = manifest.measured
    if as_json:
        _print_json(
            {
                "event": "done",
                "folder": str(folder),
                "files": len(manifest.names),
                "bytes": manifest.total,
                "made_files": state.files,
                "made_bytes": state.bytes,
                "seconds": state.seconds,
                "measured": dict(measured),
            }
        )
        return
    print(
        f"{folder}: {len(manifest.names)} files, {show_bytes(manifest.total)} "
        f"({manifest.format}, recipe {manifest.recipe}, seed {manifest.seed})"
    )
    if state.files:
        rate = show_rate(state.bytes_per_second)
        print(f"made {state.files} files, {show_bytes(state.bytes)} in {show_seconds(state.seconds)}: {rate}")
    else:
        print("complete already: nothing was made")
    if measured:
        print(
            f"zstd-3 ratio {measured['zstd_ratio']:.2f}, {measured['unique_blocks']:.1%} of 4 KiB blocks "
            f"unique (measured on {show_bytes(measured['bytes'])} of {measured['files']:.0f} files)"
        )


def _dry_run(folder: Path, plan: Plan, as_json: bool) -> None:
    """Print the plan; touch nothing."""
    import dataclasses
    import shutil

    from emulator.dataset.plan import outlook
    from emulator.units import show_bytes

    look = outlook(plan)
    place = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.is_dir())
    free = shutil.disk_usage(place).free
    if as_json:
        _print_json({"event": "plan", "folder": str(folder), "free": free, **dataclasses.asdict(look)})
        return
    recipe = plan.recipe
    print(f"{folder}: {look.files} files, {show_bytes(look.total)} ({recipe.format}, {recipe.payload})")
    print(
        f"a file: mean {show_bytes(look.mean)}, SD {show_bytes(look.sd)}, "
        f"{show_bytes(look.smallest)} to {show_bytes(look.largest)}"
    )
    print(f"free:   {show_bytes(free)}" + ("" if free >= look.total else ", NOT ENOUGH"))
