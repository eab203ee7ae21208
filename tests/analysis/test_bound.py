from __future__ import annotations

from dataclasses import replace

import pytest
from points import host, point

from emulator.analysis.bound import StorageShape, classify
from emulator.analysis.evidence import limited_by_client
from emulator.analysis.storage_limit import Reading
from emulator.record.result import Probe, Starved

GB = 10**9


HOG = host("b", busy_share=1.0, cpu_seconds=10.0, wait_seconds=20.0)


@pytest.mark.parametrize(
    ("found", "kind", "only"),
    [
        (point(4, 0.99, hosts=(host(busy_share=1.0),)), "compute", ""),
        (point(4, 0.7, hosts=(host(busy_share=0.97, cpu_seconds=75.0),)), "client-cpu", ""),
        (point(8, 0.7, hosts=(host("a"), HOG)), "client-cpu", "b"),
        (point(4, 0.7, hosts=(host(busy_share=0.1),)), "storage", ""),
        (point(4, 0.6, hosts=()), "storage", ""),
    ],
)
def test_without_schedstat_the_load_of_the_hosts_decides(found, kind, only):
    bound = classify(found)
    assert (bound.kind, bound.host) == (kind, only)


@pytest.mark.parametrize(("alone", "each", "kind"), [(0.5, 5 * GB, "client-link"), (0.9, 3 * GB, "storage")])
def test_hosts_are_compared_with_one_alone(alone, each, kind):
    one = point(8, alone, hosts=(host("a", ranks=8, bytes=5 * GB),))
    bound = classify(point(16, 0.5, hosts=tuple(host(name, ranks=8, bytes=each) for name in "ab")), [one])
    assert (bound.kind, bound.host) == (kind, "")


def lost(**shares):
    """Return causes of a point's starving: shares, of which the storage has the rest."""
    return Starved(seconds=20.0, **{"storage": 1 - sum(shares.values()), **shares})


SHAPE = StorageShape(rate=400e6, request_seconds=0.0025)


def test_emulated_storage_at_its_cap_is_the_limit_whatever_the_client_did():
    """Points at exactly the shaped 400 MB/s were called "client CPU" on a busy laptop."""
    busy = (host(busy_share=1.0, cpu_seconds=75.0),)
    starved = lost(cores=0.9)
    at_cap = point(8, 0.625, bytes_per_second=400e6, hosts=busy, starved=starved)
    assert classify(at_cap, shape=SHAPE).kind == "bandwidth"
    assert "400 MB/s of the 400 MB/s" in classify(at_cap, shape=SHAPE).evidence[0]
    below = point(8, 0.45, bytes_per_second=290e6, hosts=busy, starved=starved)
    assert classify(below, shape=SHAPE).kind == "client-cpu"
    hosts = tuple(host(name, starved=lost()) for name in "ab")
    both = point(16, 0.625, bytes_per_second=795e6, hosts=hosts)
    assert classify(both, shape=SHAPE).kind == "bandwidth"


@pytest.mark.parametrize(
    ("shares", "rate", "busy", "kind"),
    [
        ({"cores": 0.4, "work": 0.2}, 320e6, 0.6, "bandwidth"),
        ({"cores": 0.4, "work": 0.2}, 320e6, 0.9, "client-cpu"),
        ({"cores": 0.4, "work": 0.2}, 280e6, 0.6, "client-cpu"),
        ({"quota": 0.6}, 320e6, 0.3, "cpu-quota"),
        ({"loader": 0.7}, 320e6, 0.3, "loader"),
    ],
)
def test_waiting_for_cores_that_are_idle_at_times_is_no_limit_beside_a_storage_without_reserves(
    shares, rate, busy, kind
):
    """Emulated storage near its rate, or real storage near the most of its probe."""
    starved = lost(**shares)
    hosts = (host(busy_share=busy, starved=starved),)
    found = point(8, 0.5, bytes_per_second=rate, hosts=hosts, starved=starved, read_seconds=160.0)
    assert classify(found, shape=SHAPE).kind == kind
    probes = [
        Probe(request_bytes=size, depth=depth, requests_per_second=rate, latency_seconds=depth / rate)
        for size, rate in ((2**20, 381.0), (2**12, 20_000.0))
        for depth in (1, 4, 16)
    ]
    reading = Reading(request_bytes=2**20, workers=2, read_ahead=False)
    assert classify(found, probes=probes, reading=reading).kind == kind


@pytest.mark.parametrize(
    ("shares", "kind"),
    [
        ({}, "storage"),
        ({"cores": 0.3, "work": 0.1}, "storage"),
        ({"cores": 0.7}, "client-cpu"),
        ({"quota": 0.5, "work": 0.3}, "cpu-quota"),
        ({"link": 0.8}, "client-link"),
        ({"loader": 0.8}, "loader"),
        ({"work": 0.9}, "loader"),
        ({"cores": 0.3, "loader": 0.15, "work": 0.1}, "client-cpu"),
        ({"steps": 0.9}, "compute"),
        ({"barrier": 0.9}, "emulator"),
    ],
)
def test_the_largest_share_is_named(shares, kind):
    starved = lost(**shares)
    found = point(4, 0.6, hosts=(host(starved=starved),), starved=starved)
    named = classify(found)
    assert named.kind == kind
    assert limited_by_client(replace(found, bound=named)) == (kind not in ("storage", "compute"))


@pytest.mark.parametrize(
    ("ranks", "shares", "load", "kind"),
    [
        # Hogs that give way: the host is full, its ranks got a core whenever they wanted one.
        (4, {}, {"busy_share": 1.0, "cpu_seconds": 1.0}, "storage"),
        (4, {"work": 0.9}, {"cpu_seconds": 75.0}, "client-cpu"),
        # One worker process, which waits for the kernel to move it as often as a thread beside it wakes.
        (1, {"work": 0.7, "cores": 0.27}, {"busy_share": 0.6, "cpu_seconds": 30.0}, "loader"),
        (1, {"work": 0.7, "cores": 0.27}, {"busy_share": 0.97, "cpu_seconds": 30.0}, "client-cpu"),
    ],
    ids=["hogs that give way", "the last core", "beside idle cores", "beside busy cores"],
)
def test_work_is_the_clients_cpu_where_no_core_was_left_over(ranks, shares, load, kind):
    starved = lost(**shares)
    found = point(ranks, 0.5, hosts=(host(starved=starved, **load),), starved=starved)
    assert classify(found).kind == kind


def test_one_host_of_many_is_named():
    starving, sleeping = lost(cores=0.9), lost()
    hosts = (host("a", starved=sleeping), host("b", starved=starving))
    named = classify(point(8, 0.6, hosts=hosts, starved=lost(cores=0.6)))
    assert (named.kind, named.host) == ("client-cpu", "b")


def test_storage_that_answers_at_once_is_asked_too_little():
    shape = StorageShape(rate=2e9, request_seconds=0.041)
    found = point(2, 0.5, starved=lost(), hosts=(host(starved=lost()),), read_latency={"42170": 400})
    assert classify(found, shape=shape).kind == "latency"
    queued = point(2, 0.5, starved=lost(), hosts=(host(starved=lost()),), read_latency={"133352": 400})
    assert classify(queued, shape=shape).kind == "storage"


def test_a_training_that_is_late_is_not_bound_by_compute():
    """The storage had every batch in time; the processes that were to train had no cores."""
    late = lost(storage=0.0, cores=1.0)

    def found(x_ideal, held_up):
        step = {"compute": x_ideal, "overshoot": held_up, "wait": 1 - x_ideal - held_up}
        made = point(16, x_ideal, step=step, hosts=(host(starved=late),), starved=late)
        return replace(made, bound=classify(made))

    assert found(0.54, 0.46).bound.kind == "client-cpu" and limited_by_client(found(0.54, 0.46))
    kinds = [found(x_ideal, 1 - x_ideal).bound.kind for x_ideal in (0.91, 0.89)]
    assert kinds == ["compute", "client-cpu"], "handing batches over alone may cost 5 % with torch"
    assert found(0.93, 0.0).bound.kind == "client-cpu"


def test_what_else_runs_on_a_busy_host_is_said():
    own = classify(point(4, 0.7, hosts=(host(busy_share=0.97, cpu_seconds=75.0),)))
    other = classify(point(8, 0.7, hosts=(host("a"), HOG)))
    assert ["other processes" in bound.evidence[0] for bound in (own, other)] == [False, True]
