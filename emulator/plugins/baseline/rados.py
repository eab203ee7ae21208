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

from emulator import live
from emulator.errors import FeedrateError, MissingError, SpecError, StorageError
from emulator.launch.child import ChildProcess
from emulator.plugins.baseline.fio import GRACE_SECONDS
from emulator.plugins.baseline.measure import Sides, Tool
from emulator.plugins.baseline.suites import Job, PatternKind, Turn
from emulator.record.result import Side
from emulator.units import show_bytes

OBJECT_BYTES = 4 << 20
"""Bytes of an object, and of a request."""
CONNECT_SECONDS = 15
"""Time limit in seconds for a cluster to answer."""
PHASES: dict[str, tuple[PatternKind, float]] = {
    "write": ("sequential", 0.0),
    "seq": ("sequential", 1.0),
    "rand": ("random", 1.0),
}
"""Pattern and share of reads of its phases. The read phases need the objects of the write phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A pool, and the user that accesses it."""

    pool: str
    conf: Path
    """Path of ceph.conf, which names the keyring."""
    user: str = ""
    """`client.NAME`; empty for rados' default, mostly client.admin."""

    def __post_init__(self) -> None:
        """Raise SpecError for names that rados would take for options, or cannot accept."""
        for option, text in (("--pool", self.pool), ("--ceph-user", self.user)):
            if text.startswith("-") or not text.isprintable():
                raise SpecError(f"{option} {text!r} is not a name in Ceph", f"write it like {option} NAME")

    def command(self, *words: str) -> list[str]:
        """Return a command line of rados. Raises MissingError."""
        path = shutil.which("rados")
        if path is None:
            raise MissingError("rados, which measures Ceph, is not installed", "apt install ceph-common")
        name = ["--name", self.user] if self.user else []
        mount = f"--client_mount_timeout={CONNECT_SECONDS}"
        return [path, "--conf", str(self.conf.absolute()), mount, *name, *words]


def _call(command: Sequence[str], limit: float) -> str:
    """Run a command line of rados and return its output. Raises StorageError."""
    rados = ChildProcess("rados", command)
    out, err = rados.finish(seconds=limit, hint="the cluster hangs: see ceph status")
    if rados.returncode == 0:
        return out
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    reasons = [line for line in lines if "rror" in line or "ailed" in line]
    reason = (reasons or lines or ["no output"])[-1].removesuffix(" (--no-mon-config to skip)")
    if any(word in err for word in ("not permitted", "ermission denied", "keyring", "auth")):
        hint = "the user needs a key with mon 'allow r', osd 'allow rwx pool=POOL': see --ceph-user"
        raise StorageError(f"rados failed: {reason}", hint)
    raise StorageError(f"rados failed: {reason}", "ask ceph status whether the monitors in ceph.conf answer")


def side_of(printed: Sequence[str], word: Literal["read", "write"]) -> Side | None:
    """Combine one phase on several clients; None if no request completed. Raises StorageError.

    Rates are requests per second of run time; rados prints the same in MiB/s. It has no histogram, so the
    99.99 % latency is that of the slowest request.
    """
    try:
        runs = [json.loads(text) for text in printed]
        counts = [int(run[f"total_{word}s_made"]) for run in runs]
        seconds = [float(run["total_time_run"]) for run in runs]
        means = [float(run["average_latency"]) for run in runs]
        slowest = max(float(run["max_latency"]) for run in runs)
        sizes = [int(run[f"{word}_size"]) for run in runs]
    except (KeyError, ValueError, TypeError) as error:
        raise StorageError(
            f"the JSON of rados bench cannot be read ({error})", "Ceph 14 or newer is needed"
        ) from None
    if not sum(counts):
        return None
    rates = [count / time if time > 0 else 0.0 for count, time in zip(counts, seconds, strict=True)]
    return Side(
        requests=sum(counts),
        iops=sum(rates),
        bytes_per_second=sum(rate * size for rate, size in zip(rates, sizes, strict=True)),
        latency_mean=sum(mean * count for mean, count in zip(means, counts, strict=True)) / sum(counts),
        latency_p9999=slowest,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RadosBench(Tool):
    """rados bench on a pool, where every client has its own objects."""

    name: ClassVar[str] = "rados bench"
    folder: ClassVar[str] = "rados"
    suffix: ClassVar[str] = "command"

    cluster: Cluster
    depths: tuple[int, ...] = (16,)
    seconds: float = 30.0
    """Measured time of a phase, in whole seconds; a seq phase ends when it has read every object."""
    most_bytes: int = 0
    """Most bytes that a client writes at each depth before it starts over; 0 for no limit."""
    nonce: str = field(default_factory=lambda: os.urandom(4).hex())
    """Part of objects' names, so that objects of another run are never overwritten or removed."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(
            Turn(name=f"{phase}-t{depth}", jobs=(_job(phase, depth),), depth=depth)
            for phase in PHASES
            for depth in self.depths
        )

    @property
    def turn_seconds(self) -> float:
        return self.seconds

    def checked(self, clients: int) -> RadosBench:
        if 0 < self.most_bytes < OBJECT_BYTES:
            raise SpecError(
                f"--size {self.most_bytes} is less than one object", f"use {show_bytes(OBJECT_BYTES)}"
            )
        cluster = self.cluster
        if not cluster.conf.is_file():
            raise StorageError(
                f"there is no file {cluster.conf}", "give the cluster's ceph.conf to --ceph-conf"
            )
        pools = _call(cluster.command("lspools"), CONNECT_SECONDS + 15.0).splitlines()
        if cluster.pool not in pools:
            raise StorageError(
                f"the cluster has no pool {cluster.pool}",
                f"use one of: {', '.join(pools)}" if pools else "create it with ceph osd pool create",
            )
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
            "dataset": {"path": f"rados://{self.cluster.pool}"},
            "storage": {"cache": "cold", "direct": True},
            "environment": {"rados": _call([self.cluster.command()[0], "--version"], 20.0).strip()},
        }

    def _run_name(self, client: str, depth: int) -> str:
        """Return the name of the objects that a client writes and reads at `depth`."""
        return f"feedrate-{client}-{self.nonce}-t{depth}"

    def bench(self, turn: Turn, client: str) -> list[str]:
        """Return the command line of rados for a turn. Raises MissingError."""
        (job,) = turn.jobs
        words = ["--pool", self.cluster.pool, "bench", f"{max(1, round(self.seconds))}", job.name]
        words += ["-t", str(turn.depth), "--run-name", self._run_name(client, turn.depth)]
        words += ["--format", "json"]
        if job.name == "write":
            objects = -(-self.most_bytes // OBJECT_BYTES)
            words += ["-b", str(OBJECT_BYTES), "--no-cleanup"]
            words += ["--max-objects", str(objects)] if objects else []
        return self.cluster.command(*words)

    def prepare(self, client: str, stack: ExitStack) -> None:
        if not self.keep:
            stack.callback(self._clean_up, client)

    def _clean_up(self, client: str) -> None:
        """Remove the objects of this client; report those that cannot be removed."""
        for depth in self.depths:
            name = self._run_name(client, depth)
            try:
                words = ("--pool", self.cluster.pool, "cleanup", "--run-name", name)
                _call(self.cluster.command(*words), GRACE_SECONDS)
            except FeedrateError as error:  # the measurement is valid nevertheless
                live.say(f"the objects of {name} may be left in pool {self.cluster.pool}: {error.what}")

    def run(self, turn: Turn, client: str, seed: int) -> tuple[str, str]:
        command = self.bench(turn, client)
        out = _call(command, self.seconds + GRACE_SECONDS)
        # Messages may precede the JSON.
        return shlex.join(command) + "\n", out[max(0, out.find("{")) :]

    def sides(self, turn: Turn, printed: Sequence[str]) -> list[Sides]:
        if turn.jobs[0].read_share:
            return [(side_of(printed, "read"), None)]
        return [(None, side_of(printed, "write"))]


def _job(phase: str, depth: int) -> Job:
    pattern, share = PHASES[phase]
    return Job(name=phase, pattern=pattern, block_bytes=OBJECT_BYTES, read_share=share, depth=depth)
