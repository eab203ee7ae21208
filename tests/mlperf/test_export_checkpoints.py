"""A checkpoint run out in MLPerf Storage's layout and units."""

import json
from dataclasses import asdict, replace

import pytest
import yaml

from emulator.config.checkpoint import load_checkpoint_model
from emulator.errors import SpecError
from emulator.plugins.checkpoint.job import Report, checkpoint_of
from emulator.plugins.mlperf.export import export_result
from emulator.plugins.mlperf.rules import self_check
from emulator.record.out import write_result
from emulator.record.result import Checkpoint, RunResult

GIB = 2**30
SIZE = round(104.7 * GIB)
"""Of all ranks."""


def run(count: int = 10, ranks: int = 8, **workload: object) -> RunResult:
    """Sizes of Llama 3 8B; writes take 4 and 2 s in turn, reads 1 s."""

    def made(direction: str, number: int, seconds: float) -> Checkpoint:
        reports = [Report(size=SIZE // ranks, seconds=seconds, cpu_seconds=0)] * ranks
        return checkpoint_of(direction, number, 1, 10.0 * number, reports)

    found = [
        made(direction, number, slow)
        for direction, times in (("write", (4.0, 2.0)), ("read", (1.0, 1.0)))
        for number, slow in enumerate(times * (count // 2))
    ]
    model = asdict(load_checkpoint_model("llama3-8b"))
    return RunResult(
        kind="checkpoint", status="complete", version="0", created="2026-11-21T00:00:00Z",
        command=("feedrate",), loader="checkpoint", checkpoints=tuple(found),
        workload={**model, "scale": "1", "subset": False, "data_parallel": 8, **workload},
        dataset={"path": "/mnt"}, storage={"cache": "cold", "direct": True},
        environment={
            "hosts": ["a"], "memory_of_hosts": {"a": 4 * GIB}, "mount": {"mount": "/mnt"},
            "out_mount": {"mount": "/"}, "cores": 3,
        },
    )  # fmt: skip


def warm(memory: int) -> RunResult:
    """Read through the page cache, on a host with so much memory."""
    environment = {**run().environment, "memory_of_hosts": {"a": memory}}
    return replace(run(), storage={"cache": "warm"}, environment=environment)


def test_caches_are_no_matter_for_what_is_three_times_memory():
    """v3.0, rule 4.3.1."""
    assert self_check(warm(memory=30 * GIB))[0].closed and not self_check(warm(memory=40 * GIB))[0].open


def exported(result: RunResult, tmp_path):
    (tmp_path / "out").mkdir()
    write_result(tmp_path / "out", result)
    checks = export_result(tmp_path / "out", tmp_path / "folder")
    (place,) = (tmp_path / "folder" / "results" / "checkpointing" / "llama3-8b").iterdir()
    return checks, place


def test_the_summary_is_in_dlios_fields_and_units(tmp_path):
    (check,), place = exported(run(), tmp_path)
    summary = json.loads((place / "summary.json").read_text())
    assert summary["metric"] == {
        "save_checkpoint_io_mean_GB_per_second": pytest.approx((104.7 / 4 + 104.7 / 2) / 2),
        "save_checkpoint_io_stdev_GB_per_second": pytest.approx(104.7 / 8),
        "save_checkpoint_duration_mean_seconds": pytest.approx(3),
        "save_checkpoint_duration_stdev_seconds": pytest.approx(1),
        "load_checkpoint_io_mean_GB_per_second": pytest.approx(104.7),
        "load_checkpoint_io_stdev_GB_per_second": pytest.approx(0, abs=1e-9),
        "load_checkpoint_duration_mean_seconds": pytest.approx(1),
        "load_checkpoint_duration_stdev_seconds": pytest.approx(0),
        "checkpoint_size_GB": pytest.approx(104.7),
    }
    assert (summary["num_accelerators"], summary["num_hosts"], summary["host_memory_GB"]) == (8, 1, [4])
    assert "not an official" in summary["feedrate"]
    config = yaml.safe_load((place / "dlio_config" / "config.yaml").read_text())["workload"]
    assert config["model"]["transformer"]["vocab_size"] == 128_256
    assert config["checkpoint"]["num_checkpoints_write"] == 10
    assert check.open and check.closed


SMALL = tuple(replace(made, bytes=made.bytes // 10) for made in run().checkpoints)
"""What was written counts, not what the result calls its scale."""


@pytest.mark.parametrize(
    ("result", "broken"),
    [
        (run(scale="1/1000"), "sizes"),
        (replace(run(), checkpoints=SMALL), "sizes"),
        (run(count=4), "checkpoints"),
        (run(ranks=16), "ranks"),
        (warm(memory=105 * GIB), "caches"),
        (replace(run(), environment={**run().environment, "out_mount": {"mount": "/mnt"}}), "file systems"),
    ],
)
def test_rules_that_are_not_met_are_named(result, broken, tmp_path):
    (check,), _ = exported(result, tmp_path)
    assert [rule.name for rule in check.rules if not rule.met] == [broken]
    assert not check.closed and check.open == (broken in ("ranks", "checkpoints"))


def test_one_that_was_cut_off_is_not_exported(tmp_path):
    with pytest.raises(SpecError, match="incomplete"):
        exported(replace(run(), status="incomplete"), tmp_path)


@pytest.mark.parametrize(
    ("name", "ranks", "version", "met"),
    [
        ("llama3-8b", 8, "v3.0", True),
        ("llama3-8b", 16, "v3.0", False),
        ("llama3-70b", 8, "v3.0", False),
        ("llama3-405b", 8, "v3.0", False),
        ("llama3-1t", 8, "v3.0", False),
        ("llama3-8b", 8, "v2.0", True),
        ("llama3-70b", 8, "v2.0", True),
    ],
)
def test_a_subset_is_8_ranks_and_since_v3_of_the_8b_model_only(name, ranks, version, met):
    """Rule 4.3.5 as MLPerf's chairs read it: its published text had lost a "not"."""
    subset = run(ranks=ranks, **{**asdict(load_checkpoint_model(name)), "subset": True})
    rules = {rule.name: rule.met for rule in self_check(subset, version=version)[0].rules}
    assert rules["subset"] is met


def test_v1_has_no_checkpoints():
    with pytest.raises(SpecError, match="has no checkpoints"):
        self_check(run(), version="v1.0")


def test_a_scaled_checkpoint_is_an_override_and_not_closed(tmp_path):
    """Nothing else in these documents would say so: MLPerf's reportgen calls it CLOSED without."""
    _, place = exported(run(scale="1/2000"), tmp_path)
    (path,) = place.glob("*_metadata.json")
    metadata = json.loads(path.read_text())
    assert metadata["override_parameters"] == {"model.scale": "1/2000"} and metadata["verification"] == "open"
    overrides = yaml.safe_load((place / "dlio_config" / "overrides.yaml").read_text())
    assert overrides == ["workload=llama3_8b", "++workload.model.scale=1/2000"]
