"""The terminal table: right numbers, any width, plain where it is no terminal."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from synthetic_results import EXAMPLES, plain_sweep, point, result, shaped_sweep

from emulator.record.result import RunResult, Starved
from emulator.report.table import Column, Table, markdown, to_csv
from emulator.report.terminal import Text, result_blocks
from emulator.report.terminal import render as render_blocks
from emulator.report.training import hosts_table, points_table
from emulator.units import show_seconds


def render(result: RunResult, width: int, colour: bool = False) -> str:
    return render_blocks(result_blocks(result), width, colour)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("width", [40, 56, 80, 200])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    text = render(EXAMPLES[name](), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [40, 56, 80])
def test_a_figure_stays_with_its_unit(width: int) -> None:
    """In sentences and in cells, wherever a line is broken."""
    column = Column("what", align="fold")
    cells = [f"{'x' * length} 13 % of 26 GB/s in 4 ms" for length in range(1, 60)]
    text = render_blocks(
        [Text(" ".join(cells)), Table(caption="13 %", columns=(column,), rows=((cells[7],),))], width
    )
    assert not re.search(r"[0-9]\s*\n\s*(%|GB/s|ms)", text) and "13 % of" in text


def test_the_table_holds_the_numbers_of_the_points() -> None:
    lines = render(plain_sweep(), width=80).splitlines()
    (row,) = [line.split() for line in lines if line.strip().startswith("32 ")]
    assert row == ["32", "177.3", "26.0", "812.1", "50.4", "0.503"]


def test_the_knee_closes_the_table() -> None:
    text = render(plain_sweep(), width=200)
    assert text.rstrip().splitlines()[-1].startswith("This storage feeds 14 accelerators")


def test_marks_come_before_the_numbers() -> None:
    lines = render(replace(shaped_sweep(), status="incomplete", reason="rank 3 died"), width=200).splitlines()
    header = next(number for number, line in enumerate(lines) if line.startswith("ranks"))
    before = "\n".join(lines[:header])
    assert "!! Incomplete: rank 3 died" in before
    assert "!! Emulated storage: shaped to 26 GB/s a node" in before


def test_flagged_points_carry_letters_that_are_explained() -> None:
    text = render(EXAMPLES["flagged"](), width=200)
    assert "b  page-cache (rank counts 8, 32): 12 % of the pages" in text
    assert any(line.split()[-2:] == ["b", "c"] for line in text.splitlines() if line.startswith("   32"))


def test_hosts_are_shown_only_when_there_are_several() -> None:
    assert "node000" not in render(plain_sweep(), width=80)
    text = render(EXAMPLES["multi-host"](), width=80)
    assert "12 hosts at 48 ranks, the most waiting first" in text
    assert "12,488 hosts between" in render(EXAMPLES["huge"](), width=80)


def test_what_limits_the_largest_count_is_said_with_the_evidence() -> None:
    text = " ".join(render(EXAMPLES["multi-host"](), width=120).split())
    assert "client link of node005 limits rank counts 28, 32, 48: ranks of node005 waited 33.1% of" in text
    assert "bound by" in text
    assert "bound by" not in render(plain_sweep(), width=120)


def test_a_narrow_terminal_leaves_out_what_the_rates_say_too() -> None:
    assert "samples/s" in render(plain_sweep(), width=80)
    assert "no room for: samples/s" in " ".join(render(plain_sweep(), width=44).split())


def test_colours_only_on_request() -> None:
    assert "\x1b[" in render(shaped_sweep(), width=80, colour=True)


TABLE = Table(
    caption="Two rates",
    columns=(
        Column("name", align="left"),
        Column("MB/s\nper rank"),
        Column("X/\nX_ideal"),
        Column("mean", show_seconds, unit="s"),
    ),
    rows=(("a|b", 1234.5678, 16, 0.0021), ("b", None, 0.5, 90.0)),
)


def test_the_same_table_as_markdown() -> None:
    assert markdown(TABLE).splitlines() == [
        "Two rates",
        "",
        "| name | MB/s per rank | X/X_ideal |       mean |",
        "| ---- | ------------: | --------: | ---------: |",
        "| a\\|b |         1,235 |        16 |     2.1 ms |",
        "| b    |             – |    0.5000 | 1 min 30 s |",
    ]


def test_csv_has_figures_in_full_with_their_unit() -> None:
    assert to_csv(TABLE).splitlines() == [
        "name,MB/s per rank,X/X_ideal,mean [s]",
        "a|b,1234.5678,16,0.0021",
        "b,,0.5,90.0",
    ]


def test_where_there_is_no_room_text_folds_and_figures_stay_whole() -> None:
    columns = (Column("name", align="left"), Column("a"), Column("b"))
    table = Table(caption="", columns=columns, rows=(("x" * 30, 123456.0, 654321.0),))
    text = render_blocks([table], width=30)
    assert "123,456" in text and "654,321" in text and "…" not in text


def test_the_tables_say_what_starved_the_accelerators():
    lost = Starved(seconds=9.0, storage=0.7, cores=0.25, work=0.05)
    starving = point(24, 26e9)
    (host,) = starving.hosts
    found = result([replace(starving, starved=lost, hosts=(replace(host, starved=lost),))])
    for table in (points_table(found), hosts_table(found)):
        place = [column.head for column in table.columns].index("starved by")
        assert table.rows[0][place] == "storage 70 %, cores 25 %"
    fed = replace(starving, x_ideal=0.99, au=0.99, starved=lost)
    assert "starved by" not in [column.head for column in points_table(result([fed])).columns]


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_figure_is_ever_cut(name: str, width: int) -> None:
    """Columns are left out whole, and named."""
    text = render_blocks(result_blocks(EXAMPLES[name]()), width)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
