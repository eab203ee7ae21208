"""The fork server: one process that imports what ranks need, and forks the ranks of this host.

Importing Python, NumPy and feedrate costs a rank 0.3 s of CPU, PyTorch 1.5 s: 100 ranks on two cores took
30 s to start. mpirun can only start programs, so it starts stand-ins (launch.stand_in). Each asks this server
for a rank, and sends its environment, from which MPI reads the rank's number. The server ends with its
launcher, ranks end with the server, and a rank ends with its stand-in.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from emulator.errors import FeedrateError
from emulator.launch import stand_in
from emulator.launch.child import ChildProcess
from emulator.launch.launched import mpi_library
from emulator.launch.process import die_with_parent
from emulator.registry import LOADERS

_START = "from signal import *; signal(SIGINT, SIG_DFL); "
"""Begin of the server's code, as in `__main__`: an interrupted import would print a traceback."""
_MOST_BYTES = 2**18
"""Room for an environment, in bytes: more than the kernel allows in one message of such a socket."""


class Preload(NamedTuple):
    """Modules and a loader that the server imports before it forks ranks."""

    server: Callable[[], None]
    """A module-level function that the server process runs; it calls `serve_ranks`."""
    modules: Sequence[ModuleType] = ()
    loader: str = ""
    """Name of the ranks' loader; empty if they have none."""


@contextmanager
def fork_server(
    folder: Path, preload: Preload, words: Sequence[str], environment: Mapping[str, str]
) -> Iterator[list[str]]:
    """Run a fork server for ranks of `feedrate WORDS` during the body.

    Yields the command line of a stand-in, to which the rank's is appended. The server's socket is in
    `folder`.
    """
    place, main = str(folder / "ranks"), preload.server
    code = f"{_START}from {main.__module__} import {main.__name__} as main; main()"
    modules = ",".join(module.__name__ for module in preload.modules)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place)
        listener.listen(4096)  # stand-ins connect while the server is still importing
        process = ChildProcess(
            "the fork server",
            # -c, not -m: PyTorch's workers would import the module of -m as their own __main__.
            [*(sys.executable, "-c", code), *(str(listener.fileno()), modules, preload.loader, *words)],
            stdin=subprocess.DEVNULL,
            stdout=None,
            stderr=None,
            pass_fds=[listener.fileno()],
            env=environment,
            # In the launcher's session, like ranks that mpirun starts: the kernel divides cores among
            # sessions (sched_autogroup), and a new session would change the ranks' share.
            start_new_session=False,
            process_group=0,
        )
    try:
        yield [sys.executable, "-I", "-S", stand_in.__file__, place]
    finally:
        process.end()


def serve_ranks(command: Callable[[], None]) -> None:
    """Import, fork ranks until the launcher ends this process, and call `command` in each of them."""
    _, descriptor, modules, loader, *sys.argv[1:] = sys.argv
    for module in filter(None, modules.split(",")):
        import_module(module)
    with suppress(FeedrateError):  # each rank gets the same error and reports it
        if loader:
            LOADERS.load(loader).get()
    with suppress(FeedrateError):
        mpi_library()
    gc.freeze()  # otherwise each rank's first collection would write to all shared pages, and so copy them
    _fork_ranks(socket.socket(fileno=int(descriptor)))
    # New streams: the server's remember whether its files could seek, but a rank's are mpirun's pipes.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    command()


class _Rank(NamedTuple):
    process: int
    ended: int
    """A pidfd, which is readable when the process has ended."""
    stand_in: int
    """Socket of its stand-in."""


def _fork_ranks(listener: socket.socket) -> None:
    """Fork a rank for each stand-in that connects, and return in it; the server never returns."""
    server, ranks = os.getpid(), dict[int, _Rank]()  # running ranks, by each of their descriptors
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    while True:
        # One event at a time: handling it may close a descriptor whose number is then used again.
        ready = waiting.poll()[0][0]
        if ready == listener.fileno():
            request = _accept(listener)
            if request is None:
                continue
            if (process := os.fork()) == 0:
                die_with_parent(server)
                _become_rank(request, (listener.detach(), *ranks))
                return
            for stream in request.streams:
                os.close(stream)
            rank = _Rank(process, os.pidfd_open(process), request.stand_in)
            for descriptor in (rank.ended, rank.stand_in):
                ranks[descriptor] = rank
                waiting.register(descriptor, select.POLLIN)
            continue
        rank = ranks[ready]
        if ready == rank.ended:
            _report(rank)
            for descriptor in (rank.ended, rank.stand_in):
                del ranks[descriptor]
                with suppress(KeyError):
                    waiting.unregister(descriptor)
                os.close(descriptor)
        elif number := os.read(ready, 1):  # a signal to pass on
            os.kill(rank.process, number[0])
        else:  # the stand-in was killed
            os.kill(rank.process, signal.SIGKILL)
            # Its socket stays open until the rank has ended, so that no other stand-in gets its descriptor.
            waiting.unregister(ready)


class _Request(NamedTuple):
    """A stand-in's request for a rank."""

    stand_in: int
    environment: bytes
    streams: list[int]


def _accept(listener: socket.socket) -> _Request | None:
    """Accept a stand-in; None if its environment did not fit into a message, so that it runs the rank."""
    connection, _ = listener.accept()
    environment, streams, *_ = socket.recv_fds(connection, _MOST_BYTES, 3)
    if not streams:
        connection.close()
        return None
    return _Request(connection.detach(), environment, streams)


def _become_rank(request: _Request, server_descriptors: Sequence[int]) -> None:
    """Take the stand-in's streams and environment, and close the server's descriptors."""
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
    for descriptor in (*server_descriptors, request.stand_in, *request.streams):
        os.close(descriptor)
    os.environb.clear()
    for pair in request.environment.split(b"\0"):
        name, _, value = pair.partition(b"=")
        os.environb[name] = value


def _report(rank: _Rank) -> None:
    """Send the rank's exit status to its stand-in."""
    _, status = os.waitpid(rank.process, 0)
    with suppress(OSError):
        os.write(rank.stand_in, status.to_bytes(4, sys.byteorder))
