"""`rados bench` itself: found, started, listened to, read. It comes with Ceph (Debian: ceph-common)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from emulator import __version__
from emulator.errors import FeedrateError, MissingError, SpecError, StorageError, storage_error
from emulator.files import write_whole
from emulator.record.folder import check_out, prepare_out, write_result
from emulator.record.machine import describe_machine
from emulator.record.result import Corner, RunResult, Side, Status
from emulator.run.child import ChildProcess
from emulator.satellites.baseline.fio import GRACE_SECONDS
from emulator.satellites.baseline.measure import Clients, Say, together
from emulator.units import show_bytes, show_rate

OBJECT_BYTES = 4 << 20
"""Bytes of an object, and of a request."""
CONNECT_SECONDS = 15
"""How long a cluster may take to answer at all."""

Phase = Literal["write", "seq", "rand"]
PHASES: tuple[Phase, ...] = ("write", "seq", "rand")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A pool, and who asks."""

    pool: str
    conf: Path
    """ceph.conf; the keyring is where it says."""
    user: str = ""
    """`client.NAME`; empty: rados chooses, mostly client.admin."""

    def command(self, *words: str) -> list[str]:
        """A call of rados. Raises MissingError."""
        path = shutil.which("rados")
        if path is None:
            raise MissingError("rados is not installed: Ceph's own limits need it", "apt install ceph-common")
        name = ["--name", self.user] if self.user else []
        mount = f"--client_mount_timeout={CONNECT_SECONDS}"
        return [path, "--conf", str(self.conf), mount, *name, *words]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One run of `rados bench` on one client."""

    phase: Phase
    depth: int
    """Requests in flight."""
    seconds: float
    """It measures so long, or until a seq phase has read every object."""
    run_name: str
    """Whose objects: a phase that reads needs a write phase of the same name."""
    objects: int
    """Objects that a write phase makes at most, then writes again; 0: as many as it can."""

    def command(self, cluster: Cluster) -> list[str]:
        """Raises MissingError."""
        words = ["--pool", cluster.pool, "bench", f"{max(1, round(self.seconds))}", self.phase]
        words += ["-t", str(self.depth), "--run-name", self.run_name, "--format", "json"]
        if self.phase == "write":
            words += ["-b", str(OBJECT_BYTES), "--no-cleanup"]
            words += ["--max-objects", str(self.objects)] if self.objects else []
        return cluster.command(*words)


def check_cluster(cluster: Cluster) -> None:
    """Raises MissingError, StorageError when the cluster does not answer, or has no such pool."""
    if not cluster.conf.is_file():
        raise StorageError(f"there is no file {cluster.conf}", "give the cluster's ceph.conf to --ceph-conf")
    pools = _call(cluster.command("lspools"), CONNECT_SECONDS + 15.0).splitlines()
    if cluster.pool not in pools:
        raise StorageError(
            f"the cluster has no pool {cluster.pool}",
            f"use one of: {', '.join(pools)}" if pools else "ceph osd pool create makes one",
        )


def rados_version(cluster: Cluster) -> str:
    """`ceph version 16.2.15 ...`. Raises MissingError, StorageError."""
    return _call([cluster.command()[0], "--version"], 20.0).strip()


def run_bench(cluster: Cluster, bench: Bench) -> str:
    """Its JSON, as rados wrote it. Raises MissingError, StorageError."""
    out = _call(bench.command(cluster), bench.seconds + GRACE_SECONDS)
    if "{" not in out:
        raise StorageError(
            f"rados bench said nothing of its {bench.phase} phase", "Ceph 14 or newer is needed"
        )
    return out[out.index("{") :]


def clean_up(cluster: Cluster, run_name: str) -> None:
    """Remove the objects of a run. Raises MissingError, StorageError."""
    _call(cluster.command("--pool", cluster.pool, "cleanup", "--run-name", run_name), GRACE_SECONDS)


def _call(command: Sequence[str], limit: float) -> str:
    rados = ChildProcess("rados", command)
    out, err = rados.finish(seconds=limit, hint="the cluster hangs: see ceph status")
    if rados.returncode:
        raise _refused(err)
    return out


def _refused(said: str) -> StorageError:
    """What rados complained of, with what to do about it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    words = next(
        (line for line in reversed(lines) if "rror" in line or "ailed" in line), (lines or ["no words"])[-1]
    )
    if "not permitted" in said or "ermission denied" in said:
        hint = "the key lacks the rights: mon 'allow r', osd 'allow rwx pool=POOL'; see ceph auth get"
    elif "keyring" in said or "auth" in said:
        hint = "the keyring that ceph.conf names lacks the user's key, or may not be read: see --ceph-user"
    elif "config" in said or "timed out" in said:
        hint = "the monitors of ceph.conf do not answer, or know no such user: see ceph status"
    else:
        hint = "see ceph status"
    return StorageError(f"rados failed: {words.removesuffix(' (--no-mon-config to skip)')}", hint)


def parse_bench(text: str) -> Mapping[str, Any]:
    """The JSON of a run. Raises StorageError."""
    try:
        found: Mapping[str, Any] = json.loads(text)
        float(found["total_time_run"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"the JSON of rados bench cannot be read ({error})", "Ceph 14 or newer is needed"
        ) from None
    return found


def side_of(runs: Sequence[Mapping[str, Any]], phase: Phase) -> Side | None:
    """One phase on several clients, together; None: nothing completed. Raises StorageError.

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
        raise StorageError(f"the JSON of rados bench lacks {error}", "Ceph 14 or newer is needed") from None
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


# ---- rados bench on all clients: write, read in order, read at random; everything kept, and the result.


KEPT = "rados"
"""Folder below OUT with the command lines and the JSON of rados bench."""
LOADER = "rados bench"
DEPTHS = (16,)
"""Requests in flight unless told otherwise: rados bench's own default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RadosPlan:
    """What rados bench is asked to do."""

    cluster: Cluster
    depths: tuple[int, ...] = DEPTHS
    seconds: float
    """Measured time of a phase, whole seconds."""
    most_bytes: int
    """Bytes that a client writes at each depth at most, then again; 0: as many as it can."""
    keep: bool
    """Leave the objects in the pool."""
    out: Path
    command: tuple[str, ...]

    def benches(self, client: str) -> list[Bench]:
        """The runs of one client in order: every depth writes before any of them reads."""
        objects = -(-self.most_bytes // OBJECT_BYTES)
        return [
            Bench(
                phase=phase, depth=depth, seconds=self.seconds, run_name=f"feedrate-{client}-t{depth}",
                objects=objects,
            )
            for phase in PHASES
            for depth in self.depths
        ]  # fmt: skip


def check(plan: RadosPlan, force: bool) -> None:
    """What can be seen before anything is written. Raises SpecError, StorageError, MissingError."""
    if plan.most_bytes and plan.most_bytes < OBJECT_BYTES:
        raise SpecError(
            f"--size {plan.most_bytes} is less than one object", f"use {show_bytes(OBJECT_BYTES)}"
        )
    check_cluster(plan.cluster)
    check_out(plan.out, force)


def measure(plan: RadosPlan, crew: Clients, client: str, *, force: bool, say: Say) -> RunResult | None:
    """Run every phase with every process of `crew` as a client, and return the result on rank 0.

    Collective; an error of one is raised by all. Raises SpecError, StorageError, MissingError.
    """
    clients: list[str] = crew.allgather(client)
    book = together(crew, lambda: _Book.open(plan, clients, force) if crew.rank == 0 else None)
    benches = plan.benches(client)
    try:
        for number, bench in enumerate(benches):
            crew.barrier()
            told = together(crew, lambda b=bench: run_bench(plan.cluster, b))  # type: ignore[misc]
            kept = crew.allgather((" ".join(bench.command(plan.cluster)), told))
            together(crew, lambda n=number, b=bench, k=kept: book.add(n, b, k, say) if book else None)  # type: ignore[misc]
    finally:
        if not plan.keep:
            _remove(plan, benches, say)
    return book.write("complete") if book else None


def _remove(plan: RadosPlan, benches: Sequence[Bench], say: Say) -> None:
    for name in dict.fromkeys(bench.run_name for bench in benches):
        try:
            clean_up(plan.cluster, name)
        except FeedrateError as error:  # what was measured counts; nothing written, nothing to remove
            say(f"the objects of {name} may be left in pool {plan.cluster.pool}: {error.what}")


@dataclass(slots=True)
class _Book:
    """What rank 0 keeps: the tool's own words, and the corners; run.json after every phase."""

    plan: RadosPlan
    clients: list[str]
    environment: dict[str, Any]
    corners: list[Corner] = field(default_factory=list)

    @classmethod
    def open(cls, plan: RadosPlan, clients: list[str], force: bool) -> _Book:
        prepare_out(plan.out, force)
        for old in (plan.out / KEPT).glob("[0-9][0-9][0-9]-*/*"):
            if old.suffix in (".json", ".command"):
                old.unlink()
        environment = {**describe_machine(), "rados": rados_version(plan.cluster), "clients": clients}
        book = cls(plan, clients, environment)
        book.write("incomplete")
        return book

    def add(self, number: int, bench: Bench, told: Sequence[tuple[str, str]], say: Say) -> None:
        """Keep what the clients ran and were told, and add the corner. Raises StorageError."""
        folder = Path(KEPT) / f"{number:03d}-{bench.phase}-t{bench.depth}"
        try:
            (self.plan.out / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(error, "cannot keep the output of rados bench") from None
        for client, (command, said) in zip(self.clients, told, strict=True):
            write_whole(self.plan.out / folder / f"{client}.command", command + "\n")
            write_whole(self.plan.out / folder / f"{client}.json", said)
        files = tuple(str(folder / f"{client}.json") for client in self.clients)
        corner = corner_of(bench, [said for _, said in told], files)
        self.corners.append(corner)
        self.write("incomplete")
        side = corner.read or corner.write
        rate = show_rate(side.bytes_per_second) if side else "no request completed"
        say(f"{bench.phase}, depth {bench.depth}, {len(self.clients)} clients: {rate}")

    def write(self, status: Status) -> RunResult:
        """Raises StorageError."""
        plan = self.plan
        result = RunResult(
            kind="baseline", status=status, version=__version__,
            reason="" if status == "complete" else "the run has not ended, or was killed",
            created=datetime.now(UTC).isoformat(timespec="seconds"), command=plan.command,
            workload={
                "name": "rados", "title": "rados bench, 4 MiB objects: written, read in order and at random",
                "depths": plan.depths, "jobs": 1, "file_bytes": plan.most_bytes, "seconds": plan.seconds,
                "ramp_seconds": 0.0, "engine": "librados",
            },
            dataset={"path": f"rados://{plan.cluster.pool}"}, storage={"cache": "cold", "direct": True},
            loader=LOADER, environment=self.environment, baseline=tuple(self.corners),
        )  # fmt: skip
        write_result(plan.out, result)
        return result


def corner_of(bench: Bench, told: Sequence[str], files: tuple[str, ...]) -> Corner:
    """One phase at one depth, from the JSON of each client. Raises StorageError."""
    runs = [parse_bench(text) for text in told]
    side = side_of(runs, bench.phase)
    writes = bench.phase == "write"
    return Corner(
        pattern="random" if bench.phase == "rand" else "sequential", block_bytes=OBJECT_BYTES,
        read_share=float(not writes),
        depth=bench.depth, jobs=1, clients=len(told), read=None if writes else side,
        write=side if writes else None, files=files,
    )  # fmt: skip
