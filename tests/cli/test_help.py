"""The help of every verb: examples that the parser takes, and values without names of Python's types."""

import shlex

import pytest
import typer
from command import feedrate

from emulator.cli.main import app, parameters
from emulator.registry import VERBS


@pytest.mark.parametrize("verb", list(VERBS))
def test_examples_are_command_lines_that_the_verb_takes(verb):
    group = typer.main.get_command(app)
    above = group.make_context("feedrate", [], resilient_parsing=True)
    command = group.get_command(above, verb)
    examples = [line.strip() for line in command.help.splitlines() if line.strip().startswith("feedrate ")]
    assert len(examples) >= 2
    for example in examples:
        words = shlex.split(example)
        words = words[: words.index(">")] if ">" in words else words
        assert words[1] == verb
        with command.make_context(verb, words[2:], parent=above) as context:
            command.get_help(context)
    written = [name for rows in parameters(command, context).values() for name, _ in rows]
    assert not [name for name in written if "<" in name], "a type of Python"


@pytest.mark.parametrize(
    "words", ["swep", "xyzzy", "--nope", "sweep --nonsense", "sweep -n many", "sweep --steps", "record"]
)
def test_a_wrong_command_line_is_one_line(words):
    done = feedrate(*words.split())
    assert done.status == 2 and done.one_line() == done.err.rstrip("\n")


def test_the_nearest_command_is_named():
    assert "did you mean 'sweep'?" in feedrate("swep").one_line()
