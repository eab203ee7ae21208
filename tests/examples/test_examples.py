"""Documented examples: each file holds commands and what they print. `...` stands for anything in a line."""

import re
import shlex
from pathlib import Path

import pytest
from command import feedrate

HERE = Path(__file__).parent


def steps_of(example: Path) -> list[tuple[str, list[str]]]:
    """The commands of an example, each with the lines that it should print."""
    steps: list[tuple[str, list[str]]] = []
    for line in example.read_text().splitlines():
        if line.startswith("$ feedrate "):
            steps.append((line.removeprefix("$ feedrate "), []))
        elif steps:
            steps[-1][1].append(line)
    return steps


def matches(expected: str, line: str) -> bool:
    return re.fullmatch(re.escape(expected).replace(re.escape("..."), ".*"), line) is not None


@pytest.mark.parametrize("example", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_the_example_prints_what_it_says(example, tmp_path):
    for command, expected in steps_of(example):
        done = feedrate(*shlex.split(command), cwd=tmp_path)
        printed = (done.out + done.err).rstrip("\n").splitlines()
        wanted = "\n".join(expected).rstrip("\n").splitlines()
        assert len(printed) == len(wanted), f"$ feedrate {command}\n" + "\n".join(printed)
        for want, line in zip(wanted, printed, strict=True):
            assert matches(want, line.rstrip()), f"expected {want!r}, got {line!r}"
