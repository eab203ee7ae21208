"""Hosts on this machine, as root: network namespaces of this process, gone when it ends (tests/lab/hosts.sh).

Those of a process that was killed by SIGKILL go when the next one asks for hosts.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = f"fr{os.getpid()}h"
"""Host i is NAME + i, at 10.78.0.i; the bridge is in NAME + sw."""
AGENT = f"/run/{NAME}/agent"
"""Replaces ssh: AGENT HOST COMMAND, of which a shell on the host makes one line."""
_SCRIPT = Path(__file__).parents[1] / "tests" / "lab" / "hosts.sh"


@contextmanager
def hosts(count: int) -> Iterator[Path]:
    """`count` hosts, and a folder in memory that goes with them. SIGTERM ends the body as Ctrl-C does."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    environment = {**os.environ, "FEEDRATE_LAB": NAME}
    signal.signal(signal.SIGTERM, stop)
    try:
        subprocess.run([_SCRIPT, "up", str(count)], check=True, stdout=subprocess.DEVNULL, env=environment)
        yield Path(AGENT).parent
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # once is enough
        subprocess.run([_SCRIPT, "down"], check=True, env=environment)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def on(host: int, *command: str) -> list[str]:
    """A command on a host, by its number."""
    return [AGENT, f"{NAME}{host}", *command]


def mpirun(slots: dict[int, int], ranks: int, *more: object) -> list[str]:
    """An mpirun for the first host that starts `ranks` ranks; `slots` has those of each host."""
    return [
        str(Path(sys.executable).parent / "mpirun"), "--prtemca", "plm_ssh_agent", AGENT,
        "--prtemca", "prte_if_include", "eth0", "--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp",
        "--mca", "btl_tcp_if_include", "10.78.0.0/24", "--mca", "osc", "^ucx",
        "--host", ",".join(f"{NAME}{host}:{some}" for host, some in slots.items()),
        "--map-by", "slot:oversubscribe", "--bind-to", "none", "-n", str(ranks), *map(str, more),
    ]  # fmt: skip


@contextmanager
def s3_server(host: int, environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """The tests' S3 server on a host: the variables with which its clients find it."""
    command = shlex.join([sys.executable, str(_SCRIPT.parents[1] / "s3_server.py"), f"10.78.0.{host}"])
    with subprocess.Popen(
        on(host, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdin and server.stdout
        try:
            yield json.loads(server.stdout.readline())
        finally:
            server.stdin.close()
