"""`feedrate sweep`: many process counts in one MPI world, and the knee."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from emulator.cli import options
from emulator.cli.start import make_job, start

if TYPE_CHECKING:
    from emulator.sweep.schedule import Schedule


def sweep(
    dataset: options.Dataset,
    workload: options.WorkloadName,
    counts: Annotated[str, typer.Option(help="Process counts: 1,2,4,8 or 1-8.")],
    ranks: options.Ranks = None,
    out: options.Out = None,
    loader: options.LoaderName = "torch",
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    cache: options.CacheName = "cold",
    storage: options.StorageText = "posix",
    settings: options.Settings = None,
    dry_run: options.DryRun = False,
    force: options.Force = False,
) -> None:
    """Scale the number of ranks and find the knee."""
    from emulator.sweep.schedule import FixedCounts, parse_counts, require_ranks

    job = make_job(dataset, workload, settings or [], loader, cache, storage, epochs, steps, out)
    wanted = parse_counts(counts)

    def schedule(world: int) -> Schedule:
        require_ranks(wanted, world)
        return FixedCounts(wanted)

    start(job, "sweep", ranks, needed=max(wanted), schedule=schedule, force=force, dry_run=dry_run)
