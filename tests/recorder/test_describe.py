"""From what was read to a pattern that is replayed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from emulator.errors import SpecError
from emulator.plugins.recorder.cli import lines
from emulator.plugins.recorder.describe import describe, of_loader, size_spec
from emulator.plugins.recorder.job import Written
from emulator.plugins.recorder.observation import Loader, Observation, Settings
from emulator.plugins.recorder.pattern import Pattern, pattern_of, side_files
from emulator.plugins.recorder.reads import Reads, Tally
from emulator.plugins.recorder.steps import StepTime

STEP = StepTime(seconds=0.1, steps=20, all_steps=25, waited=0.0)
SHUFFLED = Settings(batch_size=4, workers=2, prefetch_factor=2, sampler="RandomSampler", dataset_length=100)


def pieces(size: int, count: int):
    tally = Tally()
    for _ in range(count):
        tally.add(size)
    return tally.pieces()


def whole(files: int, size: int, times: int = 1) -> Reads:
    return Reads(
        files=files, files_bytes=files * size, sizes=(size, size), visits=files * times,
        visit_bytes=files * size * times, visit_size=files * size * times, bytes=files * size * times,
        requests=pieces(size, files * times), heads=pieces(size, files * times),
        runs=pieces(size, files * times),
    )  # fmt: skip


def seen(reads: Reads, samples: int, settings: Settings = SHUFFLED, ahead: float = 1.0) -> Loader:
    return Loader(
        rank=0, host="h", process=1, settings=settings, epochs=1, steps=samples // 4, samples=samples,
        ahead=ahead, reads=reads,
    )  # fmt: skip


def pattern(reads: Reads, samples: int, settings: Settings = SHUFFLED, ahead: float = 1.0) -> Pattern:
    one = seen(reads, samples, settings, ahead)
    return pattern_of(one, [one])


def test_whole_files():
    found = pattern(whole(100, 50_000), 100)
    assert (found.files, found.samples_per_file, found.access.bytes_read) == (100, 1, 0)
    found = pattern(whole(40, 50_000), 40)
    assert found.files == 100 and any("40 files were seen" in line for line in found.told)


def test_a_file_is_read_in_the_requests_of_the_job():
    """np.load's: a header, and all the rest at once; or many requests, one behind the other."""
    loaded = replace(
        whole(100, 50_000), requests=pieces(4096, 200) + pieces(45_904, 100), heads=pieces(4096, 100)
    )
    found = pattern(loaded, 100)
    assert (found.access.head_bytes, found.block_bytes, found.access.buffered) == (4096, 53_248, True)
    streamed = replace(whole(100, 50_000), requests=pieces(8192, 600), heads=pieces(8192, 100))
    found = pattern(streamed, 100)
    assert (found.access.head_bytes, found.block_bytes) == (0, 8192)
    assert pattern(whole(100, 50_000), 100).access.head_bytes == 0


def test_files_of_all_sizes_that_are_read_at_once_have_no_header():
    """A typical first read, of all of a file, is less than the largest file."""
    at_once = pieces(50_000, 80) + pieces(120_000, 30)
    reads = replace(whole(110, 70_000), sizes=(50_000, 120_000), requests=at_once, heads=at_once)
    found = pattern(reads, 110)
    assert (found.access.head_bytes, found.block_bytes) == (0, 122_880)


def test_files_that_are_opened_several_times_are_opened_as_often():
    """As nibabel does: twice for the header, then for all of the file, whose open may end before another."""
    large = (0, 12_288, 1), (0, 60_000, 0), (0, 12_288, 0)
    reads = replace(
        whole(100, 60_000), visits=300, visit_bytes=100 * 84_576, visit_size=300 * 60_000, bytes=100 * 84_576,
        requests=pieces(4096, 2100), heads=pieces(4096, 300), trail=large * 100,
    )  # fmt: skip
    found = pattern(reads, 100)
    assert (found.access.opens, found.access.head_bytes, found.block_bytes) == (3, 12_288, 4096)
    assert found.access.bytes_read == 0 and found.sample_bytes == 60_000
    assert "files are read whole, one a sample, after 2 opens that read 12.3 kB" in found.told
    assert pattern(replace(whole(100, 60_000, 3), sizes_only=True), 100).access.opens == 0, "no offsets"
    twice = pattern(replace(reads, visit_bytes=100 * 54_576, bytes=100 * 54_576), 100)
    assert twice.access.opens == 0 and any("opens a file 3 times" in line for line in twice.told)


@pytest.mark.parametrize(("tails", "tail"), [(100, 172), (10, 0)])
def test_the_end_of_files_is_read_first_where_the_job_does(tails, tail):
    reads = replace(whole(100, 2**20), heads=pieces(4096, 100), requests=pieces(2**18, 400))
    found = pattern(replace(reads, tails=tails, tail_bytes=100 * 172), 100)
    assert (found.access.head_bytes, found.access.tail_bytes) == (4096, tail)
    assert any("their ends before the rest" in line for line in found.told) == bool(tail)


def test_a_part_of_a_file_is_read_in_as_many_requests_as_by_the_job():
    """Python's buffer reads whole blocks of 4 KiB first, and then the last one."""
    part = replace(whole(1, 100 * 65_000), runs=pieces(65_000, 100), bytes=100 * 65_000)
    found = pattern(replace(part, requests=pieces(61_440, 100) + pieces(3_560, 100)), 100)
    assert (found.samples_per_file, found.sample_bytes, found.block_bytes) == (100, 65_000, 61_440)
    # A last block that is read whole: its end is in a page of its own, after which the kernel reads ahead.
    found = pattern(replace(part, requests=pieces(61_440, 100) + pieces(4_096, 100)), 100)
    assert found.block_bytes == 57_344
    assert pattern(replace(part, requests=pieces(65_000, 100)), 100).block_bytes == 65_536
    assert pattern(replace(part, requests=pieces(4_096, 1600)), 100).block_bytes == 4_096


def test_files_of_an_iterable_dataset_are_those_that_were_seen():
    iterable = Settings(batch_size=4, workers=2, prefetch_factor=2, sampler="iterable", iterable=True)
    found = pattern(whole(40, 50_000), 800, iterable)
    assert found.files == 40 and any("the recipe has the 40 files" in line for line in found.told)


def test_files_of_batches_on_their_way_make_no_sample_of_less_than_a_file():
    assert pattern(whole(94, 50_000), 80, ahead=1.2).files == 100  # 96 were asked for
    assert pattern(whole(188, 50_000), 80, ahead=1.2).files == 200, "image and label"


def test_samples_that_are_drawn_again_and_again_are_files_still():
    found = pattern(whole(40, 50_000, times=5), 200, replace(SHUFFLED, sampler="WeightedRandomSampler"))
    assert (found.files, found.samples_per_file, found.access.bytes_read) == (100, 1, 0)


def test_samples_are_drawn_with_replacement_if_the_sampler_does_so_or_they_are_windows_of_a_map():
    assert not pattern(whole(40, 50_000), 40).access.replacement
    weighted = replace(SHUFFLED, sampler="WeightedRandomSampler", replacement=True)
    assert pattern(whole(40, 50_000), 40, weighted).access.replacement
    assert mapped(10**8, -1).access.replacement and not mapped(10**8).access.replacement


def test_a_file_that_is_read_whole_for_each_of_its_samples_is_read_whole_by_the_replay():
    found = pattern(whole(40, 50_000, times=5), 200)
    assert (found.files, found.samples_per_file, found.access.bytes_read) == (40, 1, 0)
    assert any("samples share bytes" in line for line in found.told)


def test_image_and_label_of_a_sample_are_files_of_their_own():
    found = pattern(whole(200, 50_000), 100)
    assert (found.files, found.files_per_sample) == (200, 2)
    assert any("read from 2 files" in line for line in found.told)


def test_two_ranks_that_read_the_same_files_or_shares_of_them():
    both = [seen(whole(100, 50_000), 100) for _ in range(2)]
    together = replace(both[0], samples=200, reads=both[0].reads.plus(both[1].reads))
    assert pattern_of(together, both).files == 100
    halves = [seen(whole(50, 50_000), 50) for _ in range(2)]
    together = replace(halves[0], samples=100, reads=halves[0].reads.plus(halves[1].reads))
    assert pattern_of(together, halves).files == 100


def test_batches_on_their_way_when_the_job_ended_do_not_make_a_sample_smaller():
    reads = replace(whole(1, 100 * 65536), visit_bytes=46 * 65536, bytes=46 * 65536,
                    requests=pieces(65536, 46), runs=pieces(65536, 46))  # fmt: skip
    found = pattern(reads, 40, ahead=1.2)  # 40 were delivered, 48 asked for, 46 read
    assert (found.samples_per_file, found.access.bytes_read, found.block_bytes) == (100, 0, 65536)
    assert found.access.buffered, "what the kernel reads ahead of a part of a file is the job's, too"


def test_read_ahead_is_told_where_it_is_more_than_libraries():
    reads = whole(100, 1_000_000)
    for storage, told in ((1.35e8, False), (2e8, True)):
        loader = seen(replace(reads, storage_bytes=int(storage)), 100)
        assert any("asked for came from storage" in line for line in of_loader(loader, STEP, 1)) == told


@pytest.mark.parametrize(
    ("ranks", "most", "took"), [(1, "5 processes", "1 took 19%"), (6, "6 processes", "6 took 112%")]
)
def test_it_is_said_from_how_many_processes_on_the_job_is_slower_than_its_replay(ranks, most, took):
    loader = replace(seen(whole(100, 1_000_000), 100), step_cpu_seconds=0.1, batch_cpu_seconds=0.05)
    told = of_loader(loader, STEP, ranks, cores=8)
    assert any(f"with more than {most} on 8" in line and f"{took} of them" in line for line in told)
    assert any("such as gradients" in line for line in told) == (ranks == 1)
    assert not any("cores" in line for line in of_loader(loader, STEP, ranks)), "of an unknown number"


@pytest.mark.parametrize(("pinned", "taking"), [(False, 0.002), (True, None)])
def test_a_thread_that_pins_batches_takes_them_while_the_job_computes(pinned, taking):
    loader = seen(whole(100, 1_000_000), 100, replace(SHUFFLED, pinned=pinned))
    step = replace(STEP, taking=0.002)
    observation = Observation(created="", how="strace", loaders=(loader,), processes=1, step=step)
    spec = describe(observation, "job").workload.accelerator
    assert spec.taking_seconds == taking and spec.includes_taking == pinned


def test_parts_that_are_read_with_o_direct_are_replayed_so():
    size, part = 100 * 2**16, pieces(2**16, 100)
    reads = replace(whole(100, 2**20), visit_bytes=size, bytes=size, requests=part, runs=part)
    assert pattern(reads, 100).access.buffered
    found = pattern(replace(reads, direct=reads.bytes), 100)
    assert not found.access.buffered and any("O_DIRECT" in line for line in found.told)


def test_pieces_of_a_sample():
    reads = replace(
        whole(100, 1_000_000),
        visit_bytes=100 * 80_000,
        bytes=100 * 80_000,
        requests=pieces(8_000, 1000),
        runs=pieces(8_000, 1000),
        followed_files=100,
        followed_bytes=100 * 80_000,
        large_runs=1000,
        trail=100 * ((0, 9, 1), (0, 96, 0), *((90_000 * n + 5000, 8_000, 0) for n in range(10))),
    )
    found = pattern(reads, 100)
    assert (found.access.bytes_read, found.block_bytes) == (80_009, 8192)
    assert set(found.access.places) == {(0, 9, *(n for at in range(10) for n in (90_000 * at + 5000, 8_000)))}


def in_file(backward: int, each: int = 65536, times: int = 40) -> Reads:
    """Reads of 40 samples of a file of 100, which went back `backward` times."""
    total = times * each
    return replace(
        whole(1, 100 * 65536), visit_bytes=total, bytes=total, requests=pieces(each, times),
        runs=pieces(each, times), followed_files=2, followed_bytes=total, backward=backward,
    )  # fmt: skip


@pytest.mark.parametrize("sampler", ["SequentialSampler", "RandomSampler", "custom", "DistributedSampler"])
def test_the_order_is_what_was_read_whatever_the_sampler_is_called(sampler):
    settings = replace(SHUFFLED, sampler=sampler)
    assert pattern(in_file(19), 40, settings).access.pattern == "random"
    assert pattern(in_file(1), 40, settings).access.pattern == "sequential"
    between = pattern(in_file(6), 40, settings)
    assert between.access.pattern == "sequential" and any("neither" in line for line in between.told)


@pytest.mark.parametrize(("adjacent", "samples", "of_sample"), [(20, 100, 0), (12, 100, 0), (2, 80, 65536)])
def test_samples_side_by_side_in_a_part_of_a_file_leave_no_gaps_in_the_replay(adjacent, samples, of_sample):
    """A subset of 80 rows of a file, one run of rows or drawn at random; or rows with other bytes between."""
    settings = replace(SHUFFLED, dataset_length=80)
    found = pattern(replace(in_file(19), adjacent=adjacent), 40, settings)
    assert (found.samples_per_file, found.access.bytes_read) == (samples, of_sample)
    assert any("side by side" in line for line in found.told) is (not of_sample)


def test_nodes_of_an_index_between_samples_make_no_sample_longer():
    """As of HDF5. A short request behind each sample is a stream for the kernel, which reads ahead."""
    nodes, reads = pieces(2616, 30), in_file(19)
    more = reads.bytes + sum(nodes.bytes)
    reads = replace(
        reads, bytes=more, visit_bytes=more, requests=reads.requests + nodes, runs=reads.runs + nodes
    )
    found = pattern(reads, 36, ahead=40 / 36)
    assert (found.samples_per_file, found.access.bytes_read, found.block_bytes) == (100, 0, 65536)


def test_an_iterable_dataset_that_jumps_within_its_file_is_random():
    iterable = Settings(batch_size=4, workers=2, prefetch_factor=2, sampler="iterable", iterable=True)
    assert pattern(in_file(20), 40, iterable).access.pattern == "random"


def test_samples_in_a_shuffle_buffer_are_samples():
    """Two files of 100 samples were read for 100 that were delivered: the others are in the buffer."""
    size = 100 * 50_000
    reads = replace(whole(2, size), requests=pieces(10_000, 1000))
    iterable = Settings(batch_size=4, workers=2, prefetch_factor=2, sampler="iterable", iterable=True)
    loader = replace(seen(reads, 100, iterable), batch_call_bytes=200_000.0)
    found = pattern_of(loader, [loader])
    assert (found.samples_per_file, found.sample_bytes, found.files) == (100, 50_000, 2)
    assert any("into a buffer" in line for line in found.told)
    loader = replace(loader, batch_call_bytes=400_000.0)
    assert pattern_of(loader, [loader]).samples_per_file == 50


def test_windows_that_overlap_keep_the_bytes_of_a_step():
    """As of tokens: nearly as many samples as bytes, and each reads 64 KiB."""
    found = pattern(in_file(20), 40, replace(SHUFFLED, dataset_length=100 * 65536 - 65536))
    assert (found.samples_per_file, found.sample_bytes) == (1600, 4096), "dense enough"
    assert (found.access.bytes_read, found.access.places) == (65536, ())
    assert any("samples share bytes" in line for line in found.told)


def test_crops_of_a_volume_are_read_in_several_places_that_are_near_each_other():
    """Of 40 samples at random places, half are read in three runs of 16 kB, half in five, 50 kB apart."""
    begins = (np.random.default_rng(0).permutation(40) * 700_000).tolist()
    counts = 20 * [3, 5]
    runs = [(at + 66_384 * n, 16_384) for at, many in zip(begins, counts, strict=True) for n in range(many)]
    trail = tuple((*run, int(not number)) for number, run in enumerate(runs))
    total = 4 * 40 * 16_384
    reads = replace(in_file(20), bytes=total, followed_bytes=total, runs=pieces(16_384, 160),
                    requests=pieces(16_484, 160), large_runs=160, trail=trail)  # fmt: skip
    found = pattern(reads, 40, replace(SHUFFLED, dataset_length=400))
    assert (found.samples_per_file, found.access.bytes_read, found.block_bytes) == (400, 65_536, 16_384)
    three, five = (tuple(n for at in range(count) for n in (66_384 * at, 16_384)) for count in (3, 5))
    assert sorted(found.access.places) == 20 * [three] + 20 * [five]
    assert any("in 4 places within" in line for line in found.told)


def test_a_job_that_reads_all_its_data_before_its_first_step_is_refused():
    """As Hugging Face's streams: ten files at a time, of which there are few."""
    iterable = Settings(batch_size=4, workers=2, prefetch_factor=2, sampler="iterable", iterable=True)
    loader = replace(seen(whole(16, 10**7), 800, iterable), read_steps=100, batch_call_bytes=30.0)
    with pytest.raises(SpecError, match="160 MB into memory at first, and nothing"):
        pattern_of(loader, [loader])


def test_maps_that_were_in_memory_already_are_refused():
    reads = Reads(
        files=1, files_bytes=10**8, sizes=(10**8, 10**8), mapped=10**8, storage_bytes=0, resident=1.0
    )
    with pytest.raises(SpecError, match="page cache"):
        pattern(reads, 100)


@pytest.mark.parametrize(("storage", "refused"), [(70, False), (50, True)])
def test_patches_of_files_that_are_mapped_for_them_were_not_in_memory_before(storage, refused):
    """Patches of 50 files of 1 MB: when they are examined, 70 % of their pages are in memory."""
    reads = Reads(
        files=50, files_bytes=50 * 10**6, sizes=(10**6, 10**6), mapped=50 * 10**6, faults=500, resident=0.7,
        storage_bytes=storage * 500_000,
    )  # fmt: skip
    if refused:
        with pytest.raises(SpecError, match="page cache"):
            pattern(reads, 50)
    else:
        found = pattern(reads, 50)
        assert found.access.mapped and found.access.bytes_read == pytest.approx(700_000, rel=0.01)


@pytest.mark.parametrize(("visits", "head"), [(50, 4096), (5, 0)])
def test_a_patch_of_a_mapped_file_is_the_pages_that_faulted(visits, head):
    """np.load reads the header, then maps the file, of which a patch touches every fourth of 64 pages."""
    faulted = tuple((65_536 * number, int(not number)) for number in range(4)) * 50
    reads = Reads(
        files=50, files_bytes=50 * 10**6, sizes=(10**6, 10**6), mapped=50 * 10**6, faults=200,
        storage_bytes=50 * 500_000, visits=visits, heads=pieces(128, visits), faulted=faulted,
    )  # fmt: skip
    found = pattern(reads, 50)
    assert found.access.places == ((0, 4096, 65_536, 4096, 131_072, 4096, 196_608, 4096),)
    assert (found.access.bytes_read, found.access.head_bytes, found.guessed) == (16_384, head, False)
    assert any("touches the pages that faulted" in line for line in found.told)
    assert "page faults of a sample are in 4 pages within 201 kB of its file" in found.told


def mapped(
    storage: int, length: int = 100, sampler: str = "RandomSampler", of_map: int | None = None
) -> Pattern:
    """A file of 100 MB, of which a job of 50 samples got `storage` bytes by page faults."""
    reads = Reads(
        files=1, files_bytes=10**8, sizes=(10**8, 10**8), mapped=10**8, storage_bytes=storage, faults=9
    )
    loader = seen(reads, 50, replace(SHUFFLED, dataset_length=length, sampler=sampler))
    return pattern_of(loader, [loader], of_map)


@pytest.mark.parametrize(
    ("sampler", "storage", "order"),
    [
        ("RandomSampler", 50 * 10**6, "random"),
        ("SequentialSampler", 50 * 10**6, "sequential"),
        ("SequentialSampler", 100 * 10**6, "random"),  # the dataset shuffles: read around each fault
    ],
)
def test_a_sample_of_a_mapped_file_is_its_share_of_the_file(sampler, storage, order):
    found = mapped(storage, sampler=sampler)
    assert found.access.mapped and (found.samples_per_file, found.sample_bytes) == (100, 10**6)
    assert found.access.pattern == order and not found.access.bytes_read


@pytest.mark.parametrize(
    ("storage", "length", "most"),
    [(10**7, 100, 200_000), (10**8, 5 * 10**7, 2 * 10**6), (10**8, -1, 2 * 10**6)],
)
def test_a_sample_of_a_map_has_at_most_what_came_from_storage_where_it_may_be_no_share(storage, length, most):
    """Fewer bytes came than 50 samples have, or the dataset has as many windows as tokens, or no length."""
    found = mapped(storage, length)
    assert found.guessed and found.access.mapped
    assert found.sample_bytes == pytest.approx(most, rel=0.01)
    assert found.samples_per_file == round(10**8 / most)


def test_samples_of_a_map_have_the_bytes_that_replays_find():
    found = mapped(10**8, -1, of_map=50_000)
    assert not found.guessed and not found.access.bytes_read
    assert (found.samples_per_file, found.sample_bytes) == (2000, 50_000)


def test_ranks_that_map_the_same_file_read_each_its_share_of_it():
    reads = Reads(
        files=1, files_bytes=10**8, sizes=(10**8,), mapped=10**8, storage_bytes=50 * 10**6, faults=9
    )
    one = seen(reads, 50)
    found = pattern_of(replace(one, samples=100, steps=25, reads=reads.plus(reads)), [one, one])
    assert (found.files, found.samples_per_file, found.sample_bytes) == (1, 100, 10**6)


def test_mapped_files_of_a_sample_each_are_not_shared_out_over_those_that_were_not_seen():
    """Fifty of a hundred were: a sample is not half of a file, nor all of it if less came from storage."""
    reads = Reads(
        files=50, files_bytes=50 * 10**6, sizes=(10**6,) * 50, mapped=5 * 10**7, storage_bytes=45 * 10**6
    )
    assert pattern(reads, 50).sample_bytes == 10**6
    found = pattern(replace(reads, storage_bytes=30 * 10**6), 50)
    assert found.guessed and (found.samples_per_file, found.access.bytes_read) == (1, 600_000)


def test_nothing_that_was_read_is_refused():
    with pytest.raises(SpecError, match="no data file"):
        pattern(Reads(), 100)


def test_sizes_that_are_all_one_need_no_quantiles():
    assert size_spec((7, 7, 7)).distribution == "fixed"
    assert size_spec((7, 8, 9)).quantiles == (7, 8, 9)
    few = size_spec((5, 6, 9_000_000), listed=True)
    assert sorted(few.listed) == [5, 6, 9_000_000] and few.listed_among == 3
    assert few.bytes_mean == 3_000_004, "the mean of the files, not of sizes between them"


def test_a_small_file_beside_those_of_many_samples_holds_none():
    sizes = (600, 54_000, 64_000_000, 67_072_000)
    reads = Reads(
        files=4, files_bytes=sum(sizes), sizes=sizes, visits=8, visit_bytes=100 * 16384,
        visit_size=8 * 60_000_000, bytes=100 * 16384, requests=pieces(16384, 100), runs=pieces(16384, 100),
        followed_files=8, followed_bytes=100 * 16384, backward=46,
    )  # fmt: skip
    found = pattern(reads, 100, replace(SHUFFLED, dataset_length=8000))
    assert (found.files, found.samples_per_file, len(found.sizes)) == (2, 4000, 2)
    assert side_files([50, 1000, 1000]) == 0, "one that is small, but has its share of the bytes"


def test_a_file_of_many_samples_that_is_opened_for_each_of_them_is_opened_so_by_the_replay():
    rows = Reads(
        files=4, files_bytes=4 * 10**7, sizes=(10**7,) * 4, visits=8, visit_bytes=10**7, visit_size=8 * 10**7,
        bytes=10**7, requests=pieces(100_000, 100), runs=pieces(100_000, 100), heads=pieces(100_000, 8),
        followed_files=96, followed_bytes=96 * 100_000, backward=46,
    )  # fmt: skip
    settings = replace(SHUFFLED, dataset_length=400)
    assert not pattern(rows, 100, settings).access.opens
    found = pattern(replace(rows, visits=100, visit_size=10**9), 100, settings)
    assert (found.samples_per_file, found.access.opens) == (100, 1)
    assert not found.access.advised and pattern(replace(rows, advised=10**7), 100, settings).access.advised
    said = "in 1 place of its file of 100 samples, at random, which is opened for it"
    assert f"all of a sample is read, {said}" in found.told


def test_rows_of_which_the_last_page_is_read_first_are_read_so():
    """SQLite's; pages of its index lie elsewhere, and are in the page cache before long."""
    rows = np.random.default_rng(1).permutation(4000)[:100].tolist()
    of_index = [row // 60 * 61_440 for row in rows]
    of_rows = [
        run
        for row, index in zip(rows, of_index, strict=True)
        for run in ((index, 4096, 0), (row * 61_440 + 57_344, 4096, 0), (row * 61_440, 57_344, 0))
    ]
    read = 100 * (4096 + 61_440)
    reads = Reads(
        files=1, files_bytes=4000 * 61_440, sizes=(4000 * 61_440,), visits=2, visit_bytes=read,
        visit_size=2 * 4000 * 61_440, bytes=read, index_bytes=100 * 4096, requests=pieces(4096, 1600),
        heads=pieces(100, 2), runs=pieces(4096, 200) + pieces(57_344, 100), large_runs=100, followed_files=2,
        followed_bytes=read, backward=49, trail=((0, 100, 1), *of_rows),
    )  # fmt: skip
    found = pattern(reads, 100, replace(SHUFFLED, dataset_length=4000))
    assert found.access.places == ((57_344, 4096, 0, 57_344),) and found.block_bytes == 4096
    assert (found.samples_per_file, found.sample_bytes, found.access.bytes_read) == (4000, 61_440, 61_440)
    assert any(line.startswith("all of a sample is read, in 2 places within 61.4 kB") for line in found.told)


def pages(batch_call_bytes: float) -> Pattern:
    """Two workers have read 12 pages of 50 samples, of 120 pages in one file."""
    iterable = Settings(batch_size=4, workers=2, prefetch_factor=2, sampler="iterable", iterable=True)
    reads = Reads(
        files=1, files_bytes=120 * 2**21, sizes=(120 * 2**21,), visits=2, visit_bytes=12 * 2**21,
        visit_size=2 * 120 * 2**21, bytes=12 * 2**21, requests=pieces(2**21, 12), runs=pieces(2**21, 12),
        heads=pieces(2**21, 2), followed_files=2, followed_bytes=12 * 2**21, backward=6,
    )  # fmt: skip
    one = replace(seen(reads, 400, iterable), batch_call_bytes=batch_call_bytes)
    return pattern_of(one, [one])


def test_workers_that_share_a_file_do_not_make_its_samples_smaller():
    assert pages(4 * 2**21 / 50).sample_bytes == pytest.approx(2**21 / 50, rel=0.01), "less their buffer"


def test_samples_that_are_read_in_runs_at_random_places_are_replayed_so():
    """As pages of FFCV are, or blocks of rows."""
    found = pages(4 * 2**21 / 50)
    assert (found.access.run_samples, found.samples_per_file, found.access.streams) == (50, 6000, 2)


def test_what_a_job_that_marks_its_steps_read_into_a_buffer_makes_no_sample_larger():
    marked = Settings(batch_size=4, workers=32, prefetch_factor=1, marked=True)
    reads = replace(whole(300, 50_000), mapped=10_000)  # of a library
    one = replace(seen(reads, 100, marked), batch_call_bytes=4 * 50_000.0)
    found = pattern_of(one, [one])
    assert (found.files, found.files_per_sample, found.samples_per_file) == (300, 1, 1)
    assert found.access.refill == "never", "no DataLoader begins anew"
    assert any("3 times the bytes of a batch, into a buffer" in line for line in found.told)
    assert not any("opens a file" in line for line in found.told)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (STEP, "tracing: +100.0%"),
        (replace(STEP, in_flight=20), "tracing: its cost is not measured, as the host may run ahead"),
        (replace(STEP, bound=True, at_least=0.1), "tracing: its cost is not measured"),
        (replace(STEP, bound=True, at_least=0.1, steps=1), "tracing: +100.0%"),
    ],
)
def test_the_cost_of_tracing_is_told_where_a_step_is_the_time_between_batches(step, said, tmp_path):
    seen = Observation(created="", how="strace", step=step, traced_step_seconds=0.2, step_seconds=0.1)
    report = lines(Written(folder=tmp_path, observation=seen, described=None, refused=""))
    assert any(said in line for line in report), report
