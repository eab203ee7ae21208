"""Import runs as results, one for each workload on a system."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emulator.errors import SpecError
from emulator.plugins.mlperf.training import ImportedTraining, import_run, imported_result
from emulator.plugins.mlperf.tree import find_runs, read_run, why_no_training
from emulator.record.out import ResultFolder, check_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """Runs that were imported from a folder."""

    groups: Mapping[str, Sequence[ImportedTraining]]
    """Runs of each result by its name, which begins with the system if there are several."""
    skipped: Mapping[str, str]
    """Reason why a folder was not imported, by its name."""

    @property
    def runs(self) -> list[ImportedTraining]:
        return [run for runs in self.groups.values() for run in runs]

    @property
    def notes(self) -> dict[str, tuple[str, ...]]:
        """Sentences on left-out documents, by the name of an imported run."""
        return {imported.run.name: imported.run.unread for imported in self.runs if imported.run.unread}


def import_folder(folder: Path, workload: str = "", strict: bool = False) -> Imports:
    """Read the runs at or below `folder`. Raises SpecError if there are none, StorageError.

    `workload` is the name of the workload of runs without a configuration. With `strict`, a run or a file
    that cannot be read raises SpecError.
    """
    groups: dict[object, list[ImportedTraining]] = {}
    skipped: dict[str, str] = {}
    for path in find_runs(folder):
        name = path.relative_to(folder).as_posix() if path != folder else folder.resolve().name
        try:
            if why := why_no_training(path, name):
                raise SpecError(f"{name}: {why}")
            imported = import_run(read_run(path, name), workload)
            groups.setdefault(imported.group, []).append(imported)
        except SpecError as error:
            why = str(error)
            for prefix in (f"{path}/", f"{name}/", f"{name}: "):
                why = why.removeprefix(prefix)
            skipped[name] = why
    imports = Imports(groups=_by_name(list(groups.values())), skipped=skipped)
    reasons = [*skipped.items(), *((name, notes[0]) for name, notes in imports.notes.items())]
    if not groups or (strict and reasons):
        name, why = reasons[0]
        more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        what = "a file cannot be read" if groups else "no run could be imported"
        raise SpecError(f"{folder}: {what} ({name}: {why}{more})")
    return imports


def _by_name(groups: Sequence[list[ImportedTraining]]) -> dict[str, list[ImportedTraining]]:
    """Return the groups by a name fit for a path, which begins with the system if there are several."""
    several = len({runs[0].run.system for runs in groups}) > 1
    named: dict[str, list[ImportedTraining]] = {}
    taken: Counter[str] = Counter()
    for runs in groups:
        words = [runs[0].run.system] * several + [runs[0].workload.name]
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", " ".join(filter(None, words))) or "training"
        taken[name] += 1
        named[f"{name}-{taken[name]}" if taken[name] > 1 else name] = runs
    return named


def write_imports(
    imports: Imports, out: Path, command: Sequence[str], force: bool, label: str = ""
) -> dict[str, Path]:
    """Write every group's result, below `out` where there are several; return the folder of each by its name.

    Raises SpecError, StorageError.
    """
    several = len(imports.groups) > 1
    folders = {name: out / name if several else out for name in imports.groups}
    for path in folders.values():
        check_out(path, force)
    for name, runs in imports.groups.items():
        result = imported_result(runs, command)
        result = replace(result, label=label or result.label)
        with ResultFolder.create(folders[name], result, force=force) as folder:
            folder.complete(None)
    return folders
