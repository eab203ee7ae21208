"""The page and the plots: every shape of result, nothing from outside, nothing unescaped."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from synthetic_results import EXAMPLES, PAGES, flagged_sweep, plain_sweep, with_steps

from emulator.analysis.point import PARTS, mean_step
from emulator.errors import MissingError
from emulator.record.steps import STEP
from emulator.report.charts import WIDE, chart, extra, svg
from emulator.report.document import document_of
from emulator.report.training import figures, latencies
from emulator.report.training_figures import FIGURES, throughput

SVG = "{http://www.w3.org/2000/svg}"


class Tags(HTMLParser):
    """Start tags with their attributes, and what is open."""

    VOID = frozenset({"meta", "link", "br", "wbr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_and_needs_nothing_from_outside(pages: dict[str, str], name: str) -> None:
    parsed = Tags(pages[name])
    assert parsed.open == []
    names = [tag for tag, _ in parsed.tags]
    assert not set(names) & {"script", "iframe", "img", "object", "base"}
    assert len(pages[name].encode()) < 500_000
    for tag, attributes in parsed.tags:
        for attribute, value in attributes.items():
            assert not attribute.startswith("on"), (tag, attribute)
            if attribute in ("src", "href", "xlink:href"):
                assert (value or "").startswith(("#", "data:")), (tag, value)
    assert "@import" not in pages[name]
    assert not re.search(r"url\((?!#)", pages[name])


@pytest.mark.parametrize("name", PAGES)
def test_ids_are_unique_and_links_lead_somewhere(pages: dict[str, str], name: str) -> None:
    tags = Tags(pages[name]).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for used in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', pages[name]):
        assert (used[0] or used[1]) in ids


def test_a_page_shows_the_answer_the_sources_and_the_command(pages: dict[str, str]) -> None:
    text = pages["flagged"]
    assert "This storage feeds 14 A100s (between 14.6 and 15, 95 % sure)" in text
    assert "MLPerf Storage v1.0, v2.0 unet3d_a100; published, not measured here" in text
    assert "<code>feedrate sweep /mnt/storage/kits19 --workload unet3d-a100</code>" in text  # to a new folder
    assert text.count("Compute waits overslept by 3.4 %") == 1
    assert "AMD EPYC 74F3" in text


def test_names_from_a_result_cannot_become_markup(pages: dict[str, str]) -> None:
    text = pages["long-names"]
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<b>&" not in text


@pytest.mark.parametrize(("name", "mark"), [
    ("flagged", "emulated storage, shaped to"), ("incomplete", "incomplete"),
])  # fmt: skip
def test_every_plot_carries_the_marks(pages: dict[str, str], name: str, mark: str) -> None:
    drawings = re.findall(r"<svg.*?</svg>", pages[name], re.DOTALL)
    assert drawings
    for drawing in drawings:
        shown = " ".join(" ".join(ET.fromstring(drawing).itertext()).split())
        assert mark in shown


def test_the_charts_are_valid_vega_lite() -> None:
    """The report itself draws with Altair's checks off."""
    made = flagged_sweep()
    drawn = figures(with_steps(made))
    assert len(drawn) == len(FIGURES)
    for figure in drawn:
        assert chart(figure, WIDE).to_dict(validate=True)["width"] == WIDE.width


def test_flagged_points_are_diamonds_and_are_explained() -> None:
    figure = throughput(flagged_sweep())
    assert figure is not None and "Hollow diamonds are flagged" in figure.caption
    layers = chart(figure, WIDE).to_dict()["layer"]
    (raised,) = [layer for layer in layers if layer["mark"].get("shape") == "diamond"]
    assert [row["x"] for row in raised["data"]["values"]] == [8, 24, 32]
    assert "<title>8 processes:" in svg(figure), "a pointer on a dot is told its figures"


def test_time_at_a_barrier_is_what_the_last_rank_did() -> None:
    """Two ranks, a barrier a step: one waits for data, the other for it; nothing is lost."""
    rows = np.zeros(4, dtype=STEP)
    rows["rank"], rows["step"], rows["compute"] = [0, 1, 0, 1], [0, 0, 1, 1], 1.0
    rows["wait"] = [3.0, 0.5, 0.0, 0.0]
    rows["overshoot"], rows["barrier"] = [0, 0, 0, 2.0], [0, 2.5, 2.0, 0]
    for sync, expected in (
        ("step", {"compute": 1.0, "wait": 1.5, "barrier": 0.0, "overshoot": 1.0}),
        ("none", {"compute": 1.0, "wait": 0.875, "barrier": 1.125, "overshoot": 0.5}),
    ):
        assert dict(zip(PARTS, mean_step(rows, sync), strict=True)) == pytest.approx(expected)


def test_the_longest_request_is_the_measured_one() -> None:
    made = plain_sweep()
    at = replace(made.points[0], read_latency_max=0.0313)
    longest = latencies(at)
    assert longest[-1] == 0.0313 and max(longest[:-1]) <= 0.0313


def test_pictures_are_written_whole(tmp_path: Path) -> None:
    made = flagged_sweep()
    document_of(with_steps(made)).write(tmp_path / "a.png")
    drawn = (tmp_path / "a.png").read_bytes()
    assert drawn.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(drawn[16:20]) > 2000, "px wide"
    document_of(EXAMPLES["empty"]()).write(tmp_path / "a.svg")
    assert ET.fromstring((tmp_path / "a.svg").read_text()).tag == f"{SVG}svg"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg"]


def test_a_missing_package_is_named_with_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingError) as error:
        extra("vl_convert")
    assert str(error.value) == "the package vl-convert is not installed: pip install 'feedrate[report]'"
