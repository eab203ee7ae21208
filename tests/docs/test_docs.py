"""The manual knows every limit, kind of answer and flag that the code has. `make docs` checks its links."""

import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from emulator.analysis.bound import LIMIT_NAMES
from emulator.cli.main import verb_command
from emulator.config.workload import load_workload
from emulator.record.result import BoundKind, KneeKind

ROOT = Path(__file__).resolve().parents[2]
LIMITS = (ROOT / "docs" / "limits.md").read_text()
FLAGS = sorted(
    {
        name
        for module in (ROOT / "emulator").rglob("*.py")
        for name in re.findall(r'(?:Flag\([^)]*?name=|above\(\s*)"([\w-]+)"', module.read_text())
    }
)


def test_flags_are_found():
    assert {"client", "steal", "page-cache", "short"} <= set(FLAGS)


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_is_explained(flag):
    assert f"| `{flag}` |" in LIMITS


@pytest.mark.parametrize("kind", get_args(BoundKind))
def test_every_limit_is_explained(kind):
    assert f"| {LIMIT_NAMES[kind]} |" in LIMITS


@pytest.mark.parametrize("kind", get_args(KneeKind))
def test_every_kind_of_answer_is_explained(kind):
    assert f"| `{kind}` |" in LIMITS


def commands_in(page: Path) -> list[str]:
    """The command lines of feedrate that a page shows, in blocks and between backticks, from the verb on."""
    text = page.read_text().replace("\\\n", " ")
    blocks = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    shown = [line for line in blocks if re.match(r"(mpi\w+ .*)?feedrate ", line)]
    shown += re.findall(r"`(?:mpirun [^`]*?)?feedrate ([a-z]+ [^`|]*)`", text)
    return [line.rpartition("feedrate ")[2] if " -- " not in line else line for line in shown]


GENERATED = (ROOT / "docs" / ".gitignore").read_text().splitlines()
WRITTEN = [page for page in sorted((ROOT / "docs").glob("*.md")) if f"/{page.name}" not in GENERATED]
PAGES = [ROOT / "README.md", ROOT / "launch" / "README.md", *WRITTEN]
SHOWN = sorted({line for page in PAGES for line in commands_in(page)})


def test_commands_are_found():
    assert len(SHOWN) > 40


@pytest.mark.parametrize("line", SHOWN)
def test_every_command_that_is_printed_is_one(line):
    """Its verb, its options and their values are read as the command line reads them; nothing is run."""
    line = (
        re.sub(r"^.*?feedrate ", "", line).partition(" #")[0].split(" | ")[0].split(" > ")[0].split(" >> ")[0]
    )
    verb, *words = [word for word in shlex.split(line) if word not in ("...", "…")]
    command = verb_command(verb)
    assert command is not None, verb
    try:
        command.make_context(verb, words, resilient_parsing=False)
    except Exception as error:
        if (
            type(error).__name__ != "MissingParameter"
        ):  # a page may name an option without what stands beside it
            raise


def test_the_workload_that_is_printed_is_one(tmp_path):
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "workload.md").read_text(), re.DOTALL)
    (tmp_path / "mine.toml").write_text(block)
    assert load_workload(str(tmp_path / "mine.toml")).loader.batch_size == 32
