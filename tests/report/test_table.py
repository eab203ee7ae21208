"""The terminal table: right numbers, any width, plain where it is no terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_results import EXAMPLES, plain_sweep, point, result, shaped_sweep

from emulator.record.result import RunResult, Starved
from emulator.report.document import document_of
from emulator.report.table import Column, Table, markdown, to_csv
from emulator.report.terminal import render as render_blocks
from emulator.report.training import hosts_table, points_table
from emulator.units import show_seconds


def render(result: RunResult, width: int, colour: bool = False) -> str:
    return render_blocks(document_of(result).blocks, width, colour)


def test_the_table_holds_the_numbers_of_the_points() -> None:
    lines = render(plain_sweep(), width=80).splitlines()
    (row,) = [line.split() for line in lines if line.strip().startswith("32 ")]
    assert row == ["32", "177.3", "26.0", "812.1", "50.4", "0.503"]


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
        "| name | MB/s per rank | X/X_ideal | mean |",
        "|---|--:|--:|--:|",
        "| a\\|b | 1,235 | 16 | 2.1 ms |",
        "| b | – | 0.5000 | 1 min 30 s |",
    ]


def test_csv_has_figures_in_full_with_their_unit() -> None:
    assert to_csv(TABLE).splitlines() == [
        "name,MB/s per rank,X/X_ideal,mean [s]",
        "a|b,1234.5678,16,0.0021",
        "b,,0.5,90.0",
    ]


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


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_figure_is_ever_cut(name: str, width: int) -> None:
    """Columns are left out whole, and named."""
    text = render_blocks(document_of(EXAMPLES[name]()).blocks, width)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
