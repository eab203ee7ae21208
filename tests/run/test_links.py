"""Hosts joined by sockets: all meet, nobody else gets in, clocks are followed, and who is gone is missed."""

import queue
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_interface

import pytest
from command import until
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from threads import Group, ThreadComm

from emulator.errors import RankError
from emulator.launch import handshake
from emulator.launch import links as links_module
from emulator.launch.handshake import Proof, likely_first, listen, own_addresses
from emulator.launch.links import FAN, RemoteClock, join_hosts


def on_hosts(hosts, work):
    """`work(links, rank)` of the only rank of each of so many hosts."""
    group = Group(hosts)
    unguarded = threading.Barrier(hosts, timeout=60)

    def live(rank):
        links, problem = join_hosts(ThreadComm(group, rank))
        assert links and not problem
        with links:
            links._guard.stop()  # it would end the whole test process
            unguarded.wait()  # before any of them closes its links
            return work(links, rank)

    with ThreadPoolExecutor(hosts) as pool:
        return list(pool.map(live, range(hosts)))


@pytest.mark.parametrize("hosts", [2, FAN + 1, FAN + 3])
def test_every_host_learns_the_last_moment_of_all(hosts):
    steps = [[1e9 + (7 * host + 3 * step) % 11 for host in range(hosts)] for step in range(20)]
    learned = on_hosts(hosts, lambda links, rank: [links.meet(ends[rank], hosts) for ends in steps])
    for told in learned:  # the same clock for all here, known to within the time of a message
        assert told == pytest.approx([max(ends) for ends in steps], abs=0.4)


@pytest.mark.long
@pytest.mark.parametrize("hosts", [100, 300, 600])
def test_hundreds_of_hosts_join_and_meet(hosts):
    """Their first ranks are threads of this process: what is told is that they do, not how fast."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 10 * hosts:
        pytest.skip(f"{hard} open files allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        met = on_hosts(hosts, lambda links, rank: [links.meet(1e9 + rank, hosts) for _ in range(20)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert met == [pytest.approx([1e9 + hosts - 1] * 20, abs=1.0)] * hosts


def test_the_first_hosts_meet_without_the_others():
    met = on_hosts(5, lambda links, rank: links.meet(1e9 + rank, 3) if rank < 3 else None)
    assert met[:3] == pytest.approx([1e9 + 2] * 3, abs=0.4) and met[3:] == [None, None]


def test_nobody_leaves_before_the_last_host_is_there():
    def work(links, rank):
        if rank == 3:
            time.sleep(0.05)
            late.append(time.monotonic())
        return links.meet(time.monotonic(), 4) and time.monotonic()

    late = []
    assert min(on_hosts(4, work)) >= late[0]


def test_a_host_that_ends_is_missed_at_once(monkeypatch):
    monkeypatch.setattr(links_module, "_GRACE_SECONDS", 0.0)

    def work(links, rank):
        if rank == 1:
            links.close()
            return None
        with pytest.raises(RankError, match="lost the connection to host"):
            links.meet(1.0, 3)
        links.close()  # so that whoever waits for this one hears of it, too
        return rank

    assert on_hosts(3, work) == [0, None, 2]


@pytest.mark.parametrize(("leaves", "told"), [(True, []), (False, ["lost the connection to host1"])])
def test_a_host_that_leaves_is_not_missed_and_one_that_ends_is(monkeypatch, leaves, told):
    monkeypatch.setattr(links_module, "_GRACE_SECONDS", 0.5)
    monkeypatch.setattr(links_module, "report", lambda line, status, **how: ended.append(line))
    ended: list[str] = []
    group, over = Group(3), threading.Barrier(3, timeout=60)

    def live(rank):
        links, _ = join_hosts(ThreadComm(group, rank))
        over.wait()
        if rank == 1:
            links._guard.stop()
            for one in (peer for peer in (links._above, *links._below) if not leaves):
                one.link.shutdown(socket.SHUT_RDWR)
            links.close()
        until(lambda: ended, 1.5 if leaves else 60.0)
        over.wait()
        links.close()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(live, range(3)))
    assert [line.partition(": ")[2].partition(" (")[0] for line in ended] == told


def test_a_host_that_keeps_its_connections_but_says_nothing_ends_the_run(monkeypatch):
    """As one whose first rank is stopped. Those that still report are not named."""
    monkeypatch.setattr(links_module, "storage_timeout", lambda words: 2.0)
    monkeypatch.setattr(links_module, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(links_module, "report", lambda line, status, **how: ended.put(line))
    ended: queue.Queue[str] = queue.Queue()
    group, told = Group(3), []
    joined, over = threading.Barrier(3, timeout=60), threading.Barrier(3, timeout=90)

    def live(rank):
        links, _ = join_hosts(ThreadComm(group, rank))
        joined.wait()
        if rank == 1:
            links._guard.stop()
        if rank == 0:
            told.append(ended.get(timeout=60))
        over.wait()
        links.close()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(live, range(3)))
    assert "rank 1 on host1 has not reported for" in told[0]


def test_strangers_are_sent_away():
    """Who has another token, or is another host, hears nothing; the right one is let in after them."""
    listener = listen(own_addresses()[0])
    address = listener.getsockname()[:2]
    right, wrong, other = Proof.of(b"t" * 32, 1), Proof.of(b"s" * 32, 1), Proof.of(b"t" * 32, 2)
    heard, found = [], []

    def come():
        for said in (wrong.caller, other.caller, right.answerer, b"GET / HTTP/1.0\r\n\r\n", b""):
            with socket.create_connection(address, 60) as link:
                link.sendall(said)
                link.shutdown(socket.SHUT_WR)
                with suppress(ConnectionResetError):
                    heard.append(link.recv(100))
        found.append(handshake.call([address], own_addresses(), right, time.monotonic() + 60))

    thread = threading.Thread(target=come)
    thread.start()
    let_in = handshake.answer([listener], {1: right}, time.monotonic() + 90)
    thread.join()
    assert not any(heard)
    found[0].sendall(b"x")
    assert let_in[1].recv(1) == b"x"
    for link in (listener, found[0], let_in[1]):
        link.close()


def test_a_host_that_nobody_can_reach_is_said_and_nothing_is_left_open(monkeypatch):
    def call(*words):
        raise OSError("no route to host")

    monkeypatch.setattr(links_module, "_JOIN_SECONDS", 0.3)
    monkeypatch.setattr(links_module, "call", call)
    group = Group(2)

    def live(rank):
        return join_hosts(ThreadComm(group, rank))

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(live, range(2)))
    assert [links for links, _ in told] == [None, None]
    assert len({problem for _, problem in told}) == 1 and told[0][1]


@given(
    ahead=st.floats(-1e6, 1e6),
    drift=st.floats(-50e-6, 50e-6),
    delays=st.lists(st.floats(30e-6, 5e-3), min_size=400, max_size=400),
)
@settings(max_examples=50)
def test_a_clock_that_drifts_is_followed(ahead, drift, delays):
    """50 ppm apart, for 20 s of steps: the estimate stays within a message's time and a second's drift."""
    shortest = 30e-6
    delays = [shortest if number % 10 == 0 else delay for number, delay in enumerate(delays)]

    def other(ours):
        return ours + ahead + drift * ours

    clock = RemoteClock([(0.0, other(shortest), 2 * shortest)])
    for number, delay in enumerate(delays):
        now = 0.05 * (number + 1)
        clock.hear(other(now - delay), now)
        assert clock.ahead - (other(now) - now) == pytest.approx(0.0, abs=shortest + 2.6 * 50e-6 + 1e-9)


addresses = st.ip_addresses(v=4).map(lambda address: ip_interface(f"{address}/24"))


@given(st.lists(addresses, max_size=5), st.lists(addresses, min_size=1, max_size=3))
def test_addresses_in_a_network_of_ours_come_first_and_our_own_last(there, own):
    assume(there)
    ordered = likely_first([(str(one.ip), 1) for one in there], own)
    assert sorted(ordered) == sorted((str(one.ip), 1) for one in there)
    mine = [text in {str(one.ip) for one in own} for text, _ in ordered]
    assert mine == sorted(mine)
