"""Checkpoints by ranks on three hosts. Needs root: make test-multihost."""

import pytest
from hosts import on_hosts

from emulator.record.out import read_result

pytestmark = pytest.mark.multihost


def test_each_host_reads_what_another_one_wrote(hosts, tmp_path):
    (tmp_path / "data").mkdir()
    done = on_hosts(
        2, "checkpoint", tmp_path / "data", "-m", "llama3-8b", "--scale", "1/4000", "--writes", 2,
        "--reads", 2, "--pause", "0s", "--shift", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = read_result(tmp_path / "out")
    assert list(result.environment["hosts"]) == hosts
    assert [(one.direction, one.ranks, one.hosts) for one in result.checkpoints] == [
        ("write", 6, 3), ("write", 6, 3), ("read", 6, 3), ("read", 6, 3),
    ]  # fmt: skip
    assert len({one.bytes for one in result.checkpoints}) == 1
    assert not list((tmp_path / "data").iterdir())
