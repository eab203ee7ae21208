"""The sampler that a DataLoader asks is recorded, not the default that it has beside a batch sampler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler  # noqa: E402

import emulator.plugins.recorder.hook  # noqa: E402

HOOK = str(Path(emulator.plugins.recorder.hook.__file__).parent)


class Shard:
    """As accelerate's BatchSamplerShard: every second batch of another sampler."""

    def __init__(self, batch_sampler: BatchSampler) -> None:
        self.batch_sampler = batch_sampler
        self.batch_size = batch_sampler.batch_size

    def __iter__(self) -> Any:
        return iter(list(self.batch_sampler)[::2])


class Seedable(RandomSampler):
    """As accelerate's SeedableRandomSampler."""


class Buckets:
    """A batch sampler of the job's own."""

    def __iter__(self) -> Any:
        return iter([[0, 1], [2, 3]])


DATA = list(range(8))


@pytest.mark.parametrize(
    ("loader", "asked"),
    [
        (DataLoader(DATA, 2), SequentialSampler),
        (DataLoader(DATA, 2, shuffle=True), RandomSampler),
        (DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 2, False)), RandomSampler),
        (DataLoader(DATA, batch_sampler=Shard(BatchSampler(Seedable(DATA), 2, False))), Seedable),  # type: ignore[arg-type]
        (DataLoader(DATA, batch_sampler=Buckets()), Buckets),  # type: ignore[arg-type]
    ],
)
def test_the_sampler_is_the_one_that_is_asked(loader: Any, asked: type, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(HOOK)
    import feedrate_probe

    assert type(feedrate_probe._asked_of(loader)[1]) is asked
    monkeypatch.delitem(sys.modules, "feedrate_probe")


COLUMNS = {"a": torch.zeros(100), "b": torch.zeros(100, 3)}


@pytest.mark.parametrize(
    ("dataset", "size", "collate", "samples"),
    [
        ([1, 2, 3, 4], 2, None, 2),
        ([torch.zeros(30), torch.zeros(50)], 2, torch.cat, 2),  # as graphs of 30 and 50 nodes
        ([COLUMNS, COLUMNS], None, None, 100),  # row groups
        ([torch.zeros(3, 32, 32)] * 2, None, None, 1),  # an image is one sample
        ([(torch.zeros(3, 32, 32), torch.zeros(1))] * 2, None, None, 1),
        ([(torch.zeros(3, 32, 32), 7)] * 2, None, None, 1),
    ],
)
def test_a_batch_counts_the_samples_it_was_asked_for_or_rows_that_the_dataset_makes(
    dataset: list[Any], size: int | None, collate: Any, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(HOOK)
    import feedrate_probe

    feedrate_probe.patch(torch.utils.data.dataloader)
    iterator = iter(DataLoader(dataset, size, collate_fn=collate))  # type: ignore[arg-type]
    assert feedrate_probe._samples(iterator, next(iterator)) == samples
