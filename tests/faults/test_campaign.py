"""`make test-faults`: the whole campaign; by default a few cases of the classes that change files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults.campaign import FOREIGN, KILLED, WRITING
from faults.harness import build_shim

TESTS = Path(__file__).resolve().parents[1]


def run_campaign(folder: Path, *words: object) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "LD_PRELOAD": str(build_shim(folder)), "PYTHONPATH": path}
    command = [sys.executable, "-m", "faults.campaign", *map(str, words)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("fault", "cases"), [(KILLED, 21), (WRITING, 21), (FOREIGN, 10)])
def test_a_few_cases(tmp_path, fault, cases):
    with run_campaign(
        tmp_path, "--only", fault, "--cases", cases, "--seconds", 60, "--workers", 1
    ) as campaign:
        told = campaign.stdout.read()
    assert campaign.returncode == 0, told
    assert f"| {cases} | 0 |" in told.splitlines()[-1], told


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
