"""`feedrate generate`: a dataset from a recipe, on one machine, over many ranks, or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emulator.cli import generate_options as options

if TYPE_CHECKING:
    from emulator.dataset.generate import Todo
    from emulator.dataset.plan import Plan
    from emulator.dataset.site import Site
    from emulator.run.comm import Comm
    from emulator.storage.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """Options that do not change the bytes."""

    threads: int | None
    dask: str | None
    direct: bool
    fsync: bool
    space_check: bool
    paranoid: bool
    force: bool
    as_json: bool


def generate(
    folder: options.Folder,
    recipe: options.RecipeName = "tiny",
    files: options.Files = None,
    size: options.Size = None,
    seed: options.Seed = 0,
    form: options.FormatName = None,
    payload: options.Payload = None,
    seeds: options.Seeds = None,
    subfolders: options.Subfolders = 0,
    layout: options.Layout = "flat",
    threads: options.Threads = None,
    dask: options.Dask = None,
    settings: options.Settings = None,
    fsync: options.Fsync = True,
    direct: options.Direct = True,
    space_check: options.SpaceCheck = True,
    paranoid: options.Paranoid = False,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    force: options.Force = False,
) -> None:
    """Make a dataset; the same command again resumes, and gives the same bytes however it was run."""
    chosen = [f"{key}={value}" for key, value in (("format", form), ("payload", payload)) if value]
    if seeds and not payload:
        chosen.append("payload=ct-realistic")
    plan = _plan(recipe, [*(settings or []), *chosen], files, size, seed, subfolders, layout)
    how = _How(
        threads=threads, dask=dask, direct=direct, fsync=fsync, space_check=space_check,
        paranoid=paranoid, force=force, as_json=as_json,
    )  # fmt: skip
    store = _store(folder)
    if dry_run:
        _dry_run(store, plan, as_json)
    else:
        _generate(store, plan, seeds, how)


def _store(place: str) -> Store:
    """Raises SpecError, MissingError."""
    from emulator.spec.place import parse_place
    from emulator.storage.place import store_at

    return store_at(parse_place(place))


def _dry_run(store: Store, plan: Plan, as_json: bool) -> None:
    from emulator.cli.generate_show import say_plan

    say_plan(store, plan, as_json)


def _plan(
    recipe: str, settings: list[str], files: int | None, size: str | None, seed: int, subfolders: int,
    layout: str,
) -> Plan:  # fmt: skip
    """The plan that the options ask for. Raises SpecError."""
    from dataclasses import replace

    from emulator.dataset.manifest import TRAINING
    from emulator.dataset.plan import Plan, files_for
    from emulator.errors import SpecError
    from emulator.spec.recipe import load_recipe
    from emulator.units import parse_bytes

    spec = load_recipe(recipe, settings)
    if files and size:
        raise SpecError("--files and --size were both given", "leave one of them out")
    if layout not in ("flat", "dlio"):
        raise SpecError(f"--layout {layout!r} is not known", "use flat or dlio")
    folder = TRAINING if layout == "dlio" else ""
    plan = Plan(recipe=spec, seed=seed, files=files or spec.files, subfolders=subfolders, folder=folder)
    return replace(plan, files=files_for(plan, parse_bytes(size))) if size else plan


def _generate(store: Store, plan: Plan, seeds: Path | None, how: _How) -> None:
    """Survey, fill, finish: collective over all ranks, each with its share of the files."""
    from emulator.cli.generate_show import say_done
    from emulator.cli.repeated import say_repeated
    from emulator.dataset.generate import finish, finished, survey, with_seeds
    from emulator.dataset.plan import require_space
    from emulator.dataset.site import Site, opened
    from emulator.run.comm import world
    from emulator.run.guard import agreed
    from emulator.storage.folder import FolderStore

    comm = world()
    first = comm.rank == 0
    lock: AbstractContextManager[None] = opened(store, how.force) if first else nullcontext()
    agreed(comm, lock.__enter__)
    try:
        # Seeds are files: one rank of each host makes them where hosts do not share the folder.
        leads = comm.node().rank == 0
        mine = leads if not isinstance(store, FolderStore) else first
        seeded = agreed(comm, lambda: with_seeds(plan, store, seeds) if mine else plan)
        site = Site(store, comm.bcast(seeded))
        agreed(comm, lambda: site.prepare() if first else None)
        todo = agreed(comm, lambda: survey(site, comm.rank, comm.size, how.paranoid))
        shares = comm.allgather((len(todo.indices), todo.planned))
        files, planned = sum(share[0] for share in shares), sum(share[1] for share in shares)
        progress = _Progress(site, comm, files, planned, how)
        agreed(comm, lambda: require_space(store, planned) if first and how.space_check else None)
        with progress:
            _fill(site, todo, comm, how, progress)
            comm.barrier()
        manifest = agreed(comm, lambda: ((not files and finished(site)) or finish(site)) if first else None)
    finally:
        lock.__exit__(None, None, None)
    say_repeated(comm, store, how.as_json)
    if manifest:
        say_done(str(store), manifest, progress.final, how.as_json)


def _fill(site: Site, todo: Todo, comm: Comm, how: _How, progress: _Progress) -> None:
    """Make this rank's share. A rank that fails among many takes all down: the next run resumes."""
    import os
    import sys

    from emulator.dataset.fill import default_threads
    from emulator.dataset.generate import fill
    from emulator.errors import FeedrateError, SpecError
    from emulator.storage.base import WriteOptions

    cores = len(os.sched_getaffinity(0))
    write = WriteOptions(direct=how.direct, sync=how.fsync)
    if how.dask:
        from emulator.dataset.fill_dask import fill_dask

        if comm.size > 1:
            raise SpecError("--dask under mpirun would make every file twice", "use one of them")
        fill_dask(site, todo, how.dask, write, how.threads or cores, progress.watch)
        return
    threads = how.threads or default_threads(cores, site.plan.recipe.size.bytes_mean)
    try:
        fill(site, todo, comm.rank, threads, write, progress.add)
    except FeedrateError as error:
        if comm.size == 1:
            raise
        print(f"feedrate: error: rank {comm.rank}: {error}", file=sys.stderr, flush=True)
        comm.abort(error.exit_code)


class _Progress:
    """Progress of all ranks, shown by rank 0; that of other processes is read from their journals."""

    def __init__(self, site: Site, comm: Comm, files: int, planned: int, how: _How) -> None:
        from emulator.cli.generate_show import progress_json, progress_text
        from emulator.dataset.progress import Tally, shown

        tally = Tally()
        self.add = tally.add
        self._site = site
        self._first = comm.rank == 0
        self.watch(range(1, comm.size) if self._first else ())

        def count() -> tuple[int, int]:
            done, far = tally.now(), self._far.now()
            return done[0] + far[0], done[1] + far[1]

        show = progress_json if how.as_json else progress_text
        self._shown = shown(count, files, planned, show if self._first else lambda state: None, 1.0)

    def watch(self, journals: Iterable[int]) -> None:
        """Count what is appended from now on to the journals of these workers."""
        from emulator.dataset.journal import JournalWatch

        self._far = JournalWatch(self._site.store, journals)

    def __enter__(self) -> _Progress:
        self._state = self._shown.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        from emulator.dataset.progress import clear_terminal

        self.final = self._state()
        self._shown.__exit__(*error)
        if self._first:
            clear_terminal()
