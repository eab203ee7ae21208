"""What tests of several rooms share."""

from pathlib import Path

import pytest
from command import feedrate


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 generated samples of about 1 MB. Read only: tests that damage files make their own copy."""
    folder = tmp_path_factory.mktemp("tiny") / "data"
    done = feedrate("generate", folder, "--recipe", "tiny", "--files", 96)
    assert done.status == 0, done.err
    return folder
