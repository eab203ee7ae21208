"""What mpirun starts for each rank on this machine: it stands in for a process that the fork server makes.

    python -I -S stand_in.py SOCKET COMMAND

It hands its environment and its streams to the fork server (run.forkserver), passes signals on to the rank,
and ends as the rank does; the rank ends when it does, even by SIGKILL. Where there is no server, as on
another host of an allocation that mpirun knows of, or where an environment is too large for a message, it
becomes COMMAND itself. It is a program of its own and imports only what the interpreter has built
in: each import more would be paid for by every rank.
"""

import _signal  # type: ignore[import-not-found]
import os
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socket

_PASSED_ON = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP)


def main() -> None:
    """Stand in for one rank."""
    server = socket(AF_UNIX, SOCK_SEQPACKET)
    environment = b"\0".join(name + b"=" + value for name, value in os.environb.items())
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    try:
        server.connect(sys.argv[1])
        server.sendmsg([environment], [(SOL_SOCKET, SCM_RIGHTS, streams)])
    except OSError:
        os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - no shell
    for heeded in _PASSED_ON:
        _signal.signal(heeded, lambda number, _: server.send(bytes([number])))
    try:
        told = server.recv(4)
    except OSError:
        told = b""
    # No answer: the server was killed, and its ranks with it.
    status = int.from_bytes(told, sys.byteorder) if told else int(_signal.SIGKILL)
    if os.WIFSIGNALED(status):
        for heeded in _PASSED_ON:
            _signal.signal(heeded, _signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
