"""The commands of docs/ci.md run as they stand, on a small workload and shaped storage."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from command import ROOT_AND_OVERSUBSCRIBED

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ci.md").read_text()
GITHUB, GITLAB = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
PIPELINES = {
    "github": [step["run"] for step in GITHUB["jobs"]["storage"]["steps"]],
    "gitlab": GITLAB["storage"]["script"],
}


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory: below the shape, a disk that other tests write to is the limit."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", PIPELINES)
def test_the_pipeline_runs(name: str, tmp_path: Path, place: Path) -> None:
    install, *commands = PIPELINES[name]
    assert install.startswith("pip install")
    summary = tmp_path / "summary.md"
    for command in commands:
        line = command.replace("/mnt/ai -a a100", f"{place} -w unet3d-tiny --storage shaped:1GB/s")
        line = line.replace("--within 5min", "--within 45s").replace("--up-to 16", "--up-to 10")
        done = subprocess.run(
            ["bash", "-ec", line], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
            env={
                **os.environ, **ROOT_AND_OVERSUBSCRIBED, "GITHUB_STEP_SUMMARY": str(summary),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    if name == "github":
        assert "| ranks |" in summary.read_text()
    else:
        assert 'failures="0"' in (tmp_path / "gate.xml").read_text()
        assert (tmp_path / "feedrate.prom").read_text().endswith("# EOF\n")
