"""Read the documents of a run in the folder layouts of MLPerf Storage v1.0 to v3.0 (DLIO), and write them.

summary.json
per_epoch_stats.json                      v1.0; or one of each rank:
0_per_epoch_stats.json, 1_ ...            v2.0 and v3.0
0_output.json, 1_ ...                     the log of each rank; written, not read
dlio_config/, configs/ or .hydra/         config.yaml, hydra.yaml, overrides.yaml
training_*_metadata.json                  v2.0 and v3.0
fs_separation.json                        v3.0: whether data and results are on one file system

Only summary.json is required. In published trees other files are missing, truncated, or placeholders of a few
bytes for a file that was too large. They are left out, and reported.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from emulator.config.catalog import names
from emulator.errors import SpecError, storage_errors
from emulator.files import write_whole
from emulator.live import finite
from emulator.plugins.mlperf.bounded import read_json, read_yaml, yaml_text
from emulator.plugins.mlperf.config import Config, workload_table

Version = Literal["v1.0", "v2.0", "v3.0"]
"""Version whose formulas a run's figures follow."""

SUMMARY = "summary.json"
CONFIG_FOLDER = "dlio_config"
_CONFIG_FOLDERS = (CONFIG_FOLDER, "configs", ".hydra")
_CONFIG_FILES = ("config.yaml", "hydra.yaml", "overrides.yaml")
_STATS = re.compile(r"(?:(\d{1,7})_)?per_epoch_stats\.json")
_METADATA = re.compile(r"[A-Za-z0-9_-]{1,100}_metadata\.json")
_SEPARATION = "fs_separation.json"
_DOCUMENT = re.compile("|".join((re.escape(SUMMARY), *(p.pattern for p in (_STATS, _METADATA)))))
_MOST_DEPTH = 12
_MOST_RUNS = 10_000
_CODE = re.compile(r"code(-images|-[0-9a-f]{8})?")
"""Names of folders with copies of the benchmark in a submitter's tree. Its tests contain runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The documents of one run, as plain values."""

    name: str
    """Path below the imported folder."""
    summary: Mapping[str, Any]
    epochs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Tables with start, end, duration, block1 ... by rank ("" for a file of all ranks) and epoch."""
    logs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Logs by rank: load, proc, compute, au and throughput of each block by epoch, and the hostname."""
    configs: Mapping[str, Any] = field(default_factory=dict)
    """Values by file name."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Values of all *_metadata.json, joined."""
    same_filesystem: bool | None = None
    """True if results and data were on one file system; None if not recorded."""
    version: Version | None = None
    """Version whose formulas the run follows; None if its files do not distinguish v2.0 and v3.0."""
    unread: tuple[str, ...] = ()
    """Sentences on files that were left out."""

    @property
    def system(self) -> str:
        """`SUBMITTER SYSTEM` for a run in a submission tree (SUBMITTER/results/SYSTEM/...), else empty."""
        parts = self.name.split("/")
        at = parts.index("results") if "results" in parts[1:-1] else 0
        return f"{parts[at - 1]} {parts[at + 1]}" if at else ""

    def epoch_seconds(self, epoch: int) -> float:
        """Return the seconds of an epoch, from 0, by the first rank; NaN if not recorded."""
        stats = self.epochs.get("0", self.epochs.get("", {}))
        blocks = as_table(stats.get(str(epoch + 1)))
        spans = [_seconds(as_table(block)) for name, block in blocks.items() if name.startswith("block")]
        return sum(spans) if spans else math.nan

    @property
    def config(self) -> Config | None:
        """The configuration in config.yaml or in v3.0's metadata; None without either. Raises SpecError."""
        table = self.configs.get("config.yaml") or as_table(self.metadata.get("parameters"))
        if not table:
            return None
        where = f"{self.name}/config.yaml"
        return Config(where, workload_table(table, where), self.choice)

    @property
    def choice(self) -> str:
        """The chosen workload, such as unet3d-h100; empty if no document and no folder names it."""
        name = next(self._choices(), "")
        return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-").lower()[:80]

    def _choices(self) -> Iterator[str]:
        """Yield what names the chosen workload, the most reliable first: an override, metadata, a folder."""
        overrides = self.configs.get("overrides.yaml")
        for text in overrides if isinstance(overrides, list) else ():
            if match := re.fullmatch(r"\+*workload=(\S+)", str(text)):
                yield match[1]
        args = as_table(self.metadata.get("args"))
        model = self.metadata.get("model") or args.get("model")
        accelerator = self.metadata.get("accelerator") or args.get("accelerator_type")
        if model and isinstance(model, str):
            yield f"{model}-{accelerator or ''}"
        known = names("workloads")
        for folder in reversed(self.name.split("/")[:-1]):
            if folder.replace("_", "-") in known:
                yield folder


def as_table(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is a table, else an empty one: a published document may have anything there."""
    return value if isinstance(value, Mapping) else {}


def _seconds(span: Mapping[str, Any]) -> float:
    """Return the seconds from start to end of a span; NaN if not recorded or impossible."""
    try:
        begin, end = (datetime.fromisoformat(str(span.get(key))) for key in ("start", "end"))
        seconds = (end - begin).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return math.nan
    return seconds if seconds > 0 else math.nan


def find_runs(folder: Path) -> list[Path]:
    """Return the folders at or below `folder` that contain a document of a run.

    Raises SpecError, StorageError.
    """
    if not folder.is_dir():
        raise SpecError(f"there is no folder {folder}", "give the folder of a run, or one above several")
    with storage_errors("cannot list the folder"):
        runs = sorted(_run_folders(folder))
    if not runs:
        raise SpecError(f"{folder} has no {SUMMARY}", "give MLPerf Storage's results, or a run of DLIO")
    if len(runs) > _MOST_RUNS:
        raise SpecError(f"{folder} has {len(runs)} runs, more than {_MOST_RUNS}", "give a smaller folder")
    return runs


def _run_folders(inside: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the folders with a document of a run. Raises OSError."""
    paths = list(inside.iterdir())
    if any(_DOCUMENT.fullmatch(path.name) and path.is_file() for path in paths):
        yield inside
    if depth == _MOST_DEPTH:
        return
    for path in paths:
        if path.is_dir() and not path.is_symlink():  # a link may lead back to a folder above
            yield from _run_folders(path, depth + 1)


def why_no_training(folder: Path, name: str) -> str:
    """Return why the folder `name` has no run of a training; empty if it may have one."""
    parts = name.split("/")
    if any(_CODE.fullmatch(part) for part in parts[:-1]):
        return "part of a copy of the benchmark's code"
    for kind in ("kv_cache", "vector_database", "checkpointing"):
        if kind in parts or any(folder.glob(f"{kind}_*_metadata.json")):
            return f"a run of the benchmark {kind}, and only trainings are imported"
    if not (folder / SUMMARY).is_file():
        return f"it has no {SUMMARY}: data generation, or a run that did not finish"
    return ""


def read_run(folder: Path, name: str = "") -> RunFolder:
    """Read the run in `folder`. Damaged files other than the summary are left out.

    Raises SpecError, StorageError.
    """
    config = next((folder / inner for inner in _CONFIG_FOLDERS if (folder / inner).is_dir()), None)
    documents, unread = _read_all(_document_paths(folder, config))
    metadata: dict[str, Any] = {}
    epochs: dict[str, Mapping[str, Any]] = {}
    for path, value in documents.items():
        if _METADATA.fullmatch(path.name):
            metadata |= as_table(value)
        elif match := _STATS.fullmatch(path.name):
            epochs[match[1] or ""] = as_table(value)
    same = as_table(documents.get(folder / _SEPARATION)).get("same_filesystem")
    # v1.0 had another folder for the configuration, and one file of statistics for all ranks.
    newer = any(epochs) or (config is not None and config.name == CONFIG_FOLDER)
    return RunFolder(
        name=name or folder.name,
        summary=_object(folder / SUMMARY),
        epochs=epochs,
        configs={path.name: value for path, value in documents.items() if path.parent == config},
        metadata=metadata,
        same_filesystem=same if isinstance(same, bool) else None,
        version=_version(metadata, newer),
        unread=unread,
    )


def _document_paths(folder: Path, config: Path | None) -> list[Path]:
    """Return the documents of a run but for the summary; `config` is the folder of its configuration.

    Raises StorageError; SpecError for a link out of the folder: its content would get into the result.
    """
    with storage_errors("cannot list the folder"):
        paths = sorted(folder.iterdir())
    if config is not None:
        paths += [config / name for name in _CONFIG_FILES]
    files = [path for path in paths if path.is_file()]
    for path in files:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise SpecError(f"{path} is a link out of the folder", "import reads only files in the folder")
    known = re.compile(rf".*\.yaml|{re.escape(_SEPARATION)}|{_DOCUMENT.pattern}")
    return [path for path in files if known.fullmatch(path.name) and path.name != SUMMARY]


def _read_all(paths: Sequence[Path]) -> tuple[dict[Path, Any], tuple[str, ...]]:
    """Return the values in documents, and a sentence for each reason why some of them cannot be read."""
    values: dict[Path, Any] = {}
    unread: dict[str, list[str]] = {}
    for path in paths:
        try:
            values[path] = read_yaml(path) if path.suffix == ".yaml" else _object(path)
        except SpecError as error:
            small = path.stat().st_size < 64
            why = "a placeholder of a few bytes" if small else str(error).removeprefix(f"{path}: ")
            unread.setdefault(why, []).append(path.name)
    sentences = []
    for why, (first, *others) in unread.items():
        more = f" and {len(others)} more" if others else ""
        sentences.append(f"{first}{more}: {why}")
    return values, tuple(sentences)


def _version(metadata: Mapping[str, Any], newer: bool) -> Version | None:
    """Return the version by the keys of the metadata, and by whether the layout is `newer` than v1.0's."""
    if {"benchmark_type", "num_processes", "parameters"} <= metadata.keys():
        return "v3.0"
    if {"args", "benchmark_type"} <= metadata.keys():
        return "v2.0"
    return None if newer else "v1.0"


def _object(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file. Raises SpecError, StorageError."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise SpecError(f"{path}: not a JSON object", "MLPerf Storage's files are objects")
    return value


def write_run(run: RunFolder, folder: Path) -> None:
    """Write the files of a run that feedrate measured to a new folder, in the layout of v2.0 and v3.0.

    Raises StorageError.
    """
    with storage_errors("cannot make the folder"):
        (folder / CONFIG_FOLDER).mkdir(parents=True)
    for rank, log in run.logs.items():
        write_json(folder / f"{rank}_output.json", log)
    for rank, stats in run.epochs.items():
        write_json(folder / f"{rank}_per_epoch_stats.json", stats)
    for name, value in run.configs.items():
        write_whole(folder / CONFIG_FOLDER / name, yaml_text(value))
    kind, when = run.metadata["benchmark_type"], run.metadata["run_datetime"]
    write_json(folder / f"{kind}_{when}_metadata.json", run.metadata)
    write_json(folder / SUMMARY, run.summary)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON in DLIO's format, whole or not at all, with null for numbers that are not finite.

    Raises StorageError.
    """
    write_whole(path, json.dumps(finite(value), indent=4, allow_nan=False) + "\n")
