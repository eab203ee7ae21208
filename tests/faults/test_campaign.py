"""`make test-faults`: the whole campaign; by default some cases of the kinds that take milliseconds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from faults.campaign import KINDS
from faults.harness import build_shim

TESTS = Path(__file__).resolve().parents[1]
DOCUMENT = TESTS.parent / "docs" / "faults.md"


def run_campaign(folder: Path, *words: object) -> None:
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "LD_PRELOAD": str(build_shim(folder)), "PYTHONPATH": path}
    command = [sys.executable, "-m", "faults.campaign", *map(str, words)]
    assert subprocess.run(command, env=environment, check=False).returncode == 0, "see the table"


@pytest.mark.timeout(600)  # the number of cases bounds it, not the machine
def test_a_few_cases(tmp_path: Path) -> None:
    run_campaign(tmp_path, "--only", "damaged", "a writer", "--cases", 10)


@pytest.mark.faults
@pytest.mark.timeout(7200)
def test_the_campaign(tmp_path: Path) -> None:
    run_campaign(tmp_path, "--seed", os.environ.get("FEEDRATE_FAULTS_SEED", "20261128"))


def test_each_promise_names_what_checks_it() -> None:
    rows = [line.split(" | ")[-1] for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")][1:]
    named = " ".join(rows)
    files = re.findall(r"`(tests/[\w/]+\.py)`", named)
    assert len(rows) >= len(KINDS) and all(kind in named for kind in KINDS)
    assert files and all((TESTS.parent / name).is_file() for name in files)
