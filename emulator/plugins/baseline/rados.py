"""Plan `rados bench`: write, read in order, read at random. The tool comes with Ceph (ceph-common)."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from emulator.errors import FeedrateError, MissingError, SpecError, StorageError
from emulator.launch.child import ChildProcess
from emulator.plugins.baseline.clients import Plan, Say, Trial, run_trials
from emulator.plugins.baseline.fio import GRACE_SECONDS
from emulator.plugins.baseline.suites import FULL, QUICK
from emulator.record.machine import describe_machine
from emulator.record.result import Corner, RunResult, Side, new_result
from emulator.run.comm import Comm
from emulator.units import show_bytes, show_seconds

OBJECT_BYTES = 4 << 20
"""Bytes of an object, and of a request."""
CONNECT_SECONDS = 15
"""Time limit in seconds for a cluster to answer."""
_TOO_OLD = "Ceph 14 or newer is needed"

Phase = Literal["write", "seq", "rand"]
PHASES: tuple[Phase, ...] = ("write", "seq", "rand")
QUICK_BYTES = 256 * 2**20
"""Bytes that a client writes with --quick."""
RADOS_DEPTHS = (16,)
"""Default numbers of requests in flight: rados bench's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A pool, and the user that accesses it."""

    pool: str
    conf: Path
    """Path of ceph.conf, which says where the keyring is."""
    user: str = ""
    """`client.NAME`; empty: rados chooses, mostly client.admin."""

    def __post_init__(self) -> None:
        """Refuse names that rados would take for options, or cannot take. Raises SpecError."""
        for option, text in (("--pool", self.pool), ("--ceph-user", self.user)):
            if text.startswith("-") or not text.isprintable():
                raise SpecError(f"{option} {text!r} is no name in Ceph", f"write it like {option} NAME")

    def command(self, *words: str) -> list[str]:
        """Return a call of rados. Raises MissingError."""
        path = shutil.which("rados")
        if path is None:
            raise MissingError("rados is not installed: Ceph's own limits need it", "apt install ceph-common")
        name = ["--name", self.user] if self.user else []
        mount = f"--client_mount_timeout={CONNECT_SECONDS}"
        return [path, "--conf", str(self.conf.absolute()), mount, *name, *words]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One run of `rados bench` on one client."""

    phase: Phase
    depth: int
    """Requests in flight."""
    seconds: float
    """Measured time; a seq phase ends when it has read every object."""
    run_name: str
    """Name of the objects. A phase that reads needs a write phase of the same name."""
    objects: int
    """Objects that a write phase makes at most, then writes again; 0: as many as it can."""

    def command(self, cluster: Cluster) -> list[str]:
        """Return the call of rados. Raises MissingError."""
        words = ["--pool", cluster.pool, "bench", f"{max(1, round(self.seconds))}", self.phase]
        words += ["-t", str(self.depth), "--run-name", self.run_name, "--format", "json"]
        if self.phase == "write":
            words += ["-b", str(OBJECT_BYTES), "--no-cleanup"]
            words += ["--max-objects", str(self.objects)] if self.objects else []
        return cluster.command(*words)


def run_bench(cluster: Cluster, bench: Bench) -> str:
    """Run it and return the JSON that rados printed. Raises MissingError, StorageError."""
    out = _call(bench.command(cluster), bench.seconds + GRACE_SECONDS)
    if "{" not in out:
        raise StorageError(f"rados bench printed nothing about its {bench.phase} phase", _TOO_OLD)
    return out[out.index("{") :]


def _call(command: Sequence[str], limit: float) -> str:
    """Return what a call of rados prints. Raises StorageError, with what to do about it."""
    rados = ChildProcess("rados", command)
    out, err = rados.finish(seconds=limit, hint="the cluster hangs: see ceph status")
    if rados.returncode == 0:
        return out
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    reasons = [line for line in lines if "rror" in line or "ailed" in line]
    reason = (reasons or lines or ["no output"])[-1].removesuffix(" (--no-mon-config to skip)")
    if "not permitted" in err or "ermission denied" in err:
        hint = "the key lacks the rights: mon 'allow r', osd 'allow rwx pool=POOL'; see ceph auth get"
    elif "keyring" in err or "auth" in err:
        hint = "the keyring that ceph.conf names lacks the user's key, or may not be read: see --ceph-user"
    elif "config" in err or "timed out" in err:
        hint = "the monitors of ceph.conf do not answer, or know no such user: see ceph status"
    else:
        hint = "see ceph status"
    raise StorageError(f"rados failed: {reason}", hint)


def parse_bench(text: str) -> Mapping[str, Any]:
    """Parse the JSON of a run. Raises StorageError."""
    try:
        found: Mapping[str, Any] = json.loads(text)
        float(found["total_time_run"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"the JSON of rados bench cannot be read ({error})", _TOO_OLD) from None
    return found


def side_of(runs: Sequence[Mapping[str, Any]], phase: Phase) -> Side | None:
    """Sum up one phase on several clients; None: no request completed. Raises StorageError.

    Rates are requests over the time that they took: rados prints the same in MiB/s. It keeps no histogram,
    so the 99.99 % latency is the slowest request's, whatever their number.
    """
    word = "writes" if phase == "write" else "reads"
    try:
        counts = [int(run[f"total_{word}_made"]) for run in runs]
        seconds = [float(run["total_time_run"]) for run in runs]
        means = [float(run["average_latency"]) for run in runs]
        slowest = max(float(run["max_latency"]) for run in runs)
        sizes = [int(run["write_size" if phase == "write" else "read_size"]) for run in runs]
    except (KeyError, ValueError, TypeError) as error:
        raise StorageError(f"the JSON of rados bench lacks {error}", _TOO_OLD) from None
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


def corners_of(bench: Bench, printed: Sequence[str], files: tuple[str, ...]) -> list[Corner]:
    """Return the one corner of a phase at one depth, from the JSON of each client. Raises StorageError."""
    side = side_of([parse_bench(text) for text in printed], bench.phase)
    writes = bench.phase == "write"
    return [
        Corner(
            pattern="random" if bench.phase == "rand" else "sequential",
            block_bytes=OBJECT_BYTES,
            read_share=float(not writes),
            depth=bench.depth,
            jobs=1,
            clients=len(printed),
            read=None if writes else side,
            write=side if writes else None,
            files=files,
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RadosPlan(Plan):
    """rados bench on a pool, every client with objects of its own."""

    cluster: Cluster
    depths: tuple[int, ...] = RADOS_DEPTHS
    seconds: float
    """Measured time of a phase, whole seconds."""
    most_bytes: int = 0
    """Bytes that a client writes at each depth at most, then again; 0: as many as it can."""
    nonce: str = field(default_factory=lambda: os.urandom(4).hex())
    """Part of objects' names, so that another run's are never overwritten or removed."""

    def benches(self, client: str) -> list[Bench]:
        """Return the runs of one client in order: every depth writes before any of them reads."""
        objects = -(-self.most_bytes // OBJECT_BYTES)
        return [
            Bench(
                phase=phase,
                depth=depth,
                seconds=self.seconds,
                run_name=f"feedrate-{client}-{self.nonce}-t{depth}",
                objects=objects,
            )
            for phase in PHASES
            for depth in self.depths
        ]

    def lines(self, clients: int) -> Iterator[str]:
        """Yield the plan for people. Raises MissingError."""
        benches = self.benches("HOST")
        least = show_seconds(len(benches) * self.seconds)
        yield f"rados bench: pool {self.cluster.pool}, at least {least}"
        yield from ("  " + shlex.join(bench.command(self.cluster)) for bench in benches)

    def check(self, clients: int) -> None:
        """Refuse what cannot work, before anything is written. Raises FeedrateError."""
        if self.most_bytes and self.most_bytes < OBJECT_BYTES:
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
                f"use one of: {', '.join(pools)}" if pools else "ceph osd pool create makes one",
            )

    def run(self, comm: Comm, client: str, *, force: bool, say: Say) -> RunResult | None:
        """Run every phase with the ranks of `comm`; the result on rank 0. Collective."""
        clients: list[str] = comm.allgather(client)
        benches = self.benches(client)
        trials = [
            Trial(
                title=f"{bench.phase}, depth {bench.depth}",
                folder=f"rados/{number:03d}-{bench.phase}-t{bench.depth}",
                run=partial(self._run_bench, client, bench),
                corners=partial(corners_of, bench),
            )
            for number, bench in enumerate(benches)
        ]
        try:
            return run_trials(
                self,
                comm,
                lambda: _new_result(self, clients),
                trials,
                suffix="command",
                seconds=self.seconds,
                force=force,
                say=say,
            )
        finally:
            if not self.keep:
                self._clean_up({bench.run_name for bench in benches}, say)

    def _run_bench(self, client: str, bench: Bench) -> Mapping[str, tuple[str, str]]:
        return {client: (shlex.join(bench.command(self.cluster)) + "\n", run_bench(self.cluster, bench))}

    def _clean_up(self, run_names: Collection[str], say: Say) -> None:
        """Remove the objects of this client; what cannot be removed is said. Never raises FeedrateError."""
        for name in sorted(run_names):
            try:
                words = ("--pool", self.cluster.pool, "cleanup", "--run-name", name)
                _call(self.cluster.command(*words), GRACE_SECONDS)
            except FeedrateError as error:  # what was measured counts, whatever is left in the pool
                say(f"the objects of {name} may be left in pool {self.cluster.pool}: {error.what}")


def rados_plan(
    pool: str,
    out: Path,
    *,
    conf: Path = Path("/etc/ceph/ceph.conf"),
    user: str = "",
    quick: bool = False,
    depths: Sequence[int] = (),
    seconds: float | None = None,
    most_bytes: int | None = None,
    per_host: int = 1,
    keep: bool = False,
    command: Sequence[str] = (),
    label: str = "",
) -> RadosPlan:
    """Return a plan of rados bench on `pool`; None or empty: as `quick` says. Raises SpecError."""
    effort = QUICK if quick else FULL
    return RadosPlan(
        cluster=Cluster(pool=pool, conf=conf, user=user),
        depths=tuple(depths) or RADOS_DEPTHS,
        seconds=max(1.0, effort.seconds if seconds is None else seconds),
        most_bytes=(QUICK_BYTES if quick else 0) if most_bytes is None else most_bytes,
        per_host=per_host,
        keep=keep,
        out=out,
        command=tuple(command),
        label=label,
    )


def _new_result(plan: RadosPlan, clients: Sequence[str]) -> RunResult:
    version = _call([plan.cluster.command()[0], "--version"], 20.0).strip()
    return new_result(
        "baseline",
        command=plan.command,
        label=plan.label,
        workload={
            "name": "rados",
            "title": "rados bench, 4 MiB objects: written, read in order and at random",
            "depths": plan.depths,
            "jobs": 1,
            "file_bytes": plan.most_bytes,
            "seconds": plan.seconds,
            "ramp_seconds": 0.0,
            "engine": "librados",
        },
        dataset={"path": f"rados://{plan.cluster.pool}"},
        storage={"cache": "cold", "direct": True},
        loader="rados bench",
        environment={**describe_machine(), "rados": version, "clients": clients},
    )
