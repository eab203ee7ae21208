"""Noise beside a sweep: one fio a host, started by the host's first rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emulator.run.comm import Comm
    from emulator.run.job import Job


@contextmanager
def noise_beside(job: Job, world: Comm) -> Iterator[None]:
    """Run the job's noise, if it has any, while the body runs. Collective; errors end every rank.

    What fio says of it is kept in OUT/noise/HOST.json.
    """
    folder = job.dataset
    if not job.storage.noise or not isinstance(folder, Path):
        yield
        return
    import socket

    from emulator.baseline.noise import RunningNoise, noise_line, parse_noise
    from emulator.record.store import write_whole
    from emulator.run.guard import agreed

    noise, host = parse_noise(job.storage.noise), socket.gethostname()
    first = world.node().rank == 0
    running: list[RunningNoise] = []
    try:
        agreed(world, lambda: running.append(RunningNoise(noise, folder, host)) if first else None)
        yield
        told = agreed(world, lambda: (host, running[0].stop()) if first else ("", ""))
    finally:
        for one in running:
            one.end()
    for name, text in world.gather(told):
        if name:
            (job.out / "noise").mkdir(exist_ok=True)
            write_whole(job.out / "noise" / f"{name}.json", lambda file, t=text: file.write(t.encode()))  # type: ignore[misc]
            print(f"noise on {name}: {noise_line(text)}", flush=True)
