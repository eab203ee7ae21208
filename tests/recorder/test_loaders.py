"""Which steps and reads of a job belong to which of its DataLoaders."""

from __future__ import annotations

import json
from pathlib import Path

from emulator.plugins.recorder.log import BATCH_BEGINS, BATCH_ENDS
from emulator.plugins.recorder.watch import Watch

JOB = 7


def used(watch: Watch, loader: int, times: range, settings: dict[str, int], process: int = JOB) -> None:
    """A process takes batches of a loader at these times."""
    known = {"k": "l", "p": process, "l": loader, "rank": 0, "w": [], "f": settings}
    events: list[dict[str, object]] = [known]
    for step, at in enumerate(times):
        step_of = {"k": "s", "p": process, "l": loader, "e": 0, "i": step, "n": 4, "r": 0, "c": 0, "d": 0}
        events.append({**step_of, "s": step + 1, "a": 10 * at, "g": 10 * at + 1})
    watch.events("".join(json.dumps(event) + "\n" for event in events).encode())


def test_loaders_of_one_kind_are_one_unless_they_are_used_at_the_same_time():
    watch = Watch()
    used(watch, 0, range(0, 20, 2), {})
    used(watch, 1, range(1, 21, 2), {})  # of the same steps
    used(watch, 2, range(30, 40), {})  # made for the next epoch
    loaders = [loader for loader, _ in watch.loaders_and_steps()]
    assert [(loader.settings.beside, loader.steps) for loader in loaders] == [(0, 20), (1, 10)]


def test_ranks_with_files_of_their_own_are_ranks_though_some_have_more():
    watch = Watch()
    for rank, length in enumerate((100, 99)):
        used(watch, 0, range(10), {"dataset_length": length}, process=JOB + rank)
    (loader,) = [loader for loader, _ in watch.loaders_and_steps()]
    assert (loader.ranks, loader.steps, loader.settings.dataset_length) == (2, 20, 100)


def test_a_loader_has_the_reads_of_its_own_batches(tmp_path: Path):
    watch = Watch()
    used(watch, 0, range(4), {})
    used(watch, 1, range(10, 14), {"batch_size": 9})
    for loader, size in [(0, 100), (1, 30)]:
        path = tmp_path / f"{loader}.bin"
        path.write_bytes(bytes(size))
        for at, op in enumerate([BATCH_BEGINS, 0, BATCH_ENDS]):
            watch.log.when = (loader + 0.1 * at, loader + 0.1 * at)
            if op:
                watch.log.border(JOB, JOB, op, loader)
            else:
                watch.log.read(JOB, JOB, 3, bytes(path), 0, size)
    loaders = [loader for loader, _ in watch.loaders_and_steps()]
    assert [(loader.read_steps, loader.reads.bytes) for loader in loaders] == [(1, 100), (1, 30)]
