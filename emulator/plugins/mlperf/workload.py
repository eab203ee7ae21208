"""Import a YAML file of DLIO as TOML: a training as a workload, a generated dataset as a recipe.

The tables of keys are from the workload files of MLPerf Storage v1.0 to v3.0 and of DLIO 1.0 to 2.0. A key in
neither table is listed as unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from emulator.config.catalog import names
from emulator.config.reader import Source, build, stated, toml_text
from emulator.config.recipe import Recipe, SizeSpec
from emulator.config.workload import SampleSpec, Workload, load_workload
from emulator.dataset.formats import format_named
from emulator.dataset.sizes import sizes_of
from emulator.errors import SpecError
from emulator.files import refuse_existing
from emulator.plugins.mlperf.config import Config, read_config
from emulator.plugins.mlperf.published import within
from emulator.record.out import write_output
from emulator.registry import FORMATS
from emulator.units import BLOCK_BYTES

USED = {
    "model": "",
    "model.name": "",
    "dataset.format": "sample.format",
    "dataset.record_length": "sample.bytes_mean",
    "dataset.record_length_bytes": "sample.bytes_mean",
    "dataset.record_dims": "sample.bytes_mean",
    "dataset.record_element_type": "sample.bytes_mean",
    "dataset.record_length_stdev": "sample.bytes_sd",
    "dataset.record_length_bytes_stdev": "sample.bytes_sd",
    "dataset.num_samples_per_file": "sample.samples_per_file",
    "dataset.parquet.columns": "access.columns",
    "reader.batch_size": "loader.batch_size",
    "reader.read_threads": "loader.workers",
    "reader.prefetch_size": "loader.prefetch",
    "reader.transfer_size": "loader.block_bytes",
    "train.epochs": "training.epochs",
    "train.seed": "training.shuffle_seed",
    "train.computation_time": "accelerator.step_seconds",
    "train.computation_time.mean": "accelerator.step_seconds",
    "metric.au": "training.au_threshold",
}
"""Workload keys by DLIO key; empty for a key that only the title uses."""

_UNUSED = """
model: feedrate emulates only the time of the model's step
workflow.generate_data: use feedrate generate
workflow.train: feedrate run and sweep always train
train.total_training_steps: use feedrate run and sweep --steps
storage: use feedrate run and sweep --storage
output: use feedrate run and sweep --out
reader.odirect: feedrate run --cache cold bypasses the page cache
framework reader.data_loader reader.data_loader_classname: feedrate has its own loaders
reader.data_loader_sampler reader.reader_classname: feedrate has its own loaders
reader.multiprocessing_context reader.dont_use_mmap: feedrate has its own loaders
reader.file_access reader.read_type reader.pin_memory: feedrate has its own loaders
reader.file_shuffle reader.sample_shuffle train.seed_change_epoch: feedrate reshuffles by seed in every epoch
reader.shuffle_size: tf.data's buffer; for TFRecord it becomes access.shuffle_buffer
dataset.file_prefix dataset.generation_buffer_size dataset.keep_files: an option of DLIO's generator
dataset.enable_chunking dataset.chunk_size dataset.chunking dataset.hdf5: an option of DLIO's generator
dataset.compression dataset.compression_level: an option of DLIO's generator
dataset.data_folder: feedrate generate, run and sweep take the folder as an argument
dataset.num_files_train: use feedrate generate DIR --files
dataset.skip_listing dataset.listing_validation_interval: how DLIO finds the files before it reads
dataset.num_subfolders_train: use feedrate generate DIR --subfolders
dataset.parquet.row_group_size: part of the recipe (feedrate import --recipe)
dataset.parquet: feedrate uses only columns and row groups
dataset.record_length_resize dataset.record_length_bytes_resize: DLIO's constant in place of the sample
reader.computation_threads reader.preprocess_time reader.preprocess_time_stdev: preprocessing is not emulated
reader.transformed_record_dims reader.transformed_record_element_type: preprocessing is not emulated
train.computation_time train.computation_time_stdev: every step takes the same time
evaluation workflow.evaluation workflow.do_eval dataset.num_files_eval: evaluation is not emulated
dataset.num_subfolders_eval dataset.eval_num_samples_per_file: evaluation is not emulated
reader.batch_size_eval train.total_eval_steps: evaluation is not emulated
checkpoint workflow.checkpoint: use feedrate checkpoint
profiling workflow.debug workflow.profiling workflow.profile: an option of DLIO's profiler
"""
"""Reasons why DLIO keys, or whole tables, are not used."""
UNUSED = {
    key: why
    for keys, _, why in (line.partition(": ") for line in _UNUSED.strip().splitlines())
    for key in keys.split()
}

_ACCELERATORS = {
    "v100": "NVIDIA V100",
    "a100": "NVIDIA A100",
    "h100": "NVIDIA H100",
    "b200": "NVIDIA B200",
    "mi355": "AMD Instinct MI355X",
}
_DIRECT_FS_REQUESTS = 64
"""Files that a worker of DLIO's storage type direct_fs reads at the same time."""
_RECIPE_RANGE = 3.0
"""Standard deviations of ln(bytes) from the median beyond which no size is drawn."""
_LARGEST_SAMPLE = 2**32 - 2**20


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A key of the configuration that the workload does not have."""

    key: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetColumn:
    """A column of a Parquet dataset, in DLIO's keys."""

    name: str
    dtype: Literal[
        "float64", "float32", "float16", "int64", "int32", "int16", "int8",
        "uint64", "uint32", "uint16", "uint8", "bool",
    ] = "float32"  # fmt: skip
    size: int = 1
    """Values in a row."""
    read: bool = True

    def __post_init__(self) -> None:
        within(1, 1e9, self, "size")

    @property
    def bytes(self) -> int:
        """Bytes of a row."""
        return np.dtype(self.dtype).itemsize * self.size


@dataclass(frozen=True, slots=True)
class Converted:
    """A workload, and the keys of its configuration that were left out."""

    config: Config
    workload: Workload
    left_out: tuple[LeftOut, ...]


def convert(config: Config, name: str) -> Converted:
    """Convert `config` to the workload `name`. Raises SpecError."""
    form = config.text("dataset.format", "tfrecord")
    reader = config.text("reader.data_loader", config.text("framework", "tensorflow"))
    tf_data = form == "tfrecord" and reader == "tensorflow"
    columns = _columns(config)
    accelerator = _accelerator(config)
    table: dict[str, Any] = {
        "name": name,
        "title": f"{config.model('a model')}, {accelerator['name']}, as DLIO's YAML describes it",
        "sample": {
            "format": form,
            "bytes_mean": _sample_bytes(config, columns),
            "bytes_sd": _record_bytes(config, "_stdev", 0),
            "samples_per_file": _samples_per_file(config, form),
            "bytes_read": _bytes_read(columns),
        },
        "access": _access(config, tf_data, columns),
        "loader": _loading(config, tf_data),
        "accelerator": accelerator,
        "training": {
            "epochs": config.whole("train.epochs", 1),
            "sync": "step",
            "au_threshold": float(config.number("metric.au", 0.9) or 0.0),
            "shuffle_seed": config.whole("train.seed", 123),
        },
        "sources": _sources(config, tf_data, form),
    }
    try:
        workload = build(Workload, table, Source(config.name))
    except SpecError as error:
        raise SpecError(f"{error.what} (as converted from DLIO's keys)", error.hint) from None
    if crop := _crop(workload.sample):
        workload = replace(workload, loader=replace(workload.loader, crop=crop))
    return Converted(config=config, workload=workload, left_out=tuple(_left_out(config, workload)))


# ---- Sections of the workload.


def _sample_bytes(config: Config, columns: Sequence[ParquetColumn]) -> int:
    """Return the mean bytes of a sample. Raises SpecError."""
    dims = config.at("dataset.record_dims")
    if not dims:
        return _record_bytes(config, "", sum(column.bytes for column in columns) or 64 * 1024)
    if not isinstance(dims, list) or not all(type(edge) is int and 0 < edge < 2**40 for edge in dims):
        raise SpecError(f"{config.name}: dataset.record_dims must be a list of whole numbers above 0")
    if _record_bytes(config, "_stdev", 0):
        raise SpecError(
            f"{config.name}: records of dataset.record_dims have one size, but a standard deviation is given",
            "DLIO refuses this, too: remove one of the two",
        )
    return math.prod(dims) * _element_bytes(config)


def _element_bytes(config: Config) -> int:
    """Return the bytes of one number of a record. Raises SpecError."""
    name = config.text("dataset.record_element_type", "uint8")
    try:
        element = np.dtype(name)
    except TypeError:
        element = np.dtype(object)
    if element.kind not in "biuf":  # booleans, integers, floats
        raise SpecError(f"{config.name}: dataset.record_element_type {name!r} is not a type of numbers")
    return element.itemsize


def _record_bytes(config: Config, suffix: str, default: int) -> int:
    """Return the number under v2.0's name of a key, or under its older name."""
    older = config.whole(f"dataset.record_length{suffix}", default)
    return config.whole(f"dataset.record_length_bytes{suffix}", older)


def _samples_per_file(config: Config, form: str) -> int:
    """Return the samples of a file. Raises SpecError if the format has one in feedrate."""
    samples = config.whole("dataset.num_samples_per_file", 1)
    if samples > 1 and form in FORMATS and not format_named(form).many:
        what = f"{config.name}: {samples} samples a file, but feedrate's {form} files hold one"
        raise SpecError(what, "set it to 1 in the file, with as many files as samples")
    return samples


def _workers(config: Config) -> int:
    workers = max(1, config.whole("reader.read_threads", 1))
    return workers * _DIRECT_FS_REQUESTS if _is_direct_fs(config) else workers


def _is_direct_fs(config: Config) -> bool:
    return config.text("storage.storage_type") == "direct_fs"


def _bytes_read(columns: Sequence[ParquetColumn]) -> int:
    """Return the bytes of a row in the columns that are read; 0 if all are."""
    read = [column for column in columns if column.read]
    return sum(column.bytes for column in read) if len(read) < len(columns) else 0


def _access(config: Config, tf_data: bool, columns: Sequence[ParquetColumn]) -> dict[str, Any]:
    """Return the table `access` of the workload. Raises SpecError when no column is read."""
    if tf_data:  # files from their start, several at a time, through a shuffle buffer
        shuffled = config.text("reader.sample_shuffle", "off") in ("seed", "random")
        buffer = config.whole("reader.shuffle_size", 1024) if shuffled else 0
        return {"pattern": "sequential", "streams": _workers(config), "shuffle_buffer": buffer}
    if config.text("dataset.format") != "parquet":
        return {"pattern": "random"}
    # Row groups of a few files in turn.
    access: dict[str, Any] = {"pattern": "sequential", "streams": _workers(config)}
    read = [column for column in columns if column.read]
    if columns and not read:
        raise SpecError(f"{config.name}: dataset.parquet.columns has no column that is read")
    if len(read) < len(columns):
        chunk = config.whole("dataset.parquet.row_group_size") * _bytes_read(columns) // len(read)
        access |= {"columns": [column.name for column in read], "chunk_bytes": chunk}
    return access


def _loading(config: Config, tf_data: bool) -> dict[str, Any]:
    """Return the table `loader` of the workload, without a crop."""
    workers, batch = _workers(config), config.whole("reader.batch_size", 1)
    prefetch = config.whole("reader.prefetch_size", 2)
    if not tf_data:
        # PyTorch gives every worker its share of the batches, rounded up, or 2 by default.
        threads = max(1, config.whole("reader.read_threads", 1))
        prefetch = threads * (math.ceil(prefetch / threads) if prefetch else 2)
    if _is_direct_fs(config):
        prefetch = max(prefetch, math.ceil(workers / max(1, batch)))
    block = config.whole("reader.transfer_size") or (256 << 10 if tf_data else 4 << 20)
    return {
        "batch_size": batch,
        "workers": workers,
        "prefetch": max(1, prefetch),
        "block_bytes": max(BLOCK_BYTES, block // BLOCK_BYTES * BLOCK_BYTES),
        "crop": [],
        "refill": "epoch" if tf_data else "persistent",
    }


def _accelerator(config: Config) -> dict[str, Any]:
    # No key names the accelerator, but the name of the file or of the chosen workload ends in it.
    choice = config.choice.lower()
    suffixes = (end for end in _ACCELERATORS if re.search(rf"[_-]{end}(?![a-z0-9])", choice))
    batch = config.whole("reader.batch_size", 1)
    seconds = float(config.number("train.computation_time") or 0.0)
    return {
        "name": _ACCELERATORS.get(next(suffixes, ""), "accelerator not stated"),
        "step_seconds": seconds,
        "step_batch_size": batch,
        "provenance": _provenance(batch, seconds),
    }


@cache  # for trees with hundreds of configurations
def _provenance(batch: int, seconds: float) -> str:
    """Return the provenance of the catalogue's accelerator with this step, or `chosen`."""
    known = (load_workload(name).accelerator for name in names("workloads"))
    same = (a.provenance for a in known if (a.step_batch_size, a.step_seconds) == (batch, seconds))
    return next(same, "chosen")


def _columns(config: Config) -> tuple[ParquetColumn, ...]:
    """Return the columns of a Parquet dataset; empty if not given. Raises SpecError."""
    listed = config.at("dataset.parquet.columns") if config.text("dataset.format") == "parquet" else None
    known = {field.name for field in fields(ParquetColumn)}
    columns = []
    for number, item in enumerate(listed if isinstance(listed, list) else []):
        where = ("dataset", "parquet", "columns", f"[{number}]")
        table = {key: item[key] for key in item if key in known} if isinstance(item, Mapping) else item
        columns.append(build(ParquetColumn, table, Source(config.name), where))
    return tuple(columns)


def _sources(config: Config, tf_data: bool, form: str) -> dict[str, str]:
    """Return the DLIO key or default that each workload key came from."""
    file = Path(config.name).name
    sources = {target: "DLIO's default" for target in USED.values() if target}
    sources["loader.block_bytes"] = "not stated: 256 KiB as in tf.data, elsewhere feedrate's own"
    sources |= {USED[key]: f"{file}: {key}" for key, _ in config.leaves() if USED.get(key)}
    sources["loader.crop"] = "chosen: a cube that every sample holds, at most 128 an edge; records are whole"
    sources["accelerator.step_batch_size"] = "reader.batch_size: DLIO computes as long at any of them"
    sources["training.sync"] = "DLIO: a barrier after every step"
    if not tf_data:
        sources["loader.refill"] = "DLIO: a DataLoader with persistent workers, begun anew in every epoch"
    if tf_data or form == "parquet":
        sources["access.streams"] = f"{file}: reader.read_threads"
    if _is_direct_fs(config):
        requests = f"direct_fs, {_DIRECT_FS_REQUESTS} files for each of reader.read_threads"
        sources["loader.workers"] = f"{file}: {requests}; --loader direct has no process for each"
    if form != "parquet":
        del sources["access.columns"]
    return dict(sorted(sources.items()))


def _left_out(config: Config, workload: Workload) -> Iterator[LeftOut]:
    for key, value in config.leaves():
        if why := _why_unused(config, key, value):
            yield LeftOut(key, value, why)
    transfer, block = config.whole("reader.transfer_size"), workload.loader.block_bytes
    if transfer and transfer != block:
        yield LeftOut("reader.transfer_size", transfer, f"requests are whole pages: {block} is used")


def _why_unused(config: Config, key: str, value: Any) -> str:
    """Return why a key of the configuration is not used; empty if it is."""
    if key in USED:
        if isinstance(value, str) and "${" in value:
            return "interpolations of Hydra are not evaluated"
        if key.startswith("dataset.record_length") and config.at("dataset.record_dims"):
            return "dataset.record_dims takes precedence, as in DLIO"
        return ""
    table = key
    while table and table not in UNUSED:
        table = table.rpartition(".")[0]
    return UNUSED.get(table, "unknown: no key of DLIO 2.0 or of MLPerf Storage v1.0 to v3.0")


def workload_text(converted: Converted, origin: str) -> str:
    """Return the workload as TOML, with the keys that were left out as comments."""
    lines = [f"Imported by feedrate from {origin}."]
    if converted.left_out:
        lines.append("Left out of it:")
    for item in converted.left_out:
        value = str(item.value)
        lines.append(f"  {item.key} = {value if len(value) <= 60 else value[:57] + '...'}: {item.why}")
    return "".join(map(comment, lines)) + toml_text(stated(converted.workload))


# ---- The recipe.


def recipe_text(converted: Converted, origin: str) -> str:
    """Return a recipe, as TOML, for the dataset that the YAML describes. Raises SpecError.

    Sizes are lognormal with the stated mean and standard deviation. DLIO draws a product of two normals, with
    a standard deviation a third smaller than stated.
    """
    config, sample = converted.config, converted.workload.sample
    table: dict[str, Any] = {
        "name": converted.workload.name,
        "title": converted.workload.title,
        "format": sample.format,
        "files": config.whole("dataset.num_files_train") or 1,
        "samples_per_file": sample.samples_per_file,
        "row_group": config.whole("dataset.parquet.row_group_size") if sample.format == "parquet" else 0,
        "size": _sizes(sample),
    }
    if columns := _columns(config):
        table["size"] = {"distribution": "fixed", "shape": "flat", "bytes_mean": sample.bytes_mean}
        table["columns"] = [
            {"name": column.name, "dtype": column.dtype, "size": 0 if column.size == 1 else column.size}
            for column in columns
        ]
    try:
        build(Recipe, table, Source("the recipe"))
    except SpecError as error:
        raise SpecError(f"no recipe for this dataset: {error.what}", error.hint) from None
    return comment(f"Imported by feedrate from {origin}.") + toml_text(table)


def _sizes(sample: SampleSpec) -> dict[str, Any]:
    """Return the table `size` of a recipe with such samples."""
    if not sample.bytes_sd:
        return {"distribution": "fixed", "bytes_mean": sample.bytes_mean}
    sigma = math.sqrt(math.log1p((sample.bytes_sd / sample.bytes_mean) ** 2))
    median = sample.bytes_mean * math.exp(-(sigma**2) / 2)
    return {
        "distribution": "lognormal",
        "bytes_mean": sample.bytes_mean,
        "bytes_sd": sample.bytes_sd,
        "bytes_min": max(1, math.floor(median * math.exp(-_RECIPE_RANGE * sigma))),
        "bytes_max": min(_LARGEST_SAMPLE, math.ceil(median * math.exp(_RECIPE_RANGE * sigma))),
    }


@cache
def _crop(sample: SampleSpec) -> tuple[int, ...]:
    """Return a cube of voxels that every sample of the recipe holds; () for samples that are no volumes.

    Volumes of different shapes make no batch, and whole ones make a batch of gigabytes.
    """
    if sample.format not in FORMATS or sample.samples_per_file > 1 or sample.format == "parquet":
        return ()
    if format_named(sample.format).records:
        return ()
    try:
        sizes = sizes_of(build(SizeSpec, _sizes(sample)), 0)
    except SpecError:  # too small for a volume
        return ()
    # Sizes are drawn by quantiles: 4096 samples include the extremes. MLPerf's crop has an edge of 128.
    edge = min(128, int(sizes.shapes(np.arange(4096)).min()))
    return (edge, edge, edge)


def comment(line: str) -> str:
    """Return `line` as a TOML comment, without control characters, which TOML forbids."""
    return "# " + "".join(letter if letter.isprintable() else " " for letter in line) + "\n"


# ---- The command.


def import_yaml(path: Path, out: Path, recipe: Path | None = None, *, force: bool = False) -> Converted:
    """Write the workload in the YAML file `path` to `out`, or its recipe if it only generates a dataset.

    `recipe` is a file for the recipe beside a workload. Nothing is written unless everything is valid.
    Raises SpecError, StorageError.
    """
    if out.suffix != ".toml":
        raise SpecError(f"--out {out} does not end in .toml", "a workload is a TOML file")
    if out == recipe:
        raise SpecError(f"{out} is --out and --recipe", "give each a file of its own")
    for file in filter(None, (out, recipe)):
        if file.is_dir():
            raise SpecError(f"{file} is a folder", "give a file to write")
        refuse_existing(file, force)
    config = read_config(path)
    _refuse_what_reads_no_data(config)
    converted = convert(config, out.stem)
    form = converted.workload.sample.format
    if form not in FORMATS:
        raise SpecError(f"{path}: feedrate does not read the format {form}", f"it reads {FORMATS}")
    if config.purpose == "generation":
        if recipe is not None:
            raise SpecError(f"{path}: generates a dataset, and --out is its recipe", "leave out --recipe")
        write_output(out, recipe_text(converted, path.name))
        return converted
    recipe_toml = recipe_text(converted, path.name) if recipe else ""
    write_output(out, workload_text(converted, path.name))
    if recipe is not None:
        write_output(recipe, recipe_toml)
    return converted


def _refuse_what_reads_no_data(config: Config) -> None:
    """Raise SpecError if the configuration neither trains nor generates a dataset."""
    if config.purpose == "checkpoints":
        hint = "feedrate checkpoint --models lists the models"
        raise SpecError(f"{config.name}: describes checkpoints", hint)
    if config.purpose == "nothing":
        refused = config.at("workflow.train") is False
        why = "its workflow says so" if refused else "no section dataset or train"
        raise SpecError(f"{config.name}: does not train ({why})", "import the file of the training itself")
