"""Result folders come in: the truth behind published figures, whole trees, and what is damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from artefacts import Run
from command import feedrate

from emulator.errors import SpecError
from emulator.plugins.mlperf.published import GIB
from emulator.plugins.mlperf.rules import self_check
from emulator.plugins.mlperf.training import import_folder, import_run, write_imports
from emulator.plugins.mlperf.tree import find_runs, read_run
from emulator.plugins.page.report import report
from emulator.record.out import read_result
from emulator.record.result import RunResult

LAYOUTS = pytest.mark.parametrize("layout", ["v1.0", "v2.0", "v3.0"])


def imported(folder: Path, out: Path, workload: str = "") -> RunResult:
    """As the command does it, of one workload."""
    imports = import_folder(folder, workload)
    assert len(imports.groups) == 1
    write_imports(imports, out, ("feedrate", "import"), False)
    return read_result(out)


@LAYOUTS
def test_every_way_of_publishing_gives_the_same_truth(tmp_path, layout):
    truth = Run()
    (point,) = imported(truth.write(tmp_path / "run", layout), tmp_path / "out").points
    assert point.x_ideal == pytest.approx(truth.x_ideal, rel=1e-6)
    assert point.au == pytest.approx(truth.x_ideal, rel=1e-6), "nominal compute: the same thing"
    assert point.x_ideal_first == pytest.approx(truth.x_ideal_first, rel=1e-4)
    assert point.samples_per_second == pytest.approx(truth.x_ideal * 2 * 4 / 0.1, rel=1e-6)
    assert (point.ranks, point.steps, point.samples, point.epochs) == (2, 40, 320, 2)
    assert point.bytes == 320 * 1_000_000, "bytes of a sample, not MiB called MB"
    assert point.seconds == pytest.approx(2 * truth.seconds, rel=1e-6)


def test_oversleep_is_undone(tmp_path):
    truth = Run(oversleep=0.005)
    run = import_run(read_run(truth.write(tmp_path / "overslept", "v2.0")))
    assert run.x_ideal == pytest.approx(truth.x_ideal)
    assert run.published.au == pytest.approx(truth.x_ideal * 1.05)
    assert "Oversleep adds" in run.verdict


def test_the_verdict_names_what_au_hides(tmp_path):
    truth = Run(first=5.0, wait=0.001, barrier=0.0)
    run = import_run(read_run(truth.write(tmp_path / "run", "v1.0")))
    assert (round(truth.x_ideal * 1000), round(truth.x_ideal_first * 1000)) == (990, 285)
    assert "AU 99.0 %, X/X_ideal 28.5 %" in run.verdict and "hides 71 points" in run.verdict
    calm = Run(first=0.0, wait=0.001, barrier=0.0)
    assert "They agree" in import_run(read_run(calm.write(tmp_path / "calm", "v1.0"))).verdict


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Runs shaped like those of three versions, with what lies between them in published trees."""
    root = tmp_path / "tree"
    Run().write(root / "Closed/Org/results/sys/unet3d_h100/run-1", "v1.0")
    Run(oversleep=0.001).write(root / "closed/Org/results/sys/training/unet3d/run/20250101_000000", "v2.0")
    pruned = root / "closed/Org/results/sys/training/unet3d/run/20260101_000000"
    Run(oversleep=0.001).write(pruned, "v3.0")
    for rank in range(2):
        (pruned / f"{rank}_per_epoch_stats.json").write_text("too large\n")
    cut = Run(oversleep=0.001).write(pruned.with_name("20260101_010000"), "v3.0")
    (cut / "dlio_config" / "hydra.yaml").write_text("a: [" * 20)
    broken = Run().write(pruned.with_name("20260101_030000"), "v3.0") / "summary.json"
    broken.write_text(broken.read_text()[:100])
    Run().write(root / "Closed/Org/code/dlio_benchmark/tests/test_data", "v1.0")
    for kind in ("kv_cache/llama3.1-8b/run", "checkpointing/llama3-8b"):
        place = root / "open/Org/results/sys" / kind / "20260101_000000"
        place.mkdir(parents=True)
        (place / "summary.json").write_text("{}")
    generated = root / "closed/Org/results/sys/training/unet3d/datagen/20260101_000000"
    generated.mkdir(parents=True)
    (generated / "training_20260101_000000_metadata.json").write_text("{}")
    return root


def test_a_tree_of_three_versions(tree, tmp_path):
    done = feedrate("import", tree, "--out", tmp_path / "out")
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert lines[-1] == "4 runs imported, 5 folders skipped"
    skipped = "\n".join(line for line in lines if line.startswith("skipped "))
    for why in ("20260101_030000: summary.json: not valid JSON", "part of a copy of the benchmark's code",
                "benchmark kv_cache", "benchmark checkpointing", "has no summary.json"):  # fmt: skip
        assert why in skipped
    pruned, cut = (line for line in lines if "/20260101_" in line and line.startswith("  "))
    assert "0_per_epoch_stats.json and 1 more: a placeholder" in pruned
    assert "hydra.yaml: not valid YAML" in cut
    training = read_result(tmp_path / "out")
    truth = Run(oversleep=0.001)
    for point in training.points[1:]:
        assert point.au == pytest.approx(truth.x_ideal) and point.au < point.au_published
    shown = feedrate("report", tmp_path / "out").out
    for point in training.points:
        assert f"{point.au * 100:.1f}" in shown and f"{point.au_published * 100:.1f}" in shown


def test_each_system_has_a_knee_of_its_own_and_import_again_replaces_it(tmp_path):
    for system in ("one", "two"):
        for ranks in (2, 4):
            folder = tmp_path / "tree" / "closed" / "Org" / "results" / system / "unet3d" / f"{ranks}"
            Run(ranks=ranks).write(folder, "v1.0")
    for force in (False, True):
        write_imports(import_folder(tmp_path / "tree"), tmp_path / "out", ("feedrate", "import"), force)
    for system in ("one", "two"):
        result = read_result(tmp_path / "out" / f"Org-{system}-unet3d-h100")
        assert [point.ranks for point in result.points] == [2, 4]
        assert result.label == f"Org {system}" and result.workload["name"] == "unet3d-h100"


def test_whose_formula_it_was_is_known_or_left_open(tmp_path):
    truth = Run(steps=200, oversleep=0.004)
    for version in ("v2.0", "v3.0"):
        run = import_run(read_run(truth.write(tmp_path / version, version)))
        assert run.version == version and run.x_ideal == pytest.approx(truth.x_ideal)
    unknown = truth.write(tmp_path / "x", "v3.0", metadata=False)
    run = import_run(read_run(unknown))
    assert run.version is None and math.isnan(run.x_ideal)
    known = Run(steps=200, workload="unet3d_b200").write(tmp_path / "b", "v3.0", metadata=False)
    assert import_run(read_run(known)).version == "v3.0", "no other version has a B200"


def test_a_run_whose_rate_is_unknown_is_no_part_of_the_knee(tmp_path):
    for ranks, known in ((2, True), (4, True), (8, False)):
        run = Run(ranks=ranks, steps=200, oversleep=0.004)
        run.write(tmp_path / "in" / f"{ranks}", "v3.0", metadata=known)
    result = imported(tmp_path / "in", tmp_path / "out")
    assert result.knee is not None and result.knee.fed == 4
    assert [math.isnan(point.samples_per_second) for point in result.points] == [False, False, True]
    report(tmp_path / "out").write(tmp_path / "page.html")


def test_figures_that_cannot_be_are_flagged_and_steps_end_where_the_configuration_says(tmp_path):
    folder = Run(steps=200).write(tmp_path / "run", "v3.0")
    config = folder / "dlio_config" / "config.yaml"
    limited = config.read_text().replace("epochs: 2", "epochs: 2\n    total_training_steps: 50")
    config.write_text(limited.replace("computation_time: 0.1", "computation_time: 25.0"))
    (point,) = imported(folder, tmp_path / "out").points
    assert any(flag.name == "documents" and "impossible" in flag.sentence for flag in point.flags)
    assert point.steps == 2 * 50


def test_cores_and_memory_are_of_each_host(tmp_path):
    """DLIO numbers nodes by MPI, and with some launchers adds all hosts up into the first place."""
    folder = Run(ranks=4, hosts=4, batch=1).write(tmp_path / "run", "v3.0")
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"host_cpu_count": [512, 0, 0, 0], "host_memory_GB": [64.0, 0.0, 0.0, 0.0]}
    (folder / "summary.json").write_text(json.dumps(summary))
    result = imported(folder, tmp_path / "out")
    assert [host.cores for host in result.points[0].hosts] == [128] * 4
    assert result.environment["memory_bytes"] == 4 * 16 * GIB


@pytest.mark.parametrize("lost", [(), ("overrides.yaml",), ("overrides.yaml", "hydra.yaml")])
def test_the_accelerator_is_known_without_overrides(tmp_path, lost):
    folder = Run().write(tmp_path / "unet3d" / "run", "v3.0")
    for name in lost:
        (folder / "dlio_config" / name).unlink()
    ((name, (run,)),) = import_folder(folder).groups.items()
    assert name == "unet3d-h100" and run.workload.accelerator.name == "NVIDIA H100"


def test_the_rules_that_imported_runs_meet(tmp_path):
    good = Run(steps=500, ranks=2, hosts=2, first=0.1, wait=0.0, barrier=0.0, epochs=1, record=100_000_000)
    for number in range(6):
        good.write(tmp_path / "in" / f"run{number}", "v2.0", seed=number)
    (check,) = self_check(imported(tmp_path / "in", tmp_path / "out"))
    assert not check.open and {"workload and accelerator", "file systems"} <= {
        rule.name for rule in check.rules if not rule.met
    }
    done = feedrate("export", "--mlperf", tmp_path / "out", "--out", tmp_path / "exported")
    assert done.status == 2 and "only feedrate's own" in done.one_line()


def test_a_result_without_a_configuration_needs_a_workload(tmp_path):
    folder = Run().write(tmp_path / "run", "v1.0")
    for path in (folder / "configs").iterdir():
        path.unlink()
    with pytest.raises(SpecError, match="--workload NAME"):
        import_folder(folder)
    result = imported(folder, tmp_path / "out", "unet3d-h100")
    assert result.workload["name"] == "unet3d-h100"
    (folder / "configs" / "overrides.yaml").write_text("- workload=unet3d_a100\n")
    assert imported(folder, tmp_path / "a100").workload["name"] == "unet3d-a100"


DAMAGES = {
    "no accelerators": {"num_accelerators": None},
    "half an accelerator": {"num_accelerators": 1.5},
    "a billion accelerators": {"num_accelerators": 10**9},
    "text": {"num_files_train": "many"},
    "no epochs": {"metric": {"train_au_percentage": [], "train_throughput_samples_per_second": []}},
    "uneven epochs": {"metric": {"train_au_percentage": [1, 2], "train_throughput_samples_per_second": [1]}},
    "negative": {"metric": {"train_au_percentage": [-1], "train_throughput_samples_per_second": [1]}},
    "no metric": {"metric": 3},
    "checkpoints": {"metric": {"save_checkpoint_io_mean_GB_per_second": [1.0]}},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_summary_is_one_clear_line(tmp_path, damage):
    folder = Run().write(tmp_path / "run", "v1.0")
    summary = json.loads((folder / "summary.json").read_text()) | DAMAGES[damage]
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(SpecError) as raised:
        import_folder(tmp_path)
    assert "summary.json" in str(raised.value) and "\n" not in str(raised.value)


def test_a_mean_of_no_checkpoints_does_not_lose_the_training(tmp_path):
    folder = Run().write(tmp_path / "run", "v2.0")
    summary = json.loads((folder / "summary.json").read_text())
    summary["metric"]["save_checkpoint_io_mean_GB_per_second"] = math.nan  # as DLIO writes it
    (folder / "summary.json").write_text(json.dumps(summary))
    assert import_folder(tmp_path).runs
    summary["metric"]["train_au_percentage"][0] = math.nan
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(SpecError, match="train_au_percentage"):
        import_folder(tmp_path)


def test_a_summary_of_one_host_says_so(tmp_path):
    """MLPerf Storage v0.5 has a summary for each host of a run."""
    folder = Run().write(tmp_path / "run", "v1.0")
    summary = json.loads((folder / "summary.json").read_text())
    del summary["num_hosts"]
    (folder / "summary.json").write_text(json.dumps(summary))
    result = imported(tmp_path, tmp_path / "out")
    assert "It counts one host" in result.points[0].flags[0].sentence


def test_links_lead_nowhere(tmp_path):
    run = Run().write(tmp_path / "in" / "run0", "v1.0")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    assert len(find_runs(tmp_path / "in")) == 1
    (tmp_path / "secret.json").write_text("{}")
    (run / "9_output.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(SpecError, match="a link out of the folder"):
        import_folder(tmp_path / "in")
