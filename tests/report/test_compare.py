"""Comparisons: the same figures side by side, published rows of the same workload, differences in words."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from typing import Any

import pytest
from synthetic_results import EXAMPLES, flagged_sweep, long_names_sweep, multi_host_sweep, plain_sweep

from emulator.plugins.page.compare import Comparison, compare, side_by_side
from emulator.plugins.page.differences import differences
from emulator.plugins.page.reference import load_reference
from emulator.record.result import RunResult
from emulator.report.charts import NARROW, WIDE, chart, svg
from emulator.report.table import Cell
from emulator.report.terminal import render as render_blocks


def render(comparison: Comparison, width: int) -> str:
    return render_blocks(comparison.blocks, width)


def two() -> Comparison:
    results = [("fast", multi_host_sweep()), ("slow", flagged_sweep())]
    return compare(results, load_reference("mlperf_storage_v1_0"))


def changed(result: RunResult, **sections: dict[str, Any]) -> RunResult:
    workload = {
        **result.workload,
        **{name: {**result.workload[name], **keys} for name, keys in sections.items()},
    }
    return replace(result, workload=workload)


def test_published_rows_of_the_same_workload_are_on_the_same_scale() -> None:
    rows = [row for row in load_reference("mlperf_storage_v1_0") if row.workload == "unet3d_a100"]
    (ddn,) = [row for row in rows if row.name.startswith("DDN")]
    assert ddn.x_ideal == pytest.approx(713.199 / (72 * 7 / 0.636))
    assert ddn.bytes_per_second == pytest.approx(713.199 * 146_600_628)


def test_counts_that_all_results_have_are_put_side_by_side() -> None:
    table = side_by_side(two().results)
    assert [row[0] for row in table.rows] == ["1 rank", "4 ranks", "12 ranks", "24 ranks", "32 ranks"]
    a, b = multi_host_sweep().points[-2], flagged_sweep().points[-1]
    assert table.texts[-1][-1].endswith(f"({b.bytes_per_second / a.bytes_per_second:.3f})")


def differing(*results: RunResult) -> dict[str, tuple[Cell, ...]]:
    named = [(name, result) for name, result in zip("abc", results, strict=False)]
    return {str(row[0]): row[1:] for row in differences(named).rows}


def test_what_differs_is_listed() -> None:
    other = changed(
        plain_sweep(), accelerator={"step_seconds": 0.323, "name": "H100"}, training={"sync": "none"}
    )
    other = replace(other, loader="torch", storage={**other.storage, "cache": "warm"}, kind="imported")
    found = differing(plain_sweep(), other)
    assert found["accelerator: step"] == ("636 ms", "323 ms")
    assert found["loader"] == ("direct", "torch")
    assert found["storage: cache"] == ("cold", "warm")
    assert found["training: sync"] == ("step", "none")
    assert found["kind"] == ("sweep", "imported")
    comparison = compare([("a", plain_sweep()), ("b", other)])
    assert "b: imported." in comparison.cautions
    assert "What differs" in [table.caption for table in comparison.tables]
    rows = list(csv.DictReader(io.StringIO(comparison.text("csv"))))
    assert [row["result"] for row in rows] == [name for name in "ab" for _ in other.points]
    assert float(rows[-1]["bytes_per_second"]) == other.points[-1].bytes_per_second


def test_machines_differ_by_what_both_results_recorded() -> None:
    def on(**facts: object) -> RunResult:
        return replace(plain_sweep(), environment={**plain_sweep().environment, **facts})

    fast = {"eth0": {"mtu": 9000, "speed": 25_000_000_000}}
    old, new = on(kernel="5.14", governor=None), on(kernel="6.8", governor="powersave", network=fast)
    found = differing(old, new, new)
    assert found["kernel"] == ("5.14", "6.8", "6.8")
    assert found["governor"] == ("none", "powersave", "powersave")
    assert "network" not in found
    assert differing(on(network={"eth0": {"mtu": 1500, "speed": None}}), new)["network"] == (
        "eth0: mtu 1,500",
        "eth0: mtu 9,000; eth0: speed 25,000,000,000",
    )


def test_results_that_differ_by_their_storage_alone_need_no_caution() -> None:
    assert compare([("a", plain_sweep()), ("b", multi_host_sweep())]).cautions == ()
    run = replace(plain_sweep(), kind="run")
    assert differing(plain_sweep(), run) == {}
    assert compare([("a", plain_sweep()), ("b", run)]).cautions == ()


@pytest.mark.parametrize("width", [44, 100])
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    comparison = compare([("plain", plain_sweep()), ("a" * 70, EXAMPLES[name]())])
    assert max(map(len, render(comparison, width=width).splitlines())) <= width


def test_the_charts_are_valid_vega_lite() -> None:
    (figure,) = two().figures
    assert chart(figure, WIDE).to_dict(validate=True)["width"] == WIDE.width


def test_the_page_needs_nothing_from_outside_and_escapes_names() -> None:
    text = compare([("<script>", long_names_sweep()), ("b", EXAMPLES["empty"]())]).text("html")
    assert "<script" not in text
    assert not re.search(r'(src|href)="(?!#|data:)', text)
    assert "<svg" in text


def with_knee(n_au: float | None, interval: tuple[float, float] | None) -> RunResult:
    made = plain_sweep()
    assert made.knee is not None
    knee = replace(made.knee, kind="knee" if n_au else "beyond", fed=32, n_au=n_au, interval=interval)
    return replace(made, knee=knee)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ((10.0, (9.5, 10.5)), (10.8, (10.2, 11.4)), "no difference that these runs can show"),
        ((10.0, (9.5, 10.5)), (12.0, (11.4, 12.6)), "the knee moves from 10.0 to 12.0 accelerators (+20 %)"),
        ((10.0, None), (12.0, (11.4, 12.6)), "no difference that these runs can show"),
        ((10.0, (9.5, 10.5)), (None, None), "the knee moves from 10.0 to at least 32"),
        ((40.0, (38.0, 42.0)), (None, None), "knees of 40.0 and at least 32 accelerators: no difference"),
    ],
)
def test_a_knee_moves_only_when_the_intervals_are_apart(
    a: tuple[float, tuple[float, float] | None], b: tuple[float | None, tuple[float, float] | None], said: str
) -> None:
    (sentence,) = compare([("a", with_knee(*a)), ("b", with_knee(*b))]).moves
    assert said in sentence


def test_a_knee_below_the_first_count_moves_too() -> None:
    before, after = with_knee(8.0, (7.6, 8.4)), with_knee(5.0, (4.8, 5.2))
    starving = replace(after.points[0], ranks=1, x_ideal=0.7)
    knee = replace(after.knee, kind="below", n_au=None, fed=None, starved=1)
    below = replace(after, knee=knee, points=(starving,))
    (sentence,) = compare([("before", before), ("below", below)]).moves
    assert "moves from 8.00 to below 1 accelerators" in sentence


def test_a_reference_without_the_workload_is_said() -> None:
    made = plain_sweep()
    tiny = replace(made, workload={**made.workload, "name": "unet3d-tiny"})
    submissions = load_reference("mlperf_storage_v1_0")
    assert "No published row ran unet3d-tiny." in compare([("a", tiny)], submissions).cautions


@pytest.mark.long
def test_every_plot_of_a_comparison_carries_the_marks() -> None:
    for figure in two().figures:
        for size in (WIDE, NARROW):
            drawing = svg(figure, size)
            assert "emulated storage" in drawing
            assert "NaN" not in drawing and "undefined" not in drawing
