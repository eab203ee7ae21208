"""`feedrate baseline rados`: what rados bench printed, added up. A real pool: tests/ceph."""

import json
import shutil
from pathlib import Path

import pytest
from command import feedrate

from emulator.errors import StorageError
from emulator.plugins.baseline.rados import RadosBench

# As Ceph 16.2.15 printed them, less the figures of single seconds.
WRITE = """{"concurrent_ios":"16","object_size":"4194304","op_size":"4194304","seconds_to_run":"2",
"total_time_run":"2.175692","total_writes_made":"191","write_size":"4194304","object_size":"4194304",
"bandwidth":"351.152676","stddev_bandwidth":"82.024387","average_iops":"87","average_latency":"0.179705",
"stddev_latency":"0.091848","max_latency":"0.418611","min_latency":"0.007650"}"""
SEQ = """{"total_time_run":"0.905175","total_reads_made":"191","read_size":"4194304","object_size":"4194304",
"bandwidth":"844.035922","average_iops":"211","average_latency":"0.072850","max_latency":"0.150337",
"min_latency":"0.003279"}"""
BENCH = RadosBench(
    pool="p", conf=Path("c"), out=Path("o"), depths=(1, 16), seconds=2.0, most_bytes=10_000_000
)
TURNS = {turn.name: turn for turn in BENCH.turns}


@pytest.mark.parametrize(("phase", "text"), [("write", WRITE), ("seq", SEQ), ("rand", SEQ)])
def test_figures_are_those_of_rados_bench(phase, text):
    ((read, write),) = BENCH.sides(TURNS[f"{phase}-t16"], [text])
    assert (read is None, write is None) == (phase == "write", phase != "write")
    side = read or write
    printed = json.loads(text)
    assert side.bytes_per_second == pytest.approx(float(printed["bandwidth"]) * 2**20, rel=1e-5)
    assert int(side.iops) == int(printed["average_iops"])
    assert side.latency_mean == pytest.approx(float(printed["average_latency"]))
    assert side.latency_p9999 == float(printed["max_latency"])


def test_clients_add_up():
    ((alone, _),) = BENCH.sides(TURNS["seq-t1"], [SEQ])
    ((both, _),) = BENCH.sides(TURNS["seq-t1"], [SEQ, SEQ.replace("0.150337", "0.9")])
    assert (both.requests, both.iops) == (2 * alone.requests, pytest.approx(2 * alone.iops))
    assert (both.latency_mean, both.latency_p9999) == (pytest.approx(alone.latency_mean), 0.9)


@pytest.mark.parametrize("text", ["", "no JSON", "{}", '{"total_time_run": "x"}', "[]"])
def test_what_is_no_result_is_one_line(text):
    with pytest.raises(StorageError, match="cannot be read"):
        BENCH.sides(TURNS["seq-t1"], [text])


def test_every_depth_writes_before_any_reads_what_it_wrote(monkeypatch):
    monkeypatch.setattr(shutil, "which", str)
    assert list(TURNS) == [f"{phase}-t{depth}" for phase in ("write", "seq", "rand") for depth in (1, 16)]
    calls = [BENCH.bench(turn, "host") for turn in TURNS.values()]
    names = [call[call.index("--run-name") + 1] for call in calls]
    assert names == [f"feedrate-host-{BENCH.nonce}-t{depth}" for _ in range(3) for depth in (1, 16)]
    assert calls[0][-2:] == ["--max-objects", "3"]


def test_what_cannot_work_is_one_clear_line(tmp_path):
    out = tmp_path / "out"
    for words, status, said in (
        (("rados",), 2, "needs a pool"),
        ((tmp_path, "--pool", "p"), 2, "baseline rados --pool p"),
    ):
        done = feedrate("baseline", *words, "--out", out)
        assert done.status == status and said in done.one_line(), done.err
    conf = tmp_path / "ceph.conf"
    conf.write_text("[global]\n")
    done = feedrate("baseline", "rados", "--pool", "p", "--ceph-conf", conf, "--out", out, PATH="/nowhere")
    assert done.status == 7 and "apt install ceph-common" in done.one_line()
    if shutil.which("rados"):
        done = feedrate("baseline", "rados", "--pool", "p", "--ceph-conf", tmp_path / "none", "--out", out)
        assert done.status == 4 and "--ceph-conf" in done.one_line()
    assert not out.exists()
