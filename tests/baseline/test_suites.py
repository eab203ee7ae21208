"""Suites and job files, without fio: what is run, in which order, on which files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import SpecError, StorageError
from emulator.plugins.baseline.fio import (
    Setting,
    checked,
    fio_environment,
    job_file,
    layout_file,
    parse,
    percentile,
    side,
)
from emulator.plugins.baseline.suites import SUITES, find_suite, tuned, turns
from emulator.units import parse_list

SETTING = Setting(folder=Path("/mnt/a:b/c1"), file_bytes=2**20, seconds=1.5, ramp_seconds=0.2)


@pytest.mark.parametrize("name", sorted(set(SUITES) - {"noisy-neighbour"}))
def test_writes_come_before_reads_and_sequential_before_random(name):
    planned = turns(SUITES[name], (1, 2))
    order = [
        (task.access.pattern == "random", task.access.read_share) for turn in planned for task in turn.tasks
    ]
    assert order == sorted(order)
    assert len({turn.name for turn in planned}) == len(planned)
    assert {turn.clients for turn in planned} == {1, 2}


def test_unknown_words_are_one_line():
    for wrong in (
        lambda: find_suite("five-corners"),
        lambda: parse_list("--depths", "1,x"),
        lambda: parse_list("--depths", "0"),
        lambda: tuned(SUITES["noisy-neighbour"], (1,), None),
    ):
        with pytest.raises(SpecError) as error:
            wrong()
        assert "\n" not in str(error.value)


def test_a_job_file_says_everything():
    (turn,) = turns(tuned(SUITES["mixed"], (4,), 3), (1,))[3:4]
    lines = job_file(SETTING, turn.tasks, seed=7).splitlines()
    assert lines[0] == "[global]"
    assert set(lines) >= {
        "ioengine=libaio", "direct=1", "directory=/mnt/a\\:b/c1", "runtime=1500ms", "ramp_time=200ms",
        "randseed=7", "rw=randrw", "rwmixread=70", "bs=4096", "iodepth=4", "numjobs=3",
        "filename_format=job$jobnum.dat", "allow_file_create=0", "size=1048576",
    }  # fmt: skip
    layout = layout_file(SETTING, 3).splitlines()
    assert "rw=write" in layout and "end_fsync=1" in layout and "time_based=1" not in layout


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
    assert percentile([{str(k): n for k, n in histogram.items()}], share) == ordered[int(place) - 1]


def test_clients_add_up():
    def one(requests, iops, mean, bins):
        return {
            "total_ios": requests,
            "iops": iops,
            "bw_bytes": int(iops * 4096),
            "lat_ns": {"N": requests, "mean": mean, "bins": bins},
        }

    found = side([one(100, 10.0, 1e6, {"1000000": 100}), one(300, 30.0, 2e6, {"2000000": 299, "9000000": 1})])
    assert found is not None
    assert (found.requests, found.iops, found.bytes_per_second) == (400, 40.0, 40 * 4096)
    assert found.latency_mean == pytest.approx(1.75e-3)
    assert found.latency_p9999 == pytest.approx(9e-3)
    assert side([one(0, 0.0, 0.0, {})]) is None


@pytest.mark.parametrize(("before", "after"), [("", ""), ("glibc.malloc.check=1", "glibc.malloc.check=1:")])
def test_fio_reads_into_huge_pages_beside_the_users_own_tunables(monkeypatch, before, after):
    monkeypatch.setenv("GLIBC_TUNABLES", before)
    assert fio_environment()["GLIBC_TUNABLES"] == f"{after}glibc.malloc.hugetlb=1"
