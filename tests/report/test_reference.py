"""The published tables are there; others that are none are refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.errors import SpecError
from emulator.plugins.page.reference import SUBMISSIONS, load_reference, load_references, published_table


def test_the_published_tables_are_there() -> None:
    submissions = load_references(["all"])
    assert {"unet3d_a100", "retinanet_b200"} <= {row.workload for row in submissions}, "of v1.0 and of v3.0"
    assert all(row.x_ideal and row.hosts for row in submissions)


def test_an_unknown_table_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        load_reference("mlperf")
    assert "mlperf_storage_v1_0" in str(error.value)
    for content in ("", "a,b\n1,2\n", "\xff"):
        (tmp_path / "x.csv").write_text(content, encoding="latin-1")
        with pytest.raises(SpecError):
            load_reference(str(tmp_path / "x.csv"))
    (tmp_path / "x.csv").write_text(",".join(SUBMISSIONS) + "\nClosed,A,b,unet3d_a100,many,1,90,1\n")
    with pytest.raises(SpecError) as error:
        load_reference(str(tmp_path / "x.csv"))
    assert "\n" not in str(error.value)


def test_published_results_of_a_workload_are_shown_without_one_of_ones_own() -> None:
    table = published_table("unet3d-b200")
    accelerators = [int(str(row[1])) for row in table.rows]
    assert accelerators == sorted(accelerators, reverse=True) and {row[-1] for row in table.rows} == {
        "mlperf_storage_v3_0"
    }
    of_h100 = published_table("unet3d-h100").rows
    assert len({row[:-1] for row in of_h100}) == len(of_h100), "two tables have some rows"
    with pytest.raises(SpecError, match="retinanet-b200"):
        published_table("unet3d-mi355")
