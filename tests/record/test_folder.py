"""OUT folders on real files: atomic, exact, and every failure one clear line."""

from __future__ import annotations

import dataclasses
import json
import math
from contextlib import ExitStack, suppress
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from synthetic_results import point

from emulator.errors import FeedrateError, SpecError, StorageError
from emulator.files import temporary_name
from emulator.record.out import ResultFolder, check_out, claim_failure, read_result, write_result
from emulator.record.result import SCHEMA, Flag, RunResult, new_result
from emulator.record.rows import AT_ONCE, has_columns, read_rows, write_rows
from emulator.record.steps import (
    SPOOL_HEAD,
    SPOOL_ROWS,
    STEP,
    Spool,
    make_spool,
    next_part,
    read_steps,
    remove_spools,
    step_blocks,
    write_part,
    write_steps,
)

numbers = st.floats(allow_nan=False)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=9)
plain = st.none() | st.booleans() | st.integers(0, 2**53) | numbers.filter(math.isfinite) | texts
VALUES = {float: numbers, int: st.integers(0, 2**53), str: texts, bool: st.booleans(), Any: plain}


def any_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that a result has."""
    origin, inner = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return st.builds(hint, **{name: any_of(of) for name, of in hints.items()})
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (Union, UnionType):
        return st.none() | any_of(inner[0])
    if origin is tuple and inner[-1] is not ...:
        return st.tuples(*map(any_of, inner))
    if origin is tuple:
        return st.lists(any_of(inner[0]), max_size=1).map(tuple)
    if origin is not None:
        return st.dictionaries(texts, any_of(inner[1]), max_size=2)
    return VALUES[hint]


rows = arrays(STEP, st.integers(0, 40))


@given(result=any_of(RunResult).map(lambda made: dataclasses.replace(made, schema=SCHEMA)))
@settings(max_examples=40)
def test_a_result_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, result: RunResult) -> None:
    out = tmp_path_factory.mktemp("out")
    write_result(out, result)
    assert read_result(out) == result
    assert read_result(out / "run.json") == result


@given(steps=rows)
@settings(max_examples=40)
def test_steps_come_back_bit_by_bit(tmp_path_factory: pytest.TempPathFactory, steps: np.ndarray) -> None:
    out = tmp_path_factory.mktemp("out")
    write_steps(out, steps)
    back = read_steps(out)
    assert back.dtype == STEP
    assert back.tobytes() == steps.tobytes()


@given(steps=rows, cut=st.integers(0, 40), torn=st.integers(0, STEP.itemsize - 1))
@settings(max_examples=40)
def test_spools_lose_at_most_the_torn_last_row(
    tmp_path_factory: pytest.TempPathFactory, steps: np.ndarray, cut: int, torn: int
) -> None:
    steps = steps.copy()
    steps["arrived"] = 1.5
    file = make_spool(tmp_path_factory.mktemp("out"), 7)
    with Spool(file, 1, 3) as spool:
        spool.append(steps[:cut])
        spool.append(steps[cut:])
    with file.open("r+b") as handle:  # what a killed rank may leave
        handle.seek(len(SPOOL_HEAD) + SPOOL_ROWS * STEP.itemsize + len(steps) * STEP.itemsize)
        handle.write(steps[:1].tobytes()[:torn] or b"\xff" * torn)
    assert read_steps(file.parents[1]).tobytes() == steps.tobytes()
    assert make_spool(file.parents[1], 7).name == "part-00008.steps", "a resumed run leaves it alone"


def test_ranks_of_a_host_share_a_spool_and_none_writes_over_another(tmp_path: Path) -> None:
    file, written = make_spool(tmp_path, 0), []
    with ExitStack() as stack:
        spools = [stack.enter_context(Spool(file, place, 3)) for place in range(3)]
        for size in (1, 1500, 700):
            for place, spool in enumerate(spools[:2]):  # the last rank is not active
                rows = np.zeros(size, dtype=STEP)
                rows["rank"], rows["step"], rows["arrived"] = place, np.arange(size), 1.0
                rows["point"] = len(written) // 2
                spool.append(rows)
                written.append(rows)
    assert len(read_steps(tmp_path)) == sum(map(len, written))
    write_part(tmp_path, 0, [file])
    remove_spools(tmp_path)
    assert read_steps(tmp_path).tobytes() == np.concatenate(written).tobytes(), "point by point, by rank"


def small(**changes: object) -> RunResult:
    whole = dataclasses.replace(begun(), kind="run", status="complete", reason="")
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


def one_line(error: pytest.ExceptionInfo[FeedrateError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert text
    return text


def test_spooled_rows_of_later_points_follow_those_of_the_parquet_file(tmp_path: Path) -> None:
    steps = np.zeros(6, dtype=STEP)
    steps["point"], steps["arrived"] = [0, 0, 1, 1, 2, 2], 1.0
    write_steps(tmp_path, steps[:4])
    with Spool(make_spool(tmp_path, 0)) as spool:
        spool.append(steps[2:])
    assert read_steps(tmp_path).tobytes() == steps.tobytes()


def spooled(file: Path, world: int, points: int) -> np.ndarray:
    """Rows of a rank of the world, which is another one among the active ranks of its points."""
    rows = np.zeros(3 * points, dtype=STEP)
    rows["point"], rows["rank"], rows["step"] = (
        np.repeat(np.arange(points), 3),
        world // 2,
        [0, 1, 2] * points,
    )
    rows["begin"], rows["arrived"] = np.arange(3 * points) + world / 10, 1.0
    with Spool(file, world // 4, 2) as spool:
        spool.append(rows)
    return rows


def test_each_host_writes_a_part_and_a_point_is_read_by_itself(tmp_path: Path) -> None:
    spools = [make_spool(tmp_path, number) for number in range(2)]
    rows = np.concatenate([spooled(spools[world // 2 % 2], world, 2) for world in (0, 2, 4, 6)])
    for number, spool in enumerate(spools):
        assert np.sort(read_steps(tmp_path)).tobytes() == np.sort(rows).tobytes(), (
            "also while parts are written"
        )
        write_part(tmp_path, number, [spool])
    assert np.sort(read_steps(tmp_path)).tobytes() == np.sort(rows).tobytes()
    for some in ([spools[0]], [spools[1]], None):
        remove_spools(tmp_path, some)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["steps-00001.parquet", "steps.parquet"]
    first = read_steps(tmp_path)[:12]
    assert first["point"].tolist() == [0] * 6 + [1] * 6 and first["rank"].tolist() == [0, 0, 0, 2, 2, 2] * 2
    assert np.sort(read_steps(tmp_path, 1)).tobytes() == np.sort(rows[rows["point"] == 1]).tobytes()
    assert next_part(tmp_path) == 2, "of a sweep that is resumed"


def test_of_many_rows_some_are_held_at_a_time(tmp_path: Path) -> None:
    rows = np.zeros(3 * AT_ONCE + 5, dtype=STEP)
    rows["point"], rows["begin"] = np.arange(len(rows)) // (AT_ONCE + 7), np.arange(len(rows))
    write_steps(tmp_path, rows)
    blocks = list(step_blocks(tmp_path))
    assert max(map(len, blocks)) <= AT_ONCE and np.concatenate(blocks).tobytes() == rows.tobytes()
    assert read_steps(tmp_path, 1).tobytes() == rows[rows["point"] == 1].tobytes()
    assert sum(1 for _ in step_blocks(tmp_path, 2)) == 2, "of four row groups two have rows of it"


def test_infinity_is_readable_by_strict_json_readers(tmp_path: Path) -> None:
    write_result(tmp_path, small(flags=(Flag(name="a", value=math.inf, threshold=-math.inf, sentence=""),)))
    json.loads((tmp_path / "run.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert read_result(tmp_path).flags[0].value == math.inf


def begun() -> RunResult:
    return new_result(
        "sweep", command=("feedrate",), workload={}, dataset={}, storage={}, loader="direct", environment={}
    )


def test_a_result_folder_shows_what_there_is_after_every_addition(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path / "out", begun(), force=False)
    assert read_result(tmp_path / "out").status == "incomplete"
    assert "killed" in read_result(tmp_path / "out").reason
    flag = Flag(name="a", value=1.0, threshold=0.0, sentence="")
    folder.update(flags=(*folder.result.flags, flag))
    assert read_result(tmp_path / "out") == folder.result
    assert read_result(tmp_path / "out").flags == (flag,)
    folder.keep("fio/000-a/host.json", "{}")
    make_spool(tmp_path / "out", 0)
    done = folder.complete(np.zeros(2, dtype=STEP))
    assert read_result(tmp_path / "out") == done
    assert (done.status, done.reason, done.flags) == ("complete", "", (flag,))
    assert len(read_steps(tmp_path / "out")) == 2
    left = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "out").rglob("*.*"))
    assert left == ["out/fio/000-a/host.json", "out/run.json", "out/steps.parquet"]


def test_a_result_folder_that_is_left_early_is_incomplete_and_lets_others_in(tmp_path: Path) -> None:
    with pytest.raises(StorageError), ResultFolder.create(tmp_path, begun(), force=False) as folder:
        temporary_name(tmp_path / "run.json").write_bytes(b"half")
        raise StorageError("the storage hangs")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert read_result(tmp_path) == folder.result and folder.result.status == "incomplete"
    with ResultFolder.resume(tmp_path, folder.result) as again:
        assert again.complete().status == "complete"


def test_a_run_that_fails_before_it_begins_leaves_an_earlier_result_as_it_is(tmp_path: Path) -> None:
    """Else --force would find a failure.txt that the result knows nothing of, and refuse the folder."""
    write_result(tmp_path, dataclasses.replace(begun(), status="complete"))
    assert claim_failure(tmp_path, "the disk is full")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert check_out(tmp_path, force=True) == [tmp_path / "run.json"]


def test_a_result_folder_goes_on_where_a_run_was_cut_off(tmp_path: Path) -> None:
    kept = ResultFolder.create(tmp_path, begun(), force=False).result
    rows = np.zeros(3, dtype=STEP)
    rows["point"], rows["arrived"] = [0, 0, 1], 1.0
    with Spool(make_spool(tmp_path, 0)) as spool:
        spool.append(rows)
    claim_failure(tmp_path, "the storage hangs")
    kept = dataclasses.replace(kept, points=(point(1, 1e9),))
    write_result(tmp_path, kept)
    folder = ResultFolder.resume(tmp_path, kept)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".feedrate-lock", "run.json", "steps.parquet"]
    assert read_steps(tmp_path)["point"].tolist() == [0, 0], "the point that was cut off is dropped"
    assert folder.complete().status == "complete"


def flag_table(**changes: object) -> dict[str, object]:
    return {"name": "a", "value": 1.0, "threshold": 0.0, "sentence": "", **changes}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.pop("loader"), "the key 'loader' is missing"),
        (lambda table: table.update(points=[{"ranks": 1}]), "the key 'points[0].hosts' is missing"),
        (lambda table: table.update(points=3), "points must be a list, not 3"),
        (lambda table: table.update(status="guess"), "not 'guess'"),
        (lambda table: table.update(command=[1]), "command[0]"),
        (lambda table: table.update(flags=[flag_table(value=10**400)]), "flags[0].value must be a number"),
        (lambda table: table.update(flags=[flag_table(valeu=1)]), "did you mean 'flags[0].value'"),
        (lambda table: table.update(schema=True), "schema"),
        (lambda table: table.update(schema=SCHEMA + 1), "made by a newer feedrate"),
        (lambda table: table.update(workload={"training": 3}), "workload.training must be a table"),
        (lambda table: table.update(dataset={"files": {}}), "dataset.files must be a whole number"),
        (lambda table: table["environment"].update(out_mount="x"), "environment.out_mount must be a table"),
        (lambda table: table["environment"].update(reads={"call": "preadv"}), "reads.direct' is missing"),
        (lambda table: table["storage"].update(shaped_rate="4e8"), "storage.shaped_rate must be a number"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change, said: str) -> None:  # type: ignore[no-untyped-def]
    write_result(tmp_path, small())
    table = json.loads((tmp_path / "run.json").read_text())
    change(table)
    (tmp_path / "run.json").write_text(json.dumps(table))
    with pytest.raises(SpecError) as error:
        read_result(tmp_path)
    assert said in one_line(error)
    assert "run.json" in one_line(error)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 100_000, b'{"schema": 1}', b'{"schema": 1e400}',
        b'{"schema": NaN}', b'{"schema": ' + b"9" * 10_000 + b"}", b'{"schema": ' + b"9" * 1000 + b"}",
    ],
)  # fmt: skip
def test_a_damaged_result_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(SpecError) as error:
        read_result(tmp_path)
    one_line(error)


@given(cut=st.floats(0, 1), flip=st.integers(0, 255))
@settings(max_examples=40)
def test_a_damaged_result_never_raises_anything_else(
    tmp_path_factory: pytest.TempPathFactory, cut: float, flip: int
) -> None:
    out = tmp_path_factory.mktemp("out")
    write_result(out, small())
    raw = bytearray((out / "run.json").read_bytes())
    raw[int(cut * (len(raw) - 1))] = flip
    (out / "run.json").write_bytes(raw)
    with suppress(SpecError):
        read_result(out)


def test_no_result_is_one_line(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / "nowhere.json"):
        with pytest.raises(StorageError) as error:
            read_result(place)
        one_line(error)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 1000])
def test_a_damaged_step_log_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "steps.parquet").write_bytes(content)
    with pytest.raises(SpecError) as error:
        read_steps(tmp_path)
    one_line(error)


def test_a_column_whose_name_is_no_text_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    kind = np.dtype([("wait", "<f8")])
    write_rows(path, kind, [np.zeros(3, kind)])
    path.write_bytes(path.read_bytes().replace(b"wait", b"\x80ait"))
    with pytest.raises(SpecError) as error:
        read_rows(path, kind)
    assert "not valid Parquet" in one_line(error)
    assert not has_columns(path, kind)


def test_another_parquet_file_is_refused(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    for table, said in (
        ({"a": [1]}, "no column point"),
        ({name: ["x"] for name in STEP.names or ()}, "point is"),
    ):
        pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "steps.parquet")
        with pytest.raises(SpecError) as error:
            read_steps(tmp_path)
        assert said in one_line(error)
