"""`feedrate baseline --servers`: many clients through real fio --server processes on this host."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest
from command import feedrate

from emulator.errors import SpecError, StorageError
from emulator.plugins.baseline.fio_servers import Server, apart, parse_servers
from emulator.record.out import read_result

with_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
QUICK = ("--quick", "--size", "4MiB", "--runtime", "100ms", "--ramp", "0s")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Two fio servers."""
    found = [free_port(), free_port()]
    running = [
        subprocess.Popen(
            ["fio", f"--server=ip:127.0.0.1,{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for port in found
    ]
    try:
        deadline = time.monotonic() + 10
        while not all(map(answers, found)) and time.monotonic() < deadline:
            time.sleep(0.02)
        yield found
    finally:
        for process in running:
            process.terminate()
            process.wait(timeout=10)


@with_fio
@pytest.mark.long
def test_servers_are_clients_with_folders_of_their_own_and_add_up(ports, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    names = f"127.0.0.1:{ports[0]},localhost:{ports[1]}"
    done = feedrate(
        "baseline", data, *QUICK, "--suite", "noisy-neighbour", "--servers", names, "--clients", "1,2",
        "--keep", "--out", out,
    )  # fmt: skip
    assert done.status == 0, done.err
    assert len(list(data.glob("feedrate-baseline/*/job5.dat"))) == 2
    result = read_result(out)
    assert result.environment["clients"] == [f"127.0.0.1-{ports[0]}", f"localhost-{ports[1]}"]
    assert sorted(corner.clients for corner in result.baseline) == [1] * 12 + [2] * 12
    for corner in result.baseline:
        assert len(corner.files) == corner.clients
        told = [json.loads((out / file).read_text())["jobs"] for file in corner.files]
        name = f"{corner.block_bytes // 1024}k-random-{'read' if corner.read else 'write'}-qd{corner.depth}"
        groups = [group for jobs in told for group in jobs if group["jobname"] == name]
        for word, side in (("read", corner.read), ("write", corner.write)):
            if side is not None:
                assert side.iops == pytest.approx(sum(group[word]["iops"] for group in groups))
                assert side.requests == sum(group[word]["total_ios"] for group in groups)


@with_fio
def test_a_client_that_cannot_be_reached_is_one_line_before_anything_is_written(ports, tmp_path):
    silent = free_port()
    done = feedrate(
        "baseline",
        tmp_path,
        *QUICK,
        "--servers",
        f"127.0.0.1:{ports[0]},127.0.0.1:{silent}",
        "--out",
        tmp_path / "out",
    )
    assert done.status == 4
    assert f"no fio answers on 127.0.0.1, port {silent}" in done.one_line()
    assert "fio --server" in done.one_line()
    assert not list(tmp_path.iterdir())


def test_servers_are_read():
    assert parse_servers("node1, node-2.lab:99") == (
        Server(host="node1", port=8765),
        Server(host="node-2.lab", port=99),
    )
    assert [one.name for one in parse_servers("a,b:99")] == ["a", "b-99"]
    for wrong in ("", "a,,b", "a:b", "a:0", "a:70000", "../x", "-a", "a,a:8765", "a b"):
        with pytest.raises(SpecError) as error:
            parse_servers(wrong)
        assert "\n" not in str(error.value)


def test_an_answer_without_a_client_is_one_line():
    server = parse_servers("a")
    for text in ("{", "[]", "{}", '{"client_stats": [{"jobname": "x", "hostname": "b", "port": 8765}]}'):
        with pytest.raises(StorageError) as error:
            apart(text, server)
        assert "\n" not in str(error.value)
