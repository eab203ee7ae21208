from __future__ import annotations

from points import host, point

from emulator.analysis.bound import classify

GB = 10**9


def test_fed_ranks_are_bound_by_compute():
    bound = classify(point(4, 0.99, hosts=(host(busy_share=1.0, runqueue=12.0),)))
    assert bound.kind == "compute"
    assert "99.0% of ideal" in bound.evidence[0]


def test_a_busy_client():
    bound = classify(point(4, 0.7, hosts=(host(busy_share=0.97, cpu_seconds=75.0, runqueue=14.0),)))
    assert bound.kind == "client-cpu"
    assert "94% of 8 cores" in bound.evidence[0]
    assert "14.0 threads were runnable" in bound.evidence[0]
    assert "other processes" not in bound.evidence[0]


def test_a_hog_beside_the_ranks_on_one_host_of_two():
    hosts = (host("a"), host("b", busy_share=1.0, runqueue=20.0, cpu_seconds=10.0, wait_seconds=20.0))
    bound = classify(point(8, 0.7, hosts=hosts))
    assert (bound.kind, bound.host) == ("client-cpu", "b")
    assert "most of it by other processes" in bound.evidence[0]


def test_a_full_runqueue_on_an_idle_machine_is_sleepers_waking_together():
    bound = classify(point(4, 0.7, hosts=(host(busy_share=0.1, runqueue=9.0),)))
    assert bound.kind == "storage"


def test_one_slow_network_of_three_is_named():
    hosts = tuple(host(name, wait_seconds=wait) for name, wait in (("a", 1.0), ("b", 20.0), ("c", 1.2)))
    bound = classify(point(12, 0.6, hosts=hosts))
    assert (bound.kind, bound.host) == ("client-link", "b")
    assert "ranks on b waited 50% of the time" in bound.evidence[0]


def test_overshoot_without_waiting_is_the_emulator():
    bound = classify(point(4, 0.8, overshoot_p99=0.3, wait_share=0.02))
    assert bound.kind == "emulator"
    assert "30.0% of a step" in bound.evidence[0]


def test_a_rank_that_starves_alone_as_much_as_in_company():
    bound = classify(point(8, 0.79), [point(1, 0.8), point(2, 0.8)])
    assert bound.kind == "emulator"
    assert "nothing that ranks share" in bound.evidence[1]


def test_a_shared_limit_is_not_the_loader():
    assert classify(point(8, 0.6), [point(1, 0.99), point(4, 0.98)]).kind == "storage"


def test_hosts_that_each_reach_their_own_ceiling():
    alone = point(8, 0.5, hosts=(host("a", ranks=8, bytes=5 * GB),))
    both = point(16, 0.5, hosts=tuple(host(name, ranks=8, bytes=5 * GB) for name in "ab"))
    bound = classify(both, [alone])
    assert bound.kind == "client-link"
    assert bound.host == ""
    assert "one host alone read 500 MB/s" in bound.evidence[1]


def test_a_rate_per_host_that_falls_as_hosts_are_added():
    alone = point(8, 0.9, hosts=(host("a", ranks=8, bytes=5 * GB),))
    both = point(16, 0.5, hosts=tuple(host(name, ranks=8, bytes=3 * GB) for name in "ab"))
    bound = classify(both, [alone])
    assert bound.kind == "storage"
    assert "300 MB/s, and 500 MB/s when there were fewer hosts" in bound.evidence[1]


def test_a_single_host_says_where_its_bytes_came_from():
    local = classify(point(4, 0.6, hosts=(host(device_bytes=990_000_000, nic_bytes=10),)))
    assert "99% of what it read from its own block devices" in local.evidence[1]
    remote = classify(point(4, 0.6, hosts=(host(device_bytes=0, nic_bytes=1_100_000_000),)))
    assert "from its network" in remote.evidence[1]
    assert "cannot be told" in classify(point(4, 0.6)).evidence[1]


def test_a_point_without_host_facts_is_still_classified():
    assert classify(point(4, 0.6, hosts=())).kind == "storage"
