"""From a configuration of DLIO to a workload of feedrate, and the list of what did not come along."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.errors import SpecError
from emulator.mlperf.config import Config
from emulator.mlperf.keys import why_unused
from emulator.spec.catalog import load_workload, names
from emulator.spec.toml import Source, build
from emulator.spec.workload import Workload

_ACCELERATORS = {
    "v100": "NVIDIA V100", "a100": "NVIDIA A100", "h100": "NVIDIA H100", "b200": "NVIDIA B200",
    "mi355": "AMD Instinct MI355X",
}  # fmt: skip
_PAGE = 4096
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
    return own if not transfer else max(_PAGE, transfer // _PAGE * _PAGE)


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
