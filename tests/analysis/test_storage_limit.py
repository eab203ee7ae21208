"""The limit of a model storage of known latency, bandwidth and IOPS is named, and the advice holds on it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from points import host, point

from emulator.analysis.bound import LIMIT_NAMES
from emulator.analysis.storage_limit import Reading, storage_limit
from emulator.record.device import DeviceReads
from emulator.record.result import CLIENT, Flag, Point, Probe

KIB, MIB = 2**10, 2**20


@dataclass(frozen=True)
class Model:
    """A storage in which requests wait for each other only where it is at one of its two limits."""

    latency: float
    bandwidth: float
    iops: float

    def rate(self, size: int, depth: float) -> float:
        """Requests per second."""
        return min(depth / self.latency, self.bandwidth / size, self.iops)

    def probes(self, own: int) -> tuple[Probe, ...]:
        found = []
        for size in (own, 4 * KIB, MIB):
            for depth in (1, 4, 16, 64):
                rate = self.rate(size, depth)
                probe = Probe(
                    request_bytes=size, depth=depth, requests_per_second=rate, latency_seconds=depth / rate
                )
                found.append(probe)
        return tuple(found)

    def point(self, ranks: int, workers: int, size: int, demand: float) -> Point:
        """Ten seconds in which `ranks` accelerators ask for `demand` bytes per second each."""
        rate = min(self.rate(size, ranks * workers) * size, ranks * demand)
        share = rate / (ranks * demand)
        made = point(ranks, share, bytes=int(10 * rate), bytes_per_second=rate, samples=1000)
        return replace(
            made,
            samples_per_second=100.0,
            ideal_samples_per_second=100.0 / share,
            read_seconds=10.0 * ranks * workers,
            open_seconds=0.0,
        )


models = st.builds(
    Model, latency=st.floats(1e-4, 0.03), bandwidth=st.floats(1e8, 1e10), iops=st.floats(1e3, 1e6)
)


@given(models, st.sampled_from([1, 2, 8, 32]), st.sampled_from([1, 2, 8]), st.sampled_from([128 * KIB, MIB]))
def test_the_limit_is_the_one_that_binds(model, ranks, workers, size):
    model = replace(model, iops=min(model.iops, 60 / model.latency))  # that some probe reaches it
    rates = {
        "latency": ranks * workers / model.latency,
        "bandwidth": model.bandwidth / size,
        "iops": model.iops,
    }
    (kind, least), (_, second) = sorted(rates.items(), key=lambda item: item[1])[:2]
    assume(second > 1.5 * least)
    found = model.point(ranks, workers, size, demand=2 * least * size / ranks)
    bound = storage_limit(
        found, model.probes(size), Reading(request_bytes=size, workers=workers, read_ahead=False)
    )
    assert bound is not None and bound.kind == kind
    assert (bound.kind in CLIENT) == (kind == "latency"), "storage with capacity left is not blamed"


@given(st.floats(1e-4, 0.03), st.floats(3.0, 60.0), st.integers(1, 4), st.integers(1, 4))
def test_as_many_workers_as_it_says_feed_as_many_as_it_says(latency, most, ranks, workers):
    size, alone = MIB, MIB / latency
    assume(most > 1.5 * ranks * workers)
    model = Model(latency=latency, bandwidth=most * alone, iops=1e9)
    demand = 2 * alone * workers
    reading = Reading(request_bytes=size, workers=workers, read_ahead=False)
    bound = storage_limit(model.point(ranks, workers, size, demand), model.probes(size), reading)
    assert bound is not None
    more, fed = re.match(r"(\d+) workers .* would (.*)", bound.help).groups()
    then = model.point(ranks, int(more), size, demand).x_ideal
    if fed.startswith("feed"):
        assert int(re.search(r"\d+", fed)[0]) == math.floor(1.005 * ranks * then)
    else:
        assert float(re.search(r"\d+", fed)[0]) == pytest.approx(100 * then, abs=1)


@pytest.mark.parametrize(
    ("samples", "read_ahead", "advised"), [(1, True, True), (1, False, False), (1000, True, False)]
)
def test_a_larger_read_ahead_is_advised_where_there_is_one_and_files_are_large(samples, read_ahead, advised):
    """Where requests of any size take 10 ms, one of 1 MiB brings eight times as much as 128 KiB."""
    size, model = 128 * KIB, Model(latency=0.01, bandwidth=1e10, iops=1e9)
    slow = replace(model.point(1, 1, size, demand=1e8), samples=samples)
    reading = Reading(request_bytes=size, workers=1, read_ahead=read_ahead)
    bound = storage_limit(slow, model.probes(size), reading)
    assert bound is not None and bound.kind == "latency"
    assert ("a read-ahead of 1.05 MB instead of 131 kB" in bound.help) == advised, bound.help


@given(st.floats(1.5, 20.0), st.floats(0.05, 0.9))
def test_files_that_take_longer_to_open_than_to_read_are_metadata(times, share):
    model = Model(latency=1e-3, bandwidth=1e9, iops=1e5)
    alone = 2 * 128 * KIB / model.latency
    read, opened = 20 / (1 + times), 20 * times / (1 + times)
    found = replace(model.point(1, 2, 128 * KIB, alone / share), read_seconds=read, open_seconds=opened)
    reading = Reading(request_bytes=128 * KIB, workers=2, read_ahead=False)
    bound = storage_limit(found, model.probes(128 * KIB), reading)
    assert bound is not None and bound.kind == "metadata"
    faster = re.match(r"opens of ([\d.]+) (ms|s) a sample", bound.help)
    if faster:
        seconds = float(faster[1]) * {"s": 1, "ms": 1e-3}[faster[2]]
        assert read + found.samples * seconds == pytest.approx(20 * share, rel=0.02)
    else:
        assert 20 * share <= read, "reading alone takes too long"
        assert "no time" in bound.help


def test_what_a_library_takes_to_open_a_file_is_what_the_probe_took():
    """Forty seconds of reading a thousand samples, of which opening took 30 ms each."""
    model = Model(latency=1e-3, bandwidth=1e9, iops=1e5)
    late = [
        replace(one, requests_per_second=one.depth / (30e-3 + one.latency_seconds))
        for one in model.probes(128 * KIB)
    ]
    found = replace(model.point(2, 2, 128 * KIB, 1e9), open_seconds=0.0)
    reading = Reading(request_bytes=128 * KIB, workers=2, read_ahead=True)
    assert storage_limit(found, late, reading).kind == "metadata"


def test_bytes_that_the_device_did_not_read_came_from_memory():
    disk = DeviceReads(name="sdb", requests=10, bytes=10**8, seconds=0.1, written_bytes=0)
    found = point(2, 0.5, hosts=(host(device=disk),))
    bound = storage_limit(found, (), Reading(request_bytes=MIB, workers=2, read_ahead=True))
    assert bound.kind == "memory"
    assert LIMIT_NAMES["memory"] in bound.evidence[0]


def test_slow_answers_below_every_limit_are_the_storages_without_a_name():
    """Somebody else used it during the point, not during the probe."""
    model = Model(latency=1e-3, bandwidth=1e9, iops=1e5)
    found = model.point(2, 2, MIB, 4e9)
    slowed = replace(found, bytes=found.bytes // 4, bytes_per_second=found.bytes_per_second / 4)
    reading = Reading(request_bytes=MIB, workers=2, read_ahead=False)
    assert storage_limit(slowed, model.probes(MIB), reading) is None


def test_a_lone_request_beside_a_neighbour_shows_no_capacity_left():
    model = Model(latency=12e-3, bandwidth=4e9, iops=1e6)
    reading = Reading(request_bytes=128 * KIB, workers=2, read_ahead=False)
    found = model.point(1, 2, 128 * KIB, 4e9)
    assert storage_limit(found, model.probes(128 * KIB), reading).kind == "latency"
    flag = Flag(name="neighbour", value=0.5, threshold=0.025, sentence="")
    assert storage_limit(replace(found, flags=(flag,)), model.probes(128 * KIB), reading) is None
    for harmless in (replace(flag, value=0.1), replace(flag, name="client")):
        beside = replace(found, flags=(harmless,))
        assert storage_limit(beside, model.probes(128 * KIB), reading).kind == "latency"


def test_a_rate_that_grew_with_requests_in_flight_is_no_bandwidth():
    """The probe has room for four requests of 4 MiB, as many as the point makes, and got as much."""
    model = Model(latency=12e-3, bandwidth=4e9, iops=1e6)
    probes = [one for one in model.probes(4 * MIB) if one.request_bytes * one.depth <= 16 * MIB]
    reading = Reading(request_bytes=4 * MIB, workers=4, read_ahead=False)
    found = model.point(1, 4, 4 * MIB, 4e9)
    assert storage_limit(found, probes, reading).kind == "latency"
    twice = replace(found, ranks=2)
    assert storage_limit(found, probes, reading, [twice]).kind == "bandwidth", (
        "twice the requests got no more"
    )


@pytest.mark.parametrize(("cores", "kind"), [(0.3, "iops"), (0.98, "latency")])
def test_requests_that_the_probes_process_had_no_time_to_make_are_no_limit_of_iops(cores, kind):
    model = Model(latency=1e-3, bandwidth=1e10, iops=3000)
    probes = [
        replace(one, cores=cores, requests_per_second=1.01 * one.requests_per_second)
        if one.request_bytes == 4 * KIB
        else one
        for one in model.probes(128 * KIB)
    ]
    reading = Reading(request_bytes=128 * KIB, workers=3, read_ahead=True)
    assert storage_limit(model.point(1, 3, 128 * KIB, 1e9), probes, reading).kind == kind


def test_what_memory_answered_is_not_the_storages_bandwidth():
    """17 % from memory: "364 MB/s of the 364 MB/s that the storage gave", on a device of 300 MB/s."""
    model = Model(latency=1e-3, bandwidth=3e8, iops=1e6)
    real = model.point(4, 8, MIB, demand=2e8)
    cached = replace(real, bytes_per_second=real.bytes_per_second / 0.83, read_amplification=0.83)
    bound = storage_limit(cached, model.probes(MIB), Reading(request_bytes=MIB, workers=8, read_ahead=False))
    assert bound is not None and bound.kind == "bandwidth"
    assert "300 MB/s of the 300 MB/s" in bound.evidence[0]
