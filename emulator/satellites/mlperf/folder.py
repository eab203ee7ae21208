"""The documents of one run, as MLPerf Storage v0.5 to v2.0 (DLIO) writes them into a folder: in and out.

summary.json
per_epoch_stats.json                      v0.5 and v1.0; or one of each rank:
0_per_epoch_stats.json, 1_ ...            v2.0
0_output.json, 1_ ...                     the log of each rank; not always published
dlio_config/, configs/ or .hydra/         config.yaml, hydra.yaml, overrides.yaml
training_*_metadata.json                  v2.0
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from emulator.errors import SpecError, storage_errors
from emulator.files import write_whole
from emulator.satellites.mlperf.bounded import read_json, read_yaml, yaml_text

Layout = Literal["v1.0", "v2.0"]
"""v1.0: also that of v0.5, and of DLIO 2.0 run by itself."""

SUMMARY = "summary.json"
_CONFIG_FOLDERS = ("dlio_config", "configs", ".hydra")
_CONFIG_FILES = ("config.yaml", "hydra.yaml", "overrides.yaml")
_LOG = re.compile(r"(\d{1,7})_output\.json")
_STATS = re.compile(r"(?:(\d{1,7})_)?per_epoch_stats\.json")
_METADATA = re.compile(r"[A-Za-z0-9_-]{1,80}_metadata\.json")
_MOST_DEPTH = 8
_MOST_RUNS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The documents of one run, as plain values."""

    name: str
    """Path below the folder that was given; for people, and to export under."""
    layout: Layout
    summary: Mapping[str, Any]
    epochs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Rank ("" where one file stands for all) -> epoch -> start, end, duration, block1 ..."""
    logs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Rank -> its log: epoch -> load, proc, compute, au, throughput by block; hostname."""
    configs: Mapping[str, Any] = field(default_factory=dict)
    """Name of the file -> its value."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Name of the file -> its value."""


def find_runs(folder: Path) -> list[Path]:
    """The folders at or below `folder` that hold a summary.json. Raises SpecError, StorageError."""

    def search(inside: Path, depth: int) -> Iterator[Path]:
        if (inside / SUMMARY).is_file():
            yield inside
        for inner in inside.iterdir() if depth < _MOST_DEPTH else ():
            if inner.is_dir() and not inner.is_symlink():
                yield from search(inner, depth + 1)

    if not folder.is_dir():
        raise SpecError(f"there is no folder {folder}", "give the folder of a run, or one above several")
    with storage_errors("cannot list the folder"):
        runs = sorted(search(folder, 0))
    if not runs:
        raise SpecError(f"{folder} holds no {SUMMARY}", "give MLPerf Storage's results, or a run of DLIO")
    if len(runs) > _MOST_RUNS:
        raise SpecError(f"{folder} holds {len(runs)} runs, more than {_MOST_RUNS}", "give a folder of fewer")
    return runs


def read_run(folder: Path, name: str = "") -> RunFolder:
    """The run in `folder`. Raises SpecError naming the file that is damaged, StorageError."""
    with storage_errors("cannot list the folder"):
        files = sorted(path.name for path in folder.iterdir() if path.is_file())
    stats = {match[1] or "": _object(folder / file) for file in files if (match := _STATS.fullmatch(file))}
    for rank, epochs in stats.items():
        if not all(isinstance(epoch, dict) for epoch in epochs.values()):
            raise SpecError(f"{folder}: {rank} per_epoch_stats.json: an epoch is not an object")
    logs = {int(match[1]): _object(folder / file) for file in files if (match := _LOG.fullmatch(file))}
    config = next((folder / name for name in _CONFIG_FOLDERS if (folder / name).is_dir()), None)
    configs = {}
    if config is not None:
        configs = {file: read_yaml(config / file) for file in _CONFIG_FILES if (config / file).is_file()}
    newer = any(stats) or (config is not None and config.name == _CONFIG_FOLDERS[0])
    return RunFolder(
        name=name or folder.name,
        layout="v2.0" if newer else "v1.0",
        summary=_object(folder / SUMMARY),
        epochs=stats,
        logs=logs,
        configs=configs,
        metadata={file: read_json(folder / file) for file in files if _METADATA.fullmatch(file)},
    )


def _object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises SpecError, StorageError."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise SpecError(f"{path}: not a JSON object", "MLPerf Storage writes one")
    return value


def write_run(run: RunFolder, folder: Path) -> None:
    """The run as files in a new folder, each whole or not at all. Raises StorageError."""
    config = folder / _CONFIG_FOLDERS[0 if run.layout == "v2.0" else 1]
    with storage_errors("cannot make the folder"):
        folder.mkdir(parents=True)
        if run.configs or run.layout == "v2.0":
            config.mkdir()
    for rank, log in run.logs.items():
        write_json(folder / f"{rank}_output.json", log)
    for rank_name, stats in run.epochs.items():
        write_json(folder / f"{rank_name}{'_' if rank_name else ''}per_epoch_stats.json", stats)
    for name, value in run.configs.items():
        write_whole(config / name, yaml_text(value))
    for name, value in run.metadata.items():
        write_json(folder / name, value)
    write_json(folder / SUMMARY, run.summary)


def write_json(path: Path, value: Any) -> None:
    """`value` as DLIO formats its JSON, whole or not at all. Raises StorageError."""
    write_whole(path, json.dumps(value, indent=4, allow_nan=False) + "\n")
