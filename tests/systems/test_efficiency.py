"""Every figure that the documents derive, recomputed from their own inputs; and those that do not follow."""

from pathlib import Path

import pytest
from command import feedrate
from hypothesis import given
from hypothesis import strategies as st

from emulator.config.workload import load_workload
from emulator.plugins.systems.efficiency import (
    TB,
    compare_systems,
    cost,
    efficiency,
    matches,
    nodes_to_match,
    ratio,
    raw_bytes,
    usable_bytes,
    watts,
)
from emulator.plugins.systems.system import System, load_system

ROOT = Path(__file__).parents[2]
NVME, HDD = load_system("ceph-nvme"), load_system("ceph-hdd")
WEKA = {name: load_system(f"weka-{name}") for name in ("high-capacity", "mainstream", "performance")}


def figures(system, fed=None):
    return {figure.name: figure.value for figure in efficiency(system, fed)}


@pytest.mark.parametrize(
    ("found", "derived", "digits"),
    [
        (raw_bytes(NVME) / TB, 1152, 1),
        (raw_bytes(HDD) / TB, 576, 1),
        (figures(NVME)["read per usable TB"] * 1e3, 69.13, 0.01),
        (figures(NVME)["write per usable TB"] * 1e3, 33.95, 0.01),
        (figures(HDD)["read per usable TB"] * 1e3, 15.91, 0.01),
        (figures(HDD)["write per usable TB"] * 1e3, 2.635, 1e-3),
        (watts(NVME, reading=False), 382, 1),
        (watts(HDD, reading=True) / 4, 87, 1),
        (figures(NVME)["power per raw TB"], 0.3313, 1e-4),
        (figures(HDD)["power per raw TB"], 0.6042, 1e-4),
        (figures(NVME)["power per usable TB"], 0.502, 1e-3),
        (figures(HDD)["power per usable TB"], 1.8125, 1e-4),
        (figures(NVME)["power per read"], 6.920, 1e-3),
        (figures(HDD)["power per read"], 113.91, 0.01),
        (figures(NVME)["power per write"], 14.791, 1e-3),
        (nodes_to_match(760, 48 * 4, 4), 16, 1),
        (nodes_to_match(52_540, 4583, 6), 69, 1),
        (nodes_to_match(25_800, 964, 6), 161, 1),
        (figures(NVME)["cost per raw TB"] / figures(HDD)["cost per raw TB"], 2.025, 1e-3),
    ],
)
def test_ceph_2023(found, derived, digits):
    assert found == pytest.approx(derived, abs=digits / 2 * 1.001 + 1e-9)


@pytest.mark.parametrize(
    ("system", "raw", "usable", "read", "iops", "network"),
    [
        ("high-capacity", 1474.56, 983.04, 0.0760, 3526, 75),
        ("mainstream", 460.8, 307.2, 0.2257, 11068, 69),
        ("performance", 460.8, 307.2, 0.4926, 14323, 76),
    ],
)
def test_weka_2023(system, raw, usable, read, iops, network):
    spec = WEKA[system]
    assert raw_bytes(spec) / TB == pytest.approx(raw)
    assert raw_bytes(spec) / TB * 4 / 6 == pytest.approx(usable)
    assert figures(spec)["read per raw TB"] == pytest.approx(read, abs=5.01e-5)
    assert figures(spec)["read IOPS per raw TB"] == pytest.approx(iops, abs=0.51)
    line = spec.storage.nodes * spec.storage.node_bandwidth
    assert 100 * spec.storage.bandwidth / line == pytest.approx(network, abs=0.7)


@given(st.floats(1, 1e12), st.floats(1, 1e12), st.integers(1, 10_000))
def test_matching_nodes_are_enough_and_no_more(target, have, nodes):
    found = nodes_to_match(target, have, nodes)
    assert found * have / nodes >= target * (1 - 1e-6)
    assert (found - 1) * have / nodes < target * (1 + 1e-6)


def test_writes_are_matched_as_stated_and_with_the_others_protection():
    """Three copies send 3 bytes for one, 4+2 sends 1.5: with that half as many nodes do."""
    found = matches(HDD, NVME)
    assert found == {"usable capacity": 16, "reads": 69, "writes": 204, "writes, with 4+2 protection": 102}


def test_what_the_file_does_not_hold_is_none():
    empty = System()
    assert (raw_bytes(empty), usable_bytes(empty), cost(empty), watts(empty, reading=True)) == (None,) * 4
    assert all(figure.value is None for figure in efficiency(empty))
    assert not matches(empty, NVME) and ratio(1.0, 0.0) is None


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "systems").glob("*.toml")), ids=lambda p: p.stem)
def test_every_system_that_ships_answers_and_says_what_it_lacks(path):
    found = compare_systems([load_system(path.stem)])
    assert any(row[0] == "read, GB/s" for row in found.tables[0].rows)
    text = " ".join(found.missing)
    if path.stem == "ai-2023-weka-6-nodes":
        for key in ("hardware.drive_capacity", "hardware.drive_power_read", "hardware.node_cost"):
            assert key in text
    if path.stem == "ceph-nvme":
        assert "storage.read_iops" in text and "hardware.node_cost" not in text


def test_a_system_that_limits_nothing_feeds_nobody_knows_how_many():
    found = compare_systems([System(name="paper")], load_workload("unet3d-a100"))
    assert "paper lacks a bandwidth that limits unet3d-a100" in found.missing
    assert not found.tables[0].rows


def test_the_command_shows_systems_beside_each_other():
    words = ["-s", "ceph-nvme", "-s", "ceph-hdd", "--match", "ceph-nvme", "-w", "unet3d-a100"]
    done = feedrate("efficiency", *words)
    assert done.status == 0, done.err
    assert "6.920" in done.out and "113.9" in done.out
    assert [line.split()[-1] for line in done.out.splitlines() if line.startswith("reads")] == ["69"]
