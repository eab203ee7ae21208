"""The probe reads what it says that it read."""

from emulator.dataset.manifest import open_dataset
from emulator.launch.comm import Comm
from emulator.record.result import Probe
from emulator.run.probe import _at_depths, probe_storage, read_rate
from emulator.units import BLOCK_BYTES


def test_of_files_smaller_than_a_request_only_their_bytes_count(tiny, monkeypatch):
    """Files of 100 kB read in requests of 1 MiB would show ten times the storage's bandwidth."""
    monkeypatch.setattr("emulator.run.probe.SECONDS", 0.01)
    dataset = open_dataset(tiny)
    storage = dataset.store.for_ranks(direct=False, cache="warm")
    largest = max(path.stat().st_size for path in tiny.rglob("*.npz"))
    found = probe_storage(storage, dataset.manifest, None, 4 * largest, Comm())
    assert BLOCK_BYTES < max(probe.request_bytes for probe in found) <= largest
    assert len({probe.request_bytes for probe in found}) <= 3, "one size for all depths of a request"
    assert read_rate(storage, dataset.manifest, 4 * largest, 2, 0.01) > 0


def test_depths_of_requests_that_files_cut_short_are_compared_at_one_size():
    def probed(depth):
        return Probe(
            request_bytes=1000 * depth, depth=depth, requests_per_second=100.0 * depth, latency_seconds=0.01
        )

    assert [probe.request_bytes for probe in _at_depths(probed, 4096, (1, 2, 3))] == [2000] * 3
