"""Text from elsewhere in every format: its reader gets it back as text, and nothing else."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from xml.etree import ElementTree

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from emulator.analysis.gate import Verdict
from emulator.errors import NOT_MET
from emulator.report.junit import write_junit
from emulator.report.table import Column, Table, markdown, to_csv
from emulator.report.terminal import Text, as_markdown
from emulator.text import label_text, printable

HOSTILE = (
    "\x1b[31mred", "<script>alert(1)</script>", "![x](http://evil/x.png)", "[x](javascript:1)", "a\n# title",
    "a\n===", "a\n---", "- item", "1. item", "> quote", "=HYPERLINK(1)", "`code`", "a | b", "<!-- -->", "***",
    "&lt;b&gt;", '"\\\n', "\ud800", "\ufffe", "]]>", "~~~", "    code", "x\\", "\r\n", "# x", "| a |\n|---|",
)  # fmt: skip
texts = st.one_of(
    st.sampled_from(HOSTILE),
    st.lists(st.sampled_from([*HOSTILE, "a", " ", "\n", "<", "`"]), max_size=4).map("".join),
    st.text(st.characters(codec=None), max_size=20),
)
LIST = {"bullet_list", "ordered_list", "list_item"}
TABLE = {"table", "thead", "tbody", "tr", "th", "td"}
PLAIN = {"inline", "text", "softbreak", "text_special"} | {
    f"{part}_{end}" for part in ("paragraph", *LIST) for end in ("open", "close")
}
TABLES = PLAIN | {f"{part}_{end}" for part in TABLE for end in ("open", "close")}


def kinds(document: str) -> set[str]:
    """The kinds of all parts of a Markdown document."""
    found = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(document)
    return {token.type for token in found} | {child.type for token in found for child in token.children or ()}


@given(text=texts)
def test_markdown_shows_it_as_text(text: str) -> None:
    table = Table(caption=text, columns=(Column("name"), Column("x")), rows=((text, 1.0), ("b", None)))
    assert kinds(markdown(table)) <= TABLES, markdown(table)
    assert kinds(as_markdown([Text(text)])) <= PLAIN, as_markdown([Text(text)])
    cells = [token.content for token in MarkdownIt("commonmark").enable("table").parse(markdown(table))]
    assert cells.count("b") == 1


@given(text=texts)
def test_csv_has_it_in_one_cell_that_no_spreadsheet_computes(text: str) -> None:
    made = to_csv(Table(caption="", columns=(Column("name"), Column("x")), rows=((text, -1.5),)))
    cell, number = list(csv.reader(io.StringIO(made, newline="")))[1]
    assert number == "-1.5" and cell.removeprefix("'") == printable(text).removeprefix("'")
    assert not cell.startswith(("=", "+", "-", "@")) and "\x1b" not in made


@given(text=texts)
def test_openmetrics_has_it_in_one_label(text: str) -> None:
    made = f'# TYPE a gauge\na{{label="{label_text(text)}"}} 1.0\n# EOF\n'
    (family,) = text_string_to_metric_families(made)
    assert family.samples[0].labels == {"label": printable(text)}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(text=texts)
def test_junit_is_xml(text: str, tmp_path: Path) -> None:
    verdict = Verdict(asked=text, status=NOT_MET, evidence=text)
    write_junit(tmp_path / "junit.xml", text, [verdict], [text])
    case = ElementTree.parse(tmp_path / "junit.xml").getroot().find("testcase")
    assert case is not None and case.get("name") == printable(text)
