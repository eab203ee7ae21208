"""rados bench on all clients: write, read in order, read at random; everything kept, and the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from emulator import __version__
from emulator.baseline.book import Say
from emulator.baseline.measure import Clients, together
from emulator.baseline.rados_bench import (
    OBJECT_BYTES,
    PHASES,
    Bench,
    Cluster,
    check_cluster,
    clean_up,
    parse_bench,
    rados_version,
    run_bench,
    side_of,
)
from emulator.errors import FeedrateError, SpecError, storage_error
from emulator.record.machine import describe_machine
from emulator.record.result import Corner, RunResult, Status
from emulator.record.store import check_out, prepare_out, write_result, write_whole
from emulator.units import show_bytes, show_rate

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
            _keep(self.plan.out / folder / f"{client}.command", command + "\n")
            _keep(self.plan.out / folder / f"{client}.json", said)
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


def _keep(path: Path, text: str) -> None:
    write_whole(path, lambda file: file.write(text.encode()))


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
