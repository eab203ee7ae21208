"""A dataset that is too small for a job: the command that the error names makes it large enough."""

import shlex

import pytest
from command import feedrate

from emulator.api import generate
from emulator.dataset.manifest import command_to_extend, read_manifest


@pytest.mark.parametrize(
    "options", [(), ("--seed", 3, "--format", "npy", "--layout", "dlio", "--subfolders", 2)]
)
def test_the_command_in_the_error_extends_the_dataset(tmp_path, options):
    folder = tmp_path / "my data"
    assert feedrate("generate", folder, "--recipe", "tiny", "--files", 4, *options).status == 0
    command = shlex.split(command_to_extend(folder, read_manifest(folder), 7))
    done = feedrate(*command[1:])
    assert done.status == 0, done.err
    assert len(read_manifest(folder).names) == 7


def test_no_command_is_named_that_would_not_extend_it(tmp_path):
    made = generate(tmp_path / "data", "tiny", files=2, settings=["size.bytes_mean=900000"])
    assert command_to_extend(tmp_path / "data", made.manifest, 7) == ""
