"""results/README.md names the files of a result and the columns of its Parquet files, and no others."""

from __future__ import annotations

from pathlib import Path

from emulator.record import result
from emulator.record.out import FAILURE, RESULT
from emulator.record.steps import SPOOL, STEP, STEPS

README = Path(__file__).parents[2] / "results" / "README.md"


def table_under(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    _, _, rest = README.read_text().partition(f"\n{heading}")
    lines = [line for line in rest.partition("\n#")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_column_is_described_with_its_type() -> None:
    described = {row[0].strip("`"): row[1] for row in table_under(f"## {STEPS}")}
    assert described == {name: STEP[name].name for name in STEP.names or ()}


def test_the_files_and_the_schema_are_named() -> None:
    text = README.read_text()
    for name in (RESULT, STEPS, f"{SPOOL}/part-NNNNN.steps", FAILURE):
        assert f"`{name}`" in text
    assert f"version of this layout; now {result.SCHEMA} " in text
