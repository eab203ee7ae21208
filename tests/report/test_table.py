"""The terminal table: right numbers, any width, plain where it is no terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_results import EXAMPLES, plain_sweep, shaped_sweep

from emulator.report.tables import render


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("width", [40, 56, 80, 200])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    text = render(EXAMPLES[name](), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text


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
    assert "samples/s" not in render(plain_sweep(), width=44)


def test_colours_only_on_request() -> None:
    assert "\x1b[" in render(shaped_sweep(), width=80, colour=True)
