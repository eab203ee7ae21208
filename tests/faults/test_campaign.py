"""`make test-faults`: the whole campaign; by default a few cases of the classes that change files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from faults.campaign import DAMAGED, DOCUMENT, FOREIGN, KILLED, KINDS, WRITING, promises
from faults.harness import build_shim

TESTS = Path(__file__).resolve().parents[1]


def run_campaign(folder: Path, *words: object) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "LD_PRELOAD": str(build_shim(folder)), "PYTHONPATH": path}
    command = [sys.executable, "-m", "faults.campaign", *map(str, words)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(1200)  # the number of cases bounds it, not the machine
@pytest.mark.parametrize(
    ("faults", "cases"),
    [pytest.param([DAMAGED], 64, marks=pytest.mark.long), ([KILLED, WRITING, FOREIGN], 60)],
)
def test_a_few_cases(tmp_path, faults, cases):
    some = ("--only", *faults, "--cases", cases, "--seconds", 1000, "--workers", 1)
    with run_campaign(tmp_path, *some) as campaign:
        told = campaign.stdout.read()
    assert campaign.returncode == 0, told
    assert re.search(rf"\| all \| \d+ \| {cases} \| 0 \|", told) and "| upheld |" in told, told


def test_each_promise_is_checked_and_each_class_of_fault_is_promised():
    """docs/faults.md and the campaign name each other; what the campaign does not do, a test file does."""
    named = promises()
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")][1:]
    tests = [re.findall(r"`(tests/[\w/]+\.py)`", row.split(" | ")[-1]) for row in rows]
    assert len(named) == len(rows) > 10
    assert all(classes or files for classes, files in zip(named.values(), tests, strict=True)), named
    assert {name for classes in named.values() for name in classes} == {kind.fault for kind in KINDS}
    assert all((TESTS.parent / name).is_file() for files in tests for name in files)


@pytest.mark.faults
@pytest.mark.timeout(7200)
def test_the_campaign(tmp_path, capsys):
    seconds = os.environ.get("FEEDRATE_FAULTS_SECONDS", "600")
    seed = os.environ.get("FEEDRATE_FAULTS_SEED", "20261122")
    with run_campaign(tmp_path, "--seconds", seconds, "--seed", seed) as campaign:
        assert campaign.stdout is not None
        with capsys.disabled():
            print()
            for line in campaign.stdout:
                print(line, end="", flush=True)
    assert campaign.returncode == 0, "see the table"
