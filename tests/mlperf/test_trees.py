"""Trees of published results as they are: what is imported, what is skipped, and by whose formulas."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml
from artefacts import LLAMA, Run
from command import feedrate

from emulator.plugins.mlperf.export import export_result
from emulator.plugins.mlperf.results import import_folder
from emulator.plugins.mlperf.trainings import import_run
from emulator.plugins.mlperf.tree import find_runs, read_run
from emulator.record.out import read_result

PLACEHOLDER = "PRUNED BY STAFF\n"
GIB = 2**30


def checkpoint_run(folder: Path, verb: str, start: datetime, *, text: bool = False, count: int = 3) -> Path:
    """Of 8 ranks, rank r taking 2 + r / 10 s; DLIO's of v2.0 writes durations as text."""
    (folder / "dlio_config").mkdir(parents=True)
    config = LLAMA.replace("_write: 10", f"_write: {count if verb == 'save' else 0}")
    config = config.replace("_read: 10", f"_read: {count if verb == 'load' else 0}")
    overrides = ["workload=llama3_8b", f"++workload.checkpoint.checkpoint_folder={folder.name}"]
    config = config.replace("checkpoint_folder: x", f"checkpoint_folder: '{folder.name}'")
    hydra = {"overrides": {"task": overrides}, "runtime": {"choices": {"workload": "llama3_8b"}}}
    metadata = {"benchmark_type": "checkpointing", "model": "llama3-8b", "num_processes": 8}
    metadata["parameters"] = yaml.safe_load(config)
    for name, text_of in (
        ("dlio_config/config.yaml", config),
        ("dlio_config/overrides.yaml", yaml.safe_dump(overrides)),
        ("dlio_config/hydra.yaml", yaml.safe_dump({"hydra": hydra})),
        (f"checkpointing_{folder.name}_metadata.json", json.dumps(metadata)),
    ):
        (folder / name).write_text(text_of)
    for rank in range(8):
        spans = {}
        for number in range(1, count + 1):
            began, seconds = start + timedelta(seconds=10 * number), 2 + rank / 10
            duration = f"{seconds:.6f}" if text else seconds
            spans[f"{verb}_ckpt{number}"] = {
                "start": began.isoformat(),
                "end": (began + timedelta(seconds=seconds)).isoformat(),
                "duration": duration,
            }
        (folder / f"{rank}_per_epoch_stats.json").write_text(json.dumps({"1": spans}))
    metric = {f"{verb}_checkpoint_duration_mean_seconds": 2.0, "checkpoint_size_GB": 104.7}
    metric |= {f"{verb}_checkpoint_io_mean_GB_per_second": 104.7 / 2}
    end = start + timedelta(seconds=10 * count + 5)
    summary = {
        "start": start.isoformat(),
        "end": end.isoformat(),
        "num_accelerators": 8,
        "num_hosts": 2,
        "hostname": "a",
    }
    summary |= {"metric": metric, "host_memory_GB": [64.0, 0.0], "host_cpu_count": [96, 0]}
    summary |= {"host_cpuinfo": {"physical id": "1", "siblings": "24"}}
    summary |= {"host_meminfo": {"MemTotal": "33554432 kB"}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Runs shaped like those of three versions, with what lies between them in published trees."""
    root = tmp_path / "tree"
    Run().write(root / "Closed/Org/results/sys/unet3d_h100/run-1", "v1.0")
    Run(oversleep=0.001).write(root / "closed/Org/results/sys/training/unet3d/run/20250101_000000", "v2.0")
    pruned = root / "closed/Org/results/sys/training/unet3d/run/20260101_000000"
    Run(oversleep=0.001).write(pruned, "v3.0", logs=False)
    for rank in range(2):
        (pruned / f"{rank}_output.json").write_text(PLACEHOLDER)
    cut = Run(oversleep=0.001).write(pruned.with_name("20260101_010000"), "v3.0") / "0_output.json"
    cut.write_text(cut.read_text()[:200])
    others = Run(oversleep=0.001).write(pruned.with_name("20260101_020000"), "v3.0")
    slow = Run(oversleep=0.001, wait=0.05).write(tmp_path / "other", "v3.0")
    for rank in range(2):
        (others / f"{rank}_output.json").write_text((slow / f"{rank}_output.json").read_text())
    broken = Run().write(pruned.with_name("20260101_030000"), "v3.0") / "summary.json"
    broken.write_text(broken.read_text()[:100])
    Run().write(root / "Closed/Org/code/dlio_benchmark/tests/test_data", "v1.0")
    kv_cache = root / "open/Org/results/sys/kv_cache/llama3.1-8b/run/20260101_000000"
    kv_cache.mkdir(parents=True)
    (kv_cache / "kv_cache_20260101_000000_metadata.json").write_text("{}")
    (kv_cache / "summary.json").write_text("{}")
    generated = root / "closed/Org/results/sys/training/unet3d/datagen/20260101_000000"
    generated.mkdir(parents=True)
    (generated / "training_20260101_000000_metadata.json").write_text("{}")
    start = datetime(2026, 1, 1)
    place = root / "closed/Org/results/sys/checkpointing/llama3-8b"
    checkpoint_run(place / "20260101_000000", "save", start)
    checkpoint_run(place / "20260101_001000", "load", start + timedelta(minutes=10), text=True)
    return root


def test_a_tree_of_three_versions(tree, tmp_path):
    done = feedrate("import", tree, "--out", tmp_path / "out")
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert lines[-1] == "7 runs imported, 4 folders skipped"
    skipped = {
        line.split(": ", 1)[0].rsplit("/", 1)[1]: line.split(": ", 1)[1]
        for line in lines
        if "skipped C" in line or "skipped c" in line or "skipped o" in line
    }
    assert "not valid JSON" in skipped["20260101_030000"]
    assert skipped["test_data"] == "part of a copy of the benchmark's code"
    assert any("a run of the benchmark kv_cache" in line for line in lines)
    assert any("/datagen/" in line and "has no summary.json" in line for line in lines)
    left = [line for line in lines if line.startswith("note on")]
    assert any("0_output.json and 1 more: a placeholder" in line for line in left)
    assert any("20260101_010000: 0_output.json: not valid JSON" in line for line in left)
    assert any("20260101_020000: its logs: the logs belong to another run" in line for line in left)
    strict = feedrate("import", tree, "--out", tmp_path / "strict", "--strict")
    assert strict.status == 2 and strict.one_line() and not (tmp_path / "strict").exists()
    training = read_result(tmp_path / "out" / "unet3d-h100")
    assert len(training.points) == 5
    truth = Run(oversleep=0.001)
    for point in training.points[1:]:
        assert point.au == pytest.approx(truth.x_ideal) and point.au < point.au_published
    shown = feedrate("report", tmp_path / "out" / "unet3d-h100").out
    for point in training.points:
        assert f"{point.au * 100:.1f}" in shown and f"{point.au_published * 100:.1f}" in shown
    assert "published" in shown


def test_each_system_has_a_knee_of_its_own(tmp_path):
    for system in ("one", "two"):
        for ranks in (2, 4):
            folder = tmp_path / "tree" / "closed" / "Org" / "results" / system / "unet3d" / f"{ranks}"
            Run(ranks=ranks).write(folder, "v1.0", logs=False)
    done = feedrate("import", tmp_path / "tree", "--out", tmp_path / "out")
    assert done.status == 0, done.err
    for system in ("one", "two"):
        result = read_result(tmp_path / "out" / f"Org-{system}-unet3d-h100")
        assert [point.ranks for point in result.points] == [2, 4]
        assert result.label == f"Org {system}" and result.workload["name"] == "unet3d-h100"


def test_checkpoints_come_in_as_checkpoints(tree, tmp_path):
    place = tree / "closed/Org/results/sys/checkpointing"
    done = feedrate("import", place, "--out", tmp_path / "out")
    assert done.status == 0, done.err
    result = read_result(tmp_path / "out")
    assert result.kind == "checkpoint" and result.workload["name"] == "llama3-8b"
    assert [made.direction for made in result.checkpoints] == ["write"] * 3 + ["read"] * 3
    first, last = result.checkpoints[0], result.checkpoints[-1]
    assert (first.seconds, first.fastest_seconds, first.slowest_rank) == (2.7, 2.0, 7)
    assert first.bytes == round(104.7 * GIB) and first.bytes_per_second == pytest.approx(first.bytes / 2.7)
    assert (first.began, last.began) == (10.0, 630.0)
    assert result.environment["memory_bytes"] == 32 * GIB and result.environment["cores"] == 48
    shown = feedrate("report", tmp_path / "out")
    assert shown.status == 0 and "Imported" in shown.out and "checksum" not in shown.out
    assert feedrate("export", "--mlperf", tmp_path / "out", "--out", tmp_path / "back").status == 0
    before = [read_run(path) for path in find_runs(place)]
    after = [read_run(path) for path in find_runs(tmp_path / "back")]
    assert [replace(run, name="") for run in after] == [replace(run, name="") for run in before]


def test_by_whose_formula_is_decided_or_left_open(tmp_path):
    truth = Run(steps=200, oversleep=0.004)
    for version, skips in (("v2.0", 2), ("v3.0", 1)):
        run = import_run(read_run(truth.write(tmp_path / version, version, logs=False)))
        assert run.figures.skips == skips
        assert run.figures.x_ideal == pytest.approx(truth.x_ideal)
    unknown = import_run(read_run(truth.write(tmp_path / "x", "v3.0", logs=False, metadata=False)))
    assert unknown.figures.skips is None and unknown.figures.x_ideal is None
    assert unknown.figures.either == pytest.approx((truth.x_ideal, truth.x_ideal * 199 / 198))
    assert "formula of its throughput is unknown" in unknown.figures.verdict
    # Without oversleep, v2.0's formula would have the accelerators busier than they were.
    exact = Run(steps=200)
    decided = import_run(read_run(exact.write(tmp_path / "y", "v3.0", logs=False, metadata=False)))
    assert decided.figures.skips == 1 and decided.figures.x_ideal == pytest.approx(exact.x_ideal)


def test_a_run_whose_rate_is_unknown_is_no_part_of_the_knee(tmp_path):
    for ranks, known in ((2, True), (4, True), (8, False)):
        run = Run(ranks=ranks, steps=200, oversleep=0.004)
        run.write(tmp_path / "in" / f"{ranks}", "v3.0", logs=False, metadata=known)
    done = feedrate("import", tmp_path / "in", "--out", tmp_path / "out")
    assert done.status == 0, done.err
    result = read_result(tmp_path / "out")
    assert result.knee is not None and result.knee.fed == 4
    assert [math.isnan(point.samples_per_second) for point in result.points] == [False, False, True]
    assert feedrate("report", tmp_path / "out", "--html", tmp_path / "page.html").status == 0


def test_recomputed_above_published_is_said(tmp_path):
    folder = Run(steps=200).write(tmp_path / "run", "v3.0", logs=False)
    summary = json.loads((folder / "summary.json").read_text())
    summary["metric"]["train_au_percentage"] = [80.0, 80.0]
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "contradict each other" in import_run(read_run(folder)).figures.verdict


def test_a_run_takes_no_more_steps_than_it_was_told(tmp_path):
    folder = Run(steps=200).write(tmp_path / "run", "v1.0", logs=False)
    config = folder / "configs" / "config.yaml"
    config.write_text(config.read_text().replace("epochs: 2", "epochs: 2\n    total_training_steps: 50"))
    (runs,) = import_folder(folder).groups.values()
    assert runs[0].published.steps_per_epoch(4) == 50


@pytest.mark.parametrize("logs", [True, False])
def test_cores_and_memory_are_of_each_host(tmp_path, logs):
    """DLIO numbers nodes by MPI, and with some launchers adds all hosts up into the first place."""
    folder = Run(ranks=4, hosts=4, batch=1).write(tmp_path / "run", "v3.0", logs=logs)
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"host_cpu_count": [512, 0, 0, 0], "host_memory_GB": [64.0, 0.0, 0.0, 0.0]}
    (folder / "summary.json").write_text(json.dumps(summary))
    (runs,) = import_folder(folder).groups.values()
    machines = runs[0].published
    assert machines.cores == (128,) * 4 and machines.memory == (16 * GIB,) * 4
    done = feedrate("import", folder, "--out", tmp_path / "out")
    assert done.status == 0, done.err
    (point,) = read_result(tmp_path / "out").points
    assert [host.cores for host in point.hosts] == [128] * 4
    waits = [host.wait_seconds for host in point.hosts]
    assert all(map(math.isnan, waits)) if not logs else waits == pytest.approx([2 * (1.5 + 19 * 0.005)] * 4)
    export_result(tmp_path / "out", tmp_path / "back")


def test_a_configuration_of_another_workload_never_agrees(tmp_path):
    folder = Run(steps=200).write(tmp_path / "unet3d_h100" / "run", "v3.0", logs=False)
    other = Run(steps=200, batch=4, step=25.0).write(tmp_path / "other", "v3.0", logs=False)
    shutil.copy(other / "dlio_config" / "config.yaml", folder / "dlio_config" / "config.yaml")
    done = feedrate("import", folder.parent, "--out", tmp_path / "out")
    assert done.status == 0, done.err
    assert "impossible" in done.out and "they agree" not in done.out
    (point,) = read_result(tmp_path / "out").points
    (flag,) = (flag for flag in point.flags if flag.name == "documents")
    assert "train.computation_time is 25.0 in config.yaml, 0.1 in the metadata" in flag.sentence
    rate = import_run(read_run(folder)).published.mean_rate
    assert f"{rate:,.6g} samples/s were published, " in flag.sentence, "both numbers"
    assert "are 2 accelerators x batch 4 / 25 s x AU" in flag.sentence


@pytest.mark.parametrize(
    ("lost", "source"), [((), ""), (("overrides.yaml",), ""), (("overrides.yaml", "hydra.yaml"), "metadata")]
)
def test_the_accelerator_is_known_without_overrides(tmp_path, lost, source):
    folder = Run().write(tmp_path / "unet3d" / "run", "v3.0", logs=False)
    for name in lost:
        (folder / "dlio_config" / name).unlink()
    ((name, (imported,)),) = import_folder(folder).groups.items()
    assert name == "unet3d-h100" and imported.workload.accelerator.name == "NVIDIA H100"
    assert [why for why in imported.said if why.startswith("missing")] == (
        [f"missing: {', '.join(sorted(lost, key=('hydra.yaml', 'overrides.yaml').index))}, 0_output.json, "
         f"1_output.json"] if lost else ["missing: 0_output.json, 1_output.json"]
    )  # fmt: skip


def test_submitters_keep_their_names_and_import_again_leaves_no_older_result(tmp_path):
    start = datetime(2026, 1, 1)
    for submitter in ("One", "Two"):
        place = tmp_path / "tree" / "closed" / submitter / "results" / "sys" / "checkpointing" / "llama3-8b"
        checkpoint_run(place / "20260101_000000", "save", start)
    out = tmp_path / "out"
    assert feedrate("import", tmp_path / "tree", "--out", out).status == 0
    assert {path.name for path in out.iterdir()} == {"One-sys-llama3-8b", "Two-sys-llama3-8b"}
    results = [read_result(path) for path in out.iterdir()]
    assert {(result.label, result.workload["name"]) for result in results} == {
        ("One sys", "llama3-8b"),
        ("Two sys", "llama3-8b"),
    }
    (out / "One-sys-llama3-8b").rename(out / "llama3-8b-2")
    mine = out / "mine.txt"
    mine.write_text("kept")
    again = feedrate("import", tmp_path / "tree", "--out", out, "--force")
    assert again.status == 0, again.err
    assert {path.name for path in out.iterdir()} == {"One-sys-llama3-8b", "Two-sys-llama3-8b", "mine.txt"}
