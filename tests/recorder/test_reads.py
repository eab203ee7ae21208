"""Calls as strace tells them, reduced to what a job reads."""

from __future__ import annotations

import json
import os
import random
import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.plugins.recorder import watch
from emulator.plugins.recorder.reads import Reads, Reduction, Tally, bin_top, is_data, size_quantiles
from emulator.plugins.recorder.strace import Tracer
from emulator.record.device import DeviceReads


@given(st.integers(1, 2**47))
def test_a_size_lies_in_its_bin(size):
    top = bin_top(size)
    assert size <= top == bin_top(top) < 1.25 * size + 1 and bin_top(top + 1) > top


@given(st.lists(st.integers(1, 2**40), min_size=1))
def test_a_typical_size_is_one_that_most_bytes_come_in(sizes):
    tally = Tally()
    for size in sizes:
        tally.add(size)
    seen = tally.pieces()
    assert seen.count == len(sizes) and sum(seen.bytes) == sum(sizes)
    assert min(sizes) <= seen.typical() <= max(sizes)


def traced(lines: str, pieces: int = 7) -> Reduction:
    """What a Tracer makes of lines that arrive in pieces."""
    reduction = Reduction()
    tracer = Tracer(reduction, lambda process: process)
    data = lines.encode()
    for start in range(0, len(data), pieces):
        tracer.feed(data[start : start + pieces])
    return reduction


def test_reads_runs_and_visits(tmp_path):
    one, two = tmp_path / "a b.dat", tmp_path / "größe.dat"
    one.write_bytes(bytes(1000))
    two.write_bytes(bytes(5000))
    other = "".join(f"\\{byte:o}" if byte > 127 else chr(byte) for byte in str(two).encode())
    found = traced(
        f"""7 openat(AT_FDCWD</x>, "{one}", O_RDONLY|O_CLOEXEC) = 3<{one}> <0.000010>
7 read(3<{one}>, ""..., 600) = 600 <0.000010>
7 lseek(3<{one}>, 0, SEEK_CUR) = 600 <0.000001>
7 read(3<{one}>,  <unfinished ...>
8 pread64(9<{other}>, ""..., 100, 4000) = 100 <0.000020>
7 <... read resumed>""..., 600) = 400 <0.000010>
7 read(3<{one}>, "", 600) = 0 <0.000010>
8 pread64(9<{other}>, ""..., 100, 0) = 100 <0.000020>
8 pread64(9<{other}>, ""..., 50, 100) = 50 <0.000020>
7 fadvise64(3<{one}>, 0, 300, POSIX_FADV_WILLNEED) = 0 <0.000010>
7 fadvise64(3<{one}>, 400, 0, POSIX_FADV_WILLNEED) = 0 <0.000010>
7 fadvise64(3<{one}>, 0, 0, POSIX_FADV_RANDOM) = 0 <0.000010>
7 read(4<pipe:[17]>, ""..., 600) = 600 <0.000010>
7 read(5</usr/lib/x.so>, ""..., 600) = 600 <0.000010>
nonsense
7 read(
"""
    )
    seven, eight = found.seen(7, {}, False), found.seen(8, {}, False)
    assert (seven.visits, seven.visit_bytes, seven.visit_size) == (1, 1000, 1000)
    assert seven.runs.count == 1 and seven.requests.count == 2 and seven.advised == 300 + 1000
    assert (eight.bytes, eight.requests.count, eight.runs.count, eight.files_bytes) == (250, 3, 2, 5000)


def test_a_file_that_was_open_before_its_process_was_traced_is_read_from_its_offset(tmp_path):
    path, own = tmp_path / "one.dat", os.getpid()
    path.write_bytes(bytes(3000))
    reduction = Reduction()
    tracer = Tracer(reduction, lambda process: "loader")
    with path.open("rb", buffering=0) as file:
        file.read(1000)
        assert own in tracer.adopt(own) and tracer.process(own) == own
        for size in (600, 400):
            tracer.feed(f'{own} read({file.fileno()}<{path}>, ""..., {size}) = {size} <0.00001>\n'.encode())
    seen = reduction.seen("loader", {}, False)
    assert seen.runs.count == 1 and seen.requests.count == 2 and seen.bytes == 1000
    assert reduction.group("loader").places[2] == 1000


def test_an_error_of_strace_is_kept_unless_its_process_had_ended():
    tracer = Tracer(Reduction(), lambda process: process)
    tracer.feed(b"strace: attach: ptrace(PTRACE_SEIZE, 7): No such process\n")
    assert not tracer.errors
    tracer.feed(b"strace: attach: ptrace(PTRACE_SEIZE, 8): Operation not permitted\n")
    assert tracer.errors == ["attach: ptrace(PTRACE_SEIZE, 8): Operation not permitted"]


def test_a_thread_whose_calls_strace_confuses_is_no_error_if_it_never_reads():
    """It happened to an idle thread of a library on a busy machine, and tracing ended with the first step."""
    reduction = Reduction()
    tracer, end = Tracer(reduction, lambda process: process), threading.Event()
    idle = threading.Thread(target=end.wait)
    idle.start()
    try:
        tracer.feed(b"strace: pid %d: entering, ptrace_syscall_info.op == 2\n" % idle.native_id)
        tracer.feed(b'%d read(3</one.dat>, ""..., 9) = 9 <0.1>\n' % idle.native_id)
    finally:
        end.set()
        idle.join()
    assert not tracer.errors and not reduction.groups
    tracer.feed(b"strace: pid %d: entering, ptrace_syscall_info.op == 2\n" % threading.get_native_id())
    assert len(tracer.errors) == 1


def test_what_a_program_reads_through_a_small_buffer_counts_as_one_request():
    """Python reads 256 KiB of an .npz as 4 and 252; a header that a visit begins with is a request."""
    found = Reduction()
    found.known(b"/data/one", 2**30)
    found.opened("workers", 1, 3, b"/data/one")
    for size in (4096, *(4096, 258_048) * 3, 4096, 4096, 65_536):
        found.read("workers", 1, 3, b"/data/one", None, size, 0.0)
    seen = found.seen("workers", {}, False)
    sizes = [4096, 262_144, 262_144, 262_144, 4096, 69_632]
    expected = Tally()
    for size in sizes:
        expected.add(size)
    assert seen.requests == expected.pieces() and seen.bytes == sum(sizes)


@given(st.permutations(range(50)), st.booleans())
def test_moves_back_are_counted_among_large_reads_alone(order, index):
    """As of HDF5, which goes back to its index before each sample."""
    found = Reduction()
    found.known(b"/data/one", 50 * 8192)
    for place in order:
        if index:
            found.read("", 1, 3, b"/data/one", 0, 512, 0.0)
        found.read("", 1, 3, b"/data/one", 4096 + 2 * 8192 * place, 8192, 0.0)
    seen = found.seen("", {}, False)
    assert seen.backward == sum(b < a for a, b in pairwise(order))
    assert (seen.followed_files, seen.followed_bytes) == (1, seen.bytes)


@given(st.permutations(range(0, 60, 2)), st.sampled_from([8192, 8200, 12288]))
def test_runs_are_adjacent_if_they_lie_side_by_side_whenever_they_were_read(order, pitch):
    """Thirty samples of 8192 bytes, of which the last twenty leave out every second place."""
    found = Reduction()
    found.known(b"/data/one", 2**21)
    for place in order:
        place = place // 2 if place < 20 else place
        found.read("", place % 2, 3, b"/data/one", pitch * place, 8192, 0.0)
    assert found.seen("", {}, False).adjacent == (9 if pitch < 12288 else 0)


def test_pages_of_a_map_are_looked_for_when_the_file_is_mapped_first(tmp_path, monkeypatch):
    """The workers of the second epoch map what those of the first have read."""
    (tmp_path / "one").write_bytes(bytes(40_960))
    answers = iter([(10, 1), (10, 10)])
    monkeypatch.setattr("emulator.plugins.recorder.reads._in_memory", lambda path, size: next(answers))
    found = Reduction()
    for worker in (7, 8):
        found.mapped(worker, bytes(tmp_path / "one"), 40_960)
    assert found.seen(7, {}, False).resident == found.seen(8, {}, False).resident == 0.1
    found.move(8, 7)
    assert found.seen(7, {}, False).resident == 0.1 and found.seen(7, {}, False).mapped == 81_920


@pytest.mark.parametrize(("footer", "times"), [(65536, 1), (0, 1), (0, 5)])
def test_a_footer_that_is_read_at_each_visit_is_an_index_and_samples_of_each_epoch_are_not(footer, times):
    found = Reduction()
    found.known(b"/data/one", 2**21)
    for place in list(range(20)) * times:
        if footer:
            found.read("", 1, 3, b"/data/one", 2**20, footer, 0.0)
        found.read("", 1, 3, b"/data/one", 40960 * place, 32768, 0.0)
    assert found.seen("", {}, False).index_bytes == 20 * footer


@pytest.mark.parametrize("tail_first", [False, True])
def test_the_end_of_a_file_that_is_read_before_the_rest_is_a_tail(tail_first):
    """np.load reads the directory of a zip file at its end, in two places, then the file from its start."""
    found = Reduction()
    for number in range(20):
        path, end = b"/data/%d" % number, [(2**20 - 22, 22), (2**20 - 172, 150)]
        found.known(path, 2**20)
        small = [(4096, 40), (8192, 40)]  # as torch.load's, of the headers in a zip file
        places = (
            [(0, 4096), *end, *small, (0, 2**20)] if tail_first else [(0, 4096), (4096, 2**20 - 4096), *end]
        )
        for at, size in places:
            found.read("", 1, 3, path, at, size, 0.0)
    seen = found.seen("", {}, False)
    assert (seen.tails, seen.tail_bytes) == ((20, 20 * 172) if tail_first else (0, 0))


def test_offsets_before_the_samples_are_an_index_though_each_is_read_at_its_own_place():
    found = Reduction()
    found.known(b"/data/one", 2**21)
    for place in range(20):
        found.read("", 1, 3, b"/data/one", 4 * place, 8, 0.0)
        found.read("", 1, 3, b"/data/one", 4096 + 40960 * place, 30_000, 0.0)
    seen = found.seen("", {}, False)
    assert seen.index_bytes == 160


def test_what_one_of_two_ranks_knows_is_the_sum():
    known, unknown = Reads(storage_bytes=0, call_bytes=7), Reads()
    for total in (known.plus(unknown), unknown.plus(known)):
        assert (total.storage_bytes, total.call_bytes) == (0, 7)


def test_reads_past_the_page_cache_are_told_apart_in_children_too(tmp_path):
    one = tmp_path / "O_DIRECT.dat"
    one.write_bytes(bytes(8192))
    opened = f"""openat(AT_FDCWD</x>, "{one}", """
    read = f"""preadv2(3<{one}>, [{{iov_base=""..., iov_len=4096}}], 1, 0, 0) = 4096 <0.00001>\n"""
    for flags, direct in (("O_RDONLY|O_CLOEXEC", 0), ("O_RDONLY|O_DIRECT|O_CLOEXEC", 4096)):
        found = traced(f"7 {opened}{flags}) = 3<{one}> <0.00001>\n9 {read}").seen(9, {}, False)
        assert (found.bytes, found.direct) == (4096, direct)


def test_a_second_number_of_an_open_file_is_the_same_visit(tmp_path):
    one = tmp_path / "a.npy"
    one.write_bytes(bytes(10_000))
    found = traced(
        f"""7 openat(AT_FDCWD</x>, "{one}", O_RDONLY|O_CLOEXEC) = 3<{one}> <0.000010>
7 read(3<{one}>, ""..., 4096) = 4096 <0.000010>
7 lseek(4<{one}>, 128, SEEK_SET) = 128 <0.000001>
7 read(4<{one}>, ""..., 9872) = 9872 <0.000010>
"""
    ).seen(7, {}, False)
    assert (found.visits, found.visit_size, found.runs.count) == (1, 10_000, 2)
    assert (found.heads.count, found.heads.typical()) == (1, 4096)


def test_what_is_not_data():
    names = "/usr/lib/a /x/lib/python3/a.txt /a/b.so.1 /me/a.egg-info/a.txt /a/b.py /proc/1/io /dev/shm/sem.x"
    assert not any(map(is_data, names.split()))
    assert is_data("/data/a.npz") and is_data("/dev/shm/set/a.npz")


def test_the_job_may_write_anything_into_the_pipe():
    draw, seen = random.Random(1), watch.Watch(traced=False)
    lines = [
        b'{"k":"s"}', b"[]", b"7", b"{" * 5000, b'{"k":"l","p":1,"l":0,"f":{"workers":-1},"w":[]}',
        b'{"k":"s","p":1,"l":0,"e":0,"i":0,"a":5,"g":1e999,"r":1,"s":1,"n":4}', b"\xff\xfe",
        b'{"k":"o","p":1,"f":7}', b'{"k":"u","p":"x"}', b'{"k":"lost","n":[]}',
    ]  # fmt: skip
    for _ in range(200):
        seen.events(b"\n".join(draw.choices(lines, k=5)) + b"\n" + draw.randbytes(20))
        seen.tracer.feed(b"\n".join(draw.choices(lines, k=3)) + draw.randbytes(20))
    assert seen.found("here") == [] and seen.lost > 0


def test_loaders_that_a_job_makes_anew_for_each_epoch_do_not_count_their_process_again(monkeypatch):
    """Without workers, each epoch of ten batches reads 1000 bytes in the process itself."""
    read = 0
    monkeypatch.setattr(watch, "usage", lambda process: {"calls": read, "storage": read})
    seen = watch.Watch(traced=False)
    tell = lambda **event: seen.events(json.dumps(event).encode() + b"\n")  # noqa: E731
    tell(k="p", p=1, pp=0)
    for loader in range(3):
        tell(k="l", p=1, l=loader, rank=0, f={"batch_size": 4}, torch="", w=[])
        for step in range(10):
            read += 100
            at = 10 * loader + step
            tell(k="s", p=1, l=loader, e=0, i=step, n=4, r=0, a=at, g=at, s=step + 1, c=at)
    seen.end_reads()
    ((found, table),) = seen.found("here")
    assert (found.epochs, found.steps, len(table)) == (3, 30, 30)
    assert found.batch_storage_bytes == 100 and found.reads.call_bytes == 3000


def test_opened_files_count_for_no_loader_whose_calls_are_traced(tmp_path):
    """A pool that a job which marks its steps starts anew after tracing reports what its Pythons open."""
    (tmp_path / "one.dat").write_bytes(bytes(5000))
    seen = watch.Watch(traced=True)
    tell = lambda **event: seen.events(json.dumps(event).encode() + b"\n")  # noqa: E731
    loop, reader, other = 2**22 + 1, 2**22 + 2, 2**22 + 3  # no such processes
    tell(k="l", p=loop, l=0, rank=0, f={"batch_size": 4, "marked": True}, torch="", w=[], t=loop)
    for process, parent in ((reader, loop), (other, 1)):
        tell(k="p", p=process, pp=parent)
        tell(k="o", p=process, f=str(tmp_path / "one.dat"))
    assert seen.reduction.group((loop, 0)).totals["visits"] == 0
    assert seen.rest().visits == 1 and seen.rest().bytes == 5000 and not seen.lost


def test_quantiles_end_at_the_extremes():
    assert size_quantiles(np.array([5, 1, 9, 7])) == (1, 5, 7, 9), "few sizes are kept as they are"
    found = size_quantiles(np.arange(1000))
    assert (found[0], found[-1], len(found), list(found)) == (0, 999, 257, sorted(found))


@pytest.mark.parametrize(
    ("requests", "own", "each"),
    [(1000, 10**8, 10**5), (1000, 5 * 10**7, None), (50, 10**8, None), (1000, 0, None)],
)
def test_requests_of_a_device_that_others_read_too_say_nothing_of_the_job(requests, own, each):
    device = DeviceReads(name="sdb", requests=requests, bytes=10**8, seconds=1.0, written_bytes=0)
    assert device.request_bytes(own) == each
