"""What a result says of the hosts that measured it."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from emulator.launch.comm import Comm
from emulator.launch.launched import started_by_mpi
from emulator.record.machine import describe_machine, describe_mount, memory_bytes


def hosts_of(comm: Comm) -> tuple[list[str], dict[str, int]]:
    """Return the host of every rank and, on rank 0, the bytes of memory of each host. Collective."""
    hosts = comm.hosts()
    memories = comm.gather((socket.gethostname(), memory_bytes()) if comm.node().rank == 0 else None)
    return hosts, dict(filter(None, memories))


def describe_run(hosts: Sequence[str], memory: Mapping[str, int], out: Path) -> dict[str, Any]:
    """Describe this machine, the start of a run that writes to `out`, and what `hosts_of` returned."""
    return {
        **describe_machine(),
        "invocation_start": datetime.fromtimestamp(psutil.Process().create_time(), UTC).isoformat(),
        "ranks_started": len(hosts),
        "folder": str(Path.cwd()),
        "mpirun": started_by_mpi(),
        "hosts": sorted(set(hosts)),
        "memory_of_hosts": dict(memory),
        "out_mount": describe_mount(out),
    }
