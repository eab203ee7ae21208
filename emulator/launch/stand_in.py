"""The program that mpirun starts in place of each rank that the fork server of this host forks.

    python -I -S stand_in.py SOCKET COMMAND

It sends its environment and streams to the fork server (launch.forkserver), passes signals on to the rank,
and ends with the rank's status. The rank ends when it does, even by SIGKILL. Without a server (on another
host of an allocation) or with an environment too large for a message, it executes COMMAND instead. It imports
only built-in modules, because it delays the start of every rank: by 12 ms.
"""

import _signal  # type: ignore[import-not-found]
import os
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socket

_PASSED_ON = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP)


def main() -> None:
    """Stand in for one rank."""
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Python's handler would print a traceback
    server = socket(AF_UNIX, SOCK_SEQPACKET)
    environment = b"\0".join(name + b"=" + value for name, value in os.environb.items())
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    try:
        server.connect(sys.argv[1])
        server.sendmsg([environment], [(SOL_SOCKET, SCM_RIGHTS, streams)])
    except OSError:
        os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - no shell

    def pass_on(number: int, _: object) -> None:
        # The server closes this socket when the rank has ended: then the signal is too late.
        try:  # noqa: SIM105 - contextlib would cost every rank its import
            server.send(bytes([number]))
        except OSError:
            pass

    for heeded in _PASSED_ON:
        _signal.signal(heeded, pass_on)
    try:
        answer = server.recv(4)
    except OSError:
        answer = b""
    # No answer: the server was killed, and the kernel has killed its ranks.
    status = int.from_bytes(answer, sys.byteorder) if answer else int(_signal.SIGKILL)
    if os.WIFSIGNALED(status):
        for heeded in _PASSED_ON:
            _signal.signal(heeded, _signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
