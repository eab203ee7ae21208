"""Import runs as results, one for each workload or checkpointed model on a system.

OUT/run.json, OUT/steps.parquet
OUT/mlperf-00000.json ...    the documents of each run, from which feedrate export writes them again
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from emulator.config.reader import Source, build, read_json, to_plain
from emulator.errors import SpecError, StorageError
from emulator.plugins.mlperf.checkpoints import read_checkpoints
from emulator.plugins.mlperf.summary import trains
from emulator.plugins.mlperf.trainings import NOT_IN_NAMES, import_run
from emulator.plugins.mlperf.tree import Imported, RunFolder, find_runs, read_run, why_no_run
from emulator.record.out import ResultFolder, check_out, read_result, remove_result
from emulator.record.result import RunResult
from emulator.record.steps import Steps

DOCUMENTS = "mlperf-{:05}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """Runs that were imported from a folder."""

    groups: Mapping[str, Sequence[Imported]]
    """Runs of each result by its name, which begins with the system if there are several."""
    skipped: Mapping[str, str]
    """Reason why a folder was not imported, by its name."""

    @property
    def runs(self) -> list[Imported]:
        return [run for runs in self.groups.values() for run in runs]

    @property
    def notes(self) -> dict[str, tuple[str, ...]]:
        """Sentences on left-out, missing or contradictory documents, by the name of an imported run."""
        return {imported.run.name: imported.said for imported in self.runs if imported.said}


def import_folder(folder: Path, workload: str = "", strict: bool = False) -> Imports:
    """Read the runs at or below `folder`. Raises SpecError if there are none, StorageError.

    `workload` is the name of the workload of runs without a configuration. With `strict`, the first run with
    a file that cannot be read raises SpecError.
    """
    groups: dict[object, list[Imported]] = {}
    skipped: dict[str, str] = {}
    for path in find_runs(folder):
        name = path.relative_to(folder).as_posix() if path != folder else folder.resolve().name
        try:
            imported = _import_one(path, name, workload, strict)
        except SpecError as error:
            if strict:
                raise
            skipped[name] = (
                str(error).removeprefix(f"{path}/").removeprefix(f"{name}/").removeprefix(f"{name}: ")
            )
            continue
        groups.setdefault(imported.group, []).append(imported)
    for runs in groups.values():
        runs.sort(key=lambda one: one.order)
    if not groups:
        name, why = next(iter(skipped.items()))
        more = f", and {len(skipped) - 1} more folders" if len(skipped) > 1 else ""
        raise SpecError(f"{folder}: no run could be imported ({name}: {why}{more})")
    return Imports(groups=_by_name(list(groups.values())), skipped=skipped)


def _import_one(path: Path, name: str, workload: str, strict: bool) -> Imported:
    """Read the run in `path`. Raises SpecError, StorageError."""
    if why := why_no_run(path, name):
        raise SpecError(f"{name}: {why}")
    run = read_run(path, name, strict)
    if not trains(run):
        return read_checkpoints(run)
    try:
        return import_run(run, workload)
    except SpecError as error:
        if strict or not run.logs:
            raise
        of_logs = f"its logs: {error.what.removeprefix(f'{name}: ')}"
    # The summary may be usable without the logs.
    return import_run(replace(run, unread=(*run.unread, of_logs)), workload, with_logs=False)


def _by_name(groups: Sequence[list[Imported]]) -> dict[str, list[Imported]]:
    """Return the groups by a name fit for a path, which begins with the system if there are several.

    Groups of one name are told apart by the second of `named`, or else by a number.
    """
    several = len({runs[0].run.system for runs in groups}) > 1
    words = [(runs[0].run.system * several, *runs[0].named) for runs in groups]
    count = Counter((system, name) for system, name, _ in words)
    named: dict[str, list[Imported]] = {}
    for runs, (system, called, apart) in zip(groups, words, strict=True):
        parts = (system, called, apart * (count[system, called] > 1))
        base = name = NOT_IN_NAMES.sub("-", " ".join(filter(None, parts))) or "training"
        number = 1
        while name in named:
            number += 1
            name = f"{base}-{number}"
        named[name] = runs
    return named


def results_of(imports: Imports, command: Sequence[str]) -> dict[str, tuple[RunResult, Steps]]:
    """Return the result and the steps of each group by its name."""
    results = {name: runs[0].result(runs, command) for name, runs in imports.groups.items()}
    for result, _ in results.values():
        for number, facts in enumerate(result.environment["imported"]):
            facts["documents"] = DOCUMENTS.format(number)
    return results


def write_imports(
    imports: Imports, out: Path, command: Sequence[str], force: bool, label: str = ""
) -> dict[str, Path]:
    """Write every group's result, below `out` where there are several; return the folder of each by its name.

    Raises SpecError, StorageError.
    """
    results = results_of(imports, command)
    folders = {name: out / name if len(results) > 1 else out for name in results}
    renamed = _renamed(out, [*folders.values()], [result for result, _ in results.values()]) if force else []
    for path in (*folders.values(), *renamed):
        check_out(path, force)
    for path in renamed:
        remove_result(path)
    for name, (result, steps) in results.items():
        result = replace(result, label=label or result.label)
        with ResultFolder.create(folders[name], result, force=force) as folder:
            for number, imported in enumerate(imports.groups[name]):
                folder.keep(DOCUMENTS.format(number), json.dumps(to_plain(imported.run, named=True)))
            folder.complete(steps if len(steps) else None)
    return folders


def _renamed(out: Path, taken: Sequence[Path], results: Sequence[RunResult]) -> list[Path]:
    """Return earlier results of these runs at or below `out` whose names have changed."""

    def runs_of(result: RunResult) -> set[tuple[str, str]]:
        imported = result.environment.get("imported")
        return {(one["run"], one["start"]) for one in imported} if isinstance(imported, list) else set()

    runs = {run for result in results for run in runs_of(result)}
    earlier = []
    for path in [out, *out.iterdir()] if out.is_dir() else ():
        if path not in taken and path.is_dir() and not path.is_symlink():
            with suppress(SpecError, StorageError, KeyError, TypeError):
                before = runs_of(read_result(path))
                earlier += [path] * (bool(before) and before <= runs)
    return earlier


def read_documents(out: Path, result: RunResult) -> list[RunFolder]:
    """Read the documents that the result in OUT was imported from. Raises SpecError, StorageError."""
    files = [out / DOCUMENTS.format(number) for number in range(len(result.environment["imported"]))]
    return [build(RunFolder, read_json(file), Source(str(file))) for file in files]
