"""One run's folder as MLPerf Storage v0.5 to v2.0 (DLIO) writes it: its documents, in and out.

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

from emulator.errors import SpecError, storage_error
from emulator.mlperf.bounded import read_json, read_yaml, yaml_text
from emulator.record.store import write_whole

Layout = Literal["v1.0", "v2.0"]
"""v1.0: also that of v0.5, and of DLIO 2.0 run by itself."""

SUMMARY = "summary.json"
MARK = "made_by_feedrate.json"
"""In a folder that feedrate exported: what it is, and that it is no submission."""
_CONFIGS = ("dlio_config", "configs", ".hydra")
_CONFIG_FILES = ("config.yaml", "hydra.yaml", "overrides.yaml")
_LOG = re.compile(r"(\d{1,7})_output\.json")
_STATS = re.compile(r"(?:(\d{1,7})_)?per_epoch_stats\.json")
_METADATA = re.compile(r"[A-Za-z0-9_-]{1,80}_metadata\.json")
_DEPTH = 8
_RUNS = 1000


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
    if not folder.is_dir():
        raise SpecError(f"there is no folder {folder}", "give the folder of a run, or one above several")
    try:
        found = sorted(_runs(folder, 0))
    except OSError as error:
        raise storage_error(error, "cannot list the folder") from None
    if not found:
        raise SpecError(f"{folder} holds no {SUMMARY}", "give MLPerf Storage's results, or a run of DLIO")
    if len(found) > _RUNS:
        raise SpecError(f"{folder} holds {len(found)} runs, more than {_RUNS}", "give a folder of fewer")
    return found


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / SUMMARY).is_file():
        yield folder
    for inner in folder.iterdir() if depth < _DEPTH else ():
        if inner.is_dir() and not inner.is_symlink():
            yield from _runs(inner, depth + 1)


def read_run(folder: Path, name: str = "") -> RunFolder:
    """The run in `folder`. Raises SpecError naming the file that is damaged, StorageError."""
    try:
        files = sorted(path.name for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise storage_error(error, "cannot list the folder") from None
    stats = {match[1] or "": _table(folder / file) for file in files if (match := _STATS.fullmatch(file))}
    logs = {int(match[1]): _table(folder / file) for file in files if (match := _LOG.fullmatch(file))}
    place = next((folder / one for one in _CONFIGS if (folder / one).is_dir()), None)
    ranked = any(stats) or (place is not None and place.name == _CONFIGS[0])
    return RunFolder(
        name=name or folder.name,
        layout="v2.0" if ranked else "v1.0",
        summary=_table(folder / SUMMARY),
        epochs={rank: _tables(doc, f"{folder}: {rank} per_epoch_stats.json") for rank, doc in stats.items()},
        logs=logs,
        configs={} if place is None else _read_configs(place),
        metadata={file: read_json(folder / file) for file in files if _METADATA.fullmatch(file)},
    )


def _read_configs(place: Path) -> dict[str, Any]:
    return {name: read_yaml(place / name) for name in _CONFIG_FILES if (place / name).is_file()}


def _table(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises SpecError, StorageError."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise SpecError(f"{path}: no object", "MLPerf Storage writes one")
    return value


def _tables(doc: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`doc`, of which every value is an object itself. Raises SpecError."""
    if not all(isinstance(value, dict) for value in doc.values()):
        raise SpecError(f"{where}: an epoch that is no object")
    return dict(doc)


def write_run(run: RunFolder, folder: Path) -> None:
    """The run as files in a new folder, each whole or not at all. Raises StorageError."""
    place = folder / (_CONFIGS[0] if run.layout == "v2.0" else _CONFIGS[1])
    try:
        folder.mkdir(parents=True)
        if run.configs or run.layout == "v2.0":
            place.mkdir()
    except OSError as error:
        raise storage_error(error, "cannot make the folder") from None
    for rank, log in run.logs.items():
        write_json(folder / f"{rank}_output.json", log)
    for rank_name, stats in run.epochs.items():
        write_json(folder / f"{rank_name}{'_' if rank_name else ''}per_epoch_stats.json", stats)
    for name, value in run.configs.items():
        write_text(place / name, yaml_text(value))
    for name, value in run.metadata.items():
        write_json(folder / name, value)
    write_json(folder / SUMMARY, run.summary)


def write_json(path: Path, value: Any) -> None:
    """`value` as DLIO formats its JSON, whole or not at all. Raises StorageError."""
    write_text(path, json.dumps(value, indent=4, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `path` whole or not at all. Raises StorageError."""
    write_whole(path, lambda file: file.write(text.encode()))
