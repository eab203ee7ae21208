"""The help of every verb: examples that the parser takes, and values without names of Python's types."""

import os
import shlex
import subprocess
import sys

import pytest
import typer
from command import feedrate

from emulator.cli.main import app
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
            records = [parameter.get_help_record(context) for parameter in command.params]
    written = [record[0] for record in records if record]
    assert not [
        name for name in written if name.startswith("--") and not name.startswith("-- ") and "<" in name
    ], "a type of Python"


@pytest.mark.parametrize("words", ["swep", "--nope", "sweep --nonsense", "sweep -n many", "record"])
def test_a_wrong_command_line_is_one_line(words):
    done = feedrate(*words.split())
    assert done.status == 2 and done.one_line() == done.err.rstrip("\n")
    assert words != "swep" or "did you mean 'sweep'?" in done.err


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("feedrate swe", "sweep"),
        ("feedrate sweep data --work", "--workload"),
        ("feedrate sweep data -w unet3d-h", "unet3d-h100"),
        ("feedrate ask /mnt/ai -a h", "h100"),
        ("feedrate generate data -r ki", "kits19"),
        ("feedrate plan -s weka-p", "weka-performance"),
    ],
)
def test_tab_completes_names_and_values_and_prints_nothing_else(words, completed):
    """It printed "feedrate: error" into the prompt, and no value was completed."""
    place = str(len(words.split(" ")) - 1)
    told = {"_FEEDRATE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place}
    done = subprocess.run(
        [sys.executable, "-m", "emulator"],
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert completed in done.stdout.split()
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-w unet3d-h100 -a v100", "-w unet3d-h100 has its accelerator, and -a v100 names another"),
        ("-a mi355", "unet3d has no accelerator mi355: say which with -a: a100, a100-v04, b200, h100"),
        ("-w retinanet", "say which with -a: b200, mi355"),
        ("-a H100 --within 1s", "too short for steps of 323 ms"),
        ("-w unet3d-h100 -a H100 --within 1s", "too short for steps of 323 ms"),
    ],
)
def test_ask_takes_an_accelerator_that_the_workload_has(words, said, tmp_path):
    assert said in feedrate("ask", tmp_path, *words.split()).one_line()
