"""Hosts joined by sockets: all meet, nobody else gets in, clocks are followed, and who is gone is missed."""

import queue
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threads import Group, ThreadComm

from emulator import notes
from emulator.errors import LaunchError, RankError
from emulator.launch import links as links_module
from emulator.launch.links import RemoteClock, answer, call, join_hosts, listen, own_addresses


def on_hosts(hosts, work):
    """`work(links, rank)` of the only rank of each of so many hosts."""
    group = Group(hosts)
    over = threading.Barrier(hosts, timeout=60)

    def live(rank):
        with join_hosts(ThreadComm(group, rank)) as links:
            found = work(links, rank)
            over.wait()  # before any of them closes its links
            return found

    with ThreadPoolExecutor(hosts) as pool:
        return list(pool.map(live, range(hosts)))


@pytest.mark.parametrize("hosts", [2, 5])
def test_every_host_learns_the_last_moment_of_all(hosts):
    steps = [[1e9 + (7 * host + 3 * step) % 11 for host in range(hosts)] for step in range(20)]
    learned = on_hosts(hosts, lambda links, rank: [links.meet(ends[rank], hosts) for ends in steps])
    for moments in learned:  # the same clock for all here, known to within the time of a message
        assert moments == pytest.approx([max(ends) for ends in steps], abs=0.4)


@pytest.mark.long
@pytest.mark.parametrize("hosts", [100, 300])
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


def test_a_host_that_ends_is_missed_in_the_next_step(monkeypatch):
    """The others hear of it from rank 0, whose connections end, too."""
    monkeypatch.setattr(links_module, "_GRACE_SECONDS", 0.0)

    def work(links, rank):
        if rank == 1:
            links.close()
            return
        with pytest.raises(RankError, match="lost the connection to host"):
            links.meet(1.0, 3)
        links.close()

    on_hosts(3, work)


def test_a_host_that_keeps_its_connections_but_says_nothing_ends_the_run(monkeypatch):
    """As one whose first rank is stopped. Those that still report are not named."""
    monkeypatch.setattr(notes, "timeout", lambda: 2.0)
    monkeypatch.setattr(links_module, "_PATIENCE_SECONDS", 0.0)
    ended: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(links_module, "report", lambda line, status: ended.put(line))

    def work(links, rank):
        if rank == 1:
            links._end_guard()
        return ended.get(timeout=60) if rank == 0 else None

    assert "rank 1 on host1 has not reported for" in on_hosts(3, work)[0]


def test_strangers_are_sent_away():
    """Who has another secret, or is no host of the run, hears nothing; the right one is let in after them."""
    secret, other = b"c" * 32 + b"a" * 32, b"d" * 32 + b"a" * 32
    heard, found = [], []
    with listen() as listener:
        port = listener.getsockname()[1]

        def come():
            address = own_addresses()[0]
            for said in (other[:32] + b"\1\0\0\0", secret[:32] + b"\2\0\0\0", b"GET / HTTP/1.0\r\n\r\n", b""):
                with socket.create_connection((address, port), 60) as link:
                    link.sendall(said)
                    link.shutdown(socket.SHUT_WR)
                    with suppress(ConnectionResetError):
                        heard.append(link.recv(100))
            found.append(call([address], port, secret, 1))

        thread = threading.Thread(target=come)
        thread.start()
        (let_in,) = answer(listener, secret, 2)
        thread.join()
    assert not any(heard)
    found[0].sendall(b"x")
    assert let_in.recv(1) == b"x"
    for link in (found[0], let_in):
        link.close()


def test_a_host_that_nobody_can_reach_is_refused(monkeypatch):
    def call(*words):
        raise OSError("no route to host")

    monkeypatch.setattr(links_module, "_JOIN_SECONDS", 0.3)
    monkeypatch.setattr(links_module, "call", call)
    group = Group(2)

    def live(rank):
        with pytest.raises(LaunchError, match="1 of 1 hosts did not connect"):
            join_hosts(ThreadComm(group, rank))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(live, range(2)))


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
