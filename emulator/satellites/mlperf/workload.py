"""The keys of DLIO's and MLPerf Storage's YAML that feedrate knows but does not use, and why not.

From the workload files of MLPerf Storage v0.4 to v3.0 and DLIO 1.0 to 2.0. A key that is neither here nor
used is unknown: it is listed as such and never guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.config.catalog import names
from emulator.config.reader import Source, build, toml_text
from emulator.config.recipe import Recipe
from emulator.config.workload import Workload, load_workload
from emulator.errors import SpecError
from emulator.satellites.mlperf.config import Config
from emulator.units import BLOCK_BYTES

_CHECKPOINT = "checkpoints are no part of a training workload: feedrate checkpoint"
_EVALUATION = "evaluation is not emulated"
_GENERATE = "of the generator: feedrate generate has its own"
_OWN = "feedrate's loaders are its own"
_ORDER = "feedrate shuffles files and samples by seed, anew in every epoch"
_PROFILE = "profiling is DLIO's own"

UNUSED = {
    "model": "of a network, only the time of its step is emulated",
    "framework": _OWN,
    "workflow.generate_data": "feedrate generate",
    "workflow.train": "feedrate run and sweep train",
    "workflow.debug": _PROFILE,
    "workflow.profiling": _PROFILE,
    "workflow.profile": _PROFILE,
    "workflow.evaluation": _EVALUATION,
    "workflow.do_eval": _EVALUATION,
    "workflow.checkpoint": _CHECKPOINT,
    "dataset.data_folder": "the folder is given to feedrate generate, run and sweep",
    "dataset.num_files_train": "the dataset has its number of files: feedrate generate DIR --files",
    "dataset.num_subfolders_train": "the dataset has its sub-folders: feedrate generate DIR --subfolders",
    "dataset.num_files_eval": _EVALUATION,
    "dataset.num_subfolders_eval": _EVALUATION,
    "dataset.eval_num_samples_per_file": _EVALUATION,
    "dataset.record_length_resize": "DLIO drops what it reads and returns a constant of this size",
    "dataset.record_length_bytes_resize": "DLIO drops what it reads and returns a constant of this size",
    "dataset.file_prefix": _GENERATE,
    "dataset.generation_buffer_size": _GENERATE,
    "dataset.enable_chunking": _GENERATE,
    "dataset.chunk_size": _GENERATE,
    "dataset.chunking": _GENERATE,
    "dataset.compression": _GENERATE,
    "dataset.compression_level": _GENERATE,
    "dataset.keep_files": _GENERATE,
    "dataset.parquet": "name the columns that are read in access.columns; row groups are the recipe's",
    "reader.data_loader": _OWN,
    "reader.data_loader_classname": _OWN,
    "reader.data_loader_sampler": _OWN,
    "reader.reader_classname": _OWN,
    "reader.multiprocessing_context": _OWN,
    "reader.dont_use_mmap": _OWN,
    "reader.file_access": _OWN,
    "reader.read_type": _OWN,
    "reader.pin_memory": _OWN,
    "reader.odirect": "feedrate run --cache cold reads past the page cache",
    "reader.computation_threads": "DLIO's own preprocessing",
    "reader.preprocess_time": "DLIO's own preprocessing",
    "reader.preprocess_time_stdev": "DLIO's own preprocessing",
    "reader.batch_size_eval": _EVALUATION,
    "reader.file_shuffle": _ORDER,
    "reader.sample_shuffle": _ORDER,
    "reader.shuffle_size": "of tf.data: where it reads TFRecords it is access.shuffle_buffer",
    "train.seed_change_epoch": _ORDER,
    "train.computation_time_stdev": "every step takes the same time",
    "train.total_training_steps": "feedrate run and sweep --steps",
    "train.total_eval_steps": _EVALUATION,
    "storage": "feedrate run and sweep --storage",
    "evaluation": _EVALUATION,
    "checkpoint": _CHECKPOINT,
    "output": "feedrate run and sweep --out",
    "profiling": _PROFILE,
}
"""Dotted key, or a whole table -> why it is not used."""


def why_unused(key: str) -> str | None:
    """Why the key, or a table that it lies in, is not used; None when it is unknown."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        why = UNUSED.get(".".join(parts[:length]))
        if why is not None:
            return why
    return None


# ---- From a configuration of DLIO to a workload of feedrate, and the list of what did not come along.


_ACCELERATORS = {
    "v100": "NVIDIA V100", "a100": "NVIDIA A100", "h100": "NVIDIA H100", "b200": "NVIDIA B200",
    "mi355": "AMD Instinct MI355X",
}  # fmt: skip
_UNKNOWN = "unknown: no key of DLIO 2.0 or of MLPerf Storage v0.5 to v3.0"

USED = {
    "model": "",
    "model.name": "",
    "dataset.format": "sample.format",
    "dataset.record_length": "sample.bytes_mean",
    "dataset.record_length_bytes": "sample.bytes_mean",
    "dataset.record_length_stdev": "sample.bytes_sd",
    "dataset.record_length_bytes_stdev": "sample.bytes_sd",
    "dataset.num_samples_per_file": "sample.samples_per_file",
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
"""Key of DLIO -> key of a workload."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A key of the configuration that the workload does not carry."""

    key: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class Converted:
    """A workload as TOML's table, and what did not come along."""

    table: Mapping[str, Any]
    workload: Workload
    left_out: tuple[LeftOut, ...]
    files: int | None
    """Files of the dataset; None where the configuration does not say."""
    samples_per_file: int
    subfolders: int


def convert(config: Config, name: str) -> Converted:
    """The workload that `config` describes, under the name `name`. Raises SpecError."""
    table = _table(config, name)
    try:
        workload = build(Workload, table, Source(config.name))
    except SpecError as error:
        raise SpecError(f"{error.what} (as converted from DLIO's keys)", error.hint) from None
    return Converted(
        table, workload, tuple(_left_out(config, workload)), config.whole("dataset.num_files_train"),
        config.whole("dataset.num_samples_per_file", 1) or 1,
        config.whole("dataset.num_subfolders_train", 0) or 0,
    )  # fmt: skip


def _table(config: Config, name: str) -> dict[str, Any]:
    batch = config.whole("reader.batch_size", 1) or 0
    seconds = config.number("train.computation_time", 0.0) or 0.0
    workers = max(1, config.whole("reader.read_threads", 1) or 0)
    return {
        "name": name,
        "title": f"{config.model('a model')}, {_accelerator(config)}, as DLIO's YAML describes it",
        "sample": {
            "format": config.text("dataset.format", "tfrecord"),
            "bytes_mean": _first(config, "record_length_bytes", "record_length", 65536),
            "bytes_sd": _first(config, "record_length_bytes_stdev", "record_length_stdev", 0),
            "samples_per_file": config.whole("dataset.num_samples_per_file", 1) or 0,
        },
        "access": _access(config, workers),
        "loader": {
            "batch_size": batch,
            "workers": workers,
            "prefetch": _prefetch(config, workers),
            "block_bytes": _block(config),
            "crop": [],
        },
        "accelerator": {
            "name": _accelerator(config),
            "step_seconds": float(seconds),
            "step_batch_size": batch,
            "provenance": _provenance(batch, seconds),
        },
        "training": {
            "epochs": config.whole("train.epochs", 1) or 0,
            "sync": "step",
            "au_threshold": float(config.number("metric.au", 0.9) or 0.0),
            "shuffle_seed": config.whole("train.seed", 123) or 0,
        },
        "sources": _sources(config),
    }


def _first(config: Config, new: str, old: str, default: int) -> int:
    """Bytes under v3.0's name of a key, or under the older one."""
    value = config.whole(f"dataset.{new}")
    found = config.whole(f"dataset.{old}", default) if value is None else value
    return default if found is None else found


def _streams(config: Config) -> bool:
    """TFRecords through tf.data: files from their start, interleaved, through a shuffle buffer."""
    loader = config.text("reader.data_loader", config.text("framework", "tensorflow"))
    return config.text("dataset.format", "tfrecord") == "tfrecord" and loader == "tensorflow"


def _access(config: Config, workers: int) -> dict[str, Any]:
    """The order in which DLIO reads samples of such files."""
    if not _streams(config):
        return {"pattern": "random"}
    shuffled = config.text("reader.sample_shuffle", "off") in ("seed", "random")
    buffer = (config.whole("reader.shuffle_size", 1024) or 0) if shuffled else 0
    return {"pattern": "sequential", "streams": workers, "shuffle_buffer": buffer}


def _prefetch(config: Config, workers: int) -> int:
    """Batches read ahead: tf.data takes prefetch_size; PyTorch gives a worker ceil of its share, 2 for 0."""
    size = config.whole("reader.prefetch_size", 2) or 0
    if _streams(config):
        return max(1, size)
    return workers * (math.ceil(size / workers) if size else 2)


def _block(config: Config) -> int:
    """Bytes of a read request: transfer_size in whole pages; else tf.data's buffer, or feedrate's own."""
    transfer = config.whole("reader.transfer_size")
    own = 256 << 10 if _streams(config) else 4 << 20
    return own if not transfer else max(BLOCK_BYTES, transfer // BLOCK_BYTES * BLOCK_BYTES)


def _accelerator(config: Config) -> str:
    """By the file's name or the override that chose it, as unet3d_h100: YAML has no key for it."""
    said = config.choice.lower()
    found = [name for short, name in _ACCELERATORS.items() if re.search(rf"[_-]{short}(?![a-z0-9])", said)]
    return found[0] if found else "accelerator not stated"


def _provenance(batch: int, seconds: float) -> str:
    """As the catalogue says of the same step at the same batch size; else whoever wrote it chose it."""
    for name in names("workloads"):
        known = load_workload(name).accelerator
        if (known.step_batch_size, known.step_seconds) == (batch, seconds):
            return known.provenance
    return "chosen"


def _sources(config: Config) -> dict[str, str]:
    """Which of the workload's keys came from which of DLIO's, and which from its defaults."""
    file = Path(config.name).name
    given = {USED[key]: f"{file}: {key}" for key, _ in config.leaves() if USED.get(key)}
    defaults = dict.fromkeys((target for target in USED.values() if target), "DLIO's default")
    own = {
        "loader.crop": "DLIO drops what it reads: samples are read whole",
        "accelerator.step_batch_size": "reader.batch_size: DLIO computes for the same time at any of them",
        "training.sync": "DLIO: a barrier after every step",
    }
    if "loader.block_bytes" not in given:
        own["loader.block_bytes"] = "not stated: 256 KiB as in tf.data, elsewhere feedrate's own"
    if _streams(config):
        own["access.streams"] = f"{file}: reader.read_threads, files that tf.data interleaves"
        own["access.shuffle_buffer"] = f"{file}: reader.shuffle_size where sample_shuffle asks for it"
    return dict(sorted({**defaults, **given, **own}.items()))


def _left_out(config: Config, workload: Workload) -> list[LeftOut]:
    found = []
    for key, value in config.leaves():
        if key not in USED:
            found.append(LeftOut(key, value, why_unused(key) or _UNKNOWN))
        elif isinstance(value, str) and "${" in value:
            found.append(LeftOut(key, value, "an interpolation of Hydra: it is not evaluated"))
    transfer = config.whole("reader.transfer_size")
    if transfer and transfer != workload.loader.block_bytes:
        used = workload.loader.block_bytes
        found.append(LeftOut("reader.transfer_size", transfer, f"requests are whole pages: {used} is used"))
    others = config.others
    return found + [LeftOut(text.partition("=")[0], text, "of Hydra, not of the workload") for text in others]


# ---- What an imported YAML becomes: a workload TOML, and a recipe TOML for its dataset.


_SPREAD = 3.0
"""Standard deviations of ln(bytes) on either side of the median within which sizes are drawn."""
_LARGEST = 2**32 - 2**20


def check_new(path: Path, force: bool) -> None:
    """Raises SpecError when `path` is there already, unless `force`, or is no place for a file."""
    if path.is_dir():
        raise SpecError(f"{path} is a folder", "give the file that is to be written")
    if path.exists() and not force:
        raise SpecError(f"{path} is there already", "choose another --out, or add --force")


def workload_text(converted: Converted, origin: str) -> str:
    """The workload as TOML, with what did not come along as comments."""
    head = [f"# Imported by feedrate from {origin}."]
    if converted.left_out:
        head.append("# Left out of it:")
        head += [f"#   {one.key} = {_short(one.value)}: {one.why}" for one in converted.left_out]
    return "\n".join(map(_comment, head)) + "\n" + toml_text(converted.table)


def recipe_table(converted: Converted) -> dict[str, Any]:
    """A recipe for the dataset that the YAML describes. Raises SpecError.

    Sizes are lognormal with the stated mean and standard deviation: DLIO draws its own from a product of
    two normals, whose standard deviation is a third smaller than stated.
    """
    sample = converted.workload.sample
    size: dict[str, Any] = {"distribution": "fixed", "bytes_mean": sample.bytes_mean}
    if sample.bytes_sd:
        sigma = math.sqrt(math.log1p((sample.bytes_sd / sample.bytes_mean) ** 2))
        median = sample.bytes_mean * math.exp(-(sigma**2) / 2)
        low, high = median * math.exp(-_SPREAD * sigma), median * math.exp(_SPREAD * sigma)
        size = {
            "distribution": "lognormal", "bytes_mean": sample.bytes_mean, "bytes_sd": sample.bytes_sd,
            "bytes_min": max(1, math.floor(low)), "bytes_max": min(_LARGEST, math.ceil(high)),
        }  # fmt: skip
    table = {
        "name": converted.workload.name,
        "title": converted.workload.title,
        "format": sample.format,
        "files": converted.files or 1,
        "samples_per_file": converted.samples_per_file,
        "size": size,
    }
    try:
        build(Recipe, table, Source("the recipe"))
    except SpecError as error:
        raise SpecError(f"no recipe for this dataset: {error.what}", error.hint) from None
    return table


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _comment(line: str) -> str:
    """One line without control characters: TOML takes none in a comment."""
    return "".join(letter if letter.isprintable() else " " for letter in line)
