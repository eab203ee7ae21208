"""What a job's process reports of its DataLoaders, whatever samplers and batches they have."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import BatchSampler, DataLoader, RandomSampler  # noqa: E402

from emulator.plugins.recorder.hook import feedrate_probe as probe  # noqa: E402


@pytest.fixture
def reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """Returns the events of this process, which is watched as a job's."""
    os.mkfifo(tmp_path / "events")
    monkeypatch.setattr(probe, "_events", probe._Events(str(tmp_path / "events")))
    probe.patch(torch.utils.data.dataloader)
    pipe = os.open(tmp_path / "events", os.O_RDONLY | os.O_NONBLOCK)
    return lambda: [json.loads(line) for line in os.read(pipe, 1 << 16).splitlines()]


class Shard:
    """As accelerate's BatchSamplerShard: every second batch of another sampler."""

    def __init__(self, batch_sampler: BatchSampler) -> None:
        self.batch_sampler = batch_sampler
        self.batch_size = batch_sampler.batch_size

    def __iter__(self) -> Any:
        return iter(list(self.batch_sampler)[::2])


class Buckets:
    """A batch sampler of the job's own, with batches of any size."""

    def __iter__(self) -> Any:
        return iter([[0], [1, 2, 3]])


DATA = list(range(8))
ANY_OF_ALL = BatchSampler(RandomSampler(DATA, replacement=True), 2, False)


@pytest.mark.parametrize(
    ("loader", "replacement", "size"),
    [
        (DataLoader(DATA, 2, shuffle=True), False, 2),
        (DataLoader(DATA, batch_sampler=ANY_OF_ALL), True, 2),
        (DataLoader(DATA, batch_sampler=Shard(ANY_OF_ALL)), True, 2),  # type: ignore[arg-type]
        (DataLoader(DATA, batch_sampler=Buckets()), False, 0),  # type: ignore[arg-type]
    ],
)
def test_the_sampler_is_the_one_that_is_asked(
    loader: Any, replacement: bool, size: int, reported: Any
) -> None:
    """Not the default one, which a DataLoader has beside a batch sampler."""
    next(iter(loader))
    (facts,) = [event["f"] for event in reported() if event["k"] == "l"]
    assert (facts["replacement"], facts["batch_size"]) == (replacement, size)


COLUMNS = {"a": torch.zeros(100), "b": torch.zeros(100, 3)}


class Odd:
    """As a nested tensor, which has no shape."""

    @property
    def shape(self) -> Any:
        raise RuntimeError("no shape")


@pytest.mark.parametrize(
    ("dataset", "size", "collate", "samples"),
    [
        ([1, 2, 3, 4], 2, None, [2]),
        ([torch.zeros(30), torch.zeros(50)], 2, torch.cat, [2]),  # as graphs of 30 and 50 nodes
        ([COLUMNS, COLUMNS], None, None, [100]),  # row groups
        ([torch.zeros(3, 32, 32)] * 2, None, None, [1]),  # an image is one sample
        ([(torch.zeros(3, 32, 32), torch.zeros(1))] * 2, None, None, [1]),
        ([(torch.zeros(3, 32, 32), 7)] * 2, None, None, [1]),
        ([(Odd(), Odd())], None, None, []),  # not told, and no matter to the job
    ],
)
def test_a_batch_counts_the_samples_it_was_asked_for_or_rows_that_the_dataset_makes(
    dataset: list[Any], size: int | None, collate: Any, samples: list[int], reported: Any
) -> None:
    next(iter(DataLoader(dataset, size, collate_fn=collate)))  # type: ignore[arg-type]
    assert [event["n"] for event in reported() if event["k"] == "s"] == samples


class Late(torch.utils.data.Dataset[float]):
    """The first sample takes long; the others are there at once."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        time.sleep(0.0 if index else 2.0)
        return 0.0


def test_a_batch_is_not_ready_because_one_of_another_worker_is(reported: Any) -> None:
    batches = iter(DataLoader(Late(), 1, num_workers=2))  # type: ignore[var-annotated]
    time.sleep(1)
    next(batches)
    time.sleep(0.5)
    next(batches)
    assert [event["r"] for event in reported() if event["k"] == "s"] == [0, 1]
