"""Fixtures that tests of several rooms share."""

import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from command import feedrate, warm

# A deadline per example is a wall-clock limit: tests run beside each other on two cores would fail by chance.
# The same examples each time, so that a failing test was broken by the change; test-explore draws new ones.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile("same")

# nohup and some runners of CI start the suite with signals ignored that tests send to commands.
for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, action)

OPT_IN = (
    "long", "multihost", "sharedfs", "slurm", "container", "device", "ceph", "dlio", "mlperf", "faults",
    "record", "latency", "browser",
)  # fmt: skip
"""Markers of tests that run only when `-m` names them: see the Makefile."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked: str = config.option.markexpr
    left_out = [name for name in OPT_IN if name not in asked]
    dropped = [item for item in items if any(item.get_closest_marker(name) for name in left_out)]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in set(dropped)]


@pytest.fixture(scope="session", autouse=True)
def warm_commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with warm(tmp_path_factory.mktemp("warm")):
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 generated samples of about 1 MB. Read only: tests that damage files make their own copy."""
    folder = tmp_path_factory.mktemp("tiny") / "data"
    done = feedrate("generate", folder, "--recipe", "tiny", "--files", 96)
    assert done.status == 0, done.err
    return folder
