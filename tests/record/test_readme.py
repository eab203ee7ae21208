"""results/README.md names every field of run.json and every column of its Parquet files, and no other."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from emulator.record import result
from emulator.record.device import DeviceReads
from emulator.record.host import HOST, HOSTS
from emulator.record.out import FAILURE, RESULT
from emulator.record.steps import SPOOL, STEP, STEPS

README = Path(__file__).parents[2] / "results" / "README.md"


def table_under(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    _, _, rest = README.read_text().partition(f"\n{heading}")
    lines = [line for line in rest.partition("\n#")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names_under(heading: str) -> list[str]:
    return [name for row in table_under(heading) for name in re.findall(r"`(\w+)`", row[0])]


KINDS = "RunResult Point HostShare Starved Course Flag Bound Knee Corner Side Checkpoint Probe"


@pytest.mark.parametrize("kind", [*(getattr(result, name) for name in KINDS.split()), DeviceReads])
def test_every_field_is_described_once(kind: type) -> None:
    described = names_under(f"### {kind.__name__}")
    assert sorted(described) == sorted(field.name for field in fields(kind))


def test_every_column_is_described_with_its_type() -> None:
    for file, layout in ((STEPS, STEP), (HOSTS, HOST)):
        described = {row[0].strip("`"): row[1] for row in table_under(f"## {file}")}
        assert described == {name: layout[name].name for name in layout.names or ()}


def test_the_files_and_the_schema_are_named() -> None:
    text = README.read_text()
    for name in (RESULT, STEPS, HOSTS, f"{SPOOL}/part-NNNNN.steps", FAILURE):
        assert f"`{name}`" in text
    assert f"version of this layout; now {result.SCHEMA} " in text
