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
    saved = result.checkpoints
    assert [checkpoint.direction for checkpoint in saved] == ["write", "write", "read", "read"]
    assert {(checkpoint.ranks, checkpoint.hosts) for checkpoint in saved} == {(6, 3)}
    assert len({checkpoint.bytes for checkpoint in saved}) == 1
    assert not list((tmp_path / "data").iterdir())
