"""Noise beside a sweep: other work on the same storage, started by the first rank of each host."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from emulator import live
from emulator.errors import SpecError
from emulator.files import write_whole
from emulator.launch.comm import Comm, agreed
from emulator.registry import NOISE


class Running(Protocol):
    """Noise that runs on this host."""

    def stop(self) -> str:
        """Stop the noise and return what it did, as JSON. Raises StorageError."""
        ...

    def end(self) -> None:
        """Kill the noise if it runs, and remove its files. Never raises."""
        ...


class Noise(Protocol):
    """A kind of noise: a module, or an object, in the group `feedrate.noise`.

    `text` is the whole value of `--noise`. It begins with the name of the entry point; the rest, after a
    colon or a comma, is for the kind to interpret.
    """

    def require(self, text: str) -> None:
        """Raise SpecError or MissingError if this noise cannot run."""
        ...

    def begin(self, text: str, folder: Path) -> Running:
        """Start the noise in `folder` (`noise_folder`), which may exist; return once it runs.

        Raises StorageError.
        """
        ...

    def line(self, output: str) -> str:
        """Describe in one line what it did on a host; `output` is the result of `stop`."""
        ...


def noise_named(text: str) -> Noise:
    """Load the kind of noise that `text`, the value of `--noise`, names. Raises SpecError, MissingError."""
    name = re.split("[:,]", text, maxsplit=1)[0]
    if name not in NOISE:
        raise SpecError(f"--noise {text!r} is not known", f"begin it with one of {NOISE}")
    noise: Noise = NOISE.load(name)
    return noise


def noise_folder(dataset: Path, host: str) -> Path:
    """Return a folder for a host's noise beside the dataset, on the same file system. Raises SpecError."""
    # Not in the dataset, where files of a killed run would be faults.
    place = dataset.resolve()
    if place.parent.stat().st_dev != place.stat().st_dev:
        raise SpecError(
            f"--noise needs a folder beside {dataset}, which is a mount point",
            "move the dataset into a folder of the mount",
        )
    return place.parent / f".feedrate-noise-{place.name}" / host


@contextmanager
def noise_beside(text: str, folder: object, out: Path, world: Comm) -> Iterator[None]:
    """Run the noise `text`, if there is any, beside `folder` during the body. Collective.

    Errors end every rank. OUT/noise/HOST.json records what it did. There is none beside an object store.
    """
    if not text or not isinstance(folder, Path):
        yield
        return
    kind = agreed(world, lambda: noise_named(text))  # a host may lack the package
    host, first = socket.gethostname(), world.node().rank == 0
    running: list[Running] = []
    try:
        place = agreed(world, lambda: noise_folder(folder, host))
        agreed(world, lambda: running.append(kind.begin(text, place)) if first else None)
        yield
        report = agreed(world, lambda: running[0].stop() if first else "")
    finally:
        for noise in running:
            noise.end()
    for name, output in filter(None, world.gather((host, report) if first else None)):
        if output:
            (out / "noise").mkdir(exist_ok=True)
            write_whole(out / "noise" / f"{name}.json", output)
            live.say(f"noise on {name}: {kind.line(output)}")
