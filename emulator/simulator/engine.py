"""Which engine plays a scene: compiled where numba is installed, else plain Python."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from emulator.errors import MissingError
from emulator.simulator.scene import Engine

EngineKind = Literal["numba", "python"]

REPRESENTATIVES = 2000
"""Ranks that the plain Python engine plays when they do not wait for each other; more are stood for by these,
with the limits scaled down. With barriers all are played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """An engine and how many ranks it plays at most."""

    kind: EngineKind
    play: Engine
    most_ranks: int | None


def choose(kind: EngineKind | None = None, most_ranks: int | None = None) -> Chosen:
    """The engine `kind`; None: the fastest that is there. Raises MissingError."""
    if kind != "python" and find_spec("numba") is not None:
        from emulator.simulator.compiled import play

        return Chosen(kind="numba", play=play, most_ranks=most_ranks)
    if kind == "numba":
        raise MissingError("--engine numba needs numba", "pip install 'feedrate[sim]'")
    from emulator.simulator import reference

    return Chosen(kind="python", play=reference.play, most_ranks=most_ranks or REPRESENTATIVES)
