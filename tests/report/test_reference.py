"""The published tables: they are there, and what was recomputed follows from their own inputs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from emulator.errors import SpecError
from emulator.plugins.page.reference import (
    WORKLOADS,
    PublishedFigure,
    load_reference,
    load_references,
    reference_files,
)

TABLES = (
    "ceph2023",
    "mlperf_storage_v1_0",
    "mlperf_storage_v1_0_unet3d_h100",
    "mlperf_storage_v3_0",
    "noisy2023",
    "weka2020",
    "weka2023",
    "weka_mlperf2023",
)


def test_the_published_tables_are_there() -> None:
    assert tuple(reference_files()) == TABLES
    submissions, figures = load_references(["all"])
    assert len(submissions) == 134
    assert {row.workload for row in submissions} == set(WORKLOADS)
    assert sorted({row.version for row in submissions}) == ["v1.0", "v3.0"]
    assert {figure.kind for figure in figures} == {"published", "recomputed"}


def test_an_unknown_table_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        load_reference("mlperf")
    assert "mlperf_storage_v1_0" in str(error.value)
    for content in ("", "a,b\n1,2\n", "\xff"):
        (tmp_path / "x.csv").write_text(content, encoding="latin-1")
        with pytest.raises(SpecError):
            load_reference(str(tmp_path / "x.csv"))
    header = "system,quantity,value,unit,condition,kind,source\n"
    (tmp_path / "x.csv").write_text(header + "a,b,many,c,d,e,f\n")
    with pytest.raises(SpecError) as error:
        load_reference(str(tmp_path / "x.csv"))
    assert "\n" not in str(error.value)


def figures_of(name: str) -> dict[tuple[str, str, str], float]:
    """(first word of the system, quantity, kind) -> value; of several conditions the last."""
    _, rows = load_reference(name)
    return {(row.system.split()[0], row.quantity, row.kind): row.value for row in rows}


def only(rows: list[PublishedFigure], quantity: str, condition: str) -> float:
    (value,) = [row.value for row in rows if row.quantity == quantity and condition in row.condition]
    return value


def close(value: float, printed: float, digits: float) -> None:
    """`printed` is `value` rounded to steps of `digits`."""
    assert math.isclose(value, printed, abs_tol=digits / 2 * 1.0001), (value, printed)


def test_weka_2023_follows_from_its_inputs() -> None:
    table = figures_of("weka2023")
    for system, drives, size in (("high", 8, 30.72), ("mainstream", 10, 7.68), ("performance", 10, 7.68)):
        raw = 6 * drives * size
        read = table[system, "1 MiB sequential read", "published"]
        close(raw, table[system, "raw capacity", "recomputed"], 0.01)
        close(raw * 4 / 6, table[system, "usable capacity", "recomputed"], 0.01)
        close(read / raw, table[system, "read throughput per raw capacity", "recomputed"], 1e-4)
        random = table[system, "4 KiB random read", "published"] * 1e6
        close(random / raw, table[system, "read IOPS per raw capacity", "published"], 1)
        network = 6 * table[system, "network per node", "published"] / 8
        close(read / network * 100, table[system, "share of the network's line rate", "recomputed"], 1)


def test_weka_2020_follows_from_littles_law() -> None:
    _, rows = load_reference("weka2020")
    close(72 * 32 / 4.6, only(rows, "4 KiB random read latency", "72 jobs"), 0.1)
    close(72 * 16 / 0.696, only(rows, "4 KiB random write latency", "72 jobs"), 1)
    close(72 * 8 / 830, only(rows, "4 KiB random write", "72 jobs"), 1e-3)
    close(72 * 16 * 131_072 / 62e3, only(rows, "128 KiB sequential read latency", "72 jobs"), 1)
    close(487 / 1.63, only(rows, "4 KiB random read latency", "63 % more"), 1)


def test_ceph_2023_follows_from_its_inputs() -> None:
    table = figures_of("ceph2023")
    read, write = 3055 * 1.5, 506 * 1.5 * 1.27  # six nodes; the protection of erasure coding
    close(52_540 / read, table["ratio", "read throughput", "recomputed"], 2e-3)
    close(25_800 / write, table["ratio", "write throughput", "recomputed"], 2e-2)
    close(290 / 35, table["ratio", "read latency", "recomputed"], 1e-3)
    close(1760 / 48, table["ratio", "write latency", "recomputed"], 1e-3)
    flash_read, flash_write = 36 * 10.1 / 52.54, 36 * 10.6 / 25.8
    disk_read, disk_write = 522 / (read / 1000), 522 / (write / 1000)
    close(flash_read, table["6", "power per read throughput", "recomputed"], 1e-3)
    close(flash_write, table["6", "power per write throughput", "recomputed"], 2e-3)
    close(disk_read, table["4", "power per read throughput", "recomputed"], 0.02)
    close(disk_write, table["4", "power per write throughput", "recomputed"], 0.3)
    close(disk_read / flash_read, table["ratio", "power per read throughput", "recomputed"], 0.01)
    close(disk_write / flash_write, table["ratio", "power per write throughput", "recomputed"], 0.1)
    assert math.ceil(6 * 52_540 / read) == table["ratio", "nodes to match the read throughput", "recomputed"]


def test_weka_mlperf_2023_follows_from_its_inputs() -> None:
    table = figures_of("weka_mlperf2023")
    one = 4 * 146_313_216 / 4.59 / 1e6
    close(one, table["6", "demand of one process", "recomputed"], 0.1)
    close(288 * one / 1000, table["6", "demand of 288 processes", "recomputed"], 0.1)
    close(45 / 142 * 100, table["6", "share of fio's read throughput", "recomputed"], 0.1)
    close(45_000 / 288, table["6", "throughput per process", "recomputed"], 1)


def test_a_high_au_does_not_mean_ideal_throughput() -> None:
    """Of the published v1.0 rows with AU of at least 90 %, these many stay under 90 % of ideal throughput."""
    submissions, _ = load_reference("mlperf_storage_v1_0")
    passing = [row for row in submissions if row.au >= 0.90]
    below = [row for row in passing if row.samples_per_second < 0.90 * row.ideal_samples_per_second]
    assert (len(passing), len(below)) == (61, 11)
