"""`rados bench` itself: found, started, listened to, read. It comes with Ceph (Debian: ceph-common)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emulator.baseline.fio import GRACE_SECONDS, dying_with_parent
from emulator.errors import MissingError, StorageError
from emulator.record.result import Side
from emulator.units import show_seconds

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
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=limit, check=False,
            stdin=subprocess.DEVNULL, preexec_fn=dying_with_parent(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise StorageError(
            f"rados did not end within {show_seconds(limit)}", "the cluster hangs: see ceph status"
        ) from None
    if done.returncode:
        raise _refused(done.stderr, command)
    return done.stdout


def _refused(said: str, command: Sequence[str]) -> StorageError:
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
