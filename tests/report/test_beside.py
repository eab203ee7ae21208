"""A sweep, a baseline and a system file on one page; training as a share of what fio reads."""

from dataclasses import replace
from pathlib import Path

import pytest
from command import feedrate
from synthetic_results import multi_host_sweep, plain_sweep, result

from emulator.errors import StorageError
from emulator.plugins.baseline.report import against, answer, figures, setting, tables
from emulator.plugins.page.compare import compare
from emulator.plugins.page.report import report
from emulator.record.out import write_result
from emulator.record.result import Corner, RunResult, Side
from emulator.report.charts import WIDE, Figure, chart, svg
from emulator.report.document import document_of
from emulator.report.terminal import render
from emulator.report.training_figures import by_ranks, mean_demand

FIGURES = {
    "sequential": lambda baseline: figure_named("baseline-sequential", baseline),
    "random": lambda baseline: figure_named("baseline-random", baseline),
    "latency": lambda baseline: figure_named("baseline-latency", baseline),
}


def figure_named(name: str, baseline: RunResult) -> Figure | None:
    return next((figure for figure in figures(baseline) if figure.name == name), None)


def side(rate: float, block: int) -> Side:
    return Side(
        requests=1000, iops=rate / block, bytes_per_second=rate, latency_mean=2e-3, latency_p9999=9e-3
    )


def corner(rate: float, block: int, read_share: float, depth: int = 8, **changes: object) -> Corner:
    both = {
        "read": side(rate * read_share, block) if read_share else None,
        "write": side(rate * (1 - read_share), block) if read_share < 1 else None,
    }
    pattern = "random" if block < 2**16 else "sequential"
    return Corner(
        pattern=pattern, block_bytes=block, read_share=read_share, depth=depth, jobs=32, clients=12,
        **{**both, **changes},
    )  # fmt: skip


def weka() -> RunResult:
    """The figures of the performance cluster of 2023, as if fio had measured them."""
    corners = (
        corner(109e9, 2**20, 0.0), corner(227e9, 2**20, 1.0, depth=1), corner(200e9, 2**20, 1.0),
        corner(185e9, 2**17, 1.0), corner(4.1e6 * 4096, 4096, 0.7, depth=16),
    )  # fmt: skip
    made = result(())
    return replace(
        made, kind="baseline", points=(), knee=None, loader="fio", baseline=corners, flags=(),
        workload={"name": "weka2023", "title": "fio, as the WekaFS brief", "engine": "libaio", "jobs": 32},
        dataset={"path": "/mnt/storage"}, storage={"cache": "cold", "direct": True},
        environment={"fio": "fio-3.33", "clients": [f"c{n}" for n in range(12)]},
    )  # fmt: skip


def test_the_maximum_of_each_workload_is_over_all_depths():
    most, every = tables(weka())
    assert [row[:2] for row in most.texts] == [
        ("1 MiB sequential write", "8"), ("1 MiB sequential read", "1"), ("128 KiB sequential read", "8"),
        ("4 KiB random 70 % read", "16"),
    ]  # fmt: skip
    assert len(every.rows) == 5
    assert most.texts[1][4] == "227" and most.texts[3][3] == "4,100"
    assert most.texts[3][5] == "2 ms / 2 ms"
    assert "227 GB/s" in answer(weka()).sentence and "12 clients x 32 jobs" in setting(weka())


def test_training_is_a_share_of_what_fio_reads():
    training = multi_host_sweep()
    found = against(training, weka())
    most = max(point.bytes_per_second for point in training.points)
    one = mean_demand(by_ranks(training))
    shares = {row[0].partition(",")[0]: row for row in found.texts}
    assert shares["fio"][1:] != () and found.texts[0][1:3] == ("227", "100.0")
    assert float(shares["training at most"][2]) == pytest.approx(most / 227e9 * 100, abs=0.06)
    knee = training.knee.n_au * training.workload["training"]["au_threshold"] * one
    assert float(shares["training at the knee"][2]) == pytest.approx(knee / 227e9 * 100, abs=0.06)
    assert float(found.texts[0][3].replace(",", "")) == pytest.approx(227e9 / one, rel=6e-3)


def test_a_folder_gives_one_page_with_all_of_it(tmp_path: Path):
    for name, one in (("sweep", plain_sweep()), ("fio", weka())):
        (tmp_path / name).mkdir()
        write_result(tmp_path / name, one)
    found = report(tmp_path / "sweep", [tmp_path / "fio"])
    shown = [table.caption for table in found.tables]
    assert [name for name, _ in found.of_each] == ["fio"]
    assert shown[-3:] == [
        "Training beside fio (fio)",
        "Maximum of each workload (fio)",
        "Every queue depth (fio)",
    ]
    html = found.text("html")
    drawn = [figure.name for figure in found.figures]
    assert drawn[-len(FIGURES) :] == [f"baseline-{name}" for name in FIGURES]
    assert {f'id="plot-baseline-{name}"' in html for name in FIGURES} == {True}
    assert all(caption in html for caption in shown if caption)
    done = feedrate("report", tmp_path / "sweep", tmp_path / "fio", "--html", tmp_path / "all.html")
    assert done.status == 0, done.err
    assert "Training beside fio" in done.out
    assert "128 KiB sequential read" in (tmp_path / "all.html").read_text()


@pytest.mark.parametrize(("rate", "lines"), [(40e9, [40e9]), (227e9, [])])
def test_what_fio_reads_is_a_line_unless_it_is_far_above_the_runs(tmp_path: Path, rate, lines):
    slow = replace(weka(), baseline=(corner(rate, 2**20, 1.0),))
    for name, one in (("sweep", plain_sweep()), ("fio", slow)):
        (tmp_path / name).mkdir()
        write_result(tmp_path / name, one)
    figure = report(tmp_path / "sweep", [tmp_path / "fio"]).figures[0]
    assert [line.y for line in figure.levels] == lines
    assert all(line < figure.y.high for line in lines)


def test_a_baseline_alone_and_what_is_none(tmp_path: Path):
    assert "1 MiB sequential read" in render(document_of(weka()).blocks, 60)
    assert "Nothing was measured" not in document_of(weka()).text("html")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match="no result"):
        report(tmp_path / "empty")


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_valid_and_absent_where_there_is_nothing(name):
    import altair

    figure = FIGURES[name](weka())
    with altair.utils.schemapi.debug_mode(True):
        assert chart(figure, WIDE).to_dict()["title"]["text"] == figure.title
    assert svg(figure).startswith("<svg") and figure.caption
    assert FIGURES[name](replace(weka(), baseline=())) is None


def test_baselines_are_compared_by_workload():
    half = replace(weka(), baseline=tuple(corner(rate, 2**20, 1.0) for rate in (113.5e9, 50e9)))
    found = compare([("first", weka()), ("second", half)])
    (table,) = [table for table in found.tables if table.caption.startswith("The same figures")]
    rows = {row[:2]: row[2:] for row in table.texts}
    assert rows["1 MiB sequential read", "GB/s"] == ("227", "114 (0.500)")
    assert found.answer.sentence == "second: 114 GB/s, first: 227 GB/s (-50 %)."
    assert not any("nothing was measured" in caution for caution in found.cautions)


def test_there_is_nothing_to_compare_without_reads_or_points():
    writes = replace(weka(), baseline=weka().baseline[:1])
    assert not against(plain_sweep(), writes).rows
    assert not against(result(()), weka()).rows
    assert "no reads" in answer(writes).sentence


def test_a_baseline_without_a_training_has_its_own_figures_only():
    assert [figure.name.partition("-")[2] for figure in figures(weka())] == list(FIGURES)
