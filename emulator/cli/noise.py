"""Noise beside a sweep: one process a host, fio or a checkpointing job, started by the host's first rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from emulator.run.comm import Comm
    from emulator.run.job import Job


class Running(Protocol):
    """Noise on this host, from its construction to `stop`."""

    def stop(self) -> str:
        """Stop it; what it says of itself, as JSON. Raises StorageError."""
        ...

    def end(self) -> None:
        """Kill it if it runs, and remove its files. Never raises."""
        ...


def is_checkpoints(text: str) -> bool:
    """True when a noise spec asks for a checkpointing job, False when for fio."""
    return text.startswith("checkpoint")


def check_noise(text: str) -> None:
    """Raises SpecError, MissingError when there cannot be such noise."""
    if is_checkpoints(text):
        from emulator.checkpoint.beside import parse_checkpoint_noise

        parse_checkpoint_noise(text)
        return
    from emulator.baseline.fio import require_fio
    from emulator.baseline.noise import parse_noise

    parse_noise(text)
    require_fio()


def _kind(text: str) -> tuple[Callable[[Path, str], Running], Callable[[str], str]]:
    """How such noise is started beside a dataset on a host, and what it says in one line."""
    if is_checkpoints(text):
        from emulator.checkpoint.beside import RunningCheckpoints, checkpoints_line, parse_checkpoint_noise

        checkpoints = parse_checkpoint_noise(text)
        return lambda dataset, host: RunningCheckpoints(checkpoints, dataset, host), checkpoints_line
    from emulator.baseline.noise import RunningNoise, noise_line, parse_noise

    noise = parse_noise(text)
    return lambda dataset, host: RunningNoise(noise, dataset, host), noise_line


@contextmanager
def noise_beside(job: Job, world: Comm) -> Iterator[None]:
    """Run the job's noise, if it has any, while the body runs. Collective; errors end every rank.

    What it says of itself is kept in OUT/noise/HOST.json.
    """
    folder = job.dataset
    if not job.storage.noise or not isinstance(folder, Path):
        yield
        return
    import socket

    from emulator.record.store import write_whole
    from emulator.run.guard import agreed

    begin, line = _kind(job.storage.noise)
    host, first = socket.gethostname(), world.node().rank == 0
    running: list[Running] = []
    try:
        agreed(world, lambda: running.append(begin(folder, host)) if first else None)
        yield
        told = agreed(world, lambda: (host, running[0].stop()) if first else ("", ""))
    finally:
        for one in running:
            one.end()
    for name, text in world.gather(told):
        if name:
            (job.out / "noise").mkdir(exist_ok=True)
            write_whole(job.out / "noise" / f"{name}.json", lambda file, t=text: file.write(t.encode()))  # type: ignore[misc]
            print(f"noise on {name}: {line(text)}", flush=True)
