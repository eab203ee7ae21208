"""What belongs on one page: a result, the baselines beside it, the systems that it ran on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emulator.errors import SpecError
from emulator.record.result import RunResult
from emulator.record.store import RESULT, read_result
from emulator.report.baseline import Grid, against
from emulator.report.efficiency import efficiency_grid
from emulator.report.kinds import grids
from emulator.spec.system import System, load_system

_FIRST = ("sweep", "run", "simulated", "imported", "checkpoint", "baseline")
"""Which kind of result leads a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The parts of one page."""

    main: Path
    """OUT of the result that leads."""
    baselines: tuple[tuple[str, RunResult], ...]
    """Name and result of each baseline beside it."""
    systems: tuple[System, ...]
    checkpoints: tuple[tuple[str, RunResult], ...] = ()
    """Name and result of each checkpoint run beside it."""


def gather(out: Path, baselines: Sequence[Path], systems: Sequence[str]) -> Gathered:
    """The parts for `out`: a result, or a folder that holds results and system files.

    In a folder the sweep leads (of several the one made last), baselines and checkpoint runs stand beside it,
    and every system file is measured against its knee. Raises SpecError, StorageError.
    """
    found = [(path.name, _baseline(path)) for path in baselines]
    loaded = [load_system(name) for name in systems]
    if not out.is_dir() or (out / RESULT).is_file():
        main = out.parent if out.suffix == ".json" else out
        return Gathered(main=main, baselines=tuple(found), systems=tuple(loaded))
    held = {path.parent: read_result(path) for path in sorted(out.glob(f"*/{RESULT}"))}
    if not held:
        read_result(out)  # says what is missing
    main = min(held, key=lambda path: (_FIRST.index(held[path].kind), _reversed(held[path].created)))
    found += [(path.name, one) for path, one in held.items() if one.kind == "baseline" and path != main]
    loaded += [load_system(str(path)) for path in sorted(out.glob("*.toml"))]
    written = [(path.name, one) for path, one in held.items() if one.kind == "checkpoint" and path != main]
    return Gathered(main=main, baselines=tuple(found), systems=tuple(loaded), checkpoints=tuple(written))


def _baseline(path: Path) -> RunResult:
    result = read_result(path)
    if result.kind != "baseline":
        raise SpecError(f"{path} is no baseline but a {result.kind}", "feedrate baseline makes one")
    return result


def _reversed(created: str) -> tuple[int, ...]:
    """A key that puts the latest time first."""
    return tuple(-ord(letter) for letter in created)


def beside(result: RunResult, found: Gathered) -> tuple[Grid, ...]:
    """The tables that stand beside a result: training against fio, the baselines, the efficiency."""
    tables: list[Grid] = []
    for name, baseline in found.baselines:
        if result.kind not in ("baseline", "checkpoint"):
            tables.append(_named(against(result, baseline), name))
        tables += [_named(grid, name) for grid in grids(baseline)]
    for name, one in found.checkpoints:
        tables += [_named(grid, name) for grid in grids(one)]
    if found.systems:
        fed = result.knee.n_au if result.knee else None
        tables.append(efficiency_grid(found.systems, [fed] * len(found.systems)))
    return tuple(grid for grid in tables if grid.rows)


def _named(grid: Grid, name: str) -> Grid:
    return replace(grid, caption=f"{grid.caption} ({name})")
