"""Suites and job files, without fio: what is run, in which order, on which files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import SpecError, StorageError
from emulator.plugins.baseline.fio import checked, fio_environment, parse, percentile, side
from emulator.plugins.baseline.fio_suite import FioSuite
from emulator.plugins.baseline.suites import SUITES, Suite, access_of, find_suite
from emulator.units import parse_list


def tool(suite: Suite, *folders: str) -> FioSuite:
    return FioSuite(
        suite=suite, folders=tuple(map(Path, folders)), out=Path("out"), file_bytes=2**20, seconds=1.5,
        ramp_seconds=0.2,
    )  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(SUITES) - {"noisy-neighbour"}))
def test_sequential_comes_before_random(name):
    turns = find_suite(name).turns()
    order = [corner.pattern == "random" for turn in turns for corner in turn.corners.values()]
    assert order == sorted(order)
    assert len({turn.name for turn in turns}) == len(turns)


def test_the_suites_are_those_of_the_briefs():
    accesses = {access_of(*turn.corners.values()) for turn in find_suite("weka2020").turns()}
    assert accesses == {
        "128 KiB sequential read", "4 KiB random read", "4 KiB random write", "4 KiB random 70 % read",
    }  # fmt: skip
    assert (find_suite("weka2020").clones, find_suite("weka2023").clones) == (8, 32)
    alone, readers, together = find_suite("noisy-neighbour").turns()
    corners = [*alone.corners.values(), *readers.corners.values()]
    assert [corner.depth for corner in corners] == [8, 8, 8, 1, 1, 1]
    assert [corner.beside for corner in together.corners.values()] == ["readers"] * 3 + ["writers"] * 3


def test_unknown_words_are_one_line():
    for wrong in (
        lambda: find_suite("five-corners"),
        lambda: parse_list("--depths", "1,x"),
        lambda: parse_list("--depths", "0"),
        lambda: find_suite("noisy-neighbour", (1,)),
    ):
        with pytest.raises(SpecError) as error:
            wrong()
        assert "\n" not in str(error.value)


def test_a_job_file_says_everything():
    suite = find_suite("mixed", (4,), 3)
    fio = tool(suite, "/mnt/a:b")
    lines = fio.job_file(suite, ["random-70-read-4k"], "c1", depth=4, seed=7).splitlines()
    assert lines[0] == "[global]" and "${" not in "".join(lines)
    assert set(lines) >= {
        "ioengine=libaio", "direct=1", "directory=/mnt/a\\:b/feedrate-baseline/c1", "runtime=1500ms",
        "ramp_time=200ms", "randseed=7", "rw=randrw", "rwmixread=70", "bs=4k", "iodepth=4", "numjobs=3",
        "filename_format=job$jobnum.dat", "allow_file_create=0", "size=1048576",
    }  # fmt: skip


@pytest.mark.parametrize(("count", "expected"), [(1, [0] * 6), (2, [0, 1] * 3), (6, [0, 1, 2, 3, 4, 5])])
def test_noisy_neighbours_are_spread_over_folders(count, expected):
    suite = find_suite("noisy-neighbour")
    text = tool(suite, *(f"/n{number}" for number in range(count))).job_file(suite, suite.jobs, "c1")
    lines = [line for line in text.splitlines() if line.startswith("directory=")][1:]
    assert lines == [f"directory=/n{number}/feedrate-baseline/c1" for number in expected]


def test_what_fio_says_when_it_fails_is_one_line():
    with pytest.raises(StorageError) as error:
        checked(1, "fio: engine nope not loadable\n{", "fio: failed to load engine\n")
    assert "failed to load engine" in str(error.value) and "\n" not in str(error.value)
    assert checked(0, 'note\n{"jobs": []}', "") == '{"jobs": []}'
    for text in ("{", '{"jobs": 3}', '{"jobs": [{"error": 5, "jobname": "a"}]}'):
        with pytest.raises(StorageError):
            parse(text)


@given(st.dictionaries(st.integers(1, 10**9), st.integers(1, 1000), min_size=1), st.floats(0.01, 1.0))
def test_the_percentile_is_that_of_the_sorted_requests(histogram, share):
    ordered = sorted(edge for edge, count in histogram.items() for _ in range(count))
    place = max(1, -(-share * len(ordered) // 1))
    assert percentile(histogram, share) == ordered[int(place) - 1]


def test_clients_add_up():
    def client(requests, iops, mean, bins):
        return {
            "total_ios": requests, "iops": iops, "bw_bytes": int(iops * 4096),
            "lat_ns": {"N": requests, "mean": mean, "bins": bins},
        }  # fmt: skip

    fast = client(100, 10.0, 1e6, {"1000000": 100})
    slow = client(300, 30.0, 2e6, {"2000000": 299, "9000000": 1})
    both = side([fast, slow])
    assert both is not None
    assert (both.requests, both.iops, both.bytes_per_second) == (400, 40.0, 40 * 4096)
    assert both.latency_mean == pytest.approx(1.75e-3)
    assert (both.latency_p50, both.latency_p99, both.latency_p9999) == (2e-3, 2e-3, 9e-3)
    assert side([client(0, 0.0, 0.0, {})]) is None


@pytest.mark.parametrize(("before", "after"), [("", ""), ("glibc.malloc.check=1", "glibc.malloc.check=1:")])
def test_fio_reads_into_huge_pages_beside_the_users_own_tunables(monkeypatch, before, after):
    monkeypatch.setenv("GLIBC_TUNABLES", before)
    assert fio_environment()["GLIBC_TUNABLES"] == f"{after}glibc.malloc.hugetlb=1"
