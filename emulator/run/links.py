"""A tree of sockets between the first ranks of hosts. A rank that waits in it sleeps in the kernel.

MPI's own barrier spins. A polled one waits for the next poll in each of its log2(hosts) rounds: AU at steps
of 3.5 ms fell from 95 % on one host to 37 % on eight. Here a message wakes its receiver. Host i has host (i -
1) // FAN above it, so the first n hosts form a tree, too: points on fewer hosts use that.

MPI carries addresses and a token, once. A host listens on its own addresses, only until the hosts below it
have connected, and both ends of a connection prove that they have the token.

A second connection between the same two hosts carries a heartbeat each second: a host whose first rank is
stopped keeps its connections, and only its silence shows it.

Clocks of hosts differ. A host estimates the clock above it from round trips when they connect, and from the
time in each later message. Of the readings in a second the largest had the shortest delay; it is used, so the
estimate follows drift.
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
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface

from emulator.errors import FeedrateError, RankError
from emulator.launch.watch import end_rank, storage_timeout
from emulator.run.comm import Comm, Quiet
from emulator.storage.base import Closing
from emulator.units import show_seconds

FAN = 8
"""Hosts directly below a host. A meeting of 9 hosts takes one level, of 73 two, of 585 three."""

_JOIN_SECONDS = 10.0
"""Longest time to connect all hosts, seconds for each level of the tree."""
_CALL_SECONDS = 2.0
"""Longest time for one address to answer, seconds."""
_ROUND_TRIPS = 50
_SILENCE_SECONDS = 4
"""Longest time that a host may be unreachable, seconds."""
_GRACE_SECONDS = 1.5
"""Seconds for MPI to end this rank after a peer has ended. After them, this rank ends itself."""
_BEAT_SECONDS = 1.0
_PATIENCE_SECONDS = 2.0
"""Seconds after --storage-timeout before a silent host ends the run: its own ranks know more, so go first."""

_UP = struct.Struct("=d")
"""Message to the host above: end of the last step below, in that host's clock."""
_DOWN = struct.Struct("=dd")
"""Message to a host below: end of the last step of all, and time of sending, both in the sender's clock."""


class RemoteClock:
    """An estimate of another host's time.monotonic, in seconds."""

    def __init__(self, trips: Sequence[tuple[float, float, float]]) -> None:
        """`trips` are round trips: our time before, the other host's time, our time after."""
        before, other, after = min(trips, key=lambda trip: trip[2] - trip[0])
        self.delay = (after - before) / 2
        """Delay of a message in seconds: half the shortest round trip, and the largest error of `ahead`."""
        self.ahead = other - (before + after) / 2
        """Seconds by which the other clock is ahead of ours."""
        self._earlier = self._current = self.ahead
        self._since = after

    def hear(self, sent: float, now: float) -> None:
        """Use a message that was sent at `sent` of the other clock and arrived at `now` of ours."""
        if now - self._since > 1.0:
            self._earlier, self._current, self._since = self._current, sent - now + self.delay, now
        self._current = max(self._current, sent - now + self.delay)
        self.ahead = max(self._earlier, self._current)


class _Peer:
    """A connected host of the tree."""

    def __init__(self, number: int, name: str, link: socket.socket, life: socket.socket) -> None:
        """`link` carries the ends of steps, `life` heartbeats."""
        self.number = number
        self.name = name
        self.link = link
        self.life = life
        for one in (link, life):
            _prepare(one)

    def close(self) -> None:
        self.link.close()
        self.life.close()

    def send(self, message: bytes) -> None:
        try:
            self.link.sendall(message)
        except OSError as error:
            raise LostHost(self.name, error) from None

    def receive(self, size: int) -> bytes:
        """Wait for `size` bytes. Raises LostHost."""
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
    """The connection to a host of the tree is lost."""

    def __init__(self, host: str, error: OSError) -> None:
        self.silent = error.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
        """True if host or network do not answer; False if a process ended there, which may have said why."""
        said = error.strerror or str(error)
        hint = "the network between hosts, or the host" if self.silent else "its first rank has ended"
        super().__init__(f"lost the connection to {host} ({said})", hint)


class HostLinks(Closing):
    """This host's connections in the tree. Only the first rank of a host has them."""

    def __init__(
        self, number: int, above: _Peer | None, clock: RemoteClock | None, below: Sequence[_Peer]
    ) -> None:
        self.number = number
        """This host's number in the tree."""
        self._above = above
        self._clock = clock
        self._below = below
        self._guard: _Guard | None = None

    @property
    def delay(self) -> float:
        """Delay of a message to the host above, in seconds; 0 on the first host."""
        return self._clock.delay if self._clock else 0.0

    def meet(self, last: float, hosts: int) -> float:
        """Wait until the first `hosts` hosts have called this; return the latest `last` of all.

        Times are seconds of this host's time.monotonic. Raises LostHost.
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
        for peer in below:  # their order does not matter: all must arrive
            last = max(last, *_UP.unpack(peer.receive(_UP.size)))
        if self._above is not None and self._clock is not None:
            self._above.send(_UP.pack(last + self._clock.ahead))
            answer, sent = _DOWN.unpack(self._above.receive(_DOWN.size))
            self._clock.hear(sent, time.monotonic())
            last = max(last, answer - self._clock.ahead)
        for peer in below:
            peer.send(_DOWN.pack(last, time.monotonic()))
        return last

    def guard(self, rank: int, timeout: float) -> None:
        """From now on, end this rank, number `rank` of the world, when a neighbour in the tree is lost.

        So is one that is silent for `timeout` seconds.
        """
        peers = [peer for peer in (self._above, *self._below) if peer is not None]
        self._guard = _Guard(rank, peers, timeout)

    def close(self) -> None:
        """Close the sockets; a second call does nothing."""
        if self._guard:
            self._guard.stop()
        for peer in (self._above, *self._below):
            if peer is not None:
                peer.close()


class _Guard:
    """A thread that ends its rank when a peer is lost or silent: the rank may be in a read for minutes."""

    def __init__(self, rank: int, peers: Sequence[_Peer], timeout: float) -> None:
        self._rank = rank
        self._timeout = timeout + _PATIENCE_SECONDS
        self._peers = {one.fileno(): peer for peer in peers for one in (peer.link, peer.life)}
        self._heard = {peer.life.fileno(): time.monotonic() for peer in peers}
        self._poll = select.poll()
        for descriptor in self._peers:
            # Of the link only its end: its messages are the barrier's.
            self._poll.register(
                descriptor, select.POLLRDHUP | (select.POLLIN if descriptor in self._heard else 0)
            )
        self._stop, self._stopped = socket.socketpair()
        self._poll.register(self._stopped, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="guard of hosts", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        looked = beaten = time.monotonic()
        while True:
            ready = dict(self._poll.poll(1e3 * _BEAT_SECONDS))
            now = time.monotonic()
            # A gap of its own: this process was stopped, and the others may have been with it.
            if now - looked > _BEAT_SECONDS + self._timeout / 2:
                self._heard = dict.fromkeys(self._heard, now)
            looked = now
            if self._stopped.fileno() in ready:
                return None
            ended = [one for one, event in ready.items() if event & ~select.POLLIN]
            if ended:
                return self._lost(self._peers[ended[0]])
            for descriptor in ready:
                with suppress(OSError):
                    self._peers[descriptor].life.recv(4096)
                self._heard[descriptor] = now
            if now - beaten >= _BEAT_SECONDS / 2:
                beaten = now
                for descriptor in self._heard:
                    with suppress(OSError):  # its end is seen by poll
                        self._peers[descriptor].life.send(b".", socket.MSG_DONTWAIT)
            descriptor, heard = min(self._heard.items(), key=lambda item: item[1])
            if now - heard > self._timeout:
                told = f"{self._peers[descriptor].name} has not reported for {show_seconds(now - heard)}"
                why = "its first rank is stopped or hangs, or all of the host does; what was measured is kept"
                return end_rank(self._rank, RankError(told, why), witness=True)

    def _lost(self, peer: _Peer) -> None:
        code = peer.link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        code = code or peer.life.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        error = LostHost(peer.name, OSError(code, os.strerror(code)) if code else OSError(0, "it ended"))
        if error.silent or not _readable([self._stopped], _GRACE_SECONDS):
            end_rank(self._rank, error)

    def stop(self) -> None:
        """Stop watching; a second call does nothing."""
        self._stop.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            self._stopped.close()


@contextmanager
def hosts_joined(world: Comm, hosts: Sequence[str]) -> Iterator[tuple[HostLinks | None, str]]:
    """Join the hosts of `world`, whose ranks are on `hosts`; yield this rank's links and a problem.

    Only the first rank of a host has links. If hosts could not be joined, no rank has any, and the problem,
    the same on all ranks, says why; else it is empty. Collective over `world`.
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
        links.guard(world.rank, storage_timeout(sys.argv[1:]))
    try:
        yield links, problem
    except Quiet:  # all ranks end together
        if links:
            links.close()
        raise
    # Not closed after any other error: peers would take that for the end of this rank before it says why.
    if links:
        links.close()


def _join(leaders: Comm, names: Sequence[str]) -> tuple[HostLinks | None, str]:
    """Join this host to the tree: its links, or the reason why it has none. Collective over `leaders`."""
    token = leaders.bcast(secrets.token_bytes(32))
    number = leaders.rank
    below = [child for child in range(FAN * number + 1, FAN * number + FAN + 1) if child < len(names)]
    listeners: list[socket.socket] = []
    own: list[IPv4Interface | IPv6Interface] = []
    failed = ""
    try:
        own = own_addresses()
        listeners += [_listen(address) for address in own] if below else []
    except (OSError, ImportError) as error:
        failed = f"{names[number]} cannot listen: {error}"
    ports = leaders.allgather([listener.getsockname()[:2] for listener in listeners])
    above, clock = None, None
    peers: list[_Peer] = []
    try:
        if failed:
            return None, failed
        deadline = time.monotonic() + _JOIN_SECONDS * levels(len(names))
        if number:
            parent = (number - 1) // FAN
            link, life = (
                _call(ports[parent], own, _Proof(token, number, parent, line), deadline) for line in (0, 1)
            )
            above = _Peer(parent, names[parent], link, life)
            peers.append(above)
            clock = RemoteClock([_trip(above) for _ in range(_ROUND_TRIPS)])
        proofs = [_Proof(token, child, number, line) for child in below for line in (0, 1)]
        found = _answer(listeners, {proof.number: proof for proof in proofs}, deadline)
        children = [_Peer(one, names[one], found[2 * one], found[2 * one + 1]) for one in below]
        peers += children
        _show_clock(children)
    except (OSError, FeedrateError) as error:
        for peer in peers:
            peer.close()
        return None, f"{names[number]}: {error}"
    finally:
        for listener in listeners:
            listener.close()
    return HostLinks(number, above, clock, children), ""


def levels(hosts: int) -> int:
    """Levels of the tree below its first host."""
    deepest, found = hosts - 1, 0
    while deepest > 0:
        deepest, found = (deepest - 1) // FAN, found + 1
    return found


def _show_clock(children: Sequence[_Peer]) -> None:
    """Answer the round trips of the hosts below."""
    for child in children:
        for _ in range(_ROUND_TRIPS):
            child.receive(1)
            child.send(_UP.pack(time.monotonic()))


def _trip(above: _Peer) -> tuple[float, float, float]:
    before = time.monotonic()
    above.send(b"?")
    (other,) = _UP.unpack(above.receive(_UP.size))
    return before, other, time.monotonic()


class _Proof:
    """The messages by which both ends of one connection prove that they have the token."""

    size = 4 + hashlib.sha256().digest_size

    def __init__(self, token: bytes, child: int, parent: int, line: int) -> None:
        """`line` is 0 for the connection that carries steps, 1 for the one that carries heartbeats."""
        self.number = 2 * child + line
        named, pair = struct.pack("=I", self.number), struct.pack("=II", self.number, parent)
        self.of_child = named + hmac.digest(token, b"from below" + pair, "sha256")
        self.of_parent = named + hmac.digest(token, b"from above" + pair, "sha256")


def own_addresses() -> list[IPv4Interface | IPv6Interface]:
    """This host's addresses and their networks; loopback only if there is no other.

    Link-local ones are left out: they need the name of an interface.
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
    """A netmask as ipaddress takes it: for IPv6 the number of bits."""
    if netmask and ":" in netmask:
        return str(int(ip_address(netmask)).bit_count())
    return netmask or "32"


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _listen(address: IPv4Interface | IPv6Interface) -> socket.socket:
    listener = socket.socket(_family(str(address.ip)))
    try:
        listener.bind((str(address.ip), 0))
        listener.listen(4 * FAN)
    except OSError:
        listener.close()
        raise
    return listener


def likely_first(
    there: Sequence[tuple[str, int]], own: Sequence[IPv4Interface | IPv6Interface]
) -> list[tuple[str, int]]:
    """Sort another host's addresses and ports: those in a network of ours first, those equal to ours last.

    Hosts share an address where each has a bridge for its containers.
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
    """Connect to the host that listens on one of the addresses `there`. Raises OSError."""
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
            # The other host answers after it has connected to the host above it.
            link.settimeout(max(_CALL_SECONDS, deadline - time.monotonic()))
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
    """Accept the `expected` connections, by number; others are refused. Raises OSError."""
    found: dict[int, socket.socket] = {}
    try:
        while len(found) < len(expected):
            left = deadline - time.monotonic()
            ready = _readable(listeners, left)
            if not ready:
                raise TimeoutError(
                    f"{len(expected) - len(found)} of {len(expected)} connections from hosts did not come"
                )
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


def _readable(links: Sequence[socket.socket], seconds: float) -> list[socket.socket]:
    """Return those of `links` that have something to read within `seconds`."""
    waiting = select.poll()  # select() fails where a rank has more than 1,024 files open
    for link in links:
        waiting.register(link, select.POLLIN)
    ready = dict(waiting.poll(max(0.0, 1e3 * seconds)))
    return [link for link in links if link.fileno() in ready]


def _exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += link.recv(size - len(data)) or _nothing()
    return data


def _prepare(link: socket.socket) -> None:
    """Wait forever for messages, but have the kernel probe that the host is there."""
    link.settimeout(None)
    for option, value in (
        (socket.TCP_KEEPIDLE, 1),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_KEEPCNT, _SILENCE_SECONDS - 1),
        (socket.TCP_USER_TIMEOUT, 1000 * _SILENCE_SECONDS),
    ):
        link.setsockopt(socket.IPPROTO_TCP, option, value)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
