"""Hosts joined by sockets: a tree of their first ranks, in which waiting is asleep in the kernel.

MPI's own barrier spins, or is polled, and each of its log2(hosts) rounds then waits for somebody's next look:
0.5 ms on one host, 12.5 ms on 32. Here a message wakes whoever waits for it. Host i of the tree has host
(i - 1) // FAN above it, so the first n hosts are a tree of their own: that is how points on fewer hosts meet.

Addresses and a token go through MPI, once. A host listens only until those below it have called, on its own
addresses, and both ends of a connection prove that they have the token.

Clocks of hosts have nothing to do with each other. A host learns what the clock above it shows from round
trips when they meet, and from the time that each later message carries: the largest of a second's readings
is the one that was under way for the shortest time, which follows clocks that drift.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface

from emulator.errors import FeedrateError, RankError
from emulator.launch.watch import end_rank
from emulator.run.comm import Comm, Quiet
from emulator.storage.base import Closing

FAN = 8
"""Hosts below a host: 9 hosts meet in one exchange, 73 in two, 585 in three."""

_JOIN_SECONDS = 10.0
"""How long hosts look for each other."""
_CALL_SECONDS = 2.0
"""How long one address may take to answer."""
_ROUND_TRIPS = 50
_SILENCE_SECONDS = 4
"""How long a host may not answer at all."""
_GRACE_SECONDS = 1.5
"""How long MPI may take to end this rank when a peer has ended, before it does so itself; when one is silent,
nobody else would."""

_UP = struct.Struct("=d")
"""To the host above: the last end of a step below, in its clock."""
_DOWN = struct.Struct("=dd")
"""To a host below: the last end of all, and the moment of sending, both in the sender's clock."""


class Clock:
    """What the clock of the host above shows, from messages that carry it. Seconds of time.monotonic."""

    def __init__(self, trips: Sequence[tuple[float, float, float]]) -> None:
        """`trips` are round trips: our time before, the other one's time, our time after."""
        before, other, after = min(trips, key=lambda trip: trip[2] - trip[0])
        self.delay = (after - before) / 2
        """Seconds that a message takes: half of the shortest round trip. `ahead` may be wrong by as much."""
        self.ahead = other - (before + after) / 2
        """Seconds that the other clock is ahead of ours."""
        self._earlier = self._current = self.ahead
        self._since = after

    def hear(self, sent: float, now: float) -> None:
        """A message that left when the other clock showed `sent` is here when ours shows `now`."""
        if now - self._since > 1.0:
            self._earlier, self._current, self._since = self._current, sent - now + self.delay, now
        self._current = max(self._current, sent - now + self.delay)
        self.ahead = max(self._earlier, self._current)


class _Peer:
    """A connected host of the tree."""

    def __init__(self, number: int, name: str, link: socket.socket) -> None:
        self.number = number
        self.name = name
        self.link = link

    def send(self, message: bytes) -> None:
        try:
            self.link.sendall(message)
        except OSError as error:
            raise LostHost(self.name, error) from None

    def receive(self, size: int) -> bytes:
        """Sleeps until `size` bytes are there. Raises RankError when they never will be."""
        data = b""
        try:
            while len(data) < size:
                data += self.link.recv(size - len(data)) or _nothing()
        except OSError as error:
            raise LostHost(self.name, error) from None
        return data


def _nothing() -> bytes:
    raise ConnectionResetError(0, "it ended")


class LostHost(RankError):
    """A host of the tree is gone."""

    def __init__(self, host: str, error: OSError) -> None:
        self.silent = error.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
        """True when the network or the host is gone; else a process ended there, and may have said why."""
        said = error.strerror or str(error)
        hint = "the network between hosts, or the host" if self.silent else "its first rank has ended"
        super().__init__(f"lost the connection to {host} ({said})", hint)


class HostLinks(Closing):
    """This host's place in the tree of hosts; only the first rank of a host has one."""

    def __init__(self, number: int, above: _Peer | None, clock: Clock | None, below: Sequence[_Peer]) -> None:
        self.number = number
        """This host's number in the tree."""
        self._above = above
        self._clock = clock
        self._below = below
        self._guard: _Guard | None = None

    @property
    def delay(self) -> float:
        """Seconds that a message to the host above takes; 0 on the first host."""
        return self._clock.delay if self._clock else 0.0

    def meet(self, last: float, hosts: int) -> float:
        """Return when the first `hosts` hosts have called this, with the last of all their moments.

        Moments are seconds of time.monotonic of each host, translated on the way. Raises RankError when a
        host is gone.
        """
        try:
            return self._meet(last, hosts)
        except LostHost as error:
            if self._guard:
                self._guard.stop()
                if not error.silent:
                    time.sleep(_GRACE_SECONDS)
            raise

    def _meet(self, last: float, hosts: int) -> float:
        below = [peer for peer in self._below if peer.number < hosts]
        for peer in below:  # in any order: all are waited for
            last = max(last, *_UP.unpack(peer.receive(_UP.size)))
        if self._above is not None and self._clock is not None:
            self._above.send(_UP.pack(last + self._clock.ahead))
            answer, sent = _DOWN.unpack(self._above.receive(_DOWN.size))
            self._clock.hear(sent, time.monotonic())
            last = max(last, answer - self._clock.ahead)
        for peer in below:
            peer.send(_DOWN.pack(last, time.monotonic()))
        return last

    def guard(self, rank: int) -> None:
        """From now on, end this rank, number `rank` of the world, when a host next to it in the tree ends."""
        peers = [peer for peer in (self._above, *self._below) if peer is not None]
        self._guard = _Guard(rank, peers)

    def close(self) -> None:
        """Let go of the sockets; a second call does nothing."""
        if self._guard:
            self._guard.stop()
        for peer in (self._above, *self._below):
            if peer is not None:
                peer.link.close()


class _Guard:
    """A thread that sleeps until a peer is gone: its rank may be reading for minutes, and not look itself."""

    def __init__(self, rank: int, peers: Sequence[_Peer]) -> None:
        self._rank = rank
        self._peers = {peer.link.fileno(): peer for peer in peers}
        self._poll = select.poll()
        for descriptor in self._peers:
            self._poll.register(descriptor, select.POLLRDHUP)
        self._stop, self._stopped = socket.socketpair()
        self._poll.register(self._stopped, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="guard of hosts", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        gone = [descriptor for descriptor, _ in self._poll.poll()]
        if self._stopped.fileno() in gone:
            return
        peer = self._peers[gone[0]]
        code = peer.link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        error = LostHost(peer.name, OSError(code, os.strerror(code)) if code else OSError(0, "it ended"))
        if error.silent or not select.select([self._stopped], [], [], _GRACE_SECONDS)[0]:
            end_rank(self._rank, error)

    def stop(self) -> None:
        """Watch no longer; a second call does nothing."""
        self._stop.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            self._stopped.close()


@contextmanager
def hosts_joined(world: Comm, hosts: Sequence[str]) -> Iterator[tuple[HostLinks | None, str]]:
    """Join the hosts of `world`, whose ranks are on `hosts`: this rank's links, and why there are none.

    Only the first rank of a host has links, and none has when some hosts could not be joined, which the
    second value, the same on all ranks, then says. Empty: all are joined, or there is only one.
    Collective over `world`. A rank that fails keeps its sockets open until it has said why.
    """
    names = list(dict.fromkeys(hosts))
    if len(names) == 1:
        yield None, ""
        return
    firsts = {hosts.index(name) for name in names}
    leaders = world.split(0 if world.rank in firsts else 1)
    links, failed = _join(leaders, names) if world.rank in firsts else (None, "")
    problem = next(filter(None, world.allgather(failed)), "")
    if links and problem:
        links.close()
        links = None
    if links:
        links.guard(world.rank)
    try:
        yield links, problem
    except Quiet:  # all ranks end together
        if links:
            links.close()
        raise
    if links:
        links.close()


def _join(leaders: Comm, names: Sequence[str]) -> tuple[HostLinks | None, str]:
    token = leaders.bcast(secrets.token_bytes(32))
    listeners: list[socket.socket] = []
    above, clock = None, None
    peers: list[_Peer] = []
    number = leaders.rank
    below = [child for child in range(FAN * number + 1, FAN * number + FAN + 1) if child < len(names)]
    failed = ""
    try:
        own = own_addresses()
        listeners += [_listen(address) for address in own] if below else []
    except (OSError, ImportError) as error:
        failed = f"{names[number]} cannot listen: {error}"
    ports = leaders.allgather([listener.getsockname()[:2] for listener in listeners])
    try:
        if failed:
            return None, failed
        deadline = time.monotonic() + _JOIN_SECONDS
        if number:
            parent = (number - 1) // FAN
            link = _call(ports[parent], own, _Proof(token, number, parent), deadline)
            above = _Peer(parent, names[parent], link)
            peers.append(above)
            clock = Clock([_trip(above) for _ in range(_ROUND_TRIPS)])
        children = _answer(listeners, {child: _Proof(token, child, number) for child in below}, deadline)
        for child, link in children.items():
            peers.append(_Peer(child, names[child], link))
        for peer in peers[1 if number else 0 :]:
            for _ in range(_ROUND_TRIPS):
                peer.receive(1)
                peer.send(_UP.pack(time.monotonic()))
        for peer in peers:
            _prepare(peer.link)
    except (OSError, FeedrateError) as error:
        for peer in peers:
            peer.link.close()
        return None, f"{names[number]}: {error}"
    finally:
        for listener in listeners:
            listener.close()
    return HostLinks(number, above, clock, [peer for peer in peers if peer is not above]), ""


def _trip(above: _Peer) -> tuple[float, float, float]:
    before = time.monotonic()
    above.send(b"?")
    (other,) = _UP.unpack(above.receive(_UP.size))
    return before, other, time.monotonic()


class _Proof:
    """What the two ends of one connection say to each other: only who has the token can."""

    size = 4 + hashlib.sha256().digest_size

    def __init__(self, token: bytes, child: int, parent: int) -> None:
        self._number = struct.pack("=I", child)
        pair = struct.pack("=II", child, parent)
        self.of_child = self._number + hmac.digest(token, b"from below" + pair, "sha256")
        self.of_parent = self._number + hmac.digest(token, b"from above" + pair, "sha256")


def own_addresses() -> list[IPv4Interface | IPv6Interface]:
    """This host's addresses and their networks; loopback only where there is nothing else.

    Link-local ones are left out: they mean nothing without the name of an interface.
    """
    import psutil  # 15 ms of CPU, which only the first rank of each of several hosts pays

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = [
        ip_interface(f"{address.address.partition('%')[0]}/{_prefix(address.netmask)}")
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up and address.family in (socket.AF_INET, socket.AF_INET6)
    ]
    known = [one for one in found if not one.ip.is_link_local]
    return [one for one in known if not one.ip.is_loopback] or known


def _prefix(netmask: str | None) -> str:
    """A netmask as ipaddress takes it: IPv6's as a number of bits."""
    if netmask and ":" in netmask:
        return str(int(ip_address(netmask)).bit_count())
    return netmask or "32"


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _listen(address: IPv4Interface | IPv6Interface) -> socket.socket:
    listener = socket.socket(_family(str(address.ip)))
    try:
        listener.bind((str(address.ip), 0))
        listener.listen(2 * FAN)
    except OSError:
        listener.close()
        raise
    return listener


def likely_first(
    there: Sequence[tuple[str, int]], own: Sequence[IPv4Interface | IPv6Interface]
) -> list[tuple[str, int]]:
    """Another host's addresses and ports: those in a network of ours first, those that are ours too last.

    Hosts have the same address where each has a bridge for its containers.
    """

    def order(candidate: tuple[str, int]) -> int:
        address = ip_address(candidate[0])
        if any(address == one.ip for one in own):
            return 2
        return 0 if any(address in one.network for one in own) else 1

    return sorted(there, key=order)


def _call(
    there: Sequence[tuple[str, int]],
    own: Sequence[IPv4Interface | IPv6Interface],
    proof: _Proof,
    deadline: float,
) -> socket.socket:
    """A connection to the host that listens at one of the addresses `there`. Raises OSError."""
    said: OSError = OSError("it has no address")
    for address, port in likely_first(there, own):
        if time.monotonic() > deadline:
            break
        link = socket.socket(_family(address))
        try:
            link.settimeout(_CALL_SECONDS)
            link.connect((address, port))
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.sendall(proof.of_child)
            link.settimeout(max(_CALL_SECONDS, deadline - time.monotonic()))  # it may itself be calling
            if not hmac.compare_digest(_exactly(link, proof.size), proof.of_parent):
                raise ConnectionRefusedError(0, "somebody else answered")
            return link
        except OSError as error:
            link.close()
            said = OSError(f"{address} port {port}: {error.strerror or error}")
    raise said


def _answer(
    listeners: Sequence[socket.socket], expected: dict[int, _Proof], deadline: float
) -> dict[int, socket.socket]:
    """Connections of the `expected` hosts, by number; strangers are sent away. Raises OSError."""
    found: dict[int, socket.socket] = {}
    try:
        while len(found) < len(expected):
            left = deadline - time.monotonic()
            ready = select.select(listeners, [], [], max(0.0, left))[0]
            if not ready:
                raise TimeoutError(f"{len(expected) - len(found)} hosts did not call")
            link, _ = ready[0].accept()
            with suppress(OSError):
                link.settimeout(_CALL_SECONDS)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                said = _exactly(link, _Proof.size)
                (number,) = struct.unpack("=I", said[:4])
                proof = expected.get(number)
                if proof and number not in found and hmac.compare_digest(said, proof.of_child):
                    link.sendall(proof.of_parent)
                    found[number] = link
                    continue
            link.close()
    except OSError:
        for link in found.values():
            link.close()
        raise
    return found


def _exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += link.recv(size - len(data)) or _nothing()
    return data


def _prepare(link: socket.socket) -> None:
    """Wait for ever for messages, but not for a host that no longer answers."""
    link.settimeout(None)
    for option, value in (
        (socket.TCP_KEEPIDLE, 1),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_KEEPCNT, _SILENCE_SECONDS - 1),
        (socket.TCP_USER_TIMEOUT, 1000 * _SILENCE_SECONDS),
    ):
        link.setsockopt(socket.IPPROTO_TCP, option, value)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
