"""A tree of sockets between the first ranks of hosts, in which a waiting rank sleeps in the kernel.

With a polled barrier of MPI, AU with steps of 3.5 ms fell from 95 % on one host to 37 % on eight. The parent
of host i is host (i - 1) // FAN, so the first n hosts also form a tree, which points on fewer hosts use.

The same connection carries a note each second: a host whose first rank is stopped keeps its connections, and
only missing notes show it. A host that leaves says goodbye; one whose connection ends without that is lost.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import select
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from errno import EHOSTUNREACH, ENETUNREACH, ETIMEDOUT
from typing import NamedTuple

from emulator.errors import FeedrateError, RankError
from emulator.files import Closing
from emulator.launch.comm import Comm
from emulator.launch.handshake import (
    Address,
    Interface,
    Proof,
    answer,
    call,
    listen,
    own_addresses,
    readable,
    receive,
)
from emulator.launch.supervise import report
from emulator.launch.watch import storage_timeout
from emulator.units import show_seconds

FAN = 8
"""Most children of a host. A tree of 9 hosts has one level below its root, of 73 two, of 585 three."""

_JOIN_SECONDS = 10.0
"""Seconds to connect all hosts, for each level of the tree."""
_ROUND_TRIPS = 50
_SILENCE_SECONDS = 4
"""Seconds after which an unreachable host is lost."""
_GRACE_SECONDS = 1.5
"""Seconds for MPI to end this rank after a peer has ended, before it ends itself."""
_NOTE_SECONDS = 1.0
_PATIENCE_SECONDS = 2.0
"""Seconds after --storage-timeout before a silent host ends the run: its own ranks can report more."""

_MESSAGE = struct.Struct("=cdd")
"""Its kind, and for a step two times in seconds. To the parent: latest end of the step in this subtree, in
the parent's clock. To a child: latest end on all hosts, and time of sending, in the sender's clock."""
_STEP, _NOTE, _GOODBYE = b"s", b"n", b"g"


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


class _First(NamedTuple):
    """The first rank of a host."""

    host: str
    rank: int
    """Its number in the world."""
    process: int
    ports: list[Address]
    """The addresses at which it listens."""


class _Peer:
    """A connected host of the tree."""

    def __init__(self, number: int, first: _First, link: socket.socket) -> None:
        self.number = number
        self.first = first
        self.link = link
        self._lock = threading.Lock()  # the barrier and the guard send
        self._received = 0
        self._left = False
        _prepare(link)

    def close(self) -> None:
        self.note(_GOODBYE)
        self.link.close()

    def note(self, kind: bytes = _NOTE) -> None:
        """Send a note, unless the host has received none for hours. Its loss is noticed elsewhere."""
        message = _MESSAGE.pack(kind, 0.0, 0.0)
        with suppress(OSError), self._lock:
            sent = self.link.send(message, socket.MSG_DONTWAIT)
            self.link.sendall(message[sent:])

    def send(self, first: float, second: float = 0.0) -> None:
        """Send the times of a step. Raises LostHost."""
        try:
            with self._lock:
                self.link.sendall(_MESSAGE.pack(_STEP, first, second))
        except OSError as error:
            raise LostHost(self, error) from None

    def receive(self) -> tuple[float, float]:
        """Wait for the times of a step. Raises LostHost."""
        while True:
            try:
                kind, first, second = _MESSAGE.unpack(receive(self.link, _MESSAGE.size))
            except OSError as error:
                raise LostHost(self, error) from None
            self._received += _MESSAGE.size
            if kind == _STEP:
                return first, second
            self._left = self._left or kind == _GOODBYE

    def heard(self) -> int:
        """Return the bytes that have arrived so far, read or not."""
        unread = fcntl.ioctl(self.link, termios.FIONREAD, bytes(4))
        return self._received + int.from_bytes(unread, sys.byteorder)

    def has_left(self) -> bool:
        """Return True if the host has said goodbye."""
        with suppress(OSError):
            unread = self.link.recv(2**20, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            self._left = self._left or unread[-_MESSAGE.size :][:1] == _GOODBYE
        return self._left


def _prepare(link: socket.socket) -> None:
    """Have receives wait forever, while the kernel probes that the host is up."""
    link.settimeout(None)
    for option, value in (
        (socket.TCP_KEEPIDLE, 1),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_KEEPCNT, _SILENCE_SECONDS - 1),
        (socket.TCP_USER_TIMEOUT, 1000 * _SILENCE_SECONDS),
    ):
        link.setsockopt(socket.IPPROTO_TCP, option, value)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class LostHost(RankError):
    """The connection to a host of the tree is lost."""

    def __init__(self, host: _Peer, error: OSError) -> None:
        self.number = host.number
        self.silent = error.errno in (ETIMEDOUT, EHOSTUNREACH, ENETUNREACH)
        """True if host or network do not answer; False if a process ended, which may have reported why."""
        reason = error.strerror or str(error)
        hint = "check the host and its network" if self.silent else "its first rank has ended"
        super().__init__(f"lost the connection to {host.first.host} ({reason})", hint)


class HostLinks(Closing):
    """This host's connections in the tree. Only the first rank of a host has them."""

    def __init__(
        self, number: int, above: _Peer | None, clock: RemoteClock | None, below: Sequence[_Peer]
    ) -> None:
        self.number = number
        self._above = above
        self._clock = clock
        self._below = below
        self._guard: _Guard | None = None

    def meet(self, last: float, hosts: int) -> float:
        """Wait until the first `hosts` hosts have called this; return the latest `last` of all.

        Times are seconds of this host's time.monotonic. Raises LostHost.
        """
        try:
            return self._meet(last, hosts)
        except LostHost as error:
            if self._guard:
                self._guard.stop()
                if error.silent:
                    self._guard.end(error)
                time.sleep(_GRACE_SECONDS)
            raise

    def _meet(self, last: float, hosts: int) -> float:
        below = [peer for peer in self._below if peer.number < hosts]
        for peer in below:  # their order does not matter: all must arrive
            last = max(last, peer.receive()[0])
        if self._above is not None and self._clock is not None:
            self._above.send(last + self._clock.ahead)
            answer, sent = self._above.receive()
            self._clock.hear(sent, time.monotonic())
            last = max(last, answer - self._clock.ahead)
        for peer in below:
            peer.send(last, time.monotonic())
        return last

    def guard(self, rank: int, timeout: float) -> None:
        """End this rank, `rank` of the world, when a neighbour is lost or silent for `timeout` seconds."""
        peers = [peer for peer in (self._above, *self._below) if peer is not None]
        self._guard = _Guard(rank, self.number, peers, timeout)

    def close(self) -> None:
        """Close the sockets; a second call does nothing."""
        if self._guard:
            self._guard.stop()
        for peer in (self._above, *self._below):
            if peer is not None:
                peer.close()


class _Guard:
    """A thread that ends its rank when a peer is lost or silent, even if the rank is in a long read."""

    def __init__(self, rank: int, number: int, peers: Sequence[_Peer], timeout: float) -> None:
        self._rank, self._number = rank, number
        self._timeout = timeout + _PATIENCE_SECONDS
        self._peers = {peer.link.fileno(): peer for peer in peers}
        self._heard = dict.fromkeys(peers, (0, time.monotonic()))
        """Bytes that have arrived from a peer, and when the last of them did."""
        self._poll = select.poll()
        for descriptor in self._peers:
            self._poll.register(descriptor, select.POLLRDHUP)  # its messages are the barrier's
        self._stop, self._stopped = socket.socketpair()
        self._poll.register(self._stopped, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="guard of hosts", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        looked = noted = time.monotonic()
        while True:
            ready = dict(self._poll.poll(1e3 * _NOTE_SECONDS))
            now = time.monotonic()
            if now - looked > _NOTE_SECONDS + self._timeout / 2:
                # This process was stopped: so may have been the others.
                self._heard = {peer: (heard, now) for peer, (heard, _) in self._heard.items()}
            looked = now
            if self._stopped.fileno() in ready:
                return
            if not all(self._lost(self._peers[descriptor]) for descriptor in ready):
                return
            if now - noted >= _NOTE_SECONDS / 2:
                noted = now
                for peer in self._heard:
                    peer.note()
            if not all(self._speaks(peer, now) for peer in list(self._heard)):
                return

    def _speaks(self, peer: _Peer, now: float) -> bool:
        """Return False if this rank ends because `peer` is silent."""
        (before, then), heard = self._heard[peer], peer.heard()
        if heard != before:
            self._heard[peer] = heard, now
        elif now - then > self._timeout:
            first = peer.first
            problem = f"rank {first.rank} on {first.host} has not reported for {show_seconds(now - then)}"
            why = f"it or its host is stopped or hangs (process {first.process}); what was measured is kept"
            report(f"{problem}: {why}", RankError.exit_code)
            return False
        return True

    def _lost(self, peer: _Peer) -> bool:
        """Forget a peer that has left; return False if this rank ends because the connection is lost."""
        code = peer.link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        error = LostHost(peer, OSError(code, os.strerror(code)) if code else OSError(0, "it ended"))
        if error.silent or not (peer.has_left() or readable([self._stopped], _GRACE_SECONDS)):
            self.end(error)
            return False
        del self._heard[peer]
        self._poll.unregister(peer.link)
        return True

    def end(self, error: LostHost) -> None:
        """End all ranks."""
        # A host without a network may be the first to report a reason, but nobody sees what it prints.
        line = f"rank {self._rank} on {socket.gethostname()}: {error}"
        report(line, error.exit_code, aloud=error.silent and error.number > self._number)

    def stop(self) -> None:
        """Stop watching; a second call does nothing."""
        self._stop.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            self._stopped.close()


def join_hosts(world: Comm) -> tuple[HostLinks | None, str]:
    """Join the hosts of `world`; return this rank's links, which it has to close, and the problem.

    Only the first rank of a host has links, and a guard watches them. If hosts could not be joined, no rank
    has links, and the problem says why, on all ranks; otherwise it is empty. Collective over `world`.
    """
    hosts = world.hosts()
    names = list(dict.fromkeys(hosts))
    if len(names) == 1:
        return None, ""
    first = world.rank in {hosts.index(name) for name in names}
    leaders = world.split(0 if first else 1)
    links, failed = _join(leaders, names, world.rank) if first else (None, "")
    problem = world.node().bcast(next(filter(None, leaders.allgather(failed) if first else ()), ""))
    if links and problem:
        links.close()
        links = None
    if links:
        links.guard(world.rank, storage_timeout(sys.argv[1:]))
    return links, problem


def _join(leaders: Comm, names: Sequence[str], rank: int) -> tuple[HostLinks | None, str]:
    """Join this host, whose first rank is `rank`, to the tree; return its links, or None and why.

    Collective over `leaders`.
    """
    token = leaders.bcast(secrets.token_bytes(32))
    number = leaders.rank
    below = range(FAN * number + 1, min(FAN * (number + 1) + 1, len(names)))
    ours: list[Interface] = []
    listeners: list[socket.socket] = []
    above, clock, peers = None, None, list[_Peer]()
    failed: OSError | None = None
    try:
        ours = own_addresses()
        listeners += [listen(address) for address in ours] if below else []
    except OSError as error:
        failed = OSError(f"cannot listen: {error}")
    ports = [listener.getsockname()[:2] for listener in listeners]
    firsts = leaders.allgather(_First(names[number], rank, os.getpid(), ports))
    try:
        if failed:
            raise failed
        deadline = time.monotonic() + _JOIN_SECONDS * levels(len(names))
        if number:
            parent = (number - 1) // FAN
            link = call(firsts[parent].ports, ours, Proof.of(token, number), deadline)
            above = _Peer(parent, firsts[parent], link)
            peers.append(above)
            clock = RemoteClock([_trip(above) for _ in range(_ROUND_TRIPS)])
        sockets = answer(listeners, {child: Proof.of(token, child) for child in below}, deadline)
        children = [_Peer(child, firsts[child], sockets[child]) for child in below]
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
    """Return the number of levels of the tree below its root."""
    deepest, count = hosts - 1, 0
    while deepest > 0:
        deepest, count = (deepest - 1) // FAN, count + 1
    return count


def _show_clock(children: Sequence[_Peer]) -> None:
    """Answer the round trips of the children."""
    for child in children:
        for _ in range(_ROUND_TRIPS):
            child.receive()
            child.send(time.monotonic())


def _trip(above: _Peer) -> tuple[float, float, float]:
    before = time.monotonic()
    above.send(before)
    other, _ = above.receive()
    return before, other, time.monotonic()
