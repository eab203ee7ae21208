"""`feedrate simulate`: a sweep in virtual time, with the files of a measured one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.cli import options
from emulator.errors import SpecError

if TYPE_CHECKING:
    from emulator.simulator.predict import Simulation

SystemName = Annotated[
    str, typer.Option("--system", "-s", help="System file (fit writes one), or a name in results/systems.")
]
Counts = Annotated[str, typer.Option(help="Process counts: 1,8,64 or 1-8 or 1,10,...,100000.")]
Hosts = Annotated[int | None, typer.Option(min=1, help="Client hosts, instead of the system file's.")]
EngineName = Annotated[str, typer.Option("--engine", help="auto, numba or python.")]
SizesFrom = Annotated[Path | None, typer.Option("--dataset", help="Take the samples' sizes from it.")]
Files = Annotated[int | None, typer.Option(min=1, help="Samples, when no dataset is given.")]

DEFAULT_STEPS = 100
"""Steps of a rank when neither --epochs nor --steps is given."""


def simulate(
    workload: options.WorkloadName,
    system: SystemName,
    counts: Counts,
    out: options.Out = None,
    hosts: Hosts = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    dataset: SizesFrom = None,
    files: Files = None,
    engine: EngineName = "auto",
    settings: options.Settings = None,
    force: options.Force = False,
) -> None:
    """Predict a sweep on a described or fitted system, up to 100,000 ranks."""
    from emulator.simulator.counts import parse_progression

    wanted = parse_progression(counts)
    steps = steps or (None if epochs else DEFAULT_STEPS)
    simulation = prepare(workload, settings or [], system, hosts, engine)
    simulation = with_data(simulation, dataset, files, epochs, steps, max(wanted))
    run(simulation, wanted, out or default_out(simulation), {"path": str(dataset)} if dataset else {}, force)


def run(
    simulation: Simulation, counts: tuple[int, ...], out: Path, dataset: dict[str, str], force: bool
) -> None:
    """Simulate the counts, write OUT and show it. Raises SpecError, StorageError."""
    import sys

    from emulator.record.machine import cpu_seconds
    from emulator.record.store import check_out
    from emulator.report.table import print_table
    from emulator.simulator.result import result_of, sweep, write

    check_out(out, force)
    begin, command = cpu_seconds(), ("feedrate", *sys.argv[1:])
    points, rows, played = sweep(simulation, counts, typer.echo)
    spent = cpu_seconds() - begin
    result = result_of(simulation, points, played, command=command, dataset=dataset, cpu_seconds=spent)
    write(out, result, rows, force)
    print_table(result)
    typer.echo(f"\nresult: {out}   (feedrate report {out} --html page.html)")


def default_out(simulation: Simulation) -> Path:
    """Where a result goes when nobody says."""
    import time

    return Path("feedrate-results") / f"{simulation.workload.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def prepare(workload: str, settings: list[str], system: str, hosts: int | None, engine: str) -> Simulation:
    """What the options ask for, still without data. Raises SpecError, MissingError."""
    import numpy as np

    from emulator.simulator.engine import choose
    from emulator.simulator.predict import Simulation
    from emulator.spec.catalog import load_workload
    from emulator.spec.system import load_system, on_hosts

    if engine not in ("auto", "numba", "python"):
        raise SpecError(f"--engine {engine!r} is not known", "use auto, numba or python")
    kind = None if engine == "auto" else engine
    return Simulation(
        workload=load_workload(workload, settings), system=on_hosts(load_system(system), hosts),
        sizes=np.zeros(0), engine=choose(kind),  # type: ignore[arg-type]
    )  # fmt: skip


def with_data(
    simulation: Simulation, dataset: Path | None, files: int | None, epochs: int | None, steps: int | None,
    most: int,
) -> Simulation:  # fmt: skip
    """`simulation` on the sizes of a dataset, or on as many as `most` ranks need. Raises DatasetError."""
    from dataclasses import replace

    from emulator.simulator.sizes import default_files, sample_sizes

    if dataset is not None:
        from emulator.dataset.manifest import read_manifest

        manifest = read_manifest(dataset)
        each = manifest.samples_per_file
        sizes = (manifest.sizes.astype("float64") / each).repeat(each)
    else:
        loader, sample = simulation.workload.loader, simulation.workload.sample_read
        sizes = sample_sizes(sample, files or default_files(loader.batch_size * most, steps))
    return replace(simulation, sizes=sizes, epochs=epochs, steps=steps)
