"""`feedrate run`: one process count."""

from __future__ import annotations

from emulator.cli import options
from emulator.cli.start import make_job, start


def run(
    dataset: options.Dataset,
    workload: options.WorkloadName,
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
    """Emulate training with one rank per accelerator, once."""
    from emulator.sweep.schedule import FixedCounts

    job = make_job(dataset, workload, settings or [], loader, cache, storage, epochs, steps, out)
    start(
        job, "run", ranks, needed=1, schedule=lambda size: FixedCounts((size,)), force=force, dry_run=dry_run
    )  # fmt: skip
