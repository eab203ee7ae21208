"""Efficiency of systems as tables of text."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.analysis.efficiency import efficiency, matches
from emulator.report.baseline import Grid
from emulator.report.view import number
from emulator.spec.system import System


def efficiency_grid(systems: Sequence[System], fed: Sequence[float | None]) -> Grid:
    """One column a system; what no system file says is left out."""
    columns = [efficiency(system, count) for system, count in zip(systems, fed, strict=True)]
    rows = tuple(
        (
            first.name if len({f.unit for f in row}) > 1 else f"{first.name}, {first.unit}".rstrip(", "),
            *(number(figure.value, 4) for figure in row),
        )
        for first, *rest in zip(*columns, strict=True)
        for row in [(first, *rest)]
        if any(figure.value is not None for figure in row)
    )
    return Grid(caption="Efficiency", heads=("", *(system.name for system in systems)), rows=rows)


def match_grid(systems: Sequence[System], other: System) -> Grid:
    """How many nodes of each system match `other`."""
    found = {system.name: {one.what: one.nodes for one in matches(system, other)} for system in systems}
    kinds = list(dict.fromkeys(what for one in found.values() for what in one))
    rows = tuple((what, *(f"{found[system.name].get(what, '–')}" for system in systems)) for what in kinds)
    heads = ("nodes", *(system.name for system in systems))
    return Grid(caption=f"Nodes to match {other.name}", heads=heads, rows=rows)
