"""Connect two hosts by TCP: find an address that works, and authenticate each end to the other.

All hosts have received a token and every host's listening addresses through MPI. A host listens only on its
own addresses, and only until the hosts below it in the tree (`launch.links`) have connected.
"""

from __future__ import annotations

import hashlib
import hmac
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from typing import NamedTuple

CALL_SECONDS = 2.0
"""Seconds for one address to answer."""
_BACKLOG = 32
_NUMBER = struct.Struct("=I")
_PROOF_BYTES = _NUMBER.size + hashlib.sha256().digest_size

Address = tuple[str, int]
"""IP address and port."""
Interface = IPv4Interface | IPv6Interface


class Proof(NamedTuple):
    """The bytes that both ends of a connection send to prove that they have the token."""

    caller: bytes
    answerer: bytes

    @classmethod
    def of(cls, token: bytes, number: int) -> Proof:
        """Return the proof for connection `number`, a number that is unique in the run."""
        packed = _NUMBER.pack(number)
        return cls(*(packed + hmac.digest(token, who + packed, "sha256") for who in (b"caller", b"answerer")))


def own_addresses() -> list[Interface]:
    """Return this host's addresses and their networks; loopback only if there is no other.

    Link-local ones are left out, because they need the name of an interface.
    """
    import psutil  # 15 ms of CPU, which only the first rank of each of several hosts pays

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    interfaces = [
        ip_interface(f"{address.address.partition('%')[0]}/{_prefix(address.netmask)}")
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up and address.family in (socket.AF_INET, socket.AF_INET6)
    ]
    usable = [one for one in interfaces if not one.ip.is_link_local]
    return [one for one in usable if not one.ip.is_loopback] or usable


def _prefix(netmask: str | None) -> str:
    """Return a netmask in the form that ipaddress accepts: for IPv6 the number of bits."""
    if netmask and ":" in netmask:
        return str(int(ip_address(netmask)).bit_count())
    return netmask or "32"


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def listen(address: Interface) -> socket.socket:
    """Listen on a port of `address`. Raises OSError."""
    host = str(address.ip)
    return socket.create_server((host, 0), family=_family(host), backlog=_BACKLOG)


def likely_first(there: Sequence[Address], own: Sequence[Interface]) -> list[Address]:
    """Sort another host's addresses: those in a network of this host first, those equal to its own last.

    Hosts have an address in common if each has a bridge for its containers.
    """

    def order(candidate: Address) -> tuple[bool, bool]:
        address = ip_address(candidate[0])
        return any(address == one.ip for one in own), not any(address in one.network for one in own)

    return sorted(there, key=order)


def call(there: Sequence[Address], own: Sequence[Interface], proof: Proof, deadline: float) -> socket.socket:
    """Connect to the host that listens on one of the addresses `there`. Raises OSError."""
    failed = OSError("it has no address")
    for address, port in likely_first(there, own):
        if time.monotonic() > deadline:
            break
        link = socket.socket(_family(address))
        try:
            link.settimeout(CALL_SECONDS)
            link.connect((address, port))
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.sendall(proof.caller)
            # The other host answers after it has connected to the host above it.
            link.settimeout(max(CALL_SECONDS, deadline - time.monotonic()))
            if not hmac.compare_digest(receive(link, _PROOF_BYTES), proof.answerer):
                raise ConnectionRefusedError(0, "another program answered")
            return link
        except OSError as error:
            link.close()
            failed = OSError(f"{address} port {port}: {error.strerror or error}")
    raise failed


def answer(
    listeners: Sequence[socket.socket], expected: Mapping[int, Proof], deadline: float
) -> dict[int, socket.socket]:
    """Accept the `expected` connections, by number; others are refused. Raises OSError."""
    links: dict[int, socket.socket] = {}
    try:
        while len(links) < len(expected):
            ready = readable(listeners, deadline - time.monotonic())
            if not ready:
                raise TimeoutError(f"{len(expected) - len(links)} of {len(expected)} hosts did not connect")
            link, _ = ready[0].accept()
            with suppress(OSError):
                link.settimeout(CALL_SECONDS)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                received = receive(link, _PROOF_BYTES)
                (number,) = _NUMBER.unpack_from(received)
                proof = expected.get(number)
                if proof and number not in links and hmac.compare_digest(received, proof.caller):
                    link.sendall(proof.answerer)
                    links[number] = link
                    continue
            link.close()
    except OSError:
        for link in links.values():
            link.close()
        raise
    return links


def readable(links: Sequence[socket.socket], seconds: float) -> list[socket.socket]:
    """Return those of `links` that become readable within `seconds`."""
    waiting = select.poll()  # select() fails in a rank with more than 1,024 open files
    for link in links:
        waiting.register(link, select.POLLIN)
    ready = dict(waiting.poll(max(0.0, 1e3 * seconds)))
    return [link for link in links if link.fileno() in ready]


def receive(link: socket.socket, size: int) -> bytes:
    """Wait for `size` bytes. Raises OSError."""
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise ConnectionResetError(0, "it ended")
        data += part
    return data
