"""Verdicts of gates as a JUnit report, which CI systems show beside their tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from emulator.analysis.gate import UNKNOWN, Verdict
from emulator.errors import NOT_MET
from emulator.record.out import write_output
from emulator.text import printable


def write_junit(path: Path, subject: str, verdicts: Sequence[Verdict], lines: Sequence[str] = ()) -> None:
    """Write a test case for each verdict: a failure when not met, an error when it cannot be told.

    `lines` is the answer as text, which CI systems show as the suite's output.

    Raises StorageError.
    """
    suite = ElementTree.Element("testsuite", name="feedrate", tests=str(len(verdicts)))
    for name, status in (("failures", NOT_MET), ("errors", UNKNOWN)):
        suite.set(name, str(sum(verdict.status == status for verdict in verdicts)))
    for verdict in verdicts:
        names = {"classname": printable(subject), "name": printable(verdict.asked)}
        case = ElementTree.SubElement(suite, "testcase", names)
        line = printable(verdict.line)
        tag = {NOT_MET: "failure", UNKNOWN: "error"}.get(verdict.status)
        # CI systems show the message of a failure, and the text of a success.
        message = {"message": line} if tag else {}
        ElementTree.SubElement(case, tag or "system-out", message).text = line
    if lines:
        ElementTree.SubElement(suite, "system-out").text = printable("\n".join(lines))
    write_output(path, ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n")
