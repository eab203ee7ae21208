"""What a baseline is asked to do, decided before fio starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from emulator.baseline.suites import Suite, Turn, turns
from emulator.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a baseline is asked to do."""

    folder: Path
    """On the storage."""
    suite: Suite
    clients: tuple[int, ...]
    """Numbers of clients to sweep over; empty: all that there are."""
    file_bytes: int
    """Bytes of a job's file."""
    seconds: float
    """Measured time of a turn."""
    ramp_seconds: float
    """Time before it that is not counted."""
    engine: str
    """fio's ioengine."""
    keep: bool
    """Leave the files in `folder` afterwards."""
    out: Path
    command: tuple[str, ...]

    def turns(self, clients: int) -> tuple[Turn, ...]:
        """The runs of fio with at most `clients` clients. Raises SpecError."""
        if self.clients and max(self.clients) > clients:
            raise SpecError(
                f"--clients asks for {max(self.clients)}, but there are {clients}",
                "start one rank a host, mpirun --map-by ppr:1:node feedrate ..., or name more --servers",
            )
        return turns(self.suite, self.clients or (clients,))


def parse_list(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers above 0 from `1,8,32`. Raises SpecError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise SpecError(f"{option} {text!r} is not a list of numbers above 0", "write it like 1,8,32")
    return tuple(map(int, parts))
