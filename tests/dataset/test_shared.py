"""What the hosts of a run must agree on before anything is read."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from command import feedrate
from threads import Group, ThreadComm

from emulator.dataset.shared import open_together
from emulator.errors import DatasetError
from emulator.launch.comm import Quiet

TINY = ("--recipe", "tiny", "--no-fsync")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, seed in (("shared", 1), ("local", 2)):
        assert feedrate("generate", folder / name, *TINY, "--files", 3, "--seed", seed).status == 0
    shutil.copytree(folder / "shared", folder / "copy")
    return folder


def opened_on(*places: Path) -> list[object]:
    """What the ranks of hosts get, two on each, that find the datasets at `places` under one path."""
    group = Group(2 * len(places))

    def work(rank: int) -> object:
        try:
            return open_together(ThreadComm(group, rank, (2,) * len(places)), places[rank // 2])
        except Quiet as error:
            return error.code

    with ThreadPoolExecutor(group.size) as pool:
        return list(pool.map(work, range(group.size)))


def test_hosts_with_the_same_dataset_open_it(data: Path) -> None:
    found = opened_on(data / "shared", data / "copy")
    assert len({dataset.table for dataset in found}) == 1 and len(found) == 4


def test_a_host_with_another_dataset_is_named(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    statuses = opened_on(data / "shared", data / "local", data / "copy")
    error = capfd.readouterr().err
    assert statuses == [DatasetError.exit_code] * 6
    assert error.count("feedrate: error:") == 1 and "host1 is another dataset" in error


def test_a_host_without_the_dataset_is_named(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    statuses = opened_on(data / "shared", data / "missing")
    error = capfd.readouterr().err
    assert statuses == [DatasetError.exit_code] * 4
    assert error.count("feedrate: error:") == 1 and "host host1: there is no dataset folder" in error
