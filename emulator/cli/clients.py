"""A measurement by one client a host: which ranks are clients, and what becomes of their result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.cli.entry import say

if TYPE_CHECKING:
    from emulator.record.result import RunResult
    from emulator.run.comm import Comm

Measure = Callable[["Comm", str], "RunResult | None"]
"""Measures as the client of that name, with the group of all clients; the result on the first of them."""


def measure_as_clients(comm: Comm, node: Comm, per_host: int, out: Path, measure: Measure) -> None:
    """Let the first `per_host` ranks of each host measure while the others wait, and show the result.

    Collective over `comm`, of which `node` is the part on this host.
    """
    import socket

    from emulator.report.tables import print_table
    from emulator.run.comm import guarded

    active = node.rank < per_host
    group = comm.split(0 if active else 1)
    with guarded(comm, out):
        if active:
            host = socket.gethostname()
            result = measure(group, host if per_host == 1 else f"{host}-{node.rank}")
            if result is not None:
                print_table(result)
                say(f"\nresult: {out}   (feedrate report {out})")
        comm.barrier()
