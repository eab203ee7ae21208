"""`feedrate efficiency`: per terabyte, per watt, per unit of money."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from emulator.spec.system import System


def efficiency(
    systems: Annotated[
        list[str], typer.Option("--system", "-s", help="System file, or its name; repeatable.")
    ],
    workload: Annotated[
        str | None, typer.Option("--workload", "-w", help="Count accelerators of this workload.")
    ] = None,
    result: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Take the accelerators fed from this sweep's knee.")
    ] = None,
    match: Annotated[
        str | None, typer.Option(metavar="SYSTEM", help="Nodes that it takes to match this system.")
    ] = None,
) -> None:  # fmt: skip
    """GB/s, IOPS and accelerators per TB, watt and price; nodes to match another system."""
    from emulator.report.efficiency import efficiency_grid, match_grid
    from emulator.report.table import print_grids
    from emulator.spec.system import load_system

    loaded = [load_system(name) for name in systems]
    grids = [efficiency_grid(loaded, [_fed(system, workload, result) for system in loaded])]
    if match is not None:
        grids.append(match_grid(loaded, load_system(match)))
    print_grids(grids)


def _fed(system: System, workload: str | None, result: Path | None) -> float | None:
    """Accelerators that the system feeds: the knee of a result, else read bandwidth / demand."""
    from emulator.analysis.efficiency import accelerators_fed
    from emulator.errors import SpecError
    from emulator.record.store import read_result
    from emulator.spec.catalog import load_workload

    if workload and result:
        raise SpecError("--workload and --result were both given", "leave one of them out")
    if result is not None:
        knee = read_result(result).knee
        if knee is None or knee.n_au is None:
            raise SpecError(f"{result} has no knee", "give the result of a sweep that found one")
        return knee.n_au
    if workload is None:
        return None
    spec = load_workload(workload)
    demand = spec.ideal_samples_per_second * spec.sample_read.bytes_mean
    return accelerators_fed(system.storage.bandwidth, demand)
