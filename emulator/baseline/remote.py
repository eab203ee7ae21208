"""A suite on hosts that run `fio --server`: one fio here gives them their jobs and collects the results.

The storage is mounted at the same path on all of them and here.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from emulator.baseline.book import Book, Say
from emulator.baseline.fio import parse, run_fio
from emulator.baseline.jobfile import Setting, job_file, layout_file
from emulator.baseline.measure import FOLDER, make_folder, remove_files
from emulator.baseline.plan import Plan
from emulator.baseline.suites import files_needed
from emulator.errors import SpecError, StorageError
from emulator.record.result import RunResult
from emulator.storage.posix import probe_direct
from emulator.units import show_bytes

PORT = 8765
"""Where fio --server listens when it is told nothing else."""
_CONNECT_SECONDS = 5.0
_GLOBAL = "[global]\nunique_filename=0\n"
"""A server would put its client's address before the names of files."""
_SERVER = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A host that runs `fio --server`."""

    host: str
    port: int

    @property
    def name(self) -> str:
        """Its folder below DIR, and its files below OUT."""
        return self.host if self.port == PORT else f"{self.host}-{self.port}"


def parse_servers(text: str) -> tuple[Server, ...]:
    """`node1,node2:8766` as servers. Raises SpecError."""
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
    """Raises StorageError when one of them does not answer."""
    for server in servers:
        try:
            socket.create_connection((server.host, server.port), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            raise StorageError(
                f"no fio answers on {server.host}, port {server.port} ({error.strerror or error})",
                "start fio --server there, and let the port through",
            ) from None


def measure_remote(plan: Plan, servers: Sequence[Server], *, force: bool, say: Say) -> RunResult:
    """Run the suite with every server as a client. Raises SpecError, StorageError, MissingError."""
    planned = plan.turns(len(servers))
    direct = probe_direct(plan.folder)
    settings = [
        Setting(
            folder=plan.folder / FOLDER / server.name, file_bytes=plan.file_bytes, engine=plan.engine,
            direct=direct, seconds=plan.seconds, ramp_seconds=plan.ramp_seconds,
        )
        for server in servers
    ]  # fmt: skip
    files = files_needed(planned)
    book = Book.open(plan, [server.name for server in servers], direct, force)
    try:
        say(f"laying out {files} files of {show_bytes(plan.file_bytes)} a client")
        for setting in settings:
            make_folder(setting)
        for one in run_on(servers, [layout_file(setting, files) for setting in settings]):
            parse(one)
        for number, turn in enumerate(planned):
            texts = [
                job_file(setting, turn.tasks, seed=1 + number * len(servers) + place)
                for place, setting in enumerate(settings[: turn.clients])
            ]
            told = run_on(servers, texts, plan.seconds + plan.ramp_seconds)
            idle = [("", "")] * (len(servers) - turn.clients)
            book.add(number, turn, [*zip(texts, told, strict=True), *idle], say)
    finally:
        if not plan.keep:
            for setting in settings:
                remove_files(setting, files)
    return book.write("complete")


def run_on(servers: Sequence[Server], texts: Sequence[str], seconds: float | None = None) -> list[str]:
    """Run one job file on each of the first servers, all at once; fio's JSON of each, as if run there.

    `seconds` is the time that it should measure. Raises StorageError, MissingError.
    """
    with TemporaryDirectory(prefix="feedrate-") as folder:
        words = []
        for number, (server, text) in enumerate(zip(servers, texts, strict=False)):
            file = Path(folder) / f"{number}.fio"
            file.write_text(text.replace("[global]\n", _GLOBAL, 1))
            words += [f"--client=ip:{server.host},{server.port}", str(file)]
        told = run_fio("", seconds, words)
    return apart(told, servers[: len(texts)])


def apart(text: str, servers: Sequence[Server]) -> list[str]:
    """fio's JSON of many clients as one for each, in the order of `servers`. Raises StorageError.

    What fio says of all clients together is left out: it has no histograms.
    """
    try:
        whole = json.loads(text)
        groups = [one for one in whole.pop("client_stats") if one["jobname"] != "All clients"]
        found = [
            [one for one in groups if (one["hostname"], one["port"]) == (server.host, server.port)]
            for server in servers
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"fio's JSON cannot be read ({error})", "fio 3.33 or newer is needed") from None
    for server, mine in zip(servers, found, strict=True):
        if not mine:
            raise StorageError(f"fio on {server.host}, port {server.port}, reports nothing", "see its output")
    return [json.dumps({**whole, "jobs": mine}, indent=2) for mine in found]
