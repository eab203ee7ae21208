"""Noise beside a sweep: one process a host, fio or a checkpointing job, started by the host's first rank."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from emulator import live
from emulator.files import write_whole
from emulator.registry import NOISE, load
from emulator.run.comm import Comm, agreed
from emulator.run.point import TrainingJob


class Running(Protocol):
    """Noise on this host: what `begin` of a noise module returns."""

    def stop(self) -> str:
        """Stop it; what it says of itself, as JSON. Raises StorageError."""
        ...

    def end(self) -> None:
        """Kill it if it runs, and remove its files. Never raises."""
        ...


def noise_named(text: str) -> Any:
    """The module of the noise that `text` asks for, with `require`, `begin` and `line`."""
    return load(NOISE["checkpoint" if text.startswith("checkpoint") else "fio"])


@contextmanager
def noise_beside(job: TrainingJob, world: Comm) -> Iterator[None]:
    """Run the job's noise, if it has any, while the body runs. Collective; errors end every rank.

    What it says of itself is kept in OUT/noise/HOST.json.
    """
    folder, text = job.dataset, job.storage.noise
    if not text or not isinstance(folder, Path):
        yield
        return
    module = noise_named(text)
    host, first = socket.gethostname(), world.node().rank == 0
    running: list[Running] = []
    try:
        agreed(world, lambda: running.append(module.begin(text, folder, host)) if first else None)
        yield
        report = agreed(world, lambda: running[0].stop() if first else "")
    finally:
        for noise in running:
            noise.end()
    for name, found in world.gather((host, report)):
        if found:
            (job.out / "noise").mkdir(exist_ok=True)
            write_whole(job.out / "noise" / f"{name}.json", found)
            live.say(f"noise on {name}: {module.line(found)}")
