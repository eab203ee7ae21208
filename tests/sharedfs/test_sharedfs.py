"""A shared file system over three hosts: MooseFS, served by the first. Needs root: make test-sharedfs."""

import time

import pytest
from command import ANSWERED, feedrate
from hosts import HOSTS, lab, on_hosts, start_on_hosts

from emulator.record.out import read_result
from emulator.record.steps import read_steps

pytestmark = pytest.mark.sharedfs

TIMEOUT = 6
"""--storage-timeout, seconds."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folder of a dataset on MooseFS, the same path on every host."""
    folder = tmp_path_factory.mktemp("mfs")
    lab("hosts.sh", "up", len(HOSTS))
    try:
        lab("sharedfs.sh", "up", folder, len(HOSTS))
        here = folder / f"mnt-{HOSTS[0]}" / "tiny"
        done = feedrate("generate", here, "--recipe", "tiny", "--files", 96)
        assert done.status == 0, done.err
        assert feedrate("verify", here).status == 0
        yield folder / "data" / "tiny"
    finally:
        lab("sharedfs.sh", "down", folder, len(HOSTS))
        lab("hosts.sh", "down")


def sweep(data, out):
    done = on_hosts(
        2, "sweep", data, "--workload", "unet3d-tiny", "--loader", "direct", "--counts", "3,6",
        "--steps", 12, "--set", "accelerator.step_seconds=0.4", "--out", out,
    )  # fmt: skip
    assert done.returncode in ANSWERED, done.stderr
    return read_result(out), done.stdout


def test_three_hosts_read_one_file_system(data, tmp_path):
    result, _ = sweep(data, tmp_path / "out")
    assert [share.host for share in result.points[-1].hosts] == list(HOSTS)
    assert result.environment["dataset_mount"]["type"].startswith("fuse")
    assert result.points[-1].bytes == sum(share.bytes for share in result.points[-1].hosts)


def test_the_host_with_a_slow_link_is_named(data, tmp_path):
    """Two ranks on it ask for 20 MB/s; its link carries 24 Mbit/s."""
    lab("sharedfs.sh", "cap", HOSTS[2], "24mbit")
    try:
        result, shown = sweep(data, tmp_path / "out")
    finally:
        lab("sharedfs.sh", "uncap", HOSTS[2])
    point = result.points[-1]
    assert point.bound.host == HOSTS[2], point.bound
    assert point.bound.kind == "client-link", point.bound
    assert "uneven-hosts" in {flag.name for flag in point.flags}
    assert "limits" in shown and HOSTS[2] in shown


def test_a_chunk_server_that_is_killed_ends_the_run_with_one_error(data, tmp_path):
    """Reads of MooseFS hang until a chunk server is back: every host sees it, one says it."""
    folder, out = data.parents[1], tmp_path / "out"
    run = start_on_hosts(
        2, "run", data, "--workload", "unet3d-tiny", "--loader", "direct", "--epochs", 10000,
        "--storage-timeout", f"{TIMEOUT}s", "--out", out,
    )  # fmt: skip
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and not ((out / "spool").is_dir() and len(read_steps(out))):
        time.sleep(0.2)
    lab("sharedfs.sh", "kill", folder)
    began = time.monotonic()
    try:
        _, errors = run.communicate(timeout=300)
        took = time.monotonic() - began
    finally:
        lab("sharedfs.sh", "revive", folder)
        run.kill()
    assert run.returncode not in ANSWERED
    (line,) = [line for line in errors.splitlines() if "feedrate: error:" in line]
    assert "has not answered for" in line and str(data) in line
    assert read_result(out).status == "incomplete"
    assert took < TIMEOUT + 10
