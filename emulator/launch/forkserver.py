"""Ranks of this machine without a start of their own: one process imports what they need, and forks them.

Python, NumPy and feedrate's modules cost a rank a third of a second of CPU, PyTorch one and a half; a hundred
ranks on two cores took half a minute. What mpirun starts is a new program each time, so it starts stand-ins
(run.stand_in), and each asks this server for a process to work in its place and in its environment, where MPI
finds who it is. The server ends with its launcher, ranks with the server, and a rank with its stand-in.
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
from emulator.registry import LOADERS

_MOST_BYTES = 2**18
"""Of an environment: more than the kernel lets a message of such a socket have."""


class Preload(NamedTuple):
    """What a server imports before it forks ranks."""

    server: Callable[[], None]
    """Function of a module that the server process calls: it calls `serve_ranks`."""
    modules: Sequence[ModuleType] = ()
    loader: str = ""
    """Name of the ranks' loader; empty: they have none."""


@contextmanager
def fork_server(
    folder: Path, preload: Preload, words: Sequence[str], environment: Mapping[str, str]
) -> Iterator[list[str]]:
    """A server for ranks of `feedrate WORDS`.

    Gives the command of a stand-in, up to that of the rank. `folder` is for the server's socket.
    """
    place, main = str(folder / "ranks"), preload.server
    modules = ",".join(module.__name__ for module in preload.modules)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place)
        listener.listen(4096)  # stand-ins come before the server has imported what it needs
        process = ChildProcess(
            "the fork server",
            # By no module's name: PyTorch's workers would import that as their own __main__.
            [
                *(sys.executable, "-c", f"from {main.__module__} import {main.__name__} as main; main()"),
                *(str(listener.fileno()), modules, preload.loader, *words),
            ],
            stdin=subprocess.DEVNULL,
            stdout=None,
            stderr=None,
            pass_fds=[listener.fileno()],
            env=environment,
            # Ranks are in the launcher's session, as those that mpirun starts: the kernel shares out cores by
            # session (sched_autogroup), and with one of their own others on the host would weigh otherwise.
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
    with suppress(FeedrateError):  # ranks meet it, too, and say so
        if loader:
            LOADERS.load(loader).get()
    with suppress(FeedrateError):
        mpi_library()
    gc.freeze()  # or the first collection of each rank would copy all that they share
    _fork_ranks(socket.socket(fileno=int(descriptor)))
    command()


class _Rank(NamedTuple):
    process: int
    ended: int
    """Readable when the process has ended."""
    stand_in: int
    """Its socket."""


def _fork_ranks(listener: socket.socket) -> None:
    """Fork a rank for each stand-in that connects, and return in it; the server never returns."""
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    ranks: dict[int, _Rank] = {}
    while True:
        ready = waiting.poll()[0][0]  # one at a time: what it means is closed, and its number used again
        if ready == listener.fileno():
            connection, _ = listener.accept()
            environment, streams, *_ = socket.recv_fds(connection, _MOST_BYTES, 3)
            if not streams:  # its environment was too large: it is the rank itself
                connection.close()
                continue
            stand_in = connection.detach()
            if (process := os.fork()) == 0:
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                for descriptor in (listener.detach(), stand_in, *streams, *ranks):
                    os.close(descriptor)
                os.environb.clear()
                for pair in environment.split(b"\0"):
                    name, _, value = pair.partition(b"=")
                    os.environb[name] = value
                return
            for stream in streams:
                os.close(stream)
            rank = _Rank(process, os.pidfd_open(process), stand_in)
            for descriptor in rank[1:]:
                ranks[descriptor] = rank
                waiting.register(descriptor, select.POLLIN)
            continue
        rank = ranks[ready]
        if ready == rank.ended:
            _, status = os.waitpid(rank.process, 0)
            with suppress(OSError):
                os.write(rank.stand_in, status.to_bytes(4, sys.byteorder))
            gone: tuple[int, ...] = rank[1:]
        elif told := os.read(ready, 1):
            os.kill(rank.process, told[0])
            continue
        else:  # it was killed
            os.kill(rank.process, signal.SIGKILL)
            gone = rank[2:]
        for descriptor in gone:
            if ranks.get(descriptor) is rank:
                del ranks[descriptor]
                waiting.unregister(descriptor)
                os.close(descriptor)
