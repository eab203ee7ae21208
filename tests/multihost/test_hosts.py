"""Ranks on three hosts: network namespaces with host names of their own. Needs root: make test-multihost."""

import subprocess
import sys
from collections import Counter

import pytest
from command import ANSWERED
from hosts import on_hosts

from emulator.record.out import read_result
from emulator.record.steps import read_steps

pytestmark = pytest.mark.multihost


def test_ranks_run_on_three_hosts_and_the_table_says_so(hosts, tiny, tmp_path):
    out = tmp_path / "out"
    done = on_hosts(
        2, "sweep", tiny, "--workload", "unet3d-tiny", "--loader", "direct", "--counts", "3,6",
        "--steps", 8, "--out", out,
    )  # fmt: skip
    assert done.returncode in ANSWERED, done.stderr
    result = read_result(out)
    assert list(result.environment["hosts"]) == hosts
    for point, per_host in zip(result.points, (1, 2), strict=True):
        assert Counter({share.host: share.ranks for share in point.hosts}) == dict.fromkeys(hosts, per_host)
    parts = ["steps-00001.parquet", "steps-00002.parquet", "steps.parquet"]
    assert sorted(file.name for file in out.iterdir()) == ["run.json", *parts], "each host's rows, no spools"
    assert len(read_steps(out)) == (3 + 6) * 8
    for host in hosts:
        assert host in done.stdout
    shown = subprocess.run(
        [sys.executable, "-m", "emulator", "report", out, "--html", tmp_path / "page.html"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    page = (tmp_path / "page.html").read_text()
    assert all(host in shown.stdout and host in page for host in hosts)


def test_shaped_bandwidth_is_a_nodes_own(hosts, tiny, tmp_path):
    """100 MB/s a node, six ranks of 80 MB/s that read on over borders of epochs: three deliver 300 MB/s."""
    done = on_hosts(
        2, "run", tiny, "--workload", "unet3d-tiny", "--loader", "direct", "--steps", 24,
        "--storage", "shaped:100MB/s", "--set", "loader.refill=never", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert read_result(tmp_path / "out").points[0].bytes_per_second == pytest.approx(300e6, rel=0.05)


def test_a_dataset_that_one_host_lacks_is_one_line(hosts, tiny, tmp_path):
    done = on_hosts(
        1, "run", tmp_path / "nowhere", "--workload", "unet3d-tiny", "--loader", "direct",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert done.stderr.count("feedrate: error:") == 1
