"""Every output of a result gives the same answer, and an output that disagrees is found."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic_results import SAMPLE_BYTES, point, result

from emulator.analysis.answer import Answer, at_threshold
from emulator.analysis.knee import find_knee
from emulator.api import Result
from emulator.cli.options import plain_result
from emulator.record.result import Bound, RunResult
from emulator.report.document import document_of
from emulator.report.junit import write_junit
from emulator.report.metrics import as_openmetrics
from emulator.report.terminal import render
from emulator.report.training import csv_table
from emulator.report.view import answer_of

DEMAND = 7 / 0.636 * SAMPLE_BYTES


@st.composite
def results(draw: st.DrawFn) -> RunResult:
    limit = draw(st.floats(0.05, 30.0)) * DEMAND
    points = []
    for ranks in draw(st.lists(st.integers(1, 24), min_size=1, max_size=6)):
        made = point(ranks, limit)
        limits = ("bandwidth", "client-cpu", "latency")
        kind = "compute" if made.x_ideal > 0.95 else draw(st.sampled_from(limits))
        points.append(replace(made, bound=Bound(kind=kind, evidence=())))  # type: ignore[arg-type]
    several = len({at.ranks for at in points}) > 1
    made = result(points, knee=find_knee(points) if several else None)
    asked = {"place": "/mnt/ai", "up_to": 64}
    environment = {**made.environment, **draw(st.sampled_from([{}, {"asked": asked}]))}
    return replace(made, environment=environment)


def outputs(made: RunResult, required: int, folder: Path, *, page: bool = False) -> dict[str, str]:
    """What each output prints of a result, by the name of the output."""
    report = document_of(made, required, points=csv_table(made), openmetrics=as_openmetrics(made, required))
    answer = report.answer
    assert answer.gate is not None
    write_junit(folder / "gate.xml", "storage", [answer.gate], answer.lines)
    printed = {
        "terminal": render(report.blocks, width=1000),
        "quiet": report.answer.line,
        "markdown": report.text("md"),
        "json": json.dumps(plain_result(made, folder, answer), default=str),
        "junit": (folder / "gate.xml").read_text(),
        "openmetrics": report.text("prom"),
        "csv": report.text("csv"),
        "python": html.unescape(Result(made)._repr_html_()) + repr(Result(made)),
    }
    return {**printed, "page": report.text("html")} if page else printed


def disagreements(printed: dict[str, str], answer: Answer) -> set[str]:
    """The outputs that say anything else than `answer`."""
    assert answer.gate is not None
    verdict = answer.gate.line
    sentences = [answer.sentence, answer.limit, answer.advice, *answer.notes]
    low, high = answer.interval or (None, None)
    ends = [answer.number, low, high]
    suite = ElementTree.fromstring(printed["junit"])
    rows = list(csv.DictReader(io.StringIO(printed["csv"])))
    gauges = dict(re.findall(r'feedrate_fed_accelerators\{.*end="(\w+)"\} (\S+)', printed["openmetrics"]))
    number = re.search(r"feedrate_answer_accelerators\{.*\} (\S+)", printed["openmetrics"])
    status = re.search(r"feedrate_gate_status\{.*\} (\S+)", printed["openmetrics"])

    def same(texts: list[str], figures: list[float | None]) -> bool:
        return [float(text) if text not in ("", "+Inf") else None for text in texts] == figures

    agrees = {
        "terminal": all(text in printed["terminal"] for text in (verdict, *sentences)),
        "quiet": printed["quiet"] == verdict,
        "markdown": printed["markdown"].lstrip().startswith(verdict)
        and all(text in printed["markdown"] for text in sentences),
        "json": json.loads(printed["json"])["answer"] == json.loads(json.dumps(answer.as_plain())),
        "junit": (suite.find(".//testcase") is not None)
        and verdict in "".join(suite.itertext())
        and all(text in (suite.findtext("system-out") or "") for text in sentences),
        "openmetrics": status is not None
        and float(status[1]) == answer.gate.status
        and same([number[1] if number else ""], ends[:1])
        and (answer.interval is None or same([gauges["low"], gauges["high"]], ends[1:])),
        "csv": all(same([row["answer"], row["answer_low"], row["answer_high"]], ends) for row in rows),
        "python": all(text in printed["python"] for text in sentences),
    }
    if "page" in printed:
        page = html.unescape(printed["page"])
        agrees["page"] = all(text in page for text in (verdict, *sentences))
    return {name for name, right in agrees.items() if not right}


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(results(), st.integers(1, 30), st.sampled_from([None, 0.5, 0.97]))
def test_every_output_gives_the_same_answer(tmp_path, made, required, threshold):
    made = at_threshold(made, threshold)
    assert not disagreements(outputs(made, required, tmp_path), answer_of(made, required))


SWEEP = result([point(n, 5.5 * DEMAND) for n in (1, 4, 5, 6, 8)])
SWEEP = replace(SWEEP, knee=find_knee(SWEEP.points))


@pytest.mark.parametrize("threshold", [None, 0.5])
def test_the_page_gives_it_too(tmp_path, threshold):
    made = at_threshold(SWEEP, threshold)
    assert not disagreements(outputs(made, 5, tmp_path, page=True), answer_of(made, 5))


def test_an_output_that_keeps_another_threshold_is_found(tmp_path):
    """`report --threshold` changed the gate, and knee and advice stayed as they were."""
    right, other = at_threshold(SWEEP, 0.5), outputs(SWEEP, 7, tmp_path, page=True)
    printed = outputs(right, 7, tmp_path, page=True)
    for name in printed:
        mutant = {**printed, name: other[name]}
        assert disagreements(mutant, answer_of(right, 7)) == {name}


def test_an_output_with_another_verdict_is_found(tmp_path):
    printed, other = (outputs(SWEEP, required, tmp_path) for required in (3, 30))
    for name in printed.keys() - {"csv", "python"}:  # which have no verdict
        assert disagreements({**printed, name: other[name]}, answer_of(SWEEP, 3)) == {name}
