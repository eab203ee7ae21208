"""What `generate` and `verify` say of requests to an object store that had to be repeated."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from emulator.dataset.generate import Todo
    from emulator.dataset.manifest import Manifest
    from emulator.dataset.plan import Plan
    from emulator.dataset.progress import State
    from emulator.dataset.site import Site
    from emulator.run.comm import Comm
    from emulator.storage.base import Store


def say_repeated(comm: Comm, store: Store, as_json: bool) -> None:
    """One line when there were any, of all ranks together. Collective."""
    import json
    from collections import Counter

    counts: Counter[str] = Counter()
    for part in comm.gather(store.stats.snapshot().retries):
        counts.update(part)
    if not counts or comm.rank:
        return
    if as_json:
        print(json.dumps({"event": "repeated", **counts}), flush=True)
    else:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()))
        print(f"{sum(counts.values()):,} requests had to be repeated ({kinds})")


# ---- Options of `feedrate generate`.


Folder = Annotated[
    str, typer.Argument(metavar="DIR", help="Folder of the dataset to be, or s3://BUCKET/PREFIX.")
]
RecipeName = Annotated[str, typer.Option("--recipe", "-r", help="tiny, kits19, resnet50, ..., or a path.")]
Files = Annotated[int | None, typer.Option("--files", min=1, help="Files; default: the recipe's.")]
Size = Annotated[str | None, typer.Option("--size", help="Instead of --files: at least so much, like 2TB.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Other seeds, other bytes.")]
FormatName = Annotated[
    str | None, typer.Option("--format", help="npz, npy, nii, nii.gz, hdf5, raw, tfrecord, jpeg, parquet.")
]
Payload = Annotated[str | None, typer.Option("--payload", help="incompressible, ct-realistic or ratio=R.")]
Seeds = Annotated[
    Path | None,
    typer.Option("--seeds", metavar="FOLDER", help="KiTS19 as published: grow ct-realistic samples from it."),
]
Subfolders = Annotated[
    int, typer.Option("--subfolders", min=0, help="Deal the files to so many sub-folders.")
]
Layout = Annotated[
    str, typer.Option("--layout", help="flat, or dlio: in train/ beside an empty valid/, as DLIO reads them.")
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Writers of a process; default: a few more than cores.")
]
Dask = Annotated[
    str | None,
    typer.Option("--dask", metavar="ADDRESS", help="A Dask scheduler, or local for processes here."),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe; repeatable.")
]
Fsync = Annotated[
    bool, typer.Option("--fsync/--no-fsync", help="Each file on the disk before it gets its name.")
]
Direct = Annotated[bool, typer.Option("--direct/--no-direct", help="O_DIRECT where the file system can.")]
SpaceCheck = Annotated[
    bool, typer.Option("--space-check/--no-space-check", help="Compare the plan with the free space.")
]
Paranoid = Annotated[bool, typer.Option("--paranoid", help="Resuming: compare checksums too.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and touch nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Progress and result as lines of JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the dataset in DIR.")]


# ---- What `feedrate generate` says: lines for people, or JSON.


def progress_text(state: State) -> None:
    from emulator.dataset.progress import show_on_terminal

    show_on_terminal(state)


def progress_json(state: State) -> None:
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


def say_done(place: str, manifest: Manifest, state: State, as_json: bool) -> None:
    """What there is now."""
    from emulator.units import show_bytes, show_rate, show_seconds

    measured = manifest.measured
    if as_json:
        _print_json(
            {
                "event": "done",
                "folder": place,
                "files": len(manifest.names),
                "bytes": manifest.total,
                "made_files": state.files,
                "made_bytes": state.bytes,
                "seconds": state.seconds,
                "cpu_seconds": state.cpu_seconds,
                "measured": dict(measured),
            }
        )
        return
    print(
        f"{place}: {len(manifest.names)} files, {show_bytes(manifest.total)} "
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


def say_plan(store: Store, plan: Plan, as_json: bool) -> None:
    """Print the plan; touch nothing."""
    import dataclasses

    from emulator.dataset.plan import outlook
    from emulator.units import show_bytes

    look = outlook(plan)
    free = store.free()
    if as_json:
        _print_json({"event": "plan", "folder": str(store), "free": free, **dataclasses.asdict(look)})
        return
    recipe = plan.recipe
    print(f"{store}: {look.files} files, {show_bytes(look.total)} ({recipe.format}, {recipe.payload})")
    print(
        f"a file: mean {show_bytes(look.mean)}, SD {show_bytes(look.sd)}, "
        f"{show_bytes(look.smallest)} to {show_bytes(look.largest)}"
    )
    if free is not None:
        print(f"free:   {show_bytes(free)}" + ("" if free >= look.total else ", NOT ENOUGH"))


# ---- `feedrate generate`: a dataset from a recipe, on one machine, over many ranks, or on a Dask cluster.


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
    folder: Folder,
    recipe: RecipeName = "tiny",
    files: Files = None,
    size: Size = None,
    seed: Seed = 0,
    form: FormatName = None,
    payload: Payload = None,
    seeds: Seeds = None,
    subfolders: Subfolders = 0,
    layout: Layout = "flat",
    threads: Threads = None,
    dask: Dask = None,
    settings: Settings = None,
    fsync: Fsync = True,
    direct: Direct = True,
    space_check: SpaceCheck = True,
    paranoid: Paranoid = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    force: Force = False,
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
    from emulator.config.storage import parse_place
    from emulator.storage import open_store

    return open_store(parse_place(place))


def _dry_run(store: Store, plan: Plan, as_json: bool) -> None:

    say_plan(store, plan, as_json)


def _plan(
    recipe: str, settings: list[str], files: int | None, size: str | None, seed: int, subfolders: int,
    layout: str,
) -> Plan:  # fmt: skip
    """The plan that the options ask for. Raises SpecError."""
    from dataclasses import replace

    from emulator.config.recipe import load_recipe
    from emulator.dataset.manifest import TRAINING
    from emulator.dataset.plan import Plan, files_for
    from emulator.errors import SpecError
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
    from emulator.dataset.generate import finish, finished, survey, with_seeds
    from emulator.dataset.plan import require_space
    from emulator.dataset.site import Site, opened
    from emulator.run.comm import agreed, world
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
        from emulator.dataset.site import JournalWatch

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


# ---- `feedrate datasize`: how much to generate.


def datasize(
    workload: Annotated[str, typer.Option("--workload", "-w", help="Name or path.")],
    accelerators: Annotated[int, typer.Option(min=1, help="Emulated accelerators in all.")],
    hosts: Annotated[int, typer.Option(min=1, help="Client hosts.")] = 1,
    host_memory: Annotated[
        str | None, typer.Option(help="Memory of one host, like 256GiB; default: this machine's.")
    ] = None,
    rate: Annotated[str, typer.Option(help="Rate of writing, for the time that it takes.")] = "1GB/s",
    as_json: Annotated[bool, typer.Option("--json", help="As one line of JSON.")] = False,
) -> None:
    """Files and bytes by MLPerf Storage's rule: 5 x the hosts' memory, and 500 steps an epoch."""
    import dataclasses
    import json

    import psutil

    from emulator.config.workload import load_workload
    from emulator.dataset.datasize import datasize as needed
    from emulator.units import parse_bytes, parse_rate, show_bytes, show_rate, show_seconds

    memory = parse_bytes(host_memory) if host_memory else int(psutil.virtual_memory().total)
    spec = load_workload(workload)
    size = needed(spec, accelerators, hosts, memory)
    speed = parse_rate(rate)
    if as_json:
        print(json.dumps({**dataclasses.asdict(size), "seconds": size.bytes / speed}))
        return
    unit = "files" if size.samples == size.files else "samples"
    each = "" if unit == "files" else f" of {spec.sample.samples_per_file} samples"
    print(f"{size.files} files{each}, {show_bytes(size.bytes)}")
    print(f"  5 x {show_bytes(hosts * memory)} of memory on {hosts} hosts: {size.by_memory} {unit}")
    print(
        f"  500 steps x batch size {spec.loader.batch_size} x {accelerators} accelerators: "
        f"{size.by_steps} {unit}"
    )
    print(f"generating takes {show_seconds(size.bytes / speed)} at {show_rate(speed)}")
