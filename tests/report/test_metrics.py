"""Results for other programs: OpenMetrics by its reference parser, the dashboard, JUnit."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from synthetic_results import PAGES, plain_sweep

from emulator.analysis.gate import MET, UNKNOWN, Verdict
from emulator.errors import NOT_MET
from emulator.record.result import Bound
from emulator.report.junit import write_junit
from emulator.report.metrics import as_openmetrics

parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="make install brings it")
text_string_to_metric_families = parser.text_string_to_metric_families
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", PAGES)
def test_every_result_is_openmetrics(name: str) -> None:
    """The parser refuses a sample that stands twice, and text after the end."""
    assert list(text_string_to_metric_families(as_openmetrics(PAGES[name]())))


def test_figures_and_names_survive() -> None:
    made = replace(plain_sweep(), label='a "quoted" \\ line\nand another')
    samples = [s for family in text_string_to_metric_families(as_openmetrics(made)) for s in family.samples]
    assert {sample.labels["label"] for sample in samples} == {made.label}
    rates = {s.labels["ranks"]: s.value for s in samples if s.name == "feedrate_throughput_bytes_per_second"}
    assert rates == {str(point.ranks): pytest.approx(point.bytes_per_second) for point in made.points}


def test_the_dashboard_asks_for_metrics_that_are_written() -> None:
    board = json.loads((ROOT / "launch" / "grafana.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"feedrate_\w+", target["expr"])
    }
    made, limit = plain_sweep(), Bound(kind="storage", evidence=())
    known = replace(made, points=tuple(replace(p, bound=limit) for p in made.points))
    written = {family.name for family in text_string_to_metric_families(as_openmetrics(known))}
    assert asked and asked <= written


def test_junit_counts_failures_and_errors(tmp_path: Path) -> None:
    verdicts = [Verdict(asked=f"--require {n}", status=n, evidence="<why>") for n in (MET, UNKNOWN, NOT_MET)]
    write_junit(tmp_path / "junit.xml", "/mnt/ai", verdicts)
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    assert suite.find("testcase/failure").get("message") == verdicts[2].line  # type: ignore[union-attr]
