"""Objects of an S3 endpoint: the storage contract, and an endpoint that fails in every way it can."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from contracts.storage_contract import SIZES, StorageContract, content, folder, read_whole
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from s3_server import BUCKET, KEY, SECRET, Endpoint, Fault, s3_server

from emulator.config.storage import ObjectURL, parse_place
from emulator.errors import DatasetError, FeedrateError, SpecError, StorageError
from emulator.plugins.objects.objects import ObjectStore
from emulator.storage import open_store
from emulator.storage.base import HEAD, WriteOptions

__all__ = ["folder"]


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    with s3_server() as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        yield running


def store(options: str = "timeout=60s&retries=3") -> ObjectStore:
    made = open_store(parse_place(f"s3://{BUCKET}/some/where?{options}"))
    assert isinstance(made, ObjectStore)
    return made


@pytest.fixture
def samples(endpoint: Endpoint) -> Endpoint:
    """The contract's files as objects."""
    for name in SIZES:
        endpoint.objects[f"some/where/{name}"] = content(name)
    return endpoint


class TestS3(StorageContract):
    block = 2**20  # server and client share this process's lock
    idle_files = 4  # connections that wait for the next request, at both ends

    @pytest.fixture
    def storage(self, samples: Endpoint) -> ObjectStore:
        for method in ("GET", "HEAD"):
            samples.faults.append(Fault("403", 1000, method, key="inside"))
        return store()


@pytest.mark.parametrize("kind", ["503", "hang", "cut", "short", "wrong-range", "reset"])
@pytest.mark.parametrize("skim", [False, True])
def test_a_read_that_fails_is_repeated_and_counted(samples: Endpoint, kind: str, skim: bool) -> None:
    samples.faults.append(Fault(kind, 2, key="large"))  # type: ignore[arg-type]
    source, size = store(f"timeout={'500ms' if kind == 'hang' else '60s'}&retries=5"), SIZES["large"]
    with source.open("large", size) as blob:
        buffer = memoryview(bytearray(size))
        if skim:
            assert blob.read_into(0, buffer[: 2 * HEAD], size) == size
            assert buffer[:HEAD] == content("large")[:HEAD]
        else:
            assert read_whole(blob, 2**20) == content("large")
    kinds = {"503": "busy", "hang": "timeout", "cut": "cut", "short": "cut", "wrong-range": "cut"}
    ((counted, times),) = source.stats.snapshot().retries.items()
    assert counted == kinds.get(kind, "connection")
    assert times == 2 or (kind == "hang" and times > 2), "a busy machine may answer late, too"


def test_a_read_that_was_cut_is_taken_up_where_it_ended(samples: Endpoint) -> None:
    samples.faults.append(Fault("cut", 1))
    with store().open("large", SIZES["large"]) as blob:
        assert read_whole(blob, 2**22) == content("large")
    ranges = [wanted for _, _, wanted in samples.asked]
    assert ranges[0] == f"bytes=0-{SIZES['large'] - 1}"
    assert len(ranges) == 2 and 0 < int(ranges[1].removeprefix("bytes=").partition("-")[0]) < SIZES["large"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [("503", "503 SlowDown"), ("hang", "no answer"), ("cut", "cut off"), ("reset", "no connection")],
)
def test_retries_are_bounded_and_end_in_one_line(samples: Endpoint, kind: str, said: str) -> None:
    samples.faults.append(Fault(kind, 1000))  # type: ignore[arg-type]
    source = store(f"timeout={'200ms' if kind == 'hang' else '60s'}&retries=1")
    with (
        pytest.raises(StorageError, match=f"large.*{said}.* 2 times") as caught,
        source.open("large", SIZES["large"]) as blob,
    ):
        blob.read_into(0, memoryview(bytearray(9)))
    assert "\n" not in str(caught.value)
    assert len(samples.asked) == 2 if kind != "reset" else len(samples.asked) >= 2


@pytest.mark.parametrize(("kind", "said"), [("301", "redirects"), ("garbage", "does not answer like S3")])
def test_an_endpoint_that_is_none_is_asked_once(samples: Endpoint, kind: str, said: str) -> None:
    samples.faults.append(Fault(kind, 1000))  # type: ignore[arg-type]
    with pytest.raises(StorageError, match=said):
        list(store().names())
    assert len(samples.asked) == 1


@pytest.mark.parametrize("kind", ["503", "hang"])
def test_a_request_that_keeps_failing_is_an_error_after_the_storage_timeout(
    samples: Endpoint, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """However many repetitions and seconds the URL allows."""
    monkeypatch.setattr(sys, "argv", ["feedrate", "verify", "--storage-timeout", "2s"])
    samples.faults.append(Fault(kind, 1000))  # type: ignore[arg-type]
    source, began = store("timeout=60s&retries=1000"), time.monotonic()
    with pytest.raises(StorageError, match="large"), source.open("large", SIZES["large"]) as blob:
        blob.read_into(0, memoryview(bytearray(9)))
    assert time.monotonic() - began < 60, "neither 1000 repetitions nor a minute each"
    assert len(samples.asked) < 50


FAULTS = st.lists(
    st.builds(Fault, st.sampled_from(["503", "cut", "short", "wrong-range", "reset"]), st.integers(1, 2)),
    max_size=3,
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FAULTS, st.integers(1, 2**20), st.integers(0, 2**20))
def test_no_fault_ever_makes_a_wrong_byte(
    samples: Endpoint, faults: list[Fault], block: int, begin: int
) -> None:
    """Whatever goes wrong in whatever order: the bytes are right, or there is an error."""
    samples.faults[:] = faults
    source, data = store("timeout=60s&retries=2"), content("large")
    buffer = memoryview(bytearray(block))
    try:
        with source.open("large", len(data)) as blob:
            assert blob.read_into(begin, buffer) == block
    except FeedrateError:
        assert sum(source.stats.snapshot().retries.values()) == 2
    else:
        assert buffer == data[begin : begin + block]


def test_an_object_of_another_size_or_another_object_is_the_datasets_fault(samples: Endpoint) -> None:
    buffer = memoryview(bytearray(4096))
    with pytest.raises(DatasetError, match="10001 bytes, but the manifest says 10000"):
        store().open("odd", 10_000).read_into(0, buffer)
    with pytest.raises(DatasetError, match="not there"):
        store().open("none", 10_000).read_into(0, buffer)
    blob = store().open("odd")
    blob.read_into(0, buffer)
    samples.objects["some/where/odd"] = bytes(10_001)
    with pytest.raises(DatasetError, match="replaced"):
        blob.read_into(4096, buffer)


def test_with_a_known_size_an_object_is_asked_for_once(samples: Endpoint) -> None:
    with store().open("page", 4096) as blob:
        read_whole(blob)
    assert samples.asked == [("GET", "some/where/page", "bytes=0-4095")]


def test_what_is_put_is_listed_read_and_removed(endpoint: Endpoint) -> None:
    endpoint.page = 3
    target = store()
    names = [f"a/{number:03d}" for number in range(7)]
    for name in names:
        target.put(name, name.encode())
    endpoint.objects["some/where-else/b"] = b""
    assert [entry.name for entry in target.entries()] == names
    assert [(entry.name, entry.size) for entry in target.entries("a/00")] == [(name, 5) for name in names]
    assert [entry.name for entry in target.entries("a/003")] == ["a/003"]
    assert (target.get("a/001"), target.get("none")) == (b"a/001", None)
    assert (target.size("a/001"), target.size("none")) == (5, None)
    target.delete([*names[1:], "none"])
    assert [entry.name for entry in target.entries()] == names[:1]


def test_a_draft_is_an_object_when_it_is_published(endpoint: Endpoint) -> None:
    data = os.urandom(40 << 20)
    with store().draft("big", WriteOptions()) as draft:
        draft.put(memoryview(data)[4096 : 33 << 20], 4096)
        draft.put(memoryview(data)[33 << 20 :], 33 << 20)
        draft.put(memoryview(data)[:4096], 0)
        draft.end(len(data) - 5)
        assert not endpoint.objects
        endpoint.faults.append(Fault("503", 1, "PUT"))
        draft.publish()
    assert endpoint.objects == {"some/where/big": data[:-5]}
    assert not endpoint.uploads or all(not parts for parts in endpoint.uploads.values())


def test_records_are_kept_in_objects_that_follow_each_other(endpoint: Endpoint) -> None:
    for record in (b"one.", b"two."):
        with store().appender("journal", 4) as appender:
            appender.append(record)
    assert list(endpoint.objects) == ["some/where/journal.000000", "some/where/journal.000001"]
    assert b"".join(endpoint.objects.values()) == b"one.two."


def test_no_bucket_no_keys_wrong_keys_are_one_clear_line_without_a_key(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = open_store(parse_place("s3://elsewhere/some"))
    for ask in (
        lambda: elsewhere.get("a"),
        lambda: list(elsewhere.entries()),
        lambda: elsewhere.put("a", b""),
    ):
        with pytest.raises(StorageError, match="there is no bucket elsewhere"):
            ask()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKWRONG")
    with pytest.raises(StorageError, match="access denied.*AWS_ACCESS_KEY_ID") as caught:
        store().get("a")
    assert not any(secret in str(caught.value) for secret in (KEY, SECRET, "AKWRONG"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(SpecError, match="no keys for .*AWS_ACCESS_KEY_ID"):
        store()


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_place("some/folder") == Path("some/folder")
    with pytest.raises(SpecError, match="no dataset is named"):
        parse_place("")
    place = parse_place("s3://bucket/a/b/?endpoint=http://host:1&timeout=2s")
    assert isinstance(place, ObjectURL)
    assert (place.bucket, place.prefix, place.timeout, place.retries) == ("bucket", "a/b", 2.0, 5)
    assert parse_place(str(place)) == place
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert open_store(place).describe() == {"mount": "s3://bucket", "source": "http://host:1", "type": "s3"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:secret@host:2")
    assert open_store(ObjectURL(kind="s3", bucket="b")).describe()["source"] == "http://host:2"
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert open_store(ObjectURL(kind="s3", bucket="b")).describe()["source"] == "AWS"
    for text in ("ftp://a/b", "s3://", "s3:///a", "s3://a/../b", "s3://a?secret=x", "s3://a?retries=x"):
        with pytest.raises(SpecError):
            parse_place(text)
    with pytest.raises(SpecError) as caught:
        parse_place("s3://a?aws_secret_access_key=hush")
    assert "hush" not in str(caught.value)


def test_a_folder_needs_nothing_of_it() -> None:
    code = (
        "import sys, emulator.storage, emulator.sweep.ranks; from pathlib import Path\n"
        "emulator.storage.open_store(Path('x'))\n"
        "print(sorted({'obstore', 'rados'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
