"""MLPerf's own reportgen on exports: `make test-mlperf MLPERF_STORAGE=DIR`.

v2.0 or newer. DIR is a checkout of mlcommons/storage. What its tools print is shown with -s.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_rules import saved

from emulator.plugins.mlperf.export import export_results
from emulator.record.out import write_result

CHECKOUT = Path(os.environ.get("MLPERF_STORAGE", "."))
PACKAGE = next((name for name in ("mlpstorage_py", "mlpstorage") if (CHECKOUT / name).is_dir()), "")
pytestmark = [
    pytest.mark.mlperf,
    pytest.mark.skipif(not PACKAGE, reason="MLPERF_STORAGE is no checkout of mlcommons/storage"),
]


def theirs(home: Path, *args: object) -> str:
    """What a module of theirs prints."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "HOME": str(home)},
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    shown = done.stdout + done.stderr
    print(shown)
    assert "Traceback" not in shown
    return shown


def reportgen(home: Path, results: Path) -> str:
    system = []
    if PACKAGE == "mlpstorage_py":  # v3.0 wants to have made the folder
        made = home / "theirs"
        theirs(home, f"{PACKAGE}.main", "init", "feedrate", made)
        shutil.copytree(results, made, dirs_exist_ok=True)
        results, system = made, ["--systemname", "feedrate"]
    return theirs(home, f"{PACKAGE}.main", "reports", "reportgen", "--results-dir", results, *system)


def test_reportgen_reads_checkpoints(tmp_path):
    (tmp_path / "out").mkdir()
    write_result(tmp_path / "out", saved())
    export_results([tmp_path / "out"], tmp_path / "exported")
    shown = reportgen(tmp_path, tmp_path / "exported/closed/feedrate/results/system")
    assert "checkpointing" in shown and "8b" in shown
    assert "CLOSED" in shown and "[INVALID]" not in shown and "failed with error" not in shown
