"""rados bench as a tool: write, read sequentially, read at random. Ceph (ceph-common) provides it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from emulator import live
from emulator.errors import FeedrateError, MissingError, SpecError, StorageError
from emulator.launch.child import ChildProcess
from emulator.plugins.baseline.fio import GRACE_SECONDS
from emulator.plugins.baseline.measure import Sides, Tool
from emulator.plugins.baseline.suites import Turn
from emulator.record.result import Corner, Side

OBJECT_BYTES = 4 << 20
"""Bytes of an object, and of a request."""
CONNECT_SECONDS = 15
"""Time limit in seconds for a cluster to answer."""
PHASES = ("write", "seq", "rand")
"""In this order: the read phases need the objects of the write phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RadosBench(Tool):
    """rados bench on a pool, where every client has its own objects."""

    name: ClassVar[str] = "rados bench"
    folder: ClassVar[str] = "rados"
    suffix: ClassVar[str] = "command"

    pool: str
    conf: Path
    """Path of ceph.conf, which names the keyring."""
    user: str = ""
    """`client.NAME`; empty for rados' default, mostly client.admin."""
    depths: tuple[int, ...] = (16,)
    seconds: float = 30.0
    """Measured time of a phase, in whole seconds; a seq phase ends when it has read every object."""
    most_bytes: int = 0
    """Most bytes that a client writes at each depth before it starts over; 0 for no limit."""
    nonce: str = field(default_factory=lambda: os.urandom(4).hex())
    """Part of objects' names, so that objects of another run are never overwritten or removed."""

    def __post_init__(self) -> None:
        """Raise SpecError for names that rados would take for options, or cannot accept."""
        for option, text in (("--pool", self.pool), ("--ceph-user", self.user)):
            if text.startswith("-") or not text.isprintable():
                raise SpecError(f"{option} {text!r} is not a name in Ceph", f"write it like {option} NAME")

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(_turn(phase, depth) for phase in PHASES for depth in self.depths)

    @property
    def turn_seconds(self) -> float:
        return self.seconds

    def checked(self, clients: int) -> RadosBench:
        if 0 < self.most_bytes < OBJECT_BYTES:
            raise SpecError(f"--size {self.most_bytes} is less than an object", "use 4MiB or more")
        if not self.conf.is_file():
            raise StorageError(f"there is no file {self.conf}", "give the cluster's ceph.conf to --ceph-conf")
        pools = _call(self._command("lspools"), CONNECT_SECONDS + 15.0).splitlines()
        if self.pool not in pools:
            hint = f"use one of: {', '.join(pools)}" if pools else "create it with ceph osd pool create"
            raise StorageError(f"the cluster has no pool {self.pool}", hint)
        return self

    def described(self) -> dict[str, Any]:
        return {
            "workload": {
                "name": "rados",
                "title": "rados bench, 4 MiB objects: written, read in order and at random",
                "depths": self.depths,
                "jobs": 1,
                "file_bytes": self.most_bytes,
                "seconds": self.seconds,
                "engine": "librados",
            },
            "dataset": {"path": f"rados://{self.pool}"},
            "storage": {"cache": "cold", "direct": True},
            "environment": {"rados": _call([_rados(), "--version"], 20.0).strip()},
        }

    def _command(self, *words: str) -> list[str]:
        """Return a command line of rados. Raises MissingError."""
        name = ["--name", self.user] if self.user else []
        mount = f"--client_mount_timeout={CONNECT_SECONDS}"
        return [_rados(), "--conf", str(self.conf.absolute()), mount, *name, *words]

    def _run_name(self, client: str, depth: int) -> str:
        """Return the name of the objects that a client writes and reads at `depth`."""
        return f"feedrate-{client}-{self.nonce}-t{depth}"

    def bench(self, turn: Turn, client: str) -> list[str]:
        """Return the command line of rados for a turn. Raises MissingError."""
        (phase,) = turn.corners
        words = ["--pool", self.pool, "bench", f"{max(1, round(self.seconds))}", phase]
        words += ["-t", str(turn.depth), "--run-name", self._run_name(client, turn.depth)]
        words += ["--format", "json"]
        if phase == "write":
            words += ["-b", str(OBJECT_BYTES), "--no-cleanup"]
            if self.most_bytes:
                objects = -(-self.most_bytes // OBJECT_BYTES)
                words += ["--max-objects", str(objects)]
        return self._command(*words)

    def prepare(self, client: str, stack: ExitStack) -> None:
        if not self.keep:
            stack.callback(self._clean_up, client)

    def _clean_up(self, client: str) -> None:
        """Remove the objects of this client; report those that cannot be removed."""
        for depth in self.depths:
            name = self._run_name(client, depth)
            words = ("--pool", self.pool, "cleanup", "--run-name", name)
            try:
                _call(self._command(*words), GRACE_SECONDS)
            except FeedrateError as error:  # the measurement is valid nevertheless
                live.say(f"the objects of {name} may be left in pool {self.pool}: {error.what}")

    def run(self, turn: Turn, client: str, seed: int) -> tuple[str, str]:
        command = self.bench(turn, client)
        out = _call(command, self.seconds + GRACE_SECONDS)
        # Messages may precede the JSON.
        return shlex.join(command) + "\n", out[max(0, out.find("{")) :]

    def sides(self, turn: Turn, printed: Sequence[str]) -> list[Sides]:
        if "write" in turn.corners:
            return [(None, side_of(printed, "write"))]
        return [(side_of(printed, "read"), None)]


def _turn(phase: str, depth: int) -> Turn:
    corner = Corner(
        pattern="random" if phase == "rand" else "sequential",
        block_bytes=OBJECT_BYTES,
        read_share=0.0 if phase == "write" else 1.0,
        depth=depth,
        jobs=1,
        clients=1,
    )
    return Turn(name=f"{phase}-t{depth}", corners={phase: corner}, depth=depth)


def _rados() -> str:
    """Return the path of rados. Raises MissingError."""
    path = shutil.which("rados")
    if path is None:
        raise MissingError("rados, which measures Ceph, is not installed", "apt install ceph-common")
    return path


def _call(command: Sequence[str], limit: float) -> str:
    """Run a command line of rados and return its output. Raises StorageError after `limit` seconds, too."""
    rados = ChildProcess("rados", command)
    out, err = rados.finish(seconds=limit, hint="the cluster hangs: see ceph status")
    if rados.returncode:
        raise _failure(err)
    return out


def _failure(err: str) -> StorageError:
    """Return the error that rados described on stderr."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    reasons = [line for line in lines if "rror" in line or "ailed" in line]
    # librados logs one line for each layer, and the last one is rados' own.
    reason = (reasons or lines or ["no output"])[-1].removesuffix(" (--no-mon-config to skip)")
    hint = "ask ceph status whether the monitors in ceph.conf answer"
    if any(word in err for word in ("not permitted", "ermission denied", "keyring", "auth")):
        hint = "the user needs a key with mon 'allow r', osd 'allow rwx pool=POOL': see --ceph-user"
    return StorageError(f"rados failed: {reason}", hint)


def side_of(printed: Sequence[str], word: Literal["read", "write"]) -> Side | None:
    """Combine one phase on several clients; None if no request completed. Raises StorageError.

    Rates are requests per second of run time; rados prints the same in MiB/s. It has no histogram, so the
    99.99 % latency is that of the slowest request.
    """
    names = (f"total_{word}s_made", "total_time_run", "average_latency", "max_latency", f"{word}_size")
    try:
        figures = np.array([[float(json.loads(text)[name]) for name in names] for text in printed])
    except (KeyError, ValueError, TypeError) as error:
        what = f"the JSON of rados bench cannot be read ({error})"
        raise StorageError(what, "Ceph 14 or newer is needed") from None
    requests, seconds, means, slowest, sizes = figures.T
    if not requests.any():
        return None
    rates = np.divide(requests, seconds, out=np.zeros_like(requests), where=seconds > 0)
    return Side(
        requests=int(requests.sum()),
        iops=float(rates.sum()),
        bytes_per_second=float(rates @ sizes),
        latency_mean=float(means @ requests / requests.sum()),
        latency_p9999=float(slowest.max()),
    )
