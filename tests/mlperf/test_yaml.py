"""`feedrate import` of YAML: what comes along, what is listed, and what is refused before it does harm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from artefacts import LLAMA, UNET3D
from command import feedrate
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.config.recipe import load_recipe
from emulator.config.workload import load_workload
from emulator.dataset.sizes import sizes_of
from emulator.errors import FeedrateError, SpecError
from emulator.plugins.mlperf.bounded import parse_json, parse_yaml
from emulator.plugins.mlperf.config import read_config
from emulator.plugins.mlperf.workload import Converted, convert, recipe_text


def converted(tmp_path: Path, text: str = UNET3D, name: str = "unet3d_h100.yaml") -> Converted:
    """The workload that the YAML `text` becomes."""
    path = tmp_path / name
    path.write_text(text)
    return convert(read_config(path), "job")


def test_a_workload_comes_along(tmp_path):
    spec = converted(tmp_path).workload
    known = load_workload("unet3d-h100")
    assert spec.sample == replace(known.sample, recipe="") and spec.accelerator == known.accelerator
    assert (spec.loader.batch_size, spec.loader.workers, spec.loader.prefetch) == (7, 4, 4)
    assert spec.training.epochs == 5 and spec.training.au_threshold == 0.9 and spec.training.sync == "step"
    assert spec.loader.crop == (128, 128, 128), "DLIO makes one size of all samples, too"
    assert spec.loader.refill == "persistent"


RESNET50 = """\
model: resnet50
framework: tensorflow
dataset: {num_files_train: 1024, num_samples_per_file: 1251, record_length: 114660.07, format: tfrecord}
reader: {data_loader: tensorflow, read_threads: 8, computation_threads: 8, batch_size: 400}
train: {computation_time: 0.224, epochs: 5}
metric: {au: 0.90}
"""


def test_tfrecords_are_read_as_tf_data_reads_them(tmp_path):
    spec = converted(tmp_path, RESNET50, name="resnet50_h100.yaml").workload
    known = load_workload("resnet50-h100")
    assert spec.sample == replace(known.sample, recipe="")
    for section in ("access", "loader", "accelerator"):
        assert getattr(spec, section) == getattr(known, section)
    shuffled = RESNET50.replace("batch_size: 400", "batch_size: 400, sample_shuffle: seed, shuffle_size: 2")
    assert converted(tmp_path, shuffled).workload.access.shuffle_buffer == 2


def test_unknown_and_unused_keys_are_listed(tmp_path):
    listed = {item.key: item.why for item in converted(tmp_path).left_out}
    assert listed["reader.colour"].startswith("unknown")
    assert "dataset.num_files_train" in listed and "workflow.train" in listed
    assert not any(why.startswith("unknown") for key, why in listed.items() if key != "reader.colour")
    assert not any(key in listed for key in ("reader.batch_size", "train.computation_time", "metric.au"))
    skips = UNET3D.replace("reader:", "  skip_listing: True\n  listing_validation_interval: 10\nreader:")
    whys = {item.key: item.why for item in converted(tmp_path, skips).left_out}
    assert (
        whys["dataset.skip_listing"] == whys["dataset.listing_validation_interval"] != whys["reader.colour"]
    )
    varied = UNET3D.replace(
        "computation_time: 0.323", "computation_time: {mean: 1, stdev: 0.1, type: normal}"
    )
    left = {item.key: item.why for item in converted(tmp_path, varied).left_out}
    assert left["train.computation_time.stdev"] == "every step takes the same time"
    table = UNET3D.replace("record_length: 146600628", "record_length: {a: 1}")  # DLIO's default is used
    assert "dataset.record_length.a" in [item.key for item in converted(tmp_path, table).left_out]


def test_prefetch_is_a_share_of_each_worker(tmp_path):
    text = UNET3D.replace("batch_size: 7", "batch_size: 8\n  prefetch_size: 9")
    spec = converted(tmp_path, text).workload
    assert spec.loader.batch_size == spec.accelerator.step_batch_size == 8
    assert spec.loader.prefetch == 12, "three batches for each of four workers"
    assert spec.accelerator.provenance == "chosen" and spec.accelerator.name == "NVIDIA H100"


def test_a_configuration_as_hydra_saves_it(tmp_path):
    inner = "\n".join("  " + line for line in UNET3D.splitlines())
    assert converted(tmp_path, f"workload:\n{inner}\nhydra: {{}}\n").workload.loader.batch_size == 7
    with pytest.raises(SpecError, match="import the workload's own"):
        converted(tmp_path, "defaults:\n - workload: unet3d_h100\n", name="config.yaml")
    with pytest.raises(SpecError, match="train is at the top and in workload"):
        converted(tmp_path, UNET3D + "workload: {train: {epochs: 6}}\n")


@pytest.mark.parametrize(
    ("dims", "size"),
    [
        ("record_dims: [1024, 1024], record_element_type: float32", 4_194_304),
        ("record_dims: [1024, 1024], record_length_bytes: 5", 1_048_576),
        ("record_length_bytes: 5", 5),
    ],
)
def test_the_shape_of_a_record_gives_its_bytes(tmp_path, dims, size):
    text = (
        f"model: x\nframework: pytorch\ndataset: {{format: hdf5, {dims}}}\ntrain: {{computation_time: 1}}\n"
    )
    found = converted(tmp_path, text)
    assert found.workload.sample.bytes_mean == size
    listed = [item.key for item in found.left_out]
    assert ("dataset.record_length_bytes" in listed) == ("record_dims" in dims and "_bytes" in dims)
    assert not any(key.startswith("dataset.record_dims") for key in listed)


@pytest.mark.parametrize(
    "dims",
    ["[0, 3]", "3", "[a]", "[3], record_element_type: O", "[3], record_element_type: x",
     "[3], record_length_bytes_stdev: 2"],
)  # fmt: skip
def test_records_without_a_shape_are_refused(tmp_path, dims):
    with pytest.raises(SpecError, match="record"):
        converted(tmp_path, f"dataset: {{format: hdf5, record_dims: {dims}}}\n")


def test_the_command_writes_a_workload_and_a_recipe(tmp_path):
    (tmp_path / "unet3d_h100.yaml").write_text(UNET3D)
    out, recipe = tmp_path / "mine.toml", tmp_path / "recipe.toml"
    done = feedrate("import", tmp_path / "unet3d_h100.yaml", "--out", out, "--recipe", recipe)
    assert done.status == 0, done.err
    assert "reader.colour = blue: unknown" in done.out
    spec = load_workload(str(out))
    assert (spec.name, spec.loader.batch_size, spec.training.epochs) == ("mine", 7, 5)
    assert spec.sources["accelerator.step_seconds"] == "unet3d_h100.yaml: train.computation_time"
    made = load_recipe(str(recipe))
    assert (made.files, made.format, made.size.bytes_sd) == (168, "npz", 68341808)
    same = feedrate("import", tmp_path / "unet3d_h100.yaml", "--out", out, "--recipe", out, "--force")
    assert same.status == 2 and load_workload(str(out)) == spec
    again = feedrate("import", tmp_path / "unet3d_h100.yaml", "--out", out)
    assert again.status == 2 and "exists already" in again.one_line()


BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE = {
    "bomb": BOMB,
    "merge bomb": "a: &a {k: 1}\nb: &b {<<: [" + ",".join(["*a"] * 30000) + "]}\n",
    "itself": "a: &a [*a]\n",
    "deep flow": "[" * 5000,
    "deep blocks": "\n".join(" " * n + "a:" for n in range(300)),
    "python": "model: !!python/object/apply:os.system ['touch pwned']\n",
    "binary": "model: !!binary aGVsbG8=\n",
    "date": "model: 2001-99-99\n",
    "nan": UNET3D.replace("0.323", ".nan"),
    "infinity": UNET3D.replace("0.323", ".inf"),
    "huge": UNET3D.replace("146600628", "9" * 400),
    "large": UNET3D.replace("146600628", "9" * 30),
    "negative": UNET3D.replace("batch_size: 7", "batch_size: -7"),
    "zero": UNET3D.replace("batch_size: 7", "batch_size: 0"),
    "defaults": "defaults: 3\n",
    "a list": UNET3D.replace("batch_size: 7", "batch_size: [7]"),
    "interpolation": UNET3D.replace("batch_size: 7", "batch_size: ${oc.env:HOME}"),
    "sexagesimal": UNET3D.replace("0.323", "99999999:59:59:59:59:59:59:59:59.0"),
    "empty": "",
    "text": "hello",
    "two": "a: 1\n---\nb: 2\n",
    "nul": UNET3D.replace("model: unet3d", 'model: "a\\0b"'),
    "a key twice": "model: other\n" + UNET3D,
    "half a character": 'model: "\\ud800"\n',
    "long": "model: " + "x" * 300_000,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_yaml_is_refused_in_one_line(tmp_path, case):
    with pytest.raises(FeedrateError) as raised:
        converted(tmp_path, HOSTILE[case])
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 600
    assert not (tmp_path / "pwned").exists()


VALUES = ("Infinity", "1e999", "9" * 5000, "1" + "0" * 30, '1, "a": 2', r'"\ud800"', r'"\u0000"')


@pytest.mark.parametrize("text", ["[" * 100_000, *(f'{{"a": {value}}}' for value in VALUES), "{", ""])
def test_hostile_json_is_refused(text):
    with pytest.raises(SpecError) as raised:
        parse_json(text, "x.json")
    assert len(str(raised.value)) < 400


def test_a_key_that_is_a_number_and_text_is_refused():
    with pytest.raises(SpecError, match="same key"):
        parse_yaml("0x1: a\n'1': b\n", "x.yaml")


TOKENS = [*"{[]}:|%-~\n\t", "&a", "*a", "!!", "- ", "  ", "<<: ", "? ", "0x", "1e9", "9" * 20, ".inf"]


@settings(max_examples=40)
@given(data=st.data())
def test_mutated_yaml_gives_a_workload_or_a_clear_error(data, tmp_path_factory):
    text = UNET3D
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 12))
        new = data.draw(st.sampled_from(TOKENS) | st.text(max_size=4))
        text = text[:at] + new + text[at + cut :]
    path = tmp_path_factory.getbasetemp() / "mutated.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        convert(read_config(path), "job")
    except FeedrateError as error:
        assert "\n" not in str(error)


DLRM = """\
model: {name: dlrm}
framework: pytorch
workflow: {generate_data: False, train: True, checkpoint: False}
dataset:
  format: parquet
  num_files_train: 3
  num_samples_per_file: 1000
  record_length_bytes: 15
  parquet:
    row_group_size: 100
    read_mode: row_group
    columns:
      - {name: a, dtype: float32, read: true}
      - {name: b, dtype: float64, read: false}
      - {name: c, dtype: int8, read: false}
      - {name: d, dtype: float16}
reader: {data_loader: pytorch, batch_size: 20, read_threads: 4, prefetch_size: 2}
train: {epochs: 1, computation_time: 0.01}
metric: {au: 0.7}
"""


def test_of_parquet_only_the_columns_that_are_read_are_asked_for(tmp_path):
    spec = converted(tmp_path, DLRM, name="dlrm_b200.yaml").workload
    assert (spec.access.pattern, spec.access.streams) == ("sequential", 4)
    assert spec.access.columns == ("a", "d")  # DLIO reads a column that does not say whether
    assert spec.sample.bytes_read == 4 + 2 and spec.access.chunk_bytes == 100 * 6 // 2
    assert spec.sample_read.bytes_mean == 6 and spec.sample.bytes_mean == 15
    (tmp_path / "x.yaml").write_text(DLRM)
    out, recipe = tmp_path / "mine.toml", tmp_path / "recipe.toml"
    done = feedrate("import", tmp_path / "x.yaml", "--out", out, "--recipe", recipe)
    assert done.status == 0 and "asks for 12 kB/s" in done.out, done.err
    made = load_recipe(str(recipe))
    assert [(column.name, column.dtype) for column in made.columns][2:] == [("c", "int8"), ("d", "float16")]
    assert (made.row_group, made.samples_per_file, made.files) == (100, 1000, 3)
    assert load_workload(str(out)).access == spec.access


@pytest.mark.parametrize(
    "columns",
    ["[{dtype: int8}]", "[{name: a, dtype: text}]", "[{name: a, size: 0}]", "[{name: a, read: no}]"],
)
def test_columns_that_are_none(tmp_path, columns):
    start, end = DLRM.index("      - {name: a"), DLRM.index("reader:")
    text = DLRM[:start].rstrip() + " " + columns + "\n" + DLRM[end:]
    with pytest.raises(SpecError, match="columns"):
        converted(tmp_path, text)


OTHERS = {
    "vector database": "database: {host: x}\ndataset: {num_vectors: 10}\nindex: {index_type: HNSW}\n",
    "key-value cache": "user_templates: {chatbot: {context_range: [1, 2]}}\nmodel: {}\n",
    "describes checkpoints": LLAMA,
    "generates a dataset": UNET3D.replace("generate_data: False", "generate_data: True").replace(
        "train: True", "train: False"
    ),
    "3 samples a file": UNET3D.replace("per_file: 1", "per_file: 3"),
    "does not train": UNET3D.replace("train: True", "train: False"),
    "format indexed_binary": UNET3D.replace("format: npz", "format: indexed_binary"),
    "aliases are not read": BOMB,
    "no section dataset or train": "model: {name: x}\nframework: pytorch\nworkflow: {train: True}\n",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_training_is_refused_by_its_kind(tmp_path, kind):
    (tmp_path / "x.yaml").write_text(OTHERS[kind])
    out, recipe = tmp_path / "x.toml", tmp_path / "recipe.toml"
    done = feedrate("import", tmp_path / "x.yaml", "--out", out, "--recipe", recipe)
    assert done.status == 2 and kind in done.one_line()
    assert [path.name for path in tmp_path.iterdir()] == ["x.yaml"]


def test_a_file_that_generates_a_dataset_is_a_recipe(tmp_path):
    text = UNET3D.replace("generate_data: False", "generate_data: True").replace(
        "train: True", "train: False"
    )
    (tmp_path / "unet3d_datagen.yaml").write_text(text[: text.index("reader:")])
    done = feedrate("import", tmp_path / "unet3d_datagen.yaml", "--out", tmp_path / "recipe.toml")
    assert done.status == 0 and "feedrate generate DIR --recipe" in done.out, done.err
    made = load_recipe(str(tmp_path / "recipe.toml"))
    assert (made.files, made.format, made.size.bytes_sd) == (168, "npz", 68341808)


def test_direct_fs_has_64_files_in_flight_for_each_worker(tmp_path):
    spec = converted(tmp_path, UNET3D + "storage: {storage_type: direct_fs}\n").workload
    assert spec.loader.workers == 4 * 64 and spec.loader.prefetch * 7 >= 4 * 64
    assert "direct_fs" in spec.sources["loader.workers"]


def test_an_imported_job_has_a_crop_that_every_sample_holds(tmp_path):
    text = UNET3D.replace("146600628", "1000000").replace("68341808", "450000")
    done = converted(tmp_path, text)
    (tmp_path / "recipe.toml").write_text(recipe_text(done, "job.yaml"))
    shapes = sizes_of(load_recipe(str(tmp_path / "recipe.toml")).size, 0).shapes(np.arange(20_000))
    (edge,) = set(done.workload.loader.crop)
    assert shapes.min() * 0.9 <= edge <= shapes.min()
