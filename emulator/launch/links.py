"""Sockets between the first ranks of hosts, in which a waiting rank sleeps in the kernel.

With MPI's own barrier, which had to be polled, AU with steps of 3.5 ms fell from 95 % on one host to 37 % on
eight. Here rank 0 is connected to the first rank of each other host. MPI has told all of them its addresses
and two secrets, by which the ends of a connection know each other.

A connection also carries a note each second: a host whose first rank is stopped keeps its connection, and
only missing notes show it.
"""

from __future__ import annotations

import hmac
import os
import secrets
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from errno import EHOSTUNREACH, ENETUNREACH, ETIMEDOUT
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from emulator import notes
from emulator.errors import LaunchError, RankError
from emulator.files import Closing
from emulator.launch.comm import Comm
from emulator.launch.supervise import report
from emulator.units import show_seconds

_JOIN_SECONDS = 20.0
"""Seconds for all hosts to connect."""
_CALL_SECONDS = 2.0
"""Seconds for one address to answer, and for a caller to say who it is."""
_SECRET_BYTES = 32
_ROUND_TRIPS = 50
_SILENCE_SECONDS = 4
"""Seconds after which an unreachable host is lost."""
_GRACE_SECONDS = 1.5
"""Seconds for MPI to end this rank after a rank of another host has ended, before it ends itself."""
_NOTE_SECONDS = 1.0
_PATIENCE_SECONDS = 2.0
"""Seconds after --storage-timeout before a silent host ends the run: its own ranks can report more."""

_NUMBER = struct.Struct("=I")
_STEP, _NOTE = b"s", b"n"
"""Kinds of messages: the times of a step, and a note, which is one byte."""
_TIMES = struct.Struct("=dd")
"""Seconds of rank 0's clock. To it: the latest end of a step on this host. From it: the latest end on all
hosts, and the time of sending."""
_LAST_DATA_RECEIVED = 52
"""Offset of milliseconds since the last data in the kernel's struct tcp_info."""


class RemoteClock:
    """An estimate of another host's time.monotonic, in seconds.

    It begins with round trips, and follows drift with the time in each later message: the largest reading of
    a second counts, because it had the shortest delay.
    """

    def __init__(self, trips: Sequence[tuple[float, float, float]]) -> None:
        """Start from round trips: our time before, the other host's time, our time after."""
        before, other, after = min(trips, key=lambda trip: trip[2] - trip[0])
        self._delay = (after - before) / 2
        """Delay of a message in seconds: half the shortest round trip, and the largest error of `ahead`."""
        self.ahead = other - (before + after) / 2
        """Seconds by which the other clock is ahead of ours."""
        self._earlier = self._current = self.ahead
        self._since = after

    def hear(self, sent: float, now: float) -> None:
        """Adjust to a message that was sent at `sent` of the other clock and arrived at `now` of ours."""
        if now - self._since > 1.0:
            self._earlier, self._current, self._since = self._current, sent - now + self._delay, now
        self._current = max(self._current, sent - now + self._delay)
        self.ahead = max(self._earlier, self._current)


class First(NamedTuple):
    """The first rank of a host."""

    host: str
    rank: int
    """Its number in the world."""
    process: int


class Peer:
    """The first rank of another host, connected."""

    def __init__(self, first: First, link: socket.socket) -> None:
        self.first, self.link = first, link
        self._lock = threading.Lock()  # the barrier and the guard send
        _prepare(link)

    def note(self) -> None:
        """Send a note, unless buffers are full: the other rank may have had no barrier for many hours."""
        with suppress(OSError), self._lock:
            self.link.send(_NOTE, socket.MSG_DONTWAIT)

    def send(self, first: float, second: float = 0.0) -> None:
        """Send the times of a step. Raises LostHost."""
        try:
            with self._lock:
                self.link.sendall(_STEP + _TIMES.pack(first, second))
        except OSError as error:
            raise LostHost(self, error) from None

    def receive(self) -> tuple[float, float]:
        """Wait for the times of a step. Raises LostHost."""
        try:
            while _receive(self.link, 1) != _STEP:
                pass
            first, second = _TIMES.unpack(_receive(self.link, _TIMES.size))
        except OSError as error:
            raise LostHost(self, error) from None
        return first, second

    def silence(self) -> float:
        """Return the seconds since anything has come."""
        size = _LAST_DATA_RECEIVED + 4
        facts = self.link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
        return int.from_bytes(facts[_LAST_DATA_RECEIVED:], sys.byteorder) / 1e3


def _prepare(link: socket.socket) -> None:
    """Have receives wait forever, while the kernel probes that the host is up."""
    link.settimeout(None)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, 1),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_KEEPCNT, _SILENCE_SECONDS - 1),
        (socket.TCP_USER_TIMEOUT, 1000 * _SILENCE_SECONDS),
    ):
        link.setsockopt(socket.IPPROTO_TCP, option, value)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _receive(link: socket.socket, size: int) -> bytes:
    """Wait for `size` bytes. Raises OSError."""
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise ConnectionResetError(0, "it ended")
        data += part
    return data


class LostHost(RankError):
    """The connection to another host is lost."""

    def __init__(self, peer: Peer, error: OSError) -> None:
        self.silent = error.errno in (ETIMEDOUT, EHOSTUNREACH, ENETUNREACH)
        """True if host or network do not answer; False if a process ended, which its launcher notices."""
        hint = "check the host and its network" if self.silent else "its first rank has ended"
        reason = error.strerror or str(error)
        super().__init__(f"lost the connection to {peer.first.host} ({reason})", hint)


class HostLinks(Closing):
    """This host's connections, on its first rank, which a thread ends when another host is lost."""

    def __init__(
        self, rank: int, above: Peer | None, clock: RemoteClock | None, below: Sequence[Peer]
    ) -> None:
        """`rank` is this one's number in the world, `above` is rank 0; rank 0 has the others `below` it."""
        self._rank = rank
        self._above, self._clock, self._below = above, clock, below
        self._since = time.monotonic()
        """When silence counts from: this process was stopped before, and so may have been the others."""
        self._stop, self._stopped = socket.socketpair()
        self._guard = threading.Thread(target=self._watch, name="guard of hosts", daemon=True)
        self._guard.start()

    def meet(self, last: float, hosts: int) -> float:
        """Wait until the first `hosts` hosts have called this; return the latest `last` of all.

        Times are seconds of this host's time.monotonic. Raises LostHost.
        """
        try:
            return self._meet(last, hosts)
        except LostHost as error:
            self._end_guard()
            if error.silent:
                self._report(error)
            time.sleep(_GRACE_SECONDS)
            raise

    def _meet(self, last: float, hosts: int) -> float:
        below = self._below[: hosts - 1]
        for peer in below:  # their order does not matter: all must arrive
            last = max(last, peer.receive()[0])
        if self._above is not None and self._clock is not None:
            self._above.send(last + self._clock.ahead)
            latest, sent = self._above.receive()
            self._clock.hear(sent, time.monotonic())
            last = max(last, latest - self._clock.ahead)
        for peer in below:
            peer.send(last, time.monotonic())
        return last

    def close(self) -> None:
        """Close the sockets; a second call does nothing."""
        self._end_guard()
        for peer in self._peers():
            peer.link.close()

    def _peers(self) -> list[Peer]:
        return [*self._below, *([self._above] if self._above else [])]

    def _watch(self) -> None:
        """Send notes, and end this rank when a peer is lost or silent, even if the rank is in a long read."""
        peers = {peer.link.fileno(): peer for peer in self._peers()}
        waiting = select.poll()
        waiting.register(self._stopped, select.POLLIN)
        for descriptor in peers:
            waiting.register(descriptor, select.POLLRDHUP)  # its messages are the barrier's
        looked = time.monotonic()
        while True:
            ready = [descriptor for descriptor, _ in waiting.poll(1e3 * _NOTE_SECONDS)]
            now, timeout = time.monotonic(), notes.timeout() + _PATIENCE_SECONDS
            if self._stopped.fileno() in ready:
                return
            if now - looked > _NOTE_SECONDS + timeout / 2:
                self._since = now
            looked = now
            for descriptor in ready:
                waiting.unregister(descriptor)
                if self._is_unreachable(peers.pop(descriptor)):
                    return
            for peer in peers.values():
                peer.note()
                silent = min(peer.silence(), now - self._since)
                if silent > timeout:
                    report(_not_reported(peer.first, silent), RankError.exit_code)
                    return

    def _is_unreachable(self, peer: Peer) -> bool:
        """Report that the host of a broken connection does not answer; False if only its process ended."""
        code = peer.link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        error = LostHost(peer, OSError(code, os.strerror(code)))
        if error.silent:
            self._report(error)
        return error.silent

    def _report(self, error: LostHost) -> None:
        """Have all ranks end."""
        # A host without a network may be the first to report a reason, but nobody sees what it prints.
        line = f"rank {self._rank} on {socket.gethostname()}: {error}"
        report(line, error.exit_code, aloud=self._above is None)

    def _end_guard(self) -> None:
        """Stop watching; a second call does nothing."""
        self._stop.close()
        self._guard.join()
        self._stopped.close()


def _not_reported(first: First, seconds: float) -> str:
    who = f"rank {first.rank} on {first.host} has not reported for {show_seconds(seconds)}"
    return f"{who}: it or its host is stopped or hangs (process {first.process}); what was measured is kept"


def join_hosts(world: Comm) -> HostLinks | None:
    """Join the hosts of `world`; return this rank's links, which it has to close.

    Only the first rank of each of several hosts has links. Raises LaunchError, on all ranks, if hosts cannot
    be joined. Collective over `world`.
    """
    hosts = world.hosts()
    names = list(dict.fromkeys(hosts))
    if len(names) == 1:
        return None
    first = world.rank in {hosts.index(name) for name in names}
    leaders = world.split(0 if first else 1)
    links, problem = None, ""
    if first:
        own = First(names[leaders.rank], world.rank, os.getpid())
        try:
            links = _join(leaders, own)
        except (OSError, LostHost) as error:
            problem = f"{own.host}: {error}"
        problem = next(filter(None, leaders.allgather(problem)), "")
    if problem := world.node().bcast(problem):
        if links:
            links.close()
        raise LaunchError(
            f"the first ranks of hosts cannot connect: {problem}", "let hosts reach each other's TCP ports"
        )
    return links


def _join(leaders: Comm, own: First) -> HostLinks:
    """Join this host. Collective over `leaders`. Raises OSError, LostHost."""
    firsts: list[First] = leaders.allgather(own)
    addresses = own_addresses()
    if leaders.rank:
        to_call, port, secret = leaders.bcast(None)
        link = call(sorted(to_call, key=addresses.__contains__), port, secret, leaders.rank)
        above = Peer(firsts[0], link)
        return HostLinks(own.rank, above, RemoteClock([_trip(above) for _ in range(_ROUND_TRIPS)]), ())
    secret = secrets.token_bytes(2 * _SECRET_BYTES)
    with listen() as listener:
        leaders.bcast((addresses, listener.getsockname()[1], secret))
        answered = answer(listener, secret, leaders.size)
    below = [Peer(first, link) for first, link in zip(firsts[1:], answered, strict=True)]
    for peer in below:
        _show_clock(peer)
    return HostLinks(own.rank, None, None, below)


def own_addresses() -> list[str]:
    """Return this host's IP addresses; loopback only if there is no other.

    Link-local ones are left out, because they need the name of an interface.
    """
    usable = [address for address in _internet_addresses() if not address.is_link_local]
    of_network = [address for address in usable if not address.is_loopback]
    return list(map(str, of_network or usable))


def _internet_addresses() -> Iterator[IPv4Address | IPv6Address]:
    """Yield the addresses of interfaces that are up."""
    import psutil  # 15 ms of CPU, which only the first rank of each of several hosts pays

    interfaces = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if interfaces[name].isup and address.family in (socket.AF_INET, socket.AF_INET6):
                yield ip_address(address.address)


def listen() -> socket.socket:
    """Listen on a port of all addresses. Raises OSError."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0), family=family, backlog=socket.SOMAXCONN, dualstack_ipv6=both)


def call(addresses: Sequence[str], port: int, secret: bytes, number: int) -> socket.socket:
    """Connect to rank 0, which listens on `addresses`, as host `number`. Raises OSError.

    Hosts may have an address in common, such as that of a bridge for containers: so it has to answer.
    """
    failed = "it has no address"
    for address in addresses:
        link = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            link.settimeout(_CALL_SECONDS)
            link.connect((address, port))
            link.sendall(secret[:_SECRET_BYTES] + _NUMBER.pack(number))
            if hmac.compare_digest(_receive(link, _SECRET_BYTES), secret[_SECRET_BYTES:]):
                return link
            raise ConnectionRefusedError(0, "another program answered")
        except OSError as error:
            link.close()
            failed = f"{address} port {port}: {error.strerror or error}"
    raise OSError(failed)


def answer(listener: socket.socket, secret: bytes, hosts: int) -> list[socket.socket]:
    """Accept the connections of hosts 1 to `hosts` - 1; others are refused. Raises OSError."""
    links: dict[int, socket.socket] = {}
    deadline = time.monotonic() + _JOIN_SECONDS
    try:
        while len(links) < hosts - 1:
            listener.settimeout(max(0.001, deadline - time.monotonic()))
            link, _ = listener.accept()
            number = _number_of(link, secret)
            if number in range(1, hosts) and number not in links:
                links[number] = link
                link.sendall(secret[_SECRET_BYTES:])
            else:
                link.close()
    except OSError as error:
        for link in links.values():
            link.close()
        raise OSError(f"{hosts - 1 - len(links)} of {hosts - 1} hosts did not connect: {error}") from None
    return [links[number] for number in range(1, hosts)]


def _number_of(link: socket.socket, secret: bytes) -> int:
    """Return the number of the host that calls; 0 if it does not know the secret."""
    link.settimeout(_CALL_SECONDS)
    with suppress(OSError):
        said = _receive(link, _SECRET_BYTES + _NUMBER.size)
        if hmac.compare_digest(said[:_SECRET_BYTES], secret[:_SECRET_BYTES]):
            return int(_NUMBER.unpack(said[_SECRET_BYTES:])[0])
    return 0


def _show_clock(peer: Peer) -> None:
    """Answer the round trips of a host."""
    for _ in range(_ROUND_TRIPS):
        peer.receive()
        peer.send(time.monotonic())


def _trip(above: Peer) -> tuple[float, float, float]:
    before = time.monotonic()
    above.send(before)
    other, _ = above.receive()
    return before, other, time.monotonic()
