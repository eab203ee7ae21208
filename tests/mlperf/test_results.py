"""Result folders in and out: the truth behind published figures, identity, and what is damaged."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from artefacts import Run
from command import feedrate
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rules import swept

from emulator.analysis.throughput import loop_seconds
from emulator.errors import SpecError, StorageError
from emulator.plugins.mlperf.export import export_result
from emulator.plugins.mlperf.logs import Block, by_epoch
from emulator.plugins.mlperf.results import import_folder, write_imports
from emulator.plugins.mlperf.rules import self_check
from emulator.plugins.mlperf.trainings import import_run
from emulator.plugins.mlperf.tree import RunFolder, find_runs, read_run, write_run
from emulator.record.out import read_result, write_result
from emulator.record.result import RunResult
from emulator.record.steps import STEP, read_steps, write_steps

LAYOUTS = pytest.mark.parametrize("layout", ["v1.0", "v2.0", "v3.0"])
LOGS = pytest.mark.parametrize("logs", [True, False], ids=["logs", "no logs"])


def imported(folder: Path, out: Path, workload: str = "") -> RunResult:
    """As the command does it, of one workload."""
    imports = import_folder(folder, workload)
    assert len(imports.groups) == 1
    write_imports(imports, out, ("feedrate", "import"), False)
    return read_result(out)


@LAYOUTS
@LOGS
def test_every_way_of_publishing_gives_the_same_truth(tmp_path, layout, logs):
    truth = Run()
    (point,) = imported(truth.write(tmp_path / "run", layout, logs=logs), tmp_path / "out").points
    assert point.x_ideal == pytest.approx(truth.x_ideal, rel=1e-6)
    assert point.au == pytest.approx(truth.x_ideal, rel=1e-6), "nominal compute: the same thing"
    assert point.x_ideal_first == pytest.approx(truth.x_ideal_first, rel=1e-4)
    assert point.samples_per_second == pytest.approx(truth.x_ideal * 2 * 4 / 0.1, rel=1e-6)
    assert (point.ranks, point.steps, point.samples, point.epochs) == (2, 40, 320, 2)
    assert point.bytes == 320 * 1_000_000, "bytes of a sample, not MiB called MB"
    assert point.seconds == pytest.approx(2 * truth.seconds, rel=1e-6)


@LOGS
def test_the_steps_that_throughput_leaves_out_and_oversleep_are_undone(tmp_path, logs):
    truth = Run(oversleep=0.005)
    run = import_run(read_run(truth.write(tmp_path / "overslept", "v2.0", logs=logs)))
    assert run.figures.x_ideal == pytest.approx(truth.x_ideal)
    assert run.figures.au_published == pytest.approx(truth.x_ideal * 1.05)
    assert "oversleep counted as compute adds" in run.figures.verdict
    truth = Run(steps=10)
    run = import_run(read_run(truth.write(tmp_path / "run", "v2.0", logs=logs)))
    published = run.published.mean_rate
    assert published == pytest.approx(truth.x_ideal * 80 * 8 / 9), "8 of 10 steps over the time of 9"
    assert run.figures.skips == 2 and run.figures.x_ideal == pytest.approx(truth.x_ideal)


def test_logs_tell_the_formula_whatever_the_layout(tmp_path):
    truth = Run()
    folder = truth.write(tmp_path / "run", "v2.0")
    newer = truth.write(tmp_path / "older", "v1.0")
    for rank in range(2):
        (folder / f"{rank}_output.json").write_bytes((newer / f"{rank}_output.json").read_bytes())
    assert import_run(read_run(folder)).figures.skips == 0


def test_blocks_of_an_epoch_count_by_their_steps():
    blocks = [
        Block(0, 0, number, *[np.zeros(steps)] * 3, au=au, throughput=1.0)
        for number, (steps, au) in enumerate(((10, 0.5), (30, 0.9)), 1)
    ]
    assert by_epoch(blocks, [block.au for block in blocks]) == {(0, 0): pytest.approx(0.8)}


def test_the_verdict_names_what_au_hides(tmp_path):
    truth = Run(first=5.0, wait=0.001, barrier=0.0)
    run = import_run(read_run(truth.write(tmp_path / "run", "v1.0", logs=False)))
    assert (round(truth.x_ideal * 1000), round(truth.x_ideal_first * 1000)) == (990, 285)
    assert run.figures.verdict == (
        "AU 99.0 %, X/X_ideal 28.5 %: start-up and the excluded first step hide 71 points"
    )
    calm = Run(first=0.0, wait=0.001, barrier=0.0)
    run = import_run(read_run(calm.write(tmp_path / "calm", "v1.0")))
    assert run.figures.verdict.endswith("they agree")


def test_rows_of_logs_are_whole(tmp_path):
    truth = Run()
    imported(truth.write(tmp_path / "run", "v1.0"), tmp_path / "out")
    rows = read_steps(tmp_path / "out")
    assert len(rows) == 2 * 2 * 20 and (rows["compute"] == 0.1).all()
    seconds = rows["wait"] + rows["compute"] + rows["overshoot"] + rows["barrier"]
    assert seconds[rows["rank"] == 0].sum() == pytest.approx(2 * truth.seconds)
    assert rows["step"].max() == 19 and set(rows["epoch"].tolist()) == {0, 1}


def test_the_command_imports_compares_exports_and_imports_again(tmp_path):
    for number, first in enumerate((0.5, 0.6)):
        Run(first=first, ranks=4, hosts=2).write(tmp_path / "in" / f"run{number}", "v1.0")
    done = feedrate("import", tmp_path / "in", "--out", tmp_path / "out")
    assert done.status == 0, done.err
    assert "2 runs" in done.out and "4 accelerators, run1: AU 93.4 %" in done.out
    shown = feedrate("report", tmp_path / "out")
    assert shown.status == 0 and "Imported: measured by another tool." in shown.out
    compared = feedrate("compare", tmp_path / "out", tmp_path / "out", "--html", tmp_path / "page.html")
    assert compared.status == 0, compared.err
    exported = feedrate("export", "--mlperf", tmp_path / "out", "--out", tmp_path / "exported")
    assert exported.status == 0, exported.err
    assert "NOT MET  steps an epoch: 20 were run (required: at least 500; 3, open and closed)" in exported.out
    assert "not an official" in (tmp_path / "exported" / "NOT_A_SUBMISSION.txt").read_text()
    (added,) = (tmp_path / "exported").rglob("run1/*_metadata.json")
    assert added.name == "training_20260101_000000_metadata.json", "without it newer tools see no run of v1.0"
    again = feedrate("import", tmp_path / "exported", "--out", tmp_path / "again")
    assert again.status == 0, again.err
    assert not list((tmp_path / "again").rglob("*_metadata.json")), "and it is none of its documents"
    before, after = (read_result(tmp_path / name).points for name in ("out", "again"))
    assert repr(before) == repr(after)


SHORT = Run(ranks=1, epochs=1, steps=3)
NUMBER = st.floats(0, 1e6, allow_nan=False)
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8)
DOCUMENT = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=8)
@given(
    layout=st.sampled_from(["v1.0", "v2.0", "v3.0"]),
    logs=st.booleans(),
    more=st.dictionaries(TEXT, DOCUMENT, max_size=4),
    au=st.floats(0, 100),
    rate=NUMBER,
    hydra=st.dictionaries(TEXT, DOCUMENT, max_size=3),
)
def test_import_export_import_is_the_identity(tmp_path_factory, layout, logs, more, au, rate, hydra):
    folder = tmp_path_factory.mktemp("identity")
    SHORT.write(folder / "in", layout, logs=logs)
    summary = json.loads((folder / "in" / "summary.json").read_text())
    summary["metric"] |= {"train_au_percentage": [au], "train_throughput_samples_per_second": [rate]}
    (folder / "in" / "summary.json").write_text(json.dumps(more | summary))
    run = read_run(folder / "in")
    write_run(
        RunFolder(**{**_fields(run), "configs": {**run.configs, "hydra.yaml": hydra}}), folder / "first"
    )
    imported(folder / "first", folder / "out")
    export_result(folder / "out", folder / "exported")
    (back,) = map(read_run, find_runs(folder / "exported"))
    assert _fields(back, "name") == _fields(read_run(folder / "first"), "name")
    again = imported(folder / "exported", folder / "again")
    assert repr(again.points) == repr(read_result(folder / "out").points), "repr: NaN is NaN"


def _fields(run: RunFolder, *without: str) -> dict[str, object]:
    return {name: getattr(run, name) for name in RunFolder.__slots__ if name not in without}


def test_what_feedrate_measured_comes_back(tiny, tmp_path):
    done = feedrate(
        "run", tiny, "-w", "unet3d-tiny", "--loader", "direct", "-n", 2, "--epochs", 1, "--cache", "warm",
        "--set", "accelerator.step_seconds=0.02", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.status == 0, done.err
    export_result(tmp_path / "out", tmp_path / "exported")
    (folder,) = find_runs(tmp_path / "exported")
    summary = json.loads((folder / "summary.json").read_text())
    # What MLPerf's own reportgen reads (make test-mlperf runs it).
    assert folder.relative_to(tmp_path / "exported").as_posix().startswith("results/training/unet3d/run/")
    (metadata,) = read_run(folder).metadata.values()
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
    before, after = read_result(tmp_path / "out"), imported(tmp_path / "exported", tmp_path / "back")
    (measured,), (back,) = before.points, after.points
    size = measured.bytes / measured.samples
    assert metric["train_io_mean_MB_per_second"] == pytest.approx(rate * size / 2**20)
    for key in ("ranks", "steps", "samples", "epochs"):
        assert getattr(back, key) == getattr(measured, key)
    rows = read_steps(tmp_path / "out")
    assert back.bytes == pytest.approx(measured.bytes, rel=1e-5)
    assert back.seconds == pytest.approx(loop_seconds(rows))
    assert back.au_first == pytest.approx(measured.au_first, rel=1e-6)
    assert after.environment["imported"][0]["steps_left_out_of_throughput"] == 1
    rules = {rule.name: rule for rule in self_check(before)[0].rules}
    assert rules["accelerators on a host"].met and rules["shuffle seeds"].met
    assert rules["steps an epoch"].met is False and rules["parameters of the workload"].met is False


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
            export_result(tmp_path / "out", tmp_path / "exported")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert not (tmp_path / "exported").exists()
    export_result(tmp_path / "out", tmp_path / "exported")
    (run,) = map(read_run, find_runs(tmp_path / "exported"))
    assert run.summary["epochs"] == 1 and set(run.logs["1"]) == {"1", "hostname"}
    config = run.configs["config.yaml"]["workload"]["dataset"]
    assert run.summary["num_samples_per_file"] == config["num_samples_per_file"] == 1251


def test_the_rules_that_imported_runs_meet(tmp_path):
    good = Run(steps=500, ranks=2, hosts=2, first=0.1, wait=0.0, barrier=0.0, epochs=1, record=100_000_000)
    for number in range(6):
        good.write(tmp_path / "in" / f"run{number}", "v2.0", logs=False, seed=number)
    (check,) = self_check(imported(tmp_path / "in", tmp_path / "out"))
    workload = ["epochs that were run", "samples that were read", "spread of sizes"]
    workload += ["parameters of the workload", "checkpoint of the training"]
    assert not check.open and [rule.name for rule in check.rules if not rule.met] == workload
    alone = Run(epochs=1).write(tmp_path / "alone" / "run1", "v2.0")
    (check,) = self_check(imported(alone, tmp_path / "out2"))
    assert [rule.name for rule in check.rules if rule.met is None] == [
        "warm-up run before them", "spread of the runs' throughput", "shuffle seeds", workload[-1],
    ]  # fmt: skip


def test_a_result_without_a_configuration_needs_a_workload(tmp_path):
    folder = Run().write(tmp_path / "run", "v1.0", logs=False)
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
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_summary_is_one_clear_line(tmp_path, damage):
    folder = Run().write(tmp_path / "run", "v1.0")
    summary = json.loads((folder / "summary.json").read_text()) | DAMAGES[damage]
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(SpecError) as raised:
        import_folder(tmp_path)
    assert "summary.json" in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["block", "blockx", "block" + "9" * 5000])
def test_a_log_with_odd_blocks_is_one_clear_line(tmp_path, name):
    log = Run().write(tmp_path / "run", "v1.0") / "1_output.json"
    log.write_text(log.read_text().replace("block1", name))
    with pytest.raises(SpecError, match="other names than"):
        import_folder(tmp_path, strict=True)
    note = import_folder(tmp_path).notes["run"][0]
    assert note.startswith("its logs: run/1_output.json") and "other names than" in note


def test_runs_of_checkpoints_without_a_model_are_left_out(tmp_path):
    for number in range(2):
        Run().write(tmp_path / f"run{number}", "v2.0", logs=False)
    path = tmp_path / "run1" / "summary.json"
    metric = {"save_checkpoint_io_mean_GB_per_second": [1.0]}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metric": metric}))
    imports = import_folder(tmp_path)
    (runs,) = imports.groups.values()
    assert [imported.run.name for imported in runs] == ["run0"]
    assert "checkpoints" in imports.skipped["run1"]
    with pytest.raises(SpecError, match="no run could be imported"):
        import_folder(tmp_path / "run1")


def test_links_and_names_lead_nowhere(tmp_path):
    Run().write(tmp_path / "in" / "run0", "v1.0")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    assert len(find_runs(tmp_path / "in")) == 1
    imported(tmp_path / "in", tmp_path / "out")
    kept = tmp_path / "out" / "mlperf-00000.json"
    text = kept.read_text()
    kept.write_text(text.replace('"config.yaml"', '"../../../../escaped"'))
    with pytest.raises(SpecError, match="have names"):
        export_result(tmp_path / "out", tmp_path / "exported")
    kept.write_text(text.replace('"name": "run0"', '"name": "../../../../escaped"'))
    export_result(tmp_path / "out", tmp_path / "exported")
    assert not [path for path in tmp_path.rglob("escaped") if tmp_path / "exported" not in path.parents]
    assert not list(tmp_path.parent.glob("escaped"))
    assert len(find_runs(tmp_path / "exported")) == 1
    with pytest.raises(SpecError, match="is not empty"):
        export_result(tmp_path / "out", tmp_path / "exported")
