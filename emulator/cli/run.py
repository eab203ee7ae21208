"""`feedrate run`: one process count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from emulator.cli import options
from emulator.cli.start import loader_kind, make_job, start
from emulator.errors import SpecError


def run(
    workload: options.WorkloadName,
    dataset: options.OptionalDataset = None,
    ranks: options.Ranks = None,
    out: options.Out = None,
    loader: options.LoaderName = "torch",
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    cache: options.CacheName = "cold",
    storage: options.StorageText = "posix",
    settings: options.Settings = None,
    verify_reads: options.VerifyReads = False,
    dry_run: options.DryRun = False,
    force: options.Force = False,
    self_test: Annotated[bool, typer.Option("--self-test", help="What the emulator itself costs.")] = False,
) -> None:
    """Emulate training with one rank per accelerator, once."""
    from emulator.sweep.schedule import FixedCounts

    if self_test:
        _self_test(workload, settings or [], loader)
        return
    if dataset is None:
        raise SpecError("run needs the folder of a dataset", "feedrate generate DIR makes one")
    job = make_job(
        dataset, workload, settings or [], loader, cache, storage, epochs, steps, out, verify_reads
    )
    start(
        job, "run", ranks, needed=1, schedule=lambda size: FixedCounts((size,)), force=force, dry_run=dry_run
    )  # fmt: skip


def _self_test(workload: str, settings: Sequence[str], loader: str) -> None:
    from emulator.run.selftest import self_test
    from emulator.spec.catalog import load_workload
    from emulator.units import show_bytes, show_seconds

    spec = load_workload(workload, settings)
    cost = self_test(loader_kind(loader), spec)
    typer.echo(f"loader {loader}, {spec.loader.workers} workers, one rank, files in RAM, no compute")
    typer.echo(f"loop of a step      {show_seconds(cost.step_seconds)}, without reading")
    typer.echo(f"CPU                 {cost.cpu_seconds_per_gb:.3f} s per GB, reading")
    typer.echo(
        f"at most             {cost.samples_per_second:.0f} samples/s of {show_bytes(cost.sample_bytes)}"
    )
