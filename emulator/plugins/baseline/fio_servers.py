"""Run fio on hosts that have `fio --server` started, all at once."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from emulator.errors import SpecError, StorageError
from emulator.plugins.baseline.fio import TOO_OLD, run_fio

PORT = 8765
"""Default port of fio --server."""
_CONNECT_SECONDS = 5.0
_SERVER = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A host that runs `fio --server`, with the storage mounted at the same path as here."""

    host: str
    port: int

    @property
    def name(self) -> str:
        """Return the name of the server's folder below DIR and of its files below OUT."""
        return self.host if self.port == PORT else f"{self.host}-{self.port}"


def parse_servers(text: str) -> tuple[Server, ...]:
    """Parse `node1,node2:8766`. Raises SpecError."""
    found = []
    for part in text.split(","):
        match = _SERVER.fullmatch(part.strip())
        if match is None or not 0 < int(match[2] or PORT) < 65536:
            raise SpecError(
                f"--servers {text!r}: {part!r} is not understood", "write it like node1,node2:8766"
            )
        found.append(Server(host=match[1], port=int(match[2] or PORT)))
    if len(set(found)) < len(found):
        raise SpecError(
            f"--servers {text!r} names a host twice", "run one fio --server a host, or other ports"
        )
    return tuple(found)


def reach(servers: Sequence[Server]) -> None:
    """Check that all servers answer. Raises StorageError."""
    for server in servers:
        try:
            socket.create_connection((server.host, server.port), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            raise StorageError(
                f"no fio answers on {server.host}, port {server.port} ({error.strerror or error})",
                "start fio --server there, and let the port through",
            ) from None


def run_on(servers: Sequence[Server], texts: Sequence[str], seconds: float | None = None) -> list[str]:
    """Run one job file on each of the first servers, all at once, and return fio's JSON of each.

    `seconds` is the time that it should measure. Raises StorageError, MissingError.
    """
    with TemporaryDirectory(prefix="feedrate-") as folder:
        words = []
        for number, (server, text) in enumerate(zip(servers, texts, strict=False)):
            file = Path(folder) / f"{number}.fio"
            # Or a server would put its client's address before the names of files.
            file.write_text(text.replace("[global]\n", "[global]\nunique_filename=0\n", 1))
            words += [f"--client=ip:{server.host},{server.port}", str(file)]
        output = run_fio("", seconds, words)
    return apart(output, servers[: len(texts)])


def apart(text: str, servers: Sequence[Server]) -> list[str]:
    """Split fio's JSON of many clients into one for each, in the order of `servers`. Raises StorageError.

    What fio says of all clients together is left out: it has no histograms.
    """
    try:
        whole = json.loads(text)
        groups = [group for group in whole.pop("client_stats") if group["jobname"] != "All clients"]
        found = [
            [group for group in groups if (group["hostname"], group["port"]) == (server.host, server.port)]
            for server in servers
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"fio's JSON cannot be read ({error})", TOO_OLD) from None
    for server, mine in zip(servers, found, strict=True):
        if not mine:
            raise StorageError(f"fio on {server.host}, port {server.port}, reports nothing", "see its output")
    return [json.dumps({**whole, "jobs": mine}, indent=2) for mine in found]
