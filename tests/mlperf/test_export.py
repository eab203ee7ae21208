"""What feedrate measured goes out in MLPerf's layout, and nothing is left of an export that failed."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from command import feedrate
from test_import import imported
from test_rules import WRITES, phase, saved, swept

from emulator.analysis.throughput import loop_seconds
from emulator.errors import SpecError, StorageError
from emulator.plugins.mlperf.export import export_results
from emulator.plugins.mlperf.rules import Check, self_check
from emulator.plugins.mlperf.tree import find_runs, read_run
from emulator.record.out import read_result, write_result
from emulator.record.result import RunResult
from emulator.record.steps import STEP, read_steps, write_steps


def run_of(exported: Path) -> Path:
    (folder,) = (path for path in find_runs(exported) if path.parent.name == "run")
    return folder


def test_what_feedrate_measured_comes_back(tiny, tmp_path):
    done = feedrate(
        "run", tiny, "-w", "unet3d-tiny", "--loader", "direct", "-n", 2, "--epochs", 1, "--cache", "warm",
        "--set", "accelerator.step_seconds=0.02", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.status == 0, done.err
    before = read_result(tmp_path / "out")
    export_results([tmp_path / "out"], tmp_path / "exported")
    folder = run_of(tmp_path / "exported")
    summary = json.loads((folder / "summary.json").read_text())
    # What MLPerf's own reportgen reads (make test-mlperf runs it).
    tree = tmp_path / "exported"
    assert folder.parent == tree / "open/feedrate/results/system/training/unet3d/run"
    listed = yaml.safe_load((tree / "open/feedrate/submission.yaml").read_text())["runs"]
    assert [leaf["leaf"].split("/")[-2] for leaf in listed] == ["datagen", "datasize", "run"]
    for leaf in listed:
        provenance = json.loads((tree / "open/feedrate" / leaf["leaf"] / "provenance.json").read_text())
        assert provenance["core_config"]["hash"] == provenance["tool"]["code_image"] == "unknown"
    assert "no core-config hash" in (tree / "NOT_A_SUBMISSION.txt").read_text()
    (datasize,) = tree.rglob("datasize/*/*_metadata.json")
    dataset = json.loads(datasize.read_text())["parameters"]["dataset"]
    assert dataset["num_files_train"] > before.dataset["files"] and dataset["total_disk_bytes"] > 0
    metadata = read_run(folder).metadata
    assert {"benchmark_type", "run_datetime", "num_processes", "parameters"} <= metadata.keys()
    config = read_run(folder).configs["config.yaml"]["workload"]
    assert config["model"]["name"] == metadata["model"] == "unet3d" and config == metadata["parameters"]
    for key in ("num_files_train", "num_samples_per_file", "record_length_bytes"):
        assert type(config["dataset"][key]) is int
    assert config["train"]["epochs"] == 1, "what was run, not what the workload asks for"
    overrides = metadata["override_parameters"]
    assert {"dataset.num_files_train", "reader.read_threads"} <= overrides.keys()
    assert all(text.count("=") == 1 for text in read_run(folder).configs["overrides.yaml"])
    assert len(summary["host_memory_GB"]) == len(summary["host_cpu_count"]) == summary["num_hosts"]
    assert "not an official" in summary["feedrate"]
    metric = summary["metric"]
    rate = metric["train_throughput_mean_samples_per_second"]
    after = imported(tmp_path / "exported", tmp_path / "back")
    (measured,), (back,) = before.points, after.points
    size = measured.bytes / measured.samples
    assert metric["train_io_mean_MB_per_second"] == pytest.approx(rate * size / 2**20)
    for key in ("ranks", "steps", "samples", "epochs"):
        assert getattr(back, key) == getattr(measured, key)
    assert back.bytes == pytest.approx(measured.bytes, rel=1e-2)
    # The import knows the first rank's clock alone, and ranks may begin one after the other.
    assert 0 < back.seconds < 1.05 * loop_seconds(read_steps(tmp_path / "out"))
    rules = {rule.name: rule for rule in self_check(before)[0].rules}
    assert rules["accelerators on a host"].met
    assert rules["files of the dataset"].met is False and rules["parameters of the workload"].met is False


def test_an_epoch_that_is_too_short_for_the_formulas_is_left_out(tmp_path):
    """Two ranks: 20 steps, then 2 of another epoch; files of many samples. A full disk leaves nothing."""
    whole = swept("resnet50-h100", epochs=2, steps=22)
    order = np.tile(np.arange(22), 2)
    rows = np.zeros(44, STEP)
    rows["rank"], rows["epoch"], rows["step"] = np.repeat([0, 1], 22), order // 20, order % 20
    rows["wait"], rows["compute"], rows["begin"] = 0.01, 0.162, order * 0.172
    for moment in ("requested", "arrived"):
        rows[moment] = np.nan
    (tmp_path / "out").mkdir()
    write_result(tmp_path / "out", replace(whole, points=whole.points[:1], status="complete", reason=""))
    write_steps(tmp_path / "out", rows)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, usual[1]))  # a disk that is full after 400 bytes
    try:
        with pytest.raises(StorageError):
            export_results([tmp_path / "out"], tmp_path / "exported")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert not (tmp_path / "exported").exists()
    export_results([tmp_path / "out"], tmp_path / "exported")
    run, folder = read_run(run_of(tmp_path / "exported")), run_of(tmp_path / "exported")
    assert run.summary["epochs"] == 1 and set(json.loads((folder / "1_output.json").read_text())) == {
        "1",
        "hostname",
    }
    config = run.configs["config.yaml"]["workload"]["dataset"]
    assert run.summary["num_samples_per_file"] == config["num_samples_per_file"] == 1251


def saved_to(folder: Path, *results: RunResult) -> tuple[list[Check], list[Path]]:
    """Export checkpoints; return the checks, and the folders of the runs."""
    outs = [folder / f"out{number}" for number in range(len(results))]
    for out, result in zip(outs, results, strict=True):
        out.mkdir()
        write_result(out, result)
    checks = export_results(outs, folder / "exported")
    return checks, sorted((folder / "exported").glob("*/feedrate/results/system/checkpointing/*/*"))


def test_checkpoints_are_in_dlios_fields_and_units(tmp_path):
    (check,), (place,) = saved_to(tmp_path, saved())
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
    config = yaml.safe_load((place / "dlio_config" / "config.yaml").read_text())["workload"]
    assert config["model"]["transformer"]["vocab_size"] == 128_256
    assert config["checkpoint"]["num_checkpoints_write"] == 10
    assert check.open and check.closed


def test_a_scaled_checkpoint_is_an_override_and_not_closed(tmp_path):
    """Nothing else in these documents would say so: MLPerf's reportgen calls it CLOSED without."""
    _, (place,) = saved_to(tmp_path, saved(scale="1/2000"))
    metadata = json.loads(next(place.glob("*_metadata.json")).read_text())
    assert metadata["override_parameters"] == {"model.scale": "1/2000"} and metadata["verification"] == "open"
    overrides = yaml.safe_load((place / "dlio_config" / "overrides.yaml").read_text())
    assert overrides == ["workload=llama3_8b", "++workload.model.scale=1/2000"]


def test_writes_and_reads_are_one_export_of_two_runs(tmp_path):
    (check,), places = saved_to(tmp_path, phase("read", "10:00:20", "10:03:00"), WRITES)
    assert check.closed
    metadata = [json.loads(next(place.glob("*_metadata.json")).read_text()) for place in places]
    assert metadata[1]["invocation_start_time"] == "2026-11-21T10:00:20+00:00"
    (tmp_path / "half").mkdir()
    with pytest.raises(SpecError, match="incomplete"):
        saved_to(tmp_path / "half", replace(saved(), status="incomplete"))


def test_results_that_are_no_set_are_refused(tmp_path):
    reads = phase("read", "10:00:20", "10:03:00")
    other = replace(reads, checkpoints=tuple(replace(made, ranks=4) for made in reads.checkpoints))
    for number, results in enumerate(((WRITES, WRITES), (WRITES, other), (saved(), reads))):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(SpecError, match="not a checkpoint's writes and its reads"):
            saved_to(tmp_path / str(number), *results)
