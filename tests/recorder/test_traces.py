"""Traces of others: a profiler's and Darshan's, whole, damaged and hostile."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from command import feedrate

from emulator.errors import FeedrateError
from emulator.plugins.recorder import traces


def span(name: str, begin: float, length: float, **more: object) -> dict[str, object]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 2, "ts": begin, "dur": length, **more}


def trace(batches: int = 20, step: float = 20_000) -> dict[str, object]:
    """As PyTorch 2 writes it: microseconds; each batch takes 1 ms to be handed over."""
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    events = [span(name, 5e9 + number * step, 1000) for number in range(batches)]
    others = [span(f"ProfilerStep#{number}", 5e9 + number * step, step) for number in range(batches)]
    return {
        "schemaVersion": 1,
        "traceEvents": [{"ph": "M", "name": "process_name"}, *events, *others],
        "x": 1,
    }


def test_steps_of_a_profilers_trace(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(trace(), indent=1))
    with gzip.open(tmp_path / "t.json.gz", "wt") as file:
        json.dump(trace(), file)
    for name in ("t.json", "t.json.gz"):
        found = traces.chrome_steps(tmp_path / name)
        table = found.steps
        assert (len(table), found.in_turn, found.busy, found.profiled) == (20, False, None, 20)
        assert table["wait"][3] == pytest.approx(1e-3) and table["between"][3] == pytest.approx(19e-3)
    done = feedrate("import", tmp_path / "t.json.gz", "--out", tmp_path / "job", "-w", "unet3d-tiny")
    assert done.status == 0, done.err
    assert "step: 20 ms" in done.out
    assert 'provenance = "recorded"' in (tmp_path / "job" / "workload.toml").read_text()


def test_kernels_give_the_step_time_of_a_job_that_starves(tmp_path):
    """A batch comes every 100 ms, after 90 ms of waiting, and the GPU then runs for 28 of 30 ms."""
    written = trace(step=100_000)
    for event in [one for one in written["traceEvents"] if "__next__" in one["name"]]:
        event["dur"] = 90_000
        begin = event["ts"] + 92_000
        written["traceEvents"] += [
            span("conv", begin, 15_000, cat="kernel"),
            span("copy", begin + 10_000, 8_000, cat="gpu_memcpy"),  # beside the first kernel
            span("conv", begin + 20_000, 10_000, cat="kernel"),
        ]
    (tmp_path / "t.json").write_text(json.dumps(written))
    found = traces.chrome_steps(tmp_path / "t.json")
    assert found.busy == pytest.approx(0.28) and not found.in_turn
    done = feedrate("import", tmp_path / "t.json", "--out", tmp_path / "job", "-w", "unet3d-tiny")
    assert done.status == 0, done.err
    assert "the GPU was busy for 28% of the time" in done.out and "for a batch for 90%" in done.out
    assert "step: 32 ms" in done.out and "waited for data for 90% of the time" in done.out
    assert 'provenance = "recorded"' in (tmp_path / "job" / "workload.toml").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no trace"),
        ("hello", "no trace"),
        ('{"a": 1}', "no trace"),
        ('{"traceEvents": {}}', "no trace"),
        ('{"traceEvents": [{"ph": "X"}', "cut off"),
        ('{"traceEvents": [{"ph": "X"', "cut off"),
        ('{"traceEvents": [' + '{"a":' * 100_000, "deep"),
        ('{"traceEvents": []}', "no spans"),
        ('[{"a": "' + "x" * 20_000_000, "an event has more"),
        (json.dumps([span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1, -5)]), "no time"),
        (
            json.dumps([span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10**400, 1)]),
            "integer overflow|no time",
        ),
    ],
)
def test_what_is_no_trace_is_one_line(text, said, tmp_path):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(FeedrateError, match=said):
        traces.chrome_steps(tmp_path / "t.json")


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "MOST_BYTES", 10 * 2**20)
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(b"[" + b" " * (64 * 2**20)))
    with pytest.raises(FeedrateError, match="more than"):
        traces.chrome_steps(tmp_path / "t.json.gz")


def test_mutated_traces_end_in_one_line_or_in_steps(tmp_path):
    draw, whole = random.Random(3), gzip.compress(json.dumps(trace()).encode())
    for number in range(150):
        data = bytearray(whole if number % 2 else json.dumps(trace()).encode())
        for _ in range(draw.randint(1, 8)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        path = tmp_path / ("t.json.gz" if number % 2 else "t.json")
        path.write_bytes(data[: draw.randrange(len(data))] if number % 5 == 0 else data)
        try:
            traces.chrome_steps(path)
        except FeedrateError as error:
            assert "\n" not in str(error)


def test_a_log_of_darshan(tmp_path):
    # PyDarshan brings matplotlib, seaborn and pandas, 200 MB; make test-record installs it.
    darshan = pytest.importorskip("darshan", exc_type=ImportError)
    log = Path(darshan.__file__).parent / "examples/example_logs/dxt.darshan"
    loader = traces.darshan_reads(log)
    assert (loader.reads.files, loader.reads.files_bytes) == (98, pytest.approx(101e6, rel=0.01))
    (tmp_path / "bad.darshan").write_bytes(log.read_bytes()[:5000])
    with pytest.raises(FeedrateError, match="not a readable log of Darshan"):
        traces.darshan_reads(tmp_path / "bad.darshan")
