"""A checkpoint run in the terminal, on a page, and beside a sweep in one folder."""

import pytest
from synthetic_results import plain_sweep

from emulator.plugins.checkpoint.job import Report, checkpoint_of
from emulator.plugins.checkpoint.report import answer, setting, tables
from emulator.plugins.page.compare import compare
from emulator.plugins.page.report import report
from emulator.record.out import write_result
from emulator.record.result import RunResult
from emulator.report.document import document_of
from emulator.report.terminal import render


def of(*seconds: float, size: int = 10**9, commit: float = 0.0, direction: str = "write", number: int = 0):
    reports = [Report(size=size, seconds=rank_seconds, cpu_seconds=0.2) for rank_seconds in seconds]
    return checkpoint_of(direction, number, 1, 0.0, reports, commit)


def run(*checkpoints) -> RunResult:
    return RunResult(
        kind="checkpoint", status="complete", version="0", created="2026-11-21T00:00:00Z",
        command=("feedrate",), loader="checkpoint", environment={}, checkpoints=checkpoints,
        workload={"name": "llama3-8b", "title": "Checkpoints: Llama 3", "scale": "1/100", "subset": True},
        dataset={"path": "/mnt/ai", "bytes": 2 * 10**9}, storage={"cache": "cold", "direct": True},
    )  # fmt: skip


def test_duration_is_the_slowest_ranks_and_throughput_its():
    checkpoint = of(2.0, 4.0, 3.0, commit=0.5)
    assert (checkpoint.seconds, checkpoint.fastest_seconds, checkpoint.slowest_rank) == (4.0, 2.0, 1)
    assert checkpoint.bytes_per_second == pytest.approx(3e9 / 4)
    assert (checkpoint.bytes, checkpoint.ranks) == (3 * 10**9, 3)
    assert checkpoint.cpu_seconds == pytest.approx(0.6)


def test_the_terminal_says_means_and_each():
    result = run(of(2.0, 4.0, commit=1.0), of(2.0, 2.0, number=1), of(1.0, 1.0, direction="read"))
    text = render(document_of(result).blocks)
    assert answer(result).sentence == (
        "2 ranks write a checkpoint of 2 GB in 3 s (750 MB/s) and restore it in 1 s (2 GB/s). "
        "Reads are compared by checksum."
    )
    assert "scaled to 1/100" in setting(result) and "subset" in setting(result)
    mean, singly = tables(result)
    assert [row[0] for row in mean.texts] == ["2 writes", "1 read"]
    assert mean.texts[0][2:6] == ("3 s", "2 s", "3.5 s", "0.750")
    assert [row[0] for row in singly.texts] == ["write 0", "write 1", "read 0"]
    assert "Mean of the checkpoints" in text and "Each checkpoint" in text
    assert answer(result).question in document_of(result).text("html")


def test_two_runs_are_compared_by_their_answers():
    results = [("ssd", run(of(2.0, 4.0))), ("hdd", run(of(9.0, 9.0)))]
    text = render(compare(results).blocks)
    assert "in 4 s (500 MB/s)" in text and "in 9 s (222 MB/s)" in text and "nothing was measured" not in text


def test_it_stands_beside_the_sweep(tmp_path):
    for name, result in (("train", plain_sweep()), ("save", run(of(2.0)))):
        (tmp_path / name).mkdir()
        write_result(tmp_path / name, result)
    page = report(tmp_path / "train", [tmp_path / "save"])
    assert [table.caption for table in page.tables[-2:]] == [
        "Mean of the checkpoints (save)",
        "Each checkpoint (save)",
    ]
